//! The `RateLimit-Policy` and `RateLimit` fields (draft-ietf-httpapi-ratelimit-headers-10).

use http::{HeaderMap, HeaderValue};

use crate::{
    Policy, Refusal, Report, Rule,
    algorithm::{Algorithm, Standing, State},
};

/// The fields of one response. They describe the rule by address alone, so that a client learns nothing
/// about the accounts of others.
pub(crate) struct RateLimitFields {
    policy: Option<HeaderValue>,
    state: Option<HeaderValue>,
}

impl RateLimitFields {
    /// After an admitted attempt. One that did not fail no longer counts; other failures that it took back
    /// are unknown here.
    pub(crate) fn of_report(report: &Report, failed: bool) -> Option<Self> {
        let (rule, mut standing) = report
            .iter()
            .find(|(rule, _)| rule.name() == Rule::ADDRESS && !rule.is_shadow())?;
        standing.usage -= u32::from(!failed && standing.usage > 0);
        Some(Self::new(rule, standing))
    }

    /// After an attempt that the rule refused.
    pub(crate) fn of_refusal(refusal: &Refusal, policy: &Policy) -> Option<Self> {
        let rule = policy.rule(Rule::ADDRESS)?;
        (refusal.rule() == Rule::ADDRESS).then(|| Self::new(rule, refusal.standing()))
    }

    fn new(rule: &Rule, standing: Standing) -> Self {
        let (name, limit) = (rule.name(), rule.limit());
        let mut policy = format!("\"{name}\";q={}", limit.max_attempts());
        // A back-off has no window in the sense of the draft: its quota does not come back by then.
        if limit.algorithm() != Algorithm::Backoff
            && let Some(window) = limit.window().as_duration()
        {
            policy += &format!(";w={}", window.as_millis().div_ceil(1000));
        }
        let mut state = format!("\"{name}\";r={}", standing.remaining());
        if let State::Blocked { lifts } = standing.state
            && let Some(lifts) = lifts.as_duration()
        {
            state += &format!(";t={}", lifts.as_millis().div_ceil(1000).max(1));
        }
        Self {
            policy: HeaderValue::from_str(&policy).ok(),
            state: HeaderValue::from_str(&state).ok(),
        }
    }

    pub(crate) fn write(self, headers: &mut HeaderMap) {
        if let (Some(policy), Some(state)) = (self.policy, self.state) {
            headers.append("ratelimit-policy", policy);
            headers.append("ratelimit", state);
        }
    }
}
