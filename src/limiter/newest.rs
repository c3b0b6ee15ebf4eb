//! A handle to a limiter that survives its settings.

use std::sync::{Arc, Mutex, MutexGuard, PoisonError, Weak};

use super::{LoginLimiter, Shared};

/// Refers to a limiter without keeping it in use, for tasks and for listeners of the store. A setting replaces the
/// limiter that it is made from; this then refers to the new one.
#[derive(Clone, Default)]
pub(crate) struct Newest(Arc<Mutex<Weak<Shared>>>);

impl Newest {
    pub(super) fn set(&self, limiter: &Arc<Shared>) {
        *self.lock() = Arc::downgrade(limiter);
    }

    pub(crate) fn upgrade(&self) -> Option<LoginLimiter> {
        let shared = self.lock().upgrade()?;
        Some(LoginLimiter { shared })
    }

    fn lock(&self) -> MutexGuard<'_, Weak<Shared>> {
        // Replaced as a whole, so it is consistent after a panic too.
        self.0.lock().unwrap_or_else(PoisonError::into_inner)
    }
}
