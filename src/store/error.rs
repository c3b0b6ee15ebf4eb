use std::{borrow::Cow, error::Error, fmt};

/// The store could not decide. Says nothing about the attempt: neither admitted nor refused.
///
/// ```
/// use tower_login_rate_limit::store::{StoreError, StoreErrorKind};
///
/// // In a store of one's own.
/// let error = StoreError::new(StoreErrorKind::Connection, "the database can't be reached");
/// assert_eq!(error.kind(), StoreErrorKind::Connection);
/// ```
#[derive(Clone, Debug)]
pub struct StoreError {
    kind: StoreErrorKind,
    message: Cow<'static, str>,
}

/// Why a store could not decide.
///
/// ```
/// use tower_login_rate_limit::store::{StoreError, StoreErrorKind};
///
/// fn needs_more_memory(error: &StoreError) -> bool {
///     error.kind() == StoreErrorKind::Full
/// }
/// ```
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
#[non_exhaustive]
pub enum StoreErrorKind {
    /// No answer within the deadline.
    Timeout,
    /// No connection, or it broke.
    Connection,
    /// The server answered with an error.
    Server,
    /// The server answered with something that is not an answer.
    Protocol,
    /// The attempt is over; nothing can be reserved for it any more.
    Settled,
    /// The store was set up in a way that can't work.
    Config,
    /// There is no room for a new counter, and those that are there still count.
    Full,
}

impl StoreError {
    /// An error of this kind; the message says what happened.
    pub fn new(kind: StoreErrorKind, message: impl Into<Cow<'static, str>>) -> Self {
        Self {
            kind,
            message: message.into(),
        }
    }

    /// Why the store could not decide.
    pub const fn kind(&self) -> StoreErrorKind {
        self.kind
    }
}

impl fmt::Display for StoreError {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(&self.message)
    }
}

impl Error for StoreError {}
