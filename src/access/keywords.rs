//! Keywords: all of them are searched for in one pass over the text.

use std::{borrow::Cow, collections::HashMap};

use aho_corasick::AhoCorasick;
use unicode_normalization::UnicodeNormalization;

use super::standing::{Candidate, Entries};
use crate::{
    algorithm::Millis,
    normalize::{MAX_INPUT_LEN, is_ignorable},
};

/// Collects keywords.
#[derive(Debug, Default)]
pub(super) struct KeywordsBuilder {
    numbers: HashMap<String, usize>,
    entries: Vec<Entries>,
}

impl KeywordsBuilder {
    /// The entries of a keyword, which is folded.
    pub(super) fn entries(&mut self, keyword: &str) -> &mut Entries {
        let next = self.entries.len();
        let number = *self.numbers.entry(keyword.to_owned()).or_insert(next);
        if number == next {
            self.entries.push(Entries::default());
        }
        &mut self.entries[number]
    }

    pub(super) fn len(&self) -> usize {
        self.entries.len()
    }

    /// `None` if the automaton would be too large.
    pub(super) fn build(self) -> Option<Keywords> {
        if self.entries.is_empty() {
            return Some(Keywords::default());
        }
        let mut keywords: Vec<_> = self.numbers.into_iter().collect();
        keywords.sort_unstable_by_key(|(_, number)| *number);
        let automaton = AhoCorasick::builder()
            .ascii_case_insensitive(true)
            .build(keywords.iter().map(|(keyword, _)| keyword))
            .ok()?;
        Some(Keywords {
            automaton: Some(automaton),
            entries: self.entries,
        })
    }
}

/// The keywords of all rules by one field, and an automaton that finds all of them at once.
#[derive(Debug, Default)]
pub(super) struct Keywords {
    automaton: Option<AhoCorasick>,
    entries: Vec<Entries>,
}

impl Keywords {
    pub(super) const fn is_empty(&self) -> bool {
        self.automaton.is_none()
    }

    /// Decides by the keywords in `text`. ASCII letters match in either case; everything else is to be folded.
    pub(super) fn decide(&self, text: &[u8], now: Millis) -> Option<Candidate> {
        // Overlapping: a keyword inside of another one counts too.
        let found = self.automaton.as_ref()?.find_overlapping_iter(text);
        let candidates = found.filter_map(|found| {
            let entries = self.entries.get(found.pattern().as_usize())?;
            entries.decide(now)
        });
        candidates.max()
    }
}

/// Folds a name, or a keyword for names: Unicode case folding of the compatibility form (NFKC), without
/// invisible characters, as [`normalize`](crate::normalize) does. ASCII is left to the automaton.
///
/// Of a name with more than 1,280 visible bytes only the invisible characters are removed: the folded form can
/// be many times as long, and no account has such a name.
pub(super) fn fold(text: &str) -> Cow<'_, str> {
    if text.is_ascii() {
        return Cow::Borrowed(text);
    }
    let visible: String = text.chars().filter(|c| !is_ignorable(*c)).collect();
    if visible.len() > MAX_INPUT_LEN {
        return Cow::Owned(visible);
    }
    let compose = |text: &str| {
        let composed = text.nfkc().filter(|c| !is_ignorable(*c));
        composed.collect::<String>()
    };
    // Folding can undo the compatibility form, which can restore capitals: the second pass is stable.
    let once = |text: &str| caseless::default_case_fold_str(&compose(text));
    Cow::Owned(compose(&once(&once(&visible))))
}

/// Whether a folded text contains a folded keyword, as the automaton would find it.
pub(super) fn contains(text: &[u8], keyword: &str) -> bool {
    let mut windows = text.windows(keyword.len());
    windows.any(|window| window.eq_ignore_ascii_case(keyword.as_bytes()))
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::access::Action;

    fn finds(keyword: &str, name: &str) -> bool {
        let mut builder = KeywordsBuilder::default();
        let keyword = fold(keyword);
        builder.entries(&keyword).add(Action::Deny, None, 0);
        let name = fold(name);
        let found = builder.build().unwrap().decide(name.as_bytes(), 0);
        assert_eq!(found.is_some(), contains(name.as_bytes(), &keyword));
        found.is_some()
    }

    #[test]
    fn case_is_unicode() {
        for (keyword, name) in [
            ("admin", "Sys-ADMIN-2"),
            ("ADMIN", "sysadmin"),
            ("straße", "STRASSE"),
            ("STRASSE", "hauptstraße"),
            ("ÉCOLE", "e\u{301}cole"),
            ("σας", "ΣΑΣ"),
            ("admin", "ＡＤＭＩＮ"),
            ("admin", "a\u{200b}dm\u{ad}in"),
            ("a\u{200b}dmin", "ADMIN"),
            ("kelvin", "\u{212a}elvin"),
            ("viii", "Ⅷ"),
            ("ADMİN", "admi\u{307}n"),
        ] {
            assert!(finds(keyword, name), "{keyword:?} in {name:?}");
        }
        for (keyword, name) in [("admin", "adm in"), ("e", "é"), ("admin", "admi")] {
            assert!(!finds(keyword, name), "{keyword:?} in {name:?}");
        }
    }

    #[test]
    fn padding_hides_no_keyword() {
        let invisible = "\u{200b}".repeat(10_000);
        assert!(finds("admin", &format!("ad{invisible}min")));
        let visible = "ä".repeat(1_000);
        assert!(finds("admin", &format!("{visible}ADMIN{visible}")));
        assert!(finds("admin", &format!("ADMIN{}", "x".repeat(10_000))));
    }

    #[test]
    fn of_nested_keywords_each_one_counts() {
        let mut builder = KeywordsBuilder::default();
        builder.entries("administrator").add(Action::Allow, None, 0);
        builder.entries("admin").add(Action::Deny, Some(10), 1);
        builder.entries("min").add(Action::Deny, None, 2);
        builder.entries("min").add(Action::Deny, Some(10), 3);
        let keywords = builder.build().unwrap();
        let decided = |text: &str| keywords.decide(text.as_bytes(), 0).map(Candidate::position);
        assert_eq!(decided("the administrator"), Some(2));
        assert_eq!(decided("administrat"), Some(2));
        assert_eq!(decided("mi"), None);
    }
}
