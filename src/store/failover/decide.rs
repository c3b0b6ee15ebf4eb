//! How an attempt is decided, with the store and without it.

use std::{sync::atomic::Ordering, time::Duration};

use super::{Failover, Outage, entry::Entry};
use crate::{
    Token,
    clock::to_millis,
    logging,
    store::{Remote, Slot, Standings, StoreError, StoreFuture, owned::OwnedSlots},
};

impl<S: Remote> Failover<S> {
    /// Whether the fallback has attempts that count and that the store has not seen.
    fn is_ahead(&self) -> bool {
        self.has_fallback() && !self.shared.journal.is_empty()
    }

    /// Decides by the reply of the store, and by the fallback too while that is ahead.
    pub(super) async fn decide(
        &self,
        token: Token,
        lease: Duration,
        slots: OwnedSlots,
        reply: StoreFuture<Standings>,
    ) -> Result<Standings, StoreError> {
        let fallback = &self.shared.fallback;
        let slots = &*slots.as_slots();
        let both = self.is_ahead();
        if both
            && let Ok(standings) = fallback.reserve(token, lease, slots)
            && !standings.admitted()
        {
            return Ok(standings);
        }
        let (asked, decisions) = (self.shared.clock.now(), self.fallback_decisions());
        let reply = reply.await;
        let admitted = reply.as_ref().is_ok_and(Standings::admitted);
        if both && !admitted {
            fallback.cancel(token, slots);
        }
        let standings = match self.observe(reply) {
            Ok(standings) => standings,
            Err(error) => return self.degraded(token, lease, slots, || error),
        };
        if admitted && !both {
            // The fallback may have decided other attempts meanwhile, also if they are replayed by now.
            if self.is_ahead() || self.fallback_decisions() != decisions {
                if let Ok(refused) = fallback.reserve(token, lease, slots)
                    && !refused.admitted()
                {
                    self.cancel_later(&[token], slots);
                    return Ok(refused);
                }
            } else if self.has_fallback() {
                fallback.admitted(token, lease, slots, &standings, asked);
            }
        }
        Ok(standings)
    }

    /// Decides without the store.
    pub(super) fn degraded(
        &self,
        token: Token,
        lease: Duration,
        slots: &[Slot<'_>],
        error: impl FnOnce() -> StoreError,
    ) -> Result<Standings, StoreError> {
        let shared = &*self.shared;
        if let Some(refused) = shared.inner.recall(slots) {
            return Ok(refused);
        }
        let lease_ends = shared.clock.now().saturating_add(to_millis(lease));
        match shared.outage {
            Outage::Closed => Err(error()),
            Outage::Open => {
                if !lease.is_zero() {
                    // So that its outcome is not written. Without room it is written in vain.
                    let nowhere = OwnedSlots::default();
                    let _ = (shared.journal).admitted(token, slots, nowhere, lease_ends);
                    self.replay();
                }
                shared.admitted_uncounted.fetch_add(1, Ordering::Relaxed);
                logging::admitted_uncounted();
                Ok(Standings::untouched(slots))
            }
            Outage::Fallback => {
                let standings = shared.fallback.reserve(token, lease, slots)?;
                shared.fallback_decisions.fetch_add(1, Ordering::Relaxed);
                if standings.admitted() {
                    let counting = OwnedSlots::counting(slots, &standings);
                    let noted = if lease.is_zero() {
                        let record = Entry::record(token, counting, lease_ends);
                        shared.journal.append(record)
                    } else {
                        (shared.journal).admitted(token, slots, counting, lease_ends)
                    };
                    if let Err(error) = noted {
                        shared.fallback.cancel(token, slots);
                        return Err(error);
                    }
                    self.replay();
                }
                Ok(standings)
            }
        }
    }
}
