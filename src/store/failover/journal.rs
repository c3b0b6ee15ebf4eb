//! What the store has not seen: attempts that were admitted without it, and outcomes that could not be
//! written to it. Empty, and free, while the store answers.

use std::{
    collections::{HashMap, HashSet, VecDeque, hash_map::RandomState},
    hash::{BuildHasher, Hash},
    mem,
    sync::{
        Mutex, MutexGuard, PoisonError,
        atomic::{AtomicUsize, Ordering},
    },
};

use smallvec::SmallVec;

use super::entry::Entry;
use crate::{
    Token,
    algorithm::Millis,
    store::{
        Settlement, Slot, StoreError, StoreErrorKind,
        owned::{OwnedKey, OwnedSlot, OwnedSlots},
    },
};

/// Attempts in flight that the store has not seen, and pending writes in their order.
pub(super) struct Journal {
    inner: Mutex<Inner>,
    capacity: usize,
    /// How many of both there are, to be read without the lock.
    len: AtomicUsize,
}

#[derive(Default)]
struct Inner {
    in_flight: HashMap<Token, InFlight>,
    queue: VecDeque<(u64, Entry)>,
    next: u64,
    /// The number of the entry that is being replayed: it may be written whatever becomes of it here.
    replaying: Option<u64>,
    /// How many failures are in the queue for each token and each key, by hash: most lookups are for
    /// others, and the queue may be long.
    failures: HashMap<u64, u32>,
    hasher: RandomState,
}

/// An attempt that was admitted without the store, in all or some of its counters.
#[derive(Default)]
struct InFlight {
    /// The counters that were decided on.
    decided: Vec<OwnedKey>,
    /// Those in which the attempt counts.
    counting: OwnedSlots,
    /// When it becomes a failure by itself.
    lease_ends: Millis,
}

impl Journal {
    pub(super) fn new(capacity: usize) -> Self {
        Self {
            inner: Mutex::default(),
            capacity,
            len: AtomicUsize::new(0),
        }
    }

    pub(super) fn len(&self) -> usize {
        self.len.load(Ordering::SeqCst)
    }

    pub(super) fn is_empty(&self) -> bool {
        self.len() == 0
    }

    /// Whether there are pending writes; attempts in flight are none.
    pub(super) fn has_entries(&self) -> bool {
        !self.is_empty() && !self.lock().queue.is_empty()
    }

    /// Appends a pending write, if there is room.
    pub(super) fn append(&self, entry: Entry) -> Result<(), StoreError> {
        self.change(|inner| {
            if inner.len() >= self.capacity {
                return Err(self.full());
            }
            inner.append(entry);
            Ok(())
        })
    }

    /// Notes an attempt that was admitted without the store, and that counts in some of its slots.
    pub(super) fn admitted(
        &self,
        token: Token,
        slots: &[Slot<'_>],
        counting: OwnedSlots,
        lease_ends: Millis,
    ) -> Result<(), StoreError> {
        self.change(|inner| {
            if inner.len() >= self.capacity {
                return Err(self.full());
            }
            let attempt = inner.in_flight.entry(token).or_default();
            let keys = slots.iter().map(|slot| OwnedKey::new(&slot.key));
            attempt.decided.extend(keys);
            attempt.counting.0.extend(counting.0);
            attempt.lease_ends = attempt.lease_ends.max(lease_ends);
            Ok(())
        })
    }

    /// Applies the settlement of an attempt to what is pending, and appends what the store needs to know
    /// of counters that it has not decided on. Returns whether it must be written to the store as well, and the
    /// counters that the store has not decided on.
    pub(super) fn settle(&self, token: Token, entry: &Entry, now: Millis) -> (bool, Vec<OwnedKey>) {
        let Entry::Settle {
            settlement,
            slots,
            at,
            ..
        } = entry
        else {
            return (true, Vec::new());
        };
        let keys: Vec<_> = slots.keys().collect();
        // The success of an attempt whose token the store has never seen.
        let unseen_success = || Entry::Settle {
            tokens: SmallVec::new(),
            settlement: Settlement::Forgiven {
                mains: settlement.mains().unwrap_or_default(),
            },
            slots: slots.clone(),
            at: *at,
        };
        self.change(|inner| {
            let is_pending = inner.has_failure(&token.derived());
            let mains = settlement.mains();
            if let Some(mains) = mains {
                inner.forgive(&slots.0, mains, |main, failed| {
                    main.spelling == failed.spelling
                });
            } else if *settlement == Settlement::Canceled {
                inner.withdraw(token.derived(), &keys);
            }
            let Some(mut attempt) = inner.in_flight.remove(&token) else {
                if is_pending && mains.is_some() {
                    // Its lease had ended, and the failure is still pending.
                    inner.append(unseen_success());
                    return (false, Vec::new());
                }
                return (true, Vec::new());
            };
            let is_in_store = keys.iter().any(|key| !attempt.decided.contains(key));
            let decided = attempt.decided.clone();
            match settlement {
                Settlement::Failed if attempt.counting.len() > 0 => {
                    // It fails in the spelling of the account that was identified since.
                    attempt.counting.respell(slots);
                    let at = now.min(attempt.lease_ends);
                    inner.append(Entry::record(token, attempt.counting, at));
                }
                // A part of it, when its user turns out to be another one.
                Settlement::Canceled => {
                    attempt.decided.retain(|key| !keys.contains(&key));
                    attempt.counting.remove(&keys);
                    if !attempt.decided.is_empty() {
                        inner.in_flight.insert(token, attempt);
                    }
                }
                // In a long outage room is for failures. Without this entry the store counts too much.
                Settlement::Succeeded { .. }
                    if attempt.counting.len() > 0 && inner.len() < self.capacity / 2 =>
                {
                    inner.append(unseen_success());
                }
                _ => {}
            }
            (is_in_store, decided)
        })
    }

    /// Drops pending failures of the first `mains` counters from all of these: those of the same spelling, or
    /// of every one.
    pub(super) fn forgive(&self, slots: &[Slot<'_>], mains: usize, every_spelling: bool) {
        if !self.is_empty() {
            let slots = OwnedSlots::new(slots).0;
            self.change(|inner| {
                inner.forgive(&slots, mains, |main, failed| {
                    every_spelling || main.spelling == failed.spelling
                });
            });
        }
    }

    /// Drops pending failures of all counters that are chosen by their keys.
    pub(super) fn clear(&self, is_chosen: impl Fn(&OwnedKey) -> bool) {
        if self.is_empty() {
            return;
        }
        self.change(|inner| {
            let failures = inner.queue.iter().filter_map(|(_, entry)| entry.failure());
            let keys = failures.flat_map(|(_, slots)| slots.keys());
            let keys: HashSet<_> = keys.filter(|key| is_chosen(key)).cloned().collect();
            if !keys.is_empty() {
                let chosen: Vec<_> = keys.iter().collect();
                inner.drop_failures(&chosen, |_, slots| {
                    slots.keys().any(|key| keys.contains(key))
                });
            }
        });
    }

    /// Turns attempts whose leases have ended into failures.
    pub(super) fn end_leases(&self, now: Millis) {
        self.change(|inner| {
            let in_flight = inner.in_flight.iter();
            let ended = in_flight.filter(|(_, attempt)| attempt.lease_ends <= now);
            let ended: Vec<_> = ended.map(|(token, _)| *token).collect();
            for token in ended {
                if let Some(attempt) = inner.in_flight.remove(&token)
                    && attempt.counting.len() > 0
                {
                    let record = Entry::record(token, attempt.counting, attempt.lease_ends);
                    inner.append(record);
                }
            }
        });
    }

    /// The oldest pending write and its number, to be replayed.
    pub(super) fn first(&self) -> Option<(u64, Entry)> {
        let mut inner = self.lock();
        let first = inner.queue.front().cloned();
        inner.replaying = first.as_ref().map(|(number, _)| *number);
        first
    }

    /// Removes the oldest pending write, replayed or given up, if it still is the one of this number.
    pub(super) fn remove_first(&self, number: u64) {
        self.change(|inner| {
            if (inner.queue.front()).is_some_and(|(first, _)| *first == number)
                && let Some((_, entry)) = inner.queue.pop_front()
            {
                inner.count_failure(&entry, false);
            }
        });
    }

    fn change<T>(&self, change: impl FnOnce(&mut Inner) -> T) -> T {
        let mut inner = self.lock();
        let result = change(&mut inner);
        self.len.store(inner.len(), Ordering::SeqCst);
        result
    }

    fn lock(&self) -> MutexGuard<'_, Inner> {
        self.inner.lock().unwrap_or_else(PoisonError::into_inner)
    }

    fn full(&self) -> StoreError {
        let message = format!(
            "Redis does not answer, and the journal of pending writes is full with {} entries",
            self.capacity
        );
        StoreError::new(StoreErrorKind::Full, message)
    }
}

impl Inner {
    fn len(&self) -> usize {
        self.in_flight.len() + self.queue.len()
    }

    fn append(&mut self, entry: Entry) {
        self.count_failure(&entry, true);
        self.queue.push_back((self.next, entry));
        self.next += 1;
    }

    /// Drops a pending failure from these counters.
    fn withdraw(&mut self, token: Token, keys: &[&OwnedKey]) {
        if self.has_failure(&token) {
            self.drop_failures(keys, |failed, _| failed == token);
        }
    }

    /// Drops pending failures of the first `mains` counters from all of these, where the spelling matches.
    fn forgive(
        &mut self,
        slots: &[OwnedSlot],
        mains: usize,
        matches: impl Fn(&OwnedSlot, &OwnedSlot) -> bool,
    ) {
        let keys: Vec<_> = slots.iter().map(|slot| &slot.key).collect();
        let mains = &slots[..mains.min(slots.len())];
        if mains.iter().any(|main| self.has_failure(&main.key)) {
            let is_forgiven = |failed: &OwnedSlot| {
                let mut mains = mains.iter();
                mains.any(|main| main.key == failed.key && matches(main, failed))
            };
            self.drop_failures(&keys, |_, slots| slots.0.iter().any(is_forgiven));
        }
    }

    /// Drops the chosen failures from these counters. One that the store has in flight is canceled
    /// instead, if it was in no other counter; and so is one that is being replayed.
    fn drop_failures(
        &mut self,
        keys: &[&OwnedKey],
        is_chosen: impl Fn(Token, &OwnedSlots) -> bool,
    ) {
        let mut canceled = Vec::new();
        for (number, entry) in mem::take(&mut self.queue) {
            let entry = match entry.failure() {
                Some((token, slots))
                    if is_chosen(token, slots) && self.replaying == Some(number) =>
                {
                    let mut slots = slots.clone();
                    slots.retain(keys);
                    canceled.push(Entry::cancel([token, token.derived()].into(), slots));
                    Some(entry)
                }
                Some((token, slots)) if is_chosen(token, slots) => {
                    self.count_failure(&entry, false);
                    let entry = entry.without(keys);
                    if let Some(entry) = &entry {
                        self.count_failure(entry, true);
                    }
                    entry
                }
                _ => Some(entry),
            };
            if let Some(entry) = entry {
                self.queue.push_back((number, entry));
            }
        }
        canceled.into_iter().for_each(|entry| self.append(entry));
    }

    fn has_failure(&self, of: &impl Hash) -> bool {
        self.failures.contains_key(&self.hasher.hash_one(of))
    }

    fn count_failure(&mut self, entry: &Entry, more: bool) {
        let Some((token, slots)) = entry.failure() else {
            return;
        };
        let keys = slots.keys().map(|key| self.hasher.hash_one(key));
        let hashes: SmallVec<[_; 4]> = keys.chain([self.hasher.hash_one(token)]).collect();
        for hash in hashes {
            let failures = self.failures.entry(hash).or_default();
            *failures = if more { *failures + 1 } else { *failures - 1 };
            if *failures == 0 {
                self.failures.remove(&hash);
            }
        }
    }
}
