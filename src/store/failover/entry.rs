//! A write that the store has missed.

use std::time::Duration;

use smallvec::SmallVec;

use crate::{
    Address, KnownAddresses, Token,
    algorithm::Millis,
    store::{
        Key, Settlement, Store, StoreFuture,
        owned::{OwnedKey, OwnedSlots},
    },
};

/// A pending write. Replaying it twice changes nothing more.
#[derive(Clone)]
pub(super) enum Entry {
    Settle {
        tokens: SmallVec<[Token; 2]>,
        settlement: Settlement,
        slots: OwnedSlots,
        at: Millis,
    },
    Remember {
        key: OwnedKey,
        address: Address,
        keep: KnownAddresses,
    },
}

impl Entry {
    /// An attempt that the store never saw failed. It is written under a token derived from its own: its
    /// reserve, which was given up, may still run and be canceled, and that must not take back the failure.
    pub(super) fn record(token: Token, slots: OwnedSlots, at: Millis) -> Self {
        Self::Settle {
            tokens: [token.derived()].as_slice().into(),
            settlement: Settlement::Recorded,
            slots,
            at,
        }
    }

    pub(super) fn cancel(tokens: SmallVec<[Token; 2]>, slots: OwnedSlots) -> Self {
        Self::Settle {
            tokens,
            settlement: Settlement::Canceled,
            slots,
            at: Millis::MAX,
        }
    }

    /// Writes it to the store.
    pub(super) fn replay(&self, store: &impl Store, now: Millis) -> StoreFuture<()> {
        match self {
            Self::Settle {
                tokens,
                settlement,
                slots,
                at,
            } => {
                let ago = Duration::from_millis(now.saturating_sub(*at));
                let settled = store.settle(tokens, *settlement, &slots.as_slots(), ago);
                settled.map_ok(drop)
            }
            Self::Remember { key, address, keep } => store.remember(&key.as_key(), *address, *keep),
        }
    }

    /// A key that it writes to.
    pub(super) fn key(&self) -> Option<Key<'_>> {
        match self {
            Self::Settle { slots, .. } => slots.keys().next().map(OwnedKey::as_key),
            Self::Remember { key, .. } => Some(key.as_key()),
        }
    }

    /// The failure that it writes, and where.
    pub(super) fn failure(&self) -> Option<(Token, &OwnedSlots)> {
        match self {
            Self::Settle {
                tokens,
                settlement: Settlement::Failed | Settlement::Recorded,
                slots,
                ..
            } => Some((*tokens.first()?, slots)),
            _ => None,
        }
    }

    /// A failure without these counters; `None` if nothing is left to write.
    pub(super) fn without(self, keys: &[&OwnedKey]) -> Option<Self> {
        match self {
            Self::Settle {
                tokens,
                settlement: settlement @ Settlement::Recorded,
                mut slots,
                at,
            } => {
                slots.remove(keys);
                (slots.len() > 0).then_some(Self::Settle {
                    tokens,
                    settlement,
                    slots,
                    at,
                })
            }
            Self::Settle { tokens, slots, .. } if slots.keys().all(|key| keys.contains(&key)) => {
                let both = tokens.iter().flat_map(|token| [*token, token.derived()]);
                Some(Self::cancel(both.collect(), slots))
            }
            other => Some(other),
        }
    }
}
