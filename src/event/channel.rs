//! Events in a channel, for consoles and other tasks of the app.

use std::sync::Arc;

use tokio::sync::broadcast;

use super::{Event, Observe};

/// An observer that hands events to any number of receivers, and the first of them.
///
/// Each receiver lags behind by `capacity` events at most; one that is slower misses the oldest ones, which it
/// counts, and delays neither the observer nor other receivers. It is a broadcast channel, since each open page
/// of a console is a receiver of its own.
///
/// ```
/// # async fn example() {
/// use tower_login_rate_limit::event::{self, Observe};
///
/// let (observer, mut events) = event::channel(1_000);
/// let mut page = events.subscribe();
/// # drop(observer);
/// while let Some(event) = page.recv().await {
///     println!("{}", event.what.name());
/// }
/// # }
/// # tokio::runtime::Builder::new_current_thread().build()?.block_on(example());
/// # Ok::<(), std::io::Error>(())
/// ```
#[must_use]
pub fn channel(capacity: usize) -> (ChannelObserver, EventReceiver) {
    // Tokio allocates the next power of two, and panics above half of the address space.
    let capacity = capacity.clamp(1, 1 << 20);
    let (sender, receiver) = broadcast::channel(capacity);
    (ChannelObserver(sender), EventReceiver::new(receiver))
}

/// Hands events to its receivers. See [`channel`].
#[derive(Debug)]
pub struct ChannelObserver(broadcast::Sender<Arc<Event>>);

impl Observe for ChannelObserver {
    fn observe(&self, event: &Event) {
        // Without receivers there is no need for a copy; with none left, sending fails, which changes nothing.
        if self.0.receiver_count() > 0 {
            let _ = self.0.send(Arc::new(event.clone()));
        }
    }
}

/// Receives events from a [`channel`].
#[derive(Debug)]
pub struct EventReceiver {
    receiver: broadcast::Receiver<Arc<Event>>,
    missed: u64,
}

impl EventReceiver {
    pub(super) const fn new(receiver: broadcast::Receiver<Arc<Event>>) -> Self {
        Self {
            receiver,
            missed: 0,
        }
    }

    /// The next event; `None` when the limiter that the observer was given to is gone. Can be canceled without
    /// losing an event.
    pub async fn recv(&mut self) -> Option<Arc<Event>> {
        loop {
            match self.receiver.recv().await {
                Ok(event) => return Some(event),
                Err(broadcast::error::RecvError::Lagged(missed)) => {
                    self.missed += missed;
                }
                Err(broadcast::error::RecvError::Closed) => return None,
            }
        }
    }

    /// A receiver of its own, for events from now on.
    #[must_use]
    pub fn subscribe(&self) -> Self {
        Self::new(self.receiver.resubscribe())
    }

    /// How many events this receiver has missed, because it was too slow.
    pub const fn missed(&self) -> u64 {
        self.missed
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::{Outcome, event::What};

    #[tokio::test]
    async fn each_receiver_has_all_events_and_a_slow_one_knows_what_it_missed() {
        let (observer, mut slow) = channel(4);
        let mut fast = slow.subscribe();
        for at in 0..10 {
            let what = What::Settled {
                outcome: Outcome::Success,
                second_factor: false,
            };
            observer.observe(&Event::new(what).with_time(at));
            assert_eq!(fast.recv().await.unwrap().at, at);
        }
        drop(observer);
        let mut seen = Vec::new();
        while let Some(event) = slow.recv().await {
            seen.push(event.at);
        }
        assert_eq!((seen, slow.missed()), (vec![6, 7, 8, 9], 6));
        assert!(fast.recv().await.is_none());
        assert_eq!(fast.missed(), 0);
    }
}
