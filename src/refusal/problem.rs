//! A denial as `application/problem+json`.

use std::fmt;

use bytes::Bytes;
use http::{
    HeaderValue, Response, StatusCode,
    header::{CACHE_CONTROL, CONTENT_TYPE, RETRY_AFTER},
    request::Parts,
};
use serde_json::json;

use super::{Denial, Reason, Refusal, Respond};

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
        let (status, retry_after) = (denial.status(), denial.retry_after());
        let body = match denial {
            Denial::Refused(refusal) => refused(refusal, status, retry_after),
            _ => problem(denial, status),
        };
        let mut response = Response::new(body);
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

fn problem(denial: &Denial, status: StatusCode) -> Bytes {
    let problem = json!({
        "type": "about:blank",
        "title": status.canonical_reason().unwrap_or_default(),
        "status": status.as_u16(),
        "detail": denial.detail(),
    });
    problem.to_string().into()
}

/// Written by hand: this is what attackers cost. Nothing in it can hold a character that would have to be
/// escaped, since the names of rules can't.
fn refused(refusal: &Refusal, status: StatusCode, retry_after: Option<u64>) -> Bytes {
    let reason = match refusal.reason() {
        Reason::Blocked => "blocked",
        Reason::Busy => "busy",
    };
    let thousandths = refusal.standing().thousandths;
    let mut body = Body(String::with_capacity(384));
    body.text(r#"{"type":"about:blank","title":""#)
        .text(status.canonical_reason().unwrap_or_default())
        .text(r#"","status":"#)
        .number(status.as_u16().into())
        .text(r#","detail":""#)
        .words(|body| refusal.write_detail(body))
        .text(r#"","reason":""#)
        .text(reason)
        .text(r#"","rule":""#)
        .text(refusal.rule())
        .text(r#"","usage":"#)
        .number(refusal.usage().into())
        .text(r#","rate":"#)
        .number(thousandths / 1000)
        .text(".")
        .number(thousandths / 100 % 10);
    if !thousandths.is_multiple_of(100) {
        body.number(thousandths / 10 % 10).number(thousandths % 10);
    }
    body.text(r#","limit":"#)
        .number(refusal.limit().into())
        .text(r#","remaining":"#)
        .number(refusal.remaining().into())
        .text(r#","lifts":""#)
        .words(|body| refusal.write_lifts(body))
        .text(r#"","retry_after":"#);
    match retry_after {
        Some(seconds) => body.number(seconds),
        None => body.text("null"),
    };
    body.text("}");
    body.0.into()
}

/// Text in the making. The standard library's formatting would take four times as long.
struct Body(String);

impl Body {
    fn text(&mut self, text: &str) -> &mut Self {
        self.0.push_str(text);
        self
    }

    fn number(&mut self, number: u64) -> &mut Self {
        self.text(itoa::Buffer::new().format(number))
    }

    fn words(&mut self, write: impl FnOnce(&mut String) -> fmt::Result) -> &mut Self {
        // Writing to a string can't fail.
        let _ = write(&mut self.0);
        self
    }
}

#[cfg(test)]
mod tests {
    use std::{sync::Arc, time::Duration};

    use serde_json::Value;

    use super::*;
    use crate::{
        Period,
        algorithm::{Standing, State},
    };

    #[test]
    fn what_is_written_by_hand_can_be_read() {
        let lifts = [
            State::Busy,
            State::Blocked {
                lifts: Period::Forever,
            },
            State::Blocked {
                lifts: Period::Of(Duration::from_millis(601_200_001)),
            },
        ];
        for (state, thousandths) in lifts.into_iter().zip([5_000, 4_030, 25_125]) {
            let standing = Standing {
                thousandths,
                ..Standing::new(5, 5, state)
            };
            let refusal = Refusal::new(Arc::from("user-address"), standing).unwrap();
            let denial = Denial::Refused(refusal.clone());
            let (status, retry_after) = (denial.status(), denial.retry_after());
            let body = refused(&refusal, status, retry_after);
            assert!(body.len() <= 384, "{}", body.len());
            let read: Value = serde_json::from_slice(&body).unwrap();
            let reason = match state {
                State::Busy => "busy",
                _ => "blocked",
            };
            let expected = json!({
                "type": "about:blank", "title": "Too Many Requests", "status": 429,
                "detail": refusal.to_string(), "reason": reason, "rule": "user-address", "usage": 5,
                "rate": refusal.rate(), "limit": 5, "remaining": 0,
                "lifts": refusal.lifts_in_words(), "retry_after": retry_after,
            });
            assert_eq!(read, expected);
        }
    }
}
