//! The state of a store, and its changes.

use std::{sync::Arc, time::Duration};

use super::StoreError;

/// State and counters of a store, for dashboards and alerts. See [`Store::status`](super::Store::status). Numbers
/// count from when the store was made.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
#[non_exhaustive]
pub struct StoreStatus {
    /// The circuit breaker is open: the server is not asked at present, because several calls in a row have
    /// failed.
    pub is_degraded: bool,
    /// How many attempts in flight and outcomes are in the journal, for the server to learn of.
    pub pending: usize,
    /// Attempts that were refused from the block cache, without a command to the server.
    pub cached_refusals: u64,
    /// Attempts that the fallback has decided.
    pub fallback_decisions: u64,
    /// Attempts that were admitted uncounted, where the app prefers that in an outage.
    pub admitted_uncounted: u64,
    /// Whether invalidations are received, so that an unblock elsewhere takes effect at once. If not, cached
    /// blocks are revalidated twice a second.
    pub is_subscribed: bool,
}

/// A change of a store's state. See [`Store::on_change`](super::Store::on_change).
#[derive(Clone, Debug)]
#[non_exhaustive]
pub enum StoreChange {
    /// The server does not answer: attempts are decided without it.
    Down(StoreError),
    /// The server answers again.
    Up {
        /// How long it did not.
        down_for: Duration,
        /// How many writes are replayed now.
        pending: usize,
    },
    /// All that was written without the server has been replayed.
    Replayed {
        /// How many writes were replayed since the server became unavailable.
        replayed: u64,
        /// How many were given up, because the server rejects them.
        dropped: u64,
    },
}

/// Receives changes. Must not block.
///
/// ```
/// use std::sync::Arc;
/// use tower_login_rate_limit::store::{StoreChange, StoreListener};
///
/// let listener: StoreListener = Arc::new(|change| {
///     if let StoreChange::Down(error) = change {
///         eprintln!("the store is down: {error}");
///     }
/// });
/// ```
pub type StoreListener = Arc<dyn Fn(&StoreChange) + Send + Sync>;
