//! Why there is no attempt.

use std::{error::Error, fmt};

use crate::{Refusal, access::AccessDenied, store::StoreError};

/// Why no attempt was reserved.
#[derive(Clone, Debug)]
#[non_exhaustive]
pub enum ReserveError {
    /// A rule refused the attempt.
    Refused(Refusal),
    /// The store could not decide. The attempt is neither refused nor admitted.
    Store(StoreError),
    /// An access rule denied the request.
    Denied(AccessDenied),
    /// The attempt was settled before, because its request had ended.
    Settled,
}

impl fmt::Display for ReserveError {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(match self {
            Self::Refused(_) => "the attempt was refused",
            Self::Store(_) => "the store could not decide on the attempt",
            Self::Denied(_) => "an access rule denied the request",
            Self::Settled => "the attempt was settled when its request ended",
        })
    }
}

impl Error for ReserveError {
    fn source(&self) -> Option<&(dyn Error + 'static)> {
        match self {
            Self::Refused(refusal) => Some(refusal),
            Self::Store(error) => Some(error),
            Self::Denied(denied) => Some(denied),
            Self::Settled => None,
        }
    }
}

impl From<StoreError> for ReserveError {
    fn from(error: StoreError) -> Self {
        Self::Store(error)
    }
}
