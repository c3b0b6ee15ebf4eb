//! The index of blocks in memory.

use std::{
    collections::{BTreeSet, HashMap, btree_set},
    hash::Hash,
    iter::Peekable,
    ops::Bound::{Excluded, Unbounded},
};

use super::names;
use crate::{
    Address,
    algorithm::Millis,
    store::{
        BlockQuery, StoreError,
        fingerprint::Fingerprint,
        ledger::{Filter, MAX_SEARCHED, Position},
    },
};

/// How many entries whose blocks have lifted are dropped by each new one.
const DROPPED: usize = 100;

/// The place of an entry: when its block lifts, in the store's time, and the id of its counter.
type Place = (Millis, u64);
type Places = BTreeSet<Place>;

/// Blocks in the order in which they lift, one for each counter at most.
#[derive(Default)]
pub(super) struct Index {
    entries: HashMap<u64, Entry>,
    by_rule: HashMap<Box<str>, Places>,
    by_address: HashMap<Address, Places>,
    by_subject: HashMap<Fingerprint, Places>,
    noted: u64,
    swept: Option<Millis>,
}

/// One block.
pub(super) struct Entry {
    pub(super) counter: Fingerprint,
    pub(super) rule: Box<str>,
    /// [`Millis::MAX`] for never.
    pub(super) lifts: Millis,
    pub(super) address: Option<Address>,
    pub(super) subject: Option<Fingerprint>,
    pub(super) text: Box<str>,
    /// Of all notes, the number of this one.
    pub(super) number: u64,
}

impl Entry {
    const fn place(&self) -> Place {
        (self.lifts, self.counter.id)
    }

    fn position(&self) -> Position {
        Position {
            lifts: self.lifts,
            name: names::seal(self.counter).to_string(),
        }
    }
}

impl Index {
    pub(super) fn len(&self) -> usize {
        self.entries.len()
    }

    pub(super) fn contains(&self, counter: u64) -> bool {
        self.entries.contains_key(&counter)
    }

    /// Adds an entry, in place of one of the same counter.
    pub(super) fn insert(&mut self, mut entry: Entry, now: Millis) {
        self.remove(entry.counter.id);
        self.drop_lifted(&entry.rule, now);
        self.noted += 1;
        entry.number = self.noted;
        let place = entry.place();
        let of_rule = self.by_rule.entry(entry.rule.clone());
        of_rule.or_default().insert(place);
        if let Some(address) = entry.address {
            self.by_address.entry(address).or_default().insert(place);
        }
        if let Some(subject) = entry.subject {
            self.by_subject.entry(subject).or_default().insert(place);
        }
        self.entries.insert(entry.counter.id, entry);
    }

    /// Removes the entry of a counter.
    fn remove(&mut self, counter: u64) {
        let Some(entry) = self.entries.remove(&counter) else {
            return;
        };
        let place = entry.place();
        take(&mut self.by_rule, &entry.rule, place);
        if let Some(address) = &entry.address {
            take(&mut self.by_address, address, place);
        }
        if let Some(subject) = &entry.subject {
            take(&mut self.by_subject, subject, place);
        }
    }

    /// Removes the entry of a counter, if it is still the one of this number.
    pub(super) fn remove_note(&mut self, counter: u64, number: u64) {
        let entry = self.entries.get(&counter);
        if entry.is_some_and(|entry| entry.number == number) {
            self.remove(counter);
        }
    }

    fn drop_lifted(&mut self, rule: &str, now: Millis) {
        let places = self.by_rule.get(rule).into_iter().flatten();
        let lifted = places.take_while(|(lifts, _)| *lifts <= now).take(DROPPED);
        for (_, counter) in lifted.copied().collect::<Vec<_>>() {
            self.remove(counter);
        }
    }

    /// Whether entries may be searched for stale ones: once a second, as for counters.
    pub(super) fn may_sweep(&mut self, now: Millis, every: Millis) -> bool {
        let is_due = self
            .swept
            .is_none_or(|swept| now < swept || now - swept >= every);
        if is_due {
            self.swept = Some(now);
        }
        is_due
    }

    /// Drops every entry that has lifted or is not to be kept.
    pub(super) fn retain(&mut self, now: Millis, keep: impl Fn(Fingerprint) -> bool) {
        let stale = self.entries.values();
        let stale = stale.filter(|entry| entry.lifts <= now || !keep(entry.counter));
        for counter in stale.map(|entry| entry.counter.id).collect::<Vec<_>>() {
            self.remove(counter);
        }
    }

    pub(super) fn count(&self, rule: &str, now: Millis) -> u64 {
        let places = self.by_rule.get(rule);
        places.map_or(0, |places| places.range((now + 1, 0)..).count() as u64)
    }

    /// The entries of a page, and where the next page begins.
    pub(super) fn page(
        &self,
        query: &BlockQuery<'_>,
        subject: Option<Fingerprint>,
        now: Millis,
    ) -> Result<(Vec<&Entry>, Option<Position>), StoreError> {
        let mut from: Place = (now, u64::MAX);
        if let Some(cursor) = query.after {
            let after = Position::from_cursor(cursor)?;
            from = from.max((after.lifts, names::open(&after.name)?.id));
        }
        let places: Vec<Option<&Places>> = match (subject, query.address) {
            (Some(subject), _) => vec![self.by_subject.get(&subject)],
            (None, Some(address)) => vec![self.by_address.get(&address)],
            (None, None) => {
                let rules = query.rules.iter();
                rules.map(|rule| self.by_rule.get(*rule)).collect()
            }
        };
        let places = places.into_iter().flatten();
        let mut places = Merged(
            places
                .map(|places| places.range((Excluded(from), Unbounded)).peekable())
                .collect(),
        );

        let (filter, limit) = (Filter::new(query), query.limit.clamp(1, 1_000));
        let (mut page, mut searched, mut last) = (Vec::new(), 0, None);
        while page.len() < limit && searched < MAX_SEARCHED {
            let Some((_, counter)) = places.next() else {
                return Ok((page, None));
            };
            searched += 1;
            if let Some(entry) = self.entries.get(&counter) {
                last = Some(entry);
                if filter.matches(&entry.rule, entry.address) {
                    page.push(entry);
                }
            }
        }
        let next = last.filter(|_| places.next().is_some());
        Ok((page, next.map(Entry::position)))
    }
}

/// Several sets of places as one.
struct Merged<'a>(Vec<Peekable<btree_set::Range<'a, Place>>>);

impl Iterator for Merged<'_> {
    type Item = Place;

    fn next(&mut self) -> Option<Place> {
        let first = self
            .0
            .iter_mut()
            .filter_map(Peekable::peek)
            .min()
            .copied()?;
        for places in &mut self.0 {
            // A rule that is asked for twice is listed once.
            let _ = places.next_if_eq(&first);
        }
        Some(*first)
    }
}

/// Removes a place from a set, and the set if it is empty.
fn take<K: Hash + Eq>(sets: &mut HashMap<K, Places>, key: &K, place: Place) {
    if let Some(places) = sets.get_mut(key) {
        places.remove(&place);
        if places.is_empty() {
            sets.remove(key);
        }
    }
}
