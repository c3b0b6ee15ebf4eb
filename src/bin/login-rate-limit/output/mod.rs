//! What is printed: tables for people, JSON for scripts.

mod style;
mod table;

use std::{
    env,
    io::{self, IsTerminal, Write},
};

use serde::Serialize;
use tower_login_rate_limit::__private::{escaped, escaped_json};

pub(crate) use self::{
    style::Style,
    table::{Cell, Table},
};
use crate::{
    args::Color,
    failure::{Exit, Failure},
};

/// Where results go. Notes and errors go to the standard error.
#[derive(Debug)]
pub(crate) struct Output {
    pub(crate) json: bool,
    color: bool,
    error_color: bool,
}

impl Output {
    pub(crate) fn new(json: bool, color: Color) -> Self {
        let permitted = |is_terminal: bool| match color {
            Color::Always => true,
            Color::Never => false,
            Color::Auto => is_terminal && !is_unwanted(),
        };
        Self {
            json,
            color: permitted(io::stdout().is_terminal()),
            error_color: permitted(io::stderr().is_terminal()),
        }
    }

    /// Prints a result as one JSON value, if that is wanted. Returns whether it was.
    pub(crate) fn json(&self, result: &impl Serialize) -> Result<bool, Failure> {
        if self.json {
            self.line(escaped_json(serde_json::to_string_pretty(result)?))?;
        }
        Ok(self.json)
    }

    /// Prints one line. It may be styled, so whatever a client chose must be escaped in it.
    pub(crate) fn line(&self, text: impl AsRef<str>) -> Result<(), Failure> {
        let mut out = io::stdout().lock();
        writeln!(out, "{}", text.as_ref())?;
        Ok(out.flush()?)
    }

    pub(crate) fn table(&self, table: &Table) -> Result<(), Failure> {
        let mut out = io::stdout().lock();
        out.write_all(table.render(self.color).as_bytes())?;
        Ok(out.flush()?)
    }

    pub(crate) fn paint(&self, style: Style, text: &str) -> String {
        style.paint(text, self.color)
    }

    /// Prints something that is not part of the result.
    pub(crate) fn note(&self, text: impl AsRef<str>) {
        self.complain("note", Style::Yellow, text.as_ref());
    }

    pub(crate) fn error(&self, failure: &Failure) {
        self.complain("error", Style::Red, failure.message());
    }

    fn complain(&self, what: &str, style: Style, text: &str) {
        let what = style.paint(what, self.error_color);
        // Nothing can be done where that fails.
        let _ = writeln!(io::stderr(), "{what}: {}", one_line(text));
    }

    /// Prints that there is nothing, and returns the code for it.
    pub(crate) fn nothing(&self, text: &str) -> Result<Exit, Failure> {
        self.line(text)?;
        Ok(Exit::Nothing)
    }
}

/// Errors of parsers may have several lines, and quote what is in a file.
fn one_line(text: &str) -> String {
    let lines: Vec<_> = text.lines().map(str::trim).collect();
    let text = lines.join(" ");
    text.chars()
        .map(|c| match c {
            c if c.is_control() => c.escape_unicode().to_string(),
            c => c.to_string(),
        })
        .collect()
}

fn is_unwanted() -> bool {
    let no_color = env::var_os("NO_COLOR").is_some_and(|value| !value.is_empty());
    no_color || env::var_os("TERM").is_some_and(|term| term == "dumb")
}

/// Text that a client chose, harmless for a terminal.
pub(crate) fn safe(text: &str) -> String {
    escaped(text)
}

/// "1 block", "2 blocks".
pub(crate) fn counted(n: usize, what: &str) -> String {
    plural(n, what, &format!("{what}s"))
}

/// "1 address", "2 addresses".
pub(crate) fn plural(n: usize, one: &str, several: &str) -> String {
    format!("{n} {}", if n == 1 { one } else { several })
}
