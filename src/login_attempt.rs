//! What travels with a request.

use std::{
    fmt,
    sync::{Arc, Mutex, MutexGuard, OnceLock, PoisonError},
};

use crate::{
    Attempt, LoginLimiter, Outcome, Report, ReserveError, events,
    store::{StoreError, StoreErrorKind, StoreFuture},
};

/// The attempt that a request is, as its handler sees it: in the request's extensions, and in axum as
/// an extractor (feature `axum`).
///
/// Say how it went; the first word counts. Cloning is cheap, and clones are the same attempt.
///
/// ```
/// use tower_login_rate_limit::LoginAttempt;
///
/// # fn password_is_right() -> bool { true }
/// fn handle(request: http::Request<()>) -> http::StatusCode {
///     let attempt = request.extensions().get::<LoginAttempt>().expect("the layer is there");
///     if password_is_right() {
///         attempt.succeeded();
///         http::StatusCode::OK
///     } else {
///         attempt.failed();
///         http::StatusCode::UNAUTHORIZED
///     }
/// }
/// ```
#[derive(Clone)]
pub struct LoginAttempt {
    shared: Arc<Shared>,
}

struct Shared {
    limiter: LoginLimiter,
    shadow: bool,
    state: Mutex<State>,
    /// What was said first.
    said: OnceLock<Outcome>,
    /// The attempt of a layer further out, which hears what this one hears.
    outer: Option<LoginAttempt>,
}

#[allow(clippy::large_enum_variant)] // it nearly always is the large one
enum State {
    UnderWay(Attempt),
    /// The layer only watches, and this one would have been refused.
    Uncounted,
    Settled,
}

impl LoginAttempt {
    /// `attempt` is `None` for one that is let through without being counted.
    pub(crate) fn new(
        limiter: LoginLimiter,
        shadow: bool,
        attempt: Option<Attempt>,
        outer: Option<Self>,
    ) -> Self {
        Self {
            shared: Arc::new(Shared {
                limiter,
                shadow,
                state: Mutex::new(attempt.map_or(State::Uncounted, State::UnderWay)),
                said: OnceLock::new(),
                outer,
            }),
        }
    }

    /// The person is who they say, with every factor that is asked for. Takes back this user's own
    /// failures.
    pub fn succeeded(&self) {
        self.say(Outcome::Success);
    }

    /// Wrong password, wrong code.
    pub fn failed(&self) {
        self.say(Outcome::Failure);
    }

    /// There is no such user. Counted like a failure; answer it like one, too.
    pub fn unknown_user(&self) {
        self.say(Outcome::UnknownUser);
    }

    /// The password is right and another factor is still to come: its request is an attempt of its
    /// own.
    pub fn mfa_pending(&self) {
        self.say(Outcome::MfaPending);
    }

    /// Neither right nor wrong: the request makes no sense, or the server failed.
    pub fn not_an_attempt(&self) {
        self.say(Outcome::NotAnAttempt);
    }

    /// Says how it went. The first word counts; another one after it is reported and changes
    /// nothing.
    pub fn say(&self, outcome: Outcome) {
        if let Some(outer) = &self.shared.outer {
            outer.say(outcome);
        }
        let first = *self.shared.said.get_or_init(|| outcome);
        if first != outcome {
            events::said_twice(first, outcome);
        } else if matches!(*self.lock(), State::Settled) {
            events::said_late(outcome);
        }
    }

    /// What was said, if anything was.
    pub fn said(&self) -> Option<Outcome> {
        self.shared.said.get().copied()
    }

    /// Names the user, when the layer could not or when the name turns out to mean an account, and
    /// reserves the attempt under the rules with a user as well.
    ///
    /// Do so before the password is checked, and check one password: an attempt is one guess. If it
    /// is refused, the whole attempt is taken back and there is nothing left to say: answer with the
    /// error. An attempt that is over, because its request was given up, gives an error too.
    pub async fn identify(&self, user: &str) -> Result<(), ReserveError> {
        let mut attempt = match &*self.lock() {
            State::UnderWay(attempt) => attempt.copy(),
            State::Uncounted => return Ok(()),
            State::Settled => return Err(over()),
        };
        let identified = self.shared.limiter.identify(&mut attempt, user).await;
        // If it was settled meanwhile, what was added becomes a failure when its lease ends.
        match &mut *self.lock() {
            State::UnderWay(old) => *old = attempt,
            State::Uncounted | State::Settled => return Err(over()),
        }
        let Err(error) = identified else {
            return Ok(());
        };
        events::denied(&error.clone().into(), self.shared.shadow);
        match self.shared.shadow {
            true => Ok(()),
            false => Err(error),
        }
    }

    /// How each rule stood when the attempt was admitted, this attempt counted: for the app's own
    /// page. `None` if the attempt is not counted, or is over.
    pub fn report(&self) -> Option<Report> {
        match &*self.lock() {
            State::UnderWay(attempt) => Some(attempt.report().clone()),
            State::Uncounted | State::Settled => None,
        }
    }

    /// How many attempts count, this one among them, under the rule that has the least left.
    pub fn usage(&self) -> Option<u32> {
        let report = self.report()?;
        let least = report
            .iter()
            .min_by_key(|(_, standing)| standing.remaining());
        least.map(|(_, standing)| standing.usage)
    }

    /// How many more attempts may come, should this one fail: the least that any rule allows.
    pub fn remaining(&self) -> Option<u32> {
        match &*self.lock() {
            State::UnderWay(attempt) if attempt.withdrawn.is_some() => Some(0),
            State::UnderWay(attempt) => attempt.report().remaining(),
            State::Uncounted | State::Settled => None,
        }
    }

    /// Whether it was refused while it was under way.
    pub(crate) fn is_withdrawn(&self) -> bool {
        matches!(&*self.lock(), State::UnderWay(attempt) if attempt.withdrawn.is_some())
    }

    pub(crate) fn settle(&self, outcome: Outcome) -> StoreFuture<()> {
        match std::mem::replace(&mut *self.lock(), State::Settled) {
            State::UnderWay(attempt) => self.shared.limiter.settle(attempt, outcome),
            State::Uncounted | State::Settled => StoreFuture::now(Ok(())),
        }
    }

    fn lock(&self) -> MutexGuard<'_, State> {
        // What is inside is replaced whole, so it is whole after a panic too.
        self.shared
            .state
            .lock()
            .unwrap_or_else(PoisonError::into_inner)
    }
}

fn over() -> ReserveError {
    StoreError::new(
        StoreErrorKind::Settled,
        "the login attempt is over: it was settled when its request ended",
    )
    .into()
}

impl fmt::Debug for LoginAttempt {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("LoginAttempt")
            .field("said", &self.said())
            .finish_non_exhaustive()
    }
}
