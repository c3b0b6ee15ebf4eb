//! Metrics through the `metrics` crate. Without the feature `metrics` these functions do nothing.
//!
//! They are counted on the request's path and not by an observer, since observers may miss events.

#![cfg_attr(not(feature = "metrics"), allow(unused_variables))] // the functions are empty then

#[cfg(feature = "metrics")]
mod handles;

use std::fmt;
#[cfg(feature = "metrics")]
use std::{
    sync::{Arc, OnceLock},
    time::Instant,
};

#[cfg(feature = "metrics")]
use self::handles::{Handles, OfRule};
#[cfg(feature = "metrics")]
use crate::event::names;
use crate::{
    Outcome, Policy, Reason,
    access::Action,
    event::{LiftedBy, Signal},
    store::{StoreErrorKind, StoreStatus},
};

/// Records something, if the feature is enabled.
macro_rules! record {
    ($($record:tt)*) => {
        #[cfg(feature = "metrics")]
        $($record)*
    };
}

#[cfg(feature = "metrics")]
const LIFTED_BY: [&str; 4] = ["time", "success", "app", "operator"];
#[cfg(feature = "metrics")]
const SIGNALS: [&str; 3] = ["many_users", "many_addresses", "failure_rate"];

/// A call of the store.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum StoreCall {
    /// `Store::reserve`.
    Reserve,
    /// `Store::check`.
    Check,
    /// `Store::settle`.
    Settle,
    /// `Store::remember`.
    Remember,
    /// `Store::known`.
    Known,
}

#[cfg(feature = "metrics")]
impl StoreCall {
    const ALL: [Self; 5] = [
        Self::Reserve,
        Self::Check,
        Self::Settle,
        Self::Remember,
        Self::Known,
    ];

    const fn name(self) -> &'static str {
        match self {
            Self::Reserve => "reserve",
            Self::Check => "check",
            Self::Settle => "settle",
            Self::Remember => "remember",
            Self::Known => "known",
        }
    }
}

/// The metrics of a limiter that do not belong to a rule.
#[derive(Default)]
pub struct Metrics {
    #[cfg(feature = "metrics")]
    handles: OnceLock<Handles>,
}

/// When a call of the store began.
#[must_use = "a call is recorded when it is finished"]
#[derive(Clone, Copy, Debug)]
pub struct Call {
    #[cfg(feature = "metrics")]
    call: StoreCall,
    #[cfg(feature = "metrics")]
    began: Instant,
}

/// Calls this so that metrics which are made by it are recorded nowhere.
#[cfg(feature = "console")]
pub(crate) fn without_recorder<T>(make: impl FnOnce() -> T) -> T {
    #[cfg(feature = "metrics")]
    return metrics::with_local_recorder(&metrics::NoopRecorder, make);
    #[cfg(not(feature = "metrics"))]
    make()
}

impl Metrics {
    /// Whether anything is recorded.
    pub const IS_ENABLED: bool = cfg!(feature = "metrics");

    #[cfg(feature = "metrics")]
    #[inline]
    fn handles(&self) -> &Handles {
        self.handles.get_or_init(Handles::new)
    }

    /// An attempt was admitted, and is in flight.
    #[inline]
    pub fn admitted(&self) {
        record!({
            self.handles().admissions.increment(1);
            self.handles().in_flight.increment(1);
        });
    }

    /// An attempt that was detached is settled in this process.
    pub fn resumed(&self) {
        record!(self.handles().in_flight.increment(1));
    }

    /// An attempt that was admitted is no longer in flight.
    #[inline]
    pub fn no_longer_in_flight(&self) {
        record!(self.handles().in_flight.decrement(1));
    }

    /// An attempt has ended.
    #[inline]
    pub fn settled(&self, outcome: Outcome) {
        record!(self.handles().attempts[names::outcome::position(outcome)].increment(1));
    }

    /// A call of the store begins.
    #[inline]
    pub fn call(&self, call: StoreCall) -> Call {
        Call {
            #[cfg(feature = "metrics")]
            call,
            #[cfg(feature = "metrics")]
            began: Instant::now(),
        }
    }

    /// A call of the store has ended.
    #[inline]
    pub fn called(&self, call: Call) {
        record!(self.handles().store_calls[call.call as usize].record(call.began.elapsed()));
    }

    /// A call of the store has failed.
    #[inline]
    pub fn store_error(&self, kind: StoreErrorKind) {
        record!(self.handles().store_errors[names::store_error::position(kind)].increment(1));
    }

    /// The state of a store that other processes share: numbers since the process started.
    #[allow(clippy::cast_precision_loss)] // metrics are floats
    pub fn set_store_status(&self, status: StoreStatus) {
        record!({
            let handles = self.handles();
            handles.is_degraded.set(u8::from(status.is_degraded));
            handles.journal.set(status.pending as f64);
            handles
                .fallback_decisions
                .absolute(status.fallback_decisions);
            handles.cache_hits.absolute(status.cached_refusals);
        });
    }

    /// The version of the policy in force.
    #[inline]
    #[allow(clippy::cast_precision_loss)] // metrics are floats
    pub fn set_policy_version(&self, version: u64) {
        record!(self.handles().policy_version.set(version as f64));
    }

    /// An access rule decided on a request.
    #[inline]
    pub fn access_rule_hit(&self, action: Action) {
        record!(self.handles().access_rule_hits(action).increment(1));
    }

    /// Attempts look like an attack.
    #[inline]
    pub fn signal(&self, signal: &Signal) {
        record!({
            let position = match signal {
                Signal::ManyUsers { .. } => 0,
                Signal::ManyAddresses { .. } => 1,
                Signal::FailureRate { .. } => 2,
            };
            self.handles().signals[position].increment(1);
        });
    }
}

impl fmt::Debug for Metrics {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("Metrics").finish_non_exhaustive()
    }
}

/// The metrics of the rules of some policies. The next ones have their own, which continue the counts of rules of
/// the same name.
#[derive(Default)]
pub struct RuleMetrics {
    #[cfg(feature = "metrics")]
    names: Vec<Arc<str>>,
    #[cfg(feature = "metrics")]
    rules: OnceLock<Vec<OfRule>>,
}

impl RuleMetrics {
    /// Registers the metrics now, and not when the first one is recorded.
    #[cfg(feature = "console")]
    pub(crate) fn register(&self) {
        record!(if let Some(name) = self.names.first() {
            let _ = self.rule(name);
        });
    }

    /// The metrics of the rules of these policies.
    #[must_use]
    pub fn new<'p>(policies: impl IntoIterator<Item = &'p Policy>) -> Self {
        Self {
            #[cfg(feature = "metrics")]
            names: {
                let rules = policies
                    .into_iter()
                    .flat_map(|policy| policy.rules().iter());
                let mut names: Vec<_> = rules.map(crate::Rule::shared_name).collect();
                names.sort();
                names.dedup();
                names
            },
            #[cfg(feature = "metrics")]
            rules: OnceLock::new(),
        }
    }

    /// A rule that is in no policy is not recorded: labels must stay bounded.
    #[cfg(feature = "metrics")]
    #[inline]
    fn rule(&self, rule: &str) -> Option<&OfRule> {
        let all = || self.names.iter().map(OfRule::new).collect();
        let position = self.names.iter().position(|name| **name == *rule)?;
        self.rules.get_or_init(all).get(position)
    }

    /// A rule refused an attempt, or would have if it were not in shadow mode.
    #[inline]
    pub fn refused(&self, rule: &str, reason: Reason, shadow: bool) {
        record!(if let Some(rule) = self.rule(rule) {
            let position = usize::from(shadow) * 2 + names::reason::position(reason);
            rule.refusals[position].increment(1);
        });
    }

    /// A block began.
    #[inline]
    pub fn block_began(&self, rule: &str) {
        record!(if let Some(rule) = self.rule(rule) {
            rule.blocks_begun.increment(1);
        });
    }

    /// A block has ended.
    #[inline]
    pub fn block_lifted(&self, rule: &str, by: &LiftedBy) {
        record!(if let Some(rule) = self.rule(rule) {
            // In the order of `LIFTED_BY`.
            let position = match by {
                LiftedBy::Time => 0,
                LiftedBy::Success => 1,
                LiftedBy::App => 2,
                LiftedBy::Operator { .. } => 3,
            };
            rule.blocks_lifted[position].increment(1);
        });
    }

    /// The number of blocks in force.
    #[inline]
    #[allow(clippy::cast_precision_loss)] // metrics are floats
    pub fn set_in_force(&self, rule: &str, blocks: u64) {
        record!(if let Some(rule) = self.rule(rule) {
            rule.in_force.set(blocks as f64);
        });
    }

    /// A block was probably wrong.
    #[inline]
    pub fn wrong_block(&self, rule: &str) {
        record!(if let Some(rule) = self.rule(rule) {
            rule.wrong_blocks.increment(1);
        });
    }
}

impl fmt::Debug for RuleMetrics {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("RuleMetrics").finish_non_exhaustive()
    }
}

/// Counts the events that are dropped for one observer.
#[derive(Default)]
pub(crate) struct ObserverDrops {
    #[cfg(feature = "metrics")]
    position: usize,
    #[cfg(feature = "metrics")]
    counter: OnceLock<metrics::Counter>,
}

impl ObserverDrops {
    /// For the observer at this position.
    pub(crate) fn new(position: usize) -> Self {
        Self {
            #[cfg(feature = "metrics")]
            position,
            #[cfg(feature = "metrics")]
            counter: OnceLock::new(),
        }
    }

    /// An event is emitted: the metric is there before it is above zero, since Prometheus computes increases.
    #[inline]
    pub(crate) fn register(&self) {
        record!({
            self.counter();
        });
    }

    /// An event was dropped.
    #[inline]
    pub(crate) fn increment(&self) {
        record!(self.counter().increment(1));
    }

    #[cfg(feature = "metrics")]
    #[inline]
    fn counter(&self) -> &metrics::Counter {
        let counter = || handles::observer_drops(self.position);
        self.counter.get_or_init(counter)
    }
}

impl fmt::Debug for ObserverDrops {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("ObserverDrops").finish_non_exhaustive()
    }
}

#[cfg(all(test, feature = "metrics"))]
mod tests {
    use super::*;

    /// Handles are found by position, and each name has one position.
    #[test]
    fn every_variant_has_a_position_of_its_own() {
        let kinds = names::store_error::ALL
            .iter()
            .map(|kind| names::store_error::position(*kind));
        assert!(kinds.eq(0..names::store_error::ALL.len()));
        let outcomes = names::outcome::ALL
            .iter()
            .map(|outcome| names::outcome::position(*outcome));
        assert!(outcomes.eq(0..names::outcome::ALL.len()));
        assert!(StoreCall::ALL.iter().map(|call| *call as usize).eq(0..5));
    }
}
