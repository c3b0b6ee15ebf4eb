//! The latest events, for consoles.

use std::{
    collections::VecDeque,
    fmt,
    sync::{Arc, Mutex, MutexGuard, PoisonError},
};

use tokio::sync::broadcast;

use super::{Event, EventReceiver, Observe};
use crate::{
    algorithm::Millis,
    clock::{Clock, SystemClock},
    insight::{Activity, Insight, Minute},
};

/// How many events are copied at a time.
const PART: usize = 1_024;
/// How many events a receiver may lag behind.
const LAG: usize = 1_024;
/// How far ahead the clock of another process may be, in milliseconds.
const CLOCK_SKEW: Millis = 60_000;

/// The latest events and how much happened per minute, in bounded memory: what a console shows. Clones share it.
///
/// An app of one process makes it an observer of its limiter:
///
/// ```
/// use tower_login_rate_limit::{LoginLimiter, Policy, event::Feed, store::MemoryStore};
///
/// let feed = Feed::new(10_000);
/// let limiter = LoginLimiter::new(Policy::default(), MemoryStore::new()).with_observer(feed.clone());
/// assert!(feed.latest(10, |_| true).is_empty());
/// ```
///
/// In a fleet, whose events are in a Redis stream, it follows that (`Feed::follow`, features `redis` and `serde`).
#[derive(Clone)]
pub struct Feed(Arc<Shared>);

struct Shared {
    capacity: usize,
    kept: Mutex<Kept>,
    sender: broadcast::Sender<Arc<Event>>,
    insight: Option<Insight>,
}

#[derive(Clone, Default)]
struct Kept {
    /// The oldest first.
    events: VecDeque<Arc<Event>>,
    /// How many were ever added, which tells where in the list an event is.
    added: u64,
    activity: Activity,
}

impl Kept {
    /// Up to `count` of the events that were among the first `seen`, the newest first.
    fn before(&self, seen: u64, count: usize) -> Vec<Arc<Event>> {
        let newer = usize::try_from(self.added - seen).unwrap_or(usize::MAX);
        let older = self.events.iter().rev().skip(newer);
        older.take(count).cloned().collect()
    }
}

impl Feed {
    /// Keeps this many events, 1 to 1,000,000.
    #[must_use]
    pub fn new(capacity: usize) -> Self {
        Self(Arc::new(Shared {
            capacity: capacity.clamp(1, 1_000_000),
            kept: Mutex::default(),
            sender: broadcast::channel(LAG).0,
            insight: None,
        }))
    }

    /// Keeps this insight up to date too: for a feed that follows the stream of a [fleet](Insight#in-a-fleet), where no
    /// single limiter sees all events. To be called before the feed is used.
    ///
    /// Without a limiter of its own, what it finds is shown by this feed and written nowhere.
    #[must_use]
    pub fn with_insight(self, insight: Insight) -> Self {
        let (capacity, kept) = (self.0.capacity, self.lock().clone());
        Self(Arc::new(Shared {
            capacity,
            kept: Mutex::new(kept),
            sender: self.0.sender.clone(),
            insight: Some(insight),
        }))
    }

    /// The insight that is kept up to date, if any.
    #[must_use]
    pub fn insight(&self) -> Option<&Insight> {
        self.0.insight.as_ref()
    }

    /// The latest events that match, the newest first, `count` at most.
    pub fn latest(&self, count: usize, matches: impl Fn(&Event) -> bool) -> Vec<Arc<Event>> {
        let (mut matching, mut seen) = (Vec::new(), self.lock().added);
        // Copied a part at a time, so that no observer waits while a console compares.
        while matching.len() < count {
            let part = self.lock().before(seen, PART);
            seen -= part.len() as u64;
            if part.is_empty() {
                break;
            }
            let missing = count - matching.len();
            let found = part.into_iter().filter(|event| matches(event));
            matching.extend(found.take(missing));
        }
        matching
    }

    /// How much happened in each of the last 180 minutes, the oldest first.
    #[must_use]
    pub fn activity(&self) -> Vec<Minute> {
        let activity = self.lock().activity.clone();
        activity.until(SystemClock.now())
    }

    /// Receives the events from now on.
    #[must_use]
    pub fn subscribe(&self) -> EventReceiver {
        EventReceiver::new(self.0.sender.subscribe())
    }

    /// Takes notice of what a stream contains and of what is added to it, until the task is aborted. While Redis
    /// can't be read it tries again. To be called within a Tokio runtime.
    #[cfg(all(feature = "redis", feature = "serde"))]
    pub fn follow(&self, reader: super::EventReader) -> tokio::task::JoinHandle<()> {
        super::follower::follow(self.clone(), reader)
    }

    /// Shows an event to those who look at the feed.
    pub(super) fn show(&self, event: Event) {
        let event = Arc::new(event);
        {
            let mut kept = self.lock();
            if is_past(&event) {
                kept.activity.record(&event);
            }
            if kept.events.len() == self.0.capacity {
                kept.events.pop_front();
            }
            kept.events.push_back(Arc::clone(&event));
            kept.added += 1;
        }
        // Without receivers it fails, which makes no difference.
        let _ = self.0.sender.send(event);
    }

    fn lock(&self) -> MutexGuard<'_, Kept> {
        // Counts may lack the event that panicked.
        (self.0.kept.lock()).unwrap_or_else(PoisonError::into_inner)
    }
}

/// Whether an event has happened, and can be counted. A process whose clock is ahead must not make the present look like
/// the past.
pub(super) fn is_past(event: &Event) -> bool {
    event.at <= SystemClock.now().saturating_add(CLOCK_SKEW)
}

impl Observe for Feed {
    fn observe(&self, event: &Event) {
        self.show(event.clone());
        // What is found is an event of the process that finds it, so it is shown here and written nowhere.
        let insight = self.0.insight.as_ref().filter(|_| is_past(event));
        let found = insight.map(|insight| insight.record(event));
        for found in found.into_iter().flatten() {
            self.show(found.event);
        }
    }
}

impl fmt::Debug for Feed {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("Feed").finish_non_exhaustive()
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::{
        Outcome,
        event::{UserHasher, What},
    };

    fn settled(at: u64) -> Event {
        let what = What::Settled {
            outcome: Outcome::Failure,
            second_factor: false,
        };
        Event::new(what).with_time(at)
    }

    /// One of a process whose clock is wrong, or of another program that writes to the stream.
    #[test]
    fn an_event_of_the_future_hides_no_attack() {
        let insight = Insight::new(UserHasher::new([7; 32]).unwrap());
        let feed = Feed::new(1_000).with_insight(insight);
        feed.observe(&settled(u64::MAX));
        let (now, minute) = (SystemClock.now(), 60_000);
        for ago in (1..=90).rev() {
            feed.observe(&settled(now - ago * minute));
        }
        (0..500).for_each(|_| feed.observe(&settled(now)));
        feed.observe(&settled(now + minute));
        let is_signal = |event: &Event| matches!(event.what, What::Signal(_));
        assert_eq!(feed.latest(10, is_signal).len(), 1);
    }

    #[tokio::test]
    async fn the_newest_events_are_kept_and_received() {
        let feed = Feed::new(3);
        let mut receiver = feed.subscribe();
        let now = SystemClock.now();
        for at in now..now + 5 {
            feed.observe(&settled(at));
        }
        let times = |events: Vec<Arc<Event>>| -> Vec<_> {
            events.iter().map(|event| event.at - now).collect()
        };
        assert_eq!(times(feed.latest(10, |_| true)), [4, 3, 2]);
        assert_eq!(times(feed.latest(1, |event| event.at < now + 4)), [3]);
        assert_eq!(receiver.recv().await.unwrap().at, now);
        feed.observe(&settled(u64::MAX));
        let failures: u64 = feed.activity().iter().map(|minute| minute.failures).sum();
        assert_eq!(failures, 5);
    }
}
