//! What this process has seen of the counters: attempts that the store admitted, and those it has missed.

use std::{
    collections::HashMap,
    sync::{Arc, Mutex, MutexGuard, PoisonError},
    time::Duration,
};

use crate::{
    Address, KnownAddresses, Token,
    algorithm::{Millis, Standing},
    clock::Clock,
    store::{
        Key, Ledger, MemoryStore, Settlement, Slot, Standings, Store, StoreError, StoreErrorKind,
        StoreFuture, fingerprint::Fingerprint,
    },
};

/// A store in memory that follows another one. Its calls complete at once.
pub(super) struct Fallback {
    store: MemoryStore,
    /// Counters that failures have filled here, by their names on the server.
    full: Mutex<HashMap<Vec<u8>, Fingerprint>>,
    capacity: usize,
}

impl Fallback {
    pub(super) fn new(capacity: usize, clock: Arc<dyn Clock>) -> Self {
        Self {
            store: MemoryStore::with_capacity(capacity).with_clock(clock),
            full: Mutex::default(),
            capacity,
        }
    }

    pub(super) fn reserve(
        &self,
        token: Token,
        lease: Duration,
        slots: &[Slot<'_>],
    ) -> Result<Standings, StoreError> {
        now(self.store.reserve(token, lease, slots))
    }

    pub(super) fn cancel(&self, token: Token, slots: &[Slot<'_>]) {
        self.settle(&[token], Settlement::Canceled, slots, Duration::ZERO);
    }

    pub(super) fn check(&self, slots: &[Slot<'_>]) -> Result<Standings, StoreError> {
        now(self.store.check(slots))
    }

    pub(super) fn known(
        &self,
        key: &Key<'_>,
        keep: KnownAddresses,
    ) -> Result<Vec<Address>, StoreError> {
        now(self.store.known(key, keep))
    }

    pub(super) fn forget_known(&self, key: &Key<'_>, address: Option<Address>) {
        let _ = now(Ledger::forget(&self.store, key, address));
    }

    /// Whether there is room to follow: at least half of the capacity is kept for outages.
    fn has_room(&self) -> bool {
        let has_room = || self.store.len() < self.capacity / 2;
        has_room() || {
            self.store.search_for_room();
            has_room()
        }
    }

    /// Follows a success of a user at an address.
    pub(super) fn remember(&self, key: &Key<'_>, address: Address, keep: KnownAddresses) {
        if self.has_room() {
            let _ = now(self.store.remember(key, address, keep));
        }
    }

    /// Follows an attempt that the store, which was called at `asked`, has admitted.
    pub(super) fn admitted(
        &self,
        token: Token,
        lease: Duration,
        slots: &[Slot<'_>],
        standings: &Standings,
        asked: Millis,
    ) {
        if self.has_room() {
            self.store.follow(token, lease, slots, standings, asked);
        }
    }

    /// Follows a settlement. Returns the blocks that began here. `name` is that of a counter on the server.
    pub(super) fn settled(
        &self,
        tokens: &[Token],
        settlement: Settlement,
        slots: &[Slot<'_>],
        ago: Duration,
        name: impl Fn(&Key<'_>) -> Vec<u8>,
    ) -> Vec<(usize, Standing)> {
        if let Some(mains) = settlement.mains() {
            // It may have missed the attempt, which succeeded all the same.
            let cleaned = match settlement {
                Settlement::Cleared { .. } => settlement,
                _ => Settlement::Forgiven { mains },
            };
            self.settle(&[], cleaned, slots, ago);
            self.settle(tokens, Settlement::Canceled, slots, ago);
            return Vec::new();
        }
        let (changed, mut began) = self.settle(tokens, settlement, slots, ago);
        if settlement != Settlement::Failed {
            return began;
        }
        // It was admitted when there was no room to follow.
        if changed == 0 && self.has_room() {
            (_, began) = self.settle(tokens, Settlement::Recorded, slots, ago);
        }
        self.note_full(slots, name);
        began
    }

    /// Returns how many counters changed, and the blocks that began.
    fn settle(
        &self,
        tokens: &[Token],
        settlement: Settlement,
        slots: &[Slot<'_>],
        ago: Duration,
    ) -> (usize, Vec<(usize, Standing)>) {
        let settled = now(self.store.settle(tokens, settlement, slots, ago)).unwrap_or_default();
        (settled.changed, settled.began)
    }

    /// Notes the names of counters that are blocked here, to forget them when the server reports that they are
    /// lifted.
    fn note_full(&self, slots: &[Slot<'_>], name: impl Fn(&Key<'_>) -> Vec<u8>) {
        let Ok(standings) = self.check(slots) else {
            return;
        };
        for (slot, standing) in slots.iter().zip(&*standings) {
            if standing.enforced().is_blocked() {
                let name = name(&slot.key);
                let mut full = self.full();
                if full.len() >= self.capacity {
                    full.clear();
                }
                full.insert(name, slot.key.fingerprint);
            }
        }
    }

    /// Drops the failures of a counter whose block was lifted elsewhere, by its name on the server.
    pub(super) fn forget(&self, name: &[u8]) {
        let counter = self.full().remove(name);
        if let Some(counter) = counter {
            self.store.forget(counter);
        }
    }

    fn full(&self) -> MutexGuard<'_, HashMap<Vec<u8>, Fingerprint>> {
        self.full.lock().unwrap_or_else(PoisonError::into_inner)
    }
}

/// The reply of a store in memory, which is ready at once.
fn now<T>(reply: StoreFuture<T>) -> Result<T, StoreError> {
    reply.at_once().unwrap_or_else(|_| {
        let message = "a store in memory did not answer at once";
        Err(StoreError::new(StoreErrorKind::Protocol, message))
    })
}
