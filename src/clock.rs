//! Sources of time for the stores.

use std::{
    fmt::Debug,
    sync::atomic::{AtomicU64, Ordering},
    time::{Duration, Instant, SystemTime, UNIX_EPOCH},
};

use crate::algorithm::Millis;

/// A source of time, in milliseconds since an arbitrary fixed point.
///
/// The stores tolerate a clock that is set back: a failure whose time then lies in the future counts as in
/// flight until that time. What had expired and was dropped stays dropped.
pub trait Clock: Debug + Send + Sync + 'static {
    /// The current time, in milliseconds since the clock's own beginning.
    fn now(&self) -> Millis;

    /// The current time since 1970, by which times are shown. The system's, unless the clock is one of its
    /// own.
    fn since_1970(&self) -> Millis {
        SystemClock.now()
    }
}

impl<C: Clock + ?Sized> Clock for std::sync::Arc<C> {
    fn now(&self) -> Millis {
        (**self).now()
    }

    fn since_1970(&self) -> Millis {
        (**self).since_1970()
    }
}

/// The time since the clock was created. Independent of changes to the system's clock.
#[derive(Clone, Copy, Debug)]
pub struct MonotonicClock {
    start: Instant,
}

impl MonotonicClock {
    /// A clock that starts now.
    #[must_use]
    #[allow(clippy::new_without_default)] // two defaults would differ
    pub fn new() -> Self {
        Self {
            start: Instant::now(),
        }
    }
}

impl Clock for MonotonicClock {
    fn now(&self) -> Millis {
        to_millis(self.start.elapsed())
    }
}

/// A monotonic clock with the resolution of the kernel's tick, 1 to 10 milliseconds: reading the exact time
/// would take a good part of a call of the memory store.
#[cfg(all(feature = "memory", target_os = "linux"))]
#[derive(Clone, Copy, Debug)]
pub(crate) struct CoarseClock {
    start: coarsetime::Instant,
}

#[cfg(all(feature = "memory", target_os = "linux"))]
impl CoarseClock {
    pub(crate) fn new() -> Self {
        Self {
            start: coarsetime::Instant::now_without_cache_update(),
        }
    }
}

#[cfg(all(feature = "memory", target_os = "linux"))]
impl Clock for CoarseClock {
    fn now(&self) -> Millis {
        // Updating coarsetime's cache would make all threads write to one location.
        let now = coarsetime::Instant::now_without_cache_update();
        now.duration_since(self.start).as_millis()
    }
}

/// Only Linux has a coarse clock.
#[cfg(all(feature = "memory", not(target_os = "linux")))]
pub(crate) use MonotonicClock as CoarseClock;

/// The system's clock: the time since 1970.
///
/// For a Redis whose scripts can't read the time. The clocks of all servers of a fleet must then be
/// synchronized; with the time of Redis, which is the default, they need not be.
#[derive(Clone, Copy, Debug, Default)]
pub struct SystemClock;

impl Clock for SystemClock {
    fn now(&self) -> Millis {
        // A clock before 1970 was never set.
        SystemTime::now()
            .duration_since(UNIX_EPOCH)
            .map_or(0, to_millis)
    }
}

/// A clock that stands still until it is set or advanced, for tests and simulations.
///
/// ```
/// use std::{sync::Arc, time::Duration};
/// use tower_login_rate_limit::{clock::{Clock, ManualClock}, store::MemoryStore};
///
/// let clock = Arc::new(ManualClock::at(1_000));
/// let store = MemoryStore::new().with_clock(Arc::clone(&clock));
/// clock.advance(Duration::from_secs(1));
/// assert_eq!(clock.now(), 2_000);
/// ```
#[derive(Debug, Default)]
pub struct ManualClock(AtomicU64);

impl ManualClock {
    /// A clock that stands at `now`.
    #[must_use]
    pub const fn at(now: Millis) -> Self {
        Self(AtomicU64::new(now))
    }

    /// Sets the clock, forward or back.
    pub fn set(&self, now: Millis) {
        self.0.store(now, Ordering::SeqCst);
    }

    /// Moves the clock forward.
    pub fn advance(&self, by: Duration) {
        let advance = |now: Millis| Some(now.saturating_add(to_millis(by)));
        // Can't fail: the closure always returns a time.
        let _ = (self.0).fetch_update(Ordering::SeqCst, Ordering::SeqCst, advance);
    }
}

impl Clock for ManualClock {
    fn now(&self) -> Millis {
        self.0.load(Ordering::SeqCst)
    }

    /// The time that was set.
    fn since_1970(&self) -> Millis {
        self.now()
    }
}

/// Whole milliseconds, saturating.
pub(crate) fn to_millis(duration: Duration) -> Millis {
    let seconds = duration.as_secs().saturating_mul(1000);
    seconds.saturating_add(u64::from(duration.subsec_millis()))
}
