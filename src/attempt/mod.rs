//! An attempt to log in, from its reservation to its outcome.

mod caller;
mod future;
mod refusal;
mod report;
mod token;

use std::{fmt, time::Duration};

use crate::{
    LoginLimiter, Policy, ReserveError, Rule,
    store::{Settlement, Standings, StoreError, StoreFuture},
};

pub use caller::Caller;
pub(crate) use caller::{Counted, Slots, User};
pub use future::AttemptFuture;
pub(crate) use future::{InFlight, Tracker};
pub use refusal::{Reason, Refusal};
pub use report::Report;
pub(crate) use report::{Scope, applying, refusal_of};
pub use token::Token;

/// How an attempt to log in ended.
///
/// A handler that no longer has its request can put the outcome into the extensions of its response.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
#[non_exhaustive]
pub enum Outcome {
    /// The user has authenticated with every factor that is required. Removes the failures counted
    /// under the rules by user and address, and those same failures from all other counters. Under a
    /// policy without such a rule it removes this attempt alone.
    Success,
    /// Wrong password, wrong code.
    Failure,
    /// There is no such user. Counts as a failure, so that clients can't tell the two apart.
    UnknownUser,
    /// The password is correct and another factor is required. Removes this attempt and keeps earlier
    /// failures: a correct password must not refill the guesses at the code.
    MfaPending,
    /// Neither correct nor wrong: the request was malformed, or the server failed. Removes this attempt.
    NotAnAttempt,
}

/// An attempt that was admitted and is in flight.
///
/// [`LoginLimiter::reserve`] returns it and [`settle`](Self::settle) ends it. An attempt that is never
/// settled becomes a failure when its lease ends.
#[must_use = "an attempt that is not settled becomes a failure"]
pub struct Attempt {
    token: Token,
    caller: Counted<'static>,
    report: Report,
    /// Why the attempt was refused when its user was identified. It has been taken back then, and
    /// nothing is left to settle.
    withdrawn: Option<Box<Refusal>>,
    within: Option<Box<Within>>,
}

/// The attempt of a layer further out with the same limiter, whose token another attempt of the same request
/// has too.
#[derive(Clone)]
pub(crate) struct Within {
    token: Token,
    caller: Counted<'static>,
}

impl Within {
    pub(crate) const fn token(&self) -> Token {
        self.token
    }

    /// Leaves those counters out that the attempt further out has too: it may have checked a password.
    fn retain_own(&self, policy: &Policy, slots: &mut Slots<'_>) {
        let mut outer = Slots::new();
        self.caller.push_slots(policy, |_| true, &mut outer);
        slots.retain(|slot| outer.iter().all(|outer| outer.key != slot.key));
    }
}

impl Attempt {
    #[inline]
    pub(crate) fn new(
        limiter: &LoginLimiter,
        token: Token,
        caller: Counted<'_>,
        standings: Standings,
        within: Option<Box<Within>>,
    ) -> Self {
        Self {
            token,
            report: Report::new(limiter.clone(), &caller, standings),
            caller: caller.into_owned(),
            withdrawn: None,
            within,
        }
    }

    /// The token that identifies this attempt in the store.
    pub const fn token(&self) -> Token {
        self.token
    }

    /// How each rule stood when the attempt was admitted, this attempt included.
    pub const fn report(&self) -> &Report {
        &self.report
    }

    /// Whether the attempt was refused when its user was identified.
    pub(crate) const fn is_withdrawn(&self) -> bool {
        self.withdrawn.is_some()
    }

    /// Why the attempt was refused when its user was identified.
    pub(crate) fn withdrawn(&self) -> Option<&Refusal> {
        self.withdrawn.as_deref()
    }

    /// Whether the attempt has a user with a name.
    #[inline]
    pub(crate) fn has_user(&self) -> bool {
        (self.caller.user.as_ref()).is_some_and(|user| !user.name.is_empty())
    }

    /// Whether the attempt counts as the user without a name.
    pub(crate) fn is_nameless(&self) -> bool {
        (self.caller.user.as_ref()).is_some_and(|user| user.name.is_empty())
    }

    /// A second handle to the same attempt. Only one of them may be settled.
    pub(crate) fn copy(&self) -> Self {
        Self {
            token: self.token,
            caller: self.caller.clone(),
            report: self.report.clone(),
            withdrawn: self.withdrawn.clone(),
            within: self.within.clone(),
        }
    }

    /// For an attempt of the same request in a layer further in.
    pub(crate) fn share(&self) -> Box<Within> {
        Box::new(Within {
            token: self.token,
            caller: self.caller.clone(),
        })
    }

    /// Whether this attempt has a user with a name, and the one further in has none or another one. Another
    /// spelling may be another account.
    pub(crate) fn is_contradicted_by(&self, inner: &Self) -> bool {
        self.has_user() && inner.caller.user.is_some() && inner.caller.user != self.caller.user
    }

    /// Takes over the user of an attempt further in, in place of one without a name.
    pub(crate) fn take_name_of(&mut self, inner: &Self) {
        let Some(user) = &inner.caller.user else {
            return;
        };
        let limiter = self.report.limiter();
        limiter.take_back(self.token, &self.caller, Rule::counts_by_user);
        self.caller = (self.caller).with_user(limiter.policy(), user.clone());
    }

    /// Takes the attempt back, because another attempt of the same request was refused.
    pub(crate) fn withdraw(&mut self, refusal: &Refusal) {
        if self.withdrawn.is_none() {
            let limiter = self.report.limiter();
            limiter.take_back(self.token, &self.caller, |_| true);
            self.withdrawn = Some(Box::new(refusal.clone()));
        }
    }

    /// Names the user of this attempt and reserves it under the rules by user as well. If one of them
    /// refuses, the whole attempt is taken back and there is nothing left to settle.
    ///
    /// If the attempt had another user, as when an e-mail address turns out to belong to an account, the
    /// new one replaces it; it is also the one whose address becomes known at a success. Naming the same
    /// user again changes nothing. If the future is dropped before it completes, the user's counters are as
    /// they were.
    ///
    /// # Errors
    ///
    /// [`ReserveError::Refused`] if a rule by user refuses the attempt, now or in an earlier call;
    /// [`ReserveError::Store`] if the store can't decide, in which case the attempt is as it was.
    pub async fn identify(&mut self, user: &str) -> Result<(), ReserveError> {
        if let Some(refusal) = &self.withdrawn {
            return Err(ReserveError::Refused(Refusal::clone(refusal)));
        }
        let limiter = self.report.limiter().clone();
        let user = limiter.user(user);
        let (policy, store) = (limiter.policy(), limiter.store());
        // The attempt further out was identified first.
        if let Some(outer) = &mut self.within {
            outer.caller = outer.caller.with_user(policy, user.clone().into_owned());
        }
        if let Some(known) = &mut self.caller.user
            && known.name == user.name
        {
            // It fails or succeeds in the spelling of the account.
            *known = user.into_owned();
            return Ok(());
        }
        let caller = self.caller.with_user(policy, user.into_owned());
        let mut slots = Slots::new();
        caller.push_slots(policy, Rule::counts_by_user, &mut slots);
        let (count, reserve) = (
            slots.len(),
            store.reserve(self.token, policy.lease(), &slots),
        );
        drop(slots);
        let standings = match reserve.at_once() {
            Ok(standings) => standings?,
            Err(call) => {
                AttemptFuture::identify(&limiter, self.token, caller.clone(), call).await?
            }
        };
        let standings = standings.complete(count)?;
        let report = self.report.with_user_rules(caller.scope(), &standings);
        let refusal = report.refusal();

        // If this fails, what is not taken back becomes a failure when the lease ends: one too many,
        // never one too few.
        let mut stale = Slots::new();
        let is_stale = |rule: &Rule| refusal.is_some() || rule.counts_by_user();
        self.caller.push_slots(policy, is_stale, &mut stale);
        if !stale.is_empty() {
            let canceled = Settlement::Canceled;
            let _ = (store.settle(&[self.token], canceled, &stale, Duration::ZERO)).await;
        }
        drop(stale);
        if let Some(refusal) = refusal {
            self.withdrawn = Some(Box::new(refusal.clone()));
            return Err(ReserveError::Refused(refusal));
        }
        (self.report, self.caller) = (report, caller);
        Ok(())
    }

    /// Ends the attempt with this outcome.
    ///
    /// # Errors
    ///
    /// The store failed, and whether it has written the outcome is unknown. If it has not, the attempt
    /// becomes a failure when its lease ends.
    pub fn settle(self, outcome: Outcome) -> AttemptFuture<Result<(), StoreError>> {
        AttemptFuture::settle(self.report.limiter(), self.write_outcome(outcome))
    }

    /// Settles by reference: an attempt is large to move. Must be called once.
    #[inline]
    pub(crate) fn write_outcome(&self, outcome: Outcome) -> StoreFuture<()> {
        if self.withdrawn.is_some() {
            return StoreFuture::ready(Ok(()));
        }
        let Self { token, caller, .. } = self;
        let limiter = self.report.limiter();
        let (policy, store) = (limiter.policy(), limiter.store());
        // Without a name it may be any account's, so its success takes back nothing but itself.
        if outcome == Outcome::Success && !self.is_nameless() {
            let cleaned_up = limiter.clean_up(caller, Some(*token));
            let (Some(keep), Some(user)) = (policy.known_addresses(), &caller.user) else {
                return cleaned_up;
            };
            let remembered = store.remember(&user.known_addresses(), caller.address, keep);
            return StoreFuture::all(vec![cleaned_up, remembered]);
        }
        let mut slots = Slots::new();
        caller.push_slots(policy, |_| true, &mut slots);
        let settlement = match outcome {
            Outcome::Failure | Outcome::UnknownUser => Settlement::Failed,
            _ => Settlement::Canceled,
        };
        if let (Settlement::Canceled, Some(outer)) = (settlement, &self.within) {
            outer.retain_own(policy, &mut slots);
        }
        let settled = store.settle(&[*token], settlement, &slots, Duration::ZERO);
        drop(slots);
        let (scope, address) = (caller.scope(), caller.address);
        match settled.at_once() {
            Ok(settled) => StoreFuture::ready(settled.map(|settled| {
                limiter.note_blocks(scope, address, &settled);
            })),
            Err(settled) => {
                let limiter = limiter.clone();
                settled.map_ok(move |settled| limiter.note_blocks(scope, address, &settled))
            }
        }
    }
}

/// Shows neither the user nor the values: logs must not name people.
impl fmt::Debug for Attempt {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("Attempt")
            .field("token", &self.token)
            .field("address", &self.caller.address)
            .field("report", &self.report)
            .finish_non_exhaustive()
    }
}
