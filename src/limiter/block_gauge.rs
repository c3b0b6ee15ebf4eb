//! How many blocks are in force, as a metric.

use std::{
    sync::{
        Arc,
        atomic::{AtomicBool, Ordering},
    },
    time::Duration,
};

use tokio::{runtime::Handle, time::sleep};

use super::LoginLimiter;
use crate::{Rule, metrics::Metrics, store::Ledger};

/// How long after a block began or ended they are counted: many begin at once in an attack.
const LATER: Duration = Duration::from_secs(1);

/// Whether a count is due.
pub(super) type IsDue = Arc<AtomicBool>;

/// A count that is due, until this is dropped: with the runtime too that was to count.
struct Due(IsDue);

impl Drop for Due {
    fn drop(&mut self) {
        self.0.store(false, Ordering::Relaxed);
    }
}

impl LoginLimiter {
    /// Counts the blocks soon, because one began or ended. To be called within a Tokio runtime, or not at all.
    pub(crate) fn count_blocks_soon(&self) {
        if !Metrics::IS_ENABLED {
            return;
        }
        let (Ok(runtime), Some(ledger)) = (Handle::try_current(), self.store().ledger()) else {
            return;
        };
        if !self.shared.is_count_due.swap(true, Ordering::Relaxed) {
            let (limiter, due) = (self.downgrade(), Due(Arc::clone(&self.shared.is_count_due)));
            runtime.spawn(async move {
                sleep(LATER).await;
                drop(due);
                if let Some(limiter) = limiter.upgrade() {
                    limiter.count_blocks(&*ledger).await;
                }
            });
        }
    }

    /// Counts the blocks in force in the whole store, by the index.
    pub(crate) async fn count_blocks(&self, ledger: &dyn Ledger) {
        if !Metrics::IS_ENABLED {
            return;
        }
        let policy = self.policy();
        let rules: Vec<_> = policy.rules().iter().map(Rule::name).collect();
        if let Ok(counts) = ledger.block_counts(&rules).await {
            let in_force = self.in_force();
            for (rule, count) in rules.into_iter().zip(counts) {
                in_force.rule_metrics.set_in_force(rule, count);
            }
        }
    }
}
