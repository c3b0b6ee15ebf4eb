//! Slots that outlive the call they were passed to: in futures, in the journal and in caches.

use smallvec::SmallVec;

use super::{Key, KnownAddress, Slot, Standings, fingerprint::Fingerprint};
use crate::{Address, KnownAddresses, Limit};

/// A [`Key`] that borrows nothing.
#[derive(Clone, PartialEq, Eq, Hash)]
pub(crate) struct OwnedKey {
    address: Option<Address>,
    kind_len: usize,
    /// The kind, then the subject. Most fit in place.
    bytes: SmallVec<[u8; 56]>,
    spelling: Option<Box<[u8]>>,
    fingerprint: Fingerprint,
}

impl OwnedKey {
    pub(crate) fn new(key: &Key<'_>) -> Self {
        let mut bytes = SmallVec::from_slice(key.kind.as_bytes());
        bytes.extend_from_slice(key.subject);
        Self {
            address: key.address,
            kind_len: key.kind.len(),
            bytes,
            spelling: key.spelling.map(Box::from),
            fingerprint: key.fingerprint,
        }
    }

    pub(crate) const fn has_address(&self) -> bool {
        self.address.is_some()
    }

    /// Whether a Redis Cluster keeps both counters in one slot: those of one address, and those of one
    /// subject that have no address.
    pub(crate) fn shares_hash_tag(&self, other: &Self) -> bool {
        let same_subject = || self.bytes[self.kind_len..] == other.bytes[other.kind_len..];
        let tag = |key: &Self| key.address.map(Address::tag);
        tag(self) == tag(other) && (self.address.is_some() || same_subject())
    }

    pub(crate) fn as_key(&self) -> Key<'_> {
        let (kind, subject) = self.bytes.split_at(self.kind_len);
        let kind = std::str::from_utf8(kind);
        debug_assert!(kind.is_ok(), "the kind was written from a str");
        Key {
            address: self.address,
            kind: kind.unwrap_or_default(),
            subject,
            spelling: self.spelling.as_deref(),
            fingerprint: self.fingerprint,
        }
    }
}

/// A [`Slot`] that borrows nothing.
#[derive(Clone)]
pub(crate) struct OwnedSlot {
    pub(crate) key: OwnedKey,
    pub(crate) limit: Limit,
    unless_known: Option<(Box<str>, Address, KnownAddresses)>,
    pub(crate) spelling: Option<Box<[u8]>>,
    pub(crate) shadow: bool,
}

impl OwnedSlot {
    pub(crate) fn new(slot: &Slot<'_>) -> Self {
        Self {
            key: OwnedKey::new(&slot.key),
            limit: slot.limit.clone(),
            unless_known: (slot.unless_known.as_ref())
                .map(|known| (known.kind.into(), known.address, known.keep)),
            spelling: slot.spelling.map(Box::from),
            shadow: slot.shadow,
        }
    }

    /// The client's address, if the counter exempts it when known.
    pub(crate) fn known_address(&self) -> Option<Address> {
        self.unless_known.as_ref().map(|(_, address, _)| *address)
    }

    /// Which known addresses the counter exempts.
    pub(crate) fn keeps_known(&self) -> Option<KnownAddresses> {
        self.unless_known.as_ref().map(|(_, _, keep)| *keep)
    }

    pub(crate) fn as_slot(&self) -> Slot<'_> {
        let mut slot = Slot::new(self.key.as_key(), &self.limit).with_shadow(self.shadow);
        slot.spelling = self.spelling.as_deref();
        match &self.unless_known {
            Some((kind, address, keep)) => {
                slot.unless_known(KnownAddress::new(kind, *address, *keep))
            }
            None => slot,
        }
    }
}

/// Some [`Slot`]s that borrow nothing.
#[derive(Clone, Default)]
pub(crate) struct OwnedSlots(pub(crate) Vec<OwnedSlot>);

impl OwnedSlots {
    pub(crate) fn new(slots: &[Slot<'_>]) -> Self {
        Self(slots.iter().map(OwnedSlot::new).collect())
    }

    /// Those in which an attempt that was admitted with these standings counts.
    pub(crate) fn counting(slots: &[Slot<'_>], standings: &Standings) -> Self {
        let slots = slots.iter().zip(&**standings);
        let counting = slots.filter(|(_, standing)| standing.counts());
        Self(counting.map(|(slot, _)| OwnedSlot::new(slot)).collect())
    }

    pub(crate) fn remove(&mut self, keys: &[&OwnedKey]) {
        self.0.retain(|slot| !keys.contains(&&slot.key));
    }

    /// Takes the spelling over from the slots of the same counters.
    pub(crate) fn respell(&mut self, from: &Self) {
        for slot in &mut self.0 {
            let same = from.0.iter().find(|other| other.key == slot.key);
            if let Some(same) = same {
                slot.spelling.clone_from(&same.spelling);
            }
        }
    }

    pub(crate) fn retain(&mut self, keys: &[&OwnedKey]) {
        self.0.retain(|slot| keys.contains(&&slot.key));
    }

    pub(crate) fn as_slots(&self) -> SmallVec<[Slot<'_>; 3]> {
        self.0.iter().map(OwnedSlot::as_slot).collect()
    }

    pub(crate) fn keys(&self) -> impl Iterator<Item = &OwnedKey> + Clone {
        self.0.iter().map(|slot| &slot.key)
    }

    pub(crate) const fn len(&self) -> usize {
        self.0.len()
    }
}
