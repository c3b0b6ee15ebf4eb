//! Bodies that the layer has read.

use bytes::Bytes;
use http::request::Parts;

#[cfg(feature = "json")]
use super::json::{is_json, json_field};
use super::{
    ExtractBodyUser, ExtractError, ExtractErrorKind,
    body::{form_field, is_form, media_type},
    user::Extracted,
};
use crate::MaybeReady;

/// A request whose body was read, for
/// [`with_body_filter`](crate::LoginRateLimitLayer::with_body_filter).
#[derive(Clone, Copy, Debug)]
pub struct ReadBody<'a> {
    request: &'a Parts,
    bytes: &'a Bytes,
}

impl<'a> ReadBody<'a> {
    pub(crate) const fn new(request: &'a Parts, bytes: &'a Bytes) -> Self {
        Self { request, bytes }
    }

    /// The head of the request.
    pub const fn request(&self) -> &'a Parts {
        self.request
    }

    /// The whole body.
    pub const fn bytes(&self) -> &'a Bytes {
        self.bytes
    }

    /// The value of a field, if the body has it: of a form, or of JSON with the feature `json`, as the content
    /// type states.
    ///
    /// # Errors
    ///
    /// The handler might read another value: the field occurs twice, or the body is of another type, or is not
    /// what its type states. Return the error with `?`; the request is then denied.
    pub fn field(&self, name: &str) -> Result<Option<String>, ExtractError> {
        let found = field(self.request, self.bytes, &[name.to_owned()]);
        found.map_err(|error| match error.kind() {
            ExtractErrorKind::BadRequest => ExtractError::bad_request(
                "the body can be read in more than one way: a field occurs twice, or is neither text nor a whole \
                 number, or the body is not what its content type states",
            ),
            _ => error,
        })
    }
}

/// The user in a field of a body that is a form or JSON, as its content type states: what
/// [`FormField`](super::FormField) finds in the one and, with the feature `json`, `JsonField` in the other. A body of
/// another content type, or of none, is an error.
///
/// The handler has to choose by the content type too, and not by what it can parse.
#[derive(Clone, Debug)]
pub struct BodyField {
    path: [String; 1],
}

impl BodyField {
    /// The field of this name.
    #[must_use]
    pub fn new(name: impl Into<String>) -> Self {
        Self {
            path: [name.into()],
        }
    }
}

impl ExtractBodyUser for BodyField {
    fn extract_user(&self, request: &Parts, body: &Bytes) -> MaybeReady<Extracted> {
        MaybeReady::ready(field(request, body, &self.path))
    }
}

fn field(request: &Parts, body: &[u8], path: &[String; 1]) -> Extracted {
    let media_type = media_type(request);
    #[cfg(feature = "json")]
    if media_type.is_some_and(is_json) {
        return json_field(request, body, path);
    }
    if !body.is_empty() && !media_type.is_some_and(is_form) {
        return Err(ExtractError::unsupported_media_type(
            if cfg!(feature = "json") {
                "the content type of the body is neither that of a form nor JSON"
            } else {
                "the content type of the body is not that of a form"
            },
        ));
    }
    form_field(request, body, &path[0])
}
