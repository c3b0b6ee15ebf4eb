//! The user of an event.

use std::{borrow::Cow, fmt};

use super::{UserDisplay, escape::Escaped};

/// The longest name that an event keeps, in bytes. As long as a normal form: names of a megabyte must not fill
/// the memory through queues.
const MAX_LEN: usize = 320;

/// The user of an event.
///
/// Code in the process reads the name, as typed and as identified. Everything that leaves the process, through
/// [`Display`](fmt::Display), [`Debug`] or serialization, shows what the app's [`UserDisplay`] permits. That is
/// computed when it is shown, not while a login waits.
#[derive(Clone)]
pub struct EventUser(Repr);

#[derive(Clone)]
enum Repr {
    Named {
        identified: Box<str>,
        /// If that is not the normal form.
        typed: Option<Box<str>>,
        display: UserDisplay,
    },
    /// From a recorded event.
    Recorded {
        shown: Option<Box<str>>,
        /// The keyed hash of the name, if the record has it for processes with the secret.
        id: Option<u64>,
    },
}

impl EventUser {
    /// A user as typed and as identified: in normal form, or as the account that the app found. Of names longer
    /// than 320 bytes the beginning is kept, and the length.
    #[must_use]
    pub fn new(typed: &str, identified: &str, display: &UserDisplay) -> Self {
        Self(Repr::Named {
            identified: bounded(identified),
            typed: (typed != identified).then(|| bounded(typed)),
            display: display.clone(),
        })
    }

    /// The name as typed. `None` in an event that was read from a record.
    pub fn typed(&self) -> Option<&str> {
        match &self.0 {
            Repr::Named {
                identified, typed, ..
            } => Some(typed.as_ref().unwrap_or(identified)),
            Repr::Recorded { .. } => None,
        }
    }

    /// The name in normal form. `None` in an event that was read from a record.
    pub fn identified(&self) -> Option<&str> {
        match &self.0 {
            Repr::Named { identified, .. } => Some(identified),
            Repr::Recorded { .. } => None,
        }
    }

    /// What may leave the process; `None` if nothing may. Not escaped: a name in clear can contain line breaks.
    pub fn shown(&self) -> Option<Cow<'_, str>> {
        match &self.0 {
            Repr::Named {
                identified,
                display,
                ..
            } => display.show(identified).map(Cow::Owned),
            Repr::Recorded { shown, .. } => shown.as_deref().map(Cow::Borrowed),
        }
    }

    /// Whether nothing of the user may leave the process.
    #[cfg(feature = "serde")]
    pub(super) const fn is_hidden(&self) -> bool {
        matches!(
            self.0,
            Repr::Named {
                display: UserDisplay::Hidden,
                ..
            } | Repr::Recorded { shown: None, .. }
        )
    }

    /// A user of a recorded event, of which nothing is known but what was shown.
    #[must_use]
    pub fn from_shown(text: &str) -> Self {
        Self(Repr::Recorded {
            shown: Some(bounded_to(text, MAX_SHOWN_LEN)),
            id: None,
        })
    }

    /// A user of a recorded event, whose id this process can read, however it was shown.
    #[cfg(all(feature = "redis", feature = "serde", feature = "sealed"))]
    pub(super) fn recorded(user: Option<&Self>, id: u64) -> Self {
        let shown = user.and_then(Self::shown);
        Self(Repr::Recorded {
            shown: shown.map(Into::into),
            id: Some(id),
        })
    }

    /// The keyed hash of the name in a recorded event, if this process can read it.
    pub(crate) const fn id(&self) -> Option<u64> {
        match self.0 {
            Repr::Named { .. } => None,
            Repr::Recorded { id, .. } => id,
        }
    }
}

/// A sealed name is longer than a name.
const MAX_SHOWN_LEN: usize = 4 * MAX_LEN;

fn bounded(name: &str) -> Box<str> {
    bounded_to(name, MAX_LEN)
}

fn bounded_to(name: &str, max: usize) -> Box<str> {
    if name.len() <= max {
        return name.into();
    }
    let is_end = |end: &usize| name.is_char_boundary(*end);
    let end = (0..=max).rev().find(is_end).unwrap_or_default();
    format!("{}… ({} bytes)", &name[..end], name.len()).into()
}

/// What may leave the process, in one line: `***` if that is nothing, otherwise with controls, line breaks and
/// the like escaped.
impl fmt::Display for EventUser {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self.shown() {
            Some(text) => Escaped(&text).fmt(f),
            None => f.write_str("***"),
        }
    }
}

/// As [`Display`](fmt::Display).
impl fmt::Debug for EventUser {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "EventUser({self})")
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_process_sees_the_name_and_others_what_was_chosen() {
        let user = EventUser::new(" Alice", "alice", &UserDisplay::Hidden);
        assert_eq!(
            (user.typed(), user.identified()),
            (Some(" Alice"), Some("alice"))
        );
        assert_eq!(user.shown(), None);
        for text in [user.to_string(), format!("{user:?}"), format!("{user:#?}")] {
            assert!(!text.to_lowercase().contains("alice"), "{text}");
        }
        let same = EventUser::new("alice", "alice", &UserDisplay::Clear);
        assert_eq!(same.typed(), Some("alice"));
    }

    #[test]
    fn a_name_of_a_megabyte_is_not_kept() {
        let name = "ä".repeat(500_000);
        let user = EventUser::new(&name, &name, &UserDisplay::Clear);
        let kept = user.typed().unwrap();
        assert!(
            kept.len() < 400 && kept.ends_with("… (1000000 bytes)"),
            "{kept}"
        );
    }

    #[test]
    fn a_name_in_clear_breaks_no_line() {
        let user = EventUser::new("a\n\u{1b}[1m", "a\n\u{1b}[1m", &UserDisplay::Clear);
        assert_eq!(user.to_string(), "a\\u{a}\\u{1b}[1m");
        assert_eq!(format!("{user:?}"), "EventUser(a\\u{a}\\u{1b}[1m)");
    }
}
