//! The user that is being logged in, from the body of a request.

use std::{borrow::Cow, cell::Cell, fmt};

use http::request::Parts;
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

/// The user in a field of a form (`application/x-www-form-urlencoded`).
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
    fn extract_user(&self, _: &Parts, body: &[u8]) -> Extracted {
        only_field(body, &self.0)
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
        Self {
            path: pointer.split('/').skip(1).map(unescape).collect(),
        }
    }
}

impl ExtractBodyUser for JsonField {
    fn extract_user(&self, _: &Parts, body: &[u8]) -> Extracted {
        let twice = Cell::new(false);
        let seek = Seek {
            path: &self.path,
            twice: &twice,
        };
        // What is not JSON names nobody, and no handler that reads JSON will find a user in it.
        let found = seek.deserialize(&mut serde_json::Deserializer::from_slice(body));
        match twice.get() {
            true => Err(UserError::new(
                "the field that names the user is there twice",
            )),
            false => Ok(found.unwrap_or(None)),
        }
    }
}

/// Looks for a path, and whether it is there twice: which of two is meant depends on the parser, and
/// the handler's may differ from ours. That is why the body is not simply read into a map.
#[derive(Clone, Copy)]
struct Seek<'a> {
    path: &'a [String],
    twice: &'a Cell<bool>,
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
        let (mut found, mut seen) = (None, false);
        while let Some(key) = map.next_key::<String>()? {
            match self.path.split_first() {
                Some((step, path)) if *step == key => {
                    if seen {
                        self.twice.set(true);
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

    fn visit_f64<E: Error>(self, value: f64) -> Result<Self::Value, E> {
        Ok(self.end(value.to_string()))
    }

    fn visit_bool<E: Error>(self, _: bool) -> Result<Self::Value, E> {
        Ok(None)
    }

    fn visit_unit<E: Error>(self) -> Result<Self::Value, E> {
        Ok(None)
    }
}

impl Seek<'_> {
    /// A value, if the path ends here.
    fn end<'v>(self, value: impl Into<Cow<'v, str>>) -> Option<String> {
        self.path.is_empty().then(|| value.into().into_owned())
    }
}
