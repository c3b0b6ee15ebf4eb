//! Blocks that end: by time, reported by the process that reported their beginning, or because failures were taken
//! back, reported by the process that did it.

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
    AttemptId, Limit, Policy,
    attempt::Counted,
    event::{Event, LiftedBy, What},
    store::{CounterName, Key, Settled, Slot},
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
    /// Reports the blocks of this caller that ended because failures were taken out of the counters of these slots.
    #[inline]
    pub(super) fn note_lifted(
        &self,
        policy: &Policy,
        caller: &Counted<'_>,
        settled: &Settled,
        slots: &[Slot<'_>],
        by: LiftedBy,
    ) {
        let lifted = settled.lifted.iter();
        for slot in lifted.filter_map(|position| slots.get(*position)) {
            self.block_lifted(policy, caller, &slot.key, by.clone());
        }
    }

    #[cold]
    fn block_lifted(&self, policy: &Policy, caller: &Counted<'_>, key: &Key<'_>, by: LiftedBy) {
        let rule = policy.rule(key.kind());
        let Some(rule) = rule.filter(|rule| !rule.is_shadow()) else {
            return;
        };
        let in_force = self.in_force();
        in_force.rule_metrics.block_lifted(rule.name(), &by);
        self.count_blocks_soon();
        self.emit(|| {
            let ledger = self.store().ledger();
            let counter = ledger.map(|ledger| ledger.name(key).as_str().into());
            let what = What::BlockLifted {
                rule: rule.shared_name(),
                counter: counter.unwrap_or_default(),
                by,
            };
            self.event(what, caller)
        });
    }

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
        limiter.count_blocks_soon();
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
