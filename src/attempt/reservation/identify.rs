//! The user of an attempt in flight.

use std::{sync::Arc, time::Duration};

use super::{Reservation, Slots, User};
use crate::{
    Report, ReserveError, Rule, access::AccessQuery, attempt::AttemptFuture, limiter::Access,
    metrics::StoreCall, store::Settlement,
};

impl Reservation {
    /// See [`Attempt::identify`](super::Attempt::identify).
    pub(crate) async fn identify(&mut self, user: &str) -> Result<(), ReserveError> {
        if let Some(error) = self.withdrawn() {
            return Err(error.clone());
        }
        let limiter = self.limiter.clone();
        let user = limiter.user(user).into_owned();
        let policy = Arc::clone(self.report.policy());
        // The attempt further out was identified first.
        if let Some(outer) = self.outer_mut() {
            outer.caller = outer.caller.with_user(&policy, user.clone());
        }
        let query = AccessQuery::new().with_address(self.caller.ip);
        let access = limiter.in_force().access(&query.with_user(&user.name));
        match access {
            Access::Limited => {}
            Access::Allowed(allowed) => {
                let is_new = self.allowed_by() != Some(&allowed.rule);
                if !self.is_allowed() {
                    limiter.take_back(&policy, self.token, &self.caller, |_| true);
                }
                self.set_user(user);
                if is_new && !self.is_within() {
                    let access = Access::Allowed(allowed.clone());
                    limiter.note_access(&self.caller, self.token, &access);
                }
                self.rare_mut().allowed = Some(allowed);
                return Ok(());
            }
            Access::Denied(denied) => {
                let error = ReserveError::Denied(denied.clone());
                self.withdraw(&error);
                self.set_user(user);
                if !self.is_within() {
                    limiter.note_access(&self.caller, self.token, &Access::Denied(denied));
                }
                return Err(error);
            }
        }
        let is_allowed = (self.access()).is_some_and(|allowed| allowed.for_every_user);
        let known = self.caller.user.as_ref();
        let is_known = known.is_some_and(|known| {
            // From the normal form to another spelling, it is reserved once more: from then on, no success in
            // the normal form takes it back.
            known.name == user.name && (known.spelling.is_some() || user.spelling.is_none())
        });
        if is_allowed || is_known {
            // It fails or succeeds in the spelling of the account.
            self.set_user(user);
            return Ok(());
        }
        self.count_as(user).await
    }

    /// Reserves the attempt for this user, under the rules by user or, if it was not counted before, under all.
    async fn count_as(&mut self, user: User<'static>) -> Result<(), ReserveError> {
        let limiter = self.limiter.clone();
        let (policy, store) = (Arc::clone(self.report.policy()), limiter.store());
        let was_counted = !self.is_allowed();
        let known = self.caller.user.as_ref();
        let is_known = was_counted && known.is_some_and(|known| known.name == user.name);
        let caller = self.caller.with_user(&policy, user.clone());
        let mut slots = Slots::new();
        let is_new: fn(&Rule) -> bool = if was_counted {
            Rule::counts_by_user
        } else {
            |_| true
        };
        caller.push_slots(&policy, is_new, &mut slots);
        let (count, reserve) = (
            slots.len(),
            store.reserve(self.token, policy.lease(), &slots),
        );
        let reserve = limiter.measured(StoreCall::Reserve, reserve);
        drop(slots);
        let standings = match reserve.at_once() {
            Ok(standings) => standings?,
            // Nothing is taken back if this is dropped: the counters held the attempt before.
            Err(call) if is_known => call.await?,
            Err(call) => {
                let policy = Arc::clone(&policy);
                let caller = caller.clone();
                AttemptFuture::identify(&limiter, policy, self.token, caller, is_new, call).await?
            }
        };
        let standings = standings.complete(count)?;
        let report = if was_counted {
            self.report.with_user_rules(caller.scope(), &standings)
        } else {
            Report::new(Arc::clone(&policy), &caller, standings)
        };
        let refusal = report.refusal();

        // If this fails, what is not taken back becomes a failure when the lease ends: one too many,
        // never one too few.
        let mut stale = Slots::new();
        let is_stale =
            |rule: &Rule| was_counted && (refusal.is_some() || !is_known && rule.counts_by_user());
        self.caller.push_slots(&policy, is_stale, &mut stale);
        if !stale.is_empty() {
            let canceled = Settlement::Canceled;
            let _ = (store.settle(&[self.token], canceled, &stale, Duration::ZERO)).await;
        }
        drop(stale);
        self.set_user(user);
        if let Some(refusal) = refusal {
            limiter.note_refused(&self.caller, &refusal);
            let error = ReserveError::Refused(refusal);
            self.rare_mut().withdrawn = Some(error.clone());
            return Err(error);
        }
        self.report = report;
        self.rare_mut().allowed = None;
        Ok(())
    }

    /// Replaces the user, and keeps the one that was typed.
    fn set_user(&mut self, user: User<'static>) {
        if !self.is_identified() {
            let typed = self.caller.user.as_ref().map(User::typed);
            let typed = typed.filter(|typed| !typed.is_empty()).map(Box::from);
            let rare = self.rare_mut();
            (rare.is_identified, rare.typed) = (true, typed);
        }
        self.caller = (self.caller).with_user(self.report.policy(), user);
    }
}
