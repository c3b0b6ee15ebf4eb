//! Which attempts have been settled here, where the store does not show it.
//!
//! The counters show whether an attempt is in flight, unless no rule counts it, an access rule allows it, or the store is
//! unavailable. Each instance therefore remembers what it has settled for as long as the token is valid.

use std::{
    collections::{BTreeSet, HashSet},
    sync::{Mutex, MutexGuard, PoisonError},
};

use http::StatusCode;

use super::problem::Problem;
use crate::{Token, algorithm::Millis};

/// How many attempts are remembered of each kind, those that the store verifies and those that it can't: about 2,900 a
/// second with a lease of 30 seconds.
const CAPACITY: usize = 262_144;

/// What shows that an attempt is in flight.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Proof {
    /// A counter holds it.
    Counter,
    /// Nothing: no counter ever held it, or another instance's memory does.
    None,
    /// A counter would, and the store is unavailable.
    Unavailable,
}

/// The attempts that were settled here, or are being settled.
pub(super) struct Outcomes {
    table: Mutex<Table>,
    capacity: usize,
}

#[derive(Default)]
struct Table {
    /// The second outcome of two at once must not change the first.
    settling: HashSet<Token>,
    /// Never forgotten ahead of their end: what can't be remembered is not settled.
    unproven: Remembered,
    /// The store shows these too, so that those beyond the capacity are forgotten at once.
    proven: Remembered,
    /// Until when a proven attempt may come again that was forgotten.
    forgotten_until: Millis,
}

#[derive(Default)]
struct Remembered {
    tokens: HashSet<Token>,
    /// In the order in which they expire, which is another one than that of their outcomes after the lease was changed.
    order: BTreeSet<(Millis, Token)>,
}

/// An attempt that is being settled.
pub(super) struct Settling<'a> {
    outcomes: &'a Outcomes,
    token: Token,
    expires: Millis,
    proof: Option<Proof>,
    is_written: bool,
}

impl Default for Outcomes {
    fn default() -> Self {
        Self::with_capacity(CAPACITY)
    }
}

impl Outcomes {
    fn with_capacity(capacity: usize) -> Self {
        Self {
            table: Mutex::default(),
            capacity,
        }
    }

    /// Begins to settle an attempt whose token is valid until then; `None` if it is settled, or being settled.
    pub(super) fn begin(&self, token: Token, now: Millis, expires: Millis) -> Option<Settling<'_>> {
        let mut table = self.lock();
        table.unproven.drop_expired(now);
        table.proven.drop_expired(now);
        let is_settled = table.unproven.tokens.contains(&token)
            || table.proven.tokens.contains(&token)
            || !table.settling.insert(token);
        // Lazily: one that is dropped would end the settlement under way.
        (!is_settled).then(|| Settling {
            outcomes: self,
            token,
            expires,
            proof: None,
            is_written: false,
        })
    }

    fn lock(&self) -> MutexGuard<'_, Table> {
        self.table.lock().unwrap_or_else(PoisonError::into_inner)
    }
}

impl Remembered {
    fn drop_expired(&mut self, now: Millis) {
        while let Some((expires, token)) = self.order.first().copied()
            && expires <= now
        {
            self.order.pop_first();
            self.tokens.remove(&token);
        }
    }
}

impl Settling<'_> {
    /// Remembers the attempt, before its outcome is written.
    pub(super) fn remember(&mut self, proof: Proof, now: Millis) -> Result<(), Problem> {
        let capacity = self.outcomes.capacity;
        let mut table = self.outcomes.lock();
        match proof {
            Proof::Counter if table.proven.tokens.len() >= capacity => {
                table.forgotten_until = table.forgotten_until.max(self.expires);
                return Ok(());
            }
            Proof::Counter => table.proven.tokens.insert(self.token),
            Proof::Unavailable if now < table.forgotten_until => return Err(unverifiable()),
            _ if table.unproven.tokens.len() >= capacity => return Err(unverifiable()),
            _ => table.unproven.tokens.insert(self.token),
        };
        self.proof = Some(proof);
        Ok(())
    }

    /// The outcome is being written: also if the client has gone away, it is.
    pub(super) fn is_written(&mut self, is_written: bool) {
        self.is_written = is_written;
    }
}

/// What was not written may be settled again.
impl Drop for Settling<'_> {
    fn drop(&mut self) {
        let mut table = self.outcomes.lock();
        table.settling.remove(&self.token);
        let remembered = match self.proof {
            None => return,
            Some(Proof::Counter) => &mut table.proven,
            Some(_) => &mut table.unproven,
        };
        if self.is_written {
            remembered.order.insert((self.expires, self.token));
        } else {
            remembered.tokens.remove(&self.token);
        }
    }
}

fn unverifiable() -> Problem {
    Problem::new(
        StatusCode::SERVICE_UNAVAILABLE,
        "too many outcomes are kept that the store can't verify: this one is not written. Repeat the request; an attempt \
         without an outcome is a failure when its lease ends",
    )
}

#[cfg(test)]
mod tests {
    use super::*;

    /// Whether an outcome of this attempt is written.
    fn settle(outcomes: &Outcomes, token: Token, proof: Proof, now: Millis) -> Option<bool> {
        let mut settling = outcomes.begin(token, now, 100)?;
        let remembered = settling.remember(proof, now);
        settling.is_written(remembered.is_ok());
        Some(remembered.is_ok())
    }

    #[test]
    fn an_attempt_is_settled_once_until_its_token_expires() {
        for proof in [Proof::Counter, Proof::None, Proof::Unavailable] {
            let (outcomes, token) = (Outcomes::default(), Token::new());
            assert_eq!(settle(&outcomes, token, proof, 0), Some(true));
            for again in [Proof::Counter, Proof::None, Proof::Unavailable] {
                assert_eq!(settle(&outcomes, token, again, 99), None);
            }
            assert_eq!(settle(&outcomes, Token::new(), proof, 100), Some(true));
            let table = outcomes.lock();
            let kept = [&table.proven, &table.unproven].map(|kept| kept.tokens.len());
            assert_eq!(kept.iter().sum::<usize>(), 1, "the first has expired");
        }
    }

    /// One with a long lease must not keep those with a shorter one.
    #[test]
    fn attempts_expire_in_the_order_of_their_leases() {
        let outcomes = Outcomes::default();
        for expires in [1_000, 100, 200] {
            let mut settling = outcomes.begin(Token::new(), 0, expires).unwrap();
            settling.remember(Proof::None, 0).unwrap();
            settling.is_written(true);
        }
        for (now, kept) in [(99, 3), (100, 2), (200, 1), (1_000, 0)] {
            outcomes.begin(Token::new(), now, now + 1).unwrap();
            assert_eq!(outcomes.lock().unproven.tokens.len(), kept, "at {now}");
        }
    }

    #[test]
    fn an_outcome_that_was_not_written_may_be_repeated() {
        let (outcomes, token) = (Outcomes::default(), Token::new());
        for proof in [Proof::Counter, Proof::None] {
            let mut settling = outcomes.begin(token, 0, 100).unwrap();
            assert!(outcomes.begin(token, 0, 100).is_none(), "at once");
            settling.remember(proof, 0).unwrap();
            settling.is_written(true);
            settling.is_written(false);
        }
        assert_eq!(settle(&outcomes, token, Proof::None, 0), Some(true));
    }

    /// A flood must not make an instance forget what was settled.
    #[test]
    fn what_can_not_be_remembered_is_not_settled() {
        let outcomes = Outcomes::with_capacity(2);
        let [first, second, third] = [(); 3].map(|()| Token::new());
        assert_eq!(settle(&outcomes, first, Proof::None, 0), Some(true));
        assert_eq!(settle(&outcomes, second, Proof::Unavailable, 0), Some(true));
        assert_eq!(settle(&outcomes, third, Proof::None, 0), Some(false));
        assert_eq!(settle(&outcomes, first, Proof::None, 0), None);
        // Those that the store can tell are settled all the same.
        for _ in 0..2 {
            let token = Token::new();
            assert_eq!(settle(&outcomes, token, Proof::Counter, 0), Some(true));
        }
        assert_eq!(settle(&outcomes, third, Proof::None, 100), Some(true));
    }

    /// One that was forgotten because of a flood may come again when the store is gone.
    #[test]
    fn an_outage_after_a_flood_settles_nothing_twice() {
        let outcomes = Outcomes::with_capacity(2);
        let tokens = [(); 3].map(|()| Token::new());
        for token in tokens {
            assert_eq!(settle(&outcomes, token, Proof::Counter, 0), Some(true));
        }
        let again = settle(&outcomes, tokens[2], Proof::Unavailable, 99);
        assert_eq!(again, Some(false));
        assert_eq!(settle(&outcomes, Token::new(), Proof::None, 99), Some(true));
        let later = settle(&outcomes, Token::new(), Proof::Unavailable, 100);
        assert_eq!(later, Some(true));
    }
}
