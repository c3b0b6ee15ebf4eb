//! What Redis has still to be told: it did not answer when it was to be told, or an attempt was decided
//! without it.

use std::{
    collections::{HashMap, VecDeque},
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
    /// An attempt went well; the first so many counters are the main ones.
    CleanUp(Option<Token>, Arc<Counters>, usize),
    /// An attempt that Redis does not know of failed at this time.
    Merge(Token, Arc<Counters>, Millis),
    /// A user logged in from an address.
    Remember(Cmd),
}

impl Debt {
    /// An attempt never was, under whichever token Redis knows it.
    pub(super) fn cancel(token: Token, counters: Arc<Counters>) -> Self {
        Self::Cancel([token, token.twin()].into(), counters)
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
}

/// An attempt in flight that was admitted without Redis, in all or some of its counters.
#[derive(Default)]
pub(super) struct Away {
    /// Where it counts.
    pub(super) counting: Vec<Arc<Counters>>,
    /// How many counters were decided on.
    pub(super) decided: usize,
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
        self.len.load(Ordering::Relaxed)
    }

    /// How many things Redis is to be told.
    pub(super) fn owed(&self) -> usize {
        self.lock().queue.len()
    }

    pub(super) fn is_empty(&self) -> bool {
        self.len() == 0
    }

    pub(super) fn is_half_full(&self) -> bool {
        self.len() >= self.capacity / 2
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

    /// An attempt was admitted without Redis.
    pub(super) fn admitted(
        &self,
        token: Token,
        counting: Option<Arc<Counters>>,
        decided: usize,
        lease_ends: Millis,
    ) -> Result<(), StoreError> {
        self.change(|inner| {
            if inner.len() >= self.capacity {
                return Err(self.full());
            }
            let away = inner.away.entry(token).or_default();
            away.counting.extend(counting);
            away.decided += decided;
            away.lease_ends = away.lease_ends.max(lease_ends);
            Ok(())
        })
    }

    /// Such an attempt is settled.
    pub(super) fn settled(&self, token: Token) -> Option<Away> {
        if self.is_empty() {
            return None;
        }
        self.change(|inner| inner.away.remove(&token))
    }

    /// What failed is not told after all.
    pub(super) fn withdraw(&self, token: Token) {
        let is_it = |debt: &Debt| matches!(debt, Debt::Merge(merged, ..) if *merged == token);
        self.drop_those(is_it);
    }

    /// What failed in any of these counters is not told after all.
    pub(super) fn forgive(&self, keys: &[&[u8]]) {
        let touches = |debt: &Debt| match debt {
            Debt::Merge(_, merged, _) => merged.keys().iter().any(|key| keys.contains(key)),
            _ => false,
        };
        self.drop_those(touches);
    }

    fn drop_those(&self, are_dropped: impl Fn(&Debt) -> bool) {
        if !self.is_empty() {
            self.change(|inner| inner.queue.retain(|(_, debt)| !are_dropped(debt)));
        }
    }

    /// Attempts whose leases have ended are failures.
    pub(super) fn end_leases(&self, now: Millis) {
        self.change(|inner| {
            let away = inner.away.iter();
            let ended = away.filter(|(_, away)| away.lease_ends <= now);
            let ended: Vec<_> = ended.map(|(token, _)| *token).collect();
            for token in ended {
                if let Some(away) = inner.away.remove(&token) {
                    for counters in away.counting {
                        inner.owe(Debt::Merge(token.twin(), counters, away.lease_ends));
                    }
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
            if inner
                .queue
                .front()
                .is_some_and(|(first, _)| *first == number)
            {
                inner.queue.pop_front();
            }
        });
    }

    fn change<T>(&self, change: impl FnOnce(&mut Inner) -> T) -> T {
        let mut inner = self.lock();
        let answer = change(&mut inner);
        self.len.store(inner.len(), Ordering::Relaxed);
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
        self.queue.push_back((self.next, debt));
        self.next += 1;
    }
}
