//! A bounded table whose entries expire.

use super::room::Room;
use crate::algorithm::Millis;

/// The smallest size of an index, and the fewest entries that there is space for.
const SMALLEST: usize = 64;

/// One entry of a table.
pub(super) struct Entry<V> {
    id: u64,
    /// When the entry expires in the lower bits, and the network that it takes room of in the others.
    bits: u64,
    pub(super) value: V,
}

/// The bits of an entry that hold the time: enough for nine thousand years. All of them set are never.
const TIME: u64 = (1 << 48) - 1;

impl<V> Entry<V> {
    /// Whether the entry has no value, and takes no room.
    #[inline]
    pub(super) const fn is_vacant(&self) -> bool {
        self.bits & TIME == 0
    }

    /// When the entry expires: [`Millis::MAX`] for never, 0 for a vacant one.
    #[inline]
    pub(super) const fn expires(&self) -> Millis {
        match self.bits & TIME {
            TIME => Millis::MAX,
            at => at,
        }
    }

    #[inline]
    pub(super) fn set_expires(&mut self, at: Millis) {
        self.bits = self.bits & !TIME | at.min(TIME);
    }

    /// The network whose room it takes.
    #[inline]
    pub(super) const fn network(&self) -> u16 {
        (self.bits >> 48) as u16
    }

    /// Has a vacant entry take room of this network.
    #[inline]
    pub(super) fn set_network(&mut self, network: u16) {
        self.bits = self.bits & TIME | u64::from(network) << 48;
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
            self.entries.reserve_exact((position / 16).max(SMALLEST));
        }
        self.entries.push(Entry {
            id,
            bits: 0,
            value: V::default(),
        });
        write(&mut self.index, id, position);
        position
    }

    /// Removes expired and vacant entries, and rebuilds the index with room for so many new ones.
    #[cold]
    pub(super) fn drop_expired(&mut self, new: usize, now: Millis, room: &Room) {
        self.entries.retain(|entry| {
            let is_live = entry.expires() > now;
            if !is_live && !entry.is_vacant() {
                room.give(entry.network(), 1);
            }
            is_live
        });
        let len = self.entries.len();
        // Where logins succeed, a table is always small, and emptied again and again: it keeps its space.
        if len < self.entries.capacity() / 2 && self.entries.capacity() > SMALLEST {
            self.entries.shrink_to((len + len / 16).max(SMALLEST));
        }
        // At most 5/8 full, so that the next entries do not cause another search.
        let size = ((len + new) * 8 / 5).next_power_of_two().max(SMALLEST);
        if self.index.len() == size {
            self.index.fill(0);
        } else {
            self.index = vec![0; size];
        }
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
