//! The attempts that a counter keeps one by one.

use std::collections::HashSet;

use smallvec::SmallVec;

use super::Millis;
use crate::Token;

/// So many tokens are looked for one by one.
const FEW: usize = 16;

/// One attempt. A time to come is the end of its lease, so the attempt is in flight; a time that has
/// passed is when it failed. Nothing has to run for the one to become the other.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub(super) struct Entry {
    pub(super) at: Millis,
    pub(super) token: Token,
}

/// Attempts by time, the oldest first, and by token where times are equal, as a sorted set in Redis
/// has them. Most counters have one of them, for a moment; that one is kept in place.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub(super) struct Attempts(SmallVec<[Entry; 1]>);

impl Attempts {
    /// Those that have failed by `now`; they are the first ones.
    pub(super) fn failures(&self, now: Millis) -> &[Entry] {
        match self.0.last() {
            Some(last) if last.at > now => {
                &self.0[..self.0.partition_point(|entry| entry.at <= now)]
            }
            _ => &self.0,
        }
    }

    pub(super) fn all(&self) -> &[Entry] {
        &self.0
    }

    /// How many there are, failed and in flight.
    pub(super) fn len(&self) -> usize {
        self.0.len()
    }

    pub(super) fn is_empty(&self) -> bool {
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
        let i = match self.0.last() {
            Some(last) if *last >= entry => self.0.partition_point(|other| *other < entry),
            _ => self.0.len(),
        };
        // Most counters hold a few attempts for their whole life; doubling would waste more than it saves.
        if self.0.len() == self.0.capacity() && self.0.len() < 8 {
            self.0.reserve_exact(if self.0.len() == 1 { 1 } else { 3 });
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
            tokens if tokens.len() <= FEW => {
                self.0.retain(|entry| !tokens.contains(&entry.token));
            }
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
        if attempts == 0 {
            return;
        }
        self.0.drain(..attempts);
        if self.0.capacity() > 64 && self.0.len() < self.0.capacity() / 4 {
            self.0.shrink_to_fit();
        }
    }
}
