//! The sliding window: so many failures within so long, then blocked for so long.

use std::{collections::HashSet, time::Duration};

use super::{Millis, Standing, State};
use crate::{Period, Token};

/// The numbers of a sliding window. Put into words by [`Limit::attempts`](crate::Limit::attempts).
///
/// ```
/// use tower_login_rate_limit::{Limit, Period, algorithm::Block};
///
/// let limit = Limit::attempts(5).within(Period::seconds(60)).build()?;
/// # #[allow(irrefutable_let_patterns)]
/// if let Limit::SlidingWindow(numbers) = limit {
///     assert_eq!((numbers.limit(), numbers.window()), (5, Some(60_000)));
///     assert_eq!(numbers.block(), Block::For(60_000));
/// }
/// # Ok::<(), tower_login_rate_limit::PolicyError>(())
/// ```
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct SlidingWindow {
    /// How many failures fill the window, at least 1.
    pub(crate) limit: u32,
    /// How long a failure counts; `None` for ever.
    pub(crate) window: Option<Millis>,
    /// What happens when the window is full.
    pub(crate) block: Block,
}

/// What happens when a window is full.
///
/// ```
/// use tower_login_rate_limit::{Limit, Period, algorithm::Block};
///
/// let limit = Limit::attempts(5).within(Period::hours(1)).blocked_for(Period::Forever).build()?;
/// # #[allow(irrefutable_let_patterns)]
/// if let Limit::SlidingWindow(numbers) = limit {
///     assert_eq!(numbers.block(), Block::Forever);
/// }
/// # Ok::<(), tower_login_rate_limit::PolicyError>(())
/// ```
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Block {
    /// Nothing of its own: the next attempt is free as soon as the oldest failure leaves the window.
    Sliding,
    /// Blocked for this long after the newest failure.
    For(Millis),
    /// Blocked without end.
    Forever,
}

impl SlidingWindow {
    /// How many failures fill the window.
    pub const fn limit(&self) -> u32 {
        self.limit
    }

    /// How long a failure counts; `None` for ever.
    pub const fn window(&self) -> Option<Millis> {
        self.window
    }

    /// What happens when the window is full.
    pub const fn block(&self) -> Block {
        self.block
    }

    /// How long a counter is of use after its newest entry; `None` for ever.
    ///
    /// `may_block` says whether the counter is full or may become so with what is in flight: only
    /// then does the block matter.
    pub fn retention(&self, may_block: bool) -> Option<Millis> {
        match self.block {
            Block::Forever if may_block => None,
            Block::For(block) if may_block => self.window.map(|window| window.max(block)),
            _ => self.window,
        }
    }
}

/// One attempt in a window. A time to come is the end of its lease, so the attempt is in flight; a
/// time that has passed is when it failed. Nothing has to run for the one to become the other.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
struct Entry {
    at: Millis,
    token: Token,
}

/// The attempts that one counter holds: those that failed and those in flight.
///
/// ```
/// use tower_login_rate_limit::{Limit, Period, Token, algorithm::{State, Window}};
///
/// let limit = Limit::attempts(1).within(Period::hours(24)).build()?;
/// # #[allow(irrefutable_let_patterns)]
/// if let Limit::SlidingWindow(limit) = limit {
///     let mut window = Window::default();
///
///     // Reserved at second 0 with a lease of 30 s, failed at second 2.
///     let token = Token::new();
///     window.admit(&limit, token, 30_000, 0);
///     assert_eq!(window.standing(&limit, 1_000).state, State::Busy);
///     window.fail(token, 2_000);
///     let lifts = Period::hours(24);
///     assert_eq!(window.standing(&limit, 2_000).state, State::Blocked { lifts });
/// }
/// # Ok::<(), tower_login_rate_limit::PolicyError>(())
/// ```
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct Window {
    /// By time, the oldest first.
    entries: Vec<Entry>,
}

impl Window {
    /// How the counter stands at `now`.
    pub fn standing(&self, limit: &SlidingWindow, now: Millis) -> Standing {
        self.judge(limit, now).0
    }

    /// The standing, and how many of the oldest entries an admission makes obsolete.
    fn judge(&self, numbers: &SlidingWindow, now: Millis) -> (Standing, usize) {
        let limit = numbers.limit as usize;
        let failures = self.failures(now);
        let blocked = |usage: usize, lifts| {
            let state = State::Blocked { lifts };
            (numbers.standing(usage, state), 0)
        };
        let mut obsolete = self.left_behind(numbers, now);

        match (numbers.block, self.entries[..failures].last()) {
            (_, None) => {}
            (Block::Sliding, Some(_)) => {
                let recent = failures - obsolete;
                if recent >= limit {
                    // There is room when fewer than `limit` are left.
                    let gives_way = self.entries[failures - limit].at;
                    return blocked(recent, until(numbers.window, gives_way, now));
                }
            }
            (block, Some(last)) => {
                let recent = failures - self.left_behind(numbers, last.at);
                if recent >= limit {
                    let block = match block {
                        Block::For(block) => Some(block),
                        Block::Forever | Block::Sliding => None,
                    };
                    if block.is_none_or(|block| !has_passed(block, last.at, now)) {
                        return blocked(recent, until(block, last.at, now));
                    }
                    // The block is over and the slate is clean.
                    obsolete = failures;
                }
            }
        }

        let usage = self.entries.len() - obsolete;
        let state = if usage >= limit {
            State::Busy
        } else {
            State::Clear
        };
        (numbers.standing(usage, state), obsolete)
    }

    /// Writes an attempt that is in flight until `now + lease`, and drops what no longer counts.
    /// Says how the counter stands with it.
    ///
    /// With a lease of 0 the attempt counts at once. A token that is here already changes nothing.
    /// The caller has seen that [`standing`](Self::standing) is [`State::Clear`].
    pub fn admit(
        &mut self,
        limit: &SlidingWindow,
        token: Token,
        lease: Millis,
        now: Millis,
    ) -> Standing {
        let (standing, obsolete) = self.judge(limit, now);
        if self.holds(token) {
            return limit.standing(standing.usage as usize, State::Clear);
        }
        self.entries.drain(..obsolete);
        self.insert(now.saturating_add(lease), token);
        limit.standing(self.entries.len(), State::Clear)
    }

    /// Turns an attempt in flight into a failure at `now`. One that has failed stays as it is, so
    /// that saying it late or twice extends nothing. Returns whether anything changed.
    pub fn fail(&mut self, token: Token, now: Millis) -> bool {
        match self.entries.iter().position(|entry| entry.token == token) {
            Some(i) if self.entries[i].at > now => {
                self.entries.remove(i);
                self.insert(now, token);
                true
            }
            _ => false,
        }
    }

    /// Takes one attempt out, failed or in flight. Returns whether it was there.
    pub fn cancel(&mut self, token: Token) -> bool {
        self.cancel_all(&[token]) > 0
    }

    /// Takes all of these out. Returns how many were there.
    pub fn cancel_all(&mut self, tokens: &[Token]) -> usize {
        let before = self.entries.len();
        match tokens {
            [] => {}
            [token] => self.entries.retain(|entry| entry.token != *token),
            tokens => {
                let tokens: HashSet<_> = tokens.iter().copied().collect();
                self.entries.retain(|entry| !tokens.contains(&entry.token));
            }
        }
        before - self.entries.len()
    }

    /// The tokens of the attempts that have failed by `now`; those in flight are not among them.
    pub fn failed(&self, now: Millis) -> impl Iterator<Item = Token> {
        self.entries[..self.failures(now)].iter().map(|e| e.token)
    }

    /// Whether the attempt is here, failed or in flight.
    pub fn holds(&self, token: Token) -> bool {
        self.entries.iter().any(|entry| entry.token == token)
    }

    /// Whether nothing is here.
    pub fn is_empty(&self) -> bool {
        self.entries.is_empty()
    }

    /// When nothing in here will count any more; `None` for never.
    pub fn expires(&self, limit: &SlidingWindow, now: Millis) -> Option<Millis> {
        let Some(newest) = self.entries.last() else {
            return Some(now);
        };
        let may_block = self.standing(limit, now).refuses();
        let retention = limit.retention(may_block)?;
        Some(newest.at.saturating_add(retention))
    }

    /// How many entries have failed by `now`; they are the first ones.
    fn failures(&self, now: Millis) -> usize {
        self.entries.partition_point(|entry| entry.at <= now)
    }

    /// How many entries have left the window that ends at `end`; they are the first ones.
    fn left_behind(&self, limit: &SlidingWindow, end: Millis) -> usize {
        limit.window.map_or(0, |window| {
            self.entries
                .partition_point(|entry| has_passed(window, entry.at, end))
        })
    }

    fn insert(&mut self, at: Millis, token: Token) {
        let i = self.entries.partition_point(|entry| entry.at <= at);
        // Most counters hold one or two attempts for their whole life; doubling would waste more
        // than it saves.
        if self.entries.len() == self.entries.capacity() && self.entries.len() < 8 {
            self.entries.reserve_exact(1);
        }
        self.entries.insert(i, Entry { at, token });
    }
}

impl SlidingWindow {
    fn standing(&self, usage: usize, state: State) -> Standing {
        Standing {
            usage: u32::try_from(usage).unwrap_or(u32::MAX),
            limit: self.limit,
            state,
        }
    }
}

/// Whether a length that began at `start` is over at `now`.
fn has_passed(length: Millis, start: Millis, now: Millis) -> bool {
    now.checked_sub(start).is_some_and(|age| age >= length)
}

/// What is left, at `now`, of a length that began at `start`; `None` has no end.
fn until(length: Option<Millis>, start: Millis, now: Millis) -> Period {
    length.map_or(Period::Forever, |length| {
        let left = length.saturating_sub(now.saturating_sub(start));
        Period::Of(Duration::from_millis(left))
    })
}
