//! Who guesses most.

use std::{collections::HashMap, hash::Hash};

use super::{
    identity::{Guess, user_id},
    top::Top,
};
use crate::{
    Address,
    algorithm::Millis,
    event::{Event, EventUser, UserHasher},
};

/// How many addresses, and how many users, are kept of a window.
const CAPACITY: usize = 256;
/// How long a window is. "Lately" is the current one and the one before.
const WINDOW: Millis = 30 * 60 * 1000;

/// The addresses and users with most failures and refusals lately, in bounded memory.
///
/// Lately is the last 30 to 60 minutes. An address or user with more than 1/256 of all guesses within 30 minutes is on the
/// list, whatever else happens: a flood of other names or addresses does not push it out. Counts of others are
/// approximate, see [`Busy::uncertain`].
///
/// Users are distinguished by a keyed hash and shown as in events. Each process has a list of its own;
/// [reports](BusiestReport) with the same secret can be merged.
///
/// ```
/// use tower_login_rate_limit::{event::UserHasher, insight::Busiest};
///
/// let mut busiest = Busiest::new(UserHasher::new("32 random bytes, the same on each server")?);
/// // For each event: busiest.record(&event);
/// let report = busiest.report(10);
/// assert!(report.addresses.is_empty());
/// # Ok::<(), tower_login_rate_limit::event::SecretError>(())
/// ```
#[derive(Debug)]
pub struct Busiest {
    hasher: UserHasher,
    addresses: Windows<Address, ()>,
    users: Windows<u64, EventUser>,
}

#[derive(Debug)]
struct Windows<K, V> {
    /// The number of the current window.
    number: u64,
    current: Top<K, (Counts, V)>,
    previous: Top<K, (Counts, V)>,
}

#[derive(Clone, Copy, Debug, Default)]
struct Counts {
    failures: u64,
    refusals: u64,
}

impl<K: Clone + Eq + Hash, V: Clone> Windows<K, V> {
    fn new() -> Self {
        Self {
            number: 0,
            current: Top::new(CAPACITY),
            previous: Top::new(CAPACITY),
        }
    }

    /// Begins new windows up to this one. Time does not go back.
    fn advance(&mut self, number: u64) {
        let ahead = number.saturating_sub(self.number);
        if ahead > 0 {
            let ended = std::mem::replace(&mut self.current, Top::new(CAPACITY));
            self.previous = if ahead == 1 {
                ended
            } else {
                Top::new(CAPACITY)
            };
            self.number = number;
        }
    }

    fn count(&mut self, key: &K, guess: Guess, make: impl FnOnce() -> V) {
        let (counts, _) = self.current.count(key, || (Counts::default(), make()));
        match guess {
            Guess::Failed => counts.failures += 1,
            Guess::Refused => counts.refusals += 1,
        }
    }

    /// Both windows together.
    fn list(&self, id: impl Fn(&K) -> Box<str>, show: impl Fn(&V) -> Option<Box<str>>) -> List {
        let mut list = List::default();
        for window in [&self.previous, &self.current] {
            let entries = window.entries().iter().map(|entry| {
                let (counts, value) = &entry.value;
                Busy {
                    id: id(&entry.key),
                    shown: show(value),
                    failures: counts.failures,
                    refusals: counts.refusals,
                    uncertain: entry.error,
                }
            });
            list = list.merge(List {
                entries: entries.collect(),
                floor: window.floor(),
            });
        }
        list
    }
}

impl Busiest {
    /// Distinguishes users with this hasher. Processes whose reports are merged need the same secret.
    #[must_use]
    pub fn new(hasher: UserHasher) -> Self {
        Self {
            hasher,
            addresses: Windows::new(),
            users: Windows::new(),
        }
    }

    /// Takes notice of an event. Failures and refusals count, by the time of the event.
    pub fn record(&mut self, event: &Event) {
        let user = event.user.as_ref();
        let user = user.and_then(|user| user_id(user, &self.hasher));
        self.record_of(event, user);
    }

    /// The same, with the id of the user.
    pub(super) fn record_of(&mut self, event: &Event, user: Option<u64>) {
        let number = event.at / WINDOW;
        self.addresses.advance(number);
        self.users.advance(number);
        let Some(guess) = Guess::of(event) else {
            return;
        };
        if let Some(address) = &event.address {
            self.addresses.count(address, guess, || ());
        }
        if let Some((shown, id)) = event.user.as_ref().zip(user) {
            self.users.count(&id, guess, || shown.clone());
        }
    }

    /// The `count` busiest addresses and users, as of the last event. To be merged, a report should have all:
    /// `usize::MAX`.
    #[must_use]
    pub fn report(&self, count: usize) -> BusiestReport {
        let addresses = self
            .addresses
            .list(|address| address.to_string().into(), |()| None);
        let shown = |user: &EventUser| user.shown().map(Into::into);
        let users = (self.users).list(|id| UserHasher::text(*id).into(), shown);
        BusiestReport {
            address_floor: addresses.floor,
            user_floor: users.floor,
            addresses: addresses.entries,
            users: users.entries,
        }
        .first(count)
    }
}

/// An address or a user, and its guesses lately.
#[derive(Clone, Debug, PartialEq, Eq)]
#[cfg_attr(feature = "serde", derive(serde::Serialize, serde::Deserialize))]
#[non_exhaustive]
pub struct Busy {
    /// The address, or the hash of the user.
    pub id: Box<str>,
    /// The user as shown in events, if it is.
    #[cfg_attr(
        feature = "serde",
        serde(default, skip_serializing_if = "Option::is_none")
    )]
    pub shown: Option<Box<str>>,
    /// Attempts that failed, at least.
    pub failures: u64,
    /// Attempts that were refused, at least.
    pub refusals: u64,
    /// How many more of both there may have been, before this one was on the list.
    pub uncertain: u64,
}

impl Busy {
    /// Failures and refusals, at least.
    #[must_use]
    pub const fn guesses(&self) -> u64 {
        self.failures.saturating_add(self.refusals)
    }
}

/// The busiest addresses and users, the busiest first.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
#[cfg_attr(feature = "serde", derive(serde::Serialize, serde::Deserialize))]
#[non_exhaustive]
pub struct BusiestReport {
    /// Addresses.
    pub addresses: Vec<Busy>,
    /// Users.
    pub users: Vec<Busy>,
    /// How many guesses an address that is not on the list can have made.
    pub address_floor: u64,
    /// How many guesses there can have been at a user who is not on the list.
    pub user_floor: u64,
}

impl BusiestReport {
    /// This report and that of another process, together.
    #[must_use]
    pub fn merge(self, other: Self) -> Self {
        let list = |entries, floor| List { entries, floor };
        let addresses = list(self.addresses, self.address_floor);
        let addresses = addresses.merge(list(other.addresses, other.address_floor));
        let users = list(self.users, self.user_floor);
        let users = users.merge(list(other.users, other.user_floor));
        Self {
            addresses: addresses.entries,
            users: users.entries,
            address_floor: addresses.floor,
            user_floor: users.floor,
        }
        .first(2 * CAPACITY)
    }

    /// The first of both lists. Those that are left out raise the floor.
    #[must_use]
    pub fn first(mut self, count: usize) -> Self {
        for (entries, floor) in [
            (&mut self.addresses, &mut self.address_floor),
            (&mut self.users, &mut self.user_floor),
        ] {
            entries.sort_by(|a, b| b.guesses().cmp(&a.guesses()).then_with(|| a.id.cmp(&b.id)));
            let most = |entry: Busy| entry.guesses().saturating_add(entry.uncertain);
            let left_out = entries.split_off(count.min(entries.len()));
            *floor = left_out.into_iter().map(most).fold(*floor, u64::max);
        }
        self
    }
}

#[derive(Default)]
struct List {
    entries: Vec<Busy>,
    floor: u64,
}

impl List {
    /// Adds the counts of equal ids. What is on one list only may have occurred on the other as often as its floor.
    fn merge(self, other: Self) -> Self {
        let mut others: HashMap<_, _> = (other.entries.into_iter())
            .map(|entry| (entry.id.clone(), entry))
            .collect();
        let mut entries = self.entries;
        for entry in &mut entries {
            match others.remove(&entry.id) {
                Some(same) => {
                    entry.failures = entry.failures.saturating_add(same.failures);
                    entry.refusals = entry.refusals.saturating_add(same.refusals);
                    entry.uncertain = entry.uncertain.saturating_add(same.uncertain);
                    entry.shown = same.shown.or(entry.shown.take());
                }
                None => entry.uncertain = entry.uncertain.saturating_add(other.floor),
            }
        }
        entries.extend(others.into_values().map(|mut entry| {
            entry.uncertain = entry.uncertain.saturating_add(self.floor);
            entry
        }));
        Self {
            entries,
            floor: self.floor.saturating_add(other.floor),
        }
    }
}
