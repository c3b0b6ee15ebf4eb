//! Chooses a rendering by what the client accepts.

use bytes::Bytes;
use http::{
    HeaderMap, Method, Response, Version,
    header::{ACCEPT, CONTENT_TYPE},
    request::Parts,
};

use super::{Denial, GrpcStatus, HtmlPage, Respond, problem};

/// The default: [`GrpcStatus`] for gRPC clients, a page for browsers that navigate, and
/// [`ProblemJson`](super::ProblemJson) for all others.
///
/// - gRPC is recognized by the request's content type over HTTP/2.
/// - A client receives HTML if its `Accept` prefers `text/html` to JSON. Browsers do so for links and forms;
///   for `fetch()` they send `*/*`, which prefers neither, as do curl and a client without the header.
///   A preference is by quality value, that of the most specific range: `text/html;q=0.8, application/json`
///   receives JSON.
/// - The response has `Vary: Accept`.
///
/// The page is [`HtmlPage`], or a responder of the app:
///
/// ```
/// # use tower_login_rate_limit::{LoginLimiter, LoginRateLimitLayer, Policy, store::MemoryStore};
/// # let limiter = LoginLimiter::new(Policy::default(), MemoryStore::new());
/// use tower_login_rate_limit::response::{ByAccept, HtmlTemplate};
///
/// let page = HtmlTemplate::new(|denial, _request| {
///     format!("<!doctype html><title>Log in</title><h1>Sorry: {}</h1>", denial.status())
/// });
/// let layer = LoginRateLimitLayer::new(limiter).with_responder(ByAccept::new().with_html(page));
/// ```
#[derive(Clone, Debug, Default)]
pub struct ByAccept<H = HtmlPage> {
    html: H,
}

impl ByAccept {
    /// The default, with a [page](HtmlPage) in English.
    #[must_use]
    pub fn new() -> Self {
        Self::default()
    }
}

impl<H> ByAccept<H> {
    /// Sets what renders the page.
    pub fn with_html<R: Respond>(self, html: R) -> ByAccept<R> {
        ByAccept { html }
    }
}

impl<H: Respond> Respond for ByAccept<H> {
    fn respond(&self, denial: &Denial, request: &Parts) -> Response<Bytes> {
        if is_grpc(request) {
            return GrpcStatus.respond(denial, request);
        }
        if !prefers_html(&request.headers) {
            return problem::negotiated(denial);
        }
        let mut response = self.html.respond(denial, request);
        problem::vary_by_accept(response.headers_mut());
        response
    }

    fn keep(&self, request: &Parts) -> Parts {
        let mut kept = self.html.keep(request);
        kept.method = request.method.clone();
        kept.version = request.version;
        for name in [ACCEPT, CONTENT_TYPE] {
            kept.headers.remove(&name);
            for value in request.headers.get_all(&name) {
                kept.headers.append(&name, value.clone());
            }
        }
        kept
    }
}

/// Whether the client speaks gRPC. To any other, a response with status 200 would look like a success.
fn is_grpc(request: &Parts) -> bool {
    const GRPC: &[u8] = b"application/grpc";
    // The cheap ones first: most refused requests are no such.
    if request.version != Version::HTTP_2 || request.method != Method::POST {
        return false;
    }
    let content_type = request.headers.get(CONTENT_TYPE);
    let Some((kind, rest)) = content_type.and_then(|t| t.as_bytes().split_at_checked(GRPC.len()))
    else {
        return false;
    };
    kind.eq_ignore_ascii_case(GRPC) && matches!(rest.first(), None | Some(b'+' | b';' | b' '))
}

/// Whether a client prefers HTML to JSON. Without a preference it is a program.
fn prefers_html(headers: &HeaderMap) -> bool {
    let (mut html, mut json) = (Preference::default(), Preference::default());
    for value in headers.get_all(ACCEPT) {
        for range in value.as_bytes().split(|byte| *byte == b',') {
            let mut parts = range.split(|byte| *byte == b';').map(<[u8]>::trim_ascii);
            let kind = parts.next().unwrap_or_default();
            let quality = parts.find_map(quality).unwrap_or(1000);
            let is = |name: &str| kind.eq_ignore_ascii_case(name.as_bytes());
            if is("*/*") {
                html.note(1, quality);
                json.note(1, quality);
            } else if is("text/*") {
                html.note(2, quality);
            } else if is("application/*") {
                json.note(2, quality);
            } else if is("text/html") {
                html.note(3, quality);
            } else if is("application/json") || is("application/problem+json") {
                json.note(3, quality);
            }
        }
    }
    html.quality > json.quality
}

/// How much a client wants a type: the quality of the most specific range, the best one of several.
#[derive(Default)]
struct Preference {
    specificity: u8,
    quality: u16,
}

impl Preference {
    fn note(&mut self, specificity: u8, quality: u16) {
        if (specificity, quality) > (self.specificity, self.quality) {
            (self.specificity, self.quality) = (specificity, quality);
        }
    }
}

/// The thousandths of a parameter `q=0.8`; `None` for another parameter. One that is malformed is 0.
fn quality(parameter: &[u8]) -> Option<u16> {
    let (name, value) = parameter.split_at_checked(2)?;
    if !name.eq_ignore_ascii_case(b"q=") {
        return None;
    }
    let (whole, fraction) = match value {
        [whole @ (b'0' | b'1')] => (whole, &[][..]),
        [whole @ (b'0' | b'1'), b'.', fraction @ ..] if fraction.len() <= 3 => (whole, fraction),
        _ => return Some(0),
    };
    let mut thousandths = u16::from(whole - b'0') * 1000;
    for (digit, weight) in fraction.iter().zip([100, 10, 1]) {
        if !digit.is_ascii_digit() {
            return Some(0);
        }
        thousandths += u16::from(digit - b'0') * weight;
    }
    Some(if thousandths > 1000 { 0 } else { thousandths })
}

#[cfg(test)]
mod tests {
    use super::*;

    fn accepting(values: &[&str]) -> HeaderMap {
        let mut headers = HeaderMap::new();
        for value in values {
            headers.append(ACCEPT, value.parse().unwrap());
        }
        headers
    }

    #[test]
    fn navigation_in_every_browser_receives_a_page() {
        for accept in [
            // Chrome, Firefox and Safari.
            "text/html,application/xhtml+xml,application/xml;q=0.9,image/avif,image/webp,image/apng,*/*;q=0.8,\
             application/signed-exchange;v=b3;q=0.7",
            "text/html,application/xhtml+xml,application/xml;q=0.9,image/avif,image/webp,*/*;q=0.8",
            "text/html,application/xhtml+xml,application/xml;q=0.9,*/*;q=0.8",
            "text/html",
            "TEXT/HTML ; charset=utf-8",
            "text/*;q=0.3, */*;q=0.2",
            "application/json;q=0.5, text/html;q=0.501",
            "*/*, application/*;q=0.1",
            "*/*, application/json;q=0",
        ] {
            assert!(prefers_html(&accepting(&[accept])), "{accept}");
        }
        let two_lines = ["application/json;q=0.2", "text/html"];
        assert!(prefers_html(&accepting(&two_lines)));
    }

    #[test]
    fn programs_receive_json() {
        for accept in [
            // fetch() and curl; axios; one that names both.
            "*/*",
            "application/json, text/plain, */*",
            "application/json, text/html",
            "text/html;q=0.8, application/json",
            "text/html;q=0.8, application/problem+json;q=0.9",
            "text/html;q=0, */*",
            "text/html;q=0",
            "text/html;q=2",
            "text/html;q=-1",
            "text/html;q=0.0001",
            "text/html;q=",
            "text/html;q=0.x",
            "text/htmlx",
            "text/plain",
            "image/avif,image/webp,*/*;q=0.8",
            "",
            ";;,,;q=1",
        ] {
            assert!(!prefers_html(&accepting(&[accept])), "{accept}");
        }
        assert!(!prefers_html(&HeaderMap::new()));
    }
}
