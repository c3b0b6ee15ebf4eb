//! Decides without the store while it can't be reached, and replays afterwards what it has missed.
//!
//! A circuit [breaker](breaker) keeps callers from waiting for a store that fails. Meanwhile attempts are
//! decided by the configured [`Outage`] mode; in the fallback mode by a [store in memory](fallback) that follows
//! what the store admits through this process, so that it starts with what this process has seen.
//! Outcomes that could not be written go into a [journal], which a [task](replay) replays.
//!
//! **Until the journal is replayed, both sides must admit an attempt**: the store, which has not seen
//! everything, and the fallback, which has. So the moment of recovery is no amnesty.

mod breaker;
mod decide;
mod entry;
mod fallback;
mod journal;
mod outage;
mod replay;

use std::{
    fmt,
    sync::{
        Arc, Mutex, PoisonError, Weak,
        atomic::{AtomicU64, Ordering},
    },
    time::Duration,
};

use smallvec::SmallVec;

use self::{breaker::Breaker, entry::Entry, fallback::Fallback, journal::Journal, replay::Replay};
use super::{
    CancelLater, CounterName, Key, Remote, Settled, Settlement, Slot, Standings, Store,
    StoreChange, StoreError, StoreFuture, StoreListener, StoreStatus,
    owned::{OwnedKey, OwnedSlots},
};
use crate::{
    Address, KnownAddresses, Token,
    algorithm::Standing,
    clock::{Clock, to_millis},
    logging,
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
    fallback: Fallback,
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
            fallback: Fallback::new(capacity, Arc::clone(&clock)),
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
        self.shared.fallback.forget(name);
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
        self.shared.fallback.forget_known(key, address);
    }

    pub(crate) fn downgrade(&self) -> WeakFailover<S> {
        WeakFailover(Arc::downgrade(&self.shared))
    }

    fn has_fallback(&self) -> bool {
        self.shared.outage == Outage::Fallback
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
            logging::not_canceled(&error);
        }
    }

    /// Passes a reply on, and counts it for the breaker.
    fn observe<T>(&self, reply: Result<T, StoreError>) -> Result<T, StoreError> {
        match &reply {
            Ok(_) => self.shared.breaker.succeeded(),
            Err(error) => {
                if self.shared.breaker.failed(error) {
                    logging::store_unreachable(error, self.shared.outage);
                    self.shared.changed(&StoreChange::Down(error.clone()));
                    self.replay();
                }
            }
        }
        reply
    }

    /// Reads from the store, or from what this process has in memory.
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
        // Nothing is sent, which must not count as a reply for the breaker.
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
                        None => shared.fallback.check(slots),
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
        let began = if self.has_fallback() {
            let name = |key: &Key<'_>| shared.inner.name(key);
            (shared.fallback).settled(tokens, settlement, slots, ago, name)
        } else {
            Vec::new()
        };
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
        if self.has_fallback() {
            self.shared.fallback.remember(key, address, keep);
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
                Outage::Fallback => shared.fallback.known(&owned.as_key(), keep),
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
