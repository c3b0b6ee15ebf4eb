//! Handlers on routes without the layer.

use std::{error::Error, fmt};

use http::Extensions;

use crate::LoginAttempt;

/// A handler asks for a [`LoginAttempt`] on a route without the layer. The text is for the log; a client of axum or
/// tonic receives a general sentence.
#[derive(Clone, Copy, Debug)]
pub struct MissingLayer;

impl LoginAttempt {
    /// The attempt of a request, from its extensions: for handlers without extractors.
    ///
    /// ```
    /// use tower_login_rate_limit::{LoginAttempt, MissingLayer};
    ///
    /// fn handle(request: &http::Request<()>) -> Result<(), MissingLayer> {
    ///     let attempt = LoginAttempt::of(request.extensions())?;
    ///     attempt.failed();
    ///     Ok(())
    /// }
    /// ```
    ///
    /// # Errors
    ///
    /// The request did not pass the layer, or its filter leaves the request out.
    pub fn of(extensions: &Extensions) -> Result<Self, MissingLayer> {
        extensions.get::<Self>().cloned().ok_or(MissingLayer)
    }
}

impl fmt::Display for MissingLayer {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(
            "this handler takes a `LoginAttempt`, but its route is not behind a \
             `LoginRateLimitLayer`, or the layer's filter leaves this request out: add \
             `.layer(LoginRateLimitLayer::new(…))` to the route, or take an `Option<LoginAttempt>`",
        )
    }
}

impl Error for MissingLayer {}

#[cfg(feature = "tonic")]
impl From<MissingLayer> for tonic::Status {
    fn from(error: MissingLayer) -> Self {
        crate::logging::missing_layer(&error);
        Self::internal(crate::response::MISCONFIGURED)
    }
}
