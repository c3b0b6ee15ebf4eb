//! Decides on an attempt, up to its reservation.

use std::sync::Arc;

use super::{Access, InForce, LoginLimiter, ReserveError};
use crate::{
    Attempt, Caller, MaybeReady, Policy, Reason, Refusal, Token,
    access::AccessQuery,
    attempt::{Counted, Reservation, Slots, Within, refusal_of},
    metrics::StoreCall,
    store::{Standings, StoreError},
};

/// A decision on an attempt.
pub(crate) enum Decided<A, E> {
    /// What was made of the attempt, or why there is none.
    Now(Result<A, E>),
    /// The store has to be waited for.
    Later(MaybeReady<Result<Attempt, E>>),
}

impl<E> Decided<Attempt, E> {
    #[inline]
    pub(crate) fn into_future(self) -> MaybeReady<Result<Attempt, E>> {
        match self {
            Self::Now(result) => MaybeReady::ready(result),
            Self::Later(call) => call,
        }
    }
}

/// What is known of a block without I/O.
pub(crate) enum KnownBlock {
    /// No block is known.
    None,
    /// The caller is blocked.
    Blocked(Refusal),
    /// The caller was blocked according to a cache, which may be stale.
    Cached,
}

impl LoginLimiter {
    /// What the access rules make of a caller, as far as it is known without a request.
    #[inline]
    pub(super) fn access_of(&self, in_force: &InForce, caller: &Caller<'_>) -> Access {
        if in_force.access.is_empty() {
            Access::Limited
        } else {
            self.access(in_force, caller.access_query(), caller.user.as_deref())
        }
    }

    /// What the access rules make of a request, whose user is as it was typed.
    #[inline]
    pub(crate) fn access(
        &self,
        in_force: &InForce,
        query: AccessQuery<'_>,
        user: Option<&str>,
    ) -> Access {
        match user {
            Some(user) if in_force.access.compares_users() => {
                in_force.access(&query.with_user(&self.normalize(user)))
            }
            _ => in_force.access(&query),
        }
    }

    /// Reserves an attempt, with a plain future: dropping that one may leave a failure behind. Within another
    /// attempt of the same request, it has the token of that one, and counters that both have count it once.
    #[inline]
    pub(crate) fn decide<A, E: Send + 'static>(
        &self,
        in_force: &InForce,
        caller: Caller<'_>,
        access: Access,
        within: Option<Box<Within>>,
        admit: impl FnOnce(Reservation) -> A,
        reject: fn(ReserveError, Counted<'_>) -> E,
    ) -> Decided<A, E> {
        let token = (within.as_ref()).map_or_else(Token::new, |outer| outer.token());
        self.decide_with((token, within), in_force, caller, access, admit, reject)
    }

    #[inline]
    pub(super) fn decide_with<A, E: Send + 'static>(
        &self,
        (token, within): (Token, Option<Box<Within>>),
        in_force: &InForce,
        caller: Caller<'_>,
        access: Access,
        admit: impl FnOnce(Reservation) -> A,
        reject: fn(ReserveError, Counted<'_>) -> E,
    ) -> Decided<A, E> {
        // One login is decided under one policy.
        let policy = match &within {
            Some(outer) => outer.policy(),
            None => in_force.policy(caller.address),
        };
        let caller = self.count(policy, caller);
        // A layer further out has noted it.
        if within.is_none() {
            self.note_access(&caller, token, &access);
        }
        match access {
            Access::Limited => {}
            Access::Allowed(allowed) => {
                if within.is_none() {
                    self.metrics().admitted();
                }
                let policy = Arc::clone(policy);
                let allowed = Reservation::allowed(self, policy, token, caller, allowed, within);
                return Decided::Now(Ok(admit(allowed)));
            }
            Access::Denied(denied) => {
                return Decided::Now(Err(reject(ReserveError::Denied(denied), caller)));
            }
        }
        let mut slots = Slots::new();
        caller.push_slots(policy, |_| true, &mut slots);
        let standings = self.store().reserve(token, policy.lease(), &slots);
        let standings = self.measured(StoreCall::Reserve, standings);
        let count = slots.len();
        drop(slots);
        match standings.at_once() {
            // The refusal comes first: refused callers must not cost a copy of their name.
            Ok(standings) => Decided::Now(
                match self.reserved(policy, token, &caller, standings, count) {
                    Ok(standings) => {
                        if within.is_none() {
                            self.metrics().admitted();
                        }
                        let policy = Arc::clone(policy);
                        let reservation =
                            Reservation::new(self, policy, token, caller, standings, within);
                        Ok(admit(reservation))
                    }
                    Err(error) => Err(reject(error, caller)),
                },
            ),
            Err(standings) => {
                let (limiter, caller) = (self.clone(), caller.into_owned());
                let policy = Arc::clone(policy);
                Decided::Later(MaybeReady::pending(async move {
                    let standings = standings.await;
                    match limiter.reserved(&policy, token, &caller, standings, count) {
                        Ok(standings) => {
                            if within.is_none() {
                                limiter.metrics().admitted();
                            }
                            Ok(Attempt::new(Reservation::new(
                                &limiter, policy, token, caller, standings, within,
                            )))
                        }
                        Err(error) => Err(reject(error, caller)),
                    }
                }))
            }
        }
    }

    /// The standings of an attempt that the store has admitted, in `count` counters.
    #[inline(always)] // standings are large to move
    fn reserved(
        &self,
        policy: &Policy,
        token: Token,
        caller: &Counted<'_>,
        standings: Result<Standings, StoreError>,
        count: usize,
    ) -> Result<Standings, ReserveError> {
        match standings {
            Ok(standings) if standings.len() == count && standings.admitted() => Ok(standings),
            other => self.rejected(policy, token, caller, other, count),
        }
    }

    #[inline(never)]
    fn rejected(
        &self,
        policy: &Policy,
        token: Token,
        caller: &Counted<'_>,
        standings: Result<Standings, StoreError>,
        count: usize,
    ) -> Result<Standings, ReserveError> {
        let error = match standings {
            Ok(standings) if standings.len() == count => {
                match refusal_of(policy, caller.scope(), &standings) {
                    Some(refusal) => ReserveError::Refused(refusal),
                    None => return Ok(standings),
                }
            }
            Ok(standings) => {
                self.take_back(policy, token, caller, |_| true);
                standings.incomplete(count).into()
            }
            Err(error) => error.into(),
        };
        self.note_rejected(caller, &error);
        Err(error)
    }

    /// Whether the rules without a user block this caller, as far as the store knows without I/O.
    pub(crate) fn known_block(&self, caller: Caller<'_>) -> KnownBlock {
        let (in_force, store) = (self.in_force(), self.store());
        let policy = in_force.policy(caller.address);
        let caller = self.count(policy, caller);
        let mut slots = Slots::new();
        caller.push_slots(policy, |rule| !rule.counts_by_user(), &mut slots);
        if slots.is_empty() {
            return KnownBlock::None;
        }
        if store.recall(&slots).is_some() {
            return KnownBlock::Cached;
        }
        // A store that has to be waited for begins with the first poll, so nothing is sent.
        let Ok(Ok(standings)) = store.check(&slots).at_once() else {
            return KnownBlock::None;
        };
        match refusal_of(policy, caller.scope().without_user(), &standings) {
            Some(refusal) if refusal.reason() == Reason::Blocked => {
                self.note_refused(&caller, &refusal);
                KnownBlock::Blocked(refusal)
            }
            _ => KnownBlock::None,
        }
    }
}
