//! The canonical spelling of a user.

use std::borrow::Cow;

use unicode_normalization::UnicodeNormalization;

/// The longest normal form, in bytes. A mail address has 254 characters at most.
const MAX_LEN: usize = 320;
/// The longest text that is normalized, in bytes: each character of a normal form may have been typed as one
/// of up to four bytes.
pub(crate) const MAX_INPUT_LEN: usize = 4 * MAX_LEN;

/// Trims, applies Unicode NFKC, folds case and removes invisible characters, such as a zero-width space, and
/// control characters, which some databases ignore, so that `User`, ` user ` and `ＵＳＥＲ` are one user.
///
/// A guess at `User` must count against `user` if the app finds the same account for both. An app whose
/// lookup folds more (accents, dots in a mail address, all that follows a NUL) or less (`User` and `user` are
/// two accounts) sets its own function by
/// [`LoginLimiter::with_normalizer`](crate::LoginLimiter::with_normalizer), or
/// [identifies](crate::Attempt::identify) the account that it found.
///
/// A name whose normal form has more than 320 bytes is only trimmed and stripped of invisible characters, and
/// one of more than 1,280 visible bytes only trimmed: a normal form can be many times as long as the text, and
/// computing it would let attackers use the processor. An app with longer names sets its own function.
///
/// ```
/// use tower_login_rate_limit::normalize;
///
/// assert_eq!(normalize(" Straße "), normalize("STRASSE"));
/// ```
#[must_use]
#[inline]
pub fn normalize(user: &str) -> Cow<'_, str> {
    // Most names are plain, which takes one pass.
    let is_plain = |b: u8| b.is_ascii_graphic() && !b.is_ascii_uppercase();
    if user.bytes().all(is_plain) {
        return Cow::Borrowed(user);
    }
    normalize_other(user)
}

fn normalize_other(user: &str) -> Cow<'_, str> {
    let user = user.trim();
    let is_text = |b: u8| b.is_ascii() && !b.is_ascii_control();
    if user.len() <= MAX_LEN && user.bytes().all(is_text) {
        return if user.bytes().any(|b| b.is_ascii_uppercase()) {
            Cow::Owned(user.to_ascii_lowercase())
        } else {
            Cow::Borrowed(user)
        };
    }
    // Padding must not make a name too long to be normalized.
    let user = user.trim_matches(|c: char| c.is_whitespace() || is_ignorable(c));
    let mut visible = String::new();
    for c in user.chars().filter(|c| !is_ignorable(*c)) {
        if visible.len() + c.len_utf8() > MAX_INPUT_LEN {
            return Cow::Borrowed(user);
        }
        visible.push(c);
    }
    Cow::Owned(match fold(&visible) {
        Some(folded) => folded.trim().to_owned(),
        None => visible,
    })
}

/// The normal form; `None` if it is too long.
fn fold(text: &str) -> Option<String> {
    // Folding can undo the normal form, and the normal form can restore capitals, so both run twice; after
    // that the result is stable.
    let once = |text: &str| fits(caseless::default_case_fold_str(&compose(text)?));
    compose(&once(&once(text)?)?)
}

/// NFKC without invisible characters; `None` if it is too long. Stops there.
fn compose(text: &str) -> Option<String> {
    let visible = text.chars().filter(|c| !is_ignorable(*c));
    let mut composed = String::with_capacity(text.len().min(MAX_LEN));
    for c in visible.nfkc() {
        if composed.len() + c.len_utf8() > MAX_LEN {
            return None;
        }
        composed.push(c);
    }
    Some(composed)
}

fn fits(text: String) -> Option<String> {
    (text.len() <= MAX_LEN).then_some(text)
}

/// Unicode's `Default_Ignorable_Code_Point`, and control characters.
pub(crate) const fn is_ignorable(c: char) -> bool {
    matches!(
        c as u32,
        0..=0x1f | 0x7f..=0x9f
            | 0xad
            | 0x34f
            | 0x61c
            | 0x115f..=0x1160
            | 0x17b4..=0x17b5
            | 0x180b..=0x180f
            | 0x200b..=0x200f
            | 0x202a..=0x202e
            | 0x2060..=0x206f
            | 0x3164
            | 0xfe00..=0xfe0f
            | 0xfeff
            | 0xffa0
            | 0xfff0..=0xfff8
            | 0x1bca0..=0x1bca3
            | 0x1d173..=0x1d17a
            | 0xe0000..=0xe0fff
    )
}

#[cfg(test)]
mod tests {
    use super::*;
    use proptest::prelude::*;

    #[test]
    fn spellings_of_one_name() {
        for spelling in [
            "user",
            "User",
            " user ",
            "ＵＳＥＲ",
            "\u{3000}ＵＳＥＲ\t",
            "uſer",
            "u\u{200b}s\u{ad}er\u{feff}",
            "user\0",
            "\u{1b}u\u{7f}s\u{85}er\u{9c}",
        ] {
            assert_eq!(normalize(spelling), "user", "{spelling:?}");
        }
        assert_eq!(normalize("Ⅷ"), normalize("viii"));
        assert_eq!(normalize("ΣΑΣ"), normalize("σας"));
        assert_eq!(normalize("e\u{301}"), normalize("É"));
        assert_ne!(normalize("us er"), normalize("user"));
        assert_eq!(normalize("  "), "");
    }

    proptest! {
        #![proptest_config(ProptestConfig { failure_persistence: None, cases: 2_000, ..Default::default() })]
        #[test]
        fn twice_is_once(name in any::<String>()) {
            let once = normalize(&name).into_owned();
            prop_assert_eq!(normalize(&once), once.as_str());
        }
    }
}
