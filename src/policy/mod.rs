//! What is limited: rules with limits, and settings for all of them.

mod error;
mod known_addresses;
mod limit;
mod period;
mod rule;
mod scope;
#[cfg(feature = "serde")]
mod serde;
mod standard;
mod words;

use std::{fmt, time::Duration};

use crate::{
    Limit,
    algorithm::{Algorithm, Block, Millis},
    clock::to_millis,
};

pub use error::PolicyError;
pub use known_addresses::KnownAddresses;
pub use limit::{BackoffBuilder, LimitBuilder};
pub use period::{ParsePeriodError, Period};
pub(crate) use rule::{Naming, Subject, check_name};
pub use rule::{Part, Rule};
pub(crate) use scope::{Scope, ScopedRules};
pub use standard::{Finding, Standard};

const DAY: Millis = 24 * 60 * 60 * 1000;
/// Each rule is a counter for each attempt.
const MAX_RULES: usize = 100;

/// What is limited, and how much.
///
/// [`Policy::default()`] is what most login pages need: 25 failures of an address within 24 hours
/// block it for 7 days, 5 failures of a user from an address within 24 hours block that pair for
/// 24 hours.
///
/// ```
/// use tower_login_rate_limit::{Limit, Part, Period, Policy, Rule};
///
/// let policy = Policy::default()
///     .with_address_limit(Limit::attempts(100).within(Period::hours(1)).blocked_for(Period::days(1)))?
///     .with_user_address_limit(Limit::attempts(3).within(Period::Forever))?
///     .with_rule(Rule::new(
///         "tenant",
///         [Part::Address, Part::value("tenant")],
///         Limit::attempts(100).within(Period::hours(1)),
///     )?);
/// # Ok::<(), tower_login_rate_limit::PolicyError>(())
/// ```
///
/// # JSON and TOML
///
/// With the feature `serde` a policy is read from and written to any format of serde. Fields that are
/// missing are as in the default policy; `rules`, if present, replaces all default rules.
///
/// - A `key` consists of `address` or `network/56`, the IPv6 network of so many bits, `user`, `path`,
///   `user-agent` and values of the app, as in
///   `value:tenant`; the rules `address`, `network-56`, `network-48`, `user-address`, `account` and
///   `second-factor` have a fixed one.
/// - `algorithm` is `sliding-window` (the default), `token-bucket`, `sliding-counter` or `backoff`.
/// - All but `backoff` have `limit`, `within` and `block`: `"none"` for no block, a list for blocks that
///   grow, with `again_within`. By default the block of a sliding window is as long as `within`, and the
///   others have none.
/// - A `backoff` has `waits`, `jitter` in percent and `forgotten_after`.
/// - `exempt_known_addresses` is true by default for the rule `account`, and false for others.
/// - `enabled = false` switches a rule off, `shadow = true` has it count and refuse nothing.
///
/// ```
/// # #[cfg(feature = "serde")] {
/// use tower_login_rate_limit::{Period, Policy};
///
/// let policy: Policy = toml::from_str(r#"
///     lease = "20s"
///
///     [[rules]]
///     name = "address"
///     limit = 25
///     within = "24h"
///     block = "7 days"
///
///     [[rules]]
///     name = "tenant"
///     key = ["user", "value:tenant"]
///     limit = 10
///     within = "forever"
/// "#)?;
/// # }
/// # Ok::<(), Box<dyn std::error::Error>>(())
/// ```
#[derive(Clone, PartialEq, Eq)]
#[must_use = "a policy does nothing until it is given to a limiter"]
pub struct Policy {
    rules: Vec<Rule>,
    /// By scope. Follows from the other fields.
    by_scope: Vec<ScopedRules>,
    /// Whether a rule has a [joined](Subject::Joined) subject. Follows from the rules.
    has_joined: bool,
    lease: Duration,
    ipv6_prefix: u8,
    known_addresses: Option<KnownAddresses>,
}

impl Policy {
    /// A policy with these rules and no others.
    ///
    /// # Errors
    ///
    /// If two rules have the same name, or there are more than 100.
    pub fn new(rules: impl IntoIterator<Item = Rule>) -> Result<Self, PolicyError> {
        let rules: Vec<_> = rules.into_iter().collect();
        if rules.len() > MAX_RULES {
            let reason = format!("has {}; must have {MAX_RULES} at most", rules.len());
            return Err(PolicyError::new("rules", reason));
        }
        let is_repeated = |i: &usize| {
            let before = &rules[..*i];
            before.iter().any(|rule| rule.name() == rules[*i].name())
        };
        if let Some(i) = (1..rules.len()).find(is_repeated) {
            return Err(PolicyError::new(
                format!("rule {:?}", rules[i].name()),
                "occurs twice; a second rule needs a name of its own",
            ));
        }
        Ok(Self::of(rules))
    }

    /// The default policy, and a limit of 100 failures of an account within 24 hours over all addresses: it
    /// stops a botnet of any size. Conforms to [`Standard::Owasp`]. It does not to [`Standard::Nist`], which
    /// has no window and no exemption: that is [`Policy::nist`].
    ///
    /// The owner is not locked out: addresses that the user has logged in from since the rule is enabled,
    /// the newest 10 within 90 days, are exempt from that limit. From a new address the owner can be
    /// refused during an attack; offer another way in, such as a link by mail.
    pub fn strict() -> Self {
        let account = Rule::of(Rule::ACCOUNT, [Part::User], a_day(100, None));
        Self::default()
            .with_rule(account.exempting(true))
            .with_rule(second_factor().exempting(true))
    }

    /// The default settings with these rules.
    fn of(rules: Vec<Rule>) -> Self {
        let exempts_known = rules.iter().any(Rule::exempts_known_addresses);
        let policy = Self {
            rules,
            by_scope: Vec::new(),
            has_joined: false,
            lease: Duration::from_secs(30),
            ipv6_prefix: 64,
            known_addresses: exempts_known.then(KnownAddresses::default),
        };
        policy.compiled()
    }

    /// The same policy after a change of its rules, or of what decides which of them apply.
    fn compiled(mut self) -> Self {
        self.by_scope = ScopedRules::of(&self);
        let joins = |rule: &Rule| rule.subject() == Subject::Joined;
        self.has_joined = self.rules.iter().any(joins);
        self
    }

    /// Sets the limit of the rule [`Rule::ADDRESS`], which counts by address. Adds the rule if it is
    /// missing.
    ///
    /// # Errors
    ///
    /// If the limit is invalid.
    pub fn with_address_limit(
        self,
        limit: impl TryInto<Limit, Error: Into<PolicyError>>,
    ) -> Result<Self, PolicyError> {
        Ok(self.with_limit(Rule::new(Rule::ADDRESS, [Part::Address], limit)?))
    }

    /// Sets the limit of the rule [`Rule::USER_ADDRESS`], which counts by user and address. Adds the rule if
    /// it is missing.
    ///
    /// # Errors
    ///
    /// If the limit is invalid.
    pub fn with_user_address_limit(
        self,
        limit: impl TryInto<Limit, Error: Into<PolicyError>>,
    ) -> Result<Self, PolicyError> {
        let parts = [Part::User, Part::Address];
        Ok(self.with_limit(Rule::new(Rule::USER_ADDRESS, parts, limit)?))
    }

    /// Sets the limit of the rule [`Rule::ACCOUNT`], which counts by user over all addresses and stops
    /// guessing from many of them. Adds the rule if it is missing. The owner's
    /// [known addresses](Self::with_known_addresses) are exempt.
    ///
    /// # Errors
    ///
    /// If the limit is invalid.
    pub fn with_account_limit(
        self,
        limit: impl TryInto<Limit, Error: Into<PolicyError>>,
    ) -> Result<Self, PolicyError> {
        let rule = Rule::new(Rule::ACCOUNT, [Part::User], limit)?;
        Ok(self.with_limit(rule.exempting(true)))
    }

    /// Sets the limit of the rule [`Rule::SECOND_FACTOR`], which counts codes by user over all addresses. Adds
    /// the rule if it is missing. The owner's known addresses are exempt if the policy keeps them by now.
    ///
    /// # Errors
    ///
    /// If the limit is invalid.
    pub fn with_second_factor_limit(
        self,
        limit: impl TryInto<Limit, Error: Into<PolicyError>>,
    ) -> Result<Self, PolicyError> {
        let rule = Rule::new(Rule::SECOND_FACTOR, [Part::User], limit)?;
        let exempts_known = self.known_addresses.is_some();
        Ok(self.with_limit(rule.exempting(exempts_known)))
    }

    /// Replaces the rule of the same name, which stays disabled or in shadow if it was.
    fn with_limit(self, rule: Rule) -> Self {
        let old = self.rule(rule.name());
        let enabled = old.is_none_or(Rule::is_enabled);
        let shadow = old.is_some_and(Rule::is_shadow);
        self.with_rule(rule.with_enabled(enabled).with_shadow(shadow))
    }

    /// Adds a rule, or replaces the one of the same name.
    ///
    /// A rule that exempts known addresses makes the policy keep them, by [`KnownAddresses::default`] unless
    /// set.
    pub fn with_rule(mut self, rule: Rule) -> Self {
        if rule.exempts_known_addresses() {
            self.known_addresses.get_or_insert_default();
        }
        match self.rules.iter_mut().find(|r| r.name() == rule.name()) {
            Some(old) => *old = rule,
            None => self.rules.push(rule),
        }
        self.compiled()
    }

    /// Enables or disables a rule, keeping its limit.
    ///
    /// # Errors
    ///
    /// If the policy has no rule of this name.
    pub fn with_rule_enabled(self, name: &str, enabled: bool) -> Result<Self, PolicyError> {
        match self.rule(name).cloned() {
            Some(rule) => Ok(self.with_rule(rule.with_enabled(enabled))),
            None => Err(PolicyError::new(
                format!("rule {name:?}"),
                "is not in this policy",
            )),
        }
    }

    /// Puts a rule into [shadow](Rule::with_shadow), or takes it out of it.
    ///
    /// # Errors
    ///
    /// If the policy has no rule of this name.
    pub fn with_rule_shadow(self, name: &str, shadow: bool) -> Result<Self, PolicyError> {
        match self.rule(name).cloned() {
            Some(rule) => Ok(self.with_rule(rule.with_shadow(shadow))),
            None => Err(PolicyError::new(
                format!("rule {name:?}"),
                "is not in this policy",
            )),
        }
    }

    /// How long an attempt may be in flight; if it is not settled by then, it is a failure. 30 seconds unless
    /// set. Should be longer than the slowest login that does not time out.
    ///
    /// # Errors
    ///
    /// If it is not from 1 millisecond to 24 hours.
    pub fn with_lease(mut self, lease: Duration) -> Result<Self, PolicyError> {
        let max = Duration::from_secs(24 * 60 * 60);
        if !(Duration::from_millis(1)..=max).contains(&lease) {
            let lease = Period::Of(lease);
            let reason = format!("{lease}; must be from 1 millisecond to 24 hours");
            return Err(PolicyError::new("lease", reason));
        }
        // Stores and files have whole milliseconds.
        self.lease = Duration::from_millis(to_millis(lease));
        Ok(self)
    }

    /// How many bits of an IPv6 address identify a client. 64 unless set.
    ///
    /// # Errors
    ///
    /// If it is not from 1 to 128.
    pub fn with_ipv6_prefix(mut self, bits: u8) -> Result<Self, PolicyError> {
        if !(1..=128).contains(&bits) {
            let reason = format!("{bits} bits; must be from 1 to 128");
            return Err(PolicyError::new("ipv6_prefix", reason));
        }
        self.ipv6_prefix = bits;
        Ok(self.compiled())
    }

    /// Keeps the address of each successful login. Off unless set or needed by a rule, as it costs one more
    /// key for each user who logs in.
    pub fn with_known_addresses(mut self, keep: KnownAddresses) -> Self {
        self.known_addresses = Some(keep);
        self
    }

    /// The rules, in the order in which they were added.
    pub fn rules(&self) -> &[Rule] {
        &self.rules
    }

    /// Whether a rule counts by the value of this name.
    pub(crate) fn counts_by_value(&self, name: &str) -> bool {
        let mut parts = self.rules.iter().flat_map(Rule::parts);
        parts.any(|part| matches!(part, Part::Value(value) if **value == *name))
    }

    /// Whether the subject of a rule has to be joined for each attempt.
    pub(crate) const fn has_joined(&self) -> bool {
        self.has_joined
    }

    /// The rule of this name.
    pub fn rule(&self, name: &str) -> Option<&Rule> {
        self.rules.iter().find(|rule| rule.name() == name)
    }

    /// How long an attempt may be in flight.
    pub const fn lease(&self) -> Duration {
        self.lease
    }

    /// How many bits of an IPv6 address identify a client.
    pub const fn ipv6_prefix(&self) -> u8 {
        self.ipv6_prefix
    }

    /// How many addresses of a user are kept, if any.
    pub const fn known_addresses(&self) -> Option<KnownAddresses> {
        self.known_addresses
    }
}

/// 25 failures of an address within 24 hours block it for 7 days; 5 failures of a user from an
/// address within 24 hours block that pair for 24 hours. Of an IPv6 address, 64 bits count; 100 failures within
/// 24 hours from the 56 bits around it, or 400 from 48 bits, are refused until the oldest are a day old. At a
/// second factor, 20 failures of a user within 24 hours are the limit over all addresses.
impl Default for Policy {
    fn default() -> Self {
        let pair = [Part::User, Part::Address];
        Self::of(vec![
            Rule::of(Rule::ADDRESS, [Part::Address], a_day(25, Some(7 * DAY))),
            Rule::of(Rule::NETWORK_56, [Part::Network(56)], a_day(100, None)),
            Rule::of(Rule::NETWORK_48, [Part::Network(48)], a_day(400, None)),
            Rule::of(Rule::USER_ADDRESS, pair, a_day(5, Some(DAY))),
            second_factor(),
        ])
    }
}

impl fmt::Debug for Policy {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("Policy")
            .field("rules", &self.rules)
            .field("lease", &self.lease)
            .field("ipv6_prefix", &self.ipv6_prefix)
            .field("known_addresses", &self.known_addresses)
            .finish()
    }
}

/// The rule for second factors. A code of six digits of which three are valid is guessed with a probability of
/// 2 % in a year of 20 guesses a day.
fn second_factor() -> Rule {
    Rule::of(Rule::SECOND_FACTOR, [Part::User], a_day(20, None))
}

/// A sliding window of 24 hours.
fn a_day(attempts: u32, block: Option<Millis>) -> Limit {
    Limit {
        algorithm: Algorithm::SlidingWindow,
        attempts,
        window: Some(DAY),
        block: block.map(|length| Block::new([Some(length)], 0)),
        waits: None,
        jitter: 0,
    }
}
