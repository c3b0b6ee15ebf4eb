//! What is limited: rules, and the numbers around them.

mod error;
mod limit;
mod rule;
#[cfg(feature = "serde")]
mod serde;

use std::time::Duration;

use crate::{
    Limit, Period,
    algorithm::{Block, Millis, SlidingWindow},
    clock::to_millis,
};

pub use error::PolicyError;
pub use limit::{BackoffBuilder, LimitBuilder};
pub(crate) use rule::check_name;
pub use rule::{Part, Rule};

/// What is limited, and how much.
///
/// [`Policy::default()`] is what most login pages need: 25 failures of an address within 24 hours
/// block it for 7 days, 5 failures of a user from an address within 24 hours block that pair for
/// 24 hours.
///
/// ```
/// use tower_login_rate_limit::{Limit, Period, Policy};
///
/// let policy = Policy::default()
///     .with_address_limit(Limit::attempts(100).within(Period::hours(1)).blocked_for(Period::days(1)))?
///     .with_user_address_limit(Limit::attempts(3).within(Period::Forever))?;
/// # Ok::<(), tower_login_rate_limit::PolicyError>(())
/// ```
///
/// # JSON and TOML
///
/// With the feature `serde` a policy is read from and written to any format of serde. What is left
/// out is as in the default policy; `rules`, if there, are all the rules there are.
///
/// - A `key` is made of `address`, `user`, `path`, `user-agent` and values of the app's own, as in
///   `value:tenant`; the rules `address`, `user-address` and `account` have theirs.
/// - `algorithm` is `sliding-window` unless said, `token-bucket`, `sliding-counter` or `backoff`.
/// - All but the last have `limit`, `within` and `block`: `"none"` for no block of its own, a list for
///   blocks that grow, with `again_within`. Left out, the block of a sliding window is as long as
///   `within`, and the others have none.
/// - A `backoff` has `waits`, `jitter` in percent and `forgotten_after`.
/// - `exempt_known_addresses` is true for the rule `account` unless said.
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
///     name = "user-address"
///     limit = 5
///     within = "24h"
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
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Policy {
    rules: Vec<Rule>,
    lease: Duration,
    ipv6_prefix: u8,
    known_addresses: Option<KnownAddresses>,
}

impl Policy {
    /// A policy with these rules and no others.
    pub fn new(rules: impl IntoIterator<Item = Rule>) -> Result<Self, PolicyError> {
        let mut policy = Self::empty();
        for rule in rules {
            if policy.rule(rule.name()).is_some() {
                return Err(PolicyError::new(
                    format!("rule {:?}", rule.name()),
                    "stands twice; a second rule needs a name of its own",
                ));
            }
            policy = policy.with_rule(rule);
        }
        Ok(policy)
    }

    /// The default policy and a limit of 100 failures of an account within 24 hours, all addresses
    /// together: a botnet is stopped however many addresses it has. (NIST SP 800-63B has the number,
    /// for failures in a row.)
    ///
    /// The owner is not stopped: addresses that the user has logged in from since this rule is on, the
    /// newest 10 within 90 days, are exempt from that limit. Somewhere new, the owner can be kept out
    /// while somebody is guessing; offer another way in, by mail say.
    pub fn strict() -> Self {
        let limit = Limit::SlidingWindow(SlidingWindow {
            limit: 100,
            window: Some(DAY),
            block: None,
        });
        let account = Rule::of(Rule::ACCOUNT, [Part::User], limit);
        Self::default().with_rule(account.exempting(true))
    }

    const fn empty() -> Self {
        Self {
            rules: Vec::new(),
            lease: Duration::from_secs(30),
            ipv6_prefix: 64,
            known_addresses: None,
        }
    }

    /// Sets the limit of the rule by address, and adds the rule if there is none.
    pub fn with_address_limit<L>(self, limit: L) -> Result<Self, PolicyError>
    where
        L: TryInto<Limit>,
        PolicyError: From<L::Error>,
    {
        Ok(self.with_limit(Rule::new(Rule::ADDRESS, [Part::Address], limit)?))
    }

    /// Sets the limit of the rule by user and address, and adds the rule if there is none.
    pub fn with_user_address_limit<L>(self, limit: L) -> Result<Self, PolicyError>
    where
        L: TryInto<Limit>,
        PolicyError: From<L::Error>,
    {
        let parts = [Part::User, Part::Address];
        Ok(self.with_limit(Rule::new(Rule::USER_ADDRESS, parts, limit)?))
    }

    /// Sets the limit of the rule by user, all addresses together, and adds the rule if there is none:
    /// it stops guessing that is spread over many addresses. The owner's
    /// [known addresses](Self::with_known_addresses) are exempt from it.
    ///
    /// ```
    /// use tower_login_rate_limit::{Limit, Period, Policy};
    ///
    /// let fifty_a_day = Limit::attempts(50).within(Period::days(1)).without_block();
    /// let policy = Policy::default().with_account_limit(fifty_a_day)?;
    /// # Ok::<(), tower_login_rate_limit::PolicyError>(())
    /// ```
    pub fn with_account_limit<L>(self, limit: L) -> Result<Self, PolicyError>
    where
        L: TryInto<Limit>,
        PolicyError: From<L::Error>,
    {
        let rule = Rule::new(Rule::ACCOUNT, [Part::User], limit)?;
        Ok(self.with_limit(rule.exempting(true)))
    }

    /// A rule in place of the one of its name, which stays off if it was.
    fn with_limit(self, rule: Rule) -> Self {
        let enabled = self.rule(rule.name()).is_none_or(Rule::is_enabled);
        self.with_rule(rule.enabled(enabled))
    }

    /// Adds a rule, or replaces the one of the same name.
    ///
    /// With a rule that exempts known addresses, these are kept, as
    /// [`KnownAddresses::default`] says unless the policy says otherwise.
    #[must_use]
    pub fn with_rule(mut self, rule: Rule) -> Self {
        if rule.exempts_known_addresses() {
            self.known_addresses.get_or_insert_default();
        }
        match self.rules.iter_mut().find(|r| r.name() == rule.name()) {
            Some(old) => *old = rule,
            None => self.rules.push(rule),
        }
        self
    }

    /// Switches a rule on or off, keeping its numbers.
    pub fn with_rule_enabled(mut self, name: &str, enabled: bool) -> Result<Self, PolicyError> {
        match self.rules.iter_mut().find(|rule| rule.name() == name) {
            Some(rule) => *rule = rule.clone().enabled(enabled),
            None => {
                return Err(PolicyError::new(
                    format!("rule {name:?}"),
                    "is not in this policy",
                ));
            }
        }
        Ok(self)
    }

    /// How long an attempt may be in flight; after that, nobody having said how it went, it is a
    /// failure. 30 seconds unless set. Should be longer than the slowest login that is not given up.
    pub fn with_lease(mut self, lease: Duration) -> Result<Self, PolicyError> {
        let (least, most) = (Duration::from_millis(1), Duration::from_secs(24 * 60 * 60));
        if !(least..=most).contains(&lease) {
            return Err(PolicyError::new(
                "lease",
                format!(
                    "{}; must be from 1 millisecond to 24 hours",
                    Period::Of(lease)
                ),
            ));
        }
        self.lease = whole_millis(lease);
        Ok(self)
    }

    /// How many bits of an IPv6 address are counted as one caller, from 1 to 128. 64 unless set.
    pub fn with_ipv6_prefix(mut self, bits: u8) -> Result<Self, PolicyError> {
        if !(1..=128).contains(&bits) {
            return Err(PolicyError::new(
                "ipv6_prefix",
                format!("{bits} bits; must be from 1 to 128"),
            ));
        }
        self.ipv6_prefix = bits;
        Ok(self)
    }

    /// Keeps, at each success, the address that the user came from. Off unless set or needed by a rule:
    /// it costs one more key for each user who logs in.
    #[must_use]
    pub fn with_known_addresses(mut self, keep: KnownAddresses) -> Self {
        self.known_addresses = Some(keep);
        self
    }

    /// The rules, in the order in which they were given.
    pub fn rules(&self) -> &[Rule] {
        &self.rules
    }

    /// The rule of this name.
    pub fn rule(&self, name: &str) -> Option<&Rule> {
        self.rules.iter().find(|rule| rule.name() == name)
    }

    /// How long an attempt may be in flight.
    pub const fn lease(&self) -> Duration {
        self.lease
    }

    /// How many bits of an IPv6 address are counted as one caller.
    pub const fn ipv6_prefix(&self) -> u8 {
        self.ipv6_prefix
    }

    /// What is kept of the addresses that a user logs in from, if anything is.
    pub const fn known_addresses(&self) -> Option<KnownAddresses> {
        self.known_addresses
    }
}

const DAY: Millis = 24 * 60 * 60 * 1000;

/// 25 failures of an address within 24 hours block it for 7 days; 5 failures of a user from an
/// address within 24 hours block that pair for 24 hours.
impl Default for Policy {
    fn default() -> Self {
        let limit = |limit, block| {
            Limit::SlidingWindow(SlidingWindow {
                limit,
                window: Some(DAY),
                block: Some(Block::new([Some(block)], 0)),
            })
        };
        Self {
            rules: vec![
                Rule::of(Rule::ADDRESS, [Part::Address], limit(25, 7 * DAY)),
                Rule::of(
                    Rule::USER_ADDRESS,
                    [Part::User, Part::Address],
                    limit(5, DAY),
                ),
            ],
            ..Self::empty()
        }
    }
}

/// What stores and files can hold.
fn whole_millis(duration: Duration) -> Duration {
    Duration::from_millis(to_millis(duration))
}

/// How many of the addresses a user has logged in from are kept, and for how long.
///
/// ```
/// use std::time::Duration;
/// use tower_login_rate_limit::{KnownAddresses, Policy};
///
/// let a_month = Duration::from_secs(30 * 24 * 60 * 60);
/// let policy = Policy::default().with_known_addresses(KnownAddresses::new(5, a_month)?);
/// # Ok::<(), tower_login_rate_limit::PolicyError>(())
/// ```
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct KnownAddresses {
    newest: u32,
    kept_for: Millis,
}

impl KnownAddresses {
    /// Keeps the newest so many, each for so long after the last login from it.
    pub fn new(newest: u32, kept_for: Duration) -> Result<Self, PolicyError> {
        if !(1..=1000).contains(&newest) {
            return Err(PolicyError::new(
                "known_addresses.newest",
                format!("{newest} addresses; must be from 1 to 1000"),
            ));
        }
        let (least, most) = (
            Duration::from_secs(1),
            Duration::from_secs(10 * 365 * 24 * 60 * 60),
        );
        if !(least..=most).contains(&kept_for) {
            return Err(PolicyError::new(
                "known_addresses.kept_for",
                format!(
                    "{}; must be from 1 second to 10 years",
                    Period::Of(kept_for)
                ),
            ));
        }
        Ok(Self {
            newest,
            kept_for: to_millis(kept_for),
        })
    }

    /// How many are kept.
    pub const fn newest(&self) -> u32 {
        self.newest
    }

    /// For how long.
    pub const fn kept_for(&self) -> Duration {
        Duration::from_millis(self.kept_for)
    }
}

/// The newest 10, for 90 days.
impl Default for KnownAddresses {
    fn default() -> Self {
        Self {
            newest: 10,
            kept_for: 90 * DAY,
        }
    }
}
