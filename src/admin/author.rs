//! Who changes something, and why.

use super::AdminError;
use crate::event::escape::is_unsafe;

const MAX_NAME: usize = 200;
const MAX_REASON: usize = 1_000;

/// Who changes something and why, for the events by which changes are audited.
///
/// ```
/// use tower_login_rate_limit::admin::Author;
///
/// let author = Author::new("alice@ops", "ticket 4711")?;
/// assert_eq!((author.name(), author.reason()), ("alice@ops", "ticket 4711"));
/// assert!(Author::new("alice@ops", "").is_err());
/// # Ok::<(), tower_login_rate_limit::admin::AdminError>(())
/// ```
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Author {
    name: Box<str>,
    reason: Box<str>,
}

impl Author {
    /// An author with a reason.
    ///
    /// The name should come from the operator's authentication, never from a form: it is what an audit relies on.
    ///
    /// # Errors
    ///
    /// If one of them is blank, has control or invisible characters, or more than 200 or 1,000 bytes.
    pub fn new(name: impl AsRef<str>, reason: impl AsRef<str>) -> Result<Self, AdminError> {
        Ok(Self {
            name: check("the author's name", name.as_ref(), MAX_NAME)?,
            reason: check("the reason", reason.as_ref(), MAX_REASON)?,
        })
    }

    /// Who.
    pub fn name(&self) -> &str {
        &self.name
    }

    /// Why.
    pub fn reason(&self) -> &str {
        &self.reason
    }
}

fn check(what: &str, text: &str, max: usize) -> Result<Box<str>, AdminError> {
    let problem = if text.trim().is_empty() {
        "is blank; every change has an author and a reason".to_owned()
    } else if text.len() > max {
        format!("has {} bytes, and may have {max}", text.len())
    } else if text.chars().any(is_unsafe) {
        "has a control or invisible character; write it in one line".to_owned()
    } else {
        return Ok(text.into());
    };
    Err(AdminError::invalid(format!("{what} {problem}")))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn an_author_forges_no_line_of_an_audit() {
        let long = "a".repeat(MAX_NAME + 1);
        for name in [
            "",
            " ",
            "a\nb",
            "a\u{1b}[2J",
            "a\u{202e}b",
            "a\u{2028}",
            &long,
        ] {
            assert!(Author::new(name, "reason").is_err(), "{name:?}");
            let reason = name.repeat(6);
            assert!(Author::new("name", reason).is_err(), "{name:?}");
        }
        Author::new("Zoë <ops>", "Kundin rief an, Nr. 7").unwrap();
    }
}
