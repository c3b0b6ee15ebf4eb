//! Signs of a spread-out attack, which no single counter shows.

use std::hash::{BuildHasher, Hash, RandomState};

use super::{
    baseline::Baseline,
    distinct::Distinct,
    identity::{Guess, recorded_id},
    top::Top,
};
use crate::{
    Address,
    algorithm::Millis,
    event::{Event, Signal, What},
};

/// How many addresses, and how many users, are watched.
const CAPACITY: usize = 1_024;
/// How long a window is. The current one and the one before count.
const WINDOW: Millis = 10 * 60 * 1000;

/// Notices attacks that are spread out so that no limit is reached: from failures and refusals together.
///
/// Each signal is emitted once when it begins, and again only after it has ended in between: when it has fallen
/// below half of its threshold.
///
/// Of recorded events, users are distinguished if they were recorded as hashes, or if the stream has their ids for this
/// process (`RedisStreamBuilder::with_insight`).
///
/// Memory is bounded: the 1,024 addresses and users with most guesses are watched. One that makes more than that
/// part of all guesses is always among them.
///
/// ```
/// use tower_login_rate_limit::insight::Signals;
///
/// let signals = Signals::new().with_many_users(50).with_failure_rate(10.0, 100.0);
/// // For each event: signals.record(&event), which returns the signals that begin.
/// ```
#[derive(Debug)]
pub struct Signals {
    /// Keyed at random, so that clients can't choose names with equal hashes.
    hashes: RandomState,
    many_users: u32,
    many_addresses: u32,
    factor: f64,
    minimum: f64,
    /// Users by address.
    addresses: Watched<Address>,
    /// Addresses by hash of the user.
    users: Watched<u64>,
    failures: Baseline,
    is_unusual: bool,
}

#[derive(Debug)]
struct Watched<K> {
    window: u64,
    top: Top<K, Others>,
}

/// What one address or user was seen with.
#[derive(Clone, Copy, Debug, Default)]
struct Others {
    window: u64,
    current: Distinct,
    previous: Distinct,
    is_signaled: bool,
}

impl Others {
    /// Adds another one; returns how many there are if that has just become too many.
    fn add(&mut self, hash: u64, window: u64, threshold: u32) -> Option<u32> {
        if self.window != window {
            self.previous = if self.window + 1 == window {
                self.current
            } else {
                Distinct::default()
            };
            self.current = Distinct::default();
            self.window = window;
        }
        self.current.add(hash);
        let count = self.current.union(&self.previous).estimate();
        if count >= threshold && !self.is_signaled {
            self.is_signaled = true;
            return Some(count);
        }
        if count < threshold / 2 {
            self.is_signaled = false;
        }
        None
    }
}

impl<K: Clone + Eq + Hash> Watched<K> {
    fn new() -> Self {
        Self {
            window: 0,
            top: Top::new(CAPACITY),
        }
    }

    fn add(&mut self, key: &K, other: u64, at: Millis, threshold: u32) -> Option<u32> {
        // Time does not go back.
        let window = (at / WINDOW).max(self.window);
        if self.window != window {
            self.window = window;
            self.top.halve();
        }
        let others = self.top.count(key, Others::default);
        others.add(other, window, threshold)
    }
}

impl Default for Signals {
    fn default() -> Self {
        Self::new()
    }
}

impl Signals {
    /// With thresholds that suit most sites: 30 users of an address, 30 addresses of a user within 10 to 20
    /// minutes, or five times the usual failures and 60 a minute.
    #[must_use]
    pub fn new() -> Self {
        Self {
            hashes: RandomState::new(),
            many_users: 30,
            many_addresses: 30,
            factor: 5.0,
            minimum: 60.0,
            addresses: Watched::new(),
            users: Watched::new(),
            failures: Baseline::default(),
            is_unusual: false,
        }
    }

    /// Sets how many users an address may fail at within 10 to 20 minutes, from 2 to 1,000; 30 by default. An
    /// office or a mobile network has many users at one address, but few of them fail.
    #[must_use]
    pub fn with_many_users(mut self, users: u32) -> Self {
        self.many_users = users.clamp(2, 1_000);
        self
    }

    /// Sets from how many addresses a user may fail within 10 to 20 minutes, from 2 to 1,000; 30 by default.
    #[must_use]
    pub fn with_many_addresses(mut self, addresses: u32) -> Self {
        self.many_addresses = addresses.clamp(2, 1_000);
        self
    }

    /// Sets how many times the usual failures are unusual, and how many a minute they must be at least; 5 and 60 by
    /// default. What is usual is learned during the first hour, and slowly from then on.
    #[must_use]
    pub const fn with_failure_rate(mut self, factor: f64, minimum: f64) -> Self {
        self.factor = factor.max(1.0);
        self.minimum = minimum.max(1.0);
        self
    }

    /// Takes notice of an event, and returns the signals that begin with it.
    pub fn record(&mut self, event: &Event) -> Vec<Event> {
        let user = event.user.as_ref();
        let user = user.and_then(|user| match user.identified() {
            Some(name) => Some(self.hashes.hash_one(name)),
            None => recorded_id(user),
        });
        self.record_of(event, user)
    }

    /// The same, with an id of the user.
    pub(super) fn record_of(&mut self, event: &Event, user: Option<u64>) -> Vec<Event> {
        let mut signals = Vec::new();
        if self.failures.advance(event.at) {
            signals.extend(self.failure_rate(event.at));
        }
        if Guess::of(event).is_none() {
            return signals;
        }
        self.failures.count();
        // An id that is recorded is in reach of who writes the record.
        let user = user.map(|user| self.hashes.hash_one(user));
        let (Some(address), Some(user)) = (event.address, user) else {
            return signals;
        };
        let of_address = self.hashes.hash_one(address);
        let users = (self.addresses).add(&address, user, event.at, self.many_users);
        signals.extend(users.map(|users| {
            let signal = What::Signal(Signal::ManyUsers { users });
            Event::new(signal).with_address(address).with_time(event.at)
        }));
        let addresses = (self.users).add(&user, of_address, event.at, self.many_addresses);
        signals.extend(addresses.map(|addresses| {
            let signal = What::Signal(Signal::ManyAddresses { addresses });
            let signal = Event::new(signal).with_time(event.at);
            signal.with_user(event.user.clone())
        }));
        signals
    }

    /// At the end of a minute.
    fn failure_rate(&mut self, at: Millis) -> Option<Event> {
        let (per_minute, baseline) = self.failures.rates();
        let threshold = (baseline * self.factor).max(self.minimum);
        if !self.failures.is_warm() || per_minute < threshold {
            self.is_unusual &= per_minute >= threshold / 2.0;
            return None;
        }
        let begins = !std::mem::replace(&mut self.is_unusual, true);
        let signal = Signal::FailureRate {
            per_minute,
            baseline,
        };
        begins.then(|| Event::new(What::Signal(signal)).with_time(at))
    }
}
