//! Events as comma-separated values, RFC 4180.

use serde_json::Value;

use super::events::rule_of;
use crate::event::Event;

pub(super) const HEAD: &str = "at,event,address,user,rule,attempt,details\r\n";

/// Appends an event, whose JSON is given, as a line.
pub(super) fn push(text: &mut String, event: &Event, json: &Value) {
    let member = |name: &str| json[name].as_str().unwrap_or_default();
    let details = json.to_string();
    let cells = [
        member("at"),
        event.what.name(),
        member("address"),
        member("user"),
        rule_of(&event.what).unwrap_or_default(),
        member("attempt"),
        &details,
    ];
    for (i, value) in cells.into_iter().enumerate() {
        if i > 0 {
            text.push(',');
        }
        cell(text, value);
    }
    text.push_str("\r\n");
}

/// Clients choose names, and a spreadsheet computes a cell that begins like a formula: an apostrophe makes it a text. Where
/// the list separator is a semicolon or a tab, the quotes of all but the first cell of a line are no quotes, and a cell
/// begins after each of these.
fn cell(text: &mut String, value: &str) {
    text.push('"');
    let mut begins = true;
    for c in value.chars() {
        if begins && is_formula(c) {
            text.push('\'');
        }
        begins = matches!(c, ';' | '\t' | '\r' | '\n') || begins && is_skipped(c);
        if c == '"' {
            text.push('"');
        }
        text.push(c);
    }
    text.push('"');
}

/// What a formula begins with. White space by itself makes a cell be read again.
const fn is_formula(c: char) -> bool {
    matches!(
        c,
        '=' | '+' | '-' | '@' | '\t' | '\r' | '\n' | '＝' | '＋' | '－' | '＠'
    )
}

/// What is taken off a cell before it is computed.
fn is_skipped(c: char) -> bool {
    c == '"' || c.is_whitespace() || c == '\u{feff}'
}

#[cfg(test)]
mod tests {
    use super::*;

    fn line(value: &str) -> String {
        let mut text = String::new();
        cell(&mut text, value);
        text
    }

    #[test]
    fn a_name_is_neither_a_formula_nor_another_cell() {
        for (value, expected) in [
            ("alice", r#""alice""#),
            ("=cmd|' /C calc'!A0", r#""'=cmd|' /C calc'!A0""#),
            ("+1", r#""'+1""#),
            ("-1", r#""'-1""#),
            ("@SUM(A1)", r#""'@SUM(A1)""#),
            ("\t=1", "\"'\t'=1\""),
            ("\r=1", "\"'\r'=1\""),
            ("＝1", "\"'＝1\""),
            (r#"a","=1"#, r#""a"",""=1""#),
            ("a;=1", r#""a;'=1""#),
            ("a; \"+1;-1", r#""a; ""'+1;'-1""#),
            ("a\n@1", "\"a\n'@1\""),
            ("a\t=1", "\"a\t'=1\""),
            (" =1", "\" '=1\""),
            ("a;b-1", r#""a;b-1""#),
            ("", r#""""#),
        ] {
            assert_eq!(line(value), expected, "{value:?}");
        }
    }
}
