//! The extractor and responses for axum.

use axum::{
    body::Body,
    extract::{FromRequestParts, OptionalFromRequestParts},
    response::{IntoResponse, Response},
};
use http::{StatusCode, request::Parts};

use crate::{
    LoginAttempt, MissingLayer, ReserveError, logging,
    response::{Denial, MISCONFIGURED, ProblemJson, Respond, Unrendered},
};

impl<S: Send + Sync> FromRequestParts<S> for LoginAttempt {
    type Rejection = MissingLayer;

    async fn from_request_parts(parts: &mut Parts, _: &S) -> Result<Self, MissingLayer> {
        attempt(parts)
    }
}

/// `None` for requests that the layer does not count.
impl<S: Send + Sync> OptionalFromRequestParts<S> for LoginAttempt {
    type Rejection = std::convert::Infallible;

    async fn from_request_parts(
        parts: &mut Parts,
        _: &S,
    ) -> Result<Option<Self>, std::convert::Infallible> {
        Ok(attempt(parts).ok())
    }
}

/// The attempt of a request. It keeps what the responder reads of the request, since the handler may return a denial.
fn attempt(parts: &Parts) -> Result<LoginAttempt, MissingLayer> {
    let attempt = LoginAttempt::of(&parts.extensions)?;
    attempt.keep_head(parts);
    Ok(attempt)
}

impl IntoResponse for MissingLayer {
    fn into_response(self) -> Response {
        logging::missing_layer(&self);
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
