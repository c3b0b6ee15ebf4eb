//! An attempt under way, and how it ends.

use std::{fmt, sync::Arc};

use smallvec::SmallVec;

use crate::{Policy, Refusal, Rule, Token, algorithm::Standing, caller::Counted, store::Standings};

/// How an attempt went.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub enum Outcome {
    /// The person is who they say, with every factor that is asked for. Takes back this user's own
    /// failures from this address.
    Success,
    /// Wrong password, wrong code.
    Failure,
    /// There is no such user. Counted like a failure, so that nobody can tell the difference.
    UnknownUser,
    /// The password is right and another factor is still to come. Takes back this attempt and leaves
    /// earlier failures: a right password must not refill the guesses at the code.
    MfaPending,
    /// Neither right nor wrong: the request was malformed, or the server failed. Takes back this
    /// attempt.
    NotAnAttempt,
}

/// An attempt that was admitted and is in flight.
///
/// Tell the [limiter](crate::LoginLimiter::settle) how it went. An attempt that nobody settles
/// becomes a failure when its lease ends.
#[derive(Clone, Debug)]
#[must_use = "an attempt that is not settled becomes a failure"]
pub struct Attempt {
    pub(crate) token: Token,
    pub(crate) caller: Counted,
    pub(crate) report: Report,
    /// Refused while it was under way; it has been taken back and nothing is left to settle.
    pub(crate) withdrawn: Option<Refusal>,
}

impl Attempt {
    /// What identifies it in the store.
    pub const fn token(&self) -> Token {
        self.token
    }

    /// How each rule stood when the attempt was admitted, this one counted.
    pub const fn report(&self) -> &Report {
        &self.report
    }

    pub(crate) fn policy(&self) -> &Policy {
        &self.report.policy
    }
}

/// How each rule that applies to a caller stands.
#[derive(Clone)]
pub struct Report {
    pub(crate) policy: Arc<Policy>,
    /// One for each rule that applies, in the policy's order.
    pub(crate) rules: SmallVec<[usize; 3]>,
    pub(crate) standings: Standings,
}

impl Report {
    /// The rules that apply, and how they stand.
    pub fn iter(&self) -> impl Iterator<Item = (&Rule, Standing)> {
        let rules = self.rules.iter().map(|i| &self.policy.rules()[*i]);
        rules.zip(self.standings.iter().copied())
    }

    /// How the rule of this name stands, if it applies.
    pub fn rule(&self, name: &str) -> Option<Standing> {
        self.iter()
            .find(|(rule, _)| rule.name() == name)
            .map(|(_, standing)| standing)
    }

    /// How many more attempts may come now: the least that any rule allows. `None` if no rule
    /// applies.
    pub fn remaining(&self) -> Option<u32> {
        self.standings.iter().map(Standing::remaining).min()
    }

    /// Whether an attempt is refused, and by which rule. If several refuse, the one that does so for
    /// the longest time: before that is over, coming back is of no use.
    pub fn refusal(&self) -> Option<Refusal> {
        self.iter()
            .max_by_key(|(_, standing)| standing.state)
            .and_then(|(rule, standing)| Refusal::new(rule.shared_name(), standing))
    }
}

impl Report {
    /// Without the rules by user.
    pub(crate) fn without_user(&self) -> Self {
        let kept = |(rule, _): &(usize, _)| !self.policy.rules()[*rule].counts_by_user();
        let all = self
            .rules
            .iter()
            .copied()
            .zip(self.standings.iter().copied());
        let (rules, standings): (_, Vec<_>) = all.filter(kept).unzip();
        Self {
            policy: Arc::clone(&self.policy),
            rules,
            standings: standings.into_iter().collect(),
        }
    }

    /// With the rules of another report of the same policy.
    pub(crate) fn and(mut self, other: Self) -> Self {
        self.rules.extend(other.rules);
        self.standings = (self.standings.iter().chain(other.standings.iter()))
            .copied()
            .collect();
        self
    }
}

impl fmt::Debug for Report {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_map()
            .entries(self.iter().map(|(rule, standing)| (rule.name(), standing)))
            .finish()
    }
}
