//! Receives invalidations: scripts publish the names of counters whose block was lifted, and that the document has
//! a new version.
//!
//! The process subscribes to their channel, and to one of its own on which it publishes heartbeats: while
//! those are received, invalidations are.

use std::{
    future::poll_fn,
    pin::{Pin, pin},
    sync::Arc,
    time::Duration,
};

use futures_core::Stream;
use redis::{
    Msg, RedisError,
    aio::{PubSub, PubSubStream},
};
use tokio::{
    sync::Notify,
    time::{Instant, sleep, timeout, timeout_at},
};

use super::{Stack, backend::Backend};
use crate::{
    Token, logging,
    store::{block_cache::BlockCache, failover::WeakFailover},
};

/// How often a heartbeat is published.
const HEARTBEAT: Duration = Duration::from_secs(5);
/// How long a heartbeat, or subscribing, may take.
const PATIENCE: Duration = Duration::from_secs(1);
/// How long to wait after a first failure before subscribing again; twice as long after each further one.
const RETRY: Duration = Duration::from_millis(250);
/// What the announcement of a document begins with. The name of a counter begins with a prefix without spaces and
/// a hash tag.
const DOCUMENT: &[u8] = b"document ";

pub(super) type Subscribing<'a> =
    Pin<Box<dyn Future<Output = Result<PubSub, RedisError>> + Send + 'a>>;

/// Opens connections for subscriptions.
pub(super) trait Subscribe: Send + Sync {
    fn open(&self) -> Subscribing<'_>;
}

/// Receives invalidations for as long as the store is in use.
pub(super) struct Subscriber {
    pub(super) subscribe: Arc<dyn Subscribe>,
    pub(super) store: WeakFailover<BlockCache<Backend>>,
    /// Notified when the first try to subscribe has ended, either way.
    pub(super) tried: Arc<Notify>,
}

impl Subscriber {
    pub(super) async fn run(self) {
        let (mut number, mut pause) = (0, RETRY / 2);
        let heartbeat = format!("heartbeat:{}", Token::new());
        while let Some(store) = self.store.upgrade() {
            let backend = store.inner().inner.clone();
            drop(store);
            number += 1;
            let started = Instant::now();
            let ended = self.receive(&backend, number, &heartbeat).await;
            let Some(store) = self.store.upgrade() else {
                return;
            };
            store.inner().set_subscription(0);
            drop(store);
            self.tried.notify_one();
            if number == 1
                && let Err(reason) = ended
            {
                logging::not_subscribed(&reason);
            }
            // Where subscribing is not permitted, four tries a second are too many.
            pause = if started.elapsed() > HEARTBEAT {
                RETRY
            } else {
                (pause * 2).min(HEARTBEAT)
            };
            sleep(pause).await;
        }
    }

    /// Receives messages until the subscription ends; returns why it did.
    async fn receive(&self, backend: &Backend, number: u64, heartbeat: &str) -> Result<(), String> {
        let channel = backend.channel();
        let heartbeat = format!("{channel}:{heartbeat}");
        let subscribed = async {
            let (mut sink, stream) = self.subscribe.open().await?.split();
            sink.subscribe(&[channel, &heartbeat]).await?;
            Ok::<_, RedisError>((sink, stream))
        };
        let subscribed = timeout(PATIENCE, subscribed).await;
        let subscribed = subscribed.map_err(|_| "no reply in time".to_owned())?;
        // Dropping the sink would end the subscription.
        let (_sink, mut messages) = subscribed.map_err(|error| error.to_string())?;

        let mut is_announced = false;
        loop {
            publish(backend, &heartbeat).await?;
            let mut is_received = false;
            let (patience, until) = (Instant::now() + PATIENCE, Instant::now() + HEARTBEAT);
            while Instant::now() < until {
                let wait = if is_received { until } else { patience };
                match timeout_at(wait, next(&mut messages)).await {
                    Err(_) if is_received => break,
                    Err(_) => return Err("the heartbeat was not received".to_owned()),
                    Ok(None) => return Err("the connection ended".to_owned()),
                    Ok(Some(message)) => {
                        let Some(store) = self.store.upgrade() else {
                            return Ok(());
                        };
                        if message.get_channel_name() == heartbeat {
                            is_received = true;
                            if !is_announced {
                                is_announced = true;
                                store.inner().set_subscription(number);
                                // What was announced before may have been missed.
                                backend.announcer().announce();
                                self.tried.notify_one();
                            }
                        } else {
                            receive(&store, message.get_payload_bytes());
                        }
                    }
                }
            }
            if self.store.upgrade().is_none() {
                return Ok(());
            }
        }
    }
}

/// A block was lifted, so that neither the cache nor the fallback may refuse because of it any more; or the
/// document has a new version.
fn receive(store: &Stack, message: &[u8]) {
    if message.starts_with(DOCUMENT) {
        store.inner().inner.announcer().announce();
        return;
    }
    store.inner().invalidate(message);
    store.forget(message);
}

/// Publishes a heartbeat, over the connections on which scripts publish.
async fn publish(backend: &Backend, heartbeat: &str) -> Result<(), String> {
    let mut publish = redis::cmd("PUBLISH");
    publish.arg(heartbeat).arg("");
    let published = backend.send(publish).await;
    published.map(drop).map_err(|error| error.to_string())
}

async fn next(messages: &mut PubSubStream) -> Option<Msg> {
    let mut messages = pin!(messages);
    poll_fn(|cx| messages.as_mut().poll_next(cx)).await
}
