//! How many entries a store may hold, and how they are divided among networks.

use std::sync::atomic::{AtomicU32, AtomicUsize, Ordering};

/// How many shares there are at most.
const MOST_SHARES: usize = 4_096;
/// How many entries of the capacity there are for each share at least.
const PER_SHARE: usize = 64;

/// How many entries there may be in all tables of a store together.
///
/// Half of the capacity is divided into shares of equal size, the other half is for all. A network has one share,
/// by a secret hash, and takes from what is for all when its share is used up. So a flood from one network, or
/// from a few, leaves others theirs; and since an entry is never taken away, nothing that counts is forgotten for
/// it. Which other networks have the same share is not known to an attacker.
pub(super) struct Room {
    capacity: usize,
    /// How many entries have been taken in each share, those beyond its size included.
    shares: Box<[AtomicU32]>,
    /// The size of a share.
    size: u32,
    /// What is left for all.
    common: AtomicUsize,
    taken: AtomicUsize,
}

impl Room {
    pub(super) fn new(capacity: usize) -> Self {
        let shares = (capacity / PER_SHARE).clamp(1, MOST_SHARES);
        // A power of two.
        let shares = 1 << shares.ilog2();
        let size = u32::try_from(capacity / 2 / shares).unwrap_or(u32::MAX);
        Self {
            capacity,
            shares: (0..shares).map(|_| AtomicU32::new(0)).collect(),
            size,
            common: AtomicUsize::new(capacity - size as usize * shares),
            taken: AtomicUsize::new(0),
        }
    }

    pub(super) const fn capacity(&self) -> usize {
        self.capacity
    }

    pub(super) fn taken(&self) -> usize {
        self.taken.load(Ordering::Relaxed)
    }

    #[inline]
    fn share(&self, network: u16) -> &AtomicU32 {
        // There is a power of two of them, and at least one.
        &self.shares[usize::from(network) & (self.shares.len() - 1)]
    }

    /// How many entries of a share are beyond its size.
    #[inline]
    const fn beyond(&self, taken: u32) -> usize {
        taken.saturating_sub(self.size) as usize
    }

    /// Takes room for this many entries of a network, or for none if there is not enough.
    #[inline]
    pub(super) fn take(&self, network: u16, entries: usize) -> bool {
        if entries == 0 {
            return true;
        }
        let share = self.share(network);
        let mut taken = share.load(Ordering::Relaxed);
        loop {
            let Some(wanted) = u32::try_from(entries)
                .ok()
                .and_then(|entries| taken.checked_add(entries))
            else {
                return false;
            };
            // What is for all is taken before the share is changed and given back after it, so that there is
            // never more taken than there is.
            let common = self.beyond(wanted) - self.beyond(taken);
            if common > 0 && !self.take_common(common) {
                return false;
            }
            let order = Ordering::Relaxed;
            match share.compare_exchange_weak(taken, wanted, order, order) {
                Ok(_) => {
                    self.taken.fetch_add(entries, Ordering::Relaxed);
                    return true;
                }
                Err(changed) => {
                    self.common.fetch_add(common, Ordering::Relaxed);
                    taken = changed;
                }
            }
        }
    }

    #[cold]
    fn take_common(&self, entries: usize) -> bool {
        let take = |left: usize| left.checked_sub(entries);
        let order = Ordering::Relaxed;
        self.common.fetch_update(order, order, take).is_ok()
    }

    /// Gives room of a network back.
    #[inline]
    pub(super) fn give(&self, network: u16, entries: usize) {
        if entries > 0 {
            let given = u32::try_from(entries).unwrap_or(u32::MAX);
            // First, as it is added last: it is never more than the shares together.
            self.taken.fetch_sub(entries, Ordering::Relaxed);
            let taken = self.share(network).fetch_sub(given, Ordering::Relaxed);
            let common = self.beyond(taken) - self.beyond(taken.saturating_sub(given));
            if common > 0 {
                self.common.fetch_add(common, Ordering::Relaxed);
            }
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn all_of_the_capacity_can_be_taken_and_no_more() {
        for capacity in [0, 1, 2, 63, 64, 127, 128, 1_000, 100_000, 1_000_003] {
            let room = Room::new(capacity);
            let mut taken = 0;
            // More than there are shares, so that each of them is taken.
            for network in (0..=u16::MAX).cycle().take(2 * (capacity + 70_000)) {
                taken += usize::from(room.take(network, 1));
            }
            assert_eq!((taken, room.taken()), (capacity, capacity));
            assert!(!room.take(7, 1) && room.take(7, 0));
            if capacity > 0 {
                room.give(7, 1);
                assert!(room.take(7, 1) && !room.take(7, 1));
            }
        }
    }

    #[test]
    fn what_is_taken_and_given_back_by_many_threads_is_there_again() {
        let room = Room::new(640);
        std::thread::scope(|scope| {
            for network in [0, 0, 1, 1] {
                let room = &room;
                scope.spawn(move || {
                    for i in 0..200_000 {
                        let entries = i % 150;
                        if room.take(network, entries) {
                            room.give(network, entries);
                        }
                    }
                });
            }
        });
        assert_eq!(room.taken(), 0);
        assert!(room.take(0, 360) && !room.take(0, 1));
    }
}
