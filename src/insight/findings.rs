//! All findings of one process, kept up to date by its limiter.

use std::{
    fmt,
    sync::{Arc, Mutex, MutexGuard, PoisonError},
};

use super::{Busiest, BusiestReport, Signals, WrongBlockTable, WrongBlocks};
use crate::event::{Event, UserHasher};

/// The busiest addresses and users, signals of attacks, and wrong blocks, of one process. Give it to a limiter by
/// [`with_insight`](crate::LoginLimiter::with_insight); clones share their findings.
///
/// ```
/// use tower_login_rate_limit::{LoginLimiter, Policy, event::UserHasher, insight::Insight, store::MemoryStore};
///
/// let insight = Insight::new(UserHasher::new("32 random bytes, the same on each server")?);
/// let limiter = LoginLimiter::new(Policy::default(), MemoryStore::new()).with_insight(insight.clone());
/// assert!(insight.busiest(10).addresses.is_empty());
/// # Ok::<(), tower_login_rate_limit::event::SecretError>(())
/// ```
#[derive(Clone)]
pub struct Insight(Arc<Mutex<Findings>>);

struct Findings {
    busiest: Busiest,
    signals: Signals,
    wrong_blocks: WrongBlocks,
}

impl Insight {
    /// Distinguishes users by this hash, with the same secret on each server.
    #[must_use]
    pub fn new(hasher: UserHasher) -> Self {
        Self(Arc::new(Mutex::new(Findings {
            busiest: Busiest::new(hasher.clone()),
            signals: Signals::new(),
            wrong_blocks: WrongBlocks::new(hasher),
        })))
    }

    /// Sets when attempts look like an attack. To be called before it is given to a limiter.
    #[must_use]
    pub fn with_signals(self, signals: Signals) -> Self {
        self.lock().signals = signals;
        self
    }

    /// The busiest addresses and users that this process has seen.
    #[must_use]
    pub fn busiest(&self, count: usize) -> BusiestReport {
        self.lock().busiest.report(count)
    }

    /// Blocks by rule and day, and how many were probably wrong, as far as this process has seen it.
    #[must_use]
    pub fn wrong_blocks(&self) -> WrongBlockTable {
        self.lock().wrong_blocks.table().clone()
    }

    /// Takes notice of an event, and returns what is found by it.
    pub(crate) fn record(&self, event: &Event) -> Vec<Event> {
        let mut findings = self.lock();
        findings.busiest.record(event);
        let mut found = findings.signals.record(event);
        found.extend(findings.wrong_blocks.record(event));
        found
    }

    fn lock(&self) -> MutexGuard<'_, Findings> {
        // Counts may lack the event that panicked.
        self.0.lock().unwrap_or_else(PoisonError::into_inner)
    }
}

impl fmt::Debug for Insight {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("Insight").finish_non_exhaustive()
    }
}
