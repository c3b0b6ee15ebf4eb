//! The attempts that a counter keeps one by one, and its summary of others.

use std::{
    collections::HashSet,
    ops::{Deref, DerefMut},
};

use super::{Millis, counter::Summary};
use crate::Token;

/// Up to this many tokens a linear search beats a hash set.
const LINEAR_SEARCH: usize = 16;
/// The number of attempts kept inline: the default limit by user and address.
const INLINE: usize = 5;

/// One attempt. With a time in the future it is in flight until then, the end of its lease; a time in the
/// past is when it failed. So an abandoned attempt becomes a failure without a timer.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, PartialOrd, Ord)]
pub(crate) struct Entry {
    pub(super) at: Millis,
    id: u64,
}

/// What identifies an attempt within a counter: the first half of its token, with the last four bytes of
/// the other half added to its last four.
///
/// That is 64 random bits of a UUID v4, its fixed bits being masked by random ones, so that two attempts of
/// one counter never have the same in practice. The first four bytes stay as they are, so that attempts of
/// one moment are ordered as in Redis and have the same jitter. A derived token differs from its origin.
#[inline]
fn id(token: Token) -> u64 {
    let bits = u128::from_be_bytes(*token.as_bytes());
    (bits >> 64) as u64 ^ u64::from(bits as u32)
}

impl Entry {
    /// A token that denotes this attempt in every counter. Where it is not kept it is zero.
    pub(crate) fn token(self) -> Token {
        Token::from_bytes((u128::from(self.id) << 64).to_be_bytes())
    }

    /// The first byte of the attempt's token.
    pub(super) const fn first_byte(self) -> u8 {
        self.id.to_be_bytes()[0]
    }
}

/// Attempts ordered by time and then by token, as in a sorted set of Redis, and the summary.
#[derive(Clone, Debug)]
pub(super) enum Attempts {
    /// Most counters hold a few attempts for their whole life, and no summary.
    Inline { len: u8, entries: [Entry; INLINE] },
    /// The summary is here because it would make every counter larger elsewhere.
    Spilled {
        entries: Vec<Entry>,
        summary: Option<Box<Summary>>,
    },
}

impl Attempts {
    #[inline]
    pub(super) fn summary(&self) -> Option<&Summary> {
        match self {
            Self::Inline { .. } => None,
            Self::Spilled { summary, .. } => summary.as_deref(),
        }
    }

    #[inline]
    pub(super) fn set_summary(&mut self, new: Option<Summary>) {
        if let Self::Spilled { summary, .. } = self {
            *summary = new.map(Box::new);
        } else if new.is_some() {
            self.spill(new);
        }
    }

    /// The attempts that have failed by `now`, which are the oldest, and those in flight.
    #[inline]
    pub(super) fn split(&self, now: Millis) -> (&[Entry], &[Entry]) {
        let failures = match self.last() {
            Some(last) if last.at > now => self.partition_point(|entry| entry.at <= now),
            _ => self.len(),
        };
        self.split_at(failures)
    }

    /// The latest time of any.
    #[inline]
    pub(super) fn newest(&self) -> Option<Millis> {
        self.last().map(|entry| entry.at)
    }

    #[inline]
    pub(super) fn holds(&self, token: Token) -> bool {
        let id = id(token);
        self.iter().any(|entry| entry.id == id)
    }

    #[inline]
    pub(super) fn insert(&mut self, at: Millis, token: Token) {
        let entry = Entry { at, id: id(token) };
        match self {
            Self::Inline { len, entries } if usize::from(*len) < INLINE => {
                entries[usize::from(*len)] = entry;
                *len += 1;
            }
            Self::Inline { .. } => {
                self.spill(None);
                return self.insert(at, token);
            }
            Self::Spilled { entries, .. } => {
                // Doubling would waste memory.
                if entries.len() == entries.capacity() {
                    entries.reserve_exact(entries.len() / 2 + 2);
                }
                entries.push(entry);
            }
        }
        sort_last(self);
    }

    #[cold]
    fn spill(&mut self, summary: Option<Summary>) {
        *self = Self::Spilled {
            entries: self.to_vec(),
            summary: summary.map(Box::new),
        };
    }

    /// Turns an attempt in flight into a failure at `now`; one that has failed keeps its time. Returns
    /// whether anything changed.
    #[inline]
    pub(super) fn fail(&mut self, token: Token, now: Millis) -> bool {
        let id = id(token);
        match self.iter().position(|entry| entry.id == id) {
            Some(i) if self[i].at > now => {
                self[i].at = now;
                sort_last(&mut self[..=i]);
                true
            }
            _ => false,
        }
    }

    /// Removes the attempts with these tokens. Returns how many were present.
    #[inline]
    pub(super) fn cancel_all(&mut self, tokens: &[Token]) -> usize {
        let canceled = tokens.iter().map(|token| id(*token));
        if tokens.len() <= LINEAR_SEARCH {
            return self.retain(|id| canceled.clone().all(|canceled| canceled != id));
        }
        let canceled: HashSet<_> = canceled.collect();
        self.retain(|id| !canceled.contains(&id))
    }

    /// Returns how many attempts were removed.
    #[inline]
    fn retain(&mut self, keep: impl Fn(u64) -> bool) -> usize {
        let mut kept = 0;
        for i in 0..self.len() {
            let entry = self[i];
            if keep(entry.id) {
                self[kept] = entry;
                kept += 1;
            }
        }
        let removed = self.len() - kept;
        self.truncate(kept);
        removed
    }

    #[inline]
    pub(super) fn drop_oldest(&mut self, attempts: usize) {
        if attempts > 0 {
            self.copy_within(attempts.., 0);
            self.truncate(self.len() - attempts);
        }
    }

    #[inline]
    fn truncate(&mut self, to: usize) {
        match self {
            Self::Inline { len, .. } => *len = to as u8,
            Self::Spilled { entries, summary } => {
                entries.truncate(to);
                if to == 0 && summary.is_none() {
                    *self = Self::default();
                } else if entries.capacity() > 64 && to < entries.capacity() / 4 {
                    entries.shrink_to_fit();
                }
            }
        }
    }
}

/// Moves the last entry to where it belongs among the others, which is nearly always where it is.
#[inline]
fn sort_last(entries: &mut [Entry]) {
    if let [others @ .., last] = entries {
        let before = others.iter().rposition(|other| *other <= *last);
        let position = before.map_or(0, |before| before + 1);
        if position < others.len() {
            entries[position..].rotate_right(1);
        }
    }
}

impl Deref for Attempts {
    type Target = [Entry];

    #[inline]
    fn deref(&self) -> &[Entry] {
        match self {
            Self::Inline { len, entries } => &entries[..usize::from(*len).min(INLINE)],
            Self::Spilled { entries, .. } => entries,
        }
    }
}

impl DerefMut for Attempts {
    #[inline]
    fn deref_mut(&mut self) -> &mut [Entry] {
        match self {
            Self::Inline { len, entries } => &mut entries[..usize::from(*len).min(INLINE)],
            Self::Spilled { entries, .. } => entries,
        }
    }
}

impl Default for Attempts {
    #[inline]
    fn default() -> Self {
        Self::Inline {
            len: 0,
            entries: Default::default(),
        }
    }
}
