//! Where a page of the list of blocks ends.

use base64::{Engine, engine::general_purpose::URL_SAFE_NO_PAD as BASE64};

use super::invalid;
use crate::{algorithm::Millis, store::StoreError};

/// The form of a cursor: another one would have another number.
const VERSION: u8 = 1;
/// A cursor contains the name of a counter; no store makes longer ones.
const MAX_CURSOR: usize = 2048;

/// The place of an entry in the list of blocks: by the time at which it lifts, and then by name. It stays the
/// same whatever else is noted or dropped.
#[derive(Clone, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub(crate) struct Position {
    /// In the store's time; [`Millis::MAX`] for never.
    pub(crate) lifts: Millis,
    pub(crate) name: String,
}

impl Position {
    pub(crate) fn to_cursor(&self) -> String {
        let mut bytes = vec![VERSION];
        bytes.extend_from_slice(&self.lifts.to_be_bytes());
        bytes.extend_from_slice(self.name.as_bytes());
        BASE64.encode(bytes)
    }

    pub(crate) fn from_cursor(cursor: &str) -> Result<Self, StoreError> {
        let read = || {
            let cursor = Some(cursor).filter(|cursor| cursor.len() <= MAX_CURSOR)?;
            let bytes = BASE64.decode(cursor).ok()?;
            let (VERSION, rest) = bytes.split_first().map(|(first, rest)| (*first, rest))? else {
                return None;
            };
            let (lifts, name) = rest.split_first_chunk()?;
            Some(Self {
                lifts: Millis::from_be_bytes(*lifts),
                name: String::from_utf8(name.to_vec()).ok()?,
            })
        };
        read().ok_or_else(|| {
            invalid(
                "this is not a cursor of a list of blocks: pass on what a page has returned, or none \
                 to start at the beginning"
                    .to_owned(),
            )
        })
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::store::StoreErrorKind;

    #[test]
    fn cursors_are_read_as_they_were_written_and_nothing_else_is() {
        for (lifts, name) in [
            (0, ""),
            (7, "login:{192.0.2.1}:address"),
            (Millis::MAX, "ü"),
        ] {
            let name = name.to_owned();
            let position = Position { lifts, name };
            assert_eq!(
                Position::from_cursor(&position.to_cursor()).unwrap(),
                position
            );
        }
        let long = "A".repeat(MAX_CURSOR + 4);
        let other_version = BASE64.encode([2; 20]);
        let not_utf8 = BASE64.encode([1, 0, 0, 0, 0, 0, 0, 0, 0, 255]);
        for cursor in ["", "AA", "x y", "'", &long, &other_version, &not_utf8] {
            let error = Position::from_cursor(cursor).unwrap_err();
            assert_eq!(error.kind(), StoreErrorKind::InvalidInput, "{cursor}");
        }
    }
}
