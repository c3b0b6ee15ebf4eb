//! What a record does not tell, counted, and in words.

use std::collections::{HashSet, VecDeque};

use super::who::Users;
use crate::{AttemptId, Period, Policy, Rule, algorithm::Millis};

/// Attempts that are not replayed, and what makes others approximate.
#[derive(Debug, Default)]
pub(super) struct Omitted {
    /// Events that are much older than the ones before them.
    pub(super) late: u64,
    pub(super) without_address: u64,
    /// Attempts that access rules decided.
    pub(super) by_access_rules: u64,
    pub(super) undecided: u64,
    /// Refused because of attempts in flight.
    pub(super) busy: u64,
    /// Refused by blocks that are not in the record as a whole.
    pub(super) by_earlier_blocks: u64,
    /// For which there was no more room.
    pub(super) full: u64,
}

impl Omitted {
    pub(super) const fn attempts(&self) -> u64 {
        self.late
            + self.without_address
            + self.by_access_rules
            + self.undecided
            + self.busy
            + self.by_earlier_blocks
            + self.full
    }
}

/// What else is approximate.
#[derive(Debug, Default)]
pub(super) struct Vague {
    pub(super) earlier_blocks: u64,
    /// Attempts whose IPv6 network is larger than what the policy counts by.
    pub(super) wide_networks: u64,
    pub(super) policy_changes: u64,
    pub(super) outages: u64,
}

/// How many allowed attempts are awaited.
const AWAITED: usize = 65_536;

/// Attempts that an access rule allowed and that have not ended yet; the newest of them.
#[derive(Debug, Default)]
pub(super) struct Allowed {
    ids: HashSet<AttemptId>,
    order: VecDeque<AttemptId>,
}

impl Allowed {
    pub(super) fn insert(&mut self, id: AttemptId) {
        if self.ids.insert(id) {
            self.order.push_back(id);
        }
        if self.order.len() > AWAITED
            && let Some(oldest) = self.order.pop_front()
        {
            self.ids.remove(&oldest);
        }
    }

    pub(super) fn remove(&mut self, id: AttemptId) -> bool {
        self.ids.remove(&id)
    }
}

/// All of it in words.
pub(super) fn notes(
    (omitted, vague, users): (&Omitted, &Vague, &Users),
    policy: &Policy,
    left_out: &[String],
    covered: Millis,
    forgotten: u64,
) -> Vec<String> {
    let mut notes = Vec::new();
    let mut add = |count: u64, words: &str| {
        if count > 0 {
            notes.push(format!("{count} {words}"));
        }
    };
    let not_counted = "rules by user did not count them, and a success among them took back no earlier failures, so \
                       that the other rules block too much";
    add(
        users.missing,
        &format!(
            "attempts have no user in the record, because the request named none or because users are hidden: {not_counted}"
        ),
    );
    add(
        users.sealed,
        &format!(
            "attempts have a user that is sealed, and the secret that opens it was not given: {not_counted}"
        ),
    );
    add(
        users.masked,
        "attempts have a user that is masked: users with the same mask were counted as one",
    );
    add(
        vague.wide_networks,
        "attempts come from IPv6 networks that are recorded with fewer bits than this policy counts by: each network was counted as one client",
    );
    add(
        vague.earlier_blocks,
        "recorded blocks consist of failures from before the record, or of users or values that it does not tell: they are not compared",
    );
    add(
        omitted.by_earlier_blocks,
        "attempts were refused by such blocks: they were not replayed",
    );
    add(
        omitted.busy,
        "attempts were refused while others were in flight: they were not replayed, since the record does not tell when attempts begin",
    );
    add(
        omitted.by_access_rules,
        "attempts were decided by access rules: they were not replayed",
    );
    add(
        omitted.undecided,
        "attempts were not decided, because the store failed: they were not replayed",
    );
    add(
        omitted.without_address,
        "attempts have no address: they were not replayed",
    );
    add(
        omitted.late,
        "events are more than 5 minutes older than one before them: they were not replayed; a record is replayed from its oldest event on",
    );
    add(
        omitted.full,
        "attempts exceeded the capacity of the replay: they were not replayed",
    );
    add(
        forgotten,
        "subjects of blocks exceeded the capacity of the replay: the oldest are not in the lists",
    );
    add(
        vague.policy_changes,
        "changes of the rules are in the record: what was recorded is not of one policy",
    );
    add(
        vague.outages,
        "outages of the store are in the record: meanwhile each process decided on its own",
    );
    for rule in left_out {
        notes.push(format!("rule {rule} counts by values of the app, which are not in the record: it was not replayed"));
    }
    let is_longer = |rule: &&Rule| {
        rule.limit()
            .counts_for()
            .is_none_or(|counts| counts > covered)
    };
    let rules = policy.rules().iter().filter(|rule| rule.is_enabled());
    let longer: Vec<_> = rules.filter(is_longer).map(Rule::name).collect();
    if !longer.is_empty() {
        notes.push(format!(
            "the record covers {}, which is less than the time for which {} counts failures: those from before it are missing",
            Period::of_millis(covered),
            longer.join(", ")
        ));
    }
    notes
}
