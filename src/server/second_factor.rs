//! Whether codes are limited by account.

use std::sync::{
    Once,
    atomic::{AtomicU32, Ordering},
};

use super::attempt_token::InFlight;
use crate::{LoginLimiter, Outcome, logging};

/// How many logins may await a code before one is checked: behind a load balancer the first codes may be checked by
/// other instances.
const AWAITED: u32 = 20;

/// Notices that passwords are followed by codes, and that no attempt is one at a second factor.
pub(super) struct SecondFactor {
    awaited: AtomicU32,
    notice: Once,
}

impl SecondFactor {
    pub(super) const fn new() -> Self {
        Self {
            awaited: AtomicU32::new(0),
            notice: Once::new(),
        }
    }

    /// An attempt is reserved.
    pub(super) fn reserved(limiter: &LoginLimiter, second_factor: bool) {
        // Written once, since all requests share it.
        if second_factor && !limiter.guards_second_factor() {
            limiter.set_guards_second_factor();
        }
    }

    /// An attempt has ended.
    pub(super) fn settled(&self, limiter: &LoginLimiter, attempt: &InFlight, outcome: Outcome) {
        Self::reserved(limiter, attempt.second_factor);
        if outcome == Outcome::MfaPending
            && !limiter.guards_second_factor()
            && self.awaited.fetch_add(1, Ordering::Relaxed) + 1 >= AWAITED
        {
            logging::no_second_factor_asked(&self.notice);
        }
    }
}
