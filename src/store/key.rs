//! What names a counter.

use std::fmt;

use super::fingerprint::{Digest, Fingerprint, Place};
use crate::Address;

/// The kind of key under which the addresses of a user are kept. No rule can have this name.
pub(crate) const KNOWN_ADDRESSES: &str = "known:addresses";

/// Names a counter: the address that it belongs to, if any, a name for the kind of counter, and what
/// else distinguishes counters of that kind.
///
/// Each store turns this into a key of its own, in such a way that two different names never become
/// one key. Counters of one address are kept together, so that a store which is spread over several
/// servers can decide on them in one step.
///
/// ```
/// use tower_login_rate_limit::store::Key;
///
/// let key = Key::of_address("192.0.2.1".parse()?, "downloads").and_subject(b"alice");
/// assert_eq!((key.kind(), key.subject()), ("downloads", &b"alice"[..]));
/// # Ok::<(), tower_login_rate_limit::ParseAddressError>(())
/// ```
#[derive(Clone, Copy, PartialEq, Eq, Hash)]
pub struct Key<'a> {
    pub(crate) address: Option<Address>,
    pub(crate) kind: &'a str,
    pub(crate) subject: &'a [u8],
    /// How the subject was spelled, if it matters and is not `subject`.
    pub(crate) spelling: Option<&'a [u8]>,
    /// Of the other fields.
    pub(crate) fingerprint: Fingerprint,
}

impl<'a> Key<'a> {
    /// A counter of this address.
    pub fn of_address(address: Address, kind: &'a str) -> Self {
        Self::new(Some(address), kind, &[])
    }

    /// A counter that belongs to no address.
    pub fn of_subject(kind: &'a str, subject: &'a [u8]) -> Self {
        Self::new(None, kind, subject)
    }

    /// The counter of this subject, apart from others of the same address and kind. Stores do not
    /// show subjects; they may be personal data.
    #[must_use]
    pub fn and_subject(self, subject: &'a [u8]) -> Self {
        Self::new(self.address, self.kind, subject)
    }

    /// What is kept for the subject in this spelling, apart from what is kept for others, and for no address. A
    /// store that is spread over several servers keeps all of them together.
    #[must_use]
    pub fn spelled(self, spelling: &'a [u8]) -> Self {
        let (of_kind, of_subject) = (Digest::of_kind(self.kind), Digest::of_subject(self.subject));
        Self {
            address: None,
            spelling: Some(spelling),
            fingerprint: of_kind
                .and(of_subject)
                .and(Digest::of_spelling(spelling))
                .finish(None),
            ..self
        }
    }

    pub(crate) fn new(address: Option<Address>, kind: &'a str, subject: &'a [u8]) -> Self {
        let (of_address, of_subject) = (Digest::of_address(address), Digest::of_subject(subject));
        Self {
            address,
            kind,
            subject,
            spelling: None,
            fingerprint: Digest::of_kind(kind)
                .and(of_address)
                .and(of_subject)
                .finish(address.map(Place::of)),
        }
    }

    /// The address that the counter belongs to.
    pub const fn address(&self) -> Option<Address> {
        self.address
    }

    /// The kind of counter.
    pub const fn kind(&self) -> &str {
        self.kind
    }

    /// What else distinguishes it.
    pub const fn subject(&self) -> &[u8] {
        self.subject
    }

    /// How the subject was spelled, if that distinguishes it too.
    pub const fn spelling(&self) -> Option<&[u8]> {
        self.spelling
    }
}

/// Without the subject: what is logged should not name people.
impl fmt::Debug for Key<'_> {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("Key")
            .field("address", &self.address)
            .field("kind", &self.kind)
            .finish_non_exhaustive()
    }
}
