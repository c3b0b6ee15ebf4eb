//! Hearing that a block was lifted elsewhere.
//!
//! The scripts announce it on a channel. This process subscribes to that, and to a channel of its own on
//! which it says something to itself from time to time: only if that comes back, announcements do.

use std::{
    future::poll_fn,
    pin::{Pin, pin},
    sync::{Arc, Weak},
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

use super::{Shared, connection::Link};
use crate::{Token, events};

/// How often it is tried whether announcements are still heard,
const TRY_EVERY: Duration = Duration::from_secs(5);
/// how long that and subscribing may take,
const PATIENCE: Duration = Duration::from_secs(1);
/// and when it is tried again after it has failed.
const RETRY: Duration = Duration::from_millis(250);

pub(super) type Subscribing<'a> =
    Pin<Box<dyn Future<Output = Result<PubSub, RedisError>> + Send + 'a>>;

/// Opens connections on which announcements can be heard.
pub(super) trait Announcers: Send + Sync {
    fn open(&self) -> Subscribing<'_>;
}

/// Hears announcements for as long as the store is there.
pub(super) struct Listener {
    pub(super) announcers: Arc<dyn Announcers>,
    pub(super) link: Arc<dyn Link>,
    pub(super) shared: Weak<Shared>,
    /// Told when the first try has ended, whichever way.
    pub(super) tried: Arc<Notify>,
}

impl Listener {
    pub(super) async fn listen(self) {
        let (mut subscription, mut pause) = (0, RETRY);
        let own = format!("{}:{}", self.channel().unwrap_or_default(), Token::new());
        while self.shared.strong_count() > 0 {
            subscription += 1;
            let started = Instant::now();
            let ended = self.hear(subscription, &own).await;
            let Some(shared) = self.shared.upgrade() else {
                return;
            };
            shared.blocks.subscribed(0);
            drop(shared);
            self.tried.notify_one();
            if subscription == 1
                && let Err(reason) = ended
            {
                events::unblocks_are_not_heard(&reason);
            }
            // One that may not subscribe need not ask four times a second.
            pause = match started.elapsed() > TRY_EVERY {
                true => RETRY,
                false => (pause * 2).min(TRY_EVERY),
            };
            sleep(pause).await;
        }
    }

    fn channel(&self) -> Option<String> {
        let shared = self.shared.upgrade()?;
        Some(shared.keys.channel().to_owned())
    }

    /// Hears announcements until that ends, and says why it did.
    async fn hear(&self, subscription: u64, own: &str) -> Result<(), String> {
        let Some(channel) = self.channel() else {
            return Ok(());
        };
        let subscribed = async {
            let (mut sink, stream) = self.announcers.open().await?.split();
            sink.subscribe(&[channel.as_str(), own]).await?;
            Ok::<_, RedisError>((sink, stream))
        };
        let subscribed = timeout(PATIENCE, subscribed).await;
        let subscribed = subscribed.map_err(|_| "no answer in time".to_owned())?;
        // Dropping the sink would end it.
        let (_sink, mut messages) = subscribed.map_err(|error| error.to_string())?;

        let mut heard = false;
        loop {
            self.say(own).await?;
            let mut answered = false;
            let patience = Instant::now() + PATIENCE;
            let until = Instant::now() + TRY_EVERY;
            while Instant::now() < until {
                let wait = if answered { until } else { patience };
                match timeout_at(wait, next(&mut messages)).await {
                    Err(_) if answered => break,
                    Err(_) => return Err("what was said did not come back".to_owned()),
                    Ok(None) => return Err("the connection ended".to_owned()),
                    Ok(Some(message)) => {
                        let Some(shared) = self.shared.upgrade() else {
                            return Ok(());
                        };
                        if message.get_channel_name() == own {
                            answered = true;
                            if !heard {
                                heard = true;
                                shared.blocks.subscribed(subscription);
                                self.tried.notify_one();
                            }
                        } else {
                            shared.blocks.was_lifted(message.get_payload_bytes());
                            shared.alone.was_lifted(message.get_payload_bytes());
                        }
                    }
                }
            }
            if self.shared.strong_count() == 0 {
                return Ok(());
            }
        }
    }

    /// Says something to itself, over the connections on which unblocks are said.
    async fn say(&self, own: &str) -> Result<(), String> {
        let mut publish = redis::cmd("PUBLISH");
        publish.arg(own).arg("");
        let deadline = self.link.deadline();
        let said = Arc::clone(&self.link).send(publish, None, deadline).await;
        said.map(drop).map_err(|failure| failure.error.to_string())
    }
}

async fn next(messages: &mut PubSubStream) -> Option<Msg> {
    let mut messages = pin!(messages);
    poll_fn(|cx| messages.as_mut().poll_next(cx)).await
}
