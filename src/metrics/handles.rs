//! Names, units and descriptions of all metrics, and handles to them.
//!
//! A handle is looked up once, when its metric is first used: an app installs its recorder before it serves
//! requests, but maybe after it has built its limiter. Labels have a bounded number of values: names of rules
//! come from the policy, everything else from an enum. No label is an address or a user.

use std::sync::Arc;

use metrics::{
    Counter, Gauge, Histogram, Unit, counter, describe_counter, describe_gauge, describe_histogram,
    gauge, histogram,
};

use super::{LIFTED_BY, SIGNALS, StoreCall};
use crate::{access::Action, event::names};

pub(super) struct Handles {
    /// By outcome.
    pub(super) attempts: Vec<Counter>,
    pub(super) admissions: Counter,
    pub(super) in_flight: Gauge,
    /// By call.
    pub(super) store_calls: Vec<Histogram>,
    /// By kind.
    pub(super) store_errors: Vec<Counter>,
    pub(super) is_degraded: Gauge,
    pub(super) fallback_decisions: Counter,
    pub(super) journal: Gauge,
    pub(super) cache_hits: Counter,
    pub(super) policy_version: Gauge,
    allowed: Counter,
    denied: Counter,
    /// By signal.
    pub(super) signals: Vec<Counter>,
}

impl Handles {
    pub(super) fn new() -> Self {
        describe();
        let outcomes = names::outcome::ALL.iter();
        let kinds = names::store_error::ALL.iter();
        let hits =
            |action: &'static str| counter!("login_access_rule_hits_total", "action" => action);
        Self {
            attempts: outcomes
                .map(|outcome| counter!("login_attempts_total", "outcome" => names::outcome::name(*outcome)))
                .collect(),
            admissions: counter!("login_admissions_total"),
            in_flight: gauge!("login_attempts_in_flight"),
            store_calls: StoreCall::ALL
                .map(|call| histogram!("login_store_call_duration_seconds", "call" => call.name()))
                .into(),
            store_errors: kinds
                .map(|kind| counter!("login_store_errors_total", "kind" => names::store_error::name(*kind)))
                .collect(),
            is_degraded: gauge!("login_store_degraded"),
            fallback_decisions: counter!("login_fallback_decisions_total"),
            journal: gauge!("login_journal_entries"),
            cache_hits: counter!("login_block_cache_hits_total"),
            policy_version: gauge!("login_policy_version"),
            allowed: hits("allow"),
            denied: hits("deny"),
            signals: SIGNALS
                .map(|signal| counter!("login_attack_signals_total", "signal" => signal))
                .into(),
        }
    }

    pub(super) const fn access_rule_hits(&self, action: Action) -> &Counter {
        match action {
            Action::Allow => &self.allowed,
            Action::Deny => &self.denied,
        }
    }
}

/// The metrics of one rule.
pub(super) struct OfRule {
    /// Blocked, busy; then both in shadow mode.
    pub(super) refusals: Vec<Counter>,
    pub(super) blocks_begun: Counter,
    /// By what ended them.
    pub(super) blocks_lifted: Vec<Counter>,
    pub(super) in_force: Gauge,
    pub(super) wrong_blocks: Counter,
}

impl OfRule {
    pub(super) fn new(rule: &Arc<str>) -> Self {
        let refusals = [false, true].into_iter().flat_map(|shadow| {
            names::reason::ALL.iter().map(move |reason| {
                let (reason, shadow) = (names::reason::name(*reason), shadow.to_string());
                counter!("login_refusals_total", "rule" => Arc::clone(rule), "reason" => reason, "shadow" => shadow)
            })
        });
        let lifted = |by: &'static str| counter!("login_blocks_lifted_total", "rule" => Arc::clone(rule), "by" => by);
        Self {
            refusals: refusals.collect(),
            blocks_begun: counter!("login_blocks_begun_total", "rule" => Arc::clone(rule)),
            blocks_lifted: LIFTED_BY.map(lifted).into(),
            in_force: gauge!("login_blocks_in_force", "rule" => Arc::clone(rule)),
            wrong_blocks: counter!("login_wrong_blocks_total", "rule" => Arc::clone(rule)),
        }
    }
}

/// The metric of events that were dropped for the observer at this position.
pub(super) fn observer_drops(position: usize) -> Counter {
    counter!("login_observer_dropped_events_total", "observer" => position.to_string())
}

fn describe() {
    describe_counter!(
        "login_attempts_total",
        "Attempts that have ended, by outcome."
    );
    describe_counter!("login_admissions_total", "Attempts that were admitted.");
    describe_counter!(
        "login_refusals_total",
        "Attempts that were refused, by rule and reason. Those with shadow=\"true\" were admitted nevertheless."
    );
    describe_counter!("login_blocks_begun_total", "Blocks that began, by rule.");
    describe_counter!(
        "login_blocks_lifted_total",
        "Blocks that have ended, by rule and by what ended them."
    );
    describe_gauge!("login_blocks_in_force", "Blocks in force, by rule.");
    describe_gauge!(
        "login_attempts_in_flight",
        "Attempts that were admitted by this process and have not ended."
    );
    describe_histogram!(
        "login_store_call_duration_seconds",
        Unit::Seconds,
        "How long calls of the store take."
    );
    describe_counter!(
        "login_store_errors_total",
        "Calls of the store that failed, by kind of error."
    );
    describe_gauge!(
        "login_store_degraded",
        "1 while attempts are decided without the store, because it does not answer."
    );
    describe_counter!(
        "login_fallback_decisions_total",
        "Attempts that were decided without the store."
    );
    describe_gauge!(
        "login_journal_entries",
        "Writes that wait for the store to be available again."
    );
    describe_counter!(
        "login_block_cache_hits_total",
        "Attempts that were refused from the block cache, without a command to the store."
    );
    describe_gauge!(
        "login_policy_version",
        "The version of the policy that is in force in this process."
    );
    describe_counter!(
        "login_access_rule_hits_total",
        "Requests that an access rule decided, by action."
    );
    describe_counter!(
        "login_wrong_blocks_total",
        "Blocks that were probably wrong, by rule."
    );
    describe_counter!(
        "login_attack_signals_total",
        "Signals of a spread-out attack."
    );
    describe_counter!(
        "login_observer_dropped_events_total",
        "Events that were dropped because an observer did not keep up, by its position."
    );
}
