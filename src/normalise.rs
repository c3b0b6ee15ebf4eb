//! One spelling for each user.

use std::borrow::Cow;

use unicode_normalization::UnicodeNormalization;

/// Trims, applies Unicode NFKC and folds case, so that `User`, ` user ` and `ＵＳＥＲ` are one user.
///
/// A guess at `User` must count against `user` if the app looks both up as the same account. An app
/// whose look-up folds more than this (accents, dots in a mail address) gives its own function to
/// [`LoginLimiter::with_normaliser`](crate::LoginLimiter::with_normaliser), or names the account it
/// found.
///
/// ```
/// use tower_login_rate_limit::normalise;
///
/// assert_eq!(normalise(" Straße "), normalise("STRASSE"));
/// ```
pub fn normalise(user: &str) -> Cow<'_, str> {
    let user = user.trim();
    if user.is_ascii() {
        return if user.bytes().any(|b| b.is_ascii_uppercase()) {
            Cow::Owned(user.to_ascii_lowercase())
        } else {
            Cow::Borrowed(user)
        };
    }
    // Folding can undo the normal form and the normal form can bring capitals back, so both run
    // twice; after that nothing changes any more.
    let once = |text: &str| caseless::default_case_fold_str(&text.nfkc().collect::<String>());
    let folded: String = once(&once(user)).nfkc().collect();
    Cow::Owned(folded.trim().to_owned())
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
