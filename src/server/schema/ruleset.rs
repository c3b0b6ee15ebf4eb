//! The ruleset, as in files.

use serde::Serialize;
use utoipa::ToSchema;

use super::action;

/// An access rule, as in files: an action, and one of the conditions, or network and user together.
#[derive(Serialize, ToSchema)]
#[serde(deny_unknown_fields)]
pub(in super::super) struct AccessRule {
    name: String,
    #[schema(schema_with = action)]
    action: String,
    network: Option<String>,
    user: Option<String>,
    user_keyword: Option<String>,
    user_agent: Option<String>,
    path: Option<String>,
    path_prefix: Option<String>,
    /// That any client can send what is allowed is accepted.
    #[serde(default)]
    forgeable: bool,
    /// When it ends.
    #[schema(format = DateTime)]
    expires: Option<String>,
    /// Who has added it.
    author: Option<String>,
    /// Why it exists.
    note: Option<String>,
}

/// A version of the ruleset.
#[derive(Serialize, ToSchema)]
#[serde(deny_unknown_fields)]
pub(in super::super) struct Version {
    /// One more for each version; 0 for what the process was started with.
    version: u64,
    /// When it was written.
    #[schema(format = DateTime)]
    at: String,
    /// Who wrote it.
    author: String,
    /// Why.
    reason: String,
    ruleset: Ruleset,
}

/// The policy, the access rules and a canary, as in files.
#[derive(Serialize, ToSchema)]
#[serde(deny_unknown_fields)]
pub(in super::super) struct Ruleset {
    policy: Policy,
    #[serde(default)]
    access: Vec<AccessRule>,
    canary: Option<Canary>,
}

/// A policy for a part of the addresses.
#[derive(Serialize, ToSchema)]
#[serde(deny_unknown_fields)]
pub(in super::super) struct Canary {
    /// In percent.
    #[schema(minimum = 0.01, maximum = 100)]
    share: f64,
    /// Chooses the addresses: pass it back, so that they stay the same.
    #[serde(default)]
    secret: Vec<u64>,
    policy: Policy,
}

/// What is limited, and how much.
#[derive(Serialize, ToSchema)]
#[serde(deny_unknown_fields)]
pub(in super::super) struct Policy {
    /// How long an attempt may be in flight: `30s`.
    lease: Option<String>,
    /// How many bits of an IPv6 address count.
    ipv6_prefix: Option<u8>,
    #[schema(value_type = Option<Object>)]
    known_addresses: Option<()>,
    /// The rules; the default ones if it is left out.
    rules: Option<Vec<Rule>>,
}

/// A rule of a policy, with the fields of its algorithm.
#[derive(Serialize, ToSchema)]
pub(in super::super) struct Rule {
    name: String,
}
