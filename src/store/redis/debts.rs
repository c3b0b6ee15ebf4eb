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
    /// An attempt in flight failed.
    Fail(Token, Arc<Counters>),
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
            Self::Fail(_, counters)
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
    /// How many merges there are in the queue of each token and for each key, by their hashes: most
    /// who ask are not among them, and the queue may be long.
    merging: HashMap<u64, u32>,
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
            match debt {
                Debt::Cancel(..) => inner.withdraw(token.twin()),
                Debt::CleanUp(_, _, mains, _) => inner.forgive(&keys[..*mains]),
                _ => {}
            }
            let Some(mut away) = inner.away.remove(&token) else {
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

    /// What failed in any of these counters is not told after all.
    pub(super) fn forgive(&self, keys: &[&[u8]]) {
        if !self.is_empty() {
            self.change(|inner| inner.forgive(keys));
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
                inner.count_merge(&debt, false);
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
        self.count_merge(&debt, true);
        self.queue.push_back((self.next, debt));
        self.next += 1;
    }

    /// A failure is not told after all.
    fn withdraw(&mut self, token: Token) {
        if self.is_merging(&token) {
            self.drop_merges(|merged, _| *merged == token);
        }
    }

    fn forgive(&mut self, keys: &[&[u8]]) {
        if keys.iter().any(|key| self.is_merging(key)) {
            self.drop_merges(|_, counters| counters.keys().iter().any(|key| keys.contains(key)));
        }
    }

    fn drop_merges(&mut self, are_dropped: impl Fn(&Token, &Counters) -> bool) {
        let queue = std::mem::take(&mut self.queue).into_iter();
        let (dropped, kept): (VecDeque<_>, _) = queue.partition(|(_, debt)| {
            matches!(debt, Debt::Merge(token, counters, _) if are_dropped(token, counters))
        });
        self.queue = kept;
        for (_, debt) in dropped {
            self.count_merge(&debt, false);
        }
    }

    fn is_merging(&self, of: &impl Hash) -> bool {
        self.merging.contains_key(&self.hasher.hash_one(of))
    }

    fn count_merge(&mut self, debt: &Debt, more: bool) {
        let Debt::Merge(token, counters, _) = debt else {
            return;
        };
        let keys = counters.keys();
        let hashes = keys.iter().map(|key| self.hasher.hash_one(key));
        let hashes: SmallVec<[_; 4]> = hashes.chain([self.hasher.hash_one(token)]).collect();
        for hash in hashes {
            let merges = self.merging.entry(hash).or_default();
            *merges = if more { *merges + 1 } else { *merges - 1 };
            if *merges == 0 {
                self.merging.remove(&hash);
            }
        }
    }
}
