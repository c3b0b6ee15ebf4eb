//! What travels with a request.

use std::{
    fmt,
    sync::{Arc, Mutex, MutexGuard, OnceLock, PoisonError},
};

use crate::{Attempt, LoginLimiter, Outcome, Report, ReserveError, events, store::StoreFuture};

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
    /// `None` if it is not counted, because the layer only watches, or if it is settled.
    attempt: Mutex<Option<Attempt>>,
    /// What was said first.
    said: OnceLock<Outcome>,
}

impl LoginAttempt {
    pub(crate) fn new(limiter: LoginLimiter, shadow: bool, attempt: Option<Attempt>) -> Self {
        Self {
            shared: Arc::new(Shared {
                limiter,
                shadow,
                attempt: Mutex::new(attempt),
                said: OnceLock::new(),
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
        let first = *self.shared.said.get_or_init(|| outcome);
        if first != outcome {
            events::said_twice(first, outcome);
        }
    }

    /// What was said, if anything was.
    pub fn said(&self) -> Option<Outcome> {
        self.shared.said.get().copied()
    }

    /// Names the user, when the layer could not or when the name turns out to mean an account, and
    /// reserves the attempt under the rules with a user as well.
    ///
    /// Do so before the password is checked. If it is refused, the whole attempt is taken back and
    /// there is nothing left to say: answer with the refusal.
    pub async fn identify(&self, user: &str) -> Result<(), ReserveError> {
        let Some(mut attempt) = self.lock().as_ref().map(Attempt::copy) else {
            return Ok(());
        };
        let identified = self.shared.limiter.identify(&mut attempt, user).await;
        // Unless it has been settled meanwhile: what was added then becomes a failure.
        if let Some(old) = &mut *self.lock() {
            *old = attempt;
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
    /// page. `None` if the attempt is not counted, or is settled.
    pub fn report(&self) -> Option<Report> {
        self.lock().as_ref().map(|attempt| attempt.report().clone())
    }

    /// How many more attempts may come, should this one fail: the least that any rule allows.
    pub fn remaining(&self) -> Option<u32> {
        self.lock()
            .as_ref()
            .and_then(|attempt| attempt.report().remaining())
    }

    pub(crate) fn settle(&self, outcome: Outcome) -> StoreFuture<()> {
        match self.lock().take() {
            Some(attempt) => self.shared.limiter.settle(attempt, outcome),
            None => StoreFuture::now(Ok(())),
        }
    }

    fn lock(&self) -> MutexGuard<'_, Option<Attempt>> {
        // What is inside is replaced whole, so it is whole after a panic too.
        self.shared
            .attempt
            .lock()
            .unwrap_or_else(PoisonError::into_inner)
    }
}

impl fmt::Debug for LoginAttempt {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("LoginAttempt")
            .field("said", &self.said())
            .finish_non_exhaustive()
    }
}
