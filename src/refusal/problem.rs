//! A denial as `application/problem+json`.

use bytes::Bytes;
use http::{
    HeaderValue, Response,
    header::{CACHE_CONTROL, CONTENT_TYPE, RETRY_AFTER},
    request::Parts,
};
use serde_json::{Map, Value};

use super::{Denial, Reason, Respond};
use crate::Period;

/// RFC 9457 `application/problem+json`, with `Retry-After`.
///
/// ```json
/// {
///   "type": "about:blank", "status": 429, "title": "Too Many Requests",
///   "detail": "too many failed attempts, try again in 6 days 23 hours",
///   "reason": "blocked", "rule": "address", "usage": 25, "rate": 25.0, "limit": 25, "remaining": 0,
///   "retry_after": 601200, "lifts": "in 6 days 23 hours"
/// }
/// ```
///
/// ```
/// # use tower_login_rate_limit::{LoginLimiter, LoginRateLimitLayer, Policy, store::MemoryStore};
/// # let limiter = LoginLimiter::new(Policy::default(), MemoryStore::new());
/// use tower_login_rate_limit::refusal::ProblemJson;
///
/// // Also to who speaks gRPC.
/// let layer = LoginRateLimitLayer::new(limiter).with_response(ProblemJson);
/// ```
///
/// `reason` is `blocked` or `busy`. `rate` is `usage` with its fraction, where an algorithm has one. `retry_after` is in seconds, and `null` for a block that never
/// lifts; `lifts` then says `forever`.
#[derive(Clone, Copy, Debug, Default)]
pub struct ProblemJson;

impl Respond for ProblemJson {
    fn respond(&self, denial: &Denial, _: &Parts) -> Response<Bytes> {
        let status = denial.status();
        let retry_after = denial.retry_after();
        let mut problem = Map::new();
        let mut set = |name: &str, value: Value| problem.insert(name.to_owned(), value);
        set("type", "about:blank".into());
        set(
            "title",
            status.canonical_reason().unwrap_or_default().into(),
        );
        set("status", status.as_u16().into());
        set("detail", denial.detail().into());
        if let Denial::Refused(refusal) = denial {
            let reason = match refusal.reason() {
                Reason::Blocked => "blocked",
                Reason::Busy => "busy",
            };
            set("reason", reason.into());
            set("rule", refusal.rule().into());
            set("usage", refusal.usage().into());
            set("rate", refusal.rate().into());
            set("limit", refusal.limit().into());
            set("remaining", refusal.remaining().into());
            set("lifts", refusal.lifts_in_words().into());
            let never = refusal.lifts() == Period::Forever;
            set(
                "retry_after",
                if never {
                    Value::Null
                } else {
                    retry_after.into()
                },
            );
        }

        let mut response = Response::new(Bytes::from(Value::Object(problem).to_string()));
        *response.status_mut() = status;
        let headers = response.headers_mut();
        headers.insert(
            CONTENT_TYPE,
            HeaderValue::from_static("application/problem+json"),
        );
        headers.insert(CACHE_CONTROL, HeaderValue::from_static("no-store"));
        if let Some(seconds) = retry_after {
            headers.insert(RETRY_AFTER, seconds.into());
        }
        response
    }
}
