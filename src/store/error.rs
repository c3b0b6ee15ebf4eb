use std::{borrow::Cow, error::Error, fmt, sync::Arc};

/// The store could not decide. That is neither an admission nor a refusal.
#[derive(Clone)]
pub struct StoreError(Box<Inner>);

// In one allocation, since results are moved with every attempt, and hardly any is an error.
#[derive(Clone)]
struct Inner {
    kind: StoreErrorKind,
    message: Cow<'static, str>,
    source: Option<Arc<dyn Error + Send + Sync>>,
}

/// Why a store could not decide.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
#[non_exhaustive]
pub enum StoreErrorKind {
    /// No reply within the deadline.
    Timeout,
    /// No connection, or it broke.
    Connection,
    /// The server returned an error.
    Server,
    /// The server returned something that is not a valid reply.
    Protocol,
    /// The store is misconfigured.
    Config,
    /// There is no room for a new counter, and all that exist still count.
    Full,
    /// An argument is not valid: a cursor, the name of a counter, a text that is too long.
    InvalidInput,
}

impl StoreError {
    /// An error of this kind; the message describes what happened.
    pub fn new(kind: StoreErrorKind, message: impl Into<Cow<'static, str>>) -> Self {
        Self(Box::new(Inner {
            kind,
            message: message.into(),
            source: None,
        }))
    }

    /// The same error with its cause.
    #[must_use]
    pub fn with_source(mut self, source: impl Error + Send + Sync + 'static) -> Self {
        self.0.source = Some(Arc::new(source));
        self
    }

    /// Why the store could not decide.
    pub const fn kind(&self) -> StoreErrorKind {
        self.0.kind
    }
}

impl fmt::Debug for StoreError {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("StoreError")
            .field("kind", &self.0.kind)
            .field("message", &self.0.message)
            .field("source", &self.0.source)
            .finish()
    }
}

impl fmt::Display for StoreError {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(&self.0.message)
    }
}

impl Error for StoreError {
    fn source(&self) -> Option<&(dyn Error + 'static)> {
        self.0.source.as_ref().map(|source| &**source as _)
    }
}
