//! Text that clients chose, made harmless for logs and terminals.

use std::fmt::{self, Write};

use crate::normalize::is_ignorable;

/// Shows text on one line, without anything that a terminal or a reader of a log would interpret: controls (line
/// breaks, ANSI escapes), line separators, and characters that are invisible or change the direction of text
/// appear as `\u{1b}`. A backslash is doubled, so that the text can be told from what it imitates.
pub(crate) struct Escaped<'a>(pub(crate) &'a str);

/// JSON in which no name has what a terminal would interpret: escaped as JSON permits, so that a parser reads it as it
/// was. A line break is never part of a name there.
#[cfg(feature = "serde")]
pub(crate) fn escaped_json(json: String) -> String {
    let is_escaped = |c: char| is_unsafe(c) && c != '\n';
    if !json.contains(is_escaped) {
        return json;
    }
    let mut escaped = String::with_capacity(2 * json.len());
    for c in json.chars() {
        if is_escaped(c) {
            for unit in c.encode_utf16(&mut [0; 2]) {
                // A string takes everything.
                let _ = write!(escaped, "\\u{unit:04x}");
            }
        } else {
            escaped.push(c);
        }
    }
    escaped
}

/// Whether a character is not shown as it is.
pub(crate) const fn is_unsafe(c: char) -> bool {
    is_ignorable(c) || matches!(c, '\u{2028}' | '\u{2029}')
}

impl fmt::Display for Escaped<'_> {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        for c in self.0.chars() {
            match c {
                '\\' => f.write_str("\\\\")?,
                c if is_unsafe(c) => write!(f, "{}", c.escape_unicode())?,
                c => f.write_char(c)?,
            }
        }
        Ok(())
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_name_forges_no_log_line_and_moves_no_cursor() {
        for (text, shown) in [
            ("alice", "alice"),
            ("Zoë", "Zoë"),
            ("a\nrefused", "a\\u{a}refused"),
            ("a\r", "a\\u{d}"),
            ("\u{1b}[2J", "\\u{1b}[2J"),
            ("\u{9b}2J", "\\u{9b}2J"),
            ("a\u{202e}b", "a\\u{202e}b"),
            ("a\u{2066}b", "a\\u{2066}b"),
            ("a\u{2028}b", "a\\u{2028}b"),
            ("a\u{200b}b", "a\\u{200b}b"),
            ("\\u{a}", "\\\\u{a}"),
        ] {
            assert_eq!(Escaped(text).to_string(), shown);
        }
    }
}
