//! What identifies one attempt.

use std::fmt;
use uuid::Uuid;

/// Identifies one attempt: a UUID v4, the same in every counter that the attempt is written to.
///
/// ```
/// use tower_login_rate_limit::Token;
///
/// let token = Token::new();
/// assert_eq!(Token::from_bytes(*token.as_bytes()), token);
/// ```
#[derive(Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub struct Token([u8; 16]);

impl Token {
    /// A new random token.
    #[allow(clippy::new_without_default)] // two defaults that differ would surprise
    pub fn new() -> Self {
        Self(*Uuid::new_v4().as_bytes())
    }

    /// The 16 bytes that stores keep.
    pub const fn as_bytes(&self) -> &[u8; 16] {
        &self.0
    }

    /// Another token that belongs to this one: the same attempt, written to Redis a second time after it
    /// had been decided elsewhere. What is said of the one does not touch the other.
    #[cfg(feature = "redis")]
    pub(crate) const fn twin(mut self) -> Self {
        self.0[6] ^= 0x80; // of the UUID's version: no token is born so
        self
    }

    /// A token from bytes that [`as_bytes`](Self::as_bytes) gave.
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
