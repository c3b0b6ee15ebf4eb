//! The user in a JSON body.

use std::{borrow::Cow, cell::Cell, fmt};

use bytes::Bytes;
use http::request::Parts;
use serde_core::de::{
    DeserializeSeed, Deserializer, Error, IgnoredAny, MapAccess, SeqAccess, Visitor,
};

use super::{ExtractBodyUser, ExtractError, Extracted, body::media_type};
use crate::MaybeReady;

/// The user in a field of a JSON body.
///
/// A body that two parsers could read differently is an error: another content type than `application/json`
/// or `application/…+json`, or none; a field that occurs twice; a list or a single value in place of an
/// object; a number that is not an integer of 64 bits; anything after the JSON.
#[derive(Clone, Debug)]
pub struct JsonField {
    path: Vec<String>,
}

impl JsonField {
    /// The field of this name in the outermost object.
    #[must_use]
    pub fn new(name: impl Into<String>) -> Self {
        Self {
            path: vec![name.into()],
        }
    }

    /// The field at this JSON pointer (RFC 6901), such as `/credentials/username`.
    #[must_use]
    pub fn at(pointer: &str) -> Self {
        let unescape = |step: &str| step.replace("~1", "/").replace("~0", "~");
        let steps = pointer.strip_prefix('/').unwrap_or(pointer).split('/');
        Self {
            path: steps.map(unescape).collect(),
        }
    }
}

impl ExtractBodyUser for JsonField {
    fn extract_user(&self, request: &Parts, body: &Bytes) -> MaybeReady<Extracted> {
        MaybeReady::ready(json_field(request, body, &self.path))
    }
}

/// The field at this path, which may occur once.
pub(super) fn json_field(request: &Parts, body: &[u8], path: &[String]) -> Extracted {
    if body.is_empty() {
        return Ok(None);
    }
    if !media_type(request).is_some_and(is_json) {
        return Err(ExtractError::unsupported_media_type(
            "the content type of the body is not JSON",
        ));
    }
    // A single value would be read as a request without a user.
    if !matches!(body.trim_ascii_start().first(), Some(b'{' | b'[')) {
        return Err(ExtractError::bad_request("the body is not a JSON object"));
    }
    let ambiguity = Cell::new(None);
    let seek = Seek {
        path,
        ambiguity: &ambiguity,
    };
    let mut json = serde_json::Deserializer::from_slice(body);
    let found = seek.deserialize(&mut json);
    // Another parser might read what follows.
    let found = found.and_then(|found| json.end().map(|()| found));
    match (ambiguity.get(), found) {
        (Some(reason), _) => Err(ExtractError::bad_request(reason)),
        (None, Ok(found)) => Ok(found),
        (None, Err(_)) => Err(ExtractError::bad_request("the body is not JSON")),
    }
}

/// `application/json` or `application/…+json`.
pub(super) fn is_json(media_type: &str) -> bool {
    let Some((kind, subtype)) = media_type.split_once('/') else {
        return false;
    };
    let suffix = subtype.rsplit('+').next().unwrap_or_default();
    kind.eq_ignore_ascii_case("application") && suffix.eq_ignore_ascii_case("json")
}

/// Follows a path, and notes what another parser might read differently: a field that occurs twice, a list
/// in place of an object (which serde reads into a struct by position), a number that not every parser can
/// represent. A map would hide these.
#[derive(Clone, Copy)]
struct Seek<'a> {
    path: &'a [String],
    ambiguity: &'a Cell<Option<&'static str>>,
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
            self.ambiguity.set(Some(NO_TEXT));
        }
        let (mut found, mut seen) = (None, false);
        while let Some(key) = map.next_key::<String>()? {
            match self.path.split_first() {
                Some((step, path)) if *step == key => {
                    if seen {
                        let twice = "the field that names the user is there twice";
                        self.ambiguity.set(Some(twice));
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
            self.ambiguity.set(Some(NO_TEXT));
        }
        let mut found = None;
        for i in 0_usize.. {
            let more = if step == Some(i) {
                let value = seq.next_element_seed(Seek { path, ..self })?;
                let more = value.is_some();
                found = value.flatten();
                more
            } else {
                seq.next_element::<IgnoredAny>()?.is_some()
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

    // A handler may take a number for the id of a user.
    fn visit_u64<E: Error>(self, value: u64) -> Result<Self::Value, E> {
        Ok(self.end(value.to_string()))
    }

    fn visit_i64<E: Error>(self, value: i64) -> Result<Self::Value, E> {
        Ok(self.end(value.to_string()))
    }

    fn visit_f64<E: Error>(self, _: f64) -> Result<Self::Value, E> {
        if self.path.is_empty() {
            self.ambiguity.set(Some(NO_TEXT));
        }
        Ok(None)
    }

    fn visit_bool<E: Error>(self, _: bool) -> Result<Self::Value, E> {
        if self.path.is_empty() {
            self.ambiguity.set(Some(NO_TEXT));
        }
        Ok(None)
    }

    fn visit_unit<E: Error>(self) -> Result<Self::Value, E> {
        Ok(None)
    }
}

const NO_TEXT: &str = "what should name the user is neither text nor a whole number";

impl Seek<'_> {
    /// The value, if the path ends here.
    fn end<'v>(self, value: impl Into<Cow<'v, str>>) -> Option<String> {
        self.path.is_empty().then(|| value.into().into_owned())
    }
}
