//! What an instance of the fleet reports about itself.

use serde::{Deserialize, Serialize};

use crate::{algorithm::Millis, insight::BusiestReport, store::StoreStatus};

/// An instance of the fleet, as it has reported itself within the last seconds.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[non_exhaustive]
pub struct Instance {
    /// The name of the instance, unique in the fleet.
    pub id: String,
    /// The version of the ruleset that it enforces.
    pub version: u64,
    /// Why it does not enforce a newer one, if it could not read that.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub problem: Option<String>,
    /// When it was started, in milliseconds since 1970.
    pub started: Millis,
    /// The version of this crate that it was built with.
    pub software: String,
    /// Attempts that were decided without the store, since it was started.
    #[serde(default)]
    pub fallback_decisions: u64,
    /// Attempts that were refused from memory, since it was started.
    #[serde(default)]
    pub cached_refusals: u64,
    /// The busiest addresses and users that it has seen, if it [keeps them](crate::LoginLimiter::with_insight).
    #[serde(default)]
    pub busiest: BusiestReport,
}

impl Instance {
    pub(super) fn new(id: &str, started: Millis, version: u64, status: StoreStatus) -> Self {
        Self {
            id: id.to_owned(),
            version,
            problem: None,
            started,
            software: env!("CARGO_PKG_VERSION").to_owned(),
            fallback_decisions: status.fallback_decisions,
            cached_refusals: status.cached_refusals,
            busiest: BusiestReport::default(),
        }
    }

    /// Reads a report; `None` if another version of this crate has written something else.
    pub(crate) fn from_text(id: String, text: &str) -> Option<Self> {
        let instance: Self = serde_json::from_str(text).ok()?;
        Some(Self { id, ..instance })
    }
}
