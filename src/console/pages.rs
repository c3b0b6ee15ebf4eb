//! The page, the login page, and the headers that protect them.

use axum::{
    extract::{OriginalUri, Request, State},
    response::{Html, IntoResponse, Redirect, Response},
};
use http::{HeaderName, HeaderValue, StatusCode, Uri, header};

use super::{
    assets::{self, LOGIN, SHELL},
    gate::Api,
};

/// Nothing but what this server sends, no script or style in the page, and no page around it.
const POLICY: &str = "default-src 'none'; script-src 'self'; style-src 'self'; connect-src 'self'; \
                      img-src 'self' data:; form-action 'self'; frame-ancestors 'none'; base-uri 'none'";

const PROTECTION: [(HeaderName, &str); 5] = [
    (header::CONTENT_SECURITY_POLICY, POLICY),
    (header::X_CONTENT_TYPE_OPTIONS, "nosniff"),
    // With `no-referrer`, forms are posted with the origin `null`, which could be any site's.
    (header::REFERRER_POLICY, "same-origin"),
    (header::X_FRAME_OPTIONS, "DENY"),
    (
        HeaderName::from_static("cross-origin-opener-policy"),
        "same-origin",
    ),
];

/// Adds the headers. What the layer of the login sends has a policy of its own, which allows its style by a hash.
pub(super) async fn protect(mut response: Response) -> Response {
    let headers = response.headers_mut();
    for (name, value) in PROTECTION {
        headers
            .entry(name)
            .or_insert_with(|| HeaderValue::from_static(value));
    }
    headers
        .entry(header::CACHE_CONTROL)
        .or_insert_with(|| HeaderValue::from_static("no-store"));
    response
}

/// The page, for operators only.
pub(super) async fn shell(
    State(api): State<Api>,
    OriginalUri(uri): OriginalUri,
    request: Request,
) -> Response {
    let base = base(uri.path());
    if let Some(sessions) = &api.sessions {
        return match sessions.find(request.headers(), true) {
            Some(_) => page(&base, ""),
            None => Redirect::to(&format!("{base}login")).into_response(),
        };
    }
    let status = api.status(request).await.status();
    if status == StatusCode::UNAUTHORIZED || status == StatusCode::FORBIDDEN {
        let text = "You are not logged in, or you may not use this console.";
        return (status, text).into_response();
    }
    page(&base, " data-without-login")
}

/// The page of a console at this path, whose root element has these attributes.
fn page(base: &str, attributes: &str) -> Response {
    let page = SHELL.replace("{base}", base);
    Html(page.replace("{attributes}", attributes)).into_response()
}

/// The path of the console, with a slash at its end, for an attribute in HTML. A router does not know where it is
/// nested, and the path may contain what the client has chosen.
fn base(path: &str) -> String {
    let path = path.trim_end_matches('/');
    let path = path.replace('&', "&amp;").replace('"', "%22");
    format!("{path}/")
}

/// A file of the page, or the page itself where a slash ends the path of a nested router.
pub(super) async fn file(api: State<Api>, uri: OriginalUri, request: Request) -> Response {
    match request.uri().path() {
        "/" | "" => shell(api, uri, request).await,
        path => assets::serve(path, request.headers()),
    }
}

/// The login page with a message, which is one of this crate's own.
pub(super) fn login(uri: &Uri, status: StatusCode, message: &str) -> Response {
    let base = base(uri.path().trim_end_matches("login"));
    let page = LOGIN.replace("{base}", &base);
    let page = page.replace("{message}", message);
    (status, Html(page)).into_response()
}
