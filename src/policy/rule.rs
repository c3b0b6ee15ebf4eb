//! A rule: a name, what it counts by, and a limit.

use std::sync::Arc;

use super::PolicyError;
use crate::Limit;

/// What a rule tells callers apart by.
///
/// ```
/// use tower_login_rate_limit::{Limit, Part, Period, Rule};
///
/// let parts = [Part::User, Part::value("device")];
/// let rule = Rule::new("device", parts, Limit::attempts(10).within(Period::days(1)))?;
/// # Ok::<(), tower_login_rate_limit::PolicyError>(())
/// ```
#[derive(Clone, Debug, PartialEq, Eq)]
#[non_exhaustive]
pub enum Part {
    /// The client's address.
    Address,
    /// The user that is being logged in. Until one is known, the rule does not apply.
    User,
    /// A value that the app gives, by this name: a tenant, a device. Callers without it are counted
    /// together, so that leaving it out gains nothing.
    Value(Arc<str>),
}

impl Part {
    /// The name of the value that is the path of the request, which the layer finds by itself: in axum
    /// the pattern of the route, so that what is variable in it makes no difference; elsewhere the path
    /// without encoded characters and doubled slashes.
    pub const PATH: &'static str = "path";
    /// The name of the value that is the request's `User-Agent`, which the layer finds by itself. A
    /// caller chooses it freely: good for telling apart, never as the only thing that limits.
    pub const USER_AGENT: &'static str = "user-agent";

    /// The value of this name: one of the app's own, [`PATH`](Self::PATH) or
    /// [`USER_AGENT`](Self::USER_AGENT).
    ///
    /// ```
    /// use tower_login_rate_limit::{Limit, Part, Period, Policy, Rule};
    ///
    /// let parts = [Part::Address, Part::value(Part::PATH)];
    /// let rule = Rule::new("door", parts, Limit::attempts(50).within(Period::hours(1)))?;
    /// let policy = Policy::default().with_rule(rule);
    /// # Ok::<(), tower_login_rate_limit::PolicyError>(())
    /// ```
    pub fn value(name: impl Into<Arc<str>>) -> Self {
        Self::Value(name.into())
    }
}

/// One thing that is limited.
///
/// ```
/// use tower_login_rate_limit::{Policy, Rule};
///
/// let policy = Policy::default();
/// let rule = policy.rule(Rule::ADDRESS).expect("the default policy has it");
/// assert!(rule.is_enabled());
/// ```
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Rule {
    name: Arc<str>,
    parts: Vec<Part>,
    limit: Limit,
    enabled: bool,
    exempts_known: bool,
}

impl Rule {
    /// The name of the rule that counts by address.
    pub const ADDRESS: &'static str = "address";
    /// The name of the rule that counts by user and address together.
    pub const USER_ADDRESS: &'static str = "user-address";
    /// The name of the rule that counts by user, all addresses together. The user's
    /// [known addresses](crate::Policy::with_known_addresses) are exempt from it.
    pub const ACCOUNT: &'static str = "account";

    /// A rule of the app's own.
    ///
    /// The name becomes part of the store's keys and is what a refusal reports.
    ///
    /// ```
    /// use tower_login_rate_limit::{Limit, Part, Period, Policy, Rule};
    ///
    /// let per_tenant = Rule::new(
    ///     "tenant",
    ///     [Part::Address, Part::value("tenant")],
    ///     Limit::attempts(100).within(Period::hours(1)),
    /// )?;
    /// let policy = Policy::default().with_rule(per_tenant);
    /// # Ok::<(), tower_login_rate_limit::PolicyError>(())
    /// ```
    pub fn new<L>(
        name: impl Into<Arc<str>>,
        parts: impl IntoIterator<Item = Part>,
        limit: L,
    ) -> Result<Self, PolicyError>
    where
        L: TryInto<Limit>,
        PolicyError: From<L::Error>,
    {
        let name = name.into();
        let allowed = |c: char| c.is_ascii_alphanumeric() || matches!(c, '-' | '_' | '.');
        if !(1..=32).contains(&name.len()) || !name.chars().all(allowed) {
            return Err(PolicyError::new(
                format!("rule {name:?}"),
                "a name has 1 to 32 letters, digits, '-', '_' or '.'",
            ));
        }
        let parts: Vec<_> = parts.into_iter().collect();
        let built_in: &[Part] = match &*name {
            Self::ADDRESS => &[Part::Address],
            Self::USER_ADDRESS => &[Part::User, Part::Address],
            Self::ACCOUNT => &[Part::User],
            _ => &parts,
        };
        if parts != built_in {
            return Err(PolicyError::new(
                format!("{name}.key"),
                format!(
                    "is always {built_in:?} for a rule of this name; give the rule another one"
                ),
            ));
        }
        if parts.is_empty() {
            return Err(PolicyError::new(
                format!("{name}.key"),
                "is empty; everybody would share one counter",
            ));
        }
        if let Some((i, part)) = parts
            .iter()
            .enumerate()
            .find(|(i, part)| parts[..*i].contains(part))
        {
            return Err(PolicyError::new(
                format!("{name}.key"),
                format!("part {} is {part:?} again", i + 1),
            ));
        }
        let limit = limit
            .try_into()
            .map_err(|error| PolicyError::from(error).within(&name))?;
        let exempts_known = &*name == Self::ACCOUNT;
        Ok(Self {
            name,
            parts,
            limit,
            enabled: true,
            exempts_known,
        })
    }

    /// A rule of the default policy; its numbers are known to be good.
    pub(super) fn built_in(name: &str, parts: impl Into<Vec<Part>>, limit: Limit) -> Self {
        Self {
            name: name.into(),
            parts: parts.into(),
            limit,
            enabled: true,
            exempts_known: name == Self::ACCOUNT,
        }
    }

    /// The same rule, with attempts from an address that the user has logged in from before left out:
    /// they are neither counted nor refused by it. The rule [`ACCOUNT`](Self::ACCOUNT) is so by
    /// itself; another one has to count by user and nothing else.
    ///
    /// ```
    /// use tower_login_rate_limit::{Limit, Part, Period, Policy, Rule};
    ///
    /// // A short window beside the long one of the rule "account".
    /// let burst = Rule::new("account-burst", [Part::User], Limit::attempts(20).within(Period::minutes(10)))?
    ///     .exempting_known_addresses()?;
    /// let policy = Policy::strict().with_rule(burst);
    /// # Ok::<(), tower_login_rate_limit::PolicyError>(())
    /// ```
    pub fn exempting_known_addresses(mut self) -> Result<Self, PolicyError> {
        if self.parts != [Part::User] {
            return Err(PolicyError::new(
                format!("{}.exempt_known_addresses", self.name),
                "is for rules that count by user and nothing else: known addresses are kept by user",
            ));
        }
        self.exempts_known = true;
        Ok(self)
    }

    /// The same rule, switched on or off. A rule that is off counts nothing and refuses nobody.
    #[must_use]
    pub fn enabled(mut self, enabled: bool) -> Self {
        self.enabled = enabled;
        self
    }

    /// The rule's name.
    pub fn name(&self) -> &str {
        &self.name
    }

    pub(crate) fn shared_name(&self) -> Arc<str> {
        Arc::clone(&self.name)
    }

    /// What it tells callers apart by.
    pub fn parts(&self) -> &[Part] {
        &self.parts
    }

    /// What it allows.
    pub const fn limit(&self) -> &Limit {
        &self.limit
    }

    /// Whether it is switched on.
    pub const fn is_enabled(&self) -> bool {
        self.enabled
    }

    /// Whether attempts from an address that the user has logged in from before are left out.
    pub const fn exempts_known_addresses(&self) -> bool {
        self.exempts_known
    }

    pub(crate) fn counts_by_address(&self) -> bool {
        self.parts.contains(&Part::Address)
    }

    pub(crate) fn counts_by_user(&self) -> bool {
        self.parts.contains(&Part::User)
    }
}
