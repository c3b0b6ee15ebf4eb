//! Why an operator's request was not carried out.

use std::{borrow::Cow, error::Error, fmt};

use crate::{
    live::Version,
    store::{StoreError, StoreErrorKind},
};

/// An operator's request was not carried out, or not known to be.
#[derive(Clone, Debug)]
pub struct AdminError {
    kind: AdminErrorKind,
    message: Cow<'static, str>,
    source: Option<StoreError>,
    conflict: Option<Box<Conflict>>,
}

/// What was written in between, by another operator.
#[derive(Clone, Debug, PartialEq, Eq)]
#[non_exhaustive]
pub struct Conflict {
    /// The newest version.
    pub version: u64,
    /// Who wrote it.
    pub author: String,
    /// Why.
    pub reason: String,
    /// What is different from the version that was expected, a line each.
    pub differences: Vec<String>,
}

/// Why a request was not carried out.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
#[non_exhaustive]
pub enum AdminErrorKind {
    /// The store can't be operated.
    Unsupported,
    /// What was passed is invalid, and nothing was changed.
    InvalidInput,
    /// Another operator was faster, and nothing was changed.
    Conflict,
    /// The store failed. What was to be changed may have been; the same request can be repeated.
    Store,
}

impl AdminError {
    fn new(kind: AdminErrorKind, message: impl Into<Cow<'static, str>>) -> Self {
        Self {
            kind,
            message: message.into(),
            source: None,
            conflict: None,
        }
    }

    pub(crate) fn unsupported() -> Self {
        let message = "this store can't be operated, because `Store::ledger` returns none: use `MemoryStore` \
                       or `RedisStore`, or implement `Ledger` for a store of the app";
        Self::new(AdminErrorKind::Unsupported, message)
    }

    /// A version of the ruleset can't be read.
    pub(crate) fn unreadable(version: u64, error: &dyn Error) -> Self {
        Self::invalid(format!(
            "version {version} of the ruleset in the store can't be read: {error}; it may have been written by a \
             newer version of this crate"
        ))
    }

    /// A ruleset can't be written as text.
    pub(super) fn unwritable(error: impl Error) -> Self {
        Self::invalid(format!("the ruleset can't be written: {error}"))
    }

    /// Another version was written than the one that was expected.
    pub(super) fn conflicting(expected: u64, current: &Version, differences: Vec<String>) -> Self {
        let message = format!(
            "the newest version is {}, by {}, and not {expected}: read it, and apply the change again",
            current.version, current.author
        );
        Self {
            conflict: Some(Box::new(Conflict {
                version: current.version,
                author: current.author.clone(),
                reason: current.reason.clone(),
                differences,
            })),
            ..Self::new(AdminErrorKind::Conflict, message)
        }
    }

    /// Others changed the ruleset again and again.
    pub(super) fn busy() -> Self {
        let message = "others are changing the ruleset at the same time; try again";
        Self::new(AdminErrorKind::Conflict, message)
    }

    pub(crate) fn invalid(message: impl Into<Cow<'static, str>>) -> Self {
        Self::new(AdminErrorKind::InvalidInput, message)
    }

    /// What another operator has written in between, if that is why.
    pub fn conflict(&self) -> Option<&Conflict> {
        self.conflict.as_deref()
    }

    /// Why the request was not carried out.
    pub const fn kind(&self) -> AdminErrorKind {
        self.kind
    }
}

impl From<StoreError> for AdminError {
    fn from(error: StoreError) -> Self {
        if error.kind() == StoreErrorKind::InvalidInput {
            return Self::invalid(error.to_string());
        }
        let message = "the store failed; the request can be repeated";
        Self {
            source: Some(error),
            ..Self::new(AdminErrorKind::Store, message)
        }
    }
}

impl fmt::Display for AdminError {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(&self.message)
    }
}

impl Error for AdminError {
    fn source(&self) -> Option<&(dyn Error + 'static)> {
        self.source.as_ref().map(|source| source as _)
    }
}
