//! What the limiter writes into the index beside a block, for lists of blocks.

use std::borrow::Cow;

use serde::{Deserialize, Serialize};

use crate::event::EventUser;

/// The text of an entry. What else a list shows is read from the counter: that is the truth, and the text may
/// have been written by anything that can write to the store.
#[derive(Default, Serialize, Deserialize)]
struct Text<'a> {
    #[serde(default, skip_serializing_if = "Option::is_none")]
    user: Option<Cow<'a, str>>,
    #[serde(default, skip_serializing_if = "is_false")]
    shadow: bool,
}

#[allow(clippy::trivially_copy_pass_by_ref)] // serde passes a reference
const fn is_false(value: &bool) -> bool {
    !*value
}

/// The text for a block of this user, whom it shows as events do, and whether it refuses nothing.
pub(super) fn note_text(user: Option<&EventUser>, shadow: bool) -> String {
    let user = user.and_then(EventUser::shown);
    // Can't fail: there is no map in it.
    serde_json::to_string(&Text { user, shadow }).unwrap_or_default()
}

/// The contents of a text; empty if it can't be read.
#[derive(Clone, Debug, Default)]
pub(crate) struct Note {
    pub(crate) user: Option<EventUser>,
    pub(crate) shadow: bool,
}

impl Note {
    pub(crate) fn read(text: &str) -> Self {
        let Text { user, shadow } = serde_json::from_str(text).unwrap_or_default();
        Self {
            user: user.map(|user| EventUser::from_shown(&user)),
            shadow,
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::event::UserDisplay;

    #[test]
    fn texts_show_users_as_the_app_chose_and_are_read_back() {
        let shown = |display: &UserDisplay| {
            let user = EventUser::new("Alice", "alice", display);
            let text = note_text(Some(&user), true);
            let note = Note::read(&text);
            assert!(note.shadow);
            let shown = note.user.map(|user| user.to_string());
            (text, shown)
        };
        let (text, user) = shown(&UserDisplay::Hidden);
        assert_eq!((text.as_str(), user), (r#"{"shadow":true}"#, None));
        assert_eq!(shown(&UserDisplay::Masked).1.as_deref(), Some("a***"));
        assert_eq!(shown(&UserDisplay::Clear).1.as_deref(), Some("alice"));
        assert_eq!(note_text(None, false), "{}");
    }

    #[test]
    fn forged_texts_are_read_as_nothing_or_bounded() {
        let deep = "[".repeat(4096);
        for text in ["", "null", "{", "[]", "7", "\u{0}", r#"{"user":7}"#, &deep] {
            let note = Note::read(text);
            assert!(note.user.is_none() && !note.shadow, "{text:.20}");
        }
        let long = format!(r#"{{"user":"{}","more":1}}"#, "x".repeat(4000));
        let user = Note::read(&long).user.map(|user| user.to_string());
        assert!(user.is_some_and(|user| user.len() < 1400));
        let html = r#"{"user":"<script>\n\u001b[2J"}"#;
        let user = Note::read(html).user.map(|user| user.to_string());
        assert_eq!(user.as_deref(), Some("<script>\\u{a}\\u{1b}[2J"));
    }
}
