//! Who an event is about, without a name.

use std::borrow::Cow;

use crate::{
    Outcome, Reason,
    event::{Event, EventUser, UserHasher, What},
};

/// The keyed hash of a user, the same in all processes with the secret. Of a recorded event there is one if users
/// were recorded as hashes, with the same secret.
pub(super) fn user_id(user: &EventUser, hasher: &UserHasher) -> Option<Box<str>> {
    if let Some(name) = user.identified() {
        return Some(hasher.hash(name).into());
    }
    recorded_hash(user).map(Into::into)
}

/// The hash by which a user was recorded. Two masked users can look alike, and a sealed one never does.
pub(super) fn recorded_hash(user: &EventUser) -> Option<Cow<'_, str>> {
    let shown = user.shown()?;
    let is_hash = shown
        .strip_prefix("hash:")
        .is_some_and(|digits| digits.len() == 16 && digits.bytes().all(|b| b.is_ascii_hexdigit()));
    is_hash.then_some(shown)
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
