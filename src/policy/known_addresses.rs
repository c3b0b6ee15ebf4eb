//! How many of a user's addresses are kept.

use std::time::Duration;

use super::{DAY, PolicyError};
use crate::{Period, algorithm::Millis, clock::to_millis};

/// How many of the addresses that a user has logged in from are kept, and for how long. Set by
/// [`Policy::with_known_addresses`](crate::Policy::with_known_addresses); by default the newest 10, for 90
/// days.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct KnownAddresses {
    newest: u32,
    kept_for: Millis,
}

impl KnownAddresses {
    /// Keeps the `newest` addresses, each for `kept_for` after the last login from it.
    ///
    /// # Errors
    ///
    /// If `newest` is not from 1 to 1000, or `kept_for` not from 1 second to 10 years.
    pub fn new(newest: u32, kept_for: Duration) -> Result<Self, PolicyError> {
        if !(1..=1000).contains(&newest) {
            let reason = format!("{newest} addresses; must be from 1 to 1000");
            return Err(PolicyError::new("known_addresses.newest", reason));
        }
        let max = Duration::from_secs(10 * 365 * 24 * 60 * 60);
        if !(Duration::from_secs(1)..=max).contains(&kept_for) {
            let kept_for = Period::Of(kept_for);
            let reason = format!("{kept_for}; must be from 1 second to 10 years");
            return Err(PolicyError::new("known_addresses.kept_for", reason));
        }
        Ok(Self {
            newest,
            kept_for: to_millis(kept_for),
        })
    }

    /// How many addresses are kept.
    pub const fn newest(&self) -> u32 {
        self.newest
    }

    /// How long an address is kept after the last login from it.
    pub const fn kept_for(&self) -> Duration {
        Duration::from_millis(self.kept_for)
    }
}

/// The newest 10 addresses, for 90 days.
impl Default for KnownAddresses {
    fn default() -> Self {
        Self {
            newest: 10,
            kept_for: 90 * DAY,
        }
    }
}
