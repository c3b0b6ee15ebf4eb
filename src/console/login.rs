//! Logging in with a token, and out.

use std::sync::Arc;

use axum::{
    Form,
    body::Body,
    extract::{OriginalUri, Request, State},
    response::{IntoResponse, Redirect, Response},
};
use http::{HeaderMap, HeaderValue, StatusCode, Uri, header};
use serde::Deserialize;

use super::{gate::Api, pages, sessions::Sessions};
use crate::LoginAttempt;

/// How long the form may be, in bytes: a token is in a header afterwards.
pub(super) const MAX_FORM: usize = 16 * 1024;

#[derive(Deserialize)]
pub(super) struct Login {
    token: String,
}

pub(super) async fn page(OriginalUri(uri): OriginalUri) -> Response {
    pages::login(&uri, StatusCode::OK, "")
}

/// Verifies the token as the API does, and begins a session.
pub(super) async fn log_in(
    State(api): State<Api>,
    OriginalUri(uri): OriginalUri,
    headers: HeaderMap,
    attempt: LoginAttempt,
    Form(login): Form<Login>,
) -> Response {
    let authorization = format!("Bearer {}", login.token.trim());
    let (Ok(authorization), Some(sessions)) = (HeaderValue::try_from(authorization), &api.sessions)
    else {
        attempt.failed();
        return refuse(&uri, &attempt);
    };
    let mut request = Request::new(Body::empty());
    request
        .headers_mut()
        .insert(header::AUTHORIZATION, authorization.clone());
    match api.status(request).await.status() {
        StatusCode::OK => {}
        StatusCode::UNAUTHORIZED => {
            attempt.failed();
            return refuse(&uri, &attempt);
        }
        StatusCode::FORBIDDEN => {
            attempt.succeeded();
            let message =
                "This token is valid, and its roles do not include read: use another one.";
            return pages::login(&uri, StatusCode::FORBIDDEN, message);
        }
        _ => {
            attempt.not_an_attempt();
            let message =
                "The store does not answer, so the console can show nothing: try again soon.";
            return pages::login(&uri, StatusCode::SERVICE_UNAVAILABLE, message);
        }
    }
    attempt.succeeded();
    let home = home(uri.path(), "login");
    // A session that this browser has already is replaced, and not left open.
    let _ = sessions.end(&headers, home);
    let Some(cookie) = sessions.begin(authorization, &headers, home) else {
        let message = "The system has no random numbers for a session.";
        return pages::login(&uri, StatusCode::INTERNAL_SERVER_ERROR, message);
    };
    ([(header::SET_COOKIE, cookie)], Redirect::to(home)).into_response()
}

pub(super) async fn log_out(
    State(sessions): State<Arc<Sessions>>,
    OriginalUri(uri): OriginalUri,
    headers: HeaderMap,
) -> Response {
    let home = home(uri.path(), "logout");
    let cookie = sessions.end(&headers, home);
    let cookie = cookie.map(|cookie| [(header::SET_COOKIE, cookie)]);
    let login = Redirect::to(&uri.path().replace("logout", "login"));
    (cookie, login).into_response()
}

/// The path of the console, of which this is a page.
fn home<'a>(path: &'a str, page: &str) -> &'a str {
    match path
        .strip_suffix(page)
        .map(|path| path.trim_end_matches('/'))
    {
        Some(path) if !path.is_empty() => path,
        _ => "/",
    }
}

fn refuse(uri: &Uri, attempt: &LoginAttempt) -> Response {
    let message = match attempt.remaining() {
        Some(0) => {
            "This token is not known. Further attempts from this address are refused for a minute."
        }
        Some(1) => "This token is not known. One attempt is left.",
        _ => "This token is not known.",
    };
    pages::login(uri, StatusCode::UNAUTHORIZED, message)
}
