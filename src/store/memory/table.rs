//! A bounded table whose entries expire.

use std::sync::atomic::{AtomicUsize, Ordering};

use crate::algorithm::Millis;

/// The smallest size of an index.
const SMALLEST: usize = 32;

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
        let add = |taken: usize| {
            let wanted = taken.checked_add(entries);
            wanted.filter(|wanted| *wanted <= self.capacity)
        };
        let (set, fetch) = (Ordering::Relaxed, Ordering::Relaxed);
        entries == 0 || self.taken.fetch_update(set, fetch, add).is_ok()
    }

    /// Gives room back.
    pub(super) fn give(&self, entries: usize) {
        if entries > 0 {
            self.taken.fetch_sub(entries, Ordering::Relaxed);
        }
    }
}

/// One entry of a table.
pub(super) struct Entry<V> {
    id: u64,
    /// When the entry expires: [`Millis::MAX`] for never, 0 for an entry without a value, which takes no
    /// room.
    pub(super) expires: Millis,
    pub(super) value: V,
}

impl<V> Entry<V> {
    pub(super) const fn is_vacant(&self) -> bool {
        self.expires == 0
    }
}

/// Entries by id, which is a hash. They are stored densely and found through an index of small numbers, so
/// that the free places of a hash table cost four bytes each.
///
/// An entry that becomes vacant stays until the table would have to grow: the next attempt of the same
/// caller finds it ready.
pub(super) struct Table<V> {
    /// For each entry its position from 1, and upper bits of its id in the bits above those of the index's
    /// size, a power of two. 0 is free.
    index: Vec<u32>,
    entries: Vec<Entry<V>>,
}

impl<V: Default> Table<V> {
    /// The position of the entry with this id.
    #[inline]
    fn find(&self, id: u64) -> Option<usize> {
        let mask = self.index.len().wrapping_sub(1);
        let mut at = id as usize;
        loop {
            let place = *self.index.get(at & mask)?;
            if place == 0 {
                return None;
            }
            if (place ^ tag(id)) & !(mask as u32) == 0 {
                let position = (place as usize & mask) - 1;
                if self
                    .entries
                    .get(position)
                    .is_some_and(|entry| entry.id == id)
                {
                    return Some(position);
                }
            }
            at = at.wrapping_add(1);
        }
    }

    #[inline]
    pub(super) fn get(&self, id: u64) -> Option<&Entry<V>> {
        self.find(id).map(|position| &self.entries[position])
    }

    #[inline]
    pub(super) fn get_mut(&mut self, id: u64) -> Option<&mut Entry<V>> {
        self.find(id).map(|position| &mut self.entries[position])
    }

    /// Prepares the table for this many new entries. What is present afterwards stays while they are
    /// inserted.
    #[inline]
    pub(super) fn prepare(&mut self, new: usize, now: Millis, room: &Room) {
        // Expired entries are removed when the index would have to grow: that costs no more than the growth
        // it may save, and needs no timer.
        if self.entries.len() + new > self.index.len() / 4 * 3 {
            self.drop_expired(new, now, room);
        }
    }

    /// The entry with this id, or a new, vacant one, for which the table is prepared.
    #[inline]
    pub(super) fn get_or_insert(&mut self, id: u64) -> &mut Entry<V> {
        let position = self.find(id).unwrap_or_else(|| self.insert(id));
        &mut self.entries[position]
    }

    fn insert(&mut self, id: u64) -> usize {
        let position = self.entries.len();
        if position == self.entries.capacity() {
            // Doubling would waste memory.
            self.entries.reserve_exact(position / 16 + 8);
        }
        self.entries.push(Entry {
            id,
            expires: 0,
            value: V::default(),
        });
        write(&mut self.index, id, position);
        position
    }

    /// Removes expired and vacant entries, and rebuilds the index with room for so many new ones.
    #[cold]
    pub(super) fn drop_expired(&mut self, new: usize, now: Millis, room: &Room) {
        let mut expired = 0;
        self.entries.retain(|entry| {
            expired += usize::from(!entry.is_vacant() && entry.expires <= now);
            entry.expires > now
        });
        room.give(expired);
        let len = self.entries.len();
        if len < self.entries.capacity() / 2 {
            self.entries.shrink_to(len + len / 16);
        }
        // At most 5/8 full, so that the next entries do not cause another search.
        let size = ((len + new) * 8 / 5).next_power_of_two().max(SMALLEST);
        self.index = vec![0; size];
        for (position, entry) in self.entries.iter().enumerate() {
            write(&mut self.index, entry.id, position);
        }
    }
}

/// The bits of an id that distinguish entries in an index before they are looked at.
#[inline]
const fn tag(id: u64) -> u32 {
    (id >> 32) as u32
}

/// Writes the position of an entry to the first free place of an index.
#[inline]
fn write(index: &mut [u32], id: u64, position: usize) {
    let mask = index.len().wrapping_sub(1);
    let mut at = id as usize;
    while index[at & mask] != 0 {
        at = at.wrapping_add(1);
    }
    index[at & mask] = (tag(id) & !(mask as u32)) | (position as u32 + 1);
}

impl<V> Default for Table<V> {
    fn default() -> Self {
        Self {
            index: Vec::new(),
            entries: Vec::new(),
        }
    }
}
