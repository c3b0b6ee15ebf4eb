//! The circuit breaker: whether the store is asked at all.

use std::{
    sync::{
        Mutex, PoisonError,
        atomic::{AtomicBool, AtomicU32, AtomicU64, Ordering},
    },
    time::Duration,
};

use tokio::time::Instant;

use crate::{
    clock::to_millis,
    store::{StoreError, StoreErrorKind},
};

/// How many failed calls in a row open it.
const THRESHOLD: u32 = 5;

/// While it is closed the store is asked. While it is open it is not, until a probe that no caller waits
/// for has succeeded.
pub(super) struct Breaker {
    is_open: AtomicBool,
    failures: AtomicU32,
    last: Mutex<Option<StoreError>>,
    start: Instant,
    /// When a call last succeeded, in milliseconds since `start`.
    last_success: AtomicU64,
    /// How long no call must have succeeded. In a cluster one server may let every call run into its
    /// deadline while the others answer.
    patience: Duration,
}

impl Breaker {
    pub(super) fn new(patience: Duration) -> Self {
        Self {
            is_open: AtomicBool::new(false),
            failures: AtomicU32::new(0),
            last: Mutex::new(None),
            start: Instant::now(),
            last_success: AtomicU64::new(0),
            patience,
        }
    }

    pub(super) fn is_open(&self) -> bool {
        self.is_open.load(Ordering::SeqCst)
    }

    /// Counts a call that succeeded.
    pub(super) fn succeeded(&self) {
        self.last_success.store(self.now(), Ordering::Relaxed);
        if self.failures.load(Ordering::Relaxed) != 0 {
            self.failures.store(0, Ordering::Relaxed);
        }
    }

    /// Counts a call that failed. Returns whether this opened it.
    pub(super) fn failed(&self, error: &StoreError) -> bool {
        *self.last.lock().unwrap_or_else(PoisonError::into_inner) = Some(error.clone());
        let before = self.failures.fetch_add(1, Ordering::Relaxed);
        let since = (self.now()).saturating_sub(self.last_success.load(Ordering::Relaxed));
        before.saturating_add(1) >= THRESHOLD
            && since >= to_millis(self.patience)
            && !self.is_open.swap(true, Ordering::SeqCst)
    }

    fn now(&self) -> u64 {
        to_millis(self.start.elapsed())
    }

    /// Closes it after a probe that succeeded.
    pub(super) fn close(&self) {
        self.failures.store(0, Ordering::Relaxed);
        self.is_open.store(false, Ordering::SeqCst);
    }

    /// Why calls are not even tried.
    pub(super) fn error(&self) -> StoreError {
        let last = self.last.lock().unwrap_or_else(PoisonError::into_inner);
        let (kind, message) = match &*last {
            Some(error) => (error.kind(), error.to_string()),
            None => (
                StoreErrorKind::Connection,
                "Redis does not answer".to_owned(),
            ),
        };
        StoreError::new(kind, format!("circuit breaker is open after: {message}"))
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[tokio::test(start_paused = true)]
    async fn opens_after_failures_in_a_row_and_closes_after_a_probe() {
        let patience = Duration::from_millis(400);
        let breaker = Breaker::new(patience);
        let error = StoreError::new(StoreErrorKind::Timeout, "late");
        tokio::time::advance(patience).await;
        for _ in 1..THRESHOLD {
            assert!(!breaker.failed(&error));
        }
        breaker.succeeded();
        for _ in 0..2 * THRESHOLD {
            assert!(!breaker.failed(&error), "a call has just succeeded");
        }
        tokio::time::advance(patience).await;
        assert!(!breaker.is_open());
        assert!(breaker.failed(&error));
        assert!(!breaker.failed(&error), "it is open already");
        // One that was sent before, and answered late.
        breaker.succeeded();
        assert!(breaker.is_open());
        assert!(breaker.error().to_string().contains("late"));
        breaker.close();
        assert!(!breaker.is_open() && !breaker.failed(&error));
    }
}
