//! Built-in values that rules can count by.

use http::{header::USER_AGENT, request::Parts};
use percent_encoding::percent_decode_str;

use crate::logging;

/// [`Part::PATH`](crate::Part::PATH).
pub(crate) fn path(request: &Parts) -> Option<String> {
    #[cfg(feature = "axum")]
    if let Some(route) = request.extensions.get::<axum::extract::MatchedPath>() {
        return Some(route.as_str().to_owned());
    }
    Some(plain_path(request.uri.path()))
}

/// The path as the client sent it, for access rules.
pub(crate) fn sent_path(request: &Parts) -> &str {
    #[cfg(feature = "axum")]
    if let Some(sent) = request.extensions.get::<axum::extract::OriginalUri>() {
        return sent.0.path();
    }
    request.uri.path()
}

/// [`Part::USER_AGENT`](crate::Part::USER_AGENT).
pub(crate) fn user_agent(request: &Parts) -> Option<String> {
    let agent = request.headers.get(USER_AGENT)?;
    Some(String::from_utf8_lossy(agent.as_bytes()).into_owned())
}

/// A path that requests are compared with: literally, or segment by segment where it has parameters.
#[derive(Debug)]
pub(crate) struct PathPattern {
    plain: String,
    has_parameters: bool,
}

impl PathPattern {
    pub(crate) fn new(path: &str) -> Self {
        let plain = plain_path(path);
        let mut segments = plain.split('/');
        let has_parameters = segments.any(|segment| parameter(segment).is_some());
        let is_odd = |segment: &str| segment.starts_with(':') || segment.contains(['{', '}', '*']);
        if plain
            .split('/')
            .any(|segment| parameter(segment).is_none() && is_odd(segment))
        {
            logging::odd_route(path);
        }
        Self {
            plain,
            has_parameters,
        }
    }

    /// Whether this matches a path in canonical form.
    pub(crate) fn matches(&self, path: &str) -> bool {
        self.plain == path || (self.has_parameters && self.matches_segments(path))
    }

    fn matches_segments(&self, path: &str) -> bool {
        let mut segments = path.split('/');
        for part in self.plain.split('/') {
            match (parameter(part), segments.next()) {
                (Some(Parameter::Rest), Some(_)) => return true,
                (Some(Parameter::Segment), Some(_)) => {}
                (None, Some(segment)) if segment == part => {}
                _ => return false,
            }
        }
        segments.next().is_none()
    }
}

enum Parameter {
    /// `{name}`.
    Segment,
    /// `{*name}`.
    Rest,
}

fn parameter(segment: &str) -> Option<Parameter> {
    let name = segment.strip_prefix('{')?.strip_suffix('}')?;
    let is_name = |name: &str| !name.is_empty() && !name.contains(['{', '}', '*']);
    match name.strip_prefix('*') {
        Some(name) => is_name(name).then_some(Parameter::Rest),
        None => is_name(name).then_some(Parameter::Segment),
    }
}

/// A path in canonical form: percent-decoded, without empty segments.
pub(crate) fn plain_path(path: &str) -> String {
    let decoded = percent_decode_str(path).decode_utf8_lossy();
    let parts: Vec<_> = decoded.split('/').filter(|part| !part.is_empty()).collect();
    parts.join("/")
}
