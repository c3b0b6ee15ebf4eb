//! Where the time comes from.

use std::{
    fmt::Debug,
    sync::atomic::{AtomicU64, Ordering},
    time::{Duration, Instant, SystemTime, UNIX_EPOCH},
};

use crate::algorithm::Millis;

/// Tells the time in milliseconds since some fixed moment.
///
/// The stores get along with a clock that is set back: what was counted in the time to come counts as
/// in flight until then. What they had dropped as over stays dropped.
///
/// ```
/// use tower_login_rate_limit::{algorithm::Millis, clock::Clock, store::MemoryStore};
///
/// #[derive(Debug)]
/// struct Stopped;
///
/// impl Clock for Stopped {
///     fn now(&self) -> Millis {
///         1_000
///     }
/// }
///
/// let store = MemoryStore::new().with_clock(Stopped);
/// ```
pub trait Clock: Debug + Send + Sync + 'static {
    /// Milliseconds since the clock's own beginning.
    fn now(&self) -> Millis;
}

impl<C: Clock + ?Sized> Clock for std::sync::Arc<C> {
    fn now(&self) -> Millis {
        (**self).now()
    }
}

/// Time since the clock was made; setting the machine's clock does not touch it.
///
/// ```
/// use tower_login_rate_limit::clock::{Clock, MonotonicClock};
///
/// let clock = MonotonicClock::new();
/// let before = clock.now();
/// assert!(clock.now() >= before);
/// ```
#[derive(Clone, Copy, Debug)]
pub struct MonotonicClock {
    start: Instant,
}

impl MonotonicClock {
    /// A clock that starts now.
    #[allow(clippy::new_without_default)] // a default that depends on when it is made would surprise
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

/// The same as of the kernel's last tick, which is 1 to 10 milliseconds old: for a store that is asked more
/// quickly than the exact time is.
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
        // With an update of coarsetime's cache all threads would write to one place.
        let now = coarsetime::Instant::now_without_cache_update();
        now.duration_since(self.start).as_millis()
    }
}

/// Elsewhere the exact one has to do.
#[cfg(all(feature = "memory", not(target_os = "linux")))]
pub(crate) use MonotonicClock as CoarseClock;

/// The machine's own idea of the time since 1970.
///
/// For a Redis that does not let scripts ask for the time. Every server of the fleet must then keep
/// its clock right; with Redis' own time, which is the default, none has to.
///
/// ```
/// # #[cfg(feature = "redis")]
/// # fn example() {
/// use tower_login_rate_limit::{clock::SystemClock, store::RedisStore};
///
/// let builder = RedisStore::builder().clock(SystemClock);
/// # }
/// ```
#[derive(Clone, Copy, Debug, Default)]
pub struct SystemClock;

impl Clock for SystemClock {
    fn now(&self) -> Millis {
        // A clock before 1970 is a clock that was never set.
        SystemTime::now()
            .duration_since(UNIX_EPOCH)
            .map_or(0, to_millis)
    }
}

/// A clock that stands still until it is told otherwise, for tests and simulations.
///
/// ```
/// use std::{sync::Arc, time::Duration};
/// use tower_login_rate_limit::clock::{Clock, ManualClock};
///
/// let clock = Arc::new(ManualClock::at(1_000));
/// clock.advance(Duration::from_secs(1));
/// assert_eq!(clock.now(), 2_000);
/// ```
#[derive(Debug, Default)]
pub struct ManualClock(AtomicU64);

impl ManualClock {
    /// A clock that shows this many milliseconds.
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
        // It can't fail: there is always a time to come.
        let _ = self
            .0
            .fetch_update(Ordering::SeqCst, Ordering::SeqCst, advance);
    }
}

impl Clock for ManualClock {
    fn now(&self) -> Millis {
        self.0.load(Ordering::SeqCst)
    }
}

/// Whole milliseconds; a duration too long for them is as good as the longest.
pub(crate) fn to_millis(duration: Duration) -> Millis {
    let seconds = duration.as_secs().saturating_mul(1000);
    seconds.saturating_add(u64::from(duration.subsec_millis()))
}
