//! The embedded store.

mod index;
mod ledger;
mod locked;
mod names;
mod room;
mod table;

use std::{
    fmt,
    sync::{
        Arc, Mutex, MutexGuard, PoisonError,
        atomic::{AtomicU64, Ordering},
    },
    time::Duration,
};

use smallvec::SmallVec;

use self::{
    ledger::Books,
    locked::{Locked, Shard, Shards},
    room::Room,
    table::Entry,
};
use super::{
    Key, Ledger, Settled, Settlement, Slot, Standings, Store, StoreError, StoreErrorKind,
    StoreFuture,
    fingerprint::{Place, SHARDS},
};
use crate::{
    Address, KnownAddresses, Token,
    algorithm::Millis,
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
/// **A full store refuses new counters rather than forget live ones**: a flood of new addresses or names can't
/// evict the failures that are already there. Attempts that need a new counter then get an error of the kind
/// [`Full`](StoreErrorKind::Full), while all others are decided as ever, until the first counters expire.
///
/// **One network can't fill it.** Half of the capacity is divided into up to 4,096 shares, the other half is for
/// all. An IPv4 /24 or an IPv6 /48 has one share, so that clients elsewhere are counted as ever while it floods
/// the store. Networks that happen to have the same share, and a flood from tens of thousands of networks, are
/// what this does not cover.
///
/// ```
/// use tower_login_rate_limit::{LoginLimiter, Policy, store::MemoryStore};
///
/// let limiter = LoginLimiter::new(Policy::default(), MemoryStore::new());
/// ```
pub struct MemoryStore {
    shards: Arc<[Mutex<Shard>]>,
    clock: Arc<dyn Clock>,
    room: Arc<Room>,
    searched: Arc<AtomicU64>,
    books: Arc<Books>,
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
            clock: Arc::new(CoarseClock::new()),
            room: Arc::new(Room::new(counters)),
            searched: Arc::default(),
            books: Arc::default(),
        }
    }

    /// The same store with another clock.
    #[must_use]
    pub fn with_clock(mut self, clock: impl Clock) -> Self {
        self.clock = Arc::new(clock);
        self
    }

    /// Drops every counter that no longer counts, now. They leave by themselves when room is needed;
    /// this is for an app that would rather have the memory back.
    pub fn sweep(&self) {
        let now = self.clock.now();
        for shard in self.shards.iter() {
            let mut shard = lock(shard);
            shard.counters.drop_expired(0, now, &self.room);
            shard.known.drop_expired(0, now, &self.room);
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

    /// The same counters once more.
    fn handle(&self) -> Self {
        Self {
            shards: Arc::clone(&self.shards),
            clock: Arc::clone(&self.clock),
            room: Arc::clone(&self.room),
            searched: Arc::clone(&self.searched),
            books: Arc::clone(&self.books),
        }
    }

    /// Locks the counters of these slots. The time is read under the locks, so that time and decisions have
    /// the same order.
    #[inline(always)] // what is locked is large to move
    fn lock(&self, slots: &[Slot<'_>]) -> Locked<'_> {
        let first = slots
            .first()
            .map_or(0, |slot| slot.key.fingerprint.place.shard);
        let is_in_first = |slot: &Slot<'_>| {
            slot.key.fingerprint.place.shard == first && slot.unless_known.is_none()
        };
        let shards = if slots.iter().all(is_in_first) {
            Shards {
                first: (first, self.lock_shard(first)),
                others: Vec::new(),
            }
        } else {
            self.lock_in_order(slots)
        };
        Locked {
            shards,
            room: &self.room,
            now: self.clock.now(),
        }
    }

    /// Each once and in the same order everywhere, so that no two calls wait for each other.
    #[cold]
    fn lock_in_order(&self, slots: &[Slot<'_>]) -> Shards<'_> {
        let mut order = SmallVec::<[_; 8]>::new();
        for slot in slots {
            let keys = [Some(slot.key), slot.known_key()].into_iter().flatten();
            order.extend(keys.map(|key| key.fingerprint.place.shard));
        }
        order.sort_unstable();
        order.dedup();
        let mut locked = order.into_iter().map(|i| (i, self.lock_shard(i)));
        Shards {
            first: locked.next().unwrap_or_else(|| (0, self.lock_shard(0))),
            others: locked.collect(),
        }
    }

    #[inline]
    fn lock_shard(&self, i: u8) -> MutexGuard<'_, Shard> {
        lock(&self.shards[usize::from(i)])
    }

    /// Writes an attempt that was admitted by a store which knows better. See [`Locked::follow`].
    #[cfg(feature = "redis")]
    pub(crate) fn follow(
        &self,
        token: Token,
        lease: Duration,
        slots: &[Slot<'_>],
        standings: &Standings,
        by: Millis,
    ) {
        // Without room it is not known here.
        let _ = (self.lock(slots)).follow(token, to_millis(lease), slots, standings, by);
    }

    /// Forgets the failures of a counter.
    #[cfg(feature = "redis")]
    pub(crate) fn forget(&self, counter: super::fingerprint::Fingerprint) {
        let mut shard = self.lock_shard(counter.place.shard);
        let now = self.clock.now();
        if let Some(counter) = shard.counters.get_mut(counter.id)
            && !counter.is_vacant()
        {
            counter.value.clean_up(&[], None, now);
            if counter.value.is_empty() {
                counter.set_expires(0);
                self.room.give(counter.network(), 1);
            }
        }
    }

    fn remember_now(
        &self,
        key: &Key<'_>,
        address: Address,
        keep: KnownAddresses,
    ) -> Result<(), StoreError> {
        let (id, network) = (key.fingerprint.id, Place::of(address).network);
        let remember = || {
            let mut shard = self.lock_shard(key.fingerprint.place.shard);
            let now = self.clock.now();
            shard.known.prepare(1, now, &self.room);
            let is_new = shard.known.get(id).is_none_or(Entry::is_vacant);
            if is_new && !self.room.take(network, 1) {
                return None;
            }
            let entry = shard.known.get_or_insert(id);
            if is_new {
                entry.set_network(network);
            }
            entry.value.retain(|(_, known)| *known != address);
            entry.value.insert(0, (now, address));
            entry.value.truncate(keep.newest() as usize);
            entry.set_expires(now.saturating_add(to_millis(keep.kept_for())).max(1));
            Some(())
        };
        self.with_room(remember)
    }

    fn known_now(&self, key: &Key<'_>, keep: KnownAddresses) -> Vec<Address> {
        let shard = self.lock_shard(key.fingerprint.place.shard);
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
            "the memory store is full: {} of its {} counters are live, and the share of this network is used \
             up; give it a larger capacity",
            self.room.taken(),
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

#[inline]
fn lock(shard: &Mutex<Shard>) -> MutexGuard<'_, Shard> {
    // No call leaves a shard half changed, so one that panicked left nothing to fear.
    shard.lock().unwrap_or_else(PoisonError::into_inner)
}

impl Store for MemoryStore {
    fn reserve(&self, token: Token, lease: Duration, slots: &[Slot<'_>]) -> StoreFuture<Standings> {
        let (lease, mut standings) = (to_millis(lease), Standings::default());
        let reserve = || (self.lock(slots)).reserve(token, lease, slots, &mut standings);
        match self.with_room(reserve) {
            Ok(()) => StoreFuture::ready(Ok(standings)),
            Err(error) => StoreFuture::ready(Err(error)),
        }
    }

    fn check(&self, slots: &[Slot<'_>]) -> StoreFuture<Standings> {
        StoreFuture::ready(Ok(self.lock(slots).check(slots)))
    }

    fn settle(
        &self,
        tokens: &[Token],
        settlement: Settlement,
        slots: &[Slot<'_>],
        ago: Duration,
    ) -> StoreFuture<Settled> {
        let ago = to_millis(ago);
        let settled = match (settlement, tokens) {
            (Settlement::Failed, [token, ..]) => self.lock(slots).fail(*token, slots, ago),
            (Settlement::Canceled, _) => self.lock(slots).cancel(tokens, slots),
            (Settlement::Succeeded { mains }, [_, ..]) => {
                self.lock(slots).clean_up(tokens, slots, mains, ago, false)
            }
            (Settlement::Forgiven { mains }, _) => {
                self.lock(slots).clean_up(&[], slots, mains, ago, false)
            }
            (Settlement::Cleared { mains }, _) => {
                self.lock(slots).clean_up(&[], slots, mains, ago, true)
            }
            (Settlement::Recorded, [token, ..]) => {
                let record = || self.lock(slots).record(*token, slots, ago);
                return StoreFuture::ready(self.with_room(record));
            }
            (Settlement::Failed | Settlement::Recorded | Settlement::Succeeded { .. }, []) => {
                Settled::default()
            }
        };
        StoreFuture::ready(Ok(settled))
    }

    fn remember(&self, key: &Key<'_>, address: Address, keep: KnownAddresses) -> StoreFuture<()> {
        StoreFuture::ready(self.remember_now(key, address, keep))
    }

    fn known(&self, key: &Key<'_>, keep: KnownAddresses) -> StoreFuture<Vec<Address>> {
        StoreFuture::ready(Ok(self.known_now(key, keep)))
    }

    fn ledger(&self) -> Option<Arc<dyn Ledger>> {
        Some(Arc::new(self.handle()))
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
        let of = |bits: u128| {
            let ip = std::net::Ipv6Addr::from_bits(bits).into();
            let key = Key::of_address(Address::new(ip, 64), "test");
            key.fingerprint.place.shard
        };
        let mut crowds = Vec::new();
        for step in [1_u128 << 80, 1 << 84, 1 << 88, 1 << 100] {
            let mut shards = [0; SHARDS];
            for i in 0..64 * 100 {
                let network = ((i % 4096) * step) ^ ((i / 4096) << 80);
                shards[usize::from(of((0x2001_0db8 << 96) | network))] += 1;
            }
            crowds.push(*shards.iter().max().unwrap_or(&0));
        }
        // Evenly it would be 100 in each.
        assert!(crowds.iter().all(|crowd| *crowd < 1_000), "{crowds:?}");
    }
}
