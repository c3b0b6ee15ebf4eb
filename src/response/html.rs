//! Denials as pages for people.

use std::{fmt, sync::Arc};

use bytes::Bytes;
use http::{
    HeaderValue, Response,
    header::{CACHE_CONTROL, CONTENT_SECURITY_POLICY, CONTENT_TYPE, RETRY_AFTER},
    request::Parts,
};

use super::{Denial, DenialKind, English, Respond, Words};
use crate::Period;

/// Renders denials as a small HTML page: what happened, and when to try again.
///
/// The page needs no script, loads nothing and follows the light or dark scheme of the system. Its own
/// `Content-Security-Policy` allows its one style sheet by hash, and nothing else. An app that adds a stricter
/// one of its own loses the style and no content.
///
/// The text is [`English`] unless [`Words`] are set; [`Words`] has an example. To choose them for each request,
/// respond with one of several pages:
///
/// ```
/// # use tower_login_rate_limit::response::{ByAccept, Denial, HtmlPage, Respond};
/// # let (english, german) = (HtmlPage::new(), HtmlPage::new());
/// let responder = ByAccept::new().with_html(move |denial: &Denial, request: &http::request::Parts| {
///     let language = request.headers.get(http::header::ACCEPT_LANGUAGE);
///     let page = match language {
///         Some(language) if language.as_bytes().starts_with(b"de") => &german,
///         _ => &english,
///     };
///     page.respond(denial, request)
/// });
/// ```
#[derive(Clone, Debug)]
pub struct HtmlPage {
    words: Arc<dyn Words>,
}

impl HtmlPage {
    /// The page in English.
    #[must_use]
    pub fn new() -> Self {
        Self {
            words: Arc::new(English),
        }
    }

    /// Sets what the page says.
    #[must_use]
    pub fn with_words(mut self, words: impl Words) -> Self {
        self.words = Arc::new(words);
        self
    }

    fn render(&self, denial: &Denial) -> String {
        let words = &*self.words;
        let wait = match denial.kind() {
            DenialKind::Refused(refusal) => words.period(refusal.lifts()),
            DenialKind::Denied(denied) => words.period(denied.lifts()),
            _ => denial.retry_after().and_then(|seconds| {
                words.period(Period::Of(std::time::Duration::from_secs(seconds)))
            }),
        };
        let (heading, advice) = (words.heading(denial), words.advice(denial, wait.as_deref()));
        let (before, wait, after) = match wait
            .as_deref()
            .map(|wait| (wait, advice.split_once(wait)))
        {
            Some((wait, Some((before, after)))) if !wait.is_empty() => (before, Some(wait), after),
            _ => (advice.as_str(), None, ""),
        };
        let mut page = String::with_capacity(STYLE.len() + 1024);
        page.push_str("<!doctype html>\n<html lang=\"");
        escape(&mut page, words.language());
        page.push_str(
            "\">\n<head>\n<meta charset=\"utf-8\">\n\
             <meta name=\"viewport\" content=\"width=device-width, initial-scale=1\">\n\
             <meta name=\"robots\" content=\"noindex\">\n<title>",
        );
        escape(&mut page, &heading);
        page.push_str("</title>\n<style>");
        page.push_str(STYLE);
        page.push_str("</style>\n</head>\n<body>\n<main>\n");
        page.push_str(CLOCK);
        page.push_str("\n<h1>");
        escape(&mut page, &heading);
        page.push_str("</h1>\n<p>");
        escape(&mut page, before);
        if let Some(wait) = wait {
            page.push_str("<strong>");
            escape(&mut page, wait);
            page.push_str("</strong>");
        }
        escape(&mut page, after);
        page.push_str("</p>\n</main>\n</body>\n</html>\n");
        page
    }
}

impl Default for HtmlPage {
    fn default() -> Self {
        Self::new()
    }
}

impl Respond for HtmlPage {
    fn respond(&self, denial: &Denial, _: &Parts) -> Response<Bytes> {
        let mut response = html(denial, self.render(denial).into());
        let policy = HeaderValue::from_static(POLICY);
        response
            .headers_mut()
            .insert(CONTENT_SECURITY_POLICY, policy);
        response
    }
}

/// Renders denials as HTML of the app: a closure that returns the page. The status, `Retry-After`,
/// `Content-Type` and `Cache-Control: no-store` are added. [`ByAccept`](super::ByAccept) has an example.
///
/// Escape what comes from outside; [`Denial::detail`] may quote the request.
#[derive(Clone)]
pub struct HtmlTemplate<F> {
    template: F,
}

impl<F, R> HtmlTemplate<F>
where
    F: Fn(&Denial, &Parts) -> R + Send + Sync + 'static,
    R: Into<Bytes>,
{
    /// A template that is rendered by this closure.
    pub const fn new(template: F) -> Self {
        Self { template }
    }
}

impl<F, R> Respond for HtmlTemplate<F>
where
    F: Fn(&Denial, &Parts) -> R + Send + Sync + 'static,
    R: Into<Bytes>,
{
    fn respond(&self, denial: &Denial, request: &Parts) -> Response<Bytes> {
        html(denial, (self.template)(denial, request).into())
    }
}

impl<F> fmt::Debug for HtmlTemplate<F> {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("HtmlTemplate").finish_non_exhaustive()
    }
}

fn html(denial: &Denial, body: Bytes) -> Response<Bytes> {
    let mut response = Response::new(body);
    *response.status_mut() = denial.status();
    let headers = response.headers_mut();
    let kind = HeaderValue::from_static("text/html; charset=utf-8");
    headers.insert(CONTENT_TYPE, kind);
    headers.insert(CACHE_CONTROL, HeaderValue::from_static("no-store"));
    if let Some(seconds) = denial.retry_after() {
        headers.insert(RETRY_AFTER, seconds.into());
    }
    response
}

const STYLE: &str = include_str!("page.css");

/// Allows the style by its hash, which a test recomputes, and nothing else.
const POLICY: &str = "default-src 'none'; style-src 'sha256-m4c11HIDiM36QlTYWIO0K2cD4MA43c8Vlk3ehKBFQqg='; base-uri 'none'; \
     form-action 'none'; frame-ancestors 'none'";

/// Decoration, so hidden from screen readers.
const CLOCK: &str = "<svg viewBox=\"1.8 1.8 20.4 20.4\" fill=\"none\" stroke=\"currentColor\" stroke-width=\"1.75\" \
     stroke-linecap=\"round\" stroke-linejoin=\"round\" aria-hidden=\"true\" focusable=\"false\">\
     <circle cx=\"12\" cy=\"12\" r=\"9.25\"/><path d=\"M12 7v5l3.25 2\"/></svg>";

fn escape(page: &mut String, text: &str) {
    for c in text.chars() {
        match c {
            '&' => page.push_str("&amp;"),
            '<' => page.push_str("&lt;"),
            '>' => page.push_str("&gt;"),
            '"' => page.push_str("&quot;"),
            '\'' => page.push_str("&#39;"),
            c => page.push(c),
        }
    }
}

#[cfg(test)]
mod tests {
    use std::time::Duration;

    use base64::{Engine, prelude::BASE64_STANDARD};

    use super::*;
    use crate::{
        Refusal,
        algorithm::{Standing, State},
        response::Unit,
    };

    fn blocked(lifts: Period) -> Denial {
        let standing = Standing::new(5, 5, State::Blocked { lifts });
        Denial::new(DenialKind::Refused(
            Refusal::new("address".into(), standing).unwrap(),
        ))
    }

    #[test]
    fn the_policy_has_the_hash_of_the_style() {
        let digest = ring::digest::digest(&ring::digest::SHA256, STYLE.as_bytes());
        let hash = BASE64_STANDARD.encode(digest);
        assert!(POLICY.contains(&format!("'sha256-{hash}'")), "{hash}");
        let page = HtmlPage::new().render(&blocked(Period::days(1)));
        assert_eq!(page.matches("<style>").count(), 1);
        for forbidden in ["<script", "style=", "onload", "http:", "https:", "url("] {
            assert!(!page.contains(forbidden), "{forbidden}");
        }
    }

    #[test]
    fn the_page_tells_what_is_left_and_emphasizes_it() {
        let left = Period::Of(Duration::from_millis(601_200_000));
        let page = HtmlPage::new().render(&blocked(left));
        assert!(page.contains("<h1>Too many failed attempts</h1>"));
        assert!(
            page.contains("try again in <strong>6 days 23 hours</strong>."),
            "{page}"
        );
        let page = HtmlPage::new().render(&blocked(Period::Forever));
        assert!(
            page.contains("until the operator") && !page.contains("<strong>"),
            "{page}"
        );
        let busy = Refusal::new("address".into(), Standing::new(5, 5, State::Busy)).unwrap();
        let page = HtmlPage::new().render(&Denial::new(DenialKind::Refused(busy)));
        assert!(
            page.contains("at once") && page.contains("in a moment"),
            "{page}"
        );
    }

    /// Marks all of its words.
    struct Hostile;

    impl Words for Hostile {
        fn language(&self) -> &str {
            "\"><script>"
        }
        fn count(&self, n: u64, _: Unit) -> String {
            format!("<{n}>")
        }
        fn heading(&self, _: &Denial) -> String {
            "</title><script>".to_owned()
        }
        fn advice(&self, denial: &Denial, wait: Option<&str>) -> String {
            format!("<b>{}</b> {}&", wait.unwrap_or("'"), denial.detail())
        }
    }

    #[test]
    fn words_are_escaped() {
        let error = crate::extract::ExtractError::bad_request("<img src=x>");
        for denial in [
            Denial::new(DenialKind::AmbiguousUser(error)),
            blocked(Period::days(1)),
            blocked(Period::Forever),
        ] {
            let page = HtmlPage::new().with_words(Hostile).render(&denial);
            for forbidden in ["<script", "<img", "<b>", "<1>"] {
                assert!(!page.contains(forbidden), "{page}");
            }
        }
    }
}
