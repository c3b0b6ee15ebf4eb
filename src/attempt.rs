//! An attempt under way, and how it ends.

use std::fmt;

use smallvec::SmallVec;

use crate::{
    LoginLimiter, Policy, Refusal, Rule, Token,
    algorithm::{Standing, State},
    caller::Counted,
    store::Standings,
};

/// How an attempt went.
///
/// ```
/// use tower_login_rate_limit::Outcome;
///
/// // A handler that has lost the request says it in its response.
/// let mut response = http::Response::new(());
/// response.extensions_mut().insert(Outcome::Success);
/// ```
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
#[non_exhaustive]
pub enum Outcome {
    /// The person is who they say, with every factor that is asked for. Takes back what failed under
    /// the rules that count by user and address, and those same failures from all others. A policy
    /// without such a rule takes back this attempt alone.
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
/// ```
/// # async fn example() -> Result<(), Box<dyn std::error::Error>> {
/// use tower_login_rate_limit::{LoginLimiter, Outcome, Policy, store::MemoryStore};
///
/// let limiter = LoginLimiter::new(Policy::default(), MemoryStore::new());
/// let attempt = limiter.reserve(("192.0.2.1".parse()?, "alice")).await?;
/// assert_eq!(attempt.report().remaining(), Some(4));
/// limiter.settle(attempt, Outcome::MfaPending).await?;
/// # Ok(()) }
/// # tokio::runtime::Runtime::new()?.block_on(example())?;
/// # Ok::<(), Box<dyn std::error::Error>>(())
/// ```
///
/// Tell the [limiter](crate::LoginLimiter::settle) how it went, once. An attempt that nobody settles
/// becomes a failure when its lease ends.
#[derive(Debug)]
#[must_use = "an attempt that is not settled becomes a failure"]
pub struct Attempt {
    pub(crate) token: Token,
    pub(crate) caller: Counted<'static>,
    pub(crate) report: Report,
    /// Refused while it was under way; it has been taken back and nothing is left to settle.
    pub(crate) withdrawn: Option<Box<Refusal>>,
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

    /// A second one of the same attempt, which must not be settled twice.
    pub(crate) fn copy(&self) -> Self {
        Self {
            token: self.token,
            caller: self.caller.clone(),
            report: self.report.clone(),
            withdrawn: self.withdrawn.clone(),
        }
    }

    pub(crate) fn policy(&self) -> &Policy {
        self.report.limiter.policy()
    }
}

/// Rules by their place in the policy.
pub(crate) type RuleNumbers = SmallVec<[u32; 4]>;

/// How each rule that applies to a caller stands.
///
/// ```
/// # async fn example() -> Result<(), Box<dyn std::error::Error>> {
/// use tower_login_rate_limit::{LoginLimiter, Policy, Rule, store::MemoryStore};
///
/// let limiter = LoginLimiter::new(Policy::default(), MemoryStore::new());
/// let report = limiter.check(("192.0.2.1".parse()?, "alice")).await?;
/// assert_eq!(report.remaining(), Some(5));
/// assert_eq!(report.rule(Rule::ADDRESS).map(|standing| standing.limit), Some(25));
/// assert!(report.refusal().is_none());
/// # Ok(()) }
/// # tokio::runtime::Runtime::new()?.block_on(example())?;
/// # Ok::<(), Box<dyn std::error::Error>>(())
/// ```
#[derive(Clone)]
pub struct Report {
    /// The one that was asked.
    pub(crate) limiter: LoginLimiter,
    /// One for each rule that applies, in the policy's order.
    pub(crate) rules: RuleNumbers,
    pub(crate) standings: Standings,
}

impl Report {
    /// The rules that apply, and how they stand.
    pub fn iter(&self) -> impl Iterator<Item = (&Rule, Standing)> {
        let of_policy = self.limiter.policy().rules();
        let rules = self.rules.iter().map(|i| &of_policy[*i as usize]);
        rules.zip(self.standings.iter().copied())
    }

    /// How the rule of this name stands, if it applies.
    pub fn rule(&self, name: &str) -> Option<Standing> {
        self.iter()
            .find(|(rule, _)| rule.name() == name)
            .map(|(_, standing)| standing)
    }

    /// How many more attempts may come now: the least that any rule allows. `None` if no rule
    /// counts.
    pub fn remaining(&self) -> Option<u32> {
        let counting = |standing: &&Standing| standing.state != State::Exempt;
        let counting = self.standings.iter().filter(counting);
        counting.map(Standing::remaining).min()
    }

    /// Whether an attempt is refused, and by which rule. If several refuse, the one that does so for
    /// the longest time: before that is over, coming back is of no use.
    pub fn refusal(&self) -> Option<Refusal> {
        refusal(self.limiter.policy(), &self.rules, &self.standings)
    }
}

/// What a [`Report`] of these would refuse.
pub(crate) fn refusal(
    policy: &Policy,
    rules: &RuleNumbers,
    standings: &Standings,
) -> Option<Refusal> {
    let refusing = (rules.iter().zip(&**standings)).filter(|(_, standing)| standing.refuses());
    let (i, standing) = refusing.max_by_key(|(_, standing)| standing.state)?;
    Refusal::new(policy.rules()[*i as usize].shared_name(), *standing)
}

impl Report {
    /// With the rules by user from another report, in place of its own.
    pub(crate) fn with_users(&self, of_user: Self) -> Self {
        let pairs = |report: &Self| {
            let rules = report.rules.clone().into_iter();
            rules.zip(report.standings.to_vec()).collect::<Vec<_>>()
        };
        let of_policy = self.limiter.policy().rules();
        let mut all = pairs(self);
        all.retain(|(rule, _)| !of_policy[*rule as usize].counts_by_user());
        all.extend(pairs(&of_user));
        all.sort_by_key(|(rule, _)| *rule);
        Self {
            limiter: of_user.limiter,
            rules: all.iter().map(|(rule, _)| *rule).collect(),
            standings: all.iter().map(|(_, standing)| *standing).collect(),
        }
    }
}

impl fmt::Debug for Report {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_map()
            .entries(self.iter().map(|(rule, standing)| (rule.name(), standing)))
            .finish()
    }
}
