//! Counters as they are passed to a store, and how they stand.

use std::ops::Deref;

use smallvec::SmallVec;

#[cfg(feature = "memory")]
use super::fingerprint::Digest;
use super::{Key, StoreError, StoreErrorKind};
#[cfg(feature = "memory")]
use crate::algorithm::attempts::Spelling;
use crate::{Address, KnownAddresses, Limit, algorithm::Standing};

/// One counter and what it allows. See the [module](super) for an example.
#[derive(Clone, Copy, Debug)]
#[non_exhaustive]
pub struct Slot<'a> {
    /// Which counter.
    pub key: Key<'a>,
    /// What it allows.
    pub limit: &'a Limit,
    /// An attempt from this address, if it is known, does not count here and is not refused.
    pub unless_known: Option<KnownAddress<'a>>,
    /// How the user was spelled, if not as in the key's subject, which has a normal form. A success takes back
    /// failures of its own spelling only.
    pub spelling: Option<&'a [u8]>,
    /// Whether the counter is in shadow: it counts as ever and refuses nothing. Where it would refuse, it stands as
    /// [`State::Shadowed`](crate::algorithm::State::Shadowed), and an attempt that the other counters admit is not
    /// written to it.
    pub shadow: bool,
}

impl<'a> Slot<'a> {
    /// A counter in which every attempt counts.
    pub const fn new(key: Key<'a>, limit: &'a Limit) -> Self {
        Self {
            key,
            limit,
            unless_known: None,
            spelling: None,
            shadow: false,
        }
    }

    /// The same counter for a user who was spelled like this, in place of the key's normal form.
    #[must_use]
    pub const fn spelled(mut self, spelling: &'a [u8]) -> Self {
        self.spelling = Some(spelling);
        self
    }

    /// The same counter, in shadow or not.
    #[must_use]
    pub const fn with_shadow(mut self, shadow: bool) -> Self {
        self.shadow = shadow;
        self
    }

    /// Whether both name one counter.
    #[cfg(feature = "memory")]
    #[inline]
    pub(crate) fn is_same(&self, other: &Self) -> bool {
        self.key.fingerprint.id == other.key.fingerprint.id
    }

    /// How the counter stands, as one that is in shadow if it is.
    #[cfg(feature = "memory")]
    #[inline]
    pub(crate) fn cast_shadow(&self, standing: Standing) -> Standing {
        if self.shadow {
            standing.in_shadow()
        } else {
            standing
        }
    }

    /// The spelling of an attempt that is reserved, as the memory store has it.
    #[cfg(feature = "memory")]
    #[inline]
    pub(crate) const fn reserved_spelling(&self) -> Spelling {
        match self.spelling {
            None => Spelling::NORMAL,
            Some(_) => Spelling::PENDING,
        }
    }

    /// The spelling of a failure, as the memory store has it.
    #[cfg(feature = "memory")]
    #[inline]
    pub(crate) fn spelling_hash(&self) -> Spelling {
        match self.spelling {
            None => Spelling::NORMAL,
            Some(spelling) => {
                // With the counter: spellings that share a hash in one counter do not in others.
                let counter = self.key.fingerprint.id.to_le_bytes();
                let hash = Digest::of_spelling(spelling).and(Digest::of_subject(&counter));
                Spelling::from_hash(hash.id())
            }
        }
    }

    /// Where the addresses are kept that this counter exempts, if any.
    #[cfg(feature = "memory")]
    pub(crate) fn known_key(&self) -> Option<Key<'a>> {
        let kind = self.unless_known?.kind;
        let key = Key::of_subject(kind, self.key.subject);
        Some(match self.spelling {
            Some(spelling) => key.spelled(spelling),
            None => key,
        })
    }

    /// The same counter, in which attempts from this address do not count if it is known.
    #[must_use]
    pub const fn unless_known(mut self, known: KnownAddress<'a>) -> Self {
        self.unless_known = Some(known);
        self
    }
}

/// An address that is exempt from a counter if it is among those that are
/// [remembered](super::Store::remember) for the counter's subject, in the slot's
/// [spelling](Slot::spelling). The counter belongs to no address.
///
/// ```
/// # async fn example() -> Result<(), Box<dyn std::error::Error>> {
/// use tower_login_rate_limit::{KnownAddresses, Limit, Period, algorithm::State};
/// use tower_login_rate_limit::store::{Key, KnownAddress, MemoryStore, Slot, Store};
///
/// let store = MemoryStore::new();
/// let (address, keep) = ("192.0.2.1".parse()?, KnownAddresses::default());
/// store.remember(&Key::of_subject("homes", b"alice"), address, keep).await?;
///
/// let limit = Limit::attempts(100).within(Period::days(1)).build()?;
/// let slot = Slot::new(Key::of_subject("account", b"alice"), &limit)
///     .unless_known(KnownAddress::new("homes", address, keep));
/// assert_eq!(store.check(&[slot]).await?[0].state, State::Exempt);
/// # Ok(()) }
/// # tokio::runtime::Runtime::new()?.block_on(example())?;
/// # Ok::<(), Box<dyn std::error::Error>>(())
/// ```
#[derive(Clone, Copy, Debug)]
#[non_exhaustive]
pub struct KnownAddress<'a> {
    /// The kind of key that addresses are remembered under, together with the counter's subject.
    pub kind: &'a str,
    /// The address that may be among them.
    pub address: Address,
    /// Which of them are known: how many of the newest, and for how long.
    pub keep: KnownAddresses,
}

impl<'a> KnownAddress<'a> {
    /// This address, if it is remembered under keys of this kind.
    pub const fn new(kind: &'a str, address: Address, keep: KnownAddresses) -> Self {
        Self {
            kind,
            address,
            keep,
        }
    }
}

/// How counters stand, in the order of the slots that were passed.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct Standings(SmallVec<[Standing; 2]>);

impl Standings {
    /// Whether none of them refuses.
    #[inline]
    pub fn admitted(&self) -> bool {
        !self.iter().any(Standing::refuses)
    }

    /// These standings, if there is one for each of `slots`: a store that leaves one out must not admit by
    /// that.
    #[inline]
    pub(crate) fn complete(self, slots: usize) -> Result<Self, StoreError> {
        if self.len() == slots {
            Ok(self)
        } else {
            Err(self.incomplete(slots))
        }
    }

    /// The error that these are not the standings of `slots`.
    #[cold]
    pub(crate) fn incomplete(&self, slots: usize) -> StoreError {
        let message = format!(
            "the store returned {} standings for {slots} counters",
            self.len()
        );
        StoreError::new(StoreErrorKind::Protocol, message)
    }

    /// How these counters would stand if nothing had ever been counted.
    #[cfg(feature = "redis")]
    pub(crate) fn untouched(slots: &[Slot<'_>]) -> Self {
        let empty = crate::algorithm::Counter::default();
        let slots = slots.iter();
        slots.map(|slot| empty.standing(slot.limit, 0)).collect()
    }

    #[cfg(feature = "memory")]
    pub(crate) fn push(&mut self, standing: Standing) {
        self.0.push(standing);
    }

    #[cfg(feature = "memory")]
    pub(crate) fn clear(&mut self) {
        self.0.clear();
    }

    #[cfg(feature = "memory")]
    pub(crate) fn as_mut(&mut self) -> &mut [Standing] {
        &mut self.0
    }
}

impl Deref for Standings {
    type Target = [Standing];

    #[inline]
    fn deref(&self) -> &Self::Target {
        &self.0
    }
}

impl FromIterator<Standing> for Standings {
    fn from_iter<I: IntoIterator<Item = Standing>>(standings: I) -> Self {
        Self(standings.into_iter().collect())
    }
}
