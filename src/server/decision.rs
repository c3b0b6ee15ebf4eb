//! What a login backend asks, and what it is answered.

use std::{collections::BTreeMap, net::IpAddr};

use serde::{Deserialize, Serialize};
use utoipa::ToSchema;

use super::problem::Problem;
use crate::{
    Caller, LoginLimiter, Part, Period, Policy, Reason, Refusal, Report,
    access::{AccessDenied, AccessQuery, AccessRule, Action},
    algorithm::State,
    clock::{Clock, SystemClock, to_millis},
};

const MAX_USER: usize = 1_000;
const MAX_PATH: usize = 2_000;
const MAX_USER_AGENT: usize = 1_000;
const MAX_VALUES: usize = 16;
const MAX_NAME: usize = 64;
const MAX_VALUE: usize = 256;

/// An attempt to log in.
#[derive(Clone, Debug, Serialize, Deserialize, ToSchema)]
#[serde(deny_unknown_fields)]
#[schema(example = json!({"address": "192.0.2.1", "user": "alice"}))]
pub(super) struct AttemptRequest {
    /// The client's address, which must not be one that the client chooses: IPv4 or IPv6, without a port.
    #[schema(schema_with = super::schema::ip_address)]
    pub(super) address: IpAddr,
    /// The user as it was typed.
    #[serde(default)]
    #[schema(max_length = 1_000)]
    pub(super) user: Option<String>,
    /// The path of the login, as the client sent it: for rules by path.
    #[serde(default)]
    #[schema(max_length = 2_000)]
    pub(super) path: Option<String>,
    /// The client's `User-Agent`: for rules by user agent.
    #[serde(default)]
    #[schema(max_length = 1_000)]
    pub(super) user_agent: Option<String>,
    /// Values of the app, for rules by these: 16 at most, names of 1 to 64 characters, values of up to 256.
    #[serde(default)]
    #[schema(schema_with = super::schema::values)]
    pub(super) values: BTreeMap<String, String>,
    /// Whether it is an attempt at a second factor, such as a code.
    #[serde(default)]
    pub(super) second_factor: bool,
}

impl AttemptRequest {
    pub(super) const fn new(address: IpAddr) -> Self {
        Self {
            address,
            user: None,
            path: None,
            user_agent: None,
            values: BTreeMap::new(),
            second_factor: false,
        }
    }

    /// Bounds what is counted, kept and sealed.
    pub(super) fn validate(&self) -> Result<(), Problem> {
        check_length("user", self.user.as_deref(), MAX_USER)?;
        check_length("path", self.path.as_deref(), MAX_PATH)?;
        check_length("user_agent", self.user_agent.as_deref(), MAX_USER_AGENT)?;
        if self.values.len() > MAX_VALUES {
            let count = self.values.len();
            return Err(Problem::invalid(format!(
                "values: there are {count}, and may be {MAX_VALUES}"
            )));
        }
        for (name, value) in &self.values {
            if name.is_empty() {
                return Err(Problem::invalid("values: a name is empty"));
            }
            check_length("values: a name", Some(name), MAX_NAME)?;
            check_length("values: a value", Some(value), MAX_VALUE)?;
        }
        Ok(())
    }

    fn path(&self) -> Option<&str> {
        self.path.as_deref().map(without_query)
    }

    pub(super) fn values(&self) -> impl Iterator<Item = (&str, &str)> {
        let own = self.values.iter();
        let own = own.map(|(name, value)| (name.as_str(), value.as_str()));
        let path = self.path().map(|path| (Part::PATH, path));
        let agent = self.user_agent.as_deref();
        let agent = agent.map(|agent| (Part::USER_AGENT, agent));
        own.chain(path).chain(agent)
    }

    pub(super) fn caller(&self) -> Caller<'_> {
        let mut caller = Caller::new(self.address).with_second_factor(self.second_factor);
        if let Some(user) = &self.user {
            caller = caller.with_user(user);
        }
        for (name, value) in self.values() {
            caller = caller.with_value(name, value);
        }
        caller
    }

    /// The values by which a policy counts: the others need not be known when it is settled.
    pub(super) fn counted_values(&self, policy: &Policy) -> Vec<(String, String)> {
        let is_counted = |name: &str| {
            let mut parts = policy.rules().iter().flat_map(|rule| rule.parts());
            parts.any(|part| matches!(part, Part::Value(known) if **known == *name))
        };
        let counted = self.values().filter(|(name, _)| is_counted(name));
        counted
            .map(|(name, value)| (name.to_owned(), value.to_owned()))
            .collect()
    }

    /// The access rule that decides ahead of the limits.
    pub(super) fn decided_by(&self, limiter: &LoginLimiter) -> Option<AccessRule> {
        let user = self.user.as_deref().map(|user| limiter.normalize(user));
        let (agent, path) = (self.user_agent.as_deref(), self.path());
        let query = access_query(Some(self.address), user.as_deref(), agent, path);
        let rules = limiter.access_rules();
        rules.decide(&query, SystemClock.now()).cloned()
    }
}

/// A query must not make another path of a path.
pub(super) fn without_query(path: &str) -> &str {
    path.split(['?', '#']).next().unwrap_or(path)
}

/// What access rules compare. The user is in normal form.
pub(super) fn access_query<'a>(
    address: Option<IpAddr>,
    user: Option<&'a str>,
    user_agent: Option<&'a str>,
    path: Option<&'a str>,
) -> AccessQuery<'a> {
    let mut query = AccessQuery::new();
    if let Some(address) = address {
        query = query.with_address(address);
    }
    if let Some(user) = user {
        query = query.with_user(user);
    }
    if let Some(agent) = user_agent {
        query = query.with_user_agent(agent.as_bytes());
    }
    if let Some(path) = path {
        query = query.with_path(path);
    }
    query
}

pub(super) fn check_length(what: &str, text: Option<&str>, max: usize) -> Result<(), Problem> {
    let length = text.map_or(0, |text| text.chars().count());
    if length > max {
        return Err(Problem::invalid(format!(
            "{what} has {length} characters, and may have {max}: refuse the login"
        )));
    }
    Ok(())
}

/// Whether an attempt is admitted, and how its limits stand.
#[derive(Clone, Debug, Default, Serialize, ToSchema)]
pub(super) struct Decision {
    /// Whether the password may be checked.
    pub(super) admitted: bool,
    /// Whether attempts are refused until a time, by a limit or an access rule.
    pub(super) blocked: bool,
    /// Why it is refused: too many have failed, too many are in flight, or an access rule denies it.
    pub(super) reason: Option<RefusedFor>,
    /// The rule that refuses, or of those that admit the one with the fewest attempts left.
    pub(super) rule: Option<String>,
    /// For the person who logs in: `too many failed attempts, try again in 1 day`.
    pub(super) message: Option<String>,
    /// When it lifts, in words: `in 6 days 23 hours`, `forever`.
    pub(super) lifts: Option<String>,
    /// When it lifts, in milliseconds; `null` if never, and if it is admitted.
    pub(super) lifts_in_ms: Option<u64>,
    /// The same in seconds, rounded up: a value for `Retry-After`.
    pub(super) retry_after: Option<u64>,
    /// The number of attempts that count under the rule, this one included.
    pub(super) usage: Option<u32>,
    /// The number of attempts that may count.
    pub(super) limit: Option<u32>,
    /// `usage` with its fraction, under an algorithm that has one.
    pub(super) rate: Option<f64>,
    /// How many attempts are left under all rules together; `null` if none counts.
    pub(super) remaining: Option<u32>,
    /// The access rule that allows the attempt, which is not counted then.
    pub(super) allowed_by: Option<String>,
    /// Names the attempt when its outcome is reported. Opaque, and of no use to the client.
    pub(super) token: Option<String>,
    /// How long the outcome may take, in milliseconds. Then the attempt is a failure.
    pub(super) lease_ms: Option<u64>,
}

/// Why an attempt is refused.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, ToSchema)]
#[serde(rename_all = "snake_case")]
pub(super) enum RefusedFor {
    Blocked,
    Busy,
    Denied,
}

impl Decision {
    /// By how the limits stand.
    pub(super) fn of_report(report: &Report) -> Self {
        if let Some(refusal) = report.refusal() {
            return Self::refused(&refusal);
        }
        let counting = report
            .iter()
            .filter(|(rule, standing)| standing.state != State::Exempt && !rule.is_shadow());
        let scarcest = counting.min_by_key(|(_, standing)| standing.remaining());
        let Some((rule, standing)) = scarcest else {
            return Self::admitted();
        };
        Self {
            rule: Some(rule.name().to_owned()),
            usage: Some(standing.usage),
            limit: Some(standing.limit),
            rate: Some(standing.rate()),
            remaining: report.remaining(),
            ..Self::admitted()
        }
    }

    pub(super) fn refused(refusal: &Refusal) -> Self {
        let reason = match refusal.reason() {
            Reason::Blocked => RefusedFor::Blocked,
            Reason::Busy => RefusedFor::Busy,
        };
        Self {
            blocked: reason == RefusedFor::Blocked,
            reason: Some(reason),
            rule: Some(refusal.rule().to_owned()),
            message: Some(refusal.to_string()),
            lifts: Some(refusal.lifts_in_words()),
            lifts_in_ms: refusal.lifts().as_duration().map(to_millis),
            retry_after: refusal.retry_after(),
            usage: Some(refusal.usage()),
            limit: Some(refusal.limit()),
            rate: Some(refusal.rate()),
            remaining: Some(refusal.remaining()),
            ..Self::default()
        }
    }

    pub(super) fn denied(denied: &AccessDenied) -> Self {
        let lifts = denied.lifts();
        Self {
            blocked: true,
            reason: Some(RefusedFor::Denied),
            rule: Some(denied.rule().to_owned()),
            message: Some(denied.to_string()),
            lifts: Some(match lifts {
                Period::Forever => lifts.to_string(),
                lifts => format!("in {}", lifts.rounded_up()),
            }),
            lifts_in_ms: lifts.as_duration().map(to_millis),
            retry_after: denied.retry_after(),
            remaining: Some(0),
            ..Self::default()
        }
    }

    pub(super) fn by_rule(rule: &AccessRule) -> Self {
        match rule.action() {
            Action::Allow => Self {
                allowed_by: Some(rule.name().to_owned()),
                ..Self::admitted()
            },
            Action::Deny => Self::denied(&AccessDenied::new(rule, SystemClock.now())),
        }
    }

    pub(super) fn admitted() -> Self {
        Self {
            admitted: true,
            ..Self::default()
        }
    }
}
