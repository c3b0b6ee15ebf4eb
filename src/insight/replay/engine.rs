//! Attempts under a policy, on a clock that follows the record.

use std::{borrow::Cow, net::Ipv4Addr, sync::Arc, time::Duration};

use super::who::Who;
use crate::{
    Caller, Outcome, Policy, Refusal, Token,
    algorithm::{Millis, Standing},
    attempt::{Counted, Slots, refusal_of},
    clock::ManualClock,
    normalize,
    store::{MemoryStore, Settlement, Store, StoreFuture},
};

/// The real store, slots and algorithms. Not a `LoginLimiter`, whose metrics, logs and events are of logins that
/// take place.
pub(super) struct Engine {
    pub(super) policy: Policy,
    store: MemoryStore,
    clock: Arc<ManualClock>,
}

/// What became of an attempt.
pub(super) enum Replayed {
    Refused(Refusal),
    /// With the blocks that it began, by position of the rule in the policy.
    Admitted(Vec<(usize, Standing)>),
}

impl Engine {
    pub(super) fn new(policy: Policy, capacity: usize) -> Self {
        let clock = Arc::new(ManualClock::at(0));
        Self {
            policy,
            store: MemoryStore::with_capacity(capacity).with_clock(Arc::clone(&clock)),
            clock,
        }
    }

    pub(super) fn set_time(&self, now: Millis) {
        self.clock.set(now);
    }

    /// Reserves and settles an attempt, both now. `None` if its counters exceed the capacity.
    pub(super) fn attempt(
        &self,
        who: &Who<'_>,
        token: Token,
        outcome: Outcome,
    ) -> Option<Replayed> {
        let (policy, caller) = (&self.policy, self.caller(who));
        let mut slots = Slots::new();
        caller.push_slots(policy, |_| true, &mut slots);
        let standings = ready(self.store.reserve(token, policy.lease(), &slots))?;
        if let Some(refusal) = refusal_of(policy, caller.scope(), &standings) {
            return Some(Replayed::Refused(refusal));
        }
        // As `Attempt::settle` does.
        let settlement = match outcome {
            Outcome::Success => {
                self.succeed(&caller, token)?;
                return Some(Replayed::Admitted(Vec::new()));
            }
            Outcome::Failure | Outcome::UnknownUser => Settlement::Failed,
            _ => Settlement::Canceled,
        };
        let settled = ready((self.store).settle(&[token], settlement, &slots, Duration::ZERO))?;
        let rules = || policy.applying(caller.scope());
        let position = |slot: usize| {
            let rule = rules().nth(slot)?;
            policy
                .rules()
                .iter()
                .position(|known| std::ptr::eq(known, rule))
        };
        let began = settled.began.into_iter();
        let began = began.filter_map(|(slot, standing)| Some((position(slot)?, standing)));
        Some(Replayed::Admitted(began.collect()))
    }

    fn succeed(&self, caller: &Counted<'_>, token: Token) -> Option<()> {
        let mut slots = Slots::new();
        let mains = caller.push_mains_and_others(&self.policy, &mut slots);
        let succeeded = Settlement::Succeeded { mains };
        ready((self.store).settle(&[token], succeeded, &slots, Duration::ZERO))?;
        if let (Some(keep), Some(user)) = (self.policy.known_addresses(), &caller.user) {
            let key = user.known_addresses();
            ready(self.store.remember(&key, caller.address, keep))?;
        }
        Some(())
    }

    /// Clears the counter of this caller under a rule, as an operator did.
    pub(super) fn clear(&self, who: &Who<'_>, rule: &str) -> Option<()> {
        let caller = self.caller(who);
        let mut slots = Slots::new();
        caller.push_slots(&self.policy, |known| known.name() == rule, &mut slots);
        let cleared = Settlement::Cleared { mains: slots.len() };
        ready((self.store).settle(&[], cleared, &slots, Duration::ZERO)).map(drop)
    }

    /// Removes the failures of this user at this address from all counters but those of second factors, as an
    /// operator did.
    pub(super) fn forgive(&self, who: &Who<'_>) -> Option<()> {
        let mut caller = self.caller(who);
        caller.scope.is_second_factor = false;
        let mut slots = Slots::new();
        let mains = caller.push_mains_and_others(&self.policy, &mut slots);
        let forgiven = Settlement::Forgiven { mains };
        ready((self.store).settle(&[], forgiven, &slots, Duration::ZERO)).map(drop)
    }

    fn caller<'w>(&self, who: &'w Who<'_>) -> Counted<'w> {
        // To rules without an address it makes no difference.
        let ip = (who.address).map_or(Ipv4Addr::UNSPECIFIED.into(), |address| address.ip());
        let mut caller = Caller::new(ip).with_second_factor(who.second_factor);
        let Some(name) = who.name.as_deref() else {
            return Counted::new(caller, &self.policy, normalize);
        };
        // Names are in normal form, by the app's own normalizer. What was typed is a spelling of it, unless an
        // account was identified by it.
        let typed = (who.typed).filter(|typed| normalize(typed) == name);
        caller = caller.with_user(typed.unwrap_or(name));
        Counted::new(caller, &self.policy, |typed| {
            if typed == name {
                Cow::Borrowed(typed)
            } else {
                Cow::Owned(name.to_owned())
            }
        })
    }
}

/// The result of a store in memory, which is ready. `None` if the store is full.
fn ready<T>(call: StoreFuture<T>) -> Option<T> {
    call.at_once().ok()?.ok()
}
