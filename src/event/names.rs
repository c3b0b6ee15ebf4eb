//! Names of what events share with the rest of the crate: in JSON, in logs and in metrics.

// Each of these features uses some of the names.
#![cfg_attr(
    not(all(feature = "serde", feature = "tracing", feature = "metrics")),
    allow(dead_code)
)]

use crate::{Outcome, Reason, store::StoreErrorKind};

/// A module with the texts of an enum, and with functions for `#[serde(with)]`.
macro_rules! names {
    ($module:ident, $type:ident: $($variant:ident = $name:literal),+) => {
        pub(crate) mod $module {
            use super::$type;

            pub(crate) const fn name(value: $type) -> &'static str {
                match value {
                    $($type::$variant => $name,)+
                }
            }

            pub(crate) const ALL: &[$type] = &[$($type::$variant),+];

            /// Where it is in [`ALL`], in whatever order the type declares its variants.
            #[cfg(feature = "metrics")]
            pub(crate) fn position(value: $type) -> usize {
                ALL.iter().position(|other| *other == value).unwrap_or_default()
            }

            #[cfg(feature = "serde")]
            pub(in super::super) fn serialize<S: serde::Serializer>(
                value: &$type,
                serializer: S,
            ) -> Result<S::Ok, S::Error> {
                serializer.serialize_str(name(*value))
            }

            #[cfg(feature = "serde")]
            pub(in super::super) fn deserialize<'de, D: serde::Deserializer<'de>>(
                deserializer: D,
            ) -> Result<$type, D::Error> {
                let text = <std::borrow::Cow<'_, str> as serde::Deserialize>::deserialize(deserializer)?;
                let found = ALL.iter().copied().find(|value| name(*value) == text);
                found.ok_or_else(|| serde::de::Error::unknown_variant(&text, &[$($name),+]))
            }
        }
    };
}

names!(outcome, Outcome: Success = "success", Failure = "failure", UnknownUser = "unknown_user",
    MfaPending = "mfa_pending", NotAnAttempt = "not_an_attempt");
names!(reason, Reason: Blocked = "blocked", Busy = "busy");
names!(store_error, StoreErrorKind: Timeout = "timeout", Connection = "connection", Server = "server",
    Protocol = "protocol", Config = "config", InvalidInput = "invalid_input", Full = "full");
