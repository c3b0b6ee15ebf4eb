//! How the rules stand.

use std::{fmt, sync::Arc, time::Duration};

use super::{Counted, Refusal};
use crate::{
    Limit, Period, Policy, Rule,
    algorithm::{Algorithm, Standing, State},
    policy::Scope,
    store::Standings,
};

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
    /// The one that was in force when the store was asked.
    policy: Arc<Policy>,
    scope: Scope,
    /// One for each rule that applies, in the policy's order.
    standings: Standings,
}

impl Report {
    #[inline]
    pub(crate) fn new(policy: Arc<Policy>, caller: &Counted<'_>, standings: Standings) -> Self {
        Self {
            policy,
            scope: caller.scope(),
            standings,
        }
    }

    #[inline]
    pub(crate) const fn policy(&self) -> &Arc<Policy> {
        &self.policy
    }

    /// The rules that apply, and how they stand.
    pub fn iter(&self) -> impl Iterator<Item = (&Rule, Standing)> {
        self.policy
            .applying(self.scope)
            .zip(self.standings.iter().copied())
    }

    /// How the rule of this name stands, if it applies.
    pub fn rule(&self, name: &str) -> Option<Standing> {
        let mut rules = self.iter();
        let found = rules.find(|(rule, _)| rule.name() == name);
        found.map(|(_, standing)| standing)
    }

    /// The number of attempts that all rules together admit now; `None` if no rule counts. Rules in shadow admit
    /// any number.
    pub fn remaining(&self) -> Option<u32> {
        let remaining = self.enforced().map(|(_, standing)| standing.remaining());
        remaining.min()
    }

    /// What rules in shadow would refuse if they were in force, each by itself.
    ///
    /// In the report of an attempt that was admitted, these rules have not counted it. An attempt that is refused
    /// anyway is not counted by any rule.
    pub fn shadowed(&self) -> impl Iterator<Item = Refusal> {
        let shadowed = self.iter().filter(|(_, standing)| is_shadowed(standing));
        shadowed
            .filter_map(|(rule, standing)| Refusal::new(rule.shared_name(), standing.enforced()))
    }

    /// Whether there is any of these.
    #[inline]
    pub(super) fn has_shadowed(&self) -> bool {
        self.standings.iter().any(is_shadowed)
    }

    /// The rules that count and can refuse.
    pub(crate) fn enforced(&self) -> impl Iterator<Item = (&Rule, Standing)> {
        self.iter()
            .filter(|(rule, standing)| standing.state != State::Exempt && !rule.is_shadow())
    }

    /// Why an attempt is refused, if it is. If several rules refuse, this is the one that lasts longest:
    /// retrying earlier is useless.
    pub fn refusal(&self) -> Option<Refusal> {
        refusal_of(&self.policy, self.scope, &self.standings)
    }

    /// How long attempts are refused if the one that this is the report of fails; `None` if the next one is
    /// still admitted. Attempts in flight count as if they failed too.
    ///
    /// Exact for a window with one length of block and for a back-off without jitter. It is a lower bound for
    /// what a report does not contain: blocks that grow (the first length), jitter (the shortest wait), and
    /// limits without a block (zero; one token of a bucket).
    pub fn block_if_failed(&self) -> Option<Period> {
        let full = (self.enforced()).filter(|(_, standing)| standing.remaining() == 0);
        full.map(|(rule, standing)| match standing.state {
            State::Blocked { lifts } => lifts,
            _ => block_after(rule.limit(), standing),
        })
        .max()
    }

    /// The same report with these standings for the rules by user, which apply in this scope.
    pub(super) fn with_user_rules(&self, scope: Scope, by_user: &Standings) -> Self {
        let (mut own, mut by_user) = (self.iter().peekable(), by_user.iter());
        let standings = self.policy.applying(scope).filter_map(|rule| {
            let own = own.next_if(|(known, _)| std::ptr::eq(*known, rule));
            if rule.counts_by_user() {
                by_user.next().copied()
            } else {
                own.map(|(_, standing)| standing)
            }
        });
        Self {
            policy: Arc::clone(&self.policy),
            scope,
            standings: standings.collect(),
        }
    }
}

#[inline]
const fn is_shadowed(standing: &Standing) -> bool {
    matches!(standing.state, State::Shadowed { .. })
}

/// The block that a failure brings with which the limit is reached, at least.
pub(crate) fn block_after(limit: &Limit, standing: Standing) -> Period {
    if let Some(block) = limit.block() {
        return block;
    }
    match limit.algorithm() {
        Algorithm::Backoff => {
            let nth = (standing.usage as usize).clamp(1, limit.waits().len().max(1));
            let wait = limit.waits().nth(nth - 1).unwrap_or_default();
            let millis = (wait - wait * limit.jitter() / 100).as_millis();
            Period::of_millis(u64::try_from(millis).unwrap_or(u64::MAX))
        }
        Algorithm::TokenBucket => {
            let excess = standing
                .thousandths
                .saturating_sub(u64::from(standing.limit.saturating_sub(1)) * 1000);
            let window = limit.window().as_duration().unwrap_or_default();
            let token = window.as_millis() / u128::from(standing.limit.max(1));
            let millis = token * u128::from(excess) / 1000;
            Period::of_millis(u64::try_from(millis).unwrap_or(u64::MAX))
        }
        Algorithm::SlidingWindow
            if limit.max_attempts() == 1 || limit.window() == Period::Forever =>
        {
            limit.window()
        }
        // Lifts when older failures are forgotten, which is now at the earliest.
        Algorithm::SlidingWindow | Algorithm::SlidingCounter => Period::Of(Duration::ZERO),
    }
}

/// The refusal that a [`Report`] with these standings contains.
#[inline]
pub(crate) fn refusal_of(policy: &Policy, scope: Scope, standings: &Standings) -> Option<Refusal> {
    if standings.admitted() {
        return None;
    }
    let all = policy.applying(scope).zip(&**standings);
    let refusing = all.filter(|(_, standing)| standing.refuses());
    let (rule, standing) = refusing.max_by_key(|(_, standing)| standing.state)?;
    Refusal::new(rule.shared_name(), *standing)
}

impl fmt::Debug for Report {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_map()
            .entries(self.iter().map(|(rule, standing)| (rule.name(), standing)))
            .finish()
    }
}
