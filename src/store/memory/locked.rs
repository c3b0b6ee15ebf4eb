//! Counters under their locks.

use std::sync::MutexGuard;

use smallvec::SmallVec;

use super::{
    fingerprint::Fingerprint,
    table::{Room, Table},
};
use crate::{
    Address, KnownAddresses, Limit, Token,
    algorithm::{Counter, Millis, Standing, State},
    clock::to_millis,
    store::{Slot, Standings},
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

pub(super) const fn shard_of(key: &Fingerprint) -> usize {
    (key.group >> (u64::BITS - SHARDS.ilog2())) as usize
}

/// The counters of some slots, held until dropped.
pub(super) struct Locked<'a> {
    pub(super) keys: SmallVec<[Fingerprint; 4]>,
    /// Where the addresses are that a slot makes an exception for.
    pub(super) known: SmallVec<[Option<Fingerprint>; 4]>,
    pub(super) shards: SmallVec<[(usize, MutexGuard<'a, Shard>); 4]>,
    pub(super) room: &'a Room,
    pub(super) now: Millis,
}

impl Locked<'_> {
    /// Reserves in all slots or in none; `None` if there is no room for new counters.
    pub(super) fn reserve(
        &mut self,
        token: Token,
        lease: Millis,
        slots: &[Slot<'_>],
    ) -> Option<Standings> {
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

        self.make_room(&standings)?;
        let now = self.now;
        for ((slot, standing), key) in slots.iter().zip(standings.as_mut()).zip(self.keys.clone()) {
            if standing.state != State::Exempt {
                let counter = self.shard(&key).counters.get_or_insert(key.bits);
                *standing = counter.value.admit(slot.limit, token, lease, now);
                counter.expires = expires(&counter.value, slot.limit, now);
            }
        }
        Some(standings)
    }

    /// Writes an attempt that was admitted elsewhere, where counters stood like this with it. If those
    /// here knew of more, some of what was made `by` then no longer counts.
    #[cfg(feature = "redis")]
    pub(super) fn follow(
        &mut self,
        token: Token,
        lease: Millis,
        slots: &[Slot<'_>],
        standings: &Standings,
        by: Option<Millis>,
    ) -> Option<()> {
        self.make_room(standings)?;
        let now = self.now;
        for ((slot, there), key) in slots.iter().zip(&**standings).zip(self.keys.clone()) {
            if there.state == State::Exempt {
                continue;
            }
            let counter = self.shard(&key).counters.get_or_insert(key.bits);
            if let Some(by) = by
                && counter.value.standing(slot.limit, now).usage >= there.usage
            {
                // Without what was admitted since.
                let here = counter.value.failed_by(by).standing(slot.limit, now).usage;
                let more = here.saturating_add(1).saturating_sub(there.usage);
                counter.value.forget_oldest(more as usize, by);
            }
            counter.value.admit(slot.limit, token, lease, now);
            counter.expires = expires(&counter.value, slot.limit, now);
        }
        Some(())
    }

    /// Makes room for those counters that are to be written to; `None` if there is none.
    fn make_room(&mut self, standings: &Standings) -> Option<()> {
        // Room first: while there is none, nothing has to be searched again and again.
        let (now, room) = (self.now, self.room);
        let new = self.new_counters(standings);
        if !room.take(new) {
            return None;
        }
        if new > 0 {
            for (_, shard) in &mut self.shards {
                shard.counters.prepare(new, now, room);
            }
        }
        // One of ours may have been dead, and its room was given back.
        room.take_back(self.new_counters(standings) - new);
        Some(())
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

    pub(super) fn check(&self, slots: &[Slot<'_>]) -> Standings {
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
    pub(super) fn change(
        &mut self,
        slots: &[Slot<'_>],
        mut change: impl FnMut(usize, &Limit, &mut Counter, Millis) -> bool,
    ) -> usize {
        let (now, room) = (self.now, self.room);
        let mut changed = 0;
        for (i, (slot, key)) in slots.iter().zip(self.keys.clone()).enumerate() {
            let counters = &mut self.shard(&key).counters;
            let Some(counter) = counters.get_mut(key.bits) else {
                continue;
            };
            if change(i, slot.limit, &mut counter.value, now) {
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
    pub(super) fn clean_up(&mut self, token: Option<Token>, slots: &[Slot<'_>], mains: usize) {
        let mut tokens: Vec<_> = token.into_iter().collect();
        self.change(slots, |i, _, counter, now| {
            if i < mains {
                tokens.extend(counter.clean_up(token, now));
            }
            i < mains
        });
        self.change(slots, |_, _, counter, _| counter.cancel_all(&tokens) > 0);
    }

    /// A block may have become longer by a new policy since the counter was written last.
    fn keep_blocked(&mut self, slots: &[Slot<'_>], standings: &Standings) {
        let now = self.now;
        for ((slot, standing), key) in slots.iter().zip(&**standings).zip(self.keys.clone()) {
            if standing.state != State::Exempt
                && let Some(counter) = self.shard(&key).counters.get_mut(key.bits)
            {
                counter.value.fold(slot.limit, now);
                if standing.refuses() {
                    counter.expires = expires(&counter.value, slot.limit, now);
                }
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
