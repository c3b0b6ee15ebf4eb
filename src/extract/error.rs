//! The error of extractors.

use std::{error::Error, fmt};

/// The client's address or the user of a request is unknown or ambiguous. The request is denied.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct ExtractError {
    kind: ExtractErrorKind,
    message: &'static str,
}

/// What has to change before an extractor succeeds.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
#[non_exhaustive]
pub enum ExtractErrorKind {
    /// The request: it names two users, for example, and the handler might choose another one than the one
    /// that was counted.
    BadRequest,
    /// The media type of the request's body, which is not the one that the extractor parses.
    UnsupportedMediaType,
    /// The configuration of the server.
    Misconfigured,
    /// Nothing: a lookup failed, and a retry may succeed.
    Unavailable,
}

impl ExtractError {
    /// An error in the request. The client receives the message.
    #[must_use]
    pub const fn bad_request(message: &'static str) -> Self {
        let kind = ExtractErrorKind::BadRequest;
        Self { kind, message }
    }

    /// A body of another media type than the extractor parses. The client receives the message.
    #[must_use]
    pub const fn unsupported_media_type(message: &'static str) -> Self {
        let kind = ExtractErrorKind::UnsupportedMediaType;
        Self { kind, message }
    }

    /// An error in the configuration of the server. The message states what to change and where. It is
    /// logged; the client receives a general sentence.
    #[must_use]
    pub const fn misconfigured(message: &'static str) -> Self {
        let kind = ExtractErrorKind::Misconfigured;
        Self { kind, message }
    }

    /// A lookup that failed. The client receives the message.
    #[must_use]
    pub const fn unavailable(message: &'static str) -> Self {
        let kind = ExtractErrorKind::Unavailable;
        Self { kind, message }
    }

    /// What has to change before the extractor succeeds.
    pub const fn kind(&self) -> ExtractErrorKind {
        self.kind
    }
}

impl fmt::Display for ExtractError {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(self.message)
    }
}

impl Error for ExtractError {}
