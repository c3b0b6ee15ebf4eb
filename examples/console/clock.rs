//! A clock that begins in the past.

use std::{
    sync::atomic::{AtomicU64, Ordering},
    time::Duration,
};

use tower_login_rate_limit::{
    algorithm::Millis,
    clock::{Clock, SystemClock},
};

/// The system's clock, delayed until it has caught up.
#[derive(Debug)]
pub struct DelayedClock(AtomicU64);

impl DelayedClock {
    pub fn by(delay: Duration) -> Self {
        Self(AtomicU64::new(delay.as_millis() as u64))
    }

    pub fn catch_up(&self, by: Duration) {
        self.0.fetch_sub(by.as_millis() as u64, Ordering::SeqCst);
    }

    /// How far it is behind.
    pub fn delay(&self) -> Millis {
        self.0.load(Ordering::SeqCst)
    }
}

impl Clock for DelayedClock {
    fn now(&self) -> Millis {
        SystemClock.now() - self.delay()
    }

    fn since_1970(&self) -> Millis {
        self.now()
    }
}
