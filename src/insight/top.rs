//! The most frequent keys, in bounded memory.

use std::{collections::HashMap, hash::Hash};

/// The Space-Saving summary of Metwally, Agrawal and El Abbadi: a fixed number of entries, of which the smallest
/// makes way for a new key.
///
/// After `n` counted events, with `m` entries:
///
/// - a key that occurred more than `n / m` times has an entry, whatever else occurred;
/// - an entry's count is at least the key's own, and too high by `error` at most, which is at most `n / m`;
/// - a key without an entry occurred [`floor`](Self::floor) times at most.
#[derive(Clone, Debug)]
pub(super) struct Top<K, V> {
    capacity: usize,
    entries: Vec<Entry<K, V>>,
    /// Where the entry of a key is.
    positions: HashMap<K, usize>,
}

#[derive(Clone, Debug)]
pub(super) struct Entry<K, V> {
    pub(super) key: K,
    pub(super) count: u64,
    /// What the count may contain of keys that made way for this one.
    pub(super) error: u64,
    /// What else is kept of the key, from when it got this entry.
    pub(super) value: V,
}

impl<K: Clone + Eq + Hash, V> Top<K, V> {
    pub(super) fn new(capacity: usize) -> Self {
        Self {
            capacity: capacity.max(1),
            entries: Vec::new(),
            positions: HashMap::new(),
        }
    }

    /// Counts an occurrence of a key, and returns what is kept of it.
    pub(super) fn count(&mut self, key: &K, make: impl FnOnce() -> V) -> &mut V {
        let position = match self.positions.get(key) {
            Some(position) => *position,
            None => self.replace(key, make()),
        };
        let entry = &mut self.entries[position];
        entry.count += 1;
        &mut entry.value
    }

    /// Gives the key an entry, the smallest one's if none is free.
    fn replace(&mut self, key: &K, value: V) -> usize {
        let smallest = (self.entries.iter().enumerate()).min_by_key(|(_, entry)| entry.count);
        let position = match smallest {
            Some((position, _)) if self.entries.len() >= self.capacity => {
                let entry = &mut self.entries[position];
                self.positions.remove(&entry.key);
                entry.key = key.clone();
                entry.error = entry.count;
                entry.value = value;
                position
            }
            _ => {
                self.entries.push(Entry {
                    key: key.clone(),
                    count: 0,
                    error: 0,
                    value,
                });
                self.entries.len() - 1
            }
        };
        self.positions.insert(key.clone(), position);
        position
    }

    /// How often a key without an entry may have occurred.
    pub(super) fn floor(&self) -> u64 {
        if self.entries.len() < self.capacity {
            return 0;
        }
        let counts = self.entries.iter().map(|entry| entry.count);
        counts.min().unwrap_or_default()
    }

    pub(super) fn entries(&self) -> &[Entry<K, V>] {
        &self.entries
    }

    /// Forgets half of all counts, and the keys of which nothing is left: what is frequent now soon outweighs
    /// what was.
    pub(super) fn halve(&mut self) {
        for entry in &mut self.entries {
            entry.count /= 2;
            entry.error /= 2;
        }
        self.entries.retain(|entry| entry.count > 0);
        let keys = self.entries.iter().map(|entry| entry.key.clone());
        self.positions = keys.zip(0..).collect();
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use proptest::prelude::*;

    /// The three promises, for every key that occurred.
    fn check(capacity: usize, keys: &[u16]) -> Result<(), TestCaseError> {
        let mut top = Top::new(capacity);
        let mut truth = HashMap::<u16, u64>::new();
        for key in keys {
            top.count(key, || ());
            *truth.entry(*key).or_default() += 1;
        }
        let bound = keys.len() as u64 / capacity as u64;
        prop_assert!(top.entries().len() <= capacity);
        prop_assert!(top.floor() <= bound);
        for (key, count) in truth {
            match top
                .positions
                .get(&key)
                .map(|position| &top.entries[*position])
            {
                Some(entry) => {
                    prop_assert_eq!(entry.key, key);
                    prop_assert!(entry.count >= count && entry.count - entry.error <= count);
                    prop_assert!(entry.error <= bound);
                }
                None => prop_assert!(count <= top.floor()),
            }
        }
        let sum: u64 = top.entries().iter().map(|entry| entry.count).sum();
        prop_assert_eq!(sum, keys.len() as u64);
        Ok(())
    }

    proptest! {
        #![proptest_config(ProptestConfig { failure_persistence: None, ..Default::default() })]
        #[test]
        fn counts_are_right_within_the_bound(
            capacity in 1..20_usize,
            keys in prop::collection::vec(0..40_u16, 0..500),
        ) {
            check(capacity, &keys)?;
        }

        /// An attacker sends any number of keys of their own between those of a key that is frequent.
        #[test]
        fn a_flood_of_keys_pushes_no_frequent_key_out(flood in prop::collection::vec(1..5_usize, 50..200)) {
            let mut keys = Vec::new();
            let mut other = 0;
            for burst in flood {
                keys.push(u16::MAX);
                keys.extend((0..burst).map(|i| other + u16::try_from(i).unwrap()));
                other += 5;
            }
            check(8, &keys)?;
            let mut top = Top::new(8);
            keys.iter().for_each(|key| { top.count(key, || ()); });
            prop_assert!(top.positions.contains_key(&u16::MAX));
        }
    }

    #[test]
    fn memory_stays_as_it_is_whatever_comes() {
        let mut top = Top::new(100);
        for key in 0..100_000 {
            top.count(&key, || ());
        }
        assert_eq!((top.entries.len(), top.positions.len()), (100, 100));
        assert!(top.entries.capacity() <= 128 && top.positions.capacity() <= 512);
        top.halve();
        assert_eq!(top.floor(), 500);
        (0..10).for_each(|_| top.halve());
        assert_eq!((top.entries.len(), top.positions.len()), (0, 0));
    }
}
