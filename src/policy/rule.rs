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
    /// The name of the value that [`Part::path`] counts by.
    pub const PATH: &'static str = "path";
    /// The name of the value that [`Part::user_agent`] counts by.
    pub const USER_AGENT: &'static str = "user-agent";

    /// The path of the request, which the layer finds by itself: in axum the pattern of the route, so
    /// that what is variable in it makes no difference; elsewhere the path without encoded characters
    /// and doubled slashes. Whoever can vary the path, and still gets to the same handler, varies the
    /// counter.
    ///
    /// ```
    /// use tower_login_rate_limit::{Limit, Part, Period, Policy, Rule};
    ///
    /// let parts = [Part::Address, Part::path()];
    /// let rule = Rule::new("door", parts, Limit::attempts(50).within(Period::hours(1)))?;
    /// let policy = Policy::default().with_rule(rule);
    /// # Ok::<(), tower_login_rate_limit::PolicyError>(())
    /// ```
    pub fn path() -> Self {
        Self::value(Self::PATH)
    }

    /// The request's `User-Agent`, which the layer finds by itself. A caller chooses it freely: good
    /// for telling apart, never as the only thing that limits.
    pub fn user_agent() -> Self {
        Self::value(Self::USER_AGENT)
    }

    /// The app's own value of this name.
    pub fn value(name: impl Into<Arc<str>>) -> Self {
        Self::Value(name.into())
    }
}

impl Part {
    /// As it stands in a file.
    pub(super) fn to_word(&self) -> String {
        match self {
            Self::Address => "address".to_owned(),
            Self::User => "user".to_owned(),
            Self::Value(name) if matches!(&**name, Self::PATH | Self::USER_AGENT) => {
                name.to_string()
            }
            Self::Value(name) => format!("value:{name}"),
        }
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
    /// Whether these are among the parts; asked for each attempt.
    by_address: bool,
    by_user: bool,
    limit: Limit,
    enabled: bool,
    exempts_known: bool,
}

impl Rule {
    /// The name of the rule that counts by address.
    pub const ADDRESS: &'static str = "address";
    /// The name of the rule that counts by user and address together.
    pub const USER_ADDRESS: &'static str = "user-address";
    /// The name of the rule that counts by user, all addresses together. To leave out the user's known
    /// addresses, as [`Policy::with_account_limit`](crate::Policy::with_account_limit) and files do, say
    /// [`exempting_known_addresses`](Self::exempting_known_addresses).
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
        check_name(&name)?;
        let parts: Vec<_> = parts.into_iter().collect();
        if let Some(built_in) = Self::built_in_parts(&name)
            && !(parts.len() == built_in.len() && built_in.iter().all(|part| parts.contains(part)))
        {
            let words: Vec<_> = built_in.iter().map(Part::to_word).collect();
            return Err(PolicyError::new(
                format!("{name}.key"),
                format!("is always {words:?} for a rule of this name; give the rule another one"),
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
        Ok(Self::of(name, parts, limit))
    }

    /// What a rule with one of the names above counts by.
    pub(super) const fn built_in_parts(name: &str) -> Option<&'static [Part]> {
        match name.as_bytes() {
            b"address" => Some(&[Part::Address]),
            b"user-address" => Some(&[Part::User, Part::Address]),
            b"account" => Some(&[Part::User]),
            _ => None,
        }
    }

    /// A rule whose name and parts are known to be good.
    pub(super) fn of(name: impl Into<Arc<str>>, parts: impl Into<Vec<Part>>, limit: Limit) -> Self {
        let parts = parts.into();
        Self {
            name: name.into(),
            by_address: parts.contains(&Part::Address),
            by_user: parts.contains(&Part::User),
            parts,
            limit,
            enabled: true,
            exempts_known: false,
        }
    }

    /// The same rule, with attempts from an address that the user has logged in from before left out:
    /// they are neither counted nor refused by it. The rule has to count by user and nothing else, as
    /// known addresses are kept by user. [`Policy::with_account_limit`](crate::Policy::with_account_limit)
    /// makes such a rule.
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
    pub fn exempting_known_addresses(self) -> Result<Self, PolicyError> {
        if self.parts != [Part::User] {
            return Err(PolicyError::new(
                format!("{}.exempt_known_addresses", self.name),
                "is for rules that count by user and nothing else: known addresses are kept by user",
            ));
        }
        Ok(self.exempting(true))
    }

    pub(super) fn exempting(mut self, exempts_known: bool) -> Self {
        self.exempts_known = exempts_known;
        self
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

    pub(crate) const fn counts_by_address(&self) -> bool {
        self.by_address
    }

    pub(crate) const fn counts_by_user(&self) -> bool {
        self.by_user
    }
}

/// A name becomes part of a store's keys, and of what a refused client is told.
pub(crate) fn check_name(name: &str) -> Result<(), PolicyError> {
    let allowed = |c: char| c.is_ascii_alphanumeric() || matches!(c, '-' | '_' | '.');
    if (1..=32).contains(&name.len()) && name.chars().all(allowed) {
        return Ok(());
    }
    Err(PolicyError::new(
        format!("rule {name:?}"),
        "a name has 1 to 32 letters, digits, '-', '_' or '.'",
    ))
}
