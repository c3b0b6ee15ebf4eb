//! Getting on without Redis: deciding alone, and telling Redis afterwards.

use std::{
    sync::{
        Arc,
        atomic::{AtomicBool, AtomicU64, AtomicUsize, Ordering},
    },
    time::Duration,
};

use tokio::sync::Notify;

use super::{
    Outage, RedisStore,
    blocks::Belief,
    breaker::Breaker,
    counters::Counters,
    debts::{Debt, Debts},
    keys::local_key,
};
use crate::{
    Address, KnownAddresses, Token,
    algorithm::Millis,
    clock::{Clock, to_millis},
    events,
    store::{Key, MemoryStore, Standings, Store, StoreError, StoreFuture},
};

/// What a store needs to get on without Redis.
pub(super) struct Alone {
    pub(super) outage: Outage,
    pub(super) breaker: Breaker,
    pub(super) debts: Debts,
    /// What this process has seen: failures that Redis was told of, and what Redis has not been told.
    pub(super) local: MemoryStore,
    capacity: usize,
    pub(super) clock: Arc<dyn Clock>,
    pub(super) decided: AtomicU64,
    pub(super) uncounted: AtomicU64,
    /// Whether a task sees to it that Redis is told.
    pub(super) is_recovering: AtomicBool,
    /// Redis was told everything, or could not be told something.
    pub(super) told: Notify,
    /// How often it could not.
    pub(super) not_told: AtomicU64,
    /// How many cancels are on their way behind an attempt that may still be carried out.
    pub(super) afterthoughts: AtomicUsize,
}

impl Alone {
    pub(super) fn new(
        outage: Outage,
        deadline: Duration,
        capacity: usize,
        clock: Arc<dyn Clock>,
    ) -> Self {
        Self {
            outage,
            breaker: Breaker::new(deadline * 2),
            debts: Debts::new(capacity),
            local: MemoryStore::with_capacity(capacity).with_clock(Arc::clone(&clock)),
            capacity,
            clock,
            decided: AtomicU64::new(0),
            uncounted: AtomicU64::new(0),
            is_recovering: AtomicBool::new(false),
            told: Notify::new(),
            not_told: AtomicU64::new(0),
            afterthoughts: AtomicUsize::new(0),
        }
    }

    /// Whether what this process has learned alone is not known to Redis yet, and counts here.
    fn knows_more(&self) -> bool {
        self.outage == Outage::Fallback && !self.debts.is_empty()
    }

    fn reserve(
        &self,
        token: Token,
        lease: Duration,
        counters: &Counters,
    ) -> Result<Standings, StoreError> {
        at_once(self.local.reserve(token, lease, &counters.slots()))
    }

    fn cancel(&self, token: Token, counters: &Counters) {
        let _ = at_once(self.local.cancel(token, &counters.slots()));
    }

    /// Keeps up with what Redis has admitted, so that this process knows something when it has to
    /// decide. It forgets what Redis no longer counts.
    fn follow_admission(
        &self,
        token: Token,
        lease: Duration,
        counters: &Counters,
        standings: &Standings,
        asked: Millis,
    ) {
        if self.outage == Outage::Fallback && self.has_room_to_follow() {
            let slots = counters.slots();
            let by = Some(asked);
            self.local.follow(token, lease, &slots, standings, by);
        }
    }

    /// It was announced that a counter is no longer blocked.
    pub(super) fn was_lifted(&self, key: &[u8]) {
        self.local.forget(&local_key(key));
    }

    /// At least half of the room is for what comes when Redis is away.
    fn has_room_to_follow(&self) -> bool {
        let has_room = || self.local.len() < self.capacity / 2;
        has_room() || {
            self.local.search_for_room();
            has_room()
        }
    }

    /// Keeps up with what Redis is told, or will be.
    fn follow(&self, debt: &Debt) {
        if self.outage != Outage::Fallback {
            return;
        }
        match debt {
            Debt::Fail(token, counters, _) => {
                let slots = counters.slots();
                let failed = at_once(self.local.fail(*token, &slots));
                if failed.is_ok_and(|failed| failed == 0) && self.has_room_to_follow() {
                    // Admitted by Redis when there was no room here.
                    let (lease, there) = (Duration::ZERO, counters.untouched());
                    self.local.follow(*token, lease, &slots, &there, None);
                }
            }
            Debt::Cancel(tokens, counters) => {
                let slots = counters.slots();
                for token in tokens {
                    let _ = at_once(self.local.cancel(*token, &slots));
                }
            }
            Debt::CleanUp(token, counters, mains, _) => {
                let slots = counters.slots();
                let (mains, others) = slots.split_at(*mains);
                let _ = at_once(self.local.cleanup(None, mains, others));
                if let Some(token) = token {
                    let _ = at_once(self.local.cancel(*token, &slots));
                }
            }
            Debt::Merge(..) | Debt::Remember(..) => {}
        }
    }
}

/// What the store of this process answers: it never takes time.
fn at_once<T>(answer: StoreFuture<T>) -> Result<T, StoreError> {
    match answer.at_once() {
        Ok(answer) => answer,
        Err(_) => Err(StoreError::new(
            crate::store::StoreErrorKind::Protocol,
            "a store in memory did not answer at once",
        )),
    }
}

impl RedisStore {
    fn alone(&self) -> &Alone {
        &self.shared.alone
    }

    /// Decides on an attempt: Redis does, or this process if Redis can't.
    pub(super) fn decide(
        &self,
        token: Token,
        lease: Duration,
        counters: Arc<Counters>,
    ) -> StoreFuture<Standings> {
        let is_away = self.alone().breaker.is_open();
        let belief = if is_away {
            Belief::Blind
        } else {
            Belief::Recent
        };
        if let Some(refused) = self.shared.blocks.refuse(&counters, belief) {
            return StoreFuture::now(Ok(refused));
        }
        if is_away {
            let error = || self.alone().breaker.error();
            return StoreFuture::now(self.decide_alone(token, lease, counters, error));
        }
        let store = self.clone();
        StoreFuture::later(async move { store.decide_with_redis(token, lease, counters).await })
    }

    async fn decide_with_redis(
        &self,
        token: Token,
        lease: Duration,
        counters: Arc<Counters>,
    ) -> Result<Standings, StoreError> {
        if let Some(refused) = self.shared.blocks.refuse(&counters, Belief::Asking) {
            return Ok(refused);
        }
        // Until Redis has been told what this process knows, both have to admit it.
        let both = self.alone().knows_more();
        if both {
            match self.alone().reserve(token, lease, &counters) {
                Ok(standings) if !standings.admitted() => return Ok(standings),
                // Without room here Redis decides.
                Ok(_) | Err(_) => {}
            }
        }
        let asked = self.shared.blocks.asking();
        let answer = self.ask(Some(token), lease, &counters).await;
        if both && !answer.as_ref().is_ok_and(Standings::admitted) {
            self.alone().cancel(token, &counters);
        }
        match self.noticed(answer) {
            Ok(standings) => {
                self.shared.blocks.learn(asked, &counters, &standings);
                if standings.admitted() && !both {
                    let alone = self.alone();
                    // Others may have been decided alone meanwhile.
                    if alone.knows_more() {
                        match alone.reserve(token, lease, &counters) {
                            Ok(here) if !here.admitted() => {
                                self.take_back(token, &counters);
                                return Ok(here);
                            }
                            Ok(_) | Err(_) => {}
                        }
                    } else {
                        alone.follow_admission(token, lease, &counters, &standings, asked.at);
                    }
                }
                Ok(standings)
            }
            Err(error) => match self.shared.blocks.refuse(&counters, Belief::Blind) {
                Some(refused) => Ok(refused),
                None => self.decide_alone(token, lease, counters, || error),
            },
        }
    }

    fn decide_alone(
        &self,
        token: Token,
        lease: Duration,
        counters: Arc<Counters>,
        error: impl FnOnce() -> StoreError,
    ) -> Result<Standings, StoreError> {
        let alone = self.alone();
        let lease_ends = alone.clock.now().saturating_add(to_millis(lease));
        match alone.outage {
            Outage::Closed => Err(error()),
            Outage::Open => {
                if !lease.is_zero() {
                    // So that Redis is not told of it. Without room it is told in vain.
                    let nowhere = Counters::default();
                    let _ = (alone.debts).admitted(token, &counters, nowhere, lease_ends);
                    self.recover();
                }
                alone.uncounted.fetch_add(1, Ordering::Relaxed);
                events::admitted_uncounted();
                Ok(counters.untouched())
            }
            Outage::Fallback => {
                let standings = alone.reserve(token, lease, &counters)?;
                alone.decided.fetch_add(1, Ordering::Relaxed);
                if standings.admitted() {
                    let counting = counters.counting(&standings);
                    let kept = if lease.is_zero() {
                        let failed = Debt::Merge(token.twin(), Arc::new(counting), lease_ends);
                        alone.debts.owe(failed)
                    } else {
                        (alone.debts).admitted(token, &counters, counting, lease_ends)
                    };
                    if let Err(error) = kept {
                        alone.cancel(token, &counters);
                        return Err(error);
                    }
                    self.recover();
                }
                Ok(standings)
            }
        }
    }

    /// How counters stand, by Redis or by what this process knows.
    pub(super) fn stand(&self, counters: Arc<Counters>) -> StoreFuture<Standings> {
        let alone_if = |store: &Self, counters: &Counters, error: StoreError| {
            let alone = store.alone();
            match alone.outage {
                Outage::Closed => Err(error),
                Outage::Open => Ok(counters.untouched()),
                Outage::Fallback => match store.shared.blocks.refuse(counters, Belief::Blind) {
                    Some(refused) => Ok(refused),
                    None => at_once(alone.local.check(&counters.slots())),
                },
            }
        };
        if self.alone().breaker.is_open() {
            let error = self.alone().breaker.error();
            return StoreFuture::now(alone_if(self, &counters, error));
        }
        let store = self.clone();
        StoreFuture::later(async move {
            let answer = store.ask(None, Duration::ZERO, &counters).await;
            match store.noticed(answer) {
                Ok(standings) => Ok(standings),
                Err(error) => alone_if(&store, &counters, error),
            }
        })
    }

    /// Tells Redis how an attempt went, now or, if it does not answer, later. Says in how many counters
    /// that changed something; in all of them if that is not known yet.
    pub(super) fn tell(&self, token: Token, debt: Debt) -> StoreFuture<usize> {
        let alone = self.alone();
        alone.follow(&debt);
        let counters = debt.keys().len();
        let is_in_redis = alone.debts.settle(token, &debt, alone.clock.now());
        if !alone.debts.is_empty() {
            self.recover();
        }
        if !is_in_redis {
            return StoreFuture::now(Ok(counters));
        }
        if alone.breaker.is_open() {
            return StoreFuture::now(self.owe(debt).map(|()| counters));
        }
        let store = self.clone();
        StoreFuture::later(async move {
            let paid = store.pay(&debt).await;
            match store.noticed(paid) {
                Ok(changed) => Ok(changed),
                Err(_) => store.owe(debt).map(|()| counters),
            }
        })
    }

    /// Sees to it that Redis is told, however long that takes.
    pub(super) fn owe(&self, debt: Debt) -> Result<(), StoreError> {
        self.alone().debts.owe(debt)?;
        self.recover();
        Ok(())
    }

    /// Forgets all failures in these counters, here and in Redis; or says that Redis was not reached.
    pub(super) fn wipe(&self, counters: Arc<Counters>, mains: usize) -> StoreFuture<()> {
        let now = self.alone().clock.now();
        let debt = Debt::CleanUp(None, Arc::clone(&counters), mains, now);
        self.alone().debts.forgive(&counters.keys(), mains);
        self.alone().follow(&debt);
        self.shared.blocks.forget(&counters);
        if self.alone().breaker.is_open() {
            return StoreFuture::now(Err(self.alone().breaker.error()));
        }
        let store = self.clone();
        StoreFuture::later(async move {
            let paid = store.pay(&debt).await;
            store.noticed(paid).map(drop)
        })
    }

    /// Keeps an address, in Redis and, where that does not answer, here.
    pub(super) fn tell_of_address(
        &self,
        key: &Key<'_>,
        address: Address,
        keep: KnownAddresses,
    ) -> StoreFuture<()> {
        let name = self.shared.keys.write(key);
        let command = self.known_addresses(key, Some(address), keep);
        let alone = self.alone();
        if alone.outage == Outage::Fallback && alone.has_room_to_follow() {
            let _ = at_once(alone.local.remember(&local_key(&name), address, keep));
        }
        let debt = Debt::Remember(name, command);
        if alone.breaker.is_open() {
            return StoreFuture::now(self.owe(debt));
        }
        let store = self.clone();
        StoreFuture::later(async move {
            let paid = store.pay(&debt).await;
            match store.noticed(paid) {
                Ok(_) => Ok(()),
                Err(_) => store.owe(debt),
            }
        })
    }

    /// The addresses that are kept, by Redis or by what this process knows.
    pub(super) fn known_from(
        &self,
        key: &Key<'_>,
        keep: KnownAddresses,
    ) -> StoreFuture<Vec<Address>> {
        let name = self.shared.keys.write(key);
        let command = self.known_addresses(key, None, keep);
        let store = self.clone();
        StoreFuture::later(async move {
            let answer = match store.alone().breaker.is_open() {
                true => Err(store.alone().breaker.error()),
                false => store.noticed(store.known_to_redis(command).await),
            };
            match answer {
                Err(_) if store.alone().outage == Outage::Fallback => {
                    at_once(store.alone().local.known(&local_key(&name), keep))
                }
                answer => answer,
            }
        })
    }

    /// Passes an answer on, and notices whether Redis works.
    pub(super) fn noticed<T>(&self, answer: Result<T, StoreError>) -> Result<T, StoreError> {
        let breaker = &self.alone().breaker;
        match &answer {
            Ok(_) => breaker.worked(),
            Err(error) => {
                if breaker.failed(error) {
                    events::redis_away(error, self.alone().outage);
                    self.recover();
                }
            }
        }
        answer
    }
}

/// How long ago something was.
pub(super) fn age(clock: &dyn Clock, at: Millis) -> Millis {
    clock.now().saturating_sub(at)
}
