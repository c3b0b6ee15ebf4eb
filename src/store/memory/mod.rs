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
    algorithm::{Millis, Standing, State, Window},
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
    counters: Table<Window>,
    known: Table<Vec<(Millis, Address)>>,
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
        // Each once and in the same order everywhere, so that no two calls wait for each other.
        let mut order: SmallVec<[_; 4]> = keys.iter().map(shard_of).collect();
        order.sort_unstable();
        order.dedup();
        let shards = order.into_iter().map(|i| (i, self.lock_shard(i))).collect();
        Locked {
            keys,
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
        let now = self.clock.now();
        let kept_for = to_millis(keep.kept_for());
        let Some(entry) = shard.known.get(key.bits) else {
            return Vec::new();
        };
        let kept = entry
            .value
            .iter()
            .filter(|(at, _)| at.saturating_add(kept_for) > now);
        kept.take(keep.newest() as usize)
            .map(|(_, address)| *address)
            .collect()
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
    shards: SmallVec<[(usize, MutexGuard<'a, Shard>); 2]>,
    room: &'a Room,
    now: Millis,
}

impl Locked<'_> {
    /// Reserves in all slots or in none; `None` if there is no room for new counters.
    fn reserve(&mut self, token: Token, lease: Millis, slots: &[Slot<'_>]) -> Option<Standings> {
        let standings: Standings = (slots.iter().zip(&self.keys))
            .map(|(slot, key)| self.standing(key, slot.limit))
            .collect();
        // An attempt that is here already is let through: its first reply may have been lost.
        let held = |key| self.window(key).is_some_and(|window| window.holds(token));
        let mut asked = standings.iter().zip(&self.keys);
        if asked.any(|(standing, key)| standing.refuses() && !held(key)) {
            self.keep_blocked(slots, &standings);
            return Some(standings);
        }

        // Room first: while there is none, nothing has to be searched again and again.
        let (now, room) = (self.now, self.room);
        let new = self.new_counters();
        if !room.take(new) {
            return None;
        }
        if new > 0 {
            for (_, shard) in &mut self.shards {
                shard.counters.prepare(new, now, room);
            }
        }
        // One of ours may have been dead, and its room was given back.
        room.take_back(self.new_counters() - new);
        let admitted = (slots.iter().zip(self.keys.clone()))
            .map(|(slot, key)| {
                let Limit::SlidingWindow(limit) = slot.limit;
                let counter = self.shard(&key).counters.get_or_insert(key.bits);
                let standing = counter.value.admit(&limit, token, lease, now);
                counter.expires = expires(&counter.value, slot.limit, now);
                standing
            })
            .collect();
        Some(admitted)
    }

    /// How many of the counters are not there yet.
    fn new_counters(&self) -> usize {
        let is_new = |(i, key): &(usize, &Fingerprint)| {
            self.window(key).is_none() && !self.keys[..*i].contains(key)
        };
        self.keys.iter().enumerate().filter(is_new).count()
    }

    fn check(&self, slots: &[Slot<'_>]) -> Standings {
        (slots.iter().zip(&self.keys))
            .map(|(slot, key)| self.standing(key, slot.limit))
            .collect()
    }

    /// Applies `change` to each counter that is there; says how many it changed.
    fn change(
        &mut self,
        slots: &[Slot<'_>],
        mut change: impl FnMut(&mut Window, Millis) -> bool,
    ) -> usize {
        let (now, room) = (self.now, self.room);
        let mut changed = 0;
        for (slot, key) in slots.iter().zip(self.keys.clone()) {
            let counters = &mut self.shard(&key).counters;
            let Some(counter) = counters.get_mut(key.bits) else {
                continue;
            };
            if change(&mut counter.value, now) {
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

    /// Takes `token` and the failed attempts of the first slot out of all; says how many left the
    /// first.
    fn clean_up(&mut self, token: Option<Token>, slots: &[Slot<'_>]) -> usize {
        let main = self.keys.first().and_then(|key| self.window(key));
        let mut tokens: Vec<_> = token.into_iter().collect();
        let mut left = 0;
        if let Some(main) = main
            && token.is_none_or(|token| main.holds(token))
        {
            tokens.extend(
                main.failed(self.now)
                    .filter(|failed| Some(*failed) != token),
            );
            left = tokens.len();
        }
        self.change(slots, |window, _| window.cancel_all(&tokens) > 0);
        left
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

    fn standing(&self, key: &Fingerprint, limit: Limit) -> Standing {
        let Limit::SlidingWindow(limit) = limit;
        match self.window(key) {
            Some(window) => window.standing(&limit, self.now),
            None => Window::default().standing(&limit, self.now),
        }
    }

    fn window(&self, key: &Fingerprint) -> Option<&Window> {
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

fn expires(window: &Window, limit: Limit, now: Millis) -> Millis {
    let Limit::SlidingWindow(limit) = limit;
    window.expires(&limit, now).unwrap_or(Millis::MAX)
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
        let fail = |window: &mut Window, now| window.fail(token, now);
        StoreFuture::now(Ok(self.lock(slots).change(slots, fail)))
    }

    fn cancel(&self, token: Token, slots: &[Slot<'_>]) -> StoreFuture<usize> {
        let cancel = |window: &mut Window, _| window.cancel(token);
        StoreFuture::now(Ok(self.lock(slots).change(slots, cancel)))
    }

    fn cleanup(
        &self,
        token: Option<Token>,
        main: &Slot<'_>,
        others: &[Slot<'_>],
    ) -> StoreFuture<usize> {
        let slots: SmallVec<[_; 4]> = std::iter::once(main).chain(others).cloned().collect();
        StoreFuture::now(Ok(self.lock(&slots).clean_up(token, &slots)))
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
