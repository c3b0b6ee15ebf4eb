//! The task that probes a store which has failed, and replays the journal to it.

use std::{
    sync::{
        Arc,
        atomic::{AtomicBool, AtomicU64, Ordering},
    },
    time::Duration,
};

use tokio::{
    runtime::Handle,
    sync::Notify,
    time::{Instant, sleep},
};

use super::{Failover, entry::Entry};
use crate::{
    Token, logging,
    store::{Remote, StoreChange, StoreError, StoreErrorKind},
};

/// How often a store that has failed is probed.
const PROBE_EVERY: Duration = Duration::from_millis(250);
/// How long to wait after an entry could not be replayed, at first.
const RETRY: Duration = Duration::from_millis(100);
/// How often an entry is tried on a store that answers other calls, before it is dropped.
const TRIES: u32 = 20;
/// How many failed tries end a [`flush`](crate::store::Store::flush).
const FLUSH_TRIES: u64 = 3;
/// How often attempts in flight are looked at.
const LEASES_EVERY: Duration = Duration::from_millis(500);
/// How long the task goes on for a store that nothing else uses any more.
const GRACE: Duration = Duration::from_secs(60);

/// The state of the task.
#[derive(Default)]
pub(super) struct Replay {
    is_running: AtomicBool,
    /// Notified when the journal becomes empty, an entry can't be replayed or the store can't be
    /// reached.
    progress: Notify,
    /// How often an entry could not be replayed.
    failures: AtomicU64,
}

impl<S: Remote> Failover<S> {
    /// Starts the task, unless it is running.
    pub(super) fn replay(&self) {
        let is_running = &self.shared.replay.is_running;
        // Outside of a runtime it can't; the next call inside one does.
        if let Ok(runtime) = Handle::try_current()
            && !is_running.load(Ordering::SeqCst)
            && !is_running.swap(true, Ordering::SeqCst)
        {
            let running = Running(self.clone());
            runtime.spawn(async move {
                let is_done = running.0.replay_all().await;
                let store = running.0.clone();
                drop(running);
                // Something may have been appended since.
                if is_done && (store.is_open() || !store.shared.journal.is_empty()) {
                    store.replay();
                }
            });
        }
    }

    /// Runs until nothing is left to do; returns `false` if the store was given up.
    async fn replay_all(&self) -> bool {
        let shared = &*self.shared;
        let (mut open_since, mut tries, mut leases_checked) = (None, 0_u32, None::<Instant>);
        let (mut failing_since, mut abandoned_since) = (None, None::<Instant>);
        let (mut replayed, mut dropped) = (0, 0);
        loop {
            if leases_checked.is_none_or(|checked| checked.elapsed() >= LEASES_EVERY) {
                leases_checked = Some(Instant::now());
                shared.journal.end_leases(shared.clock.now());
            }
            // The store's last handle is gone: give up after a grace period in which nothing is replayed.
            let is_idle = failing_since.is_some() || !shared.journal.has_entries();
            if Arc::strong_count(&self.shared) > 1 || !is_idle {
                abandoned_since = None;
            } else if abandoned_since.get_or_insert_with(Instant::now).elapsed() > GRACE {
                return false;
            }
            if shared.breaker.is_open() {
                shared.replay.progress.notify_waiters();
                let since = *open_since.get_or_insert_with(Instant::now);
                failing_since.get_or_insert(since);
                sleep(jittered(PROBE_EVERY)).await;
                if shared.inner.probe(None).await.is_err() {
                    continue;
                }
                shared.breaker.close();
                (open_since, failing_since) = (None, None);
                let pending = shared.journal.len();
                logging::store_reachable(since.elapsed(), pending);
                shared.changed(&StoreChange::Up {
                    down_for: since.elapsed(),
                    pending,
                });
            }
            let Some((number, entry)) = shared.journal.first() else {
                shared.replay.progress.notify_waiters();
                if shared.journal.is_empty() {
                    if replayed + dropped > 0 {
                        shared.changed(&StoreChange::Replayed { replayed, dropped });
                    }
                    return true;
                }
                // Attempts in flight will be settled, or their leases end.
                sleep(LEASES_EVERY).await;
                continue;
            };
            // No caller waits for it, so it does not count for the breaker.
            match entry.replay(&shared.inner, shared.clock.now()).await {
                Ok(()) => {
                    shared.journal.remove_first(number);
                    replayed += 1;
                    (tries, failing_since) = (0, None);
                }
                Err(error) => {
                    tries += 1;
                    failing_since.get_or_insert_with(Instant::now);
                    shared.replay.failures.fetch_add(1, Ordering::Relaxed);
                    shared.replay.progress.notify_waiters();
                    if tries.is_multiple_of(TRIES) && self.is_rejected(&entry).await {
                        logging::not_replayed(&error);
                        shared.journal.remove_first(number);
                        dropped += 1;
                        tries = 0;
                    }
                    sleep(jittered(RETRY * tries.min(5))).await;
                }
            }
        }
    }

    /// Whether the server of an entry answers other calls, but not this one.
    async fn is_rejected(&self, entry: &Entry) -> bool {
        let shared = &*self.shared;
        shared.inner.probe(entry.key().as_ref()).await.is_ok()
            && (entry.replay(&shared.inner, shared.clock.now()).await).is_err()
    }

    /// Waits until the journal has no pending writes, or some could not be replayed.
    pub(super) async fn replayed(&self) -> Result<(), StoreError> {
        let shared = &*self.shared;
        let before = shared.replay.failures.load(Ordering::Relaxed);
        if !shared.journal.is_empty() {
            self.replay();
        }
        loop {
            // Cancellations that it can't complete go into the journal.
            shared.inner.flush().await?;
            let progress = shared.replay.progress.notified();
            if !shared.journal.has_entries() {
                return Ok(());
            }
            let failures = shared.replay.failures.load(Ordering::Relaxed) - before;
            if shared.breaker.is_open() || failures >= FLUSH_TRIES {
                // A caller that tries again at once must not keep the replay from running, on a runtime of one thread.
                tokio::task::yield_now().await;
                let message = "Redis does not answer, and outcomes are pending in the journal";
                return Err(StoreError::new(StoreErrorKind::Connection, message));
            }
            progress.await;
        }
    }
}

/// Marks the task as ended when dropped, whatever ends it.
struct Running<S>(Failover<S>);

impl<S> Drop for Running<S> {
    fn drop(&mut self) {
        let replay = &self.0.shared.replay;
        replay.is_running.store(false, Ordering::SeqCst);
    }
}

/// About this long, so that many processes do not all retry at the same moment.
fn jittered(time: Duration) -> Duration {
    let byte = Token::new().as_bytes()[0];
    time.mul_f64(0.75 + f64::from(byte) / 512.0)
}
