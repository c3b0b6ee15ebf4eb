//! The embedded store.

mod fingerprint;
mod locked;
mod table;

use std::{
    fmt,
    sync::{
        Mutex, MutexGuard, PoisonError,
        atomic::{AtomicU64, Ordering},
    },
    time::Duration,
};

use smallvec::SmallVec;

use self::{
    fingerprint::Fingerprints,
    locked::{Keys, Locked, SHARDS, Shard, Shards},
    table::Room,
};
use super::{Key, Slot, Standings, Store, StoreError, StoreErrorKind, StoreFuture};
use crate::{
    Address, KnownAddresses, Limit, Token,
    algorithm::{Counter, Millis},
    clock::{Clock, CoarseClock, to_millis},
};

/// How often at most all shards are searched for room when the store is full.
const SEARCH_EVERY: Millis = 1_000;

/// Counters in this process' memory: the default, for an app that runs as one process, and for tests.
///
/// Any number of threads may use it. Counters are spread over shards by address, so that an attempt
/// takes one short lock (up to three with a rule by account), and callers from other addresses hardly
/// ever meet.
///
/// # Memory
///
/// There are never more counters than the capacity, one million unless set, and a counter hardly ever
/// holds more attempts than its limit: a token bucket and a sliding-window counter keep 8 failures
/// beside what is in flight. Counters that no longer count are dropped when room is needed;
/// nothing runs in the background.
///
/// **A full store refuses new counters rather than forget live ones**: whoever floods it with new
/// addresses or names can't wash away the failures that are already there. Attempts that need a new
/// counter then get an error of the kind [`Full`](StoreErrorKind::Full), while all others are decided
/// as ever, until the first counters run out.
///
/// ```
/// use tower_login_rate_limit::{LoginLimiter, Policy, store::MemoryStore};
///
/// let limiter = LoginLimiter::new(Policy::default(), MemoryStore::new());
/// ```
pub struct MemoryStore {
    shards: Box<[Mutex<Shard>]>,
    fingerprints: Fingerprints,
    clock: Box<dyn Clock>,
    room: Room,
    searched: AtomicU64,
}

impl MemoryStore {
    /// An empty store for a million counters.
    #[must_use]
    pub fn new() -> Self {
        Self::with_capacity(1_000_000)
    }

    /// An empty store for this many counters at most. The known addresses of a user take as much
    /// room as a counter.
    #[must_use]
    pub fn with_capacity(counters: usize) -> Self {
        Self {
            shards: (0..SHARDS).map(|_| Mutex::default()).collect(),
            fingerprints: Fingerprints::new(),
            clock: Box::new(CoarseClock::new()),
            room: Room::new(counters),
            searched: AtomicU64::new(0),
        }
    }

    /// The same store with another clock.
    #[must_use]
    pub fn with_clock(mut self, clock: impl Clock) -> Self {
        self.clock = Box::new(clock);
        self
    }

    /// Drops every counter that no longer counts, now. They leave by themselves when room is needed;
    /// this is for an app that would rather have the memory back.
    pub fn sweep(&self) {
        let now = self.clock.now();
        for i in 0..SHARDS {
            let mut shard = self.lock_shard(i);
            shard.counters.drop_expired(now, &self.room);
            shard.known.drop_expired(now, &self.room);
        }
    }

    /// How many counters there are, those that no longer count but have not been dropped yet among
    /// them.
    pub fn len(&self) -> usize {
        self.room.taken()
    }

    /// Whether there are none.
    pub fn is_empty(&self) -> bool {
        self.len() == 0
    }

    #[inline]
    fn keys<'s>(&self, slots: impl IntoIterator<Item = &'s Slot<'s>>) -> Keys {
        let mut keys = Keys {
            counters: SmallVec::new(),
            known: SmallVec::new(),
        };
        for slot in slots {
            if let Some(exception) = &slot.unless_known {
                let addresses = slot.key.known_addresses(exception.kind);
                let place = (keys.counters.len(), self.fingerprints.of(&addresses));
                keys.known.push(place);
            }
            keys.counters.push(self.fingerprints.of(&slot.key));
        }
        keys
    }

    /// Locks these counters. The time is read under the locks, so that time and decisions have the same
    /// order.
    #[inline]
    fn lock<'a>(&'a self, keys: &'a Keys) -> Locked<'a> {
        Locked {
            keys,
            shards: self.lock_shards(keys),
            room: &self.room,
            now: self.clock.now(),
        }
    }

    #[inline]
    fn lock_shards(&self, keys: &Keys) -> Shards<'_> {
        let first = keys.counters.first().map_or(0, |key| key.shard);
        match keys.known.is_empty() && keys.counters.iter().all(|key| key.shard == first) {
            true => Shards::One(self.lock_shard(first)),
            false => Shards::Many(self.lock_in_order(keys)),
        }
    }

    /// Each once and in the same order everywhere, so that no two calls wait for each other.
    fn lock_in_order(&self, keys: &Keys) -> SmallVec<[(usize, MutexGuard<'_, Shard>); 4]> {
        let all = (keys.counters.iter()).chain(keys.known.iter().map(|(_, key)| key));
        let mut order: SmallVec<[_; 6]> = all.map(|key| key.shard).collect();
        order.sort_unstable();
        order.dedup();
        let locked = order.into_iter().map(|i| (i, self.lock_shard(i)));
        locked.collect()
    }

    fn lock_shard(&self, i: usize) -> MutexGuard<'_, Shard> {
        // No call leaves a shard half changed, so one that panicked left nothing to fear.
        self.shards[i]
            .lock()
            .unwrap_or_else(PoisonError::into_inner)
    }

    /// Writes an attempt that was admitted by a store which knows better. See [`Locked::follow`].
    #[cfg(feature = "redis")]
    pub(crate) fn follow(
        &self,
        token: Token,
        lease: Duration,
        slots: &[Slot<'_>],
        standings: &Standings,
        by: Option<Millis>,
    ) {
        let (lease, keys) = (to_millis(lease), self.keys(slots));
        // Without room it is not known here.
        let _ = (self.lock(&keys)).follow(token, lease, slots, standings, by);
    }

    /// Forgets the failures of a counter.
    #[cfg(feature = "redis")]
    pub(crate) fn forget(&self, key: &Key<'_>) {
        let key = self.fingerprints.of(key);
        let mut shard = self.lock_shard(key.shard);
        let now = self.clock.now();
        shard.counters.change(key, &self.room, |counter| {
            counter.value.clean_up(None, now);
            ((), !counter.value.is_empty())
        });
    }

    fn remember_now(
        &self,
        key: &Key<'_>,
        address: Address,
        keep: KnownAddresses,
    ) -> Result<(), StoreError> {
        let key = self.fingerprints.of(key);
        let remember = || {
            let mut shard = self.lock_shard(key.shard);
            let now = self.clock.now();
            if shard.known.get(key).is_none() {
                if !self.room.take(1) {
                    return None;
                }
                shard.known.prepare(1, now, &self.room);
            }
            let entry = shard.known.get_or_insert(key);
            entry.value.retain(|(_, known)| *known != address);
            entry.value.insert(0, (now, address));
            entry.value.truncate(keep.newest() as usize);
            entry.expires = now.saturating_add(to_millis(keep.kept_for()));
            Some(())
        };
        self.with_room(remember)
    }

    fn known_now(&self, key: &Key<'_>, keep: KnownAddresses) -> Vec<Address> {
        let key = self.fingerprints.of(key);
        let shard = self.lock_shard(key.shard);
        shard.known(key, keep, self.clock.now()).collect()
    }

    /// Does what needs room for new entries, after a search for room if there is none.
    fn with_room<T>(&self, mut work: impl FnMut() -> Option<T>) -> Result<T, StoreError> {
        if let Some(done) = work() {
            return Ok(done);
        }
        self.search_for_room();
        work().ok_or_else(|| self.full())
    }

    fn full(&self) -> StoreError {
        let message = format!(
            "the memory store is full: all of its {} counters are live; give it a larger capacity",
            self.room.capacity()
        );
        StoreError::new(StoreErrorKind::Full, message)
    }

    /// Drops what no longer counts from all shards. Once in a while only: when everything that is
    /// there is live, searching again and again would cost more than the flood that filled the store.
    pub(crate) fn search_for_room(&self) {
        let now = self.clock.now();
        let last = self.searched.load(Ordering::Relaxed);
        if last != 0 && now >= last && now - last < SEARCH_EVERY {
            return;
        }
        let mine =
            self.searched
                .compare_exchange(last, now.max(1), Ordering::Relaxed, Ordering::Relaxed);
        if mine.is_ok() {
            self.sweep();
        }
    }
}

impl Store for MemoryStore {
    fn reserve(&self, token: Token, lease: Duration, slots: &[Slot<'_>]) -> StoreFuture<Standings> {
        let (lease, keys) = (to_millis(lease), self.keys(slots));
        let mut standings = Standings::default();
        let reserve = || (self.lock(&keys)).reserve(token, lease, slots, &mut standings);
        match self.with_room(reserve) {
            Ok(()) => StoreFuture::now(Ok(standings)),
            Err(error) => StoreFuture::now(Err(error)),
        }
    }

    fn check(&self, slots: &[Slot<'_>]) -> StoreFuture<Standings> {
        StoreFuture::now(Ok(self.lock(&self.keys(slots)).check(slots)))
    }

    fn fail(&self, token: Token, slots: &[Slot<'_>]) -> StoreFuture<usize> {
        let fail = |limit: &Limit, counter: &mut Counter, now| counter.fail(limit, token, now);
        StoreFuture::now(Ok(self.lock(&self.keys(slots)).change(slots, fail)))
    }

    fn cancel(&self, token: Token, slots: &[Slot<'_>]) -> StoreFuture<usize> {
        let cancel = |_: &Limit, counter: &mut Counter, _| counter.cancel(token);
        StoreFuture::now(Ok(self.lock(&self.keys(slots)).change(slots, cancel)))
    }

    fn cleanup(
        &self,
        token: Option<Token>,
        mains: &[Slot<'_>],
        others: &[Slot<'_>],
    ) -> StoreFuture<()> {
        let slots = mains.iter().chain(others);
        let keys = self.keys(slots.clone());
        self.lock(&keys).clean_up(token, slots, mains.len());
        StoreFuture::now(Ok(()))
    }

    fn remember(&self, key: &Key<'_>, address: Address, keep: KnownAddresses) -> StoreFuture<()> {
        StoreFuture::now(self.remember_now(key, address, keep))
    }

    fn known(&self, key: &Key<'_>, keep: KnownAddresses) -> StoreFuture<Vec<Address>> {
        StoreFuture::now(Ok(self.known_now(key, keep)))
    }
}

impl Default for MemoryStore {
    fn default() -> Self {
        Self::new()
    }
}

impl fmt::Debug for MemoryStore {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("MemoryStore")
            .field("len", &self.len())
            .field("capacity", &self.room.capacity())
            .finish_non_exhaustive()
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    /// Networks as they are handed out in practice, which differ in a few bits only.
    #[test]
    fn addresses_are_spread_over_the_shards() {
        let fingerprints = Fingerprints::new();
        let of = |bits: u128| {
            let ip = std::net::Ipv6Addr::from_bits(bits).into();
            fingerprints
                .of(&Key::of_address(Address::new(ip, 64), "test"))
                .shard
        };
        let mut crowds = Vec::new();
        for step in [1_u128 << 64, 1 << 72, 1 << 80, 1 << 100] {
            let mut shards = [0; SHARDS];
            for i in 0..64 * 100 {
                let network = ((i % 4096) * step) ^ ((i / 4096) << 64);
                shards[of((0x2001_0db8 << 96) | network)] += 1;
            }
            crowds.push(*shards.iter().max().unwrap_or(&0));
        }
        // Evenly it would be 100 in each.
        assert!(crowds.iter().all(|crowd| *crowd < 1_000), "{crowds:?}");
    }
}
