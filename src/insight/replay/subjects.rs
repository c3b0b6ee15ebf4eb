//! Who is blocked, in the record and in the replay.

use std::{
    cmp::Reverse,
    collections::HashMap,
    hash::{BuildHasher, RandomState},
    sync::Arc,
};

use super::{
    report::{ReplayedSubject, ReplayedSubjects},
    who::Who,
};
use crate::{Address, Policy, Rule, algorithm::Millis};

/// How many are kept. Beyond it those whose blocks are oldest go.
const CAPACITY: usize = 65_536;
/// How many a report lists.
const LISTED: usize = 100;

/// Those who were blocked, by a hash of the rule and what it counts by.
#[derive(Debug, Default)]
pub(super) struct Subjects {
    hashes: RandomState,
    entries: HashMap<u64, Entry>,
    /// The subjects of recorded counters, by a hash of rule and counter.
    counters: HashMap<u64, u64>,
    /// How many have made way for others.
    pub(super) dropped: u64,
}

#[derive(Debug)]
pub(super) struct Entry {
    pub(super) row: ReplayedSubject,
    name: Option<Box<str>>,
    counter: Option<u64>,
    /// Whether the newest recorded block consists of failures in the record.
    pub(super) is_comparable: bool,
    /// Whether any recorded block does not.
    is_vague: bool,
}

impl Entry {
    /// Whether the block that begins consists of failures in the record.
    pub(super) const fn set_comparable(&mut self, is_comparable: bool) {
        self.is_comparable = is_comparable;
        self.is_vague |= !is_comparable;
    }

    /// Whose counter it is. Rules for a second factor are included.
    pub(super) fn who(&self) -> Who<'_> {
        Who {
            address: self.row.address,
            name: self.name.as_deref().map(Into::into),
            second_factor: true,
            ..Who::default()
        }
    }
}

/// What a rule counts of a caller.
pub(super) struct Subject<'a> {
    pub(super) id: u64,
    rule: Arc<str>,
    address: Option<Address>,
    by_user: bool,
    who: &'a Who<'a>,
}

impl Subjects {
    /// The subject of a caller under a rule.
    pub(super) fn of<'a>(&self, policy: &Policy, rule: &Rule, who: &'a Who<'a>) -> Subject<'a> {
        let address = who.address.filter(|_| rule.counts_by_address());
        let address = address.map(|address| {
            let address = Address::new(address.ip(), policy.ipv6_prefix());
            rule.network().map_or(address, |bits| address.widened(bits))
        });
        let name = who.name.as_deref().filter(|_| rule.counts_by_user());
        Subject {
            id: self.hashes.hash_one((rule.name(), address, name)),
            rule: rule.shared_name(),
            address,
            by_user: rule.counts_by_user(),
            who,
        }
    }

    /// The subject of a counter, under a rule of which the policy does not tell what it counts by.
    pub(super) fn of_counter<'a>(
        &self,
        rule: &Arc<str>,
        counter: &str,
        who: &'a Who<'a>,
    ) -> Subject<'a> {
        Subject {
            id: self.counter(rule, counter),
            rule: Arc::clone(rule),
            address: who.address,
            by_user: true,
            who,
        }
    }

    pub(super) fn counter(&self, rule: &str, counter: &str) -> u64 {
        self.hashes.hash_one((rule, counter))
    }

    /// The user at the address.
    pub(super) fn pair(&self, who: &Who<'_>) -> Option<u64> {
        Some(self.hashes.hash_one((who.address?, who.name.as_deref()?)))
    }

    pub(super) fn get(&mut self, id: u64) -> Option<&mut Entry> {
        self.entries.get_mut(&id)
    }

    /// Who is blocked by a recorded counter.
    pub(super) fn by_counter(&self, counter: u64) -> Option<(u64, &Entry)> {
        let id = self.counters.get(&counter)?;
        Some((*id, self.entries.get(id)?))
    }

    /// Whose block begins in the record.
    pub(super) fn block(&mut self, subject: &Subject<'_>, counter: u64, at: Millis) -> &mut Entry {
        let old = self.entry(subject, at).counter.replace(counter);
        if let Some(old) = old.filter(|old| *old != counter) {
            self.counters.remove(&old);
        }
        self.counters.insert(counter, subject.id);
        self.entry(subject, at)
    }

    /// Whose block begins.
    pub(super) fn entry(&mut self, subject: &Subject<'_>, at: Millis) -> &mut Entry {
        if self.entries.len() >= CAPACITY && !self.entries.contains_key(&subject.id) {
            self.make_room();
        }
        let entry = self.entries.entry(subject.id).or_insert_with(|| {
            let who = subject.who;
            Entry {
                row: ReplayedSubject {
                    rule: Arc::clone(&subject.rule),
                    address: subject.address,
                    user: who.user.filter(|_| subject.by_user).cloned(),
                    at,
                    recorded: 0,
                    replayed: 0,
                    refused: 0,
                    refused_successes: 0,
                    admitted: 0,
                },
                name: (who.name.as_deref())
                    .filter(|_| subject.by_user)
                    .map(Into::into),
                counter: None,
                is_comparable: false,
                is_vague: false,
            }
        });
        entry.row.at = at;
        entry
    }

    /// Drops an eighth, the oldest, so that this is rarely needed.
    fn make_room(&mut self) {
        let entries = self.entries.iter();
        let mut oldest: Vec<_> = entries.map(|(id, entry)| (entry.row.at, *id)).collect();
        oldest.sort_unstable();
        for (_, id) in oldest.into_iter().take(CAPACITY / 8) {
            let counter = self.entries.remove(&id).and_then(|entry| entry.counter);
            counter.map(|counter| self.counters.remove(&counter));
            self.dropped += 1;
        }
    }

    /// Who is blocked in the replay alone, and who in the record alone.
    pub(super) fn compared(self) -> (ReplayedSubjects, ReplayedSubjects) {
        let entries = self.entries.into_values();
        let rows = entries
            .filter(|entry| !entry.is_vague)
            .map(|entry| entry.row);
        let changed = rows.filter(|row| (row.recorded == 0) != (row.replayed == 0));
        let (blocked, freed) = changed.partition(|row| row.recorded == 0);
        let blocked = listed(blocked, |row| (row.refused_successes, row.refused));
        (blocked, listed(freed, |row| (row.admitted, row.recorded)))
    }
}

fn listed(
    mut rows: Vec<ReplayedSubject>,
    affected: impl Fn(&ReplayedSubject) -> (u64, u64),
) -> ReplayedSubjects {
    let count = rows.len() as u64;
    rows.sort_unstable_by_key(|row| Reverse((affected(row), row.at)));
    rows.truncate(LISTED);
    ReplayedSubjects {
        count,
        subjects: rows,
    }
}
