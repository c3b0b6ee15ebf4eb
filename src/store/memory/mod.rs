//! The embedded store.

mod fingerprint;
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
    fingerprint::{Fingerprint, Fingerprints},
    table::{Room, Table},
};
use super::{Key, Slot, Standings, Store, StoreError, StoreErrorKind, StoreFuture};
use crate::{
    Address, KnownAddresses, Limit, Token,
    algorithm::{Counter, Millis, Standing, State},
    clock::{Clock, MonotonicClock, to_millis},
};

const SHARDS: usize = 64;
/// How often at most all shards are searched for room when the store is full.
const SEARCH_EVERY: Millis = 1_000;

/// Counters in this process' memory: the default, for an app that runs as one process, and for tests.
///
/// Any number of threads may use it. Counters are spread over shards by address, so that an attempt
/// takes one short lock, and callers from other addresses hardly ever meet.
///
/// # Memory
///
/// There are never more counters than the capacity, one million unless set, and a counter never
/// holds more attempts than its limit. Counters that no longer count are dropped when room is needed;
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

/// What shares a lock: the counters of some addresses.
#[derive(Default)]
struct Shard {
    counters: Table<Counter>,
    known: Table<Vec<(Millis, Address)>>,
}

impl Shard {
    /// The addresses kept under this key, the newest first.
    fn known(
        &self,
        key: &Fingerprint,
        keep: KnownAddresses,
        now: Millis,
    ) -> impl Iterator<Item = Address> {
        let kept_for = to_millis(keep.kept_for());
        let entries = self.known.get(key.bits).into_iter();
        entries
            .flat_map(|entry| &entry.value)
            .filter(move |(at, _)| at.saturating_add(kept_for) > now)
            .take(keep.newest() as usize)
            .map(|(_, address)| *address)
    }
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
            clock: Box::new(MonotonicClock::new()),
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

    /// How many counters there are, those that no longer count but have not been dropped yet among
    /// them.
    pub fn len(&self) -> usize {
        self.room.taken()
    }

    /// Whether there are none.
    pub fn is_empty(&self) -> bool {
        self.len() == 0
    }

    /// Locks the counters of these slots. The time is read under the locks, so that time and
    /// decisions have the same order.
    fn lock(&self, slots: &[Slot<'_>]) -> Locked<'_> {
        let keys: SmallVec<[_; 4]> = slots
            .iter()
            .map(|slot| self.fingerprints.of(&slot.key))
            .collect();
        let known: SmallVec<[_; 4]> = slots
            .iter()
            .map(|slot| Some(self.fingerprints.of(&slot.unless_known.as_ref()?.key)))
            .collect();
        // Each once and in the same order everywhere, so that no two calls wait for each other.
        let all = keys.iter().chain(known.iter().flatten());
        let mut order: SmallVec<[_; 4]> = all.map(shard_of).collect();
        order.sort_unstable();
        order.dedup();
        let shards = order.into_iter().map(|i| (i, self.lock_shard(i))).collect();
        Locked {
            keys,
            known,
            shards,
            room: &self.room,
            now: self.clock.now(),
        }
    }

    fn lock_shard(&self, i: usize) -> MutexGuard<'_, Shard> {
        // No call leaves a shard half changed, so one that panicked left nothing to fear.
        self.shards[i]
            .lock()
            .unwrap_or_else(PoisonError::into_inner)
    }

    fn remember_now(
        &self,
        key: &Key<'_>,
        address: Address,
        keep: KnownAddresses,
    ) -> Result<(), StoreError> {
        let key = self.fingerprints.of(key);
        let remember = || {
            let mut shard = self.lock_shard(shard_of(&key));
            let now = self.clock.now();
            if shard.known.get(key.bits).is_none() {
                if !self.room.take(1) {
                    return None;
                }
                shard.known.prepare(1, now, &self.room);
            }
            let entry = shard.known.get_or_insert(key.bits);
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
        let shard = self.lock_shard(shard_of(&key));
        shard.known(&key, keep, self.clock.now()).collect()
    }

    /// Does what needs room for new entries, after a search for room if there is none.
    fn with_room<T>(&self, mut work: impl FnMut() -> Option<T>) -> Result<T, StoreError> {
        if let Some(done) = work() {
            return Ok(done);
        }
        self.search_for_room(self.clock.now());
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
    fn search_for_room(&self, now: Millis) {
        let last = self.searched.load(Ordering::Relaxed);
        if last != 0 && now >= last && now - last < SEARCH_EVERY {
            return;
        }
        let mine =
            self.searched
                .compare_exchange(last, now.max(1), Ordering::Relaxed, Ordering::Relaxed);
        if mine.is_ok() {
            for i in 0..SHARDS {
                let mut shard = self.lock_shard(i);
                shard.counters.drop_expired(now, &self.room);
                shard.known.drop_expired(now, &self.room);
            }
        }
    }
}

const fn shard_of(key: &Fingerprint) -> usize {
    (key.group >> (u64::BITS - SHARDS.ilog2())) as usize
}

/// The counters of some slots, held until dropped.
struct Locked<'a> {
    keys: SmallVec<[Fingerprint; 4]>,
    /// Where the addresses are that a slot makes an exception for.
    known: SmallVec<[Option<Fingerprint>; 4]>,
    shards: SmallVec<[(usize, MutexGuard<'a, Shard>); 2]>,
    room: &'a Room,
    now: Millis,
}

impl Locked<'_> {
    /// Reserves in all slots or in none; `None` if there is no room for new counters.
    fn reserve(&mut self, token: Token, lease: Millis, slots: &[Slot<'_>]) -> Option<Standings> {
        let mut standings = self.check(slots);
        // An attempt that is here already is let through: its first reply may have been lost.
        let held = |key| {
            self.counter(key)
                .is_some_and(|counter| counter.holds(token))
        };
        let mut asked = standings.iter().zip(&self.keys);
        if asked.any(|(standing, key)| standing.refuses() && !held(key)) {
            self.keep_blocked(slots, &standings);
            return Some(standings);
        }

        // Room first: while there is none, nothing has to be searched again and again.
        let (now, room) = (self.now, self.room);
        let new = self.new_counters(&standings);
        if !room.take(new) {
            return None;
        }
        if new > 0 {
            for (_, shard) in &mut self.shards {
                shard.counters.prepare(new, now, room);
            }
        }
        // One of ours may have been dead, and its room was given back.
        room.take_back(self.new_counters(&standings) - new);
        for ((slot, standing), key) in slots.iter().zip(&mut *standings).zip(self.keys.clone()) {
            if standing.state != State::Exempt {
                let counter = self.shard(&key).counters.get_or_insert(key.bits);
                *standing = counter.value.admit(slot.limit, token, lease, now);
                counter.expires = expires(&counter.value, slot.limit, now);
            }
        }
        Some(standings)
    }

    /// How many of the counters that are to be written to are not there yet.
    fn new_counters(&self, standings: &Standings) -> usize {
        let is_new = |i: &usize| {
            let key = &self.keys[*i];
            let counts = |i: usize| standings[i].state != State::Exempt;
            counts(*i)
                && self.counter(key).is_none()
                && !(0..*i).any(|before| counts(before) && self.keys[before] == *key)
        };
        (0..self.keys.len()).filter(is_new).count()
    }

    fn check(&self, slots: &[Slot<'_>]) -> Standings {
        let standing = |(i, slot): (usize, &Slot<'_>)| {
            let standing = match self.counter(&self.keys[i]) {
                Some(counter) => counter.standing(slot.limit, self.now),
                None => Counter::default().standing(slot.limit, self.now),
            };
            match self.is_exempt(i, slot) {
                true => Standing {
                    state: State::Exempt,
                    ..standing
                },
                false => standing,
            }
        };
        slots.iter().enumerate().map(standing).collect()
    }

    fn is_exempt(&self, i: usize, slot: &Slot<'_>) -> bool {
        let (Some(known), Some(key)) = (&slot.unless_known, &self.known[i]) else {
            return false;
        };
        let shard = self.shards.iter().find(|(i, _)| *i == shard_of(key));
        shard.is_some_and(|(_, shard)| {
            let mut addresses = shard.known(key, known.keep, self.now);
            addresses.any(|address| address == known.address)
        })
    }

    /// Applies `change` to each counter that is there; says how many it changed.
    fn change(
        &mut self,
        slots: &[Slot<'_>],
        mut change: impl FnMut(usize, &mut Counter, Millis) -> bool,
    ) -> usize {
        let (now, room) = (self.now, self.room);
        let mut changed = 0;
        for (i, (slot, key)) in slots.iter().zip(self.keys.clone()).enumerate() {
            let counters = &mut self.shard(&key).counters;
            let Some(counter) = counters.get_mut(key.bits) else {
                continue;
            };
            if change(i, &mut counter.value, now) {
                changed += 1;
                if counter.value.is_empty() {
                    counters.remove(key.bits, room);
                } else {
                    counter.expires = expires(&counter.value, slot.limit, now);
                }
            }
        }
        changed
    }

    /// Cleans up the first so many slots, and takes what left them out of all.
    fn clean_up(&mut self, token: Option<Token>, slots: &[Slot<'_>], mains: usize) {
        let mut tokens: Vec<_> = token.into_iter().collect();
        self.change(slots, |i, counter, now| {
            if i < mains {
                tokens.extend(counter.clean_up(token, now));
            }
            i < mains
        });
        self.change(slots, |_, counter, _| counter.cancel_all(&tokens) > 0);
    }

    /// A block may have become longer by a new policy since the counter was written last.
    fn keep_blocked(&mut self, slots: &[Slot<'_>], standings: &Standings) {
        let now = self.now;
        for ((slot, standing), key) in slots.iter().zip(&**standings).zip(self.keys.clone()) {
            if matches!(standing.state, State::Blocked { .. })
                && let Some(counter) = self.shard(&key).counters.get_mut(key.bits)
            {
                counter.expires = expires(&counter.value, slot.limit, now);
            }
        }
    }

    fn counter(&self, key: &Fingerprint) -> Option<&Counter> {
        let i = shard_of(key);
        let (_, shard) = self.shards.iter().find(|(shard, _)| *shard == i)?;
        shard.counters.get(key.bits).map(|counter| &counter.value)
    }

    fn shard(&mut self, key: &Fingerprint) -> &mut Shard {
        let i = shard_of(key);
        let position = self.shards.iter().position(|(shard, _)| *shard == i);
        &mut self.shards[position.unwrap_or_default()].1
    }
}

fn expires(counter: &Counter, limit: &Limit, now: Millis) -> Millis {
    counter.expires(limit, now).unwrap_or(Millis::MAX)
}

impl Store for MemoryStore {
    fn reserve(&self, token: Token, lease: Duration, slots: &[Slot<'_>]) -> StoreFuture<Standings> {
        let lease = to_millis(lease);
        StoreFuture::now(self.with_room(|| self.lock(slots).reserve(token, lease, slots)))
    }

    fn check(&self, slots: &[Slot<'_>]) -> StoreFuture<Standings> {
        StoreFuture::now(Ok(self.lock(slots).check(slots)))
    }

    fn fail(&self, token: Token, slots: &[Slot<'_>]) -> StoreFuture<usize> {
        let fail = |_, counter: &mut Counter, now| counter.fail(token, now);
        StoreFuture::now(Ok(self.lock(slots).change(slots, fail)))
    }

    fn cancel(&self, token: Token, slots: &[Slot<'_>]) -> StoreFuture<usize> {
        let cancel = |_, counter: &mut Counter, _| counter.cancel(token);
        StoreFuture::now(Ok(self.lock(slots).change(slots, cancel)))
    }

    fn cleanup(
        &self,
        token: Option<Token>,
        mains: &[Slot<'_>],
        others: &[Slot<'_>],
    ) -> StoreFuture<()> {
        let slots: SmallVec<[_; 4]> = mains.iter().chain(others).cloned().collect();
        self.lock(&slots).clean_up(token, &slots, mains.len());
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
            shard_of(&fingerprints.of(&Key::of_address(Address::new(ip, 64), "test")))
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
