//! Counters under their locks.

mod settle;

use std::sync::MutexGuard;

use super::{
    room::Room,
    table::{Entry, Table},
};
use crate::{
    Address, KnownAddresses, Limit, Token,
    algorithm::{Algorithm, Counter, Millis, Standing, State, counter::Effect},
    clock::to_millis,
    store::{Key, Settled, Slot, Standings},
};

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
        key: &Key<'_>,
        keep: KnownAddresses,
        now: Millis,
    ) -> impl Iterator<Item = Address> {
        let kept_for = to_millis(keep.kept_for());
        let entries = self.known.get(key.fingerprint.id).into_iter();
        entries
            .flat_map(|entry| &entry.value)
            .filter(move |(at, _)| at.saturating_add(kept_for) > now)
            .take(keep.newest() as usize)
            .map(|(_, address)| *address)
    }
}

/// Shards that are held until dropped, by number.
pub(super) struct Shards<'a> {
    /// The only one for nearly all calls.
    pub(super) first: (u8, MutexGuard<'a, Shard>),
    pub(super) others: Vec<(u8, MutexGuard<'a, Shard>)>,
}

impl Shards<'_> {
    #[inline]
    fn of(&self, key: &Key<'_>) -> &Shard {
        let is_here = |(number, _): &(u8, _)| *number == key.fingerprint.place.shard;
        if !is_here(&self.first)
            && let Some(other) = self.others.iter().find(|other| is_here(other))
        {
            return &other.1;
        }
        debug_assert!(is_here(&self.first), "a shard that is not held");
        &self.first.1
    }

    #[inline]
    fn of_mut(&mut self, key: &Key<'_>) -> &mut Shard {
        let is_here = |(number, _): &(u8, _)| *number == key.fingerprint.place.shard;
        if !is_here(&self.first)
            && let Some(i) = self.others.iter().position(is_here)
        {
            return &mut self.others[i].1;
        }
        debug_assert!(is_here(&self.first), "a shard that is not held");
        &mut self.first.1
    }
}

/// The counters of some slots, held until dropped.
pub(super) struct Locked<'a> {
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
        self.prepare(slots.len());
        let mut new = 0;
        let is_sparse = slots.iter().enumerate().all(|(i, slot)| {
            let counter = self.counter(slot);
            if counter.is_none_or(Entry::is_vacant) {
                new += usize::from(!slots[..i].iter().any(|other| other.is_same(slot)));
            }
            slot.limit.algorithm == Algorithm::SlidingWindow
                && slot.unless_known.is_none()
                && counter.is_none_or(|counter| counter.value.is_sparse(slot.limit))
        });
        if !is_sparse {
            return self.reserve_judged(token, lease, slots, standings);
        }
        // All of them admit, whatever is in them: they need not be judged ahead.
        let network = network(slots);
        if !self.room.take(network, new) {
            return None;
        }
        for slot in slots {
            standings.push(self.admit(token, lease, slot, network));
        }
        Some(())
    }

    /// As [`reserve`](Self::reserve), for any counters.
    #[inline(never)]
    fn reserve_judged(
        &mut self,
        token: Token,
        lease: Millis,
        slots: &[Slot<'_>],
        standings: &mut Standings,
    ) -> Option<()> {
        let now = self.now;
        let (mut is_refused, mut is_shadowed) = (false, false);
        let (mut is_stale, mut new) = (false, 0);
        for slot in slots {
            let counter = self.counter(slot);
            let mut standing = self.standing(slot, counter);
            if let Some(counter) = counter
                && !counter.is_vacant()
            {
                // An attempt that is present is admitted: its first reply may have been lost.
                if standing.refuses() && !counter.value.holds(token) {
                    standing = slot.cast_shadow(standing);
                    is_shadowed |= slot.shadow;
                    is_refused |= !slot.shadow;
                }
                is_stale |=
                    slot.limit.aggregates() || !is_kept(&standing, slot.limit, counter, now);
            } else if is_first(slot, &standing, slots, standings) {
                new += 1;
            }
            standings.push(standing);
        }
        if is_refused {
            if is_stale {
                self.refresh(slots, standings, |standing| standing.state != State::Exempt);
            }
            for (slot, standing) in slots.iter().zip(standings.as_mut()) {
                // One that holds the attempt.
                *standing = slot.cast_shadow(*standing);
            }
            return Some(());
        }
        let network = network(slots);
        if !self.room.take(network, new) {
            standings.clear();
            return None;
        }
        for (slot, standing) in slots.iter().zip(standings.as_mut()) {
            if standing.counts() {
                *standing = self.admit(token, lease, slot, network);
            }
        }
        if is_shadowed && is_stale {
            self.refresh(slots, standings, |standing| {
                matches!(standing.state, State::Shadowed { .. })
            });
        }
        Some(())
    }

    /// Adds an attempt to the counter of a slot.
    #[inline]
    fn admit(&mut self, token: Token, lease: Millis, slot: &Slot<'_>, network: u16) -> Standing {
        let (now, spelling) = (self.now, slot.reserved_spelling());
        self.write(slot, network, |counter| {
            counter.admit(slot.limit, token, spelling, lease, now)
        })
    }

    /// Writes an attempt that another store admitted, whose counters then stood like `standings`. If those
    /// here count more, the oldest failures made `by` then are dropped: the other store no longer counts
    /// them. `None` if the capacity is reached.
    #[cfg(feature = "redis")]
    pub(super) fn follow(
        &mut self,
        token: Token,
        lease: Millis,
        slots: &[Slot<'_>],
        standings: &Standings,
        by: Millis,
    ) -> Option<()> {
        let now = self.now;
        if !self.take_room(slots, standings) {
            return None;
        }
        // What failed in the same millisecond may be newer than the reply, which then does not include it.
        let by = by.saturating_sub(1);
        for (slot, standing) in counting(slots, standings) {
            let there = standing.usage;
            self.write(slot, network(slots), |counter| {
                if counter.standing(slot.limit, now).usage >= there {
                    let (failed, later) = counter.split(by);
                    let failed: Vec<_> = failed.iter().map(|entry| entry.token()).collect();
                    let later: Vec<_> = later.iter().map(|entry| entry.token()).collect();
                    let mut before = counter.clone();
                    before.cancel_all(&later);
                    let here = before.standing(slot.limit, now).usage;
                    let excess = here.saturating_add(1).saturating_sub(there) as usize;
                    if excess > failed.len() && slot.limit.aggregates() {
                        counter.clean_up(&[], None, by);
                    } else {
                        counter.cancel_all(&failed[..excess.min(failed.len())]);
                    }
                }
                counter.admit(slot.limit, token, slot.reserved_spelling(), lease, now);
            });
        }
        Some(())
    }

    /// Writes a failure that was decided elsewhere, `ago` before now. Returns in how many counters it
    /// was new; `None` if there is no room for new counters.
    pub(super) fn record(
        &mut self,
        token: Token,
        slots: &[Slot<'_>],
        ago: Millis,
    ) -> Option<Settled> {
        let (now, standings) = (self.now, self.check(slots));
        if !self.take_room(slots, &standings) {
            return None;
        }
        let mut settled = Settled::default();
        for (i, slot) in slots.iter().enumerate() {
            if standings[i].state != State::Exempt {
                let (at, spelling) = (now.saturating_sub(ago), slot.spelling_hash());
                let effect = self.write(slot, network(slots), |counter| {
                    counter.record(slot.limit, token, spelling, at, now)
                });
                note(&mut settled, i, effect);
            }
        }
        Some(settled)
    }

    /// Prepares for this many new counters. What is present afterwards stays until the locks are released.
    #[inline]
    fn prepare(&mut self, new: usize) {
        let Shards { first, others } = &mut self.shards;
        first.1.counters.prepare(new, self.now, self.room);
        for (_, shard) in others {
            shard.counters.prepare(new, self.now, self.room);
        }
    }

    /// Takes the room for the new ones among the counters in which an attempt with these standings counts.
    /// Returns whether there is enough.
    fn take_room(&mut self, slots: &[Slot<'_>], standings: &[Standing]) -> bool {
        self.prepare(slots.len());
        let is_new = |i: &usize| {
            self.counter(&slots[*i]).is_none_or(Entry::is_vacant)
                && is_first(&slots[*i], &standings[*i], slots, &standings[..*i])
        };
        let new = (0..slots.len()).filter(is_new).count();
        self.room.take(network(slots), new)
    }

    pub(super) fn check(&self, slots: &[Slot<'_>]) -> Standings {
        let standing = |slot: &Slot<'_>| slot.cast_shadow(self.standing(slot, self.counter(slot)));
        slots.iter().map(standing).collect()
    }

    /// How the counter of a slot stands.
    #[inline(always)]
    fn standing(&self, slot: &Slot<'_>, counter: Option<&Entry<Counter>>) -> Standing {
        let mut standing = match counter {
            Some(counter) => counter.value.standing(slot.limit, self.now),
            None => Counter::default().standing(slot.limit, self.now),
        };
        if let (Some(exception), Some(key)) = (&slot.unless_known, slot.known_key()) {
            let mut known = self.shards.of(&key).known(&key, exception.keep, self.now);
            if known.any(|address| address == exception.address) {
                standing.state = State::Exempt;
            }
        }
        standing
    }

    /// After a refusal, aggregates what need not be kept one by one, and keeps what is blocked for as long
    /// as that lasts: it may have become longer by a new policy since the counter was written.
    #[cold]
    fn refresh(
        &mut self,
        slots: &[Slot<'_>],
        standings: &[Standing],
        is_chosen: impl Fn(&Standing) -> bool,
    ) {
        let now = self.now;
        let slots = slots.iter().zip(standings);
        for (slot, standing) in slots.filter(|(_, standing)| is_chosen(standing)) {
            let counters = &mut self.shards.of_mut(&slot.key).counters;
            if let Some(counter) = counters.get_mut(slot.key.fingerprint.id)
                && !counter.is_vacant()
            {
                counter.value.fold(slot.limit, now);
                if !is_kept(standing, slot.limit, counter, now) {
                    set_expiry(counter, slot.limit, now);
                }
            }
        }
    }

    #[inline]
    fn counter(&self, slot: &Slot<'_>) -> Option<&Entry<Counter>> {
        let shard = self.shards.of(&slot.key);
        shard.counters.get(slot.key.fingerprint.id)
    }

    /// Writes to the counter of a slot, which is created for this network if there is none. There is room for it.
    #[inline]
    fn write<T>(
        &mut self,
        slot: &Slot<'_>,
        network: u16,
        write: impl FnOnce(&mut Counter) -> T,
    ) -> T {
        let now = self.now;
        let counters = &mut self.shards.of_mut(&slot.key).counters;
        let counter = counters.get_or_insert(slot.key.fingerprint.id);
        if counter.is_vacant() {
            counter.set_network(network);
        }
        let result = write(&mut counter.value);
        set_expiry(counter, slot.limit, now);
        result
    }
}

/// The network that new counters of these slots take room of: the client's, also for counters that belong to no
/// address, since the client chooses their names.
#[inline]
fn network(slots: &[Slot<'_>]) -> u16 {
    let of_client = slots.iter().find(|slot| slot.key.address.is_some());
    let slot = of_client.or(slots.first());
    slot.map_or(0, |slot| slot.key.fingerprint.place.network)
}

/// Adds what a failure did to the counter at a position.
#[inline]
fn note(settled: &mut Settled, position: usize, effect: Effect) {
    settled.changed += usize::from(effect.changed);
    if let Some(standing) = effect.began {
        settled.began.push((position, standing));
    }
}

/// The slots in which an attempt counts.
#[cfg(feature = "redis")]
fn counting<'s, 'a>(
    slots: &'s [Slot<'a>],
    standings: &'s [Standing],
) -> impl Iterator<Item = (&'s Slot<'a>, &'s Standing)> {
    let slots = slots.iter().zip(standings);
    slots.filter(|(_, standing)| standing.counts())
}

/// Whether an attempt counts in this slot, and in none of the same counter before it.
#[inline]
fn is_first(slot: &Slot<'_>, standing: &Standing, slots: &[Slot<'_>], before: &[Standing]) -> bool {
    let mut before = slots.iter().zip(before);
    standing.counts() && !before.any(|(other, standing)| slot.is_same(other) && standing.counts())
}

/// Whether a counter will be kept for as long as it refuses, and not for ever if that ends. Where blocks
/// grow, more has to be known.
fn is_kept(standing: &Standing, limit: &Limit, counter: &Entry<Counter>, now: Millis) -> bool {
    let expires = counter.expires();
    let lifts = match standing.state {
        State::Exempt | State::Clear => return true,
        State::Busy | State::Shadowed { lifts: None } => return false,
        State::Blocked { lifts } | State::Shadowed { lifts: Some(lifts) } => lifts,
    };
    let long_enough = match lifts.as_duration().map(to_millis) {
        Some(lifts) => expires != Millis::MAX && expires >= now.saturating_add(lifts),
        None => expires == Millis::MAX,
    };
    long_enough && !limit.has_growing_blocks()
}

/// Sets when a counter expires that was changed; an empty one becomes vacant.
#[inline(always)]
pub(super) fn set_expiry(counter: &mut Entry<Counter>, limit: &Limit, now: Millis) {
    counter.set_expires(if counter.value.is_empty() {
        0
    } else {
        let expires = counter.value.expires(limit, now);
        expires.map_or(Millis::MAX, |at| at.max(1))
    });
}
