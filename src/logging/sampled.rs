//! Events of which only some are logged.

use std::sync::{
    Mutex, PoisonError,
    atomic::{AtomicU64, Ordering},
};

/// Counts events that clients can cause at will, of which only some are logged: the first, the tenth, the
/// hundredth and so on. Needs no clock.
#[derive(Debug, Default)]
pub(crate) struct Sampled(AtomicU64);

impl Sampled {
    #[cfg(any(feature = "axum", feature = "tonic"))]
    pub(super) const fn new() -> Self {
        Self(AtomicU64::new(0))
    }

    /// The number of events so far, if this one is to be logged.
    pub(super) fn next(&self) -> Option<u64> {
        let count = self.0.fetch_add(1, Ordering::Relaxed).saturating_add(1);
        let is_power = count.checked_ilog10().map(|digits| 10_u64.pow(digits)) == Some(count);
        is_power.then_some(count)
    }
}

/// A sampled event of each rule.
#[derive(Debug, Default)]
pub(super) struct SampledByRule(Mutex<Vec<(Box<str>, Sampled)>>);

impl SampledByRule {
    /// Policies change, and the names of their rules.
    const MAX_RULES: usize = 64;

    /// The number of events of this rule so far, if this one is to be logged.
    pub(super) fn next(&self, rule: &str) -> Option<u64> {
        let mut rules = self.0.lock().unwrap_or_else(PoisonError::into_inner);
        let position = rules.iter().position(|(name, _)| **name == *rule);
        let position = position.unwrap_or_else(|| {
            if rules.len() >= Self::MAX_RULES {
                rules.clear();
            }
            rules.push((rule.into(), Sampled::default()));
            rules.len() - 1
        });
        rules[position].1.next()
    }
}
