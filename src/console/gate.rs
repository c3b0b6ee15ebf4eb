//! The API below the console's own path, authorized by a session.

use std::sync::Arc;

use axum::{
    Router,
    body::Body,
    extract::{Request, State},
    middleware::Next,
    response::{IntoResponse, Response},
};
use futures_util::StreamExt;
use http::{HeaderValue, StatusCode, header};
use serde_json::json;
use tower_service::Service;

use super::sessions::Sessions;

/// What the page sends with requests that no person has asked for.
const BACKGROUND: &str = "login-console-background";

/// The API, and the sessions that it is reached by; `None` if the app authorizes.
#[derive(Clone)]
pub(super) struct Api {
    router: Router,
    pub(super) sessions: Option<Arc<Sessions>>,
}

impl Api {
    pub(super) const fn new(router: Router, sessions: Option<Arc<Sessions>>) -> Self {
        Self { router, sessions }
    }

    /// The answer of the API to who the client of this request is.
    pub(super) async fn status(&self, mut request: Request) -> Response {
        *request.uri_mut() = http::Uri::from_static("/v1/admin/status");
        let Ok(response) = self.router.clone().call(request).await;
        response
    }
}

/// Passes requests of the page on to the API with the `Authorization` of their session.
pub(super) async fn pass(State(api): State<Api>, mut request: Request, next: Next) -> Response {
    if !request.uri().path().starts_with("/v1/admin/") {
        return problem(
            StatusCode::NOT_FOUND,
            "Not found",
            "Below the console is the administration API only; the whole API is served by `Server`.",
        );
    }
    let Some(sessions) = api.sessions else {
        return next.run(request).await;
    };
    let is_used = !request.headers().contains_key(BACKGROUND)
        && !request.uri().path().ends_with("/events/live");
    let Some((id, authorization)) = sessions.find(request.headers(), is_used) else {
        return problem(
            StatusCode::UNAUTHORIZED,
            "Not logged in",
            "There is no session, or it has ended: log in to the console.",
        );
    };
    request.headers_mut().remove(header::COOKIE);
    request
        .headers_mut()
        .insert(header::AUTHORIZATION, authorization);
    let response = next.run(request).await;
    let kind = response.headers().get(header::CONTENT_TYPE);
    if kind.is_none_or(|kind| !kind.as_bytes().starts_with(b"text/event-stream")) {
        return response;
    }
    // A stream lasts no longer than its session.
    let ended = async move { sessions.ended(id).await };
    response.map(|body| Body::from_stream(body.into_data_stream().take_until(Box::pin(ended))))
}

pub(super) fn problem(status: StatusCode, title: &str, detail: &str) -> Response {
    let body = json!({"title": title, "status": status.as_u16(), "detail": detail}).to_string();
    let mut response = (status, body).into_response();
    let kind = HeaderValue::from_static("application/problem+json");
    response.headers_mut().insert(header::CONTENT_TYPE, kind);
    response
}
