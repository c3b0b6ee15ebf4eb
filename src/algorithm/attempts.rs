//! The attempts that a counter keeps one by one.

use std::collections::HashSet;

use super::Millis;
use crate::Token;

/// One attempt. A time to come is the end of its lease, so the attempt is in flight; a time that has
/// passed is when it failed. Nothing has to run for the one to become the other.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub(super) struct Entry {
    pub(super) at: Millis,
    pub(super) token: Token,
}

/// Attempts by time, the oldest first, and by token where times are equal, as a sorted set in Redis
/// has them.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub(super) struct Attempts(Vec<Entry>);

impl Attempts {
    /// Those that have failed by `now`; they are the first ones.
    pub(super) fn failures(&self, now: Millis) -> &[Entry] {
        &self.0[..self.0.partition_point(|entry| entry.at <= now)]
    }

    /// How many there are, failed and in flight.
    pub(super) const fn len(&self) -> usize {
        self.0.len()
    }

    pub(super) const fn is_empty(&self) -> bool {
        self.0.is_empty()
    }

    /// The latest time of any.
    pub(super) fn newest(&self) -> Option<Millis> {
        self.0.last().map(|entry| entry.at)
    }

    pub(super) fn holds(&self, token: Token) -> bool {
        self.0.iter().any(|entry| entry.token == token)
    }

    pub(super) fn insert(&mut self, at: Millis, token: Token) {
        let entry = Entry { at, token };
        let i = self.0.partition_point(|other| *other < entry);
        // Most counters hold one or two attempts for their whole life; doubling would waste more
        // than it saves.
        if self.0.len() == self.0.capacity() && self.0.len() < 8 {
            self.0.reserve_exact(1);
        }
        self.0.insert(i, entry);
    }

    /// Turns an attempt in flight into a failure at `now`. One that has failed stays as it is, so
    /// that saying it late or twice extends nothing. Returns whether anything changed.
    pub(super) fn fail(&mut self, token: Token, now: Millis) -> bool {
        match self.0.iter().position(|entry| entry.token == token) {
            Some(i) if self.0[i].at > now => {
                self.0.remove(i);
                self.insert(now, token);
                true
            }
            _ => false,
        }
    }

    /// Takes all of these out. Returns how many were there.
    pub(super) fn cancel_all(&mut self, tokens: &[Token]) -> usize {
        let before = self.0.len();
        match tokens {
            [] => {}
            [token] => self.0.retain(|entry| entry.token != *token),
            tokens => {
                let tokens: HashSet<_> = tokens.iter().copied().collect();
                self.0.retain(|entry| !tokens.contains(&entry.token));
            }
        }
        before - self.0.len()
    }

    #[cfg(feature = "redis")]
    pub(super) fn keep_oldest(&mut self, attempts: usize) {
        self.0.truncate(attempts);
    }

    pub(super) fn drop_oldest(&mut self, attempts: usize) {
        self.0.drain(..attempts);
        if self.0.capacity() > 64 && self.0.len() < self.0.capacity() / 4 {
            self.0.shrink_to(self.0.len() * 2);
        }
    }
}
