//! Counters under their locks.

use std::sync::MutexGuard;

use smallvec::SmallVec;

use super::{
    fingerprint::Fingerprint,
    table::{Entry, Room, Table},
};
use crate::{
    Address, KnownAddresses, Limit, Token,
    algorithm::{Counter, Millis, Standing, State},
    clock::to_millis,
    store::{KnownAddress, Slot, Standings},
};

pub(super) const SHARDS: usize = 64;

/// What shares a lock: the counters of some addresses.
#[derive(Default)]
pub(super) struct Shard {
    pub(super) counters: Table<Counter>,
    pub(super) known: Table<Vec<(Millis, Address)>>,
}

impl Shard {
    /// The addresses kept under this key, the newest first.
    pub(super) fn known(
        &self,
        key: Fingerprint,
        keep: KnownAddresses,
        now: Millis,
    ) -> impl Iterator<Item = Address> {
        let kept_for = to_millis(keep.kept_for());
        let entries = self.known.get(key).into_iter();
        entries
            .flat_map(|entry| &entry.value)
            .filter(move |(at, _)| at.saturating_add(kept_for) > now)
            .take(keep.newest() as usize)
            .map(|(_, address)| *address)
    }
}

/// Where the counters of some slots are.
pub(super) struct Keys {
    pub(super) counters: SmallVec<[Fingerprint; 3]>,
    /// Which slot makes an exception for addresses, and where those are.
    pub(super) known: SmallVec<[(usize, Fingerprint); 1]>,
}

/// Shards that are held until dropped.
pub(super) enum Shards<'a> {
    /// As for nearly all calls.
    One(MutexGuard<'a, Shard>),
    /// By number, each once.
    Many(SmallVec<[(usize, MutexGuard<'a, Shard>); 4]>),
}

/// The counters of some slots, held until dropped.
pub(super) struct Locked<'a> {
    pub(super) keys: &'a Keys,
    pub(super) shards: Shards<'a>,
    pub(super) room: &'a Room,
    pub(super) now: Millis,
}

impl Locked<'_> {
    /// Reserves in all slots or in none, and puts down how they stand. `None` if there is no room for new
    /// counters.
    #[inline]
    pub(super) fn reserve(
        &mut self,
        token: Token,
        lease: Millis,
        slots: &[Slot<'_>],
        standings: &mut Standings,
    ) -> Option<()> {
        self.prepare();
        let now = self.now;
        let (mut is_refused, mut is_stale, mut new) = (false, false, 0);
        for (i, slot) in slots.iter().enumerate() {
            let counter = self.counter(i);
            let standing = self.standing(i, slot, counter);
            if let Some(counter) = counter {
                // An attempt that is here already is let through: its first reply may have been lost.
                is_refused |= standing.refuses() && !counter.value.holds(token);
                is_stale |= slot.limit.adds_up() || !is_kept(&standing, slot.limit, counter, now);
            } else if standing.state != State::Exempt && !self.came_before(i, standings) {
                new += 1;
            }
            standings.push(standing);
        }
        if is_refused {
            if is_stale {
                self.refresh(slots, standings);
            }
            return Some(());
        }

        if !self.room.take(new) {
            standings.clear();
            return None;
        }
        for (i, (slot, standing)) in slots.iter().zip(standings.as_mut()).enumerate() {
            if standing.state != State::Exempt {
                let counter = self.counter_or_new(i);
                *standing = counter.value.admit(slot.limit, token, lease, now);
                counter.expires = expires(&counter.value, slot.limit, now);
            }
        }
        Some(())
    }

    /// Writes an attempt that was admitted elsewhere, where counters stood like this with it. If those
    /// here knew of more, some of what was made `by` then no longer counts. `None` if there is no room.
    #[cfg(feature = "redis")]
    pub(super) fn follow(
        &mut self,
        token: Token,
        lease: Millis,
        slots: &[Slot<'_>],
        standings: &Standings,
        by: Option<Millis>,
    ) -> Option<()> {
        self.prepare();
        let now = self.now;
        let counts = |(i, _): &(usize, _)| standings[*i].state != State::Exempt;
        let counting = slots.iter().enumerate().filter(counts);
        let is_new =
            |(i, _): &(usize, _)| self.counter(*i).is_none() && !self.came_before(*i, standings);
        if !self.room.take(counting.clone().filter(is_new).count()) {
            return None;
        }
        for (i, slot) in counting {
            let there = standings[i].usage;
            let counter = self.counter_or_new(i);
            if let Some(by) = by
                && counter.value.standing(slot.limit, now).usage >= there
            {
                // Without what was admitted since.
                let here = counter.value.failed_by(by).standing(slot.limit, now).usage;
                let more = here.saturating_add(1).saturating_sub(there);
                counter.value.forget_oldest(more as usize, by);
            }
            counter.value.admit(slot.limit, token, lease, now);
            counter.expires = expires(&counter.value, slot.limit, now);
        }
        Some(())
    }

    /// Makes ready for new counters. Whatever is found after this stays until the locks are released.
    #[inline]
    fn prepare(&mut self) {
        let (now, room, new) = (self.now, self.room, self.keys.counters.len());
        match &mut self.shards {
            Shards::One(shard) => shard.counters.prepare(new, now, room),
            Shards::Many(shards) => {
                for (_, shard) in shards {
                    shard.counters.prepare(new, now, room);
                }
            }
        }
    }

    /// Whether a slot before this one, which stands like this, counts in the same counter.
    #[inline]
    fn came_before(&self, i: usize, standings: &[Standing]) -> bool {
        let keys = &self.keys.counters;
        let counts = |before: usize| standings[before].state != State::Exempt;
        (0..i).any(|before| keys[before] == keys[i] && counts(before))
    }

    pub(super) fn check(&self, slots: &[Slot<'_>]) -> Standings {
        let standing = |(i, slot)| self.standing(i, slot, self.counter(i));
        slots.iter().enumerate().map(standing).collect()
    }

    /// How the counter of a slot stands.
    #[inline]
    fn standing(&self, i: usize, slot: &Slot<'_>, counter: Option<&Entry<Counter>>) -> Standing {
        let mut standing = match counter {
            Some(counter) => counter.value.standing(slot.limit, self.now),
            None => Counter::default().standing(slot.limit, self.now),
        };
        if let Some(exception) = &slot.unless_known
            && self.is_exempt(i, exception)
        {
            standing.state = State::Exempt;
        }
        standing
    }

    fn is_exempt(&self, i: usize, exception: &KnownAddress<'_>) -> bool {
        let known = self.keys.known.iter().find(|(of, _)| *of == i);
        known.is_some_and(|(_, key)| {
            let mut addresses = self.shard(*key).known(*key, exception.keep, self.now);
            addresses.any(|address| address == exception.address)
        })
    }

    /// Applies `change` to each counter that is there; says how many it changed.
    pub(super) fn change<'s>(
        &mut self,
        slots: impl IntoIterator<Item = &'s Slot<'s>>,
        change: impl FnMut(&Limit, &mut Counter, Millis) -> bool,
    ) -> usize {
        self.change_from(0, slots, change)
    }

    /// The same for these slots, the first of which is the nth of all.
    fn change_from<'s>(
        &mut self,
        nth: usize,
        slots: impl IntoIterator<Item = &'s Slot<'s>>,
        mut change: impl FnMut(&Limit, &mut Counter, Millis) -> bool,
    ) -> usize {
        let (now, room) = (self.now, self.room);
        let mut changed = 0;
        for (slot, key) in slots.into_iter().zip(&self.keys.counters[nth..]) {
            let counters = &mut self.shard_mut(*key).counters;
            let done = counters.change(*key, room, |counter| {
                if !change(slot.limit, &mut counter.value, now) {
                    return (0, true);
                }
                counter.expires = expires(&counter.value, slot.limit, now);
                (1, !counter.value.is_empty())
            });
            changed += done.unwrap_or(0);
        }
        changed
    }

    /// Cleans up the first so many slots, and takes what left them out of all.
    pub(super) fn clean_up<'s>(
        &mut self,
        token: Option<Token>,
        slots: impl Iterator<Item = &'s Slot<'s>> + Clone,
        mains: usize,
    ) {
        let mut tokens: SmallVec<[_; 8]> = token.into_iter().collect();
        self.change(slots.clone().take(mains), |_, counter, now| {
            counter.clean_up_into(token, now, &mut tokens);
            true
        });
        // What left the only main one has left it altogether.
        let from = usize::from(mains == 1);
        self.change_from(from, slots.skip(from), |_, counter, _| {
            counter.cancel_all(&tokens) > 0
        });
    }

    /// Adds up what need not be kept one by one, and keeps what is blocked for as long as that lasts: it may
    /// have become longer by a new policy since the counter was written last.
    #[cold]
    fn refresh(&mut self, slots: &[Slot<'_>], standings: &Standings) {
        let now = self.now;
        for (i, (slot, standing)) in slots.iter().zip(&**standings).enumerate() {
            let (key, room) = (self.keys.counters[i], self.room);
            if standing.state != State::Exempt {
                self.shard_mut(key).counters.change(key, room, |counter| {
                    counter.value.fold(slot.limit, now);
                    if !is_kept(standing, slot.limit, counter, now) {
                        counter.expires = expires(&counter.value, slot.limit, now);
                    }
                    ((), true)
                });
            }
        }
    }

    #[inline]
    fn counter(&self, i: usize) -> Option<&Entry<Counter>> {
        let key = self.keys.counters[i];
        self.shard(key).counters.get(key)
    }

    /// The counter of a slot, made if there is none. There is room for it.
    #[inline]
    fn counter_or_new(&mut self, i: usize) -> &mut Entry<Counter> {
        let key = self.keys.counters[i];
        self.shard_mut(key).counters.get_or_insert(key)
    }

    #[inline]
    fn shard(&self, key: Fingerprint) -> &Shard {
        match &self.shards {
            Shards::One(shard) => shard,
            Shards::Many(shards) => &shards[position(shards, key)].1,
        }
    }

    #[inline]
    fn shard_mut(&mut self, key: Fingerprint) -> &mut Shard {
        match &mut self.shards {
            Shards::One(shard) => shard,
            Shards::Many(shards) => {
                let position = position(shards, key);
                &mut shards[position].1
            }
        }
    }
}

/// Which of the shards that are held has this key.
fn position(shards: &[(usize, MutexGuard<'_, Shard>)], key: Fingerprint) -> usize {
    let i = key.shard;
    let position = shards.iter().position(|(shard, _)| *shard == i);
    debug_assert!(position.is_some(), "a shard that is not held");
    position.unwrap_or_default()
}

/// Whether a counter will be kept for as long as it refuses, and not for ever if that ends. Where blocks
/// grow, more has to be known.
fn is_kept(standing: &Standing, limit: &Limit, counter: &Entry<Counter>, now: Millis) -> bool {
    let expires = counter.expires;
    let lifts = match standing.state {
        State::Exempt | State::Clear => return true,
        State::Busy => return false,
        State::Blocked { lifts } => lifts,
    };
    let long_enough = match lifts.as_duration().map(to_millis) {
        Some(lifts) => expires != Millis::MAX && expires >= now.saturating_add(lifts),
        None => expires == Millis::MAX,
    };
    let grows = limit.block().is_some_and(|block| block.lengths().len() > 1);
    long_enough && !grows
}

fn expires(counter: &Counter, limit: &Limit, now: Millis) -> Millis {
    counter.expires(limit, now).unwrap_or(Millis::MAX)
}
