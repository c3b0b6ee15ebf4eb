//! Who an event is about, without a name.

use crate::{
    Outcome, Reason,
    event::{Event, EventUser, UserHasher, What},
};

/// The keyed hash of a user, the same in all processes with the secret. Of a recorded event there is one if the stream
/// has it for this process, or if users were recorded as hashes, with the same secret.
pub(super) fn user_id(user: &EventUser, hasher: &UserHasher) -> Option<u64> {
    match user.identified() {
        Some(name) => Some(hasher.id(name)),
        None => recorded_id(user),
    }
}

/// The hash by which a user was recorded. Two masked users can look alike, and a sealed one never does.
pub(super) fn recorded_id(user: &EventUser) -> Option<u64> {
    user.id().or_else(|| UserHasher::parse(&user.shown()?))
}

/// What an event adds to the guesses of its address and user.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Guess {
    Failed,
    Refused,
}

impl Guess {
    /// `None` if the event is not a guess. One in shadow mode is settled too, and counted then.
    pub(super) const fn of(event: &Event) -> Option<Self> {
        match &event.what {
            What::Settled {
                outcome: Outcome::Failure | Outcome::UnknownUser,
                ..
            } => Some(Self::Failed),
            What::Refused {
                reason: Reason::Blocked,
                shadow: false,
                ..
            } => Some(Self::Refused),
            _ => None,
        }
    }
}
