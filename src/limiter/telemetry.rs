//! What is recorded of attempts: events for observers, and metrics.

use std::sync::Arc;

use super::{Access, LoginLimiter};
use crate::{
    Outcome, Refusal, ReserveError, Token,
    access::Action,
    attempt::{Counted, Reservation, User},
    event::{Event, EventUser, Observe, ObserverStatus, UserDisplay, What, observers::Observers},
    insight::Insight,
    metrics::{Metrics, StoreCall},
    store::{StoreChange, StoreFuture, StoreStatus},
};

/// Where events and metrics go.
#[derive(Clone, Default)]
pub(super) struct Telemetry {
    insight: Option<Insight>,
    pub(super) observers: Observers,
    display: UserDisplay,
    pub(super) metrics: Arc<Metrics>,
}

/// Observers, and what they see.
impl LoginLimiter {
    /// A limiter whose metrics are recorded nowhere: beside the app's own, whose metrics have the same names.
    #[cfg(feature = "console")]
    pub(crate) fn unmeasured(policy: crate::Policy, store: impl crate::store::Store) -> Self {
        crate::metrics::without_recorder(|| {
            let limiter = Self::new(policy, store);
            // Both are registered when they are first used, which must be here.
            limiter.metrics().set_policy_version(0);
            limiter.in_force().rule_metrics.register();
            limiter
        })
    }

    /// Adds an observer, which receives an [`Event`] for everything that matters, on a thread of its own. See
    /// [`event`](crate::event).
    ///
    /// ```
    /// # use tower_login_rate_limit::{LoginLimiter, Policy, store::MemoryStore};
    /// use tower_login_rate_limit::event::{Event, UserDisplay, What};
    ///
    /// let limiter = LoginLimiter::new(Policy::default(), MemoryStore::new())
    ///     .with_user_display(UserDisplay::Masked)
    ///     .with_observer(|event: &Event| {
    ///         if let What::BlockBegan { rule, .. } = &event.what {
    ///             println!("{rule} blocks {:?} at {:?}", event.user, event.address);
    ///         }
    ///     });
    /// ```
    #[must_use]
    pub fn with_observer(self, observer: impl Observe) -> Self {
        self.with(|shared| {
            let telemetry = &mut shared.telemetry;
            telemetry.observers = telemetry.observers.clone().with(observer);
        })
    }

    /// The store becomes unavailable or available again.
    pub(super) fn note_store_change(&self, change: &StoreChange) {
        self.metrics().set_store_status(self.store().status());
        self.emit(|| Event::new(change.clone().into()));
    }

    /// Keeps this insight up to date: who guesses most, whether it looks like an attack, which blocks were wrong. What
    /// it finds is emitted as [`What::Signal`] and [`What::WrongBlock`], and counted by metrics; in a
    /// [fleet](Insight#in-a-fleet) by one process.
    #[must_use]
    pub fn with_insight(self, insight: Insight) -> Self {
        let limiter = self.downgrade();
        insight.emit_by(move |found| {
            if let Some(limiter) = limiter.upgrade() {
                limiter.note_found(found);
            }
        });
        let finds = insight.clone();
        let limiter = self.with_observer(move |event: &Event| {
            for found in finds.record(event) {
                finds.emit_or_share(found);
            }
        });
        limiter.with(|shared| shared.telemetry.insight = Some(insight))
    }

    /// The insight that is kept up to date, if any.
    pub fn insight(&self) -> Option<&Insight> {
        self.shared.telemetry.insight.as_ref()
    }

    /// Reports what insight has found.
    fn note_found(&self, found: Event) {
        match &found.what {
            What::Signal(signal) => self.metrics().signal(signal),
            What::WrongBlock { rule, .. } => self.in_force().rule_metrics.wrong_block(rule),
            _ => {}
        }
        self.emit(|| found);
    }

    /// Sets how users are shown in everything that leaves the process: logs, files, streams, lists of blocks. The
    /// default is [`UserDisplay::Hidden`].
    #[must_use]
    pub fn with_user_display(self, display: UserDisplay) -> Self {
        self.with(|shared| shared.telemetry.display = display)
    }

    /// What has become of the events of each observer, in the order in which they were added.
    pub fn observers(&self) -> Vec<ObserverStatus> {
        self.shared.telemetry.observers.status()
    }

    /// Waits until the observers have received what has happened so far, at most five seconds. Returns whether
    /// all of them have.
    pub async fn observed(&self) -> bool {
        self.shared.telemetry.observers.flush().await
    }

    /// Emits an event, if there is an observer.
    #[inline]
    pub(crate) fn emit(&self, make: impl FnOnce() -> Event) {
        self.shared.telemetry.observers.emit(make);
    }

    /// Whether there is an observer.
    pub(super) fn is_observed(&self) -> bool {
        !self.shared.telemetry.observers.is_empty()
    }

    #[inline]
    pub(crate) fn metrics(&self) -> &Metrics {
        &self.shared.telemetry.metrics
    }

    /// Measures a call of the store: how long it takes if it has to be waited for, and whether it fails.
    #[inline]
    pub(crate) fn measured<T: Send + 'static>(
        &self,
        call: StoreCall,
        future: StoreFuture<T>,
    ) -> StoreFuture<T> {
        if !Metrics::IS_ENABLED {
            return future;
        }
        match future.at_once() {
            Ok(result) => {
                self.measure_status();
                StoreFuture::ready(result.inspect_err(|error| {
                    self.metrics().store_error(error.kind());
                }))
            }
            Err(future) => {
                let (limiter, call) = (self.clone(), self.metrics().call(call));
                StoreFuture::pending(async move {
                    let result = future.await;
                    limiter.metrics().called(call);
                    limiter.measure_status();
                    result.inspect_err(|error| limiter.metrics().store_error(error.kind()))
                })
            }
        }
    }

    /// Measures the state of a store that keeps its counters elsewhere: with each call, since a limiter need not have
    /// a task for it.
    fn measure_status(&self) {
        let status = self.store().status();
        if status != StoreStatus::default() {
            self.metrics().set_store_status(status);
        }
    }

    /// A user as events show it, by its names as typed and in normal form.
    pub(crate) fn shown_user(&self, typed: &str, name: &str) -> Option<EventUser> {
        let display = &self.shared.telemetry.display;
        (!name.is_empty()).then(|| EventUser::new(typed, name, display))
    }

    fn user_of(&self, user: Option<&User<'_>>) -> Option<EventUser> {
        user.and_then(|user| self.shown_user(user.typed(), &user.name))
    }

    /// Why there is no attempt.
    #[inline]
    pub(super) fn note_rejected(&self, caller: &Counted<'_>, error: &ReserveError) {
        match error {
            ReserveError::Refused(refusal) => self.note_refused(caller, refusal),
            ReserveError::Store(error) => {
                self.emit(|| {
                    let what = What::Undecided {
                        kind: error.kind(),
                        shadow: caller.is_shadowed,
                    };
                    self.event(what, caller)
                });
            }
            ReserveError::Denied(_) | ReserveError::Settled => {}
        }
    }

    /// A rule refuses an attempt, or would if the layer were not in shadow mode.
    #[inline]
    pub(crate) fn note_refused(&self, caller: &Counted<'_>, refusal: &Refusal) {
        self.note_refusal(caller, refusal, caller.is_shadowed);
    }

    #[inline]
    fn note_refusal(&self, caller: &Counted<'_>, refusal: &Refusal, shadow: bool) {
        let reason = refusal.reason();
        // Looking up what is in force costs as much as a good part of the refusal.
        if Metrics::IS_ENABLED {
            let in_force = self.in_force();
            let metrics = &in_force.rule_metrics;
            metrics.refused(refusal.rule(), reason, shadow);
        }
        self.emit(|| {
            let what = What::Refused {
                rule: refusal.shared_rule(),
                reason,
                usage: refusal.usage(),
                limit: refusal.limit(),
                lifts: refusal.lifts(),
                shadow,
            };
            self.event(what, caller)
        });
    }

    /// An access rule decides in place of the limits.
    #[inline]
    pub(crate) fn note_access(&self, caller: &Counted<'_>, token: Token, access: &Access) {
        let (rule, action) = match access {
            Access::Limited => return,
            Access::Allowed(allowed) => (&*allowed.rule, Action::Allow),
            Access::Denied(denied) => (denied.rule(), Action::Deny),
        };
        self.metrics().access_rule_hit(action);
        self.emit(|| {
            let what = What::AccessRuleHit {
                rule: rule.into(),
                action,
            };
            self.event(what, caller).with_attempt(token)
        });
    }

    /// An attempt that was admitted ends, unless a layer further in has reported that.
    #[inline]
    pub(crate) fn note_settled(&self, attempt: &Reservation, outcome: Outcome, is_reported: bool) {
        // Of attempts that share a token, the outermost was counted as admitted.
        if !attempt.is_within() {
            self.metrics().no_longer_in_flight();
        }
        if attempt.is_shadowed() {
            for refusal in attempt.shadowed() {
                self.note_refusal(attempt.caller(), &refusal, true);
            }
        }
        if is_reported {
            return;
        }
        self.metrics().settled(outcome);
        self.emit(|| {
            let caller = attempt.caller();
            let what = What::Settled {
                outcome,
                second_factor: caller.scope().is_second_factor,
            };
            let user = caller.user.as_ref();
            let typed = attempt.user().or(user.map(User::typed));
            let shown = typed.zip(user);
            Event::new(what)
                .with_address(caller.address)
                .with_user(shown.and_then(|(typed, user)| self.shown_user(typed, &user.name)))
                .with_attempt(attempt.token())
        });
    }

    /// An event of this caller.
    pub(super) fn event(&self, what: What, caller: &Counted<'_>) -> Event {
        let user = self.user_of(caller.user.as_ref());
        Event::new(what)
            .with_address(caller.address)
            .with_user(user)
    }
}

impl From<StoreChange> for What {
    fn from(change: StoreChange) -> Self {
        match change {
            StoreChange::Down(error) => Self::StoreDown {
                kind: error.kind(),
                error: error.to_string().into(),
            },
            StoreChange::Up { down_for, pending } => Self::StoreUp {
                down_for,
                pending: pending as u64,
            },
            StoreChange::Replayed { replayed, dropped } => {
                Self::JournalReplayed { replayed, dropped }
            }
        }
    }
}

impl std::fmt::Debug for Telemetry {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        self.observers.fmt(f)
    }
}
