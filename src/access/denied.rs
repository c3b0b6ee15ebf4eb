//! The refusal by an access rule.

use std::{error::Error, fmt};

use super::AccessRule;
use crate::{Period, algorithm::Millis};

/// Which access rule denied a request, and until when. Nothing was counted.
///
/// The [`Display`](fmt::Display) text is for the client, and does not name the rule: `access is denied, try again
/// in 3 days`.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct AccessDenied {
    rule: Box<str>,
    lifts: Period,
}

impl AccessDenied {
    pub(crate) fn new(rule: &AccessRule, now: Millis) -> Self {
        Self {
            rule: rule.name().into(),
            lifts: match rule.expires_at() {
                Some(expires_at) => Period::of_millis(expires_at.saturating_sub(now)),
                None => Period::Forever,
            },
        }
    }

    /// The name of the rule.
    #[must_use]
    pub fn rule(&self) -> &str {
        &self.rule
    }

    /// The time until the rule expires.
    #[must_use]
    pub const fn lifts(&self) -> Period {
        self.lifts
    }

    /// Seconds until the rule expires, rounded up and at least 1; `None` if it never does.
    #[must_use]
    pub fn retry_after(&self) -> Option<u64> {
        self.lifts.whole_seconds()
    }
}

impl fmt::Display for AccessDenied {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str("access is denied")?;
        match self.lifts {
            Period::Forever => Ok(()),
            lifts => {
                f.write_str(", try again in ")?;
                lifts.rounded_up().write_words(f)
            }
        }
    }
}

impl Error for AccessDenied {}
