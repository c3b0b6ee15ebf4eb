//! Takes back attempts that may have been written although their reserve failed.

use std::sync::{
    Arc, OnceLock,
    atomic::{AtomicUsize, Ordering},
};

use tokio::{
    sync::Notify,
    time::{Instant, timeout_at},
};

use super::{backend::Backend, connection::Failure, counters::Counters};
use crate::{
    Token, logging,
    store::{CancelLater, Settled, Settlement, StoreError, StoreErrorKind},
};

/// How many cancellations may wait behind reserves that were not answered. Beyond that they go into the
/// journal, which may send them ahead of a reserve that is stalled on its way: as many as may be in flight
/// when a path stalls.
const MAX_PENDING: usize = 8_192;

/// Cancellations on their way behind reserves that were not answered.
#[derive(Default)]
pub(super) struct Cancellations {
    pending: AtomicUsize,
    /// Notified when one was answered or given up.
    ended: Notify,
    /// Takes over those that were not answered.
    later: OnceLock<Box<dyn CancelLater>>,
}

impl Backend {
    /// Hands cancellations that get no answer to `later`. To be called once.
    pub(super) fn set_cancel_later(&self, later: impl CancelLater + 'static) {
        let set = self.cancellations().later.set(Box::new(later));
        debug_assert!(set.is_ok(), "it is set when the store is built");
    }

    /// Takes back an attempt whose reserve failed: it will not be settled, and must not become a failure
    /// when its lease ends.
    ///
    /// If the reserve may still run, the cancellation goes behind it on the same connection, on which
    /// commands keep their order.
    pub(super) fn withdraw(
        &self,
        token: Token,
        counters: &Arc<Counters>,
        mut failure: Failure,
    ) -> Failure {
        let pending = &self.cancellations().pending;
        match failure.follow_up.take() {
            Some(send) if pending.load(Ordering::Relaxed) < MAX_PENDING => {
                let cancel = self.call(counters, &[token], Settlement::Canceled, 0);
                pending.fetch_add(1, Ordering::SeqCst);
                let (backend, counters) = (self.clone(), Arc::clone(counters));
                tokio::spawn(async move {
                    if !send(cancel).await {
                        backend.cancel_later(&[token], &counters);
                    }
                    let cancellations = backend.cancellations();
                    cancellations.pending.fetch_sub(1, Ordering::SeqCst);
                    cancellations.ended.notify_waiters();
                });
            }
            _ => self.cancel_later(&[token], counters),
        }
        failure
    }

    pub(super) fn cancel_later(&self, tokens: &[Token], counters: &Counters) {
        let slots = counters.as_slots();
        let later = self.cancellations().later.get();
        if !later.is_some_and(|later| later.cancel_later(tokens, &slots)) {
            let message = "the store was dropped before a cancellation was written";
            logging::not_canceled(&StoreError::new(StoreErrorKind::Connection, message));
        }
    }

    /// Takes attempts back, by the deadline or later.
    pub(super) async fn cancel(
        &self,
        tokens: &[Token],
        counters: &Counters,
        deadline: Instant,
    ) -> Settled {
        let canceled = self.settle_by_slot(tokens, Settlement::Canceled, counters, 0, deadline);
        canceled.await.unwrap_or_else(|_| {
            self.cancel_later(tokens, counters);
            Settled::default()
        })
    }

    /// Waits until the cancellations on their way are answered or given up.
    pub(super) async fn canceled(&self) -> Result<(), StoreError> {
        let cancellations = self.cancellations();
        loop {
            let ended = cancellations.ended.notified();
            if cancellations.pending.load(Ordering::SeqCst) == 0 {
                return Ok(());
            }
            if timeout_at(self.link.deadline(), ended).await.is_err() {
                let message = "Redis does not answer, and cancellations are pending";
                return Err(StoreError::new(StoreErrorKind::Connection, message));
            }
        }
    }
}
