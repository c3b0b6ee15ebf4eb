//! Blocks that end by time: reported by the process that reported their beginning.

use std::{
    sync::{
        Arc,
        atomic::{AtomicUsize, Ordering},
    },
    time::Duration,
};

use tokio::{runtime::Handle, time::sleep};

use super::LoginLimiter;
use crate::{
    AttemptId, Limit,
    event::{Event, LiftedBy, What},
    store::CounterName,
};

/// How many blocks of a process are waited for. The end of others is not reported; events tell when it is, as they
/// begin.
const MAX_WATCHED: usize = 16_384;
/// How long after its end a block is looked at: clocks of stores are coarse.
const LATER: Duration = Duration::from_millis(50);

/// The number of blocks that are waited for.
pub(super) type Watched = Arc<AtomicUsize>;

/// A block that is in force.
pub(super) struct Lifting {
    pub(super) counter: CounterName,
    pub(super) limit: Limit,
    pub(super) rule: Arc<str>,
    /// The failure that began it.
    pub(super) last: AttemptId,
    /// Has the address and the user.
    pub(super) began: Option<Event>,
}

/// One of the blocks that are waited for, whatever becomes of its task.
struct Watching(Watched);

impl Drop for Watching {
    fn drop(&mut self) {
        self.0.fetch_sub(1, Ordering::Relaxed);
    }
}

impl LoginLimiter {
    /// Reports the end of a block when it comes by time. To be called within a Tokio runtime, or not at all.
    pub(super) fn watch(&self, lasts: Duration, lifting: Lifting) {
        let Ok(runtime) = Handle::try_current() else {
            return;
        };
        let watching = Watching(Arc::clone(&self.shared.watched));
        if watching.0.fetch_add(1, Ordering::Relaxed) >= MAX_WATCHED {
            return;
        }
        let limiter = self.downgrade();
        runtime.spawn(async move {
            sleep(lasts + LATER).await;
            drop(watching);
            // The limiter may be gone by then, and its store with it.
            if let Some(limiter) = limiter.upgrade() {
                lifting.report(&limiter).await;
            }
        });
    }
}

impl Lifting {
    async fn report(self, limiter: &LoginLimiter) {
        let Some(ledger) = limiter.store().ledger() else {
            return;
        };
        let Ok(contents) = ledger.inspect(&[(&self.counter, &self.limit)]).await else {
            return;
        };
        let is_over_by_time = contents.first().is_some_and(|contents| {
            // A block that was lifted early has lost its failures, and one that is in force is another one.
            let mut attempts = contents.attempts.iter();
            attempts.any(|kept| kept.id == self.last) && !contents.standing.is_blocked()
        });
        if !is_over_by_time {
            return;
        }
        let by = LiftedBy::Time;
        limiter
            .in_force()
            .rule_metrics
            .block_lifted(&self.rule, &by);
        limiter.emit(|| {
            let mut event = Event::new(What::BlockLifted {
                rule: self.rule,
                counter: self.counter.as_str().into(),
                by,
            });
            if let Some(began) = self.began {
                (event.address, event.user) = (began.address, began.user);
            }
            event
        });
    }
}
