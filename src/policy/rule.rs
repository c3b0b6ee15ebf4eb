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
    /// A value that the app gives, by this name: a tenant, a device, a path. Callers without it are
    /// counted together, so that leaving it out gains nothing.
    Value(Arc<str>),
}

impl Part {
    /// The app's own value of this name.
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
}

impl Rule {
    /// The name of the rule that counts by address.
    pub const ADDRESS: &'static str = "address";
    /// The name of the rule that counts by user and address together.
    pub const USER_ADDRESS: &'static str = "user-address";

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
        Ok(Self {
            name,
            parts,
            limit,
            enabled: true,
        })
    }

    /// A rule of the default policy; its numbers are known to be good.
    pub(super) fn built_in(name: &str, parts: impl Into<Vec<Part>>, limit: Limit) -> Self {
        Self {
            name: name.into(),
            parts: parts.into(),
            limit,
            enabled: true,
        }
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

    pub(crate) fn counts_by_address(&self) -> bool {
        self.parts.contains(&Part::Address)
    }

    pub(crate) fn counts_by_user(&self) -> bool {
        self.parts.contains(&Part::User)
    }
}
