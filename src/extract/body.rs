//! The user in the body of a request.

use bytes::Bytes;
use http::{Method, header::CONTENT_TYPE, request::Parts};

use super::{
    ExtractError,
    user::{Extracted, only_field},
};
use crate::MaybeReady;

/// Finds the user that a request is to log in, in its body.
///
/// Implemented for closures: `|parts: &http::request::Parts, body: &[u8]| Option<String>`; within
/// [`body_user_fn`](super::body_user_fn) they need no types. See
/// [`FromAsync::in_body`](super::FromAsync::in_body) for lookups that have to be awaited.
///
/// Read the body exactly as the handler does: if the two disagree on the user, attempts are counted under
/// another name than the one that is guessed at.
#[diagnostic::on_unimplemented(
    message = "`{Self}` does not find a user in a body",
    label = "not an `ExtractBodyUser`",
    note = "use `FormField`, `JsonField` or `BodyField`, or \
            `extract::body_user_fn(|request, body| …)`, which returns an `Option<String>`",
    note = "a user in a header, in the URL or in a session is for `.with_user(…)`"
)]
pub trait ExtractBodyUser: Send + Sync + 'static {
    /// The user, if the request names one. `body` is the whole body.
    ///
    /// # Errors
    ///
    /// It is unclear which user the request names.
    fn extract_user(
        &self,
        request: &Parts,
        body: &Bytes,
    ) -> MaybeReady<Result<Option<String>, ExtractError>>;
}

impl<F> ExtractBodyUser for F
where
    F: Fn(&Parts, &[u8]) -> Option<String> + Send + Sync + 'static,
{
    fn extract_user(&self, request: &Parts, body: &Bytes) -> MaybeReady<Extracted> {
        MaybeReady::ready(Ok(self(request, body)))
    }
}

/// The user in a field of a form (`application/x-www-form-urlencoded`): in the body, and for `GET` and
/// `HEAD` also in the URL's query, as in axum's `Form`. A body of another content type, or of none, is an
/// error.
#[derive(Clone, Debug)]
pub struct FormField {
    name: String,
}

impl FormField {
    /// The field of this name.
    #[must_use]
    pub fn new(name: impl Into<String>) -> Self {
        Self { name: name.into() }
    }
}

impl ExtractBodyUser for FormField {
    fn extract_user(&self, request: &Parts, body: &Bytes) -> MaybeReady<Extracted> {
        MaybeReady::ready(form_field(request, body, &self.name))
    }
}

/// The field of a form that may occur once.
pub(super) fn form_field(request: &Parts, body: &[u8], name: &str) -> Extracted {
    if !body.is_empty() && !media_type(request).is_some_and(is_form) {
        return Err(ExtractError::unsupported_media_type(
            "the content type of the body is not that of a form",
        ));
    }
    let in_body = only_field(body, name)?;
    if !matches!(request.method, Method::GET | Method::HEAD) {
        return Ok(in_body);
    }
    let query = request.uri.query().unwrap_or_default();
    match (in_body, only_field(query.as_bytes(), name)?) {
        (Some(_), Some(_)) => Err(ExtractError::bad_request(
            "the field that names the user is in the body and in the URL",
        )),
        (in_body, in_query) => Ok(in_body.or(in_query)),
    }
}

pub(super) fn is_form(media_type: &str) -> bool {
    media_type.eq_ignore_ascii_case("application/x-www-form-urlencoded")
}

/// The media type of the body, without parameters. `None` if the request has none, or several: a handler
/// might choose another one.
pub(super) fn media_type(request: &Parts) -> Option<&str> {
    let mut values = request.headers.get_all(CONTENT_TYPE).iter();
    let (value, None) = (values.next()?, values.next()) else {
        return None;
    };
    let value = value.to_str().ok()?;
    value.split(';').next().map(str::trim)
}
