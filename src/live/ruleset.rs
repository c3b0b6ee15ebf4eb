//! What a fleet shares, and its versions.

use std::fmt;

use serde::{Deserialize, Serialize};

use super::difference::differences;
use crate::{
    LoginLimiter, Policy, PolicyError, Rule, Token,
    access::AccessRules,
    admin::Author,
    algorithm::Millis,
    clock::{Clock, SystemClock},
    limiter::{self, InForce},
    timestamp,
};

/// The policy and the access rules, replaced as a whole.
///
/// ```
/// use tower_login_rate_limit::{Policy, live::{Canary, Ruleset}};
///
/// let ruleset = Ruleset::new(Policy::default())
///     .with_canary(Canary::new(Policy::strict(), 5.0)?);
/// # Ok::<(), tower_login_rate_limit::PolicyError>(())
/// ```
#[derive(Clone, Debug, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
#[non_exhaustive]
#[must_use = "a ruleset does nothing until it is put in force"]
pub struct Ruleset {
    /// What is limited, and how much.
    pub policy: Policy,
    /// Who is allowed or denied ahead of the limits.
    #[serde(default)]
    pub access: AccessRules,
    /// A policy for a part of the addresses, to try it out.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub canary: Option<Canary>,
}

impl Ruleset {
    /// This policy, without access rules.
    pub fn new(policy: Policy) -> Self {
        Self {
            policy,
            access: AccessRules::default(),
            canary: None,
        }
    }

    /// Replaces the policy.
    pub fn with_policy(mut self, policy: Policy) -> Self {
        self.policy = policy;
        self
    }

    /// Replaces the access rules.
    pub fn with_access(mut self, access: AccessRules) -> Self {
        self.access = access;
        self
    }

    /// Sets a policy for a part of the addresses.
    pub fn with_canary(mut self, canary: Canary) -> Self {
        self.canary = Some(canary);
        self
    }

    /// Ends the trial of a policy, and applies it to all addresses if it is to be kept.
    pub fn without_canary(mut self, keep: bool) -> Self {
        if let Some(canary) = self.canary.take()
            && keep
        {
            self.policy = canary.policy;
        }
        self
    }

    /// What is different in another one, a line each: `policy.rules.user-address.limit: 5 → 3`.
    #[must_use]
    pub fn differences(&self, other: &Self) -> Vec<String> {
        differences(self, other)
    }

    /// As decisions are made by it.
    pub(super) fn in_force(
        &self,
        version: u64,
        limiter: &LoginLimiter,
    ) -> Result<InForce, PolicyError> {
        let access = limiter.compile(self.access.clone())?;
        if let Some(canary) = &self.canary {
            canary.check(&self.policy)?;
        }
        let canary = self.canary.as_ref().map(Canary::in_force);
        Ok(InForce::new(version, self.policy.clone(), canary, access))
    }

    /// What is in force at present.
    pub(crate) fn of(in_force: &InForce) -> Self {
        Self {
            policy: Policy::clone(&in_force.policy),
            access: in_force.access.clone(),
            canary: in_force.canary.as_ref().map(|canary| Canary {
                share: f64::from(canary.share) / 100.0,
                secret: Secret(canary.secret),
                policy: Policy::clone(&canary.policy),
            }),
        }
    }
}

/// A policy for a share of the addresses, ahead of all others. The same addresses on every instance, chosen by a
/// hash with a secret of its own, so that a client can't find out by trying which it is under.
#[derive(Clone, Debug, Serialize, Deserialize)]
#[serde(deny_unknown_fields, try_from = "CanaryFile")]
pub struct Canary {
    share: f64,
    secret: Secret,
    policy: Policy,
}

#[derive(Deserialize)]
#[serde(deny_unknown_fields)]
struct CanaryFile {
    share: f64,
    #[serde(default = "Secret::random")]
    secret: Secret,
    policy: Policy,
}

impl TryFrom<CanaryFile> for Canary {
    type Error = PolicyError;

    fn try_from(file: CanaryFile) -> Result<Self, PolicyError> {
        let canary = Self::new(file.policy, file.share)?;
        Ok(Self {
            secret: file.secret,
            ..canary
        })
    }
}

#[derive(Clone, Copy, PartialEq, Eq, Serialize, Deserialize)]
struct Secret([u64; 2]);

impl fmt::Debug for Secret {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str("***")
    }
}

impl Secret {
    fn random() -> Self {
        let bits = u128::from_be_bytes(*Token::new().as_bytes());
        let more = u128::from_be_bytes(*Token::new().as_bytes());
        // The fixed bits of one UUID are random in the other.
        let bits = bits ^ more.rotate_left(32);
        Self([bits as u64, (bits >> 64) as u64])
    }
}

impl Canary {
    /// This policy for so many percent of the addresses.
    ///
    /// # Errors
    ///
    /// If the share is not from 0.01 to 100 percent.
    pub fn new(policy: Policy, percent: f64) -> Result<Self, PolicyError> {
        if !(0.01..=100.0).contains(&percent) {
            let reason = format!("{percent} percent; must be from 0.01 to 100");
            return Err(PolicyError::new("canary.share", reason));
        }
        Ok(Self {
            share: percent,
            secret: Secret::random(),
            policy,
        })
    }

    /// The policy.
    pub const fn policy(&self) -> &Policy {
        &self.policy
    }

    /// The share of addresses, in percent.
    #[must_use]
    pub const fn percent(&self) -> f64 {
        self.share
    }

    /// The same policy for another share. Addresses that it is for stay with it if the share grows.
    ///
    /// # Errors
    ///
    /// As for [`Canary::new`].
    pub fn with_percent(self, percent: f64) -> Result<Self, PolicyError> {
        let secret = self.secret;
        let canary = Self::new(self.policy, percent)?;
        Ok(Self { secret, ..canary })
    }

    /// Whether it can be tried beside another policy. A counter without an address is shared by clients of both, and
    /// each admission drops what no longer counts under its own limit: a client of one policy could clear what the
    /// other still counts.
    fn check(&self, other: &Policy) -> Result<(), PolicyError> {
        let shared = |rule: &&Rule| !rule.counts_by_address() && rule.network().is_none();
        for rule in self.policy.rules().iter().filter(shared) {
            let same = other.rule(rule.name());
            if same.is_some_and(|same| same.limit() != rule.limit()) {
                return Err(PolicyError::new(
                    format!("canary.policy.rules.{}", rule.name()),
                    "counts over all addresses, and has another limit in the policy; give it another name while it \
                     is tried, or try it in shadow",
                ));
            }
        }
        match (self.policy.known_addresses(), other.known_addresses()) {
            (Some(own), Some(other)) if own != other => Err(PolicyError::new(
                "canary.policy.known_addresses",
                "differs from the policy's, and the addresses of a user are shared by both; change it for all",
            )),
            _ => Ok(()),
        }
    }

    fn in_force(&self) -> limiter::Canary {
        limiter::Canary {
            policy: std::sync::Arc::new(self.policy.clone()),
            share: (self.share * 100.0).round() as u16,
            secret: self.secret.0,
        }
    }
}

/// A version of the ruleset: what, by whom, when and why.
#[derive(Clone, Debug, Serialize)]
#[non_exhaustive]
pub struct Version {
    /// The number, one more for each version; 0 for what the process was started with.
    pub version: u64,
    /// When it was written, in milliseconds since 1970, by the clock of the instance that wrote it.
    #[serde(serialize_with = "at_text")]
    pub at: Millis,
    /// Who wrote it.
    pub author: String,
    /// Why.
    pub reason: String,
    /// What it contains.
    pub ruleset: Ruleset,
}

fn at_text<S: serde::Serializer>(at: &Millis, serializer: S) -> Result<S::Ok, S::Error> {
    serializer.serialize_str(&timestamp::to_text(*at))
}

/// The text of a version in the store.
#[derive(Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
struct Stored {
    at: Millis,
    author: String,
    reason: String,
    ruleset: Ruleset,
}

impl Version {
    /// A version that is written now.
    pub(crate) fn new(version: u64, ruleset: Ruleset, author: &Author) -> Self {
        Self {
            version,
            at: SystemClock.now(),
            author: author.name().to_owned(),
            reason: author.reason().to_owned(),
            ruleset,
        }
    }

    /// What a process has in force before there is a version.
    pub(crate) fn of_process(limiter: &LoginLimiter) -> Self {
        Self {
            version: 0,
            at: 0,
            author: String::new(),
            reason: String::new(),
            ruleset: limiter.initial_ruleset(),
        }
    }

    /// As it is written to the store.
    pub(crate) fn to_text(&self) -> Result<String, serde_json::Error> {
        serde_json::to_string(&Stored {
            at: self.at,
            author: self.author.clone(),
            reason: self.reason.clone(),
            ruleset: self.ruleset.clone(),
        })
    }

    /// Reads what another instance has written, which may be of another version of this crate.
    pub(crate) fn from_text(version: u64, text: &str) -> Result<Self, serde_json::Error> {
        let stored: Stored = serde_json::from_str(text)?;
        Ok(Self {
            version,
            at: stored.at,
            author: stored.author,
            reason: stored.reason,
            ruleset: stored.ruleset,
        })
    }
}
