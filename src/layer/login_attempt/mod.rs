//! The handle to an attempt that handlers receive.

mod nested;
#[cfg(feature = "axum")]
mod rendered;
mod settle;

use std::{
    fmt,
    net::IpAddr,
    sync::{
        Arc, Mutex, MutexGuard, OnceLock, PoisonError,
        atomic::{AtomicBool, Ordering},
    },
};

use super::Config;
use crate::{
    Outcome, Period, Report, ReserveError, attempt::Reservation, logging, response::Denial,
};

/// The attempt that a request stands for: found in the request's extensions, and an extractor in axum
/// (feature `axum`).
///
/// The handler records the outcome; the first one counts. Cloning is cheap, and clones are the same
/// attempt.
///
/// ```
/// use tower_login_rate_limit::LoginAttempt;
///
/// # fn is_correct_password() -> bool { true }
/// fn handle(request: http::Request<()>) -> http::StatusCode {
///     let attempt = request.extensions().get::<LoginAttempt>().expect("the layer is there");
///     if is_correct_password() {
///         attempt.succeeded();
///         http::StatusCode::OK
///     } else {
///         attempt.failed();
///         http::StatusCode::UNAUTHORIZED
///     }
/// }
/// ```
pub struct LoginAttempt {
    shared: Arc<Shared>,
}

struct Shared {
    config: Arc<Config>,
    state: Mutex<State>,
    /// The first outcome that was recorded.
    outcome: OnceLock<Outcome>,
    /// Whether the handler has begun to check the password. Written while the state is locked.
    is_checking: AtomicBool,
    /// Whether a handler, or something else inside of the layer, has cloned the handle.
    is_taken: AtomicBool,
    /// Whether the handler has called a method of the handle.
    is_used: AtomicBool,
    /// Whether a request has passed a layer of the same limiter further in, and counts under the same token.
    is_shared: AtomicBool,
    /// Whether a layer of the same limiter has found another user in the same request.
    is_contradicted: AtomicBool,
    /// Whether a layer of the same limiter further in has reported how the attempt ended.
    is_reported: AtomicBool,
    /// The attempt of a layer further out, which receives the same outcomes.
    outer: OnceLock<LoginAttempt>,
    /// What the responder reads of the request, to render what the handler returns. Dropped when the attempt is settled:
    /// extensions of the app may hold this attempt.
    #[cfg(feature = "axum")]
    head: Mutex<Option<Box<http::request::Parts>>>,
}

#[allow(clippy::large_enum_variant)] // nearly every attempt is of the large variant
pub(super) enum State {
    Reserved(Reservation),
    /// Denied by a layer in shadow mode: passed without being counted.
    Shadowed(Denial),
    Settled,
}

impl LoginAttempt {
    #[inline(always)]
    pub(super) fn new(config: &Arc<Config>, state: State) -> Self {
        Self {
            shared: Arc::new(Shared {
                config: Arc::clone(config),
                state: Mutex::new(state),
                outcome: OnceLock::new(),
                is_checking: AtomicBool::new(false),
                is_taken: AtomicBool::new(false),
                is_used: AtomicBool::new(false),
                is_shared: AtomicBool::new(false),
                is_contradicted: AtomicBool::new(false),
                is_reported: AtomicBool::new(false),
                outer: OnceLock::new(),
                #[cfg(feature = "axum")]
                head: Mutex::new(None),
            }),
        }
    }

    /// A clone that is not one of the handler's.
    #[inline]
    pub(super) fn handle(&self) -> Self {
        Self {
            shared: Arc::clone(&self.shared),
        }
    }

    /// Marks that the handler begins to check the password, for a layer
    /// [with marked checks](crate::LoginRateLimitLayer::with_marked_checks): a request that is dropped
    /// afterwards is a failure, and one that is dropped before is not an attempt. Other layers need no mark.
    ///
    /// Call it after everything that may be slow and before the password is compared, in the task that
    /// compares it. After an error the password must not be checked.
    ///
    /// # Errors
    ///
    /// [`ReserveError::Settled`] if the request has ended, and with it the attempt;
    /// [`ReserveError::Refused`] if the attempt was refused when its user was identified.
    pub fn begin_check(&self) -> Result<(), ReserveError> {
        self.note_use();
        if let Some(outer) = self.outer() {
            outer.begin_check()?;
        }
        let state = self.lock();
        match &*state {
            State::Settled => return Err(ReserveError::Settled),
            State::Reserved(attempt) if !self.shared.config.shadow => {
                if let Some(error) = attempt.withdrawn() {
                    return Err(error.clone());
                }
            }
            State::Reserved(_) | State::Shadowed(_) => {}
        }
        self.shared.is_checking.store(true, Ordering::Relaxed);
        Ok(())
    }

    /// Records [`Outcome::Success`]: the user has authenticated with every factor that is required.
    pub fn succeeded(&self) {
        self.record(Outcome::Success);
    }

    /// Records [`Outcome::Failure`]: wrong password, wrong code.
    pub fn failed(&self) {
        self.record(Outcome::Failure);
    }

    /// Records [`Outcome::UnknownUser`], which counts as a failure. Respond as to a wrong password.
    pub fn unknown_user(&self) {
        self.record(Outcome::UnknownUser);
    }

    /// Records [`Outcome::MfaPending`]: the password is correct, and the request with the next factor is
    /// an attempt of its own.
    pub fn mfa_pending(&self) {
        self.record(Outcome::MfaPending);
    }

    /// Records [`Outcome::NotAnAttempt`]: the request is malformed, or the server failed.
    pub fn not_an_attempt(&self) {
        self.record(Outcome::NotAnAttempt);
    }

    /// Records the outcome. The first one counts; a different one after it is logged and changes nothing.
    pub fn record(&self, outcome: Outcome) {
        if let Some(outer) = self.shared.outer.get() {
            outer.record(outcome);
        }
        let first = *self.shared.outcome.get_or_init(|| outcome);
        if first != outcome {
            logging::conflicting_outcomes(first, outcome);
        } else if matches!(*self.lock(), State::Settled) {
            logging::late_outcome(outcome);
        }
    }

    /// The outcome that was recorded, if any.
    pub fn outcome(&self) -> Option<Outcome> {
        self.note_use();
        self.recorded()
    }

    #[inline]
    pub(super) fn recorded(&self) -> Option<Outcome> {
        self.shared.outcome.get().copied()
    }

    /// Notes that a handler is at work, in the attempts of layers further out too.
    fn note_use(&self) {
        for attempt in self.and_outers() {
            attempt.shared.is_used.store(true, Ordering::Relaxed);
        }
    }

    /// Whether the handle was cloned, as extractors do.
    pub(super) fn is_taken(&self) -> bool {
        self.shared.is_taken.load(Ordering::Relaxed)
    }

    /// Whether the handler has called a method of the handle.
    pub(super) fn is_used(&self) -> bool {
        self.shared.is_used.load(Ordering::Relaxed)
    }

    /// Names the user, if the layer could not or if the name turns out to belong to an account, and
    /// reserves the attempt under the rules by user as well, in every layer that the request has passed.
    ///
    /// Call it before the password is checked, and check one password: an attempt is one guess.
    ///
    /// # Errors
    ///
    /// [`ReserveError::Refused`] if a rule by user refuses the attempt, which is then taken back as a
    /// whole, in every layer: respond with the error, no outcome is needed. [`ReserveError::Store`] if the store can't
    /// decide. [`ReserveError::Settled`] if the attempt was settled because its request ended.
    pub async fn identify(&self, user: &str) -> Result<(), ReserveError> {
        self.note_use();
        // From the outside in, as the request came. One that has an outcome has made its guess.
        let mut attempts: Vec<_> = self.and_outers().collect();
        attempts.retain(|attempt| std::ptr::eq(*attempt, self) || attempt.recorded().is_none());
        for attempt in attempts.iter().rev() {
            let identified = attempt.identify_one(user).await;
            if let Err(error @ (ReserveError::Refused(_) | ReserveError::Denied(_))) = &identified {
                for attempt in &attempts {
                    attempt.withdraw(error);
                }
            }
            identified?;
        }
        for attempt in attempts {
            let is_contradicted = &attempt.shared.is_contradicted;
            is_contradicted.store(false, Ordering::Relaxed);
        }
        Ok(())
    }

    async fn identify_one(&self, user: &str) -> Result<(), ReserveError> {
        let mut attempt = match &*self.lock() {
            State::Reserved(attempt) => attempt.copy(),
            State::Shadowed(_) => return Ok(()),
            State::Settled => return Err(ReserveError::Settled),
        };
        let identified = attempt.identify(user).await;
        let denial = identified
            .as_ref()
            .err()
            .map(|error| denial_of(Denial::from(error.clone()), &attempt));
        // If it was settled meanwhile, what was added becomes a failure when its lease ends.
        match &mut *self.lock() {
            State::Reserved(old) => *old = attempt,
            State::Shadowed(_) | State::Settled => return Err(ReserveError::Settled),
        }
        let Err(error) = identified else {
            return Ok(());
        };
        let Config {
            shadow, notices, ..
        } = &*self.shared.config;
        let shadow = *shadow;
        if let Some(denial) = denial {
            logging::denied(&denial, &notices.samples, shadow);
        }
        if shadow { Ok(()) } else { Err(error) }
    }

    /// The client's address. `None` if it could not be read, in shadow mode, or if the attempt is settled.
    pub fn address(&self) -> Option<IpAddr> {
        self.note_use();
        match &*self.lock() {
            State::Reserved(attempt) => Some(attempt.address()),
            State::Shadowed(denial) => denial.address(),
            State::Settled => None,
        }
    }

    /// The user as it was typed. `None` if the layer found none, or if the attempt is settled.
    pub fn user(&self) -> Option<String> {
        self.note_use();
        match &*self.lock() {
            State::Reserved(attempt) => attempt.user().map(str::to_owned),
            State::Shadowed(denial) => denial.user().map(str::to_owned),
            State::Settled => None,
        }
    }

    /// The user that was [identified](Self::identify) last. `None` if the attempt is settled.
    pub fn identified(&self) -> Option<String> {
        self.note_use();
        match &*self.lock() {
            State::Reserved(attempt) => attempt.identified().map(str::to_owned),
            State::Shadowed(_) | State::Settled => None,
        }
    }

    /// The name of the access rule that allows the request, which is not counted then.
    pub fn allowed_by(&self) -> Option<String> {
        self.note_use();
        match &*self.lock() {
            State::Reserved(attempt) => attempt.allowed_by().map(str::to_owned),
            State::Shadowed(_) | State::Settled => None,
        }
    }

    /// How each rule stood when the attempt was admitted, this attempt included. `None` if the attempt is
    /// not counted, or is settled.
    pub fn report(&self) -> Option<Report> {
        self.note_use();
        self.standings()
    }

    pub(super) fn standings(&self) -> Option<Report> {
        match &*self.lock() {
            State::Reserved(attempt) => Some(attempt.report().clone()),
            State::Shadowed(_) | State::Settled => None,
        }
    }

    /// The number of attempts that count, this one included, under the rule that admits the fewest more. Rules in
    /// shadow are left out.
    pub fn usage(&self) -> Option<u32> {
        let report = self.report()?;
        let least = report
            .enforced()
            .min_by_key(|(_, standing)| standing.remaining());
        least.map(|(_, standing)| standing.usage)
    }

    /// The number of attempts that all rules together still admit if this one fails.
    pub fn remaining(&self) -> Option<u32> {
        self.note_use();
        match &*self.lock() {
            State::Reserved(attempt) if attempt.is_withdrawn() => Some(0),
            State::Reserved(attempt) => attempt.report().remaining(),
            State::Shadowed(_) | State::Settled => None,
        }
    }

    /// How long the next attempt is refused if this one fails; `None` if it is not. For a page that answers a
    /// wrong password with "blocked for 24 hours". Asks no store.
    ///
    /// A lower bound, [`Report::block_if_failed`] has the details. If the attempt was refused when its user was
    /// identified, this is how long that lasts.
    pub fn block_if_failed(&self) -> Option<Period> {
        self.note_use();
        match &*self.lock() {
            State::Reserved(attempt) => match attempt.withdrawn() {
                Some(ReserveError::Refused(refusal)) => Some(refusal.lifts()),
                Some(ReserveError::Denied(denied)) => Some(denied.lifts()),
                Some(ReserveError::Store(_) | ReserveError::Settled) => None,
                None => attempt.report().block_if_failed(),
            },
            State::Shadowed(_) | State::Settled => None,
        }
    }

    /// Whether the attempt was refused when its user was identified.
    pub(super) fn is_withdrawn(&self) -> bool {
        matches!(&*self.lock(), State::Reserved(attempt) if attempt.is_withdrawn())
    }

    /// Takes the attempt back, because that of another layer was refused.
    fn withdraw(&self, error: &ReserveError) {
        if let State::Reserved(attempt) = &mut *self.lock() {
            attempt.withdraw(error);
        }
    }

    /// Whether the attempt has a user with a name.
    pub(super) fn has_user(&self) -> bool {
        matches!(&*self.lock(), State::Reserved(attempt) if attempt.has_user())
    }

    /// Why the attempt would have been denied, if the layer is in shadow mode.
    pub(super) fn shadowed(&self) -> Option<Denial> {
        match &*self.lock() {
            State::Shadowed(denial) => Some(denial.clone()),
            State::Reserved(_) | State::Settled => None,
        }
    }

    #[inline]
    pub(super) fn config(&self) -> &Config {
        &self.shared.config
    }

    #[inline]
    fn lock(&self) -> MutexGuard<'_, State> {
        // The state is replaced as a whole, so it is consistent after a panic too.
        let state = self.shared.state.lock();
        state.unwrap_or_else(PoisonError::into_inner)
    }
}

/// A denial with whose attempt it is.
fn denial_of(denial: Denial, attempt: &Reservation) -> Denial {
    denial
        .with_address(attempt.address())
        .with_user(attempt.user().map(str::to_owned))
        .with_identified(attempt.identified().map(str::to_owned))
}

impl Clone for LoginAttempt {
    fn clone(&self) -> Self {
        for attempt in self.and_outers() {
            attempt.shared.is_taken.store(true, Ordering::Relaxed);
        }
        self.handle()
    }
}

impl fmt::Debug for LoginAttempt {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("LoginAttempt")
            .field("outcome", &self.recorded())
            .finish_non_exhaustive()
    }
}
