//! What names a counter.

use std::{borrow::Cow, fmt};

use crate::Address;

/// Names a counter: the address that it belongs to, if any, a name for the kind of counter, and what
/// else tells counters of that kind apart.
///
/// Each store turns this into a key of its own, in such a way that two different names never become
/// one key. Counters of one address are kept together, so that a store which is spread over several
/// servers can decide on them in one step.
///
/// ```
/// use tower_login_rate_limit::store::Key;
///
/// let key = Key::of_address("192.0.2.1".parse()?, "downloads").and_subject(&b"alice"[..]);
/// assert_eq!((key.kind(), key.subject()), ("downloads", &b"alice"[..]));
/// # Ok::<(), tower_login_rate_limit::ParseAddressError>(())
/// ```
#[derive(Clone, PartialEq, Eq, Hash)]
pub struct Key<'a> {
    pub(crate) address: Option<Address>,
    pub(crate) kind: &'a str,
    pub(crate) subject: Cow<'a, [u8]>,
}

impl<'a> Key<'a> {
    /// A counter of this address.
    pub const fn of_address(address: Address, kind: &'a str) -> Self {
        Self {
            address: Some(address),
            kind,
            subject: Cow::Borrowed(&[]),
        }
    }

    /// A counter that belongs to no address.
    pub fn of_subject(kind: &'a str, subject: impl Into<Cow<'a, [u8]>>) -> Self {
        Self {
            address: None,
            kind,
            subject: subject.into(),
        }
    }

    /// The counter of this subject, apart from others of the same address and kind. Stores show
    /// subjects to nobody; they may be personal data.
    #[must_use]
    pub fn and_subject(mut self, subject: impl Into<Cow<'a, [u8]>>) -> Self {
        self.subject = subject.into();
        self
    }

    /// Where addresses are kept for the subject of this key.
    #[cfg(any(feature = "memory", feature = "redis"))]
    pub(crate) fn known_addresses(&self, kind: &'a str) -> Key<'a> {
        Key::of_subject(kind, self.subject.clone())
    }

    /// The address that the counter belongs to.
    pub const fn address(&self) -> Option<Address> {
        self.address
    }

    /// The kind of counter.
    pub const fn kind(&self) -> &str {
        self.kind
    }

    /// What else tells it apart.
    pub fn subject(&self) -> &[u8] {
        &self.subject
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
