//! The user that is being logged in, from the body of a request.

use std::{borrow::Cow, cell::Cell, fmt};

use http::{Method, request::Parts};
use serde_core::de::{
    DeserializeSeed, Deserializer, Error, IgnoredAny, MapAccess, SeqAccess, Visitor,
};

use super::{
    UserError,
    user::{Extracted, only_field},
};

/// Finds the user that a request wants to log in, in its body.
///
/// Implemented for closures: `|parts: &http::request::Parts, body: &[u8]| Option<String>`.
///
/// ```
/// # use tower_login_rate_limit::{LoginLimiter, LoginRateLimitLayer, Policy, store::MemoryStore};
/// # let limiter = LoginLimiter::new(Policy::default(), MemoryStore::new());
/// // A protocol of one's own: the name up to the first line break.
/// let user = |_: &http::request::Parts, body: &[u8]| -> Option<String> {
///     let name = body.split(|byte| *byte == b'\n').next()?;
///     String::from_utf8(name.to_vec()).ok()
/// };
/// let layer = LoginRateLimitLayer::new(limiter).with_body_user(user);
/// ```
///
/// Read the body as the handler will: if the two disagree on who is meant, somebody is counted under
/// another name than the one they guess at.
pub trait ExtractBodyUser: Send + Sync + 'static {
    /// The user, if there is one. `body` is all of it.
    fn extract_user(&self, request: &Parts, body: &[u8]) -> Result<Option<String>, UserError>;
}

impl<F> ExtractBodyUser for F
where
    F: Fn(&Parts, &[u8]) -> Option<String> + Send + Sync + 'static,
{
    fn extract_user(&self, request: &Parts, body: &[u8]) -> Extracted {
        Ok(self(request, body))
    }
}

/// The user in a field of a form (`application/x-www-form-urlencoded`): in the body, and in the URL's
/// query for `GET` and `HEAD`, as axum's `Form` has it.
///
/// ```
/// # use tower_login_rate_limit::{LoginLimiter, LoginRateLimitLayer, Policy, store::MemoryStore};
/// # let limiter = LoginLimiter::new(Policy::default(), MemoryStore::new());
/// use tower_login_rate_limit::extract::FormField;
///
/// let layer = LoginRateLimitLayer::new(limiter).with_body_user(FormField::new("email"));
/// ```
#[derive(Clone, Debug)]
pub struct FormField(pub String);

impl FormField {
    /// The field of this name.
    pub fn new(name: impl Into<String>) -> Self {
        Self(name.into())
    }
}

impl ExtractBodyUser for FormField {
    fn extract_user(&self, request: &Parts, body: &[u8]) -> Extracted {
        let in_body = only_field(body, &self.0)?;
        if !matches!(request.method, Method::GET | Method::HEAD) {
            return Ok(in_body);
        }
        let query = request.uri.query().unwrap_or_default();
        match (in_body, only_field(query.as_bytes(), &self.0)?) {
            (Some(_), Some(_)) => Err(UserError::new(
                "the field that names the user is in the body and in the URL",
            )),
            (in_body, in_query) => Ok(in_body.or(in_query)),
        }
    }
}

/// The user in a field of a JSON body.
///
/// ```
/// # use tower_login_rate_limit::{LoginLimiter, LoginRateLimitLayer, Policy, store::MemoryStore};
/// # let limiter = LoginLimiter::new(Policy::default(), MemoryStore::new());
/// use tower_login_rate_limit::extract::JsonField;
///
/// let user = JsonField::at("/credentials/username");
/// let layer = LoginRateLimitLayer::new(limiter).with_body_user(user);
/// ```
#[derive(Clone, Debug)]
pub struct JsonField {
    path: Vec<String>,
}

impl JsonField {
    /// The field of this name, in the outermost object.
    pub fn new(name: impl Into<String>) -> Self {
        Self {
            path: vec![name.into()],
        }
    }

    /// The field at this JSON pointer (RFC 6901): `/credentials/username`.
    pub fn at(pointer: &str) -> Self {
        let unescape = |step: &str| step.replace("~1", "/").replace("~0", "~");
        let steps = pointer.strip_prefix('/').unwrap_or(pointer).split('/');
        Self {
            path: steps.map(unescape).collect(),
        }
    }
}

impl ExtractBodyUser for JsonField {
    fn extract_user(&self, _: &Parts, body: &[u8]) -> Extracted {
        if body.is_empty() {
            return Ok(None);
        }
        let unclear = Cell::new(None);
        let seek = Seek {
            path: &self.path,
            unclear: &unclear,
        };
        let found = seek.deserialize(&mut serde_json::Deserializer::from_slice(body));
        match (unclear.get(), found) {
            (Some(reason), _) => Err(UserError::new(reason)),
            (None, Ok(found)) => Ok(found),
            (None, Err(_)) => Err(UserError::new("the body is not JSON")),
        }
    }
}

/// Looks for a path, and for what another parser might read differently: a field that is there twice,
/// a list in place of an object (which serde reads into a struct by position), a number that not
/// everybody can hold. That is why the body is not simply read into a map.
#[derive(Clone, Copy)]
struct Seek<'a> {
    path: &'a [String],
    unclear: &'a Cell<Option<&'static str>>,
}

impl<'de> DeserializeSeed<'de> for Seek<'_> {
    type Value = Option<String>;

    fn deserialize<D: Deserializer<'de>>(self, deserializer: D) -> Result<Self::Value, D::Error> {
        deserializer.deserialize_any(self)
    }
}

impl<'de> Visitor<'de> for Seek<'_> {
    type Value = Option<String>;

    fn expecting(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str("JSON")
    }

    fn visit_map<A: MapAccess<'de>>(self, mut map: A) -> Result<Self::Value, A::Error> {
        if self.path.is_empty() {
            self.unclear.set(Some(NO_TEXT));
        }
        let (mut found, mut seen) = (None, false);
        while let Some(key) = map.next_key::<String>()? {
            match self.path.split_first() {
                Some((step, path)) if *step == key => {
                    if seen {
                        let twice = "the field that names the user is there twice";
                        self.unclear.set(Some(twice));
                    }
                    seen = true;
                    found = map.next_value_seed(Seek { path, ..self })?;
                }
                _ => {
                    map.next_value::<IgnoredAny>()?;
                }
            }
        }
        Ok(found)
    }

    fn visit_seq<A: SeqAccess<'de>>(self, mut seq: A) -> Result<Self::Value, A::Error> {
        let (step, path) = match self.path.split_first() {
            Some((step, path)) => (step.parse().ok(), path),
            None => (None, self.path),
        };
        if step.is_none() {
            self.unclear.set(Some(NO_TEXT));
        }
        let mut found = None;
        for i in 0_usize.. {
            let more = match step == Some(i) {
                true => {
                    let value = seq.next_element_seed(Seek { path, ..self })?;
                    let more = value.is_some();
                    found = value.flatten();
                    more
                }
                false => seq.next_element::<IgnoredAny>()?.is_some(),
            };
            if !more {
                break;
            }
        }
        Ok(found)
    }

    fn visit_str<E: Error>(self, value: &str) -> Result<Self::Value, E> {
        Ok(self.end(value))
    }

    // A handler may read a number as a user's id.
    fn visit_u64<E: Error>(self, value: u64) -> Result<Self::Value, E> {
        Ok(self.end(value.to_string()))
    }

    fn visit_i64<E: Error>(self, value: i64) -> Result<Self::Value, E> {
        Ok(self.end(value.to_string()))
    }

    fn visit_f64<E: Error>(self, _: f64) -> Result<Self::Value, E> {
        if self.path.is_empty() {
            self.unclear.set(Some(NO_TEXT));
        }
        Ok(None)
    }

    fn visit_bool<E: Error>(self, _: bool) -> Result<Self::Value, E> {
        Ok(None)
    }

    fn visit_unit<E: Error>(self) -> Result<Self::Value, E> {
        Ok(None)
    }
}

const NO_TEXT: &str = "what should name the user is neither text nor a whole number";

impl Seek<'_> {
    /// A value, if the path ends here.
    fn end<'v>(self, value: impl Into<Cow<'v, str>>) -> Option<String> {
        self.path.is_empty().then(|| value.into().into_owned())
    }
}
