//! Reports and refusals as data, for pages and logs of the app.

use serde::{Serialize, Serializer};

use super::{Reason, Refusal, Report};
use crate::{
    Period,
    algorithm::{Standing, State},
};

/// The members that a refusal has in problem+json too.
#[derive(Serialize)]
struct RefusalData<'a> {
    detail: String,
    reason: Reason,
    rule: &'a str,
    usage: u32,
    rate: f64,
    limit: u32,
    remaining: u32,
    lifts: String,
    retry_after: Option<u64>,
}

/// With the feature `serde`: the members that a refusal has in problem+json.
impl Serialize for Refusal {
    fn serialize<S: Serializer>(&self, serializer: S) -> Result<S::Ok, S::Error> {
        let data = RefusalData {
            detail: self.to_string(),
            reason: self.reason(),
            rule: self.rule(),
            usage: self.usage(),
            rate: self.rate(),
            limit: self.limit(),
            remaining: self.remaining(),
            lifts: self.lifts_in_words(),
            retry_after: self.retry_after(),
        };
        data.serialize(serializer)
    }
}

/// With the feature `serde`: `blocked` or `busy`.
impl Serialize for Reason {
    fn serialize<S: Serializer>(&self, serializer: S) -> Result<S::Ok, S::Error> {
        serializer.serialize_str(match self {
            Self::Blocked => "blocked",
            Self::Busy => "busy",
        })
    }
}

#[derive(Serialize)]
struct StandingData<'a> {
    #[serde(skip_serializing_if = "Option::is_none")]
    rule: Option<&'a str>,
    state: &'static str,
    usage: u32,
    rate: f64,
    limit: u32,
    /// `None` where the rule makes an exception.
    remaining: Option<u32>,
    /// Seconds until the block lifts, rounded up; `None` if there is none, or it never lifts.
    retry_after: Option<u64>,
}

impl<'a> StandingData<'a> {
    fn new(rule: Option<&'a str>, standing: &Standing) -> Self {
        let (state, lifts) = match standing.state {
            State::Exempt => ("exempt", None),
            State::Clear => ("clear", None),
            State::Shadowed { lifts } => ("shadowed", lifts.and_then(Period::as_duration)),
            State::Busy => ("busy", None),
            State::Blocked { lifts } => ("blocked", lifts.as_duration()),
        };
        Self {
            rule,
            state,
            usage: standing.usage,
            rate: standing.rate(),
            limit: standing.limit,
            remaining: (standing.state != State::Exempt).then(|| standing.remaining()),
            retry_after: lifts.map(|left| {
                let started = u64::from(left.subsec_millis() > 0);
                left.as_secs().saturating_add(started).max(1)
            }),
        }
    }
}

/// With the feature `serde`: the state (`clear`, `busy`, `blocked`, `shadowed`, `exempt`), the numbers, and the
/// seconds until a block lifts, or would lift in shadow.
impl Serialize for Standing {
    fn serialize<S: Serializer>(&self, serializer: S) -> Result<S::Ok, S::Error> {
        StandingData::new(None, self).serialize(serializer)
    }
}

#[derive(Serialize)]
struct ReportData<'a> {
    remaining: Option<u32>,
    refusal: Option<Refusal>,
    rules: Vec<StandingData<'a>>,
}

/// With the feature `serde`: what remains, the refusal if there is one, and how each rule stands.
impl Serialize for Report {
    fn serialize<S: Serializer>(&self, serializer: S) -> Result<S::Ok, S::Error> {
        let rules = self.iter();
        let data = ReportData {
            remaining: self.remaining(),
            refusal: self.refusal(),
            rules: rules
                .map(|(rule, standing)| StandingData::new(Some(rule.name()), &standing))
                .collect(),
        };
        data.serialize(serializer)
    }
}
