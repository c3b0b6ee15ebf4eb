//! Recorded attempts under another policy.

mod blocks;
mod engine;
mod notes;
mod report;
mod subjects;
mod who;

use std::{fmt, sync::Arc};

use self::{
    engine::{Engine, Replayed},
    notes::{Allowed, Omitted, Vague},
    subjects::Subjects,
    who::{Users, Who},
};
use super::watched::Watched;
#[cfg(feature = "sealed")]
use crate::event::Sealer;
use crate::{
    AttemptId, Outcome, Policy, Reason, Rule,
    access::Action,
    algorithm::Millis,
    clock::{Clock, SystemClock},
    event::{AdminAction, Event, LiftedBy, What},
    policy::Subject as CountsBy,
};

pub use report::{ReplayReport, ReplayedRule, ReplayedSubject, ReplayedSubjects, RuleCounts};

/// How much older than the one before an event may be: processes write to a stream at their own pace.
const TOLERATED: Millis = 5 * 60 * 1000;
/// Of how many rules that the policy does not have there are counts.
const MAX_OTHER_RULES: usize = 64;
/// Counters, unless set.
const CAPACITY: usize = 1_000_000;

/// Shows what a policy would have done with attempts that were recorded: who would have been blocked, who freed, and
/// how many honest logins that costs.
///
/// The attempts of the record run through the real algorithms, on a clock that follows the record. Give it the
/// [events](Event) in the order in which they happened, as a [`JsonLines`](crate::event) file or a stream has
/// them. Under the policy of the record, the blocks of the replay are those of the record.
///
/// # What is assumed
///
/// - **A refused attempt would have failed.** Its outcome is unknown. If the policy admits it, it counts as a failure
///   and is in [`ReplayReport::admitted`].
/// - **There were no failures before.** Blocks that consist of failures from before the record are not compared.
/// - **An attempt takes no time.** A record contains when attempts end, not when they begin. Those that were refused
///   as [busy](Reason::Busy) are left out, and so is one that was never settled: it failed without an event.
/// - **People do not react.** Who is refused under the policy tries the same things afterwards.
/// - **Operators act as they did**, and so does the app, where that lifted blocks.
/// - **Users are distinguished as the record shows them.** With users that are hidden, rules by user are not replayed;
///   masked ones may be mixed up; sealed ones need `Replay::with_sealer`. None of this holds for events that a process
///   reads from the stream of its [fleet](super::Insight#in-a-fleet), which have ids of users. A record has no spellings:
///   a success takes back failures of every spelling.
///
/// What of it applies, and to how many attempts, is in [`ReplayReport::notes`].
///
/// ```
/// use tower_login_rate_limit::{Limit, Period, Policy, event::Event, insight::Replay};
///
/// # fn recorded() -> Vec<Event> { Vec::new() }
/// let stricter = Policy::default().with_user_address_limit(Limit::attempts(3).within(Period::hours(1)))?;
/// let mut replay = Replay::new(stricter);
/// for event in recorded() {
///     replay.record(&event);
/// }
/// let report = replay.finish();
/// println!("{} more people blocked, {} logins refused", report.blocked.count, report.refused_successes);
/// # Ok::<(), tower_login_rate_limit::PolicyError>(())
/// ```
pub struct Replay {
    engine: Engine,
    users: Users,
    subjects: Subjects,
    rules: Vec<ReplayedRule>,
    /// Rules whose values are not in the record.
    left_out: Vec<String>,
    recorded: Watched,
    replayed: Watched,
    allowed: Allowed,
    /// Whether the last operator forgave.
    is_forgiving: bool,
    omitted: Omitted,
    vague: Vague,
    now: Millis,
    /// What is later has not happened yet.
    latest: Millis,
    /// For attempts without an id.
    numbers: u64,
    from: Option<Millis>,
    to: Option<Millis>,
    attempts: u64,
    refused: u64,
    refused_successes: u64,
    refused_guesses: u64,
    admitted: u64,
}

impl Replay {
    /// A replay under this policy.
    #[must_use]
    pub fn new(policy: Policy) -> Self {
        Self::with_capacity(policy, CAPACITY)
    }

    /// The same for this many counters at most, a million unless set. Attempts that need more are left out.
    #[must_use]
    pub fn with_capacity(mut policy: Policy, counters: usize) -> Self {
        let by_values = |rule: &&Rule| rule.is_enabled() && rule.subject() == CountsBy::Joined;
        let by_values: Vec<_> = policy.rules().iter().filter(by_values).cloned().collect();
        let mut left_out = Vec::new();
        for rule in by_values {
            left_out.push(rule.name().to_owned());
            policy = policy.with_rule(rule.with_enabled(false));
        }
        let rules = policy.rules().iter();
        let rules = rules.map(|rule| row(rule.shared_name(), rule.is_enabled()));
        Self {
            rules: rules.collect(),
            engine: Engine::new(policy, counters),
            users: Users::default(),
            subjects: Subjects::default(),
            left_out,
            recorded: Watched::default(),
            replayed: Watched::default(),
            allowed: Allowed::default(),
            is_forgiving: false,
            omitted: Omitted::default(),
            vague: Vague::default(),
            now: 0,
            latest: SystemClock.now().saturating_add(TOLERATED),
            numbers: 0,
            from: None,
            to: None,
            attempts: 0,
            refused: 0,
            refused_successes: 0,
            refused_guesses: 0,
            admitted: 0,
        }
    }

    /// Opens users that were recorded [sealed](crate::event::UserDisplay::Sealed).
    #[cfg(feature = "sealed")]
    #[must_use]
    pub fn with_sealer(mut self, sealer: Sealer) -> Self {
        self.users.open_with(move |text| sealer.open(text).ok());
        self
    }

    /// Replays the next event of the record. Events that are no attempts, and change nothing for attempts, are
    /// ignored.
    pub fn record(&mut self, event: &Event) {
        match &event.what {
            What::Settled {
                outcome,
                second_factor,
            } if self.advance(event) => self.settled(event, *outcome, *second_factor),
            What::Refused {
                rule,
                reason,
                shadow: false,
                ..
            } if self.advance(event) => self.refused(event, rule, *reason),
            What::BlockBegan {
                rule,
                counter,
                lifts,
                attempts,
                shadow,
                ..
            } => {
                let lifts = (!shadow).then_some(*lifts);
                self.block_began(event, (rule, counter), lifts, attempts);
            }
            What::BlockLifted {
                rule,
                counter,
                by: by @ (LiftedBy::Operator { .. } | LiftedBy::App),
            } => self.block_lifted(event, (rule, counter), *by == LiftedBy::App),
            What::Administered { action, .. } => {
                self.is_forgiving = *action == AdminAction::Forgive;
            }
            What::AccessRuleHit { action, .. } => {
                self.omitted.by_access_rules += 1;
                if let (Action::Allow, Some(id)) = (action, event.attempt) {
                    self.allowed.insert(id);
                }
            }
            What::Undecided { shadow: false, .. } => self.omitted.undecided += 1,
            What::DocumentChanged { .. } => self.vague.policy_changes += 1,
            What::StoreDown { .. } => self.vague.outages += 1,
            _ => {}
        }
    }

    /// What the policy would have done.
    #[must_use]
    pub fn finish(self) -> ReplayReport {
        let covered = (self.to.zip(self.from)).map_or(0, |(to, from)| to.saturating_sub(from));
        let notes = notes::notes(
            (&self.omitted, &self.vague, &self.users),
            &self.engine.policy,
            &self.left_out,
            covered,
            self.subjects.dropped,
        );
        let (blocked, freed) = self.subjects.compared();
        ReplayReport {
            from: self.from,
            to: self.to,
            attempts: self.attempts,
            omitted: self.omitted.attempts(),
            rules: self.rules,
            refused: self.refused,
            refused_successes: self.refused_successes,
            refused_guesses: self.refused_guesses,
            admitted: self.admitted,
            blocked,
            freed,
            notes,
        }
    }

    /// Moves the clock to the time of an attempt; never back. Returns whether the attempt is replayed.
    fn advance(&mut self, event: &Event) -> bool {
        // One event from the future, by a process whose clock is wrong, would make all others late.
        if event.at.saturating_add(TOLERATED) < self.now || event.at > self.latest {
            self.omitted.late += 1;
            return false;
        }
        self.now = self.now.max(event.at);
        self.engine.set_time(self.now);
        self.from = Some(self.from.map_or(event.at, |from| from.min(event.at)));
        self.to = Some(self.now);
        true
    }

    fn settled(&mut self, event: &Event, outcome: Outcome, second_factor: bool) {
        if event.attempt.is_some_and(|id| self.allowed.remove(id)) {
            return; // counted when the rule allowed it
        }
        let who = self.users.who(event, second_factor);
        if outcome == Outcome::Success {
            self.succeeded(&who);
        }
        let id = event.attempt.unwrap_or_else(|| self.next_id());
        let Some(refused) = self.attempt(&who, id, outcome) else {
            return;
        };
        let Some(by) = refused else {
            return;
        };
        let is_success = outcome == Outcome::Success;
        let is_guess = matches!(outcome, Outcome::Failure | Outcome::UnknownUser);
        self.refused += 1;
        self.refused_successes += u64::from(is_success);
        self.refused_guesses += u64::from(is_guess);
        if let Some(entry) = self.subjects.get(by) {
            entry.row.refused_successes += u64::from(is_success);
        }
    }

    /// An attempt that was refused. It is replayed if the record contains why.
    fn refused(&mut self, event: &Event, rule: &Arc<str>, reason: Reason) {
        if reason != Reason::Blocked {
            self.omitted.busy += 1;
            return;
        }
        self.rule(rule).recorded.refused += 1;
        let known = self.engine.policy.rule(rule).cloned();
        let second_factor = known.as_ref().is_some_and(Rule::is_of_second_factor);
        let who = self.users.who(event, second_factor);
        let known = known.filter(|known| self.covers(known, &who));
        let by = known.map(|known| self.subjects.of(&self.engine.policy, &known, &who).id);
        let is_covered = by.and_then(|by| self.subjects.get(by));
        let is_covered =
            is_covered.is_some_and(|entry| entry.row.recorded > 0 && entry.is_comparable);
        if !is_covered {
            self.omitted.by_earlier_blocks += 1;
            return;
        }
        let id = self.next_id();
        if let Some(None) = self.attempt(&who, id, Outcome::Failure) {
            self.admitted += 1;
            if let Some(entry) = by.and_then(|by| self.subjects.get(by)) {
                entry.row.admitted += 1;
            }
        }
    }

    /// Replays an attempt. Returns who is blocked if it is refused; `None` if it can't be replayed.
    fn attempt(&mut self, who: &Who<'_>, id: AttemptId, outcome: Outcome) -> Option<Option<u64>> {
        let Some(address) = who.address else {
            self.omitted.without_address += 1;
            return None;
        };
        let policy = &self.engine.policy;
        let is_wide = address.ip().is_ipv6() && address.prefix() < policy.ipv6_prefix();
        self.vague.wide_networks += u64::from(is_wide);
        let Some(replayed) = self.engine.attempt(who, id.token(), outcome) else {
            self.omitted.full += 1;
            return None;
        };
        self.attempts += 1;
        match replayed {
            Replayed::Admitted(began) => {
                for (position, standing) in began {
                    self.replayed_block(who, position, standing);
                }
                Some(None)
            }
            Replayed::Refused(refusal) => {
                self.rule(&refusal.shared_rule()).replayed.refused += 1;
                let policy = &self.engine.policy;
                let rule = policy.rule(refusal.rule())?;
                let id = self.subjects.of(policy, rule, who).id;
                if let Some(entry) = self.subjects.get(id) {
                    entry.row.refused += 1;
                }
                Some(Some(id))
            }
        }
    }

    /// Whether a rule is replayed, and the record contains what it counts of this caller.
    fn covers(&self, rule: &Rule, who: &Who<'_>) -> bool {
        !self.is_left_out(rule) && (who.name.is_some() || !rule.counts_by_user())
    }

    fn is_left_out(&self, rule: &Rule) -> bool {
        self.left_out.iter().any(|name| name == rule.name())
    }

    /// The counts of a rule. Names come from the record too.
    fn rule(&mut self, name: &Arc<str>) -> &mut ReplayedRule {
        let max = self.engine.policy.rules().len() + MAX_OTHER_RULES;
        let known = self.rules.iter().position(|row| row.rule == *name);
        let position = known.unwrap_or_else(|| {
            if self.rules.len() < max {
                self.rules.push(row(Arc::clone(name), false));
            } else if self.rules.len() == max {
                self.rules.push(row("other:".into(), false));
            }
            self.rules.len() - 1
        });
        &mut self.rules[position]
    }

    /// The id of an attempt that has none in the record.
    fn next_id(&mut self) -> AttemptId {
        self.numbers = self.numbers.wrapping_add(1);
        // Spread, since jitter is derived from it.
        AttemptId::from_bits(self.numbers.wrapping_mul(0x9e37_79b9_7f4a_7c15))
    }
}

fn row(rule: Arc<str>, is_replayed: bool) -> ReplayedRule {
    ReplayedRule {
        rule,
        is_replayed,
        recorded: RuleCounts::default(),
        replayed: RuleCounts::default(),
    }
}

impl fmt::Debug for Replay {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("Replay")
            .field("policy", &self.engine.policy)
            .field("attempts", &self.attempts)
            .finish_non_exhaustive()
    }
}
