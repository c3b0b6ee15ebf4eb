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

/// Shards by number, each once, held until dropped.
pub(super) type Shards<'a> = SmallVec<[(usize, MutexGuard<'a, Shard>); 1]>;

/// The counters of some slots, held until dropped.
pub(super) struct Locked<'a> {
    pub(super) keys: SmallVec<[Fingerprint; 3]>,
    /// Which slot makes an exception for addresses, and where those are.
    pub(super) known: SmallVec<[(usize, Fingerprint); 1]>,
    pub(super) shards: Shards<'a>,
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
        let mut standings = Standings::default();
        let (mut is_refused, mut is_new) = (false, false);
        for (i, slot) in slots.iter().enumerate() {
            let counter = self.counter(self.keys[i]);
            let standing = self.standing(i, slot, counter);
            // An attempt that is here already is let through: its first reply may have been lost.
            is_refused |=
                standing.refuses() && !counter.is_some_and(|counter| counter.holds(token));
            is_new |= counter.is_none();
            standings.push(standing);
        }
        if is_refused {
            self.keep_blocked(slots, &standings);
            return Some(standings);
        }

        if is_new {
            self.make_room(&standings)?;
        }
        let now = self.now;
        for (i, slot) in slots.iter().enumerate() {
            let standing = &mut standings.as_mut()[i];
            if standing.state != State::Exempt {
                let counter = self.counter_or_new(i);
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
        for (i, (slot, there)) in slots.iter().zip(&**standings).enumerate() {
            if there.state == State::Exempt {
                continue;
            }
            let counter = self.counter_or_new(i);
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
        if new == 0 {
            return Some(());
        }
        if !room.take(new) {
            return None;
        }
        let mut dropped = false;
        for (_, shard) in &mut self.shards {
            dropped |= shard.counters.prepare(new, now, room);
        }
        if dropped {
            // One of ours may have been dead, and its room was given back.
            room.take_back(self.new_counters(standings) - new);
        }
        Some(())
    }

    /// How many of the counters that are to be written to are not there yet.
    fn new_counters(&self, standings: &Standings) -> usize {
        let counts = |i: usize| standings[i].state != State::Exempt;
        let mut new = 0;
        for (i, key) in self.keys.iter().enumerate() {
            let came_before = || (0..i).any(|before| counts(before) && self.keys[before] == *key);
            if counts(i) && self.counter(*key).is_none() && !came_before() {
                new += 1;
            }
        }
        new
    }

    pub(super) fn check(&self, slots: &[Slot<'_>]) -> Standings {
        let standing = |(i, slot)| self.standing(i, slot, self.counter(self.keys[i]));
        slots.iter().enumerate().map(standing).collect()
    }

    /// How the counter of a slot stands.
    #[inline]
    fn standing(&self, i: usize, slot: &Slot<'_>, counter: Option<&Counter>) -> Standing {
        let mut standing = match counter {
            Some(counter) => counter.standing(slot.limit, self.now),
            None => Counter::default().standing(slot.limit, self.now),
        };
        if self.is_exempt(i, slot) {
            standing.state = State::Exempt;
        }
        standing
    }

    #[inline]
    fn is_exempt(&self, i: usize, slot: &Slot<'_>) -> bool {
        let Some(exception) = &slot.unless_known else {
            return false;
        };
        let known = self.known.iter().find(|(of, _)| *of == i);
        known.is_some_and(|(_, key)| {
            let mut addresses = self.shard(*key).known(*key, exception.keep, self.now);
            addresses.any(|address| address == exception.address)
        })
    }

    /// Applies `change` to each counter that is there; says how many it changed.
    pub(super) fn change<'s>(
        &mut self,
        slots: impl IntoIterator<Item = &'s Slot<'s>>,
        mut change: impl FnMut(usize, &Limit, &mut Counter, Millis) -> bool,
    ) -> usize {
        let (now, room) = (self.now, self.room);
        let mut changed = 0;
        for (i, slot) in slots.into_iter().enumerate() {
            let key = self.keys[i];
            let counters = &mut self.shard_mut(key).counters;
            let Some(counter) = counters.get_mut(key) else {
                continue;
            };
            if change(i, slot.limit, &mut counter.value, now) {
                changed += 1;
                if counter.value.is_empty() {
                    counters.remove(key, room);
                } else {
                    counter.expires = expires(&counter.value, slot.limit, now);
                }
            }
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
        self.change(slots.clone().take(mains), |_, _, counter, now| {
            counter.clean_up_into(token, now, &mut tokens);
            true
        });
        self.change(slots, |_, _, counter, _| counter.cancel_all(&tokens) > 0);
    }

    /// A block may have become longer by a new policy since the counter was written last.
    fn keep_blocked(&mut self, slots: &[Slot<'_>], standings: &Standings) {
        let now = self.now;
        for (i, (slot, standing)) in slots.iter().zip(&**standings).enumerate() {
            let key = self.keys[i];
            if (standing.refuses() || slot.limit.adds_up())
                && standing.state != State::Exempt
                && let Some(counter) = self.shard_mut(key).counters.get_mut(key)
            {
                counter.value.fold(slot.limit, now);
                if standing.refuses() && !is_kept(standing, slot.limit, counter.expires, now) {
                    counter.expires = expires(&counter.value, slot.limit, now);
                }
            }
        }
    }

    #[inline]
    fn counter(&self, key: Fingerprint) -> Option<&Counter> {
        let counter = self.shard(key).counters.get(key);
        counter.map(|counter| &counter.value)
    }

    /// The counter of a slot, made if there is none. There is room for it.
    #[inline]
    fn counter_or_new(&mut self, i: usize) -> &mut Entry<Counter> {
        let key = self.keys[i];
        self.shard_mut(key).counters.get_or_insert(key)
    }

    #[inline]
    fn shard(&self, key: Fingerprint) -> &Shard {
        &self.shards[self.position(key)].1
    }

    #[inline]
    fn shard_mut(&mut self, key: Fingerprint) -> &mut Shard {
        let position = self.position(key);
        &mut self.shards[position].1
    }

    /// Which of the shards that are held has this key.
    #[inline]
    fn position(&self, key: Fingerprint) -> usize {
        let i = key.shard();
        let position = self.shards.iter().position(|(shard, _)| *shard == i);
        debug_assert!(position.is_some(), "a shard that is not held");
        position.unwrap_or_default()
    }
}

/// Whether a counter that is blocked will be kept until that is over, and not for ever if it ends. Where
/// blocks grow, more has to be known.
fn is_kept(standing: &Standing, limit: &Limit, expires: Millis, now: Millis) -> bool {
    let State::Blocked { lifts } = standing.state else {
        return false;
    };
    let grows = limit.block().is_some_and(|block| block.lengths().len() > 1);
    let long_enough = match lifts.as_duration().map(to_millis) {
        Some(lifts) => expires != Millis::MAX && expires >= now.saturating_add(lifts),
        None => expires == Millis::MAX,
    };
    !grows && long_enough
}

fn expires(counter: &Counter, limit: &Limit, now: Millis) -> Millis {
    counter.expires(limit, now).unwrap_or(Millis::MAX)
}
