//! Decides without the store while it can't be reached, and replays afterwards what it has missed.
//!
//! A circuit [breaker](breaker) keeps callers from waiting for a store that fails. Meanwhile attempts are
//! decided as the declared [`Outage`] mode asks; in the fallback mode by a [`MemoryStore`] that follows
//! what the store admits through this process, so that it starts with what this process has seen.
//! Outcomes that could not be written go into a [journal], which a [task](replay) replays.
//!
//! **Until the journal is replayed, both sides must admit an attempt**: the store, which has not seen
//! everything, and the fallback, which has. So the moment of recovery is no amnesty.

mod breaker;
mod entry;
mod journal;
mod outage;
mod replay;

use std::{
    collections::HashMap,
    fmt,
    sync::{
        Arc, Mutex, MutexGuard, PoisonError, Weak,
        atomic::{AtomicU64, Ordering},
    },
    time::Duration,
};

use smallvec::SmallVec;

use self::{breaker::Breaker, entry::Entry, journal::Journal, replay::Replay};
use super::{
    CancelLater, CounterName, Key, Ledger, MemoryStore, Remote, Settled, Settlement, Slot,
    Standings, Store, StoreChange, StoreError, StoreErrorKind, StoreFuture, StoreListener,
    StoreStatus,
    fingerprint::Fingerprint,
    owned::{OwnedKey, OwnedSlots},
};
use crate::{
    Address, KnownAddresses, Token,
    algorithm::Standing,
    clock::{Clock, to_millis},
    events,
};

pub use outage::Outage;

/// A store that goes on without `S` while `S` can't be reached.
pub(crate) struct Failover<S> {
    shared: Arc<Shared<S>>,
}

struct Shared<S> {
    inner: S,
    outage: Outage,
    breaker: Breaker,
    journal: Journal,
    replay: Replay,
    /// What this process has seen: attempts that the store admitted, and those it did not see.
    fallback: MemoryStore,
    /// Counters that failures have filled in the fallback, by their names on the server.
    full: Mutex<HashMap<Vec<u8>, Fingerprint>>,
    capacity: usize,
    clock: Arc<dyn Clock>,
    fallback_decisions: AtomicU64,
    admitted_uncounted: AtomicU64,
    listeners: Mutex<Vec<StoreListener>>,
}

impl<S> Shared<S> {
    /// Reports a change to all listeners.
    fn changed(&self, change: &StoreChange) {
        let listeners = self.listeners.lock();
        let listeners = listeners.unwrap_or_else(PoisonError::into_inner).clone();
        for listener in listeners {
            listener(change);
        }
    }

    fn full(&self) -> MutexGuard<'_, HashMap<Vec<u8>, Fingerprint>> {
        self.full.lock().unwrap_or_else(PoisonError::into_inner)
    }
}

impl<S: Remote> Failover<S> {
    /// `capacity` bounds the counters of the fallback and the entries of the journal, each. `deadline`
    /// is how long a call to `inner` may take.
    pub(crate) fn new(
        inner: S,
        outage: Outage,
        deadline: Duration,
        capacity: usize,
        clock: Arc<dyn Clock>,
    ) -> Self {
        let shared = Shared {
            inner,
            outage,
            breaker: Breaker::new(deadline * 2),
            journal: Journal::new(capacity),
            replay: Replay::default(),
            fallback: MemoryStore::with_capacity(capacity).with_clock(Arc::clone(&clock)),
            full: Mutex::default(),
            capacity,
            clock,
            fallback_decisions: AtomicU64::new(0),
            admitted_uncounted: AtomicU64::new(0),
            listeners: Mutex::default(),
        };
        Self {
            shared: Arc::new(shared),
        }
    }

    pub(crate) fn inner(&self) -> &S {
        &self.shared.inner
    }

    /// Whether the breaker is open.
    pub(crate) fn is_open(&self) -> bool {
        self.shared.breaker.is_open()
    }

    fn fallback_decisions(&self) -> u64 {
        self.shared.fallback_decisions.load(Ordering::Relaxed)
    }

    /// Drops the failures of a counter whose block was lifted elsewhere, by its name on the server.
    pub(crate) fn forget(&self, name: &[u8]) {
        let counter = self.shared.full().remove(name);
        if let Some(counter) = counter {
            self.shared.fallback.forget(counter);
        }
    }

    /// Drops what this process would refuse by, or write later, in counters that an operator has cleared, by
    /// their names on the server.
    pub(crate) fn forget_all(&self, names: &[CounterName]) {
        for name in names {
            self.forget(name.as_str().as_bytes());
        }
        let shared = &*self.shared;
        (shared.journal).clear(|key| {
            let name = shared.inner.name(&key.as_key());
            names
                .iter()
                .any(|cleared| cleared.as_str().as_bytes() == name)
        });
    }

    /// Forgets known addresses.
    pub(crate) fn forget_known(&self, key: &Key<'_>, address: Option<Address>) {
        let _ = now(Ledger::forget(&self.shared.fallback, key, address));
    }

    pub(crate) fn downgrade(&self) -> WeakFailover<S> {
        WeakFailover(Arc::downgrade(&self.shared))
    }

    /// Whether the fallback knows attempts that count and that the store has not seen.
    fn is_ahead(&self) -> bool {
        self.shared.outage == Outage::Fallback && !self.shared.journal.is_empty()
    }

    /// At least half of the capacity is kept for outages.
    fn may_follow(&self) -> bool {
        let has_room = || self.shared.fallback.len() < self.shared.capacity / 2;
        self.shared.outage == Outage::Fallback
            && (has_room() || {
                self.shared.fallback.search_for_room();
                has_room()
            })
    }

    /// Asks the store, and the fallback too while that is ahead.
    async fn decide(
        &self,
        token: Token,
        lease: Duration,
        slots: OwnedSlots,
        reply: StoreFuture<Standings>,
    ) -> Result<Standings, StoreError> {
        let fallback = &self.shared.fallback;
        let slots = &*slots.as_slots();
        let both = self.is_ahead();
        if both
            && let Ok(standings) = now(fallback.reserve(token, lease, slots))
            && !standings.admitted()
        {
            return Ok(standings);
        }
        let (asked, decisions) = (self.shared.clock.now(), self.fallback_decisions());
        let reply = reply.await;
        let admitted = reply.as_ref().is_ok_and(Standings::admitted);
        if both && !admitted {
            let _ = now(fallback.settle(&[token], Settlement::Canceled, slots, Duration::ZERO));
        }
        let standings = match self.observe(reply) {
            Ok(standings) => standings,
            Err(error) => return self.degraded(token, lease, slots, || error),
        };
        if admitted && !both {
            // The fallback may have decided other attempts meanwhile, also if they are replayed by now.
            if self.is_ahead() || self.fallback_decisions() != decisions {
                if let Ok(refused) = now(fallback.reserve(token, lease, slots))
                    && !refused.admitted()
                {
                    self.cancel_later(&[token], slots);
                    return Ok(refused);
                }
            } else if self.may_follow() {
                fallback.follow(token, lease, slots, &standings, asked);
            }
        }
        Ok(standings)
    }

    /// Decides without the store.
    fn degraded(
        &self,
        token: Token,
        lease: Duration,
        slots: &[Slot<'_>],
        error: impl FnOnce() -> StoreError,
    ) -> Result<Standings, StoreError> {
        let shared = &*self.shared;
        if let Some(refused) = shared.inner.recall(slots) {
            return Ok(refused);
        }
        let lease_ends = shared.clock.now().saturating_add(to_millis(lease));
        match shared.outage {
            Outage::Closed => Err(error()),
            Outage::Open => {
                if !lease.is_zero() {
                    // So that its outcome is not written. Without room it is written in vain.
                    let nowhere = OwnedSlots::default();
                    let _ = (shared.journal).admitted(token, slots, nowhere, lease_ends);
                    self.replay();
                }
                shared.admitted_uncounted.fetch_add(1, Ordering::Relaxed);
                events::admitted_uncounted();
                Ok(Standings::untouched(slots))
            }
            Outage::Fallback => {
                let standings = now(shared.fallback.reserve(token, lease, slots))?;
                shared.fallback_decisions.fetch_add(1, Ordering::Relaxed);
                if standings.admitted() {
                    let counting = OwnedSlots::counting(slots, &standings);
                    let noted = if lease.is_zero() {
                        let record = Entry::record(token, counting, lease_ends);
                        shared.journal.append(record)
                    } else {
                        (shared.journal).admitted(token, slots, counting, lease_ends)
                    };
                    if let Err(error) = noted {
                        let _ = now((shared.fallback).settle(
                            &[token],
                            Settlement::Canceled,
                            slots,
                            Duration::ZERO,
                        ));
                        return Err(error);
                    }
                    self.replay();
                }
                Ok(standings)
            }
        }
    }

    /// Keeps the fallback up to date with a settlement. Returns the blocks that began there.
    fn follow(
        &self,
        tokens: &[Token],
        settlement: Settlement,
        slots: &[Slot<'_>],
        ago: Duration,
    ) -> Vec<(usize, Standing)> {
        let fallback = &self.shared.fallback;
        if self.shared.outage != Outage::Fallback {
            return Vec::new();
        }
        if let Some(mains) = settlement.mains() {
            // The fallback may have missed the attempt, which succeeded all the same.
            let cleaned = match settlement {
                Settlement::Cleared { .. } => settlement,
                _ => Settlement::Forgiven { mains },
            };
            let _ = now(fallback.settle(&[], cleaned, slots, ago));
            let _ = now(fallback.settle(tokens, Settlement::Canceled, slots, ago));
            return Vec::new();
        }
        let settled = now(fallback.settle(tokens, settlement, slots, ago)).unwrap_or_default();
        if settlement != Settlement::Failed {
            return settled.began;
        }
        let mut began = settled.began;
        // It was admitted when there was no room to follow.
        if settled.changed == 0 && self.may_follow() {
            let recorded = now(fallback.settle(tokens, Settlement::Recorded, slots, ago));
            began = recorded.unwrap_or_default().began;
        }
        self.note_full(slots);
        began
    }

    /// Notes the names of counters that are blocked in the fallback, to forget them when the server reports
    /// that they are lifted.
    fn note_full(&self, slots: &[Slot<'_>]) {
        let Ok(standings) = now(self.shared.fallback.check(slots)) else {
            return;
        };
        for (slot, standing) in slots.iter().zip(&*standings) {
            if standing.enforced().is_blocked() {
                let name = self.shared.inner.name(&slot.key);
                let mut full = self.shared.full();
                if full.len() >= self.shared.capacity {
                    full.clear();
                }
                full.insert(name, slot.key.fingerprint);
            }
        }
    }

    /// Writes to the store, or to the journal if the store fails. Returns what that did, or `pending` if it is
    /// not known yet.
    fn write<T: Send + 'static>(
        &self,
        pending: T,
        entry: impl FnOnce() -> Entry + Send + 'static,
        write: impl FnOnce(&S) -> StoreFuture<T>,
    ) -> StoreFuture<T> {
        if self.is_open() {
            return StoreFuture::ready(self.append(entry()).map(|()| pending));
        }
        let (store, written) = (self.clone(), write(&self.shared.inner));
        StoreFuture::pending(async move {
            match store.observe(written.await) {
                Ok(written) => Ok(written),
                Err(_) => store.append(entry()).map(|()| pending),
            }
        })
    }

    /// Appends to the journal and sees to it that it is replayed.
    fn append(&self, entry: Entry) -> Result<(), StoreError> {
        self.shared.journal.append(entry)?;
        self.replay();
        Ok(())
    }

    fn cancel_later(&self, tokens: &[Token], slots: &[Slot<'_>]) {
        let canceled = self.append(Entry::cancel(tokens.into(), OwnedSlots::new(slots)));
        if let Err(error) = canceled {
            events::not_canceled(&error);
        }
    }

    /// Passes a reply on, and counts it for the breaker.
    fn observe<T>(&self, reply: Result<T, StoreError>) -> Result<T, StoreError> {
        match &reply {
            Ok(_) => self.shared.breaker.succeeded(),
            Err(error) => {
                if self.shared.breaker.failed(error) {
                    events::store_unreachable(error, self.shared.outage);
                    self.shared.changed(&StoreChange::Down(error.clone()));
                    self.replay();
                }
            }
        }
        reply
    }

    /// Reads from the store, or from what this process knows.
    fn read<T: Send + 'static>(
        &self,
        read: impl FnOnce(&S) -> StoreFuture<T>,
        degraded: impl FnOnce(&Shared<S>, StoreError) -> Result<T, StoreError> + Send + 'static,
    ) -> StoreFuture<T> {
        if self.is_open() {
            let error = self.shared.breaker.error();
            return StoreFuture::ready(degraded(&self.shared, error));
        }
        let (store, reply) = (self.clone(), read(&self.shared.inner));
        StoreFuture::pending(async move {
            let reply = store.observe(reply.await);
            reply.or_else(|error| degraded(&store.shared, error))
        })
    }
}

impl<S: Remote> Store for Failover<S> {
    fn reserve(&self, token: Token, lease: Duration, slots: &[Slot<'_>]) -> StoreFuture<Standings> {
        // Nothing is asked, which must not look like a store that answers.
        if slots.is_empty() {
            return StoreFuture::ready(Ok(Standings::default()));
        }
        if self.is_open() {
            let error = || self.shared.breaker.error();
            return StoreFuture::ready(self.degraded(token, lease, slots, error));
        }
        match self.shared.inner.reserve(token, lease, slots).at_once() {
            Ok(reply) => StoreFuture::ready(reply),
            Err(reply) => {
                let (store, slots) = (self.clone(), OwnedSlots::new(slots));
                StoreFuture::pending(async move { store.decide(token, lease, slots, reply).await })
            }
        }
    }

    fn check(&self, slots: &[Slot<'_>]) -> StoreFuture<Standings> {
        if slots.is_empty() {
            return StoreFuture::ready(Ok(Standings::default()));
        }
        let owned = OwnedSlots::new(slots);
        self.read(
            |inner| inner.check(slots),
            move |shared, error| {
                let slots = &*owned.as_slots();
                match shared.outage {
                    Outage::Closed => Err(error),
                    Outage::Open => Ok(Standings::untouched(slots)),
                    Outage::Fallback => match shared.inner.recall(slots) {
                        Some(refused) => Ok(refused),
                        None => now(shared.fallback.check(slots)),
                    },
                }
            },
        )
    }

    fn settle(
        &self,
        tokens: &[Token],
        settlement: Settlement,
        slots: &[Slot<'_>],
        ago: Duration,
    ) -> StoreFuture<Settled> {
        let shared = &*self.shared;
        if slots.is_empty() {
            return StoreFuture::ready(Ok(Settled::default()));
        }
        let began = self.follow(tokens, settlement, slots, ago);
        // Until the store has written it, the blocks that begin are those of this process.
        let pending = Settled::changed(slots.len()).with_began(began);
        if let Settlement::Cleared { mains } | Settlement::Forgiven { mains } = settlement {
            let every_spelling = matches!(settlement, Settlement::Cleared { .. });
            shared.journal.forgive(slots, mains, every_spelling);
            let cleaned = shared.inner.settle(tokens, settlement, slots, ago);
            // Not journaled: an operator has to know whether it worked.
            if self.is_open() {
                return StoreFuture::ready(Err(shared.breaker.error()));
            }
            let store = self.clone();
            return StoreFuture::pending(async move { store.observe(cleaned.await) });
        }
        let written = match settlement {
            // The store may know the attempt by the token under which it was replayed.
            Settlement::Canceled
            | Settlement::Succeeded { .. }
            | Settlement::Forgiven { .. }
            | Settlement::Cleared { .. } => {
                let both = tokens.iter().flat_map(|token| [*token, token.derived()]);
                both.collect()
            }
            Settlement::Failed | Settlement::Recorded => SmallVec::from_slice(tokens),
        };
        let entry = Entry::Settle {
            tokens: SmallVec::clone(&written),
            settlement,
            slots: OwnedSlots::new(slots),
            at: shared.clock.now().saturating_sub(to_millis(ago)),
        };
        // Blocks that began in counters which only this process has decided on.
        let mut unseen = Vec::new();
        if !shared.journal.is_empty() {
            let mut is_in_store = false;
            for token in tokens {
                let (seen, decided) = shared.journal.settle(*token, &entry, shared.clock.now());
                is_in_store |= seen;
                let is_decided = |(i, _): &&(usize, Standing)| {
                    let key = OwnedKey::new(&slots[*i].key);
                    decided.contains(&key)
                };
                unseen.extend(pending.began.iter().filter(is_decided).copied());
            }
            self.replay();
            if !is_in_store {
                return StoreFuture::ready(Ok(pending));
            }
        }
        self.write(
            pending,
            || entry,
            move |inner| {
                let settled = inner.settle(&written, settlement, slots, ago);
                if unseen.is_empty() {
                    return settled;
                }
                settled.map_ok(move |mut settled| {
                    settled.began.extend(unseen);
                    settled
                })
            },
        )
    }

    fn remember(&self, key: &Key<'_>, address: Address, keep: KnownAddresses) -> StoreFuture<()> {
        if self.may_follow() {
            let _ = now(self.shared.fallback.remember(key, address, keep));
        }
        let owned = OwnedKey::new(key);
        let entry = move || Entry::Remember {
            key: owned,
            address,
            keep,
        };
        self.write((), entry, |inner| inner.remember(key, address, keep))
    }

    fn known(&self, key: &Key<'_>, keep: KnownAddresses) -> StoreFuture<Vec<Address>> {
        let owned = OwnedKey::new(key);
        self.read(
            |inner| inner.known(key, keep),
            move |shared, error| match shared.outage {
                Outage::Fallback => now(shared.fallback.known(&owned.as_key(), keep)),
                Outage::Closed | Outage::Open => Err(error),
            },
        )
    }

    fn recall(&self, slots: &[Slot<'_>]) -> Option<Standings> {
        self.shared.inner.recall(slots)
    }

    fn status(&self) -> StoreStatus {
        StoreStatus {
            is_degraded: self.is_open(),
            pending: self.shared.journal.len(),
            fallback_decisions: self.fallback_decisions(),
            admitted_uncounted: self.shared.admitted_uncounted.load(Ordering::Relaxed),
            ..self.shared.inner.status()
        }
    }

    fn on_change(&self, listener: StoreListener) {
        let listeners = self.shared.listeners.lock();
        listeners
            .unwrap_or_else(PoisonError::into_inner)
            .push(listener);
    }

    fn flush(&self) -> StoreFuture<()> {
        let store = self.clone();
        StoreFuture::pending(async move { store.replayed().await })
    }
}

/// A handle that does not keep the store alive.
pub(crate) struct WeakFailover<S>(Weak<Shared<S>>);

impl<S> WeakFailover<S> {
    pub(crate) fn upgrade(&self) -> Option<Failover<S>> {
        let shared = self.0.upgrade()?;
        Some(Failover { shared })
    }
}

impl<S: Remote> CancelLater for WeakFailover<S> {
    fn cancel_later(&self, tokens: &[Token], slots: &[Slot<'_>]) -> bool {
        let Some(store) = self.upgrade() else {
            return false;
        };
        store.cancel_later(tokens, slots);
        true
    }
}

/// The reply of the fallback, which is ready at once.
fn now<T>(reply: StoreFuture<T>) -> Result<T, StoreError> {
    reply.at_once().unwrap_or_else(|_| {
        let message = "a store in memory did not answer at once";
        Err(StoreError::new(StoreErrorKind::Protocol, message))
    })
}

impl<S> Clone for Failover<S> {
    fn clone(&self) -> Self {
        Self {
            shared: Arc::clone(&self.shared),
        }
    }
}

impl<S: fmt::Debug> fmt::Debug for Failover<S> {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("Failover")
            .field("inner", &self.shared.inner)
            .field("outage", &self.shared.outage)
            .finish_non_exhaustive()
    }
}
