//! An attempt to log in, from its reservation to its outcome.

mod caller;
mod future;
mod id;
mod refusal;
mod report;
mod reservation;
#[cfg(feature = "serde")]
mod serde;
mod token;

use std::{error::Error, fmt, net::IpAddr, str::FromStr};

#[cfg(doc)]
use crate::LoginLimiter;
use crate::{ReserveError, event::names, store::StoreError};

pub use caller::Caller;
pub(crate) use caller::{Counted, Slots, User};
pub use future::AttemptFuture;
pub(crate) use future::{InFlight, Tracker};
pub use id::{AttemptId, ParseAttemptIdError};
pub use refusal::{Reason, Refusal};
pub use report::Report;
#[cfg(feature = "admin")]
pub(crate) use report::block_after;
pub(crate) use report::refusal_of;
pub(crate) use reservation::{Reservation, Within};
pub use token::{ParseTokenError, Token};

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

impl Outcome {
    /// The name in events and files: `success`, `failure`, `unknown_user`, `mfa_pending` or `not_an_attempt`.
    #[must_use]
    pub const fn name(self) -> &'static str {
        names::outcome::name(self)
    }
}

/// Reads the [name](Outcome::name).
impl FromStr for Outcome {
    type Err = ParseOutcomeError;

    fn from_str(text: &str) -> Result<Self, Self::Err> {
        let mut all = names::outcome::ALL.iter().copied();
        all.find(|outcome| outcome.name() == text)
            .ok_or(ParseOutcomeError(()))
    }
}

/// A text that is not the name of an [`Outcome`].
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct ParseOutcomeError(());

impl fmt::Display for ParseOutcomeError {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str("cannot read an outcome: write success, failure, unknown_user, mfa_pending or not_an_attempt")
    }
}

impl Error for ParseOutcomeError {}

/// An attempt that was admitted and is in flight.
///
/// [`LoginLimiter::reserve`] returns it and [`settle`](Self::settle) ends it. An attempt that is never
/// settled becomes a failure when its lease ends.
#[must_use = "an attempt that is not settled becomes a failure"]
pub struct Attempt(Box<Reservation>);

impl Attempt {
    #[inline]
    pub(crate) fn new(reservation: Reservation) -> Self {
        Self(Box::new(reservation))
    }

    pub(crate) fn into_reservation(self) -> Reservation {
        *self.0
    }

    #[cfg(feature = "server")]
    pub(crate) fn access(&self) -> Option<&crate::limiter::Allowed> {
        self.0.access()
    }

    /// The client's address.
    pub const fn address(&self) -> IpAddr {
        self.0.address()
    }

    /// The user as it was typed; `None` if the request names none.
    pub fn user(&self) -> Option<&str> {
        self.0.user()
    }

    /// The user that was [identified](Self::identify), if any.
    pub fn identified(&self) -> Option<&str> {
        self.0.identified()
    }

    /// The name of the access rule that allows the attempt, which is not counted then.
    pub fn allowed_by(&self) -> Option<&str> {
        self.0.allowed_by()
    }

    /// The token that identifies this attempt in the store.
    pub const fn token(&self) -> Token {
        self.0.token()
    }

    /// How each rule stood when the attempt was admitted, this attempt included.
    pub const fn report(&self) -> &Report {
        self.0.report()
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
    /// [`ReserveError::Refused`] if a rule by user refuses the attempt, and [`ReserveError::Denied`] if an access
    /// rule does, now or in an earlier call; [`ReserveError::Store`] if the store can't decide, in which case no
    /// password must be checked: the attempt counts under the rules without a user.
    pub async fn identify(&mut self, user: &str) -> Result<(), ReserveError> {
        self.0.identify(user).await
    }

    /// Leaves the attempt in flight, to be settled by [`LoginLimiter::resume`] with this token and the same caller,
    /// by this process or another one. What is not settled becomes a failure when the lease ends.
    #[must_use = "an attempt that is not settled becomes a failure"]
    pub fn detach(self) -> Token {
        self.0.limiter().metrics().no_longer_in_flight();
        self.token()
    }

    /// Ends the attempt with this outcome.
    ///
    /// # Errors
    ///
    /// The store failed, and whether it has written the outcome is unknown. If it has not, the attempt
    /// becomes a failure when its lease ends.
    pub fn settle(self, outcome: Outcome) -> AttemptFuture<Result<(), StoreError>> {
        AttemptFuture::settle(self.0.limiter(), self.0.write_outcome(outcome, false))
    }
}

impl fmt::Debug for Attempt {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        self.0.fmt(f)
    }
}
