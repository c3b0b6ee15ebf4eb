//! One rule: an action, what it matches, and what an operator wants to know about it.

use std::fmt;

use super::pattern::Pattern;
use crate::{PolicyError, algorithm::Millis};

const MAX_NAME_LEN: usize = 64;
const MAX_AUTHOR_LEN: usize = 200;
const MAX_NOTE_LEN: usize = 1_000;
/// The last millisecond of the year 9999, the last that files have a text for.
pub(super) const MAX_EXPIRY: Millis = 253_402_300_799_999;

/// What happens to a request that a rule matches. Neither is counted.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
#[cfg_attr(feature = "serde", derive(serde::Serialize, serde::Deserialize))]
#[cfg_attr(feature = "serde", serde(rename_all = "snake_case"))]
pub enum Action {
    /// The request passes.
    Allow,
    /// The request is refused.
    Deny,
}

impl Action {
    /// The name in files: `allow` or `deny`.
    #[must_use]
    pub const fn as_str(self) -> &'static str {
        match self {
            Self::Allow => "allow",
            Self::Deny => "deny",
        }
    }
}

/// What a rule compares, and how.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
#[non_exhaustive]
pub enum Field {
    /// The client's address is in this network: `192.0.2.0/24`, `2001:db8::/32`, or a single address.
    Network,
    /// The user is this one, in any spelling that has the same normal form.
    User,
    /// The name of the user contains this keyword. Unicode case-insensitive.
    UserKeyword,
    /// The `User-Agent` contains this keyword. ASCII case-insensitive.
    UserAgent,
    /// The path is this one. Case-sensitive, as paths are.
    Path,
    /// The path is this one or below it: `/admin` matches `/admin` and `/admin/users`, not `/administrator`.
    PathPrefix,
}

impl Field {
    /// All fields, in the order in which documentation lists them.
    pub const ALL: [Self; 6] = [
        Self::Network,
        Self::User,
        Self::UserKeyword,
        Self::UserAgent,
        Self::Path,
        Self::PathPrefix,
    ];

    /// The name in files: `network`, `user`, `user_keyword`, `user_agent`, `path` or `path_prefix`.
    #[must_use]
    pub const fn as_str(self) -> &'static str {
        match self {
            Self::Network => "network",
            Self::User => "user",
            Self::UserKeyword => "user_keyword",
            Self::UserAgent => "user_agent",
            Self::Path => "path",
            Self::PathPrefix => "path_prefix",
        }
    }

    /// Whether a client can send any value of this field to any handler. It can't choose its address, and
    /// with another path it reaches another handler.
    #[must_use]
    pub const fn is_forgeable(self) -> bool {
        matches!(self, Self::User | Self::UserKeyword | Self::UserAgent)
    }
}

/// A rule of an access list: allow or deny what matches. See [the module](super) for an example.
///
/// A rule by user has the name in clear: it is compared with what clients type, and shown to operators. It is in
/// clear wherever the rule is stored: in a file, or in the ruleset of a fleet in Redis. The [`Debug`] form does not show it.
#[derive(Clone, PartialEq, Eq)]
#[must_use = "a rule does nothing until it is part of a set"]
pub struct AccessRule {
    name: Box<str>,
    action: Action,
    pattern: Pattern,
    /// The only user that a rule by network is about.
    user: Option<Box<str>>,
    expires_at: Option<Millis>,
    author: Option<Box<str>>,
    note: Option<Box<str>>,
}

impl AccessRule {
    /// A rule that passes matching requests to the handler without counting them.
    ///
    /// # Errors
    ///
    /// If the name or the value is invalid, if the value matches every address or every path, or if the field
    /// is [forgeable](Field::is_forgeable).
    pub fn allow(
        name: impl Into<String>,
        field: Field,
        value: impl AsRef<str>,
    ) -> Result<Self, PolicyError> {
        let rule = Self::new(name.into(), Action::Allow, field, value.as_ref())?;
        if field.is_forgeable() {
            return Err(rule.invalid(
                field.as_str(),
                "any client can send this, and would then guess passwords without a limit; allow a network in place of it, or accept that: `forgeable = true`, in Rust `AccessRule::allow_forgeable`",
            ));
        }
        Ok(rule)
    }

    /// A rule that passes matching requests although any client can make its requests match: it sends the user
    /// agent that the rule requires, or guesses at the user that the rule exempts, **without a limit**.
    ///
    /// For what has no password that can be guessed, such as a service account with a long random token.
    ///
    /// # Errors
    ///
    /// If the name or the value is invalid, or the field is not [forgeable](Field::is_forgeable).
    pub fn allow_forgeable(
        name: impl Into<String>,
        field: Field,
        value: impl AsRef<str>,
    ) -> Result<Self, PolicyError> {
        let rule = Self::new(name.into(), Action::Allow, field, value.as_ref())?;
        if !field.is_forgeable() {
            return Err(rule.not_forgeable());
        }
        Ok(rule)
    }

    /// A rule that refuses matching requests without counting them.
    ///
    /// # Errors
    ///
    /// If the name or the value is invalid, or the value matches every address or every path.
    pub fn deny(
        name: impl Into<String>,
        field: Field,
        value: impl AsRef<str>,
    ) -> Result<Self, PolicyError> {
        Self::new(name.into(), Action::Deny, field, value.as_ref())
    }

    fn new(name: String, action: Action, field: Field, value: &str) -> Result<Self, PolicyError> {
        check_name(&name)?;
        let pattern = Pattern::parse(action, field, value)
            .map_err(|reason| invalid(&name, field.as_str(), reason))?;
        Ok(Self {
            name: name.into(),
            action,
            pattern,
            user: None,
            expires_at: None,
            author: None,
            note: None,
        })
    }

    /// Restricts a rule by network to one user, in any spelling that has the same normal form: alice may log in
    /// from the office without a limit, or not at all from another network. Since the network can't be forged,
    /// neither can such a rule.
    ///
    /// # Errors
    ///
    /// If the rule is not by network, or the user is invalid.
    pub fn for_user(mut self, user: impl AsRef<str>) -> Result<Self, PolicyError> {
        if self.field() != Field::Network {
            return Err(self.invalid(
                Field::User.as_str(),
                format!(
                    "is a second condition beside {}; only a network can have a user too",
                    self.field().as_str()
                ),
            ));
        }
        let user = user.as_ref();
        Pattern::parse(self.action, Field::User, user)
            .map_err(|reason| self.invalid(Field::User.as_str(), reason))?;
        self.user = Some(user.into());
        Ok(self)
    }

    /// Ends the rule at this time, in milliseconds since 1970. From then on it is as if absent.
    ///
    /// # Errors
    ///
    /// If the time is after the year 9999.
    pub fn with_expiry(mut self, at: Millis) -> Result<Self, PolicyError> {
        if at > MAX_EXPIRY {
            let reason = format!(
                "{at} ms is after the year 9999; leave it out for a rule that does not expire"
            );
            return Err(self.invalid("expires", reason));
        }
        self.expires_at = Some(at);
        Ok(self)
    }

    /// Records who has added the rule.
    ///
    /// # Errors
    ///
    /// If it is blank, has control characters or more than 200 bytes.
    pub fn with_author(mut self, author: impl Into<String>) -> Result<Self, PolicyError> {
        let author = self.check_text("author", author.into(), MAX_AUTHOR_LEN)?;
        self.author = Some(author);
        Ok(self)
    }

    /// Records why the rule exists.
    ///
    /// # Errors
    ///
    /// If it is blank, has control characters or more than 1,000 bytes.
    pub fn with_note(mut self, note: impl Into<String>) -> Result<Self, PolicyError> {
        let note = self.check_text("note", note.into(), MAX_NOTE_LEN)?;
        self.note = Some(note);
        Ok(self)
    }

    /// Notes appear in logs and consoles, where a line break or an escape sequence would forge other lines.
    fn check_text(
        &self,
        field: &str,
        text: String,
        max_len: usize,
    ) -> Result<Box<str>, PolicyError> {
        if text.trim().is_empty() {
            return Err(self.invalid(field, "is blank; leave it out"));
        }
        if text.chars().any(char::is_control) {
            return Err(self.invalid(field, "has a control character; write it in one line"));
        }
        if text.len() > max_len {
            let reason = format!("has {} bytes; must have {max_len} at most", text.len());
            return Err(self.invalid(field, reason));
        }
        Ok(text.into())
    }

    /// The name, by which the rule is removed.
    pub fn name(&self) -> &str {
        &self.name
    }

    /// Allow or deny.
    pub const fn action(&self) -> Action {
        self.action
    }

    /// What the rule compares.
    pub const fn field(&self) -> Field {
        self.pattern.field()
    }

    /// What the field is compared with: networks in canonical form, everything else as written.
    pub fn value(&self) -> String {
        self.pattern.to_string()
    }

    /// The only user that a rule by network [is about](Self::for_user), as written.
    pub fn only_user(&self) -> Option<&str> {
        self.user.as_deref()
    }

    /// When the rule expires, in milliseconds since 1970. `None` if it does not.
    pub const fn expires_at(&self) -> Option<Millis> {
        self.expires_at
    }

    /// Who has added the rule.
    pub fn author(&self) -> Option<&str> {
        self.author.as_deref()
    }

    /// Why the rule exists.
    pub fn note(&self) -> Option<&str> {
        self.note.as_deref()
    }

    /// Whether the rule has expired at `now`, in milliseconds since 1970.
    #[must_use]
    pub fn is_expired(&self, now: Millis) -> bool {
        self.expires_at.is_some_and(|at| at <= now)
    }

    /// Whether any client can make its requests match this rule, and pass by that.
    #[must_use]
    pub fn is_forgeable(&self) -> bool {
        self.action == Action::Allow && self.field().is_forgeable()
    }

    pub(super) const fn pattern(&self) -> &Pattern {
        &self.pattern
    }

    pub(super) fn invalid(&self, field: &str, reason: impl Into<String>) -> PolicyError {
        invalid(&self.name, field, reason)
    }

    pub(super) fn not_forgeable(&self) -> PolicyError {
        self.invalid(
            "forgeable",
            "is for rules that allow by user, user_keyword or user_agent; leave it out",
        )
    }
}

/// Does not show users, or parts of their names: logs must not name people.
impl fmt::Debug for AccessRule {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let names_user = matches!(self.field(), Field::User | Field::UserKeyword);
        let value = if names_user {
            "***".to_owned()
        } else {
            self.value()
        };
        f.debug_struct("AccessRule")
            .field("name", &self.name)
            .field("action", &self.action)
            .field("field", &self.field())
            .field("value", &value)
            .field("only_user", &self.user.as_ref().map(|_| "***"))
            .field("expires_at", &self.expires_at)
            .field("author", &self.author)
            .field("note", &self.note)
            .finish()
    }
}

/// An error of a field of the rule `name`.
pub(super) fn invalid(name: &str, field: &str, reason: impl Into<String>) -> PolicyError {
    PolicyError::new(format!("access.{name}.{field}"), reason)
}

/// Longer than the names of limits: a console may name rules by UUIDs.
fn check_name(name: &str) -> Result<(), PolicyError> {
    let is_allowed = |c: char| c.is_ascii_alphanumeric() || matches!(c, '-' | '_' | '.');
    if (1..=MAX_NAME_LEN).contains(&name.len()) && name.chars().all(is_allowed) {
        return Ok(());
    }
    // A name of any length and content may come from a form.
    let shown: String = name.chars().take(MAX_NAME_LEN).collect();
    Err(PolicyError::new(
        format!("access rule {shown:?}"),
        "a name has 1 to 64 letters, digits, '-', '_' or '.'",
    ))
}

#[cfg(test)]
mod tests {
    use super::*;

    fn error(rule: Result<AccessRule, PolicyError>) -> String {
        rule.expect_err("invalid").to_string()
    }

    #[test]
    fn errors_name_the_rule_and_the_field() {
        let rule = AccessRule::deny("scanner", Field::UserAgent, "sqlmap").unwrap();
        for (error, part) in [
            (rule.clone().with_expiry(u64::MAX), "access.scanner.expires"),
            (rule.clone().with_author(" "), "access.scanner.author"),
            (rule.clone().with_note("a\nb"), "access.scanner.note"),
            (
                rule.clone().with_note("a".repeat(1_001)),
                "access.scanner.note",
            ),
            (
                AccessRule::deny("n", Field::Network, "x"),
                "access.n.network",
            ),
        ] {
            assert_eq!(error.unwrap_err().part(), part);
        }
        for name in ["", "a b", "ä", &"a".repeat(65)] {
            let error = error(AccessRule::deny(name, Field::UserAgent, "sqlmap"));
            assert!(error.contains("1 to 64 letters"), "{error}");
        }
        let uuid = "0190a1b2-c3d4-7e5f-8a9b-0c1d2e3f4a5b";
        assert!(AccessRule::deny(uuid, Field::UserAgent, "sqlmap").is_ok());
    }

    #[test]
    fn allowing_what_a_client_can_forge_takes_a_word_of_its_own() {
        for field in Field::ALL {
            let value = match field {
                Field::Network => "192.0.2.0/24",
                Field::Path | Field::PathPrefix => "/status",
                _ => "monitor",
            };
            let allowed = AccessRule::allow("rule", field, value);
            let forgeable = AccessRule::allow_forgeable("rule", field, value);
            if field.is_forgeable() {
                let error = error(allowed);
                assert!(error.contains("forgeable = true"), "{error}");
                assert!(forgeable.unwrap().is_forgeable());
            } else {
                assert!(!allowed.unwrap().is_forgeable());
                assert_eq!(forgeable.unwrap_err().part(), "access.rule.forgeable");
            }
            let denied = AccessRule::deny("rule", field, value).unwrap();
            assert!(!denied.is_forgeable());
        }
    }

    #[test]
    fn a_rule_expires_at_its_expiry() {
        let rule = AccessRule::deny("rule", Field::UserAgent, "sqlmap").unwrap();
        assert!(!rule.is_expired(u64::MAX));
        let rule = rule.with_expiry(1_000).unwrap();
        assert!(!rule.is_expired(999));
        assert!(rule.is_expired(1_000));
    }
}
