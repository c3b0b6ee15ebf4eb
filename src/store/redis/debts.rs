//! What Redis has still to be told: it did not answer when it was to be told, or an attempt was decided
//! without it.

use std::{
    collections::{HashMap, VecDeque, hash_map::RandomState},
    hash::{BuildHasher, Hash},
    sync::{
        Arc, Mutex, MutexGuard, PoisonError,
        atomic::{AtomicUsize, Ordering},
    },
};

use redis::Cmd;
use smallvec::SmallVec;

use super::counters::Counters;
use crate::{
    Token,
    algorithm::Millis,
    store::{StoreError, StoreErrorKind},
};

/// Something that Redis is to be told, now or when it answers again. Telling it twice changes nothing
/// more.
#[derive(Clone)]
pub(super) enum Debt {
    /// An attempt in flight failed at this time.
    Fail(Token, Arc<Counters>, Millis),
    /// These attempts never were.
    Cancel(SmallVec<[Token; 2]>, Arc<Counters>),
    /// An attempt went well at this time; the first so many counters are the main ones.
    CleanUp(Option<Token>, Arc<Counters>, usize, Millis),
    /// An attempt that Redis does not know of failed at this time.
    Merge(Token, Arc<Counters>, Millis),
    /// A user logged in from an address. The key that it is kept under, and how Redis is told.
    Remember(Vec<u8>, Cmd),
}

impl Debt {
    /// An attempt never was, under whichever token Redis knows it.
    pub(super) fn cancel(token: Token, counters: Arc<Counters>) -> Self {
        Self::Cancel([token, token.twin()].into(), counters)
    }

    pub(super) fn keys(&self) -> Vec<&[u8]> {
        match self {
            Self::Fail(_, counters, _)
            | Self::Cancel(_, counters)
            | Self::CleanUp(_, counters, ..)
            | Self::Merge(_, counters, _) => counters.keys(),
            Self::Remember(key, _) => vec![key],
        }
    }
}

/// Attempts that were admitted without Redis and are in flight, and what it is to be told, in order.
pub(super) struct Debts {
    inner: Mutex<Inner>,
    capacity: usize,
    /// How many of both there are.
    len: AtomicUsize,
}

#[derive(Default)]
struct Inner {
    away: HashMap<Token, Away>,
    queue: VecDeque<(u64, Debt)>,
    next: u64,
    /// How many failures there are in the queue of each token and for each key, by their hashes: most
    /// who ask are not among them, and the queue may be long.
    failures: HashMap<u64, u32>,
    hasher: RandomState,
}

/// An attempt in flight that was admitted without Redis, in all or some of its counters.
#[derive(Default)]
struct Away {
    /// What was decided on,
    decided: Vec<Vec<u8>>,
    /// and where it counts.
    counting: Counters,
    /// When it becomes a failure by itself.
    lease_ends: Millis,
}

impl Debts {
    pub(super) fn new(capacity: usize) -> Self {
        Self {
            inner: Mutex::default(),
            capacity,
            len: AtomicUsize::new(0),
        }
    }

    pub(super) fn len(&self) -> usize {
        self.len.load(Ordering::SeqCst)
    }

    pub(super) fn is_empty(&self) -> bool {
        self.len() == 0
    }

    /// How many things Redis is to be told.
    pub(super) fn owed(&self) -> usize {
        self.lock().queue.len()
    }

    /// Keeps what Redis is to be told, unless there is too much of it already.
    pub(super) fn owe(&self, debt: Debt) -> Result<(), StoreError> {
        self.change(|inner| {
            if inner.len() >= self.capacity {
                return Err(self.full());
            }
            inner.owe(debt);
            Ok(())
        })
    }

    /// An attempt was admitted without Redis, and counts in some of the counters.
    pub(super) fn admitted(
        &self,
        token: Token,
        counters: &Counters,
        counting: Counters,
        lease_ends: Millis,
    ) -> Result<(), StoreError> {
        self.change(|inner| {
            if inner.len() >= self.capacity {
                return Err(self.full());
            }
            let away = inner.away.entry(token).or_default();
            let decided = counters.keys().into_iter().map(<[u8]>::to_vec);
            away.decided.extend(decided);
            away.counting.extend(counting);
            away.lease_ends = away.lease_ends.max(lease_ends);
            Ok(())
        })
    }

    /// An attempt is settled. Notes what Redis is to be told of what it has not decided on, and says
    /// whether it is to be told of anything else.
    pub(super) fn settle(&self, token: Token, debt: &Debt, now: Millis) -> bool {
        if self.is_empty() {
            return true;
        }
        let keys = debt.keys();
        self.change(|inner| {
            let is_owed = inner.owes_failure(&token.twin());
            match debt {
                Debt::Cancel(..) => inner.withdraw(token.twin(), &keys),
                Debt::CleanUp(_, _, mains, _) => inner.forgive(&keys, *mains),
                _ => {}
            }
            let Some(mut away) = inner.away.remove(&token) else {
                if let (true, Debt::CleanUp(_, counters, mains, at)) = (is_owed, debt) {
                    // Its lease had ended, and Redis has not heard of it.
                    inner.owe(Debt::CleanUp(None, Arc::clone(counters), *mains, *at));
                    return false;
                }
                return true;
            };
            let is_in_redis = |key: &&[u8]| !away.decided.iter().any(|decided| decided == key);
            let is_in_redis = keys.iter().any(is_in_redis);
            match debt {
                Debt::Fail(..) if away.counting.len() > 0 => {
                    let at = now.min(away.lease_ends);
                    inner.owe(Debt::Merge(token.twin(), Arc::new(away.counting), at));
                }
                // Some of it, when its user turns out to be another one.
                Debt::Cancel(..) => {
                    away.decided.retain(|key| !keys.contains(&&**key));
                    away.counting.remove(&keys);
                    if !away.decided.is_empty() {
                        inner.away.insert(token, away);
                    }
                }
                // In a long outage, room is for failures. Untold, a success leaves a count too many.
                Debt::CleanUp(_, counters, mains, at)
                    if away.counting.len() > 0 && inner.len() < self.capacity / 2 =>
                {
                    inner.owe(Debt::CleanUp(None, Arc::clone(counters), *mains, *at));
                }
                _ => {}
            }
            is_in_redis
        })
    }

    /// What failed in one of the first so many counters is not told of any of these after all.
    pub(super) fn forgive(&self, keys: &[&[u8]], mains: usize) {
        if !self.is_empty() {
            self.change(|inner| inner.forgive(keys, mains));
        }
    }

    /// Attempts whose leases have ended are failures.
    pub(super) fn end_leases(&self, now: Millis) {
        self.change(|inner| {
            let away = inner.away.iter();
            let ended = away.filter(|(_, away)| away.lease_ends <= now);
            let ended: Vec<_> = ended.map(|(token, _)| *token).collect();
            for token in ended {
                if let Some(away) = inner.away.remove(&token)
                    && away.counting.len() > 0
                {
                    let counting = Arc::new(away.counting);
                    inner.owe(Debt::Merge(token.twin(), counting, away.lease_ends));
                }
            }
        });
    }

    /// The first that Redis is to be told, and its number.
    pub(super) fn first(&self) -> Option<(u64, Debt)> {
        self.lock().queue.front().cloned()
    }

    /// It was told, or never will be.
    pub(super) fn paid(&self, number: u64) {
        self.change(|inner| {
            if (inner.queue.front()).is_some_and(|(first, _)| *first == number)
                && let Some((_, debt)) = inner.queue.pop_front()
            {
                inner.count_failure(&debt, false);
            }
        });
    }

    fn change<T>(&self, change: impl FnOnce(&mut Inner) -> T) -> T {
        let mut inner = self.lock();
        let answer = change(&mut inner);
        self.len.store(inner.len(), Ordering::SeqCst);
        answer
    }

    fn lock(&self) -> MutexGuard<'_, Inner> {
        self.inner.lock().unwrap_or_else(PoisonError::into_inner)
    }

    fn full(&self) -> StoreError {
        let message = format!(
            "redis does not answer, and {} things that it is to be told are all that is kept",
            self.capacity
        );
        StoreError::new(StoreErrorKind::Full, message)
    }
}

impl Inner {
    fn len(&self) -> usize {
        self.away.len() + self.queue.len()
    }

    fn owe(&mut self, debt: Debt) {
        self.count_failure(&debt, true);
        self.queue.push_back((self.next, debt));
        self.next += 1;
    }

    /// A failure is not told of these counters after all.
    fn withdraw(&mut self, token: Token, keys: &[&[u8]]) {
        if self.owes_failure(&token) {
            self.take_failures_from(keys, |failed, _| *failed == token);
        }
    }

    fn forgive(&mut self, keys: &[&[u8]], mains: usize) {
        let mains = &keys[..mains];
        if mains.iter().any(|key| self.owes_failure(key)) {
            let touches =
                |counters: &Counters| counters.keys().iter().any(|key| mains.contains(key));
            self.take_failures_from(keys, |_, counters| touches(counters));
        }
    }

    /// Takes those failures out of these counters. One that Redis has in flight never was.
    fn take_failures_from(
        &mut self,
        keys: &[&[u8]],
        are_taken: impl Fn(&Token, &Counters) -> bool,
    ) {
        for (number, debt) in std::mem::take(&mut self.queue) {
            let (Debt::Merge(token, counters, _) | Debt::Fail(token, counters, _)) = &debt else {
                self.queue.push_back((number, debt));
                continue;
            };
            if !are_taken(token, counters) {
                self.queue.push_back((number, debt));
                continue;
            }
            self.count_failure(&debt, false);
            let mut left = Counters::clone(counters);
            left.remove(keys);
            let left_over = match &debt {
                Debt::Fail(token, counters, _) if left.len() == 0 => {
                    Some(Debt::cancel(*token, Arc::clone(counters)))
                }
                Debt::Merge(token, _, at) if left.len() > 0 => {
                    Some(Debt::Merge(*token, Arc::new(left), *at))
                }
                Debt::Merge(..) => None,
                _ => Some(debt),
            };
            if let Some(debt) = left_over {
                self.count_failure(&debt, true);
                self.queue.push_back((number, debt));
            }
        }
    }

    fn owes_failure(&self, of: &impl Hash) -> bool {
        self.failures.contains_key(&self.hasher.hash_one(of))
    }

    fn count_failure(&mut self, debt: &Debt, more: bool) {
        let (Debt::Merge(token, counters, _) | Debt::Fail(token, counters, _)) = debt else {
            return;
        };
        let keys = counters.keys();
        let hashes = keys.iter().map(|key| self.hasher.hash_one(key));
        let hashes: SmallVec<[_; 4]> = hashes.chain([self.hasher.hash_one(token)]).collect();
        for hash in hashes {
            let failures = self.failures.entry(hash).or_default();
            *failures = if more { *failures + 1 } else { *failures - 1 };
            if *failures == 0 {
                self.failures.remove(&hash);
            }
        }
    }
}
