//! The user in the head of a request.

use base64::{Engine, prelude::BASE64_STANDARD};
use http::{HeaderName, header::AUTHORIZATION, request::Parts};

use super::ExtractError;
use crate::MaybeReady;

/// A user, none, or the reason why it is unclear which.
pub(crate) type Extracted = Result<Option<String>, ExtractError>;

/// Finds the user that a request is to log in, without reading its body.
///
/// Implemented for closures: `|parts: &http::request::Parts| Option<String>`; within
/// [`user_fn`](super::user_fn) they need no types. See [`FromAsync`](super::FromAsync) for lookups that have to
/// be awaited, and [`ExtractBodyUser`](super::ExtractBodyUser) for users in bodies.
///
/// A request that names none is handled as
/// [`MissingUser`](crate::MissingUser) determines. The limiter normalizes what is found.
#[diagnostic::on_unimplemented(
    message = "`{Self}` does not find a user in the head of a request",
    label = "not an `ExtractUser`",
    note = "use `Header`, `BasicAuth` or `QueryField`, or `extract::user_fn(|request| …)`, which returns an \
            `Option<String>`; with a lookup that has to be awaited, `FromAsync::new`",
    note = "a user in a form or in JSON is for `.with_body_user(…)`"
)]
pub trait ExtractUser: Send + Sync + 'static {
    /// The user, if the request names one.
    ///
    /// # Errors
    ///
    /// It is unclear which user the request names.
    fn extract_user(&self, request: &Parts) -> MaybeReady<Result<Option<String>, ExtractError>>;
}

impl<F> ExtractUser for F
where
    F: Fn(&Parts) -> Option<String> + Send + Sync + 'static,
{
    fn extract_user(&self, request: &Parts) -> MaybeReady<Extracted> {
        MaybeReady::ready(Ok(self(request)))
    }
}

/// The default: no user until the handler [identifies](crate::LoginAttempt::identify) one.
#[derive(Clone, Copy, Debug, Default)]
pub struct NoUser;

impl ExtractUser for NoUser {
    fn extract_user(&self, _: &Parts) -> MaybeReady<Extracted> {
        MaybeReady::ready(Ok(None))
    }
}

/// The user in a header that the request may have once.
#[derive(Clone, Debug)]
pub struct Header {
    name: HeaderName,
}

impl Header {
    /// The header of this name.
    #[must_use]
    pub const fn new(name: HeaderName) -> Self {
        Self { name }
    }
}

impl ExtractUser for Header {
    fn extract_user(&self, request: &Parts) -> MaybeReady<Extracted> {
        let value = only_header(request, &self.name);
        MaybeReady::ready(value.map(|value| value.map(str::to_owned)))
    }
}

/// The user of HTTP basic authentication.
#[derive(Clone, Copy, Debug, Default)]
pub struct BasicAuth;

impl ExtractUser for BasicAuth {
    fn extract_user(&self, request: &Parts) -> MaybeReady<Extracted> {
        // Credentials that can't be decoded here are an error, since the handler might decode them.
        let user = |value: &str| {
            let Some((scheme, rest)) = value.trim().split_at_checked("basic".len()) else {
                return Ok(None);
            };
            if !scheme.eq_ignore_ascii_case("basic") {
                return Ok(None);
            }
            let decoded = BASE64_STANDARD.decode(rest.trim()).ok();
            decoded
                .and_then(|decoded| String::from_utf8(decoded).ok())
                .and_then(|decoded| Some(decoded.split(':').next()?.to_owned()))
                .map(Some)
                .ok_or(ExtractError::bad_request("the credentials can't be read"))
        };
        let value = only_header(request, &AUTHORIZATION);
        MaybeReady::ready(value.and_then(|value| value.map_or(Ok(None), user)))
    }
}

/// The value of a header that may occur once.
fn only_header<'a>(request: &'a Parts, name: &HeaderName) -> Result<Option<&'a str>, ExtractError> {
    let headers = &request.headers;
    let Some(value) = headers.get(name) else {
        return Ok(None);
    };
    // Few requests repeat a header, and then it has to be looked up again.
    if headers.len() > headers.keys_len() && headers.get_all(name).iter().nth(1).is_some() {
        return Err(ExtractError::bad_request(
            "the header that names the user is there twice",
        ));
    }
    // Nearly every name is ASCII, which is the shorter way.
    (value.to_str().ok())
        .or_else(|| str::from_utf8(value.as_bytes()).ok())
        .map(Some)
        .ok_or_else(|| ExtractError::bad_request("the header that names the user can't be read"))
}

/// The user in a field of the URL's query that may occur once.
#[derive(Clone, Debug)]
pub struct QueryField {
    name: String,
}

impl QueryField {
    /// The field of this name.
    #[must_use]
    pub fn new(name: impl Into<String>) -> Self {
        Self { name: name.into() }
    }
}

impl ExtractUser for QueryField {
    fn extract_user(&self, request: &Parts) -> MaybeReady<Extracted> {
        let query = request.uri.query().unwrap_or_default();
        MaybeReady::ready(only_field(query.as_bytes(), &self.name))
    }
}

/// The value of a URL-encoded field that may occur once.
pub(super) fn only_field(encoded: &[u8], name: &str) -> Extracted {
    let mut values = form_urlencoded::parse(encoded).filter(|(field, _)| field == name);
    match (values.next(), values.next()) {
        (value, None) => Ok(value.map(|(_, value)| value.into_owned())),
        (_, Some(_)) => Err(ExtractError::bad_request(
            "the field that names the user is there twice",
        )),
    }
}
