//! One spelling for each user.

use std::borrow::Cow;

use unicode_normalization::UnicodeNormalization;

const LONGEST: usize = 1024;

/// Trims, applies Unicode NFKC and folds case, so that `User`, ` user ` and `ＵＳＥＲ` are one user.
///
/// Characters that nobody sees, like a zero-width space, are left out.
///
/// A guess at `User` must count against `user` if the app looks both up as the same account. An app
/// whose look-up folds more than this (accents, dots in a mail address) or less (where `User` and
/// `user` are two accounts) gives its own function to
/// [`LoginLimiter::with_normaliser`](crate::LoginLimiter::with_normaliser), or
/// [names](crate::LoginLimiter::identify) the account it found.
///
/// A name of more than 1024 bytes is nobody's, and is not normalised.
///
/// ```
/// use tower_login_rate_limit::normalise;
///
/// assert_eq!(normalise(" Straße "), normalise("STRASSE"));
/// ```
pub fn normalise(user: &str) -> Cow<'_, str> {
    // What most names look like, in one look.
    let is_plain = |b: u8| b.is_ascii_graphic() && !b.is_ascii_uppercase();
    if user.bytes().all(is_plain) {
        return Cow::Borrowed(user);
    }
    let user = user.trim();
    // Normalising can make text many times longer, and takes its time. Nobody's name is as long as
    // this, unless it is made so with characters that nobody sees.
    if user.len() > LONGEST {
        let visible: String = user.chars().filter(|c| !is_ignorable(*c)).collect();
        return match visible.len() > LONGEST {
            true => Cow::Owned(visible),
            false => Cow::Owned(normalise(&visible).into_owned()),
        };
    }
    if user.is_ascii() {
        return if user.bytes().any(|b| b.is_ascii_uppercase()) {
            Cow::Owned(user.to_ascii_lowercase())
        } else {
            Cow::Borrowed(user)
        };
    }
    // Folding can undo the normal form and the normal form can bring capitals back, so both run
    // twice; after that nothing changes any more.
    let visible = |c: &char| !is_ignorable(*c);
    let once = |text: &str| {
        let text: String = text.chars().filter(visible).nfkc().collect();
        caseless::default_case_fold_str(&text)
    };
    let folded: String = once(&once(user)).chars().filter(visible).nfkc().collect();
    Cow::Owned(folded.trim().to_owned())
}

/// Unicode's `Default_Ignorable_Code_Point`.
const fn is_ignorable(c: char) -> bool {
    matches!(
        c as u32,
        0xad | 0x34f
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
        ] {
            assert_eq!(normalise(spelling), "user", "{spelling:?}");
        }
        assert_eq!(normalise("Ⅷ"), normalise("viii"));
        assert_eq!(normalise("ΣΑΣ"), normalise("σας"));
        assert_eq!(normalise("e\u{301}"), normalise("É"));
        assert_ne!(normalise("us er"), normalise("user"));
        assert_eq!(normalise("  "), "");
    }

    proptest! {
        #![proptest_config(ProptestConfig { failure_persistence: None, cases: 2_000, ..Default::default() })]
        #[test]
        fn twice_is_once(name in any::<String>()) {
            let once = normalise(&name).into_owned();
            prop_assert_eq!(normalise(&once), once.as_str());
        }
    }
}
