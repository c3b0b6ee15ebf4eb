//! What tells attempts apart where their tokens must not be shown.

use std::{error::Error, fmt, str::FromStr};

use super::Token;
use crate::algorithm::attempts;

/// Identifies an attempt in events and in what counters hold, in 16 hexadecimal digits.
///
/// It is derived from the [`Token`], and the same in every store, so that events and attempts in counters can be
/// matched. It is not the token: a reader of a log can't settle an attempt with it.
///
/// ```
/// use tower_login_rate_limit::{AttemptId, Token};
///
/// let id = AttemptId::of(Token::from_bytes([7; 16]));
/// assert_eq!(id.to_string(), "0707070700000000");
/// assert_eq!("0707070700000000".parse(), Ok(id));
/// ```
#[derive(Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub struct AttemptId(u64);

impl AttemptId {
    /// The id of the attempt with this token.
    #[must_use]
    pub fn of(token: Token) -> Self {
        Self(attempts::id(token))
    }

    /// A token with this id, for a replay: attempts of one moment are then ordered, and waits jittered, as they were.
    #[cfg(feature = "memory")]
    pub(crate) const fn token(self) -> Token {
        Token::from_bytes(((self.0 as u128) << 64).to_be_bytes())
    }

    #[cfg(feature = "memory")]
    pub(crate) const fn from_bits(bits: u64) -> Self {
        Self(bits)
    }
}

impl From<Token> for AttemptId {
    fn from(token: Token) -> Self {
        Self::of(token)
    }
}

impl fmt::Display for AttemptId {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "{:016x}", self.0)
    }
}

impl fmt::Debug for AttemptId {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "AttemptId({self})")
    }
}

impl FromStr for AttemptId {
    type Err = ParseAttemptIdError;

    fn from_str(text: &str) -> Result<Self, Self::Err> {
        let is_id = text.len() == 16 && text.bytes().all(|b| b.is_ascii_hexdigit());
        let id = is_id.then(|| u64::from_str_radix(text, 16).ok()).flatten();
        id.map(Self).ok_or(ParseAttemptIdError(()))
    }
}

/// A text that is not an [`AttemptId`].
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct ParseAttemptIdError(());

impl fmt::Display for ParseAttemptIdError {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str("cannot read the id of an attempt: it has 16 hexadecimal digits")
    }
}

impl Error for ParseAttemptIdError {}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn text_is_read_back_and_does_not_give_the_token_away() {
        let token = Token::new();
        let id = AttemptId::from(token);
        let text = id.to_string();
        assert_eq!(text.parse(), Ok(id));
        #[cfg(feature = "memory")]
        assert_eq!(AttemptId::of(id.token()), id);
        let secret = token.to_string().replace('-', "");
        assert!(!secret.contains(&text[8..]), "{secret} {text}");
        for text in ["", "0", "+123456789abcdef", "0123456789abcdefg"] {
            assert!(text.parse::<AttemptId>().is_err(), "{text}");
        }
    }
}
