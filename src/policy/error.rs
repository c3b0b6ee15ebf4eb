use std::{convert::Infallible, error::Error, fmt};

/// An invalid policy: [which part](Self::part) of it, and [why](Self::reason).
///
/// ```
/// use tower_login_rate_limit::{Limit, Period, Policy};
///
/// let nothing = Limit::attempts(0).within(Period::hours(1));
/// let error = Policy::default().with_address_limit(nothing).unwrap_err();
/// assert_eq!(error.part(), "address.limit");
/// ```
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct PolicyError {
    part: String,
    reason: String,
}

impl PolicyError {
    pub(crate) fn new(part: impl Into<String>, reason: impl Into<String>) -> Self {
        Self {
            part: part.into(),
            reason: reason.into(),
        }
    }

    /// The same error of a part of `whole`.
    pub(crate) fn within(self, whole: &str) -> Self {
        Self {
            part: format!("{whole}.{}", self.part),
            reason: self.reason,
        }
    }

    /// The part that is invalid, as in `address.limit`.
    pub fn part(&self) -> &str {
        &self.part
    }

    /// Why it is invalid, and what to write.
    pub fn reason(&self) -> &str {
        &self.reason
    }
}

impl fmt::Display for PolicyError {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "invalid policy: {}: {}", self.part, self.reason)
    }
}

impl Error for PolicyError {}

/// Accepts a built limit wherever a builder is accepted.
impl From<Infallible> for PolicyError {
    fn from(never: Infallible) -> Self {
        match never {}
    }
}
