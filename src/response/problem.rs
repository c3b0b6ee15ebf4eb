//! Denials as `application/problem+json`.

use std::{fmt, ops::Range, sync::LazyLock};

use bytes::Bytes;
use http::{
    HeaderMap, HeaderValue, Response, StatusCode,
    header::{ACCEPT, CACHE_CONTROL, CONTENT_TYPE, RETRY_AFTER, VARY},
    request::Parts,
};

use super::{Denial, DenialKind, Respond, denial::nothing_kept};
use crate::{Reason, Refusal};

/// Renders denials as RFC 9457 `application/problem+json`, with `Retry-After`.
///
/// ```json
/// {
///   "type": "https://iana.org/assignments/http-problem-types#quota-exceeded",
///   "status": 429, "title": "Too Many Requests", "violated-policies": ["address"],
///   "detail": "too many failed attempts, try again in 6 days 23 hours",
///   "reason": "blocked", "rule": "address", "usage": 25, "rate": 25.0, "limit": 25, "remaining": 0,
///   "retry_after": 601200, "lifts": "in 6 days 23 hours"
/// }
/// ```
///
/// `type` and `violated-policies` are those of draft-ietf-httpapi-ratelimit-headers-10; of several rules that
/// refuse, the one that lasts longest is named. All denials that are not refusals are of type `about:blank`.
///
/// `reason` is `blocked` or `busy`. `rate` is `usage` with its fraction, under an algorithm that has one.
/// `retry_after` is in seconds; for a block that never lifts it is `null`, and `lifts` is `forever`.
#[derive(Clone, Copy, Debug, Default)]
pub struct ProblemJson;

/// Cloned for each response, which is cheaper than inserting one header after the other. The value of `Retry-After` is
/// then replaced.
static HEADERS: LazyLock<HeaderMap> = LazyLock::new(|| {
    let mut headers = HeaderMap::new();
    headers.insert(
        CONTENT_TYPE,
        HeaderValue::from_static("application/problem+json"),
    );
    headers.insert(CACHE_CONTROL, HeaderValue::from_static("no-store"));
    headers.insert(RETRY_AFTER, HeaderValue::from_static("1"));
    headers
});

/// The same for a response that was chosen by what the client accepts.
static NEGOTIATED: LazyLock<HeaderMap> = LazyLock::new(|| {
    let mut headers = HEADERS.clone();
    vary_by_accept(&mut headers);
    headers
});

impl Respond for ProblemJson {
    fn keep(&self, _: &Parts) -> Parts {
        nothing_kept()
    }

    fn respond(&self, denial: &Denial, _: &Parts) -> Response<Bytes> {
        render(denial, &HEADERS)
    }
}

/// As [`ProblemJson`], chosen by what the client accepts.
pub(super) fn negotiated(denial: &Denial) -> Response<Bytes> {
    render(denial, &NEGOTIATED)
}

/// Adds that the response depends on what the client accepts.
pub(super) fn vary_by_accept(headers: &mut HeaderMap) {
    headers.append(VARY, HeaderValue::from_name(ACCEPT));
}

fn render(denial: &Denial, constant: &HeaderMap) -> Response<Bytes> {
    let seconds = denial.retry_after();
    let (body, retry_after) = match denial.kind() {
        DenialKind::Refused(refusal) => refused(refusal, seconds),
        _ => (problem(denial), seconds.map(HeaderValue::from)),
    };
    let mut response = Response::new(body);
    *response.status_mut() = denial.status();
    let headers = response.headers_mut();
    headers.clone_from(constant);
    match (retry_after, headers.get_mut(RETRY_AFTER)) {
        (Some(seconds), Some(value)) => *value = seconds,
        _ => drop(headers.remove(RETRY_AFTER)),
    }
    response
}

fn problem(denial: &Denial) -> Bytes {
    let status = denial.status();
    let title = status.canonical_reason().unwrap_or_default();
    let mut body = format!(
        r#"{{"type":"about:blank","title":"{title}","status":{},"detail":""#,
        status.as_u16()
    );
    for c in denial.detail().chars() {
        match c {
            '"' | '\\' => body.extend(['\\', c]),
            '\0'..' ' => body += &format!("\\u{:04x}", u32::from(c)),
            c => body.push(c),
        }
    }
    body += "\"}";
    body.into()
}

/// The body for a refusal and the value of `Retry-After`, which is a slice of it, in one allocation.
///
/// Written by hand, because this is what attackers cost. Nothing in it has to be escaped: the names of
/// rules have letters, digits and `-_.` only.
fn refused(refusal: &Refusal, retry_after: Option<u64>) -> (Bytes, Option<HeaderValue>) {
    const TITLE: &str = concat!(
        r#"{"type":"https://iana.org/assignments/http-problem-types#quota-exceeded","#,
        r#""title":"Too Many Requests","status":429,"detail":""#,
    );
    debug_assert_eq!(
        StatusCode::TOO_MANY_REQUESTS.canonical_reason(),
        Some("Too Many Requests")
    );
    let reason = match refusal.reason() {
        Reason::Blocked => r#"","reason":"blocked","rule":""#,
        Reason::Busy => r#"","reason":"busy","rule":""#,
    };
    let thousandths = refusal.standing().thousandths;
    let mut body = Buffer::new();
    body.text(TITLE).text(refusal.detail_start());
    let lifts = body.len;
    if refusal.reason() == Reason::Blocked {
        body.words(|body| refusal.write_lifts(body));
    }
    let lifts = lifts..body.len;
    body.text(reason)
        .text(refusal.rule())
        .text(r#"","violated-policies":[""#)
        .text(refusal.rule())
        .text(r#""],"usage":"#)
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
        .text(r#","lifts":""#);
    if lifts.is_empty() {
        body.words(|body| refusal.write_lifts(body));
    } else {
        body.again(lifts);
    }
    body.text(r#"","retry_after":"#);
    let start = body.len;
    match retry_after {
        Some(seconds) => body.number(seconds),
        None => body.text("null"),
    };
    let end = body.len;
    body.text("}");
    let body = Bytes::from_owner(body);
    let value =
        retry_after.and_then(|_| HeaderValue::from_maybe_shared(body.slice(start..end)).ok());
    (body, value)
}

/// A buffer that holds the longest refusal. Formatting with the standard library would take four times as
/// long.
struct Buffer {
    bytes: [u8; 496],
    len: usize,
}

impl Buffer {
    const fn new() -> Self {
        Self {
            bytes: [0; 496],
            len: 0,
        }
    }

    #[inline]
    fn text(&mut self, text: &str) -> &mut Self {
        let end = self.len + text.len();
        if let Some(free) = self.bytes.get_mut(self.len..end) {
            free.copy_from_slice(text.as_bytes());
            self.len = end;
        }
        self
    }

    /// Repeats what was written before: words take time.
    fn again(&mut self, written: Range<usize>) {
        let end = self.len + written.len();
        if end <= self.bytes.len() && written.end <= self.len {
            self.bytes.copy_within(written, self.len);
            self.len = end;
        }
    }

    fn number(&mut self, number: u64) -> &mut Self {
        // Most have one digit.
        if let (0..=9, Some(free)) = (number, self.bytes.get_mut(self.len)) {
            *free = b'0' + number as u8;
            self.len += 1;
            return self;
        }
        self.text(itoa::Buffer::new().format(number))
    }

    fn words(&mut self, write: impl FnOnce(&mut Self) -> fmt::Result) -> &mut Self {
        // Writing to the buffer returns no error.
        let _ = write(self);
        self
    }
}

impl fmt::Write for Buffer {
    fn write_str(&mut self, text: &str) -> fmt::Result {
        self.text(text);
        Ok(())
    }
}

impl AsRef<[u8]> for Buffer {
    fn as_ref(&self) -> &[u8] {
        &self.bytes[..self.len]
    }
}

#[cfg(test)]
mod tests {
    use std::{sync::Arc, time::Duration};

    use serde_json::{Value, json};

    use super::*;
    use crate::{
        Period,
        algorithm::{Standing, State},
    };

    #[test]
    fn refusals_are_valid_json() {
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
            let denial = Denial::new(DenialKind::Refused(refusal.clone()));
            let retry_after = denial.retry_after();
            let (body, header) = refused(&refusal, retry_after);
            let read: Value = serde_json::from_slice(&body).unwrap();
            let seconds = header.map(|header| header.to_str().unwrap().parse().unwrap());
            assert_eq!(seconds, retry_after);
            let reason = match state {
                State::Busy => "busy",
                _ => "blocked",
            };
            let expected = json!({
                "type": "https://iana.org/assignments/http-problem-types#quota-exceeded",
                "title": "Too Many Requests", "status": 429, "violated-policies": ["user-address"],
                "detail": refusal.to_string(), "reason": reason, "rule": "user-address", "usage": 5,
                "rate": refusal.rate(), "limit": 5, "remaining": 0,
                "lifts": refusal.lifts_in_words(), "retry_after": retry_after,
            });
            assert_eq!(read, expected);
        }
    }

    #[test]
    fn the_longest_refusal_fits_the_buffer() {
        let lifts = Period::Of(Duration::MAX);
        let standing = Standing {
            thousandths: u64::MAX,
            ..Standing::new(u32::MAX, u32::MAX, State::Blocked { lifts })
        };
        let refusal = Refusal::new("r".repeat(32).into(), standing).unwrap();
        let (body, _) = refused(&refusal, refusal.retry_after());
        let read: Value = serde_json::from_slice(&body).unwrap();
        assert_eq!(read["retry_after"], refusal.retry_after().unwrap());
    }

    #[test]
    fn details_are_escaped() {
        let error = crate::extract::ExtractError::bad_request("a \"quoted\" \\ \n ü");
        let body = problem(&Denial::new(DenialKind::AmbiguousUser(error.clone())));
        let read: Value = serde_json::from_slice(&body).unwrap();
        assert_eq!(read["detail"], error.to_string());
        assert_eq!(
            (&read["status"], &read["title"]),
            (&json!(400), &json!("Bad Request"))
        );
    }
}
