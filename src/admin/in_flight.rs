//! Whether an attempt is in flight.

use super::{Admin, AdminError, counters::Counter};
#[cfg(feature = "server")]
use crate::live::Version;
use crate::{
    AttemptId, Caller, Policy, Token,
    attempt::{Counted, Slots},
    limiter::block_note::Note,
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
        Ok(self.held(token, caller, None).await? == Some(true))
    }

    /// Whether an attempt that is counted for this caller under this policy, or the one in force, is in flight; `None` if
    /// no counter holds it.
    pub(crate) async fn held<'a>(
        &self,
        token: Token,
        caller: impl Into<Caller<'a>> + Send,
        policy: Option<&Policy>,
    ) -> Result<Option<bool>, AdminError> {
        let counters: Vec<_> = {
            let (caller, in_force) = (caller.into(), self.limiter.in_force());
            let policy = policy.unwrap_or_else(|| in_force.policy(caller.address));
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

    /// The policies of a version, that of its canary included; none if the version is no longer kept, or can't be read.
    /// `None` if the store did not answer.
    #[cfg(feature = "server")]
    pub(crate) async fn past_policies(&self, version: u64) -> Option<Vec<Policy>> {
        let document = self.ledger.past_document(version).await.ok()?;
        // The text of many access rules takes a while to read, and logins may share this thread.
        let read = tokio::task::spawn_blocking(move || {
            let past = document.and_then(|past| Version::from_text(past.version, &past.text).ok());
            past.map_or_else(Vec::new, |past| {
                let canary = past.ruleset.canary;
                let canary = canary.map(|canary| canary.policy().clone());
                [past.ruleset.policy].into_iter().chain(canary).collect()
            })
        });
        read.await.ok()
    }
}
