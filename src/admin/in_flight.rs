//! Whether an attempt is in flight.

use super::{Admin, AdminError, counters::Counter, note::Note};
use crate::{
    AttemptId, Caller, Token,
    attempt::{Counted, Slots},
};

impl Admin {
    /// Whether the attempt that was reserved with this token for this caller is in flight: neither settled, nor over
    /// its lease, nor unknown. To be asked before one is [resumed](crate::LoginLimiter::resume), so that an outcome
    /// which arrives twice changes nothing the second time.
    ///
    /// Attempts that an access rule allows, or that no rule counts, are in no counter and not found. So are those
    /// whose counters have gone, since another policy is in force than when they were reserved.
    ///
    /// # Errors
    ///
    /// If the store failed.
    pub async fn is_in_flight<'a>(
        &self,
        token: Token,
        caller: impl Into<Caller<'a>> + Send,
    ) -> Result<bool, AdminError> {
        Ok(self.held(token, caller).await? == Some(true))
    }

    /// Whether an attempt that is counted for this caller is in flight; `None` if no counter holds it.
    pub(crate) async fn held<'a>(
        &self,
        token: Token,
        caller: impl Into<Caller<'a>> + Send,
    ) -> Result<Option<bool>, AdminError> {
        let counters: Vec<_> = {
            let (caller, in_force) = (caller.into(), self.limiter.in_force());
            let policy = in_force.policy(caller.address);
            let caller = Counted::new(caller, policy, |user| self.limiter.normalize(user));
            let mut slots = Slots::new();
            caller.push_slots(policy, |_| true, &mut slots);
            let counted = policy.applying(caller.scope()).zip(&slots);
            counted
                .map(|(rule, slot)| Counter {
                    rule: rule.clone(),
                    name: self.ledger.name(&slot.key),
                    address: slot.key.address(),
                    note: Note::default(),
                    listed: None,
                })
                .collect()
        };
        let (id, contents) = (AttemptId::of(token), self.read(&counters).await?);
        let attempts = contents.iter().flatten().flat_map(|held| &held.attempts);
        let held = attempts.filter(|attempt| attempt.id == id);
        Ok(held.map(|attempt| attempt.is_in_flight).max())
    }
}
