//! Built-in values that rules can count by.

use http::{header::USER_AGENT, request::Parts};
use percent_encoding::percent_decode_str;

/// [`Part::PATH`](crate::Part::PATH).
pub(crate) fn path(request: &Parts) -> Option<String> {
    #[cfg(feature = "axum")]
    if let Some(route) = request.extensions.get::<axum::extract::MatchedPath>() {
        return Some(route.as_str().to_owned());
    }
    Some(plain_path(request.uri.path()))
}

/// [`Part::USER_AGENT`](crate::Part::USER_AGENT).
pub(crate) fn user_agent(request: &Parts) -> Option<String> {
    let agent = request.headers.get(USER_AGENT)?;
    Some(String::from_utf8_lossy(agent.as_bytes()).into_owned())
}

/// A path in canonical form: percent-decoded, without empty segments.
pub(crate) fn plain_path(path: &str) -> String {
    let decoded = percent_decode_str(path).decode_utf8_lossy();
    let parts: Vec<_> = decoded.split('/').filter(|part| !part.is_empty()).collect();
    parts.join("/")
}
