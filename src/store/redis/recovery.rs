//! Finding out that Redis answers again, and telling it what it has missed.

use std::{
    sync::{Arc, atomic::Ordering},
    time::Duration,
};

use tokio::{
    runtime::Handle,
    time::{Instant, sleep, timeout_at},
};

use super::{
    RedisStore, Shared,
    counters::Counters,
    debts::Debt,
    keys::hash_tag,
    shared_connection::{PATIENCE, RETRY},
};
use crate::{
    Limit, Period, Token, events,
    store::{Key, Slot, StoreError, StoreErrorKind},
};

/// How often it is tried whether Redis answers again.
const PROBE_EVERY: Duration = Duration::from_millis(250);
/// How often something is told to a Redis that answers others, before it is given up.
const TRIES: u32 = 20;
/// How often that may fail while somebody waits for it.
const ENOUGH: u64 = 3;
/// How often attempts in flight are looked at.
const LOOK_EVERY: Duration = Duration::from_millis(500);

impl RedisStore {
    /// Starts the task that asks whether Redis answers again and tells it what it has missed, unless
    /// it is at work.
    pub(super) fn recover(&self) {
        let is_recovering = &self.shared.alone.is_recovering;
        // Outside of a runtime nobody can; the next one who is inside does.
        if let Ok(runtime) = Handle::try_current()
            && !is_recovering.load(Ordering::SeqCst)
            && !is_recovering.swap(true, Ordering::SeqCst)
        {
            let store = self.clone();
            runtime.spawn(async move {
                // Whatever becomes of the task, another one may follow.
                let recovering = Recovering(Arc::clone(&store.shared));
                let is_done = store.recovered().await;
                drop(recovering);
                // Something may have happened since.
                let alone = &store.shared.alone;
                if is_done && (alone.breaker.is_open() || !alone.debts.is_empty()) {
                    store.recover();
                }
            });
        }
    }

    /// Ends when there is nothing left to do, or, with `false`, nobody left to do it for.
    async fn recovered(&self) -> bool {
        let alone = &self.shared.alone;
        let (mut away, mut tries, mut looked) = (None, 0_u32, None::<Instant>);
        // When it first failed without anything that worked since.
        let mut failing = None;
        loop {
            if looked.is_none_or(|looked| looked.elapsed() >= LOOK_EVERY) {
                looked = Some(Instant::now());
                alone.debts.end_leases(alone.clock.now());
            }
            // If nobody else has the store, it does not matter for ever.
            let is_forgotten = Arc::strong_count(&self.shared) <= 2;
            if is_forgotten && failing.is_some_and(|since: Instant| since.elapsed() > PATIENCE) {
                return false;
            }
            if alone.breaker.is_open() {
                alone.told.notify_waiters();
                let since = *away.get_or_insert_with(Instant::now);
                failing.get_or_insert(since);
                sleep(spread(PROBE_EVERY)).await;
                if self.probe(None).await.is_err() {
                    continue;
                }
                alone.breaker.close();
                (away, failing) = (None, None);
                events::redis_is_back(since.elapsed(), alone.debts.len());
            }
            let Some((number, debt)) = alone.debts.first() else {
                alone.told.notify_waiters();
                if alone.debts.is_empty() {
                    return true;
                }
                sleep(LOOK_EVERY).await; // those in flight will be settled, or end
                continue;
            };
            // That nobody waits for: it opens no breaker.
            match self.pay(&debt).await {
                Ok(_) => {
                    alone.debts.paid(number);
                    (tries, failing) = (0, None);
                }
                Err(error) => {
                    tries += 1;
                    failing.get_or_insert_with(Instant::now);
                    alone.not_told.fetch_add(1, Ordering::Relaxed);
                    alone.told.notify_waiters();
                    if tries.is_multiple_of(TRIES) && self.cant_be_told(&debt).await {
                        events::not_settled(&error);
                        alone.debts.paid(number);
                    }
                    sleep(spread(RETRY * tries.min(5))).await;
                }
            }
        }
    }

    /// Whether the same server answers everything else.
    async fn cant_be_told(&self, debt: &Debt) -> bool {
        let keys = debt.keys();
        let tag = keys.first().map(|key| hash_tag(key));
        self.probe(tag).await.is_ok() && self.pay(debt).await.is_err()
    }

    /// One call like any other, on a counter of nobody's: whether Redis admits, writes and answers. In
    /// a cluster, the server that keeps this tag, or any.
    pub(super) async fn probe(&self, tag: Option<&[u8]>) -> Result<(), StoreError> {
        let limit = Limit::attempts(1).within(Period::seconds(1)).build();
        let limit =
            limit.map_err(|error| StoreError::new(StoreErrorKind::Config, error.to_string()))?;
        let token = Token::new();
        let key = Key::of_subject("probe:", token.as_bytes().as_slice());
        let mut counters = Counters::new(&[Slot::new(key, &limit)], &self.shared.keys);
        if let Some(tag) = tag {
            counters.move_to(tag);
        }
        self.try_out(token, &counters).await
    }

    /// Waits until Redis was told everything, or could not be a few times.
    pub(super) async fn all_told(&self) -> Result<(), StoreError> {
        let alone = &self.shared.alone;
        let before = alone.not_told.load(Ordering::Relaxed);
        let on_their_way = || alone.afterthoughts.load(Ordering::SeqCst) > 0;
        loop {
            let told = alone.told.notified();
            let failed = alone.not_told.load(Ordering::Relaxed) - before;
            if alone.debts.owed() == 0 && !on_their_way() {
                return Ok(());
            }
            let is_too_late = match on_their_way() {
                true => timeout_at(self.link.deadline(), told).await.is_err(),
                false if alone.breaker.is_open() || failed >= ENOUGH => true,
                false => {
                    told.await;
                    false
                }
            };
            if is_too_late {
                let message = "redis does not answer, and has not been told everything";
                return Err(StoreError::new(StoreErrorKind::Connection, message));
            }
        }
    }
}

/// Dropped, says that nobody is at work any more.
struct Recovering(Arc<Shared>);

impl Drop for Recovering {
    fn drop(&mut self) {
        self.0.alone.is_recovering.store(false, Ordering::SeqCst);
    }
}

/// About this long, so that many processes do not all come at the same moment.
fn spread(time: Duration) -> Duration {
    let byte = Token::new().as_bytes()[0];
    time.mul_f64(0.75 + f64::from(byte) / 512.0)
}
