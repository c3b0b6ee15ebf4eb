//! Whether Redis is asked at all.

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

/// After so many calls in a row that failed, nobody has to wait for the next one to fail.
const ENOUGH: u32 = 5;

/// Closed, Redis is asked. Open, it is not, until a single call that nobody waits for has shown that
/// it answers again.
pub(super) struct Breaker {
    is_open: AtomicBool,
    failed_in_a_row: AtomicU32,
    last: Mutex<Option<StoreError>>,
    start: Instant,
    /// In milliseconds since then.
    worked_last: AtomicU64,
    /// How long nothing must have worked. Of a cluster some servers may work while another one lets
    /// every call wait for its deadline.
    patience: Duration,
}

impl Breaker {
    pub(super) fn new(patience: Duration) -> Self {
        Self {
            is_open: AtomicBool::new(false),
            failed_in_a_row: AtomicU32::new(0),
            last: Mutex::new(None),
            start: Instant::now(),
            worked_last: AtomicU64::new(0),
            patience,
        }
    }

    pub(super) fn is_open(&self) -> bool {
        self.is_open.load(Ordering::SeqCst)
    }

    /// A call was answered.
    pub(super) fn worked(&self) {
        self.worked_last.store(self.now(), Ordering::Relaxed);
        if self.failed_in_a_row.load(Ordering::Relaxed) != 0 {
            self.failed_in_a_row.store(0, Ordering::Relaxed);
        }
    }

    /// A call failed. Says whether that was enough to open it.
    pub(super) fn failed(&self, error: &StoreError) -> bool {
        *self.last.lock().unwrap_or_else(PoisonError::into_inner) = Some(error.clone());
        let before = self.failed_in_a_row.fetch_add(1, Ordering::Relaxed);
        let since = (self.now()).saturating_sub(self.worked_last.load(Ordering::Relaxed));
        before.saturating_add(1) >= ENOUGH
            && since >= to_millis(self.patience)
            && !self.is_open.swap(true, Ordering::SeqCst)
    }

    fn now(&self) -> u64 {
        to_millis(self.start.elapsed())
    }

    /// The call that was to show it was answered.
    pub(super) fn close(&self) {
        self.failed_in_a_row.store(0, Ordering::Relaxed);
        self.is_open.store(false, Ordering::SeqCst);
    }

    /// Why a call is not even tried.
    pub(super) fn error(&self) -> StoreError {
        let last = self.last.lock().unwrap_or_else(PoisonError::into_inner);
        let (kind, message) = match &*last {
            Some(error) => (error.kind(), error.to_string()),
            None => (StoreErrorKind::Connection, "redis is away".to_owned()),
        };
        StoreError::new(
            kind,
            format!("not asked, since calls before had failed: {message}"),
        )
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[tokio::test(start_paused = true)]
    async fn it_opens_after_failures_in_a_row_and_closes_when_told() {
        let patience = Duration::from_millis(400);
        let breaker = Breaker::new(patience);
        let error = StoreError::new(StoreErrorKind::Timeout, "late");
        tokio::time::advance(patience).await;
        for _ in 1..ENOUGH {
            assert!(!breaker.failed(&error));
        }
        breaker.worked();
        for _ in 0..2 * ENOUGH {
            assert!(!breaker.failed(&error), "something worked a moment ago");
        }
        tokio::time::advance(patience).await;
        assert!(!breaker.is_open());
        assert!(breaker.failed(&error));
        assert!(!breaker.failed(&error), "it was open already");
        // One that had been sent before, and was answered at last.
        breaker.worked();
        assert!(breaker.is_open());
        assert!(breaker.error().to_string().contains("late"));
        breaker.close();
        assert!(!breaker.is_open() && !breaker.failed(&error));
    }
}
