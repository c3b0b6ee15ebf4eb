//! Denials as pages for people.

use std::{
    fmt::{self, Write as _},
    sync::Arc,
    time::Duration,
};

use bytes::Bytes;
use http::{
    HeaderValue, Response,
    header::{CACHE_CONTROL, CONTENT_SECURITY_POLICY, CONTENT_TYPE, RETRY_AFTER},
    request::Parts,
};
use uuid::Uuid;

use super::{Denial, DenialKind, English, Respond, Words, denial::nothing_kept};
use crate::{
    Period, Reason,
    algorithm::Millis,
    clock::{Clock, SystemClock, to_millis},
    timestamp,
};

/// Renders denials as a small HTML page: what happened, and when to try again.
///
/// The page needs no script, loads nothing and follows the light or dark scheme of the system. Of a block it has the
/// time that is left, in words, and the moment when it lifts, in UTC; of a day at most it also counts down, by style
/// alone, in browsers that can.
///
/// Its own `Content-Security-Policy` allows its style sheet by hash, the seconds of the countdown by a nonce, and
/// nothing else. An app that adds a stricter one of its own loses the style and no content.
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

    /// Sets the words of the page.
    #[must_use]
    pub fn with_words(mut self, words: impl Words) -> Self {
        self.words = Arc::new(words);
        self
    }

    fn render(&self, denial: &Denial, now: Millis, nonce: &str) -> String {
        let words = &*self.words;
        let wait = match denial.kind() {
            DenialKind::Refused(refusal) => words.period(refusal.lifts()),
            DenialKind::Denied(denied) => words.period(denied.lifts()),
            _ => denial
                .retry_after()
                .and_then(|seconds| words.period(Period::Of(Duration::from_secs(seconds)))),
        };
        let (heading, advice) = (words.heading(denial), words.advice(denial, wait.as_deref()));
        let (before, wait, after) = match wait
            .as_deref()
            .map(|wait| (wait, advice.split_once(wait)))
        {
            Some((wait, Some((before, after)))) if !wait.is_empty() => (before, Some(wait), after),
            _ => (advice.as_str(), None, ""),
        };
        let lifts = lifts(denial);
        let mut page = String::with_capacity(STYLE.len() + 1536);
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
        page.push_str("</style>\n");
        if let Some(seconds) = lifts.and_then(countdown) {
            let _ = writeln!(
                page,
                "<style nonce=\"{nonce}\">.left{{--wait:{seconds};display:var(--shown,none)}}</style>"
            );
        }
        page.push_str("</head>\n<body>\n<main>\n");
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
        page.push_str("</p>\n");
        if let Some(lifts) = lifts {
            page.push_str("<p class=\"when\">");
            if countdown(lifts).is_some() {
                // Drawn by the style. The sentence above has it for screen readers, once and not each second.
                page.push_str("<span class=\"left\" aria-hidden=\"true\"></span>");
            }
            push_moment(&mut page, now.saturating_add(to_millis(lifts)));
            page.push_str("</p>\n");
        }
        page.push_str("</main>\n</body>\n</html>\n");
        page
    }
}

/// How long a block lasts that the page has the end of: not the moment for which a client that is only busy waits.
fn lifts(denial: &Denial) -> Option<Duration> {
    let lifts = match denial.kind() {
        DenialKind::Refused(refusal) if refusal.reason() == Reason::Blocked => refusal.lifts(),
        DenialKind::Denied(denied) => denied.lifts(),
        _ => return None,
    };
    lifts.as_duration().filter(|lifts| !lifts.is_zero())
}

/// The seconds of a countdown, if there is one. Rounded up, so that it does not end too early.
fn countdown(lifts: Duration) -> Option<u64> {
    let seconds = to_millis(lifts).div_ceil(1000);
    (seconds <= MAX_COUNTDOWN).then_some(seconds)
}

/// Writes a moment, for people to the next minute.
fn push_moment(page: &mut String, moment: Millis) {
    let moment = moment.min(timestamp::MAX - 60_000);
    let exact = timestamp::to_text(moment.next_multiple_of(1000));
    let minute = timestamp::to_text(moment.next_multiple_of(60_000));
    let (date, time) = minute.split_once('T').unwrap_or((&minute, ""));
    let time = time.get(..5).unwrap_or(time);
    // Writing to a string can't fail.
    let _ = write!(page, "<time datetime=\"{exact}\">{date} {time} UTC</time>");
}

impl Default for HtmlPage {
    fn default() -> Self {
        Self::new()
    }
}

impl Respond for HtmlPage {
    fn keep(&self, _: &Parts) -> Parts {
        nothing_kept()
    }

    fn respond(&self, denial: &Denial, _: &Parts) -> Response<Bytes> {
        let nonce = Uuid::new_v4().simple().to_string();
        let page = self.render(denial, SystemClock.now(), &nonce);
        let mut response = html(denial, page.into());
        let policy = if lifts(denial).and_then(countdown).is_some() {
            let policy = POLICY.replacen("'; base-uri", &format!("' 'nonce-{nonce}'; base-uri"), 1);
            HeaderValue::try_from(policy).unwrap_or_else(|_| HeaderValue::from_static(POLICY))
        } else {
            HeaderValue::from_static(POLICY)
        };
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
const POLICY: &str = "default-src 'none'; style-src 'sha256-CTF20c05poWGJ0vHUrxC1gYI0+caALNpneqgeVw58pc='; base-uri 'none'; \
     form-action 'none'; frame-ancestors 'none'";

/// The longest time that is counted down, in seconds. Of more than a day, seconds are of no interest.
const MAX_COUNTDOWN: u64 = 24 * 60 * 60;

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

    /// 2026-11-18T07:00:00.123Z.
    const NOW: Millis = 1_794_985_200_123;

    fn render(page: &HtmlPage, denial: &Denial) -> String {
        page.render(denial, NOW, "0123456789abcdef")
    }

    #[test]
    fn the_end_of_a_block_is_counted_down_and_has_a_date() {
        let page = render(&HtmlPage::new(), &blocked(Period::days(1)));
        for part in [
            "<style nonce=\"0123456789abcdef\">.left{--wait:86400;",
            "<span class=\"left\" aria-hidden=\"true\"></span>",
            "<time datetime=\"2026-11-19T07:00:01Z\">2026-11-19 07:01 UTC</time>",
        ] {
            assert!(page.contains(part), "{part}: {page}");
        }
        // Rounded up: a client that tries when it ends is admitted.
        let page = render(
            &HtmlPage::new(),
            &blocked(Period::Of(Duration::from_millis(1))),
        );
        assert!(page.contains("--wait:1;"), "{page}");
        let page = render(&HtmlPage::new(), &blocked(Period::days(7)));
        assert!(page.contains(">2026-11-25 07:01 UTC</time>"), "{page}");
        assert!(
            !page.contains("nonce") && !page.contains("\"left\""),
            "{page}"
        );
        let ages = Period::Of(Duration::from_secs(u64::MAX / 2000));
        let page = render(&HtmlPage::new(), &blocked(ages));
        assert!(page.contains(">9999-12-31 23:59 UTC</time>"), "{page}");
        let busy = Refusal::new("address".into(), Standing::new(5, 5, State::Busy)).unwrap();
        let busy = Denial::new(DenialKind::Refused(busy));
        for denial in [
            blocked(Period::Forever),
            busy,
            Denial::new(DenialKind::NoUser),
        ] {
            let page = render(&HtmlPage::new(), &denial);
            assert!(!page.contains("<time") && !page.contains("nonce"), "{page}");
        }
    }

    #[test]
    fn the_policy_allows_the_countdown_of_this_page_and_no_other() {
        let request = http::Request::new(()).into_parts().0;
        let policy_and_page = |denial: &Denial| {
            let response = HtmlPage::new().respond(denial, &request);
            let policy = response.headers()[CONTENT_SECURITY_POLICY]
                .to_str()
                .unwrap();
            let page = String::from_utf8(response.body().to_vec()).unwrap();
            (policy.to_owned(), page)
        };
        let mut nonces = std::collections::HashSet::new();
        for _ in 0..100 {
            let (policy, page) = policy_and_page(&blocked(Period::days(1)));
            let (_, nonce) = policy.split_once("' 'nonce-").expect("a nonce");
            let (nonce, rest) = nonce.split_once('\'').unwrap();
            assert!(rest.starts_with("; base-uri 'none'"), "{policy}");
            assert!(
                page.contains(&format!("<style nonce=\"{nonce}\">")),
                "{page}"
            );
            assert!(nonces.insert(nonce.to_owned()) && nonce.len() == 32);
        }
        let (policy, page) = policy_and_page(&blocked(Period::Forever));
        assert_eq!(policy, POLICY);
        assert!(!page.contains("nonce"));
    }

    #[test]
    fn the_policy_has_the_hash_of_the_style() {
        let digest = ring::digest::digest(&ring::digest::SHA256, STYLE.as_bytes());
        let hash = BASE64_STANDARD.encode(digest);
        assert!(POLICY.contains(&format!("'sha256-{hash}'")), "{hash}");
        let page = render(&HtmlPage::new(), &blocked(Period::days(1)));
        assert_eq!(page.matches("<style").count(), 2);
        for forbidden in ["<script", "style=", "onload", "http:", "https:", "url("] {
            assert!(!page.contains(forbidden), "{forbidden}");
        }
    }

    #[test]
    fn the_page_tells_what_is_left_and_emphasizes_it() {
        let left = Period::Of(Duration::from_millis(601_200_000));
        let page = render(&HtmlPage::new(), &blocked(left));
        assert!(page.contains("<h1>Too many failed attempts</h1>"));
        assert!(
            page.contains("try again in <strong>6 days 23 hours</strong>."),
            "{page}"
        );
        let page = render(&HtmlPage::new(), &blocked(Period::Forever));
        assert!(
            page.contains("until the operator") && !page.contains("<strong>"),
            "{page}"
        );
        let busy = Refusal::new("address".into(), Standing::new(5, 5, State::Busy)).unwrap();
        let page = render(&HtmlPage::new(), &Denial::new(DenialKind::Refused(busy)));
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
            let page = render(&HtmlPage::new().with_words(Hostile), &denial);
            for forbidden in ["<script", "<img", "<b>", "<1>"] {
                assert!(!page.contains(forbidden), "{page}");
            }
        }
    }
}
