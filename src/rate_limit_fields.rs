//! The `RateLimit-Policy` and `RateLimit` fields (draft-ietf-httpapi-ratelimit-headers-10).

use http::{HeaderMap, HeaderValue};

use crate::{
    Limit, Refusal, Report, Rule,
    algorithm::{Standing, State},
};

/// What the fields say of the rule by address: with it nobody learns about somebody else's account.
pub(crate) struct RateLimitFields {
    policy: Option<HeaderValue>,
    state: Option<HeaderValue>,
}

impl RateLimitFields {
    /// After an attempt that was admitted. If it did not fail it takes no place any more; what else it
    /// may have taken back with it is not known here.
    pub(crate) fn of_report(report: &Report, failed: bool) -> Option<Self> {
        let (rule, mut standing) = report
            .iter()
            .find(|(rule, _)| rule.name() == Rule::ADDRESS)?;
        standing.usage -= u32::from(!failed && standing.usage > 0);
        Some(Self::new(rule, standing))
    }

    /// After one that the rule refused.
    pub(crate) fn of_refusal(refusal: &Refusal, policy: &crate::Policy) -> Option<Self> {
        let rule = policy.rule(Rule::ADDRESS)?;
        (refusal.rule() == Rule::ADDRESS).then(|| Self::new(rule, refusal.standing()))
    }

    fn new(rule: &Rule, standing: Standing) -> Self {
        let (quota, window) = match rule.limit() {
            Limit::SlidingWindow(numbers) => (numbers.limit(), numbers.window()),
            Limit::TokenBucket(numbers) => (numbers.capacity(), Some(numbers.refill())),
            Limit::SlidingCounter(numbers) => (numbers.limit(), Some(numbers.window())),
            Limit::Backoff(numbers) => (numbers.free() + 1, None),
        };
        let name = rule.name();
        let mut policy = format!("\"{name}\";q={quota}");
        if let Some(window) = window {
            policy += &format!(";w={}", window.div_ceil(1000));
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
