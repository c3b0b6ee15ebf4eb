//! Which of several matching rules is the stronger one.

use std::cmp::Reverse;

use super::Action;
use crate::algorithm::Millis;

/// A rule that matches and has not expired. The greatest one decides: a deny before an allow, then the one
/// that lasts longest, so that a client is not invited to retry when another rule still refuses it, then the
/// first of the list.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub(super) struct Candidate {
    denies: bool,
    entry: Entry,
}

impl Candidate {
    pub(super) const fn position(self) -> usize {
        self.entry.position.0 as usize
    }
}

/// A rule in an index: when it expires, [`Millis::MAX`] for never, and its position in the list.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
struct Entry {
    expires_at: Millis,
    position: Reverse<u32>,
}

/// The rules of one pattern. Of each action only the strongest one is kept: the others never decide, as they
/// expire earlier.
#[derive(Clone, Copy, Debug, Default)]
pub(super) struct Entries {
    deny: Option<Entry>,
    allow: Option<Entry>,
}

impl Entries {
    pub(super) const fn is_empty(&self) -> bool {
        self.deny.is_none() && self.allow.is_none()
    }

    pub(super) fn add(&mut self, action: Action, expires_at: Option<Millis>, position: u32) {
        let entry = Entry {
            expires_at: expires_at.unwrap_or(Millis::MAX),
            position: Reverse(position),
        };
        let kept = match action {
            Action::Allow => &mut self.allow,
            Action::Deny => &mut self.deny,
        };
        *kept = (*kept).max(Some(entry));
    }

    pub(super) fn decide(&self, now: Millis) -> Option<Candidate> {
        self.denied(now).or_else(|| {
            let entry = self.allow.filter(|entry| now < entry.expires_at)?;
            let denies = false;
            Some(Candidate { denies, entry })
        })
    }

    /// Decides without the rules that allow.
    pub(super) fn denied(&self, now: Millis) -> Option<Candidate> {
        let entry = self.deny.filter(|entry| now < entry.expires_at)?;
        let denies = true;
        Some(Candidate { denies, entry })
    }
}
