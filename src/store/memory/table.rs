//! A bounded table whose entries run out.

use std::sync::atomic::{AtomicUsize, Ordering};

use hashbrown::HashTable;

use super::fingerprint::Fingerprint;
use crate::algorithm::Millis;

/// Below this many entries a table grows without looking for dead ones first.
const SMALL: usize = 64;

/// How many entries there may be in all tables of a store together.
pub(super) struct Room {
    capacity: usize,
    taken: AtomicUsize,
}

impl Room {
    pub(super) const fn new(capacity: usize) -> Self {
        Self {
            capacity,
            taken: AtomicUsize::new(0),
        }
    }

    pub(super) const fn capacity(&self) -> usize {
        self.capacity
    }

    pub(super) fn taken(&self) -> usize {
        self.taken.load(Ordering::Relaxed)
    }

    /// Takes room for so many entries, or for none if there is not enough.
    pub(super) fn take(&self, entries: usize) -> bool {
        entries == 0
            || self
                .taken
                .fetch_update(Ordering::Relaxed, Ordering::Relaxed, |taken| {
                    taken
                        .checked_add(entries)
                        .filter(|wanted| *wanted <= self.capacity)
                })
                .is_ok()
    }

    /// Gives room back.
    pub(super) fn give(&self, entries: usize) {
        self.taken.fetch_sub(entries, Ordering::Relaxed);
    }
}

/// One entry, and when it is of no more use; [`Millis::MAX`] for never.
pub(super) struct Entry<V> {
    hashes: [u64; 2],
    pub(super) expires: Millis,
    pub(super) value: V,
}

/// Entries by key. The keys are hashes already.
pub(super) struct Table<V>(HashTable<Entry<V>>);

impl<V: Default> Table<V> {
    pub(super) fn get(&self, key: Fingerprint) -> Option<&Entry<V>> {
        self.0.find(key.hash(), |entry| entry.hashes == key.hashes)
    }

    /// Makes ready for so many new entries.
    ///
    /// Dead entries leave when the table would have to grow: that costs no more than the growth it
    /// saves, and nothing has to run in between. If enough of them left, it does not grow.
    #[inline]
    pub(super) fn prepare(&mut self, new: usize, now: Millis, room: &Room) {
        let len = self.0.len();
        if len >= SMALL && len + new > self.0.capacity() {
            self.drop_expired(now, room);
            // With room for some more, so that the next ones do not search again.
            self.0.reserve(new.max(len / 8), |entry| entry.hashes[0]);
        }
    }

    /// The entry of this key, made if there is none. The caller has taken the room for it.
    pub(super) fn get_or_insert(&mut self, key: Fingerprint) -> &mut Entry<V> {
        self.0
            .entry(
                key.hash(),
                |entry| entry.hashes == key.hashes,
                |entry| entry.hashes[0],
            )
            .or_insert_with(|| Entry {
                hashes: key.hashes,
                expires: Millis::MAX,
                value: V::default(),
            })
            .into_mut()
    }

    /// Changes the entry of this key, if there is one, and drops it unless `change` says to keep it.
    #[inline]
    pub(super) fn change<T>(
        &mut self,
        key: Fingerprint,
        room: &Room,
        change: impl FnOnce(&mut Entry<V>) -> (T, bool),
    ) -> Option<T> {
        let mut found = (self
            .0
            .find_entry(key.hash(), |entry| entry.hashes == key.hashes))
        .ok()?;
        let (result, keep) = change(found.get_mut());
        if !keep {
            found.remove();
            room.give(1);
        }
        Some(result)
    }

    pub(super) fn drop_expired(&mut self, now: Millis, room: &Room) {
        let before = self.0.len();
        self.0.retain(|entry| entry.expires > now);
        room.give(before - self.0.len());
    }
}

impl<V> Default for Table<V> {
    fn default() -> Self {
        Self(HashTable::new())
    }
}
