//! Takes attempts back: one, those of a user, or all that block a caller.

use std::{
    net::{IpAddr, Ipv4Addr},
    sync::Arc,
    time::Duration,
};

use super::LoginLimiter;
use crate::{
    AttemptFuture, Caller, Policy, Rule, Token,
    attempt::{Counted, Slots},
    event::LiftedBy,
    metrics::{Metrics, StoreCall},
    store::{Settlement, StoreError, StoreFuture},
};

impl LoginLimiter {
    /// Removes the failures of one user from these addresses, and those same failures from the counters
    /// that the user shares with others: after a password was reset, for example. As with a success, only
    /// failures of this spelling of the name.
    ///
    /// # Errors
    ///
    /// The store failed for one of the addresses. Others may have been cleaned up.
    pub async fn cleanup(
        &self,
        user: &str,
        addresses: impl IntoIterator<Item = IpAddr>,
    ) -> Result<(), StoreError> {
        let addresses: Vec<_> = addresses.into_iter().collect();
        self.forgive(user, &addresses, false, Some(LiftedBy::App))
            .await
    }

    /// As [`cleanup`](Self::cleanup), for the failures of every spelling if that is wanted. The blocks that end are
    /// reported, unless the caller does it.
    pub(crate) async fn forgive(
        &self,
        user: &str,
        addresses: &[IpAddr],
        every_spelling: bool,
        by: Option<LiftedBy>,
    ) -> Result<(), StoreError> {
        let settlement = |mains| {
            if every_spelling {
                Settlement::Cleared { mains }
            } else {
                Settlement::Forgiven { mains }
            }
        };
        // In chunks, because the deadline of each call runs from the moment it is sent.
        for addresses in addresses.chunks(64) {
            let calls = addresses.iter().map(|address| {
                let in_force = self.in_force();
                let policy = in_force.policy(*address);
                let caller = self.count(policy, (*address, user).into());
                self.clean_up(policy, &caller, &[], settlement, by.clone())
            });
            StoreFuture::all(calls.collect()).await?;
        }
        Ok(())
    }

    /// Lifts the block of a caller by removing all failures, in every spelling, from exactly the counters that are
    /// the caller's own: for an address the counters by address, for a user at an address the counters by user and
    /// address. No other counter changes, so the user may still be refused at an address that is blocked, and an
    /// address in an IPv6 network that is.
    ///
    /// [`unblock_user`](Self::unblock_user) lifts the block of an account. The administration API
    /// (feature `admin`) lifts those of networks and of a user everywhere, reports what still refuses, and records
    /// who did it.
    ///
    /// # Errors
    ///
    /// The store failed.
    pub fn unblock<'a>(&self, caller: impl Into<Caller<'a>>) -> StoreFuture<()> {
        let (caller, in_force) = (caller.into(), self.in_force());
        let policy = in_force.policy(caller.address);
        let caller = self.count(policy, caller);
        let has_user = caller.user.is_some();
        self.clear(policy, &caller, move |rule| {
            let is_own = rule.counts_by_user() || rule.network().is_none();
            rule.counts_by_address() && rule.counts_by_user() == has_user && is_own
        })
    }

    /// Lifts the block of an account by removing all failures, in every spelling, from the counters by user over all
    /// addresses. What is counted for the user at single addresses remains.
    ///
    /// # Errors
    ///
    /// The store failed.
    pub fn unblock_user(&self, user: &str) -> StoreFuture<()> {
        let in_force = self.in_force();
        // Which address it is makes no difference to rules without one.
        let caller = Caller::new(Ipv4Addr::UNSPECIFIED.into()).with_user(user);
        let caller = caller.with_second_factor(true);
        let canary = in_force.canary.as_ref().map(|canary| &canary.policy);
        let policies = std::iter::once(&in_force.policy).chain(canary);
        let cleared = policies.map(|policy| {
            let caller = self.count(policy, caller.clone());
            self.clear(policy, &caller, |rule| {
                rule.counts_by_user() && !rule.counts_by_address()
            })
        });
        StoreFuture::all(cleared.collect())
    }

    /// Removes all failures from the counters of a caller under these rules.
    fn clear(
        &self,
        policy: &Arc<Policy>,
        caller: &Counted<'_>,
        rules: impl Fn(&Rule) -> bool + Send + 'static,
    ) -> StoreFuture<()> {
        let mut slots = Slots::new();
        caller.push_slots(policy, &rules, &mut slots);
        let all = Settlement::Cleared { mains: slots.len() };
        let cleared = self.store().settle(&[], all, &slots, Duration::ZERO);
        drop(slots);
        let (limiter, policy) = (self.clone(), Arc::clone(policy));
        let caller = caller.clone().into_owned();
        cleared.map_ok(move |settled| {
            let mut slots = Slots::new();
            caller.push_slots(&policy, rules, &mut slots);
            limiter.note_lifted(&policy, &caller, &settled, &slots, LiftedBy::App);
        })
    }

    /// Takes an attempt back under these rules, in the background if the store takes time.
    pub(crate) fn take_back(
        &self,
        policy: &Policy,
        token: Token,
        caller: &Counted<'_>,
        rules: impl Fn(&Rule) -> bool,
    ) {
        let mut slots = Slots::new();
        caller.push_slots(policy, rules, &mut slots);
        let canceled = Settlement::Canceled;
        let canceled = (self.store()).settle(&[token], canceled, &slots, Duration::ZERO);
        // Dropping the future has a task complete it.
        drop(AttemptFuture::settle(self, canceled.map_ok(drop)));
    }

    /// Writes a failure of a caller whose attempt was taken back.
    #[cfg(feature = "server")]
    pub(crate) fn record_failure(
        &self,
        policy: &Arc<Policy>,
        token: Token,
        caller: Caller<'_>,
    ) -> StoreFuture<()> {
        let caller = self.count(policy, caller).into_owned();
        let mut slots = Slots::new();
        caller.push_slots(policy, |_| true, &mut slots);
        let recorded = Settlement::Recorded;
        let recorded = (self.store()).settle(&[token], recorded, &slots, Duration::ZERO);
        let recorded = self.measured(StoreCall::Settle, recorded);
        drop(slots);
        let (limiter, policy) = (self.clone(), Arc::clone(policy));
        recorded.map_ok(move |settled| {
            limiter.note_blocks(&policy, (&caller, token), &settled, &[]);
        })
    }

    /// Cleans up the counters by user and address of this caller, and removes the failures found there
    /// from all others.
    #[inline]
    pub(crate) fn clean_up(
        &self,
        policy: &Arc<Policy>,
        caller: &Counted<'_>,
        tokens: &[Token],
        settlement: impl Fn(usize) -> Settlement,
        by: Option<LiftedBy>,
    ) -> StoreFuture<()> {
        let mut slots = Slots::new();
        let settlement = settlement(caller.push_mains_and_others(policy, &mut slots));
        let store = self.store();
        let settled = store.settle(tokens, settlement, &slots, Duration::ZERO);
        let settled = self.measured(StoreCall::Settle, settled);
        let is_noted = Metrics::IS_ENABLED || self.is_observed();
        let Some(by) = by.filter(|_| is_noted) else {
            return settled.map_ok(drop);
        };
        match settled.at_once() {
            Ok(settled) => StoreFuture::ready(settled.map(|settled| {
                self.note_lifted(policy, caller, &settled, &slots, by);
            })),
            Err(settled) => {
                drop(slots);
                let (limiter, policy) = (self.clone(), Arc::clone(policy));
                let caller = caller.clone().into_owned();
                settled.map_ok(move |settled| {
                    if !settled.lifted.is_empty() {
                        let mut slots = Slots::new();
                        caller.push_mains_and_others(&policy, &mut slots);
                        limiter.note_lifted(&policy, &caller, &settled, &slots, by);
                    }
                })
            }
        }
    }
}
