//! The user in the body of a request.

use http::{Method, header::CONTENT_TYPE, request::Parts};

use super::{
    ExtractError,
    user::{Extracted, only_field},
};

/// Finds the user that a request is to log in, in its body.
///
/// Implemented for closures: `|parts: &http::request::Parts, body: &[u8]| Option<String>`.
///
/// Read the body exactly as the handler does: if the two disagree on the user, attempts are counted under
/// another name than the one that is guessed at.
pub trait ExtractBodyUser: Send + Sync + 'static {
    /// The user, if the request names one. `body` is the whole body.
    ///
    /// # Errors
    ///
    /// It is unclear which user the request names.
    fn extract_user(&self, request: &Parts, body: &[u8]) -> Result<Option<String>, ExtractError>;
}

impl<F> ExtractBodyUser for F
where
    F: Fn(&Parts, &[u8]) -> Option<String> + Send + Sync + 'static,
{
    fn extract_user(&self, request: &Parts, body: &[u8]) -> Extracted {
        Ok(self(request, body))
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
    fn extract_user(&self, request: &Parts, body: &[u8]) -> Extracted {
        let is_form =
            |media_type: &str| media_type.eq_ignore_ascii_case("application/x-www-form-urlencoded");
        if !body.is_empty() && !media_type(request).is_some_and(is_form) {
            return Err(ExtractError::unsupported_media_type(
                "the content type of the body is not that of a form",
            ));
        }
        let in_body = only_field(body, &self.name)?;
        if !matches!(request.method, Method::GET | Method::HEAD) {
            return Ok(in_body);
        }
        let query = request.uri.query().unwrap_or_default();
        match (in_body, only_field(query.as_bytes(), &self.name)?) {
            (Some(_), Some(_)) => Err(ExtractError::bad_request(
                "the field that names the user is in the body and in the URL",
            )),
            (in_body, in_query) => Ok(in_body.or(in_query)),
        }
    }
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
