//! The identifier of an attempt.

use std::{error::Error, fmt, str::FromStr};

use uuid::Uuid;

/// The identifier of an attempt: a UUID v4, the same in every counter that holds the attempt.
#[derive(Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub struct Token([u8; 16]);

impl Token {
    /// A new random token.
    #[allow(clippy::new_without_default)] // two defaults must not differ
    pub fn new() -> Self {
        Self(*Uuid::new_v4().as_bytes())
    }

    /// The 16 bytes of the token.
    pub const fn as_bytes(&self) -> &[u8; 16] {
        &self.0
    }

    /// A token derived from this one, for the same attempt written to Redis a second time after it was
    /// decided in memory. Settling the one leaves the other alone.
    #[cfg(feature = "redis")]
    pub(crate) const fn derived(mut self) -> Self {
        self.0[6] ^= 0x80; // a bit of the UUID's version, which no random token has
        self
    }

    /// The token that this one is [derived](Self::derived) from, or this one.
    #[cfg(feature = "redis")]
    pub(crate) const fn origin(self) -> Self {
        if self.0[6] & 0xf0 == 0xc0 {
            self.derived() // twice is not at all
        } else {
            self
        }
    }

    /// The token with these bytes, as returned by [`as_bytes`](Self::as_bytes).
    pub const fn from_bytes(bytes: [u8; 16]) -> Self {
        Self(bytes)
    }
}

impl fmt::Display for Token {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        Uuid::from_bytes(self.0).fmt(f)
    }
}

impl fmt::Debug for Token {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "Token({self})")
    }
}

/// Reads a UUID in hexadecimal digits, with hyphens.
impl FromStr for Token {
    type Err = ParseTokenError;

    fn from_str(text: &str) -> Result<Self, Self::Err> {
        let is_hyphenated = text.len() == uuid::fmt::Hyphenated::LENGTH;
        let uuid = is_hyphenated.then(|| Uuid::try_parse(text).ok()).flatten();
        uuid.map(|uuid| Self(*uuid.as_bytes()))
            .ok_or(ParseTokenError(()))
    }
}

/// A text that is not a [`Token`].
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct ParseTokenError(());

impl fmt::Display for ParseTokenError {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str("cannot read the token of an attempt: it is a UUID, 36 characters with hyphens")
    }
}

impl Error for ParseTokenError {}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_token_is_read_back() {
        let token = Token::new();
        assert_eq!(token.to_string().parse(), Ok(token));
        let simple = token.to_string().replace('-', "");
        for text in [
            "",
            "x",
            &simple,
            &format!("{{{token}}}"),
            &format!("{token}0"),
        ] {
            assert_eq!(text.parse::<Token>(), Err(ParseTokenError(())), "{text}");
        }
    }
}
