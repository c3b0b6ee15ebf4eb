//! What the store has admitted, from its reservation to its outcome.

mod identify;

use std::{fmt, net::IpAddr, sync::Arc, time::Duration};

use super::{Counted, Outcome, Refusal, Report, Slots, Token, User};
use crate::{
    LoginLimiter, Policy, ReserveError, Rule,
    event::LiftedBy,
    limiter::Allowed,
    metrics::StoreCall,
    store::{Settlement, Standings, StoreFuture},
};

/// An [`Attempt`](super::Attempt) in place: the layer has it beside its own state, so that both are allocated at once.
pub(crate) struct Reservation {
    limiter: LoginLimiter,
    token: Token,
    caller: Counted<'static>,
    /// Has the policy that the attempt was admitted under, and is settled under.
    report: Report,
    rare: Option<Box<Rare>>,
}

/// What few attempts have. Out of line, since all others would have to initialize it.
#[derive(Clone, Default)]
struct Rare {
    /// Whether the user was identified; then `typed` is the one before that.
    is_identified: bool,
    typed: Option<Box<str>>,
    /// The access rule that allows the attempt. It is in no counter then.
    allowed: Option<Allowed>,
    /// Why the attempt was refused when its user was identified. It has been taken back then, and
    /// nothing is left to settle.
    withdrawn: Option<ReserveError>,
    /// Attempts of other layers with the same token: of the one further out, and of those further in that have
    /// failed, and noted the blocks that began.
    others: Option<Box<Within>>,
}

/// The attempt of another layer with the same limiter, whose token another attempt of the same request has too.
#[derive(Clone)]
pub(crate) struct Within {
    policy: Arc<Policy>,
    token: Token,
    caller: Counted<'static>,
    /// Whether it is further out.
    is_outer: bool,
    /// The next one in a list.
    next: Option<Box<Within>>,
}

impl Within {
    pub(crate) const fn token(&self) -> Token {
        self.token
    }

    pub(crate) const fn policy(&self) -> &Arc<Policy> {
        &self.policy
    }

    /// Leaves those counters out that the attempt further out has too: it may have checked a password.
    fn retain_own(&self, slots: &mut Slots<'_>) {
        let outer = self.slots();
        slots.retain(|slot| outer.iter().all(|outer| outer.key != slot.key));
    }

    fn slots(&self) -> Slots<'_> {
        let mut slots = Slots::new();
        self.caller.push_slots(&self.policy, |_| true, &mut slots);
        slots
    }
}

impl Reservation {
    #[inline(always)]
    pub(crate) fn new(
        limiter: &LoginLimiter,
        policy: Arc<Policy>,
        token: Token,
        caller: Counted<'_>,
        standings: Standings,
        within: Option<Box<Within>>,
    ) -> Self {
        Self {
            limiter: limiter.clone(),
            token,
            report: Report::new(policy, &caller, standings),
            caller: caller.into_owned(),
            rare: within.map(|within| {
                Box::new(Rare {
                    others: Some(within),
                    ..Rare::default()
                })
            }),
        }
    }

    /// An attempt that an access rule allows, and that is not counted.
    #[cold]
    pub(crate) fn allowed(
        limiter: &LoginLimiter,
        policy: Arc<Policy>,
        token: Token,
        caller: Counted<'_>,
        allowed: Allowed,
        within: Option<Box<Within>>,
    ) -> Self {
        let standings = Standings::default();
        let mut attempt = Self::new(limiter, policy, token, caller, standings, within);
        attempt.rare_mut().allowed = Some(allowed);
        attempt
    }

    #[inline]
    fn rare(&self) -> Option<&Rare> {
        self.rare.as_deref()
    }

    #[cold]
    fn rare_mut(&mut self) -> &mut Rare {
        self.rare.get_or_insert_default()
    }

    #[inline]
    fn is_identified(&self) -> bool {
        self.rare().is_some_and(|rare| rare.is_identified)
    }

    pub(crate) const fn address(&self) -> IpAddr {
        self.caller.ip
    }

    pub(crate) fn user(&self) -> Option<&str> {
        if let Some(rare) = self.rare().filter(|rare| rare.is_identified) {
            return rare.typed.as_deref();
        }
        let user = self.caller.user.as_ref().map(User::typed);
        user.filter(|user| !user.is_empty())
    }

    pub(crate) fn identified(&self) -> Option<&str> {
        let user = self.caller.user.as_ref().map(User::typed);
        user.filter(|_| self.is_identified())
    }

    #[inline]
    pub(crate) fn access(&self) -> Option<&Allowed> {
        self.rare()?.allowed.as_ref()
    }

    #[inline]
    pub(crate) fn is_allowed(&self) -> bool {
        self.access().is_some()
    }

    pub(crate) fn allowed_by(&self) -> Option<&str> {
        self.access().map(|allowed| &*allowed.rule)
    }

    pub(crate) const fn caller(&self) -> &Counted<'static> {
        &self.caller
    }

    /// Whether it has the token of an attempt further out.
    #[inline]
    pub(crate) fn is_within(&self) -> bool {
        self.outer().is_some()
    }

    pub(crate) const fn token(&self) -> Token {
        self.token
    }

    pub(crate) const fn limiter(&self) -> &LoginLimiter {
        &self.limiter
    }

    pub(crate) const fn report(&self) -> &Report {
        &self.report
    }

    /// Whether a rule in shadow would have refused the attempt.
    #[inline]
    pub(crate) fn is_shadowed(&self) -> bool {
        self.report.has_shadowed() && !self.is_withdrawn()
    }

    /// What rules in shadow would have refused, but for those that an attempt further out has found too.
    #[cold]
    pub(crate) fn shadowed(&self) -> Vec<Refusal> {
        let policy = self.report.policy();
        let mut own = Slots::new();
        self.caller.push_slots(policy, |_| true, &mut own);
        if let Some(outer) = self.outer() {
            outer.retain_own(&mut own);
        }
        let is_own = |refusal: &Refusal| own.iter().any(|slot| slot.key.kind() == refusal.rule());
        self.report.shadowed().filter(is_own).collect()
    }

    /// Whether the attempt was refused when its user was identified.
    #[inline]
    pub(crate) fn is_withdrawn(&self) -> bool {
        self.withdrawn().is_some()
    }

    /// Why the attempt was refused when its user was identified.
    #[inline]
    pub(crate) fn withdrawn(&self) -> Option<&ReserveError> {
        self.rare()?.withdrawn.as_ref()
    }

    /// Whether the attempt has a user with a name.
    #[inline]
    pub(crate) fn has_user(&self) -> bool {
        (self.caller.user.as_ref()).is_some_and(|user| !user.name.is_empty())
    }

    /// Whether the attempt counts as the user without a name.
    #[inline]
    pub(crate) fn is_nameless(&self) -> bool {
        (self.caller.user.as_ref()).is_some_and(|user| user.name.is_empty())
    }

    /// A second handle to the same attempt. Only one of them may be settled.
    pub(crate) fn copy(&self) -> Self {
        Self {
            limiter: self.limiter.clone(),
            token: self.token,
            caller: self.caller.clone(),
            report: self.report.clone(),
            rare: self.rare.clone(),
        }
    }

    /// For an attempt of the same request in a layer further in.
    pub(crate) fn share(&self) -> Box<Within> {
        Box::new(Within {
            policy: Arc::clone(self.report.policy()),
            token: self.token,
            caller: self.caller.clone(),
            is_outer: true,
            next: None,
        })
    }

    /// Notes that an attempt further in with the same token has failed.
    pub(crate) fn set_failed_inside(&mut self, mut inner: Box<Within>) {
        inner.is_outer = false;
        let others = &mut self.rare_mut().others;
        inner.next = others.take();
        *others = Some(inner);
    }

    #[inline]
    fn others(&self) -> impl Iterator<Item = &Within> {
        let first = self.rare().and_then(|rare| rare.others.as_deref());
        std::iter::successors(first, |other| other.next.as_deref())
    }

    /// The attempt further out.
    #[inline]
    fn outer(&self) -> Option<&Within> {
        self.others().find(|other| other.is_outer)
    }

    fn outer_mut(&mut self) -> Option<&mut Within> {
        let mut other = self.rare.as_deref_mut()?.others.as_deref_mut();
        while let Some(within) = other {
            if within.is_outer {
                return Some(within);
            }
            other = within.next.as_deref_mut();
        }
        None
    }

    /// The positions of the counters whose blocks an attempt further in has noted: settling a failure again reports its
    /// block again.
    #[inline]
    fn noted_inside(&self, slots: &Slots<'_>) -> Vec<usize> {
        let mut noted = Vec::new();
        for inner in self.others().filter(|other| !other.is_outer) {
            let inner = inner.slots();
            let is_shared = |i: &usize| inner.iter().any(|inner| inner.key == slots[*i].key);
            noted.extend((0..slots.len()).filter(is_shared));
        }
        noted
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
        let policy = self.report.policy();
        (self.limiter).take_back(policy, self.token, &self.caller, Rule::counts_by_user);
        self.caller = (self.caller).with_user(policy, user.clone());
    }

    /// Takes the attempt back, because another attempt of the same request was refused.
    pub(crate) fn withdraw(&mut self, error: &ReserveError) {
        if !self.is_withdrawn() {
            let policy = self.report.policy();
            if !self.is_allowed() {
                (self.limiter).take_back(policy, self.token, &self.caller, |_| true);
            }
            self.rare_mut().withdrawn = Some(error.clone());
        }
    }

    /// Ends the attempt. Must be called once. If `is_reported`, an attempt of the same request has
    /// reported the outcome to observers.
    #[inline(always)]
    pub(crate) fn write_outcome(&self, outcome: Outcome, is_reported: bool) -> StoreFuture<()> {
        let is_withdrawn = self.is_withdrawn();
        (self.limiter).note_settled(self, outcome, is_reported || is_withdrawn);
        if is_withdrawn || self.is_allowed() {
            return StoreFuture::ready(Ok(()));
        }
        let Self {
            limiter,
            token,
            caller,
            ..
        } = self;
        let (policy, store) = (self.report.policy(), limiter.store());
        // Without a name it may be any account's, so its success takes back nothing but itself.
        if outcome == Outcome::Success && !self.is_nameless() {
            let succeeded = |mains| Settlement::Succeeded { mains };
            let by = Some(LiftedBy::Success);
            let cleaned_up = limiter.clean_up(policy, caller, &[*token], succeeded, by);
            let (Some(keep), Some(user)) = (policy.known_addresses(), &caller.user) else {
                return cleaned_up;
            };
            let remembered = store.remember(&user.known_addresses(), caller.address, keep);
            let remembered = limiter.measured(StoreCall::Remember, remembered);
            return StoreFuture::all(vec![cleaned_up, remembered]);
        }
        let mut slots = Slots::new();
        caller.push_slots(policy, |_| true, &mut slots);
        let settlement = match outcome {
            Outcome::Failure | Outcome::UnknownUser => Settlement::Failed,
            _ => Settlement::Canceled,
        };
        if let (Settlement::Canceled, Some(outer)) = (settlement, self.outer()) {
            outer.retain_own(&mut slots);
        }
        let settled = store.settle(&[*token], settlement, &slots, Duration::ZERO);
        let noted = self.noted_inside(&slots);
        let settled = limiter.measured(StoreCall::Settle, settled);
        drop(slots);
        match settled.at_once() {
            Ok(settled) => StoreFuture::ready(settled.map(|settled| {
                limiter.note_blocks(policy, (caller, *token), &settled, &noted);
            })),
            Err(settled) => {
                let (limiter, policy) = (limiter.clone(), Arc::clone(policy));
                let (caller, token) = (caller.clone(), *token);
                settled.map_ok(move |settled| {
                    limiter.note_blocks(&policy, (&caller, token), &settled, &noted);
                })
            }
        }
    }
}

/// Shows neither the user nor the values: logs must not name people.
impl fmt::Debug for Reservation {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("Attempt")
            .field("token", &self.token)
            .field("address", &self.caller.address)
            .field("report", &self.report)
            .finish_non_exhaustive()
    }
}
