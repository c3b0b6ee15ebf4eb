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
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub(crate) struct Entry {
    /// The time in the lower bits, the spelling in the others.
    bits: u64,
    id: u64,
}

/// The bits of an entry that hold the time: enough for nine thousand years. All of them set are the end of time.
const TIME: u64 = (1 << 48) - 1;

/// How the user of a failure was spelled: a hash, or 0 for the normal form, in which the counter's key has
/// the name. A success takes back the failures of its own spelling: `Victim` may be an account of its own.
///
/// An attempt gets its spelling when it fails. Of two other spellings than the normal form, both have one hash
/// with a probability of about 2⁻¹⁶.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Spelling(u16);

impl Spelling {
    /// The normal form.
    pub const NORMAL: Self = Self(0);
    /// Of an attempt that was reserved in another spelling than the normal form and has not failed: none yet. If
    /// its lease ends, no success takes it back, as it may be a guess at another account.
    pub const PENDING: Self = Self(u16::MAX);

    /// The spelling with this hash, whose upper bits count.
    pub const fn from_hash(hash: u64) -> Self {
        Self(match (hash >> 48) as u16 {
            0 => 1,
            u16::MAX => u16::MAX - 1,
            tag => tag,
        })
    }

    /// Whether the name was in its normal form.
    pub(crate) const fn is_normal(self) -> bool {
        self.0 == 0
    }
}

/// What identifies an attempt within a counter: the first half of its token, with the last four bytes of
/// the other half added to its last four.
///
/// That is 64 random bits of a UUID v4, its fixed bits being masked by random ones, so that two attempts of
/// one counter never have the same in practice. The first four bytes stay as they are, so that attempts of
/// one moment are ordered as in Redis and have the same jitter. A derived token differs from its origin.
#[inline]
pub(crate) fn id(token: Token) -> u64 {
    let bits = u128::from_be_bytes(*token.as_bytes());
    (bits >> 64) as u64 ^ u64::from(bits as u32)
}

impl Entry {
    #[inline]
    fn new(at: Millis, token: Token, spelling: Spelling) -> Self {
        Self {
            bits: at.min(TIME) | u64::from(spelling.0) << 48,
            id: id(token),
        }
    }

    /// What identifies the attempt.
    #[cfg(feature = "memory")]
    pub(crate) const fn id(self) -> u64 {
        self.id
    }

    #[inline]
    pub(crate) const fn at(self) -> Millis {
        match self.bits & TIME {
            TIME => Millis::MAX,
            at => at,
        }
    }

    #[inline]
    fn set_at(&mut self, at: Millis) {
        self.bits = self.bits & !TIME | at.min(TIME);
    }

    #[inline]
    pub(crate) const fn spelling(self) -> Spelling {
        Spelling((self.bits >> 48) as u16)
    }

    #[inline]
    const fn is_pending(self) -> bool {
        self.bits >> 48 == Spelling::PENDING.0 as u64
    }

    #[inline]
    fn set_spelling(&mut self, spelling: Spelling) {
        self.bits = self.bits & TIME | u64::from(spelling.0) << 48;
    }

    /// A token that denotes this attempt in every counter. Where it is not kept it is zero.
    pub(crate) fn token(self) -> Token {
        Token::from_bytes((u128::from(self.id) << 64).to_be_bytes())
    }

    /// The first byte of the attempt's token.
    pub(super) const fn first_byte(self) -> u8 {
        self.id.to_be_bytes()[0]
    }

    /// What entries are ordered by: the time, where that is equal those without a spelling yet first, and then
    /// the token.
    #[inline]
    const fn is_after(self, other: Self) -> bool {
        if self.at() != other.at() {
            return self.at() > other.at();
        }
        match (self.is_pending(), other.is_pending()) {
            (false, true) => true,
            (true, false) => false,
            _ => self.id > other.id,
        }
    }
}

/// Whether any of these has another spelling than the normal form.
pub(super) fn has_other_spellings(entries: &[Entry]) -> bool {
    entries.iter().any(|entry| !entry.spelling().is_normal())
}

/// Attempts ordered by time and then by token, as in a sorted set of Redis, and the summary.
#[derive(Clone, Debug)]
pub(super) enum Attempts {
    /// Most counters hold a few attempts for their whole life, and no summary.
    Inline { len: u8, entries: [Entry; INLINE] },
    /// The summary is here because it would make every counter larger elsewhere.
    Spilled {
        entries: Vec<Entry>,
        summary: Option<Box<Summarized>>,
    },
}

/// The summary of a counter.
#[derive(Clone, Debug)]
pub(super) struct Summarized {
    summary: Summary,
    /// Whether failures of other spellings than the normal form are part of it.
    is_mixed: bool,
}

impl Attempts {
    #[inline]
    pub(super) fn summary(&self) -> Option<&Summary> {
        match self {
            Self::Inline { .. } => None,
            Self::Spilled { summary, .. } => summary.as_deref().map(|kept| &kept.summary),
        }
    }

    /// Whether there is a summary, of which failures of other spellings than the normal form are a part.
    #[inline]
    pub(super) fn is_mixed(&self) -> bool {
        match self {
            Self::Inline { .. } => false,
            Self::Spilled { summary, .. } => summary.as_ref().is_some_and(|kept| kept.is_mixed),
        }
    }

    #[inline]
    pub(super) fn set_summary(&mut self, new: Option<Summary>, is_mixed: bool) {
        let new = new.map(|summary| Box::new(Summarized { summary, is_mixed }));
        if let Self::Spilled { summary, .. } = self {
            *summary = new;
        } else if new.is_some() {
            self.spill(new);
        }
    }

    /// The attempts that have failed by `now`, which are the oldest, and those in flight.
    #[inline]
    pub(super) fn split(&self, now: Millis) -> (&[Entry], &[Entry]) {
        let failures = match self.last() {
            Some(last) if last.at() > now => self.partition_point(|entry| entry.at() <= now),
            _ => self.len(),
        };
        self.split_at(failures)
    }

    /// The latest time of any.
    #[inline]
    pub(super) fn newest(&self) -> Option<Millis> {
        self.last().map(|entry| entry.at())
    }

    /// Whether this attempt is the last one that has failed by `now`.
    pub(super) fn is_newest_failure(&self, token: Token, now: Millis) -> bool {
        let (failures, _) = self.split(now);
        failures.last().is_some_and(|last| last.id == id(token))
    }

    #[inline]
    pub(super) fn holds(&self, token: Token) -> bool {
        let id = id(token);
        self.iter().any(|entry| entry.id == id)
    }

    /// Whether each attempt has one of these tokens.
    #[cfg(feature = "memory")]
    #[inline]
    pub(super) fn are_only(&self, tokens: &[Token]) -> bool {
        let is_one_of = |entry: &Entry| tokens.iter().any(|token| id(*token) == entry.id);
        self.iter().all(is_one_of)
    }

    #[inline(always)]
    pub(super) fn insert(&mut self, at: Millis, token: Token, spelling: Spelling) {
        let entry = Entry::new(at, token, spelling);
        match self {
            Self::Inline { len, entries } if usize::from(*len) < INLINE => {
                entries[usize::from(*len)] = entry;
                *len += 1;
            }
            Self::Inline { .. } => {
                self.spill(None);
                return self.insert(at, token, spelling);
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
    fn spill(&mut self, summary: Option<Box<Summarized>>) {
        *self = Self::Spilled {
            entries: self.to_vec(),
            summary,
        };
    }

    /// Marks that the spelling of an attempt is not known before it fails, if it has none.
    #[cold]
    pub(super) fn set_pending(&mut self, token: Token) {
        let id = id(token);
        let position = self.iter().position(|entry| entry.id == id);
        if let Some(i) = position.filter(|i| self[*i].spelling().is_normal()) {
            self[i].set_spelling(Spelling::PENDING);
            sort_last(&mut self[..=i]);
        }
    }

    /// Turns an attempt in flight into a failure at `now` with this spelling; one that has failed keeps its
    /// time, and its spelling unless it had none, or the normal form. Returns whether it was in flight.
    #[inline]
    pub(super) fn fail(&mut self, token: Token, spelling: Spelling, now: Millis) -> bool {
        let id = id(token);
        let Some(i) = self.iter().position(|entry| entry.id == id) else {
            return false;
        };
        let entry = &mut self[i];
        let (was_in_flight, was_pending) = (entry.at() > now, entry.is_pending());
        // Whether a lease has ended is not looked at in Redis: what then fails in the normal form stays pending.
        if entry.spelling().is_normal() || was_pending && (was_in_flight || !spelling.is_normal()) {
            entry.set_spelling(spelling);
        }
        if was_in_flight {
            entry.set_at(now);
            sort_last(&mut self[..=i]);
        } else if was_pending {
            sort_first(&mut self[i..]);
        }
        was_in_flight
    }

    /// Removes the attempts with these tokens. Returns how many were present.
    #[inline]
    pub(super) fn cancel_all(&mut self, tokens: &[Token]) -> usize {
        if tokens.len() > LINEAR_SEARCH {
            return self.cancel_many(tokens);
        }
        self.retain(|entry| tokens.iter().all(|token| id(*token) != entry.id))
    }

    #[cold]
    fn cancel_many(&mut self, tokens: &[Token]) -> usize {
        let canceled: HashSet<_> = tokens.iter().map(|token| id(*token)).collect();
        self.retain(|entry| !canceled.contains(&entry.id))
    }

    /// Removes `own`, and the attempts that have failed by `upto`, of this spelling or of every one; extends `removed` by
    /// the latter.
    #[inline]
    pub(super) fn clean_up(
        &mut self,
        own: &[Token],
        spelling: Option<Spelling>,
        upto: Millis,
        removed: &mut impl Extend<Token>,
    ) {
        self.retain(|entry| {
            if own.iter().any(|token| id(*token) == entry.id) {
                return false;
            }
            let has_failed = entry.at() <= upto;
            let is_removed = has_failed && spelling.is_none_or(|of| of == entry.spelling());
            if is_removed {
                removed.extend([entry.token()]);
            }
            !is_removed
        });
    }

    /// Returns how many attempts were removed.
    #[inline(always)]
    fn retain(&mut self, mut keep: impl FnMut(Entry) -> bool) -> usize {
        let entries: &mut [Entry] = self;
        let (len, mut kept) = (entries.len(), 0);
        for i in 0..len {
            let entry = entries[i];
            if keep(entry) {
                entries[kept] = entry;
                kept += 1;
            }
        }
        self.truncate(kept);
        len - kept
    }

    #[inline(always)]
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
        let before = others.iter().rposition(|other| !other.is_after(*last));
        let position = before.map_or(0, |before| before + 1);
        if position < others.len() {
            entries[position..].rotate_right(1);
        }
    }
}

/// Moves the first entry to where it belongs among the others.
fn sort_first(entries: &mut [Entry]) {
    if let [first, others @ ..] = entries {
        let before = others.iter().take_while(|other| first.is_after(**other));
        let position = before.count();
        entries[..=position].rotate_left(1);
    }
}

impl Deref for Attempts {
    type Target = [Entry];

    #[inline]
    fn deref(&self) -> &[Entry] {
        match self {
            Self::Inline { len, entries } => &entries[..usize::from(*len)],
            Self::Spilled { entries, .. } => entries,
        }
    }
}

impl DerefMut for Attempts {
    #[inline]
    fn deref_mut(&mut self) -> &mut [Entry] {
        match self {
            Self::Inline { len, entries } => &mut entries[..usize::from(*len)],
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
