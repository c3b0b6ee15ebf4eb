//! The address of a Redis, where a store is needed.
use tower_login_rate_limit::{LoginLimiter, Policy};

pub fn mistake() -> LoginLimiter {
    LoginLimiter::new(Policy::default(), "redis://127.0.0.1:6379")
}
