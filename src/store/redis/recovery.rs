//! Finding out that Redis answers again, and telling it what it has missed.

use std::{
    sync::{Arc, atomic::Ordering},
    time::Duration,
};

use tokio::time::{Instant, sleep};

use super::{
    RedisStore,
    connection::{PATIENCE, RETRY},
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
/// How often attempts in flight are looked at while there is nothing else to do.
const LOOK_EVERY: Duration = Duration::from_millis(500);

impl RedisStore {
    /// Starts the task that asks whether Redis answers again and tells it what it has missed, unless
    /// it is at work.
    pub(super) fn recover(&self) {
        if !self.shared.alone.is_recovering.swap(true, Ordering::AcqRel) {
            let store = self.clone();
            tokio::spawn(async move { store.recovered().await });
        }
    }

    async fn recovered(self) {
        let alone = &self.shared.alone;
        let (mut away, mut tries) = (None, 0);
        loop {
            if alone.breaker.is_open() {
                alone.told.notify_waiters();
                let since = *away.get_or_insert_with(Instant::now);
                // Nobody here is left to whom it would matter.
                let is_forgotten = Arc::strong_count(&self.shared) == 1;
                if is_forgotten && since.elapsed() > PATIENCE {
                    return;
                }
                sleep(spread(PROBE_EVERY)).await;
                if self.probe().await.is_err() {
                    continue;
                }
                alone.breaker.close();
                away = None;
                events::redis_is_back(since.elapsed(), alone.debts.len());
            }
            alone.debts.end_leases(alone.clock.now());
            let Some((number, debt)) = alone.debts.first() else {
                alone.told.notify_waiters();
                if !alone.debts.is_empty() {
                    sleep(LOOK_EVERY).await; // those in flight will be settled, or end
                    continue;
                }
                alone.is_recovering.store(false, Ordering::Release);
                // Something may have been owed since.
                let more = !alone.debts.is_empty() || alone.breaker.is_open();
                if more && !alone.is_recovering.swap(true, Ordering::AcqRel) {
                    continue;
                }
                return;
            };
            // That nobody waits for: it opens no breaker.
            match self.pay(&debt).await {
                Ok(_) => {
                    alone.debts.paid(number);
                    tries = 0;
                }
                Err(error) => {
                    tries += 1;
                    alone.not_told.fetch_add(1, Ordering::Relaxed);
                    alone.told.notify_waiters();
                    if tries % TRIES == 0 && self.probe().await.is_ok() {
                        // All else is answered, so it is this that Redis can't be told.
                        events::not_settled(&error);
                        alone.debts.paid(number);
                    }
                    sleep(spread(RETRY * tries.min(5))).await;
                }
            }
        }
    }

    /// One call like any other, on a counter of nobody's: whether Redis admits, writes and answers.
    pub(super) async fn probe(&self) -> Result<(), StoreError> {
        let limit = Limit::attempts(1).within(Period::seconds(1)).build();
        let limit =
            limit.map_err(|error| StoreError::new(StoreErrorKind::Config, error.to_string()))?;
        let token = Token::new();
        // Another one each time: in a cluster they are everywhere.
        let key = Key::of_subject("probe:", token.as_bytes().as_slice());
        let counters = self.counters(&[Slot::new(key, &limit)]);
        self.try_out(token, &counters).await
    }

    /// Waits until Redis was told everything, or could not be a few times.
    pub(super) async fn all_told(&self) -> Result<(), StoreError> {
        let alone = &self.shared.alone;
        let before = alone.not_told.load(Ordering::Relaxed);
        loop {
            let told = alone.told.notified();
            let failed = alone.not_told.load(Ordering::Relaxed) - before;
            if alone.debts.owed() == 0 {
                return Ok(());
            }
            if alone.breaker.is_open() || failed >= ENOUGH {
                let message = "redis does not answer, and has not been told everything";
                return Err(StoreError::new(StoreErrorKind::Connection, message));
            }
            told.await;
        }
    }
}

/// About this long, so that many processes do not all come at the same moment.
fn spread(time: Duration) -> Duration {
    let byte = Token::new().as_bytes()[0];
    time.mul_f64(0.75 + f64::from(byte) / 512.0)
}
