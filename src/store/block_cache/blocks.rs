//! The table of cached blocks.

use std::{
    collections::HashMap,
    sync::{
        Arc, Mutex, MutexGuard, PoisonError,
        atomic::{AtomicU64, AtomicUsize, Ordering},
    },
    time::Duration,
};

use crate::{
    Address, Limit, Period,
    algorithm::{Millis, Standing, State},
    clock::{Clock, to_millis},
    store::{
        Key, Reporters, ServerId, Slot, Standings,
        fingerprint::{Fingerprint, SHARDS},
    },
};

/// How long an entry is fresh while invalidations are received.
const FRESH: Millis = 10_000;
/// How long an entry is fresh while they are not: an unblock takes effect everywhere within a second.
const FRESH_UNSUBSCRIBED: Millis = 500;
/// How long others wait for the caller that revalidates an entry, which may have gone away.
const REVALIDATING: Millis = 100;
/// How often a full cache is searched for entries that have lifted.
const SWEEP_EVERY: Millis = 1_000;

pub(super) struct Blocks {
    shards: Box<[Mutex<Shard>]>,
    /// Entries by the counter's name on the server, for invalidations. Locked after a shard, if both are.
    names: Mutex<HashMap<Box<[u8]>, Fingerprint>>,
    len: AtomicUsize,
    capacity: usize,
    clock: Arc<dyn Clock>,
    swept: AtomicU64,
    /// Since which subscription invalidations have been received without a gap; 0 for none.
    subscription: AtomicU64,
    invalidations: AtomicU64,
    hits: AtomicU64,
}

/// Entries by fingerprint.
#[derive(Default)]
struct Shard {
    blocks: HashMap<u64, Block>,
    /// Addresses that the store did not exempt from a counter, by address and subject.
    strangers: HashMap<u64, Confirmed>,
}

/// When the store reported something, and during which subscription.
#[derive(Clone, Copy)]
pub(super) struct Confirmed {
    at: Millis,
    subscription: u64,
}

pub(super) struct Block {
    standing: Standing,
    /// What it was judged by. Under another limit the store may decide otherwise.
    limit: Limit,
    /// `None` for never.
    lifts: Option<Millis>,
    confirmed: Confirmed,
    /// When a caller last went to ask the store.
    revalidating: Option<Millis>,
    /// The server that reported it, if known.
    server: Option<ServerId>,
    name: Box<[u8]>,
}

/// Which entries a lookup accepts.
#[derive(Clone, Copy, PartialEq, Eq)]
pub(super) enum Accept {
    /// Those that are fresh, or that another caller revalidates.
    Fresh,
    /// All that have not lifted.
    Stale,
}

pub(super) enum Lookup {
    /// No counter is known to be blocked.
    Miss,
    /// One is, and must be revalidated.
    Stale,
    Refused(Standings),
}

/// The state of the cache when the store was asked.
#[derive(Clone, Copy)]
pub(super) struct Asked {
    confirmed: Confirmed,
    invalidations: u64,
}

impl Blocks {
    pub(super) fn new(capacity: usize, clock: Arc<dyn Clock>) -> Self {
        Self {
            shards: (0..SHARDS).map(|_| Mutex::default()).collect(),
            names: Mutex::default(),
            len: AtomicUsize::new(0),
            capacity,
            clock,
            swept: AtomicU64::new(0),
            subscription: AtomicU64::new(0),
            invalidations: AtomicU64::new(0),
            hits: AtomicU64::new(0),
        }
    }

    pub(super) const fn capacity(&self) -> usize {
        self.capacity
    }

    pub(super) fn len(&self) -> usize {
        self.len.load(Ordering::Relaxed)
    }

    /// How many attempts were refused from the cache.
    pub(super) fn hits(&self) -> u64 {
        self.hits.load(Ordering::Relaxed)
    }

    pub(super) fn subscription(&self) -> u64 {
        self.subscription.load(Ordering::Relaxed)
    }

    pub(super) fn set_subscription(&self, number: u64) {
        self.subscription.store(number, Ordering::Relaxed);
    }

    /// Drops the entry of a counter that may no longer be blocked.
    pub(super) fn invalidate(&self, name: &[u8]) {
        let names = lock(&self.names);
        // Under the lock: a reply from before is cached before this, and dropped here, or not at all.
        self.invalidations.fetch_add(1, Ordering::SeqCst);
        let fingerprint = names.get(name).copied();
        drop(names);
        if let Some(fingerprint) = fingerprint {
            self.remove(fingerprint);
        }
    }

    fn shard(&self, of: Fingerprint) -> MutexGuard<'_, Shard> {
        lock(&self.shards[usize::from(of.place.shard)])
    }

    /// Finds out whether one of these counters is blocked. Those that are not cached are reported as
    /// untouched.
    pub(super) fn look_up(&self, slots: &[Slot<'_>], accept: Accept) -> Lookup {
        if self.len.load(Ordering::Relaxed) == 0 {
            return Lookup::Miss;
        }
        let now = self.clock.now();
        let subscription = self.subscription.load(Ordering::Relaxed);
        let mut refused: Option<Standings> = None;
        for (i, slot) in slots.iter().enumerate() {
            // Its block may have been cached before it was put into shadow.
            if slot.shadow {
                continue;
            }
            let fingerprint = slot.key.fingerprint;
            let shard = self.shard(fingerprint);
            let Some(block) = shard.blocks.get(&fingerprint.id) else {
                continue;
            };
            let Some(lifts) = block.left(now) else {
                drop(shard);
                self.remove(fingerprint);
                continue;
            };
            if block.limit != *slot.limit {
                continue;
            }
            if accept != Accept::Stale && !block.is_fresh(now, subscription) {
                return Lookup::Stale;
            }
            let standing = Standing {
                state: State::Blocked { lifts },
                ..block.standing
            };
            drop(shard);
            if let (Some(known), Some(key)) = (&slot.unless_known, slot.known_key())
                && !self.is_stranger(&key, known.address, now, subscription)
            {
                continue;
            }
            let standings = refused.get_or_insert_with(|| Standings::untouched(slots));
            standings.as_mut()[i] = standing;
        }
        match refused {
            Some(standings) => {
                self.hits.fetch_add(1, Ordering::Relaxed);
                Lookup::Refused(standings)
            }
            None => Lookup::Miss,
        }
    }

    /// Has others wait for this caller, who is about to ask the store.
    pub(super) fn begin_revalidating(&self, slots: &[Slot<'_>]) {
        let now = self.clock.now();
        for slot in slots {
            let fingerprint = slot.key.fingerprint;
            if let Some(block) = self.shard(fingerprint).blocks.get_mut(&fingerprint.id) {
                block.revalidating = Some(now);
            }
        }
    }

    /// Whether the store has not exempted this address from the counter, as far as is known.
    fn is_stranger(&self, key: &Key<'_>, address: Address, now: Millis, subscription: u64) -> bool {
        let stranger = self.stranger(key, address);
        let shard = self.shard(stranger);
        let confirmed = shard.strangers.get(&stranger.id);
        confirmed.is_some_and(|confirmed| confirmed.is_fresh(now, subscription))
    }

    /// Stands for an address that is not among those under a key.
    pub(super) fn stranger(&self, known: &Key<'_>, address: Address) -> Fingerprint {
        let id = known.fingerprint.id.to_le_bytes();
        Key::new(Some(address), known.kind, &id).fingerprint
    }

    pub(super) fn set_stranger(&self, stranger: Fingerprint, confirmed: Option<Confirmed>) {
        let strangers = &mut self.shard(stranger).strangers;
        let Some(confirmed) = confirmed else {
            strangers.remove(&stranger.id);
            return;
        };
        // Each is fresh for seconds only. Without one the store is asked.
        if strangers.len() >= (self.capacity / SHARDS).max(1) {
            strangers.clear();
        }
        strangers.insert(stranger.id, confirmed);
    }

    pub(super) fn asked(&self) -> Asked {
        let confirmed = Confirmed {
            at: self.clock.now(),
            subscription: self.subscription.load(Ordering::Relaxed),
        };
        Asked {
            confirmed,
            invalidations: self.invalidations.load(Ordering::SeqCst),
        }
    }

    /// The block of a counter that has not lifted, and the server that reported it.
    pub(super) fn reported(&self, slot: &Slot<'_>) -> Option<(Standing, Period, ServerId)> {
        let fingerprint = slot.key.fingerprint;
        let shard = self.shard(fingerprint);
        let block = shard.blocks.get(&fingerprint.id)?;
        let lifts = block.left(self.clock.now())?;
        let standing = Standing {
            state: State::Blocked { lifts },
            ..block.standing
        };
        let is_enforced = block.limit == *slot.limit && !slot.shadow;
        is_enforced.then_some((standing, lifts, block.server?))
    }

    /// Caches the blocks of a reply, and drops entries that it contradicts.
    pub(super) fn learn(
        &self,
        asked: Asked,
        slots: &[Slot<'_>],
        standings: &Standings,
        reporters: &Reporters,
        name: impl Fn(&Key<'_>) -> Vec<u8>,
    ) {
        for (i, (slot, standing)) in slots.iter().zip(&**standings).enumerate() {
            let lifts = match standing.state {
                State::Blocked { lifts } => Some(lifts),
                // Its block, if there is one, is for others.
                State::Exempt => continue,
                _ => None,
            };
            let fingerprint = slot.key.fingerprint;
            self.remove(fingerprint);
            let Some(lifts) = lifts.filter(|_| self.make_room(asked.confirmed.at)) else {
                continue;
            };
            if let (Some(known), Some(key)) = (&slot.unless_known, slot.known_key()) {
                let stranger = self.stranger(&key, known.address);
                self.set_stranger(stranger, Some(asked.confirmed));
            }
            let reporter = reporters.iter().find(|(position, _)| *position == i);
            let block = Block {
                standing: *standing,
                limit: slot.limit.clone(),
                // From when the store was asked, so that no caller is refused longer than by the store.
                lifts: (lifts.as_duration())
                    .map(|left| asked.confirmed.at.saturating_add(to_millis(left))),
                confirmed: asked.confirmed,
                revalidating: None,
                server: reporter.map(|(_, server)| *server),
                name: name(&slot.key).into(),
            };
            let mut shard = self.shard(fingerprint);
            let mut names = lock(&self.names);
            // A counter may have been invalidated after the store had answered.
            if self.invalidations.load(Ordering::SeqCst) != asked.invalidations {
                continue;
            }
            names.insert(block.name.clone(), fingerprint);
            if shard.blocks.insert(fingerprint.id, block).is_none() {
                self.len.fetch_add(1, Ordering::Relaxed);
            }
        }
    }

    /// Drops the entries of counters that this process has changed.
    pub(super) fn remove_all(&self, fingerprints: &[Fingerprint]) {
        self.invalidations.fetch_add(1, Ordering::SeqCst);
        for fingerprint in fingerprints {
            self.remove(*fingerprint);
        }
    }

    pub(super) fn remove(&self, fingerprint: Fingerprint) -> Option<Block> {
        let mut shard = self.shard(fingerprint);
        let block = shard.blocks.remove(&fingerprint.id)?;
        lock(&self.names).remove(&block.name);
        self.len.fetch_sub(1, Ordering::Relaxed);
        Some(block)
    }

    /// Whether there is room for one more entry, after a search for lifted ones if it is full.
    fn make_room(&self, now: Millis) -> bool {
        let has_room = || self.len.load(Ordering::Relaxed) < self.capacity;
        let swept = self.swept.load(Ordering::Relaxed);
        if has_room()
            || self.capacity == 0
            || (swept != 0 && now >= swept && now - swept < SWEEP_EVERY)
        {
            return has_room();
        }
        self.swept.store(now.max(1), Ordering::Relaxed);
        for shard in &self.shards {
            let blocks = &mut lock(shard).blocks;
            let before = blocks.len();
            blocks.retain(|_, block| {
                let holds = block.left(now).is_some();
                if !holds {
                    lock(&self.names).remove(&block.name);
                }
                holds
            });
            self.len.fetch_sub(before - blocks.len(), Ordering::Relaxed);
        }
        has_room()
    }
}

impl Block {
    /// The time until it lifts; `None` if it has.
    fn left(&self, now: Millis) -> Option<Period> {
        match self.lifts {
            None => Some(Period::Forever),
            Some(lifts) if now < lifts => Some(Period::Of(Duration::from_millis(lifts - now))),
            Some(_) => None,
        }
    }

    /// Whether it can be used without asking the store, or another caller is asking.
    fn is_fresh(&self, now: Millis, subscription: u64) -> bool {
        let is_recent = |since: Millis| now.saturating_sub(since) < REVALIDATING;
        self.confirmed.is_fresh(now, subscription) || self.revalidating.is_some_and(is_recent)
    }
}

impl Confirmed {
    fn is_fresh(self, now: Millis, subscription: u64) -> bool {
        let is_subscribed = self.subscription != 0 && self.subscription == subscription;
        let fresh = if is_subscribed {
            FRESH
        } else {
            FRESH_UNSUBSCRIBED
        };
        now.saturating_sub(self.at) < fresh
    }
}

fn lock<T>(mutex: &Mutex<T>) -> MutexGuard<'_, T> {
    // No holder leaves it half changed, so a panic leaves nothing to recover from.
    mutex.lock().unwrap_or_else(PoisonError::into_inner)
}
