//! The extractor and responses for axum.

use axum::{
    body::Body,
    extract::{FromRequestParts, OptionalFromRequestParts},
    response::{IntoResponse, Response},
};
use http::{StatusCode, request::Parts};

use crate::{
    LoginAttempt, ReserveError, events,
    response::{Denial, MISCONFIGURED, ProblemJson, Respond, Unrendered},
};

impl<S: Send + Sync> FromRequestParts<S> for LoginAttempt {
    type Rejection = MissingLayer;

    async fn from_request_parts(parts: &mut Parts, _: &S) -> Result<Self, MissingLayer> {
        attempt(parts).ok_or(MissingLayer)
    }
}

/// `None` for requests that the layer does not count.
impl<S: Send + Sync> OptionalFromRequestParts<S> for LoginAttempt {
    type Rejection = std::convert::Infallible;

    async fn from_request_parts(
        parts: &mut Parts,
        _: &S,
    ) -> Result<Option<Self>, std::convert::Infallible> {
        Ok(attempt(parts))
    }
}

/// The attempt of a request. It keeps the request's head, since the handler may return a denial.
fn attempt(parts: &Parts) -> Option<LoginAttempt> {
    let attempt: LoginAttempt = parts.extensions.get().cloned()?;
    attempt.keep_head(parts);
    Some(attempt)
}

/// The rejection of a handler that takes a [`LoginAttempt`] on a route without the layer. Its text is for the
/// log; the client receives a general sentence.
#[derive(Clone, Copy, Debug)]
pub struct MissingLayer;

impl std::fmt::Display for MissingLayer {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.write_str(
            "this handler takes a `LoginAttempt`, but its route is not behind a \
             `LoginRateLimitLayer`, or the layer's filter leaves this request out: add \
             `.layer(LoginRateLimitLayer::new(…))` to the route",
        )
    }
}

impl std::error::Error for MissingLayer {}

impl IntoResponse for MissingLayer {
    fn into_response(self) -> Response {
        events::missing_layer(&self);
        (StatusCode::INTERNAL_SERVER_ERROR, MISCONFIGURED).into_response()
    }
}

/// Rendered by the responder of the layer around the handler, if the handler takes a [`LoginAttempt`]; else with
/// [`ProblemJson`].
impl IntoResponse for Denial {
    fn into_response(self) -> Response {
        let (parts, ()) = http::Request::new(()).into_parts();
        let mut response = ProblemJson.respond(&self, &parts).map(Body::from);
        response.extensions_mut().insert(self);
        response.extensions_mut().insert(Unrendered);
        response
    }
}

/// For handlers that [identify](LoginAttempt::identify) the user: `attempt.identify(&user).await?`
/// responds as the layer does, by its own responder.
impl IntoResponse for ReserveError {
    fn into_response(self) -> Response {
        Denial::from(self).into_response()
    }
}
