//! What a rule matches, validated.

use std::fmt;

use ipnet::IpNet;

use super::{Action, Field, keywords, network, paths};

const MAX_KEYWORD_LEN: usize = 100;
const MAX_USER_LEN: usize = 320;
const MAX_PATH_LEN: usize = 1_000;

#[derive(Clone, Debug, PartialEq, Eq)]
pub(super) enum Pattern {
    Network(IpNet),
    User(Box<str>),
    UserKeyword(Box<str>),
    UserAgent(Box<str>),
    Path(Box<str>),
    PathPrefix(Box<str>),
}

impl Pattern {
    /// Reads a value; the error is the reason, and what to write.
    pub(super) fn parse(action: Action, field: Field, value: &str) -> Result<Self, String> {
        let max_len = match field {
            Field::Network => usize::MAX,
            Field::User => MAX_USER_LEN,
            Field::UserKeyword | Field::UserAgent => MAX_KEYWORD_LEN,
            Field::Path | Field::PathPrefix => MAX_PATH_LEN,
        };
        if value.len() > max_len {
            return Err(format!(
                "has {} bytes; must have {max_len} at most",
                value.len()
            ));
        }
        if value.trim().is_empty() {
            return Err("is blank; write what to match".to_owned());
        }
        match field {
            Field::Network => network::parse(action, value).map(Self::Network),
            Field::User => Ok(Self::User(value.into())),
            Field::UserKeyword if keywords::fold(value).trim().is_empty() => {
                Err("has invisible characters only, which are ignored; write letters".to_owned())
            }
            Field::UserKeyword => Ok(Self::UserKeyword(value.into())),
            // Other bytes of a header have no encoding that both sides agree on.
            Field::UserAgent if !value.bytes().all(|b| b == b' ' || b.is_ascii_graphic()) => {
                Err("has characters that are not printable ASCII; a User-Agent has no others, write a part of it that is".to_owned())
            }
            Field::UserAgent => Ok(Self::UserAgent(value.into())),
            Field::Path => check_path(action, value).map(|()| Self::Path(value.into())),
            Field::PathPrefix if value == "/" => {
                Err(match action {
                    Action::Allow => "matches every path, so nothing would be limited; remove the layer in place of that",
                    Action::Deny => "matches every path, so every login would be refused; write the prefixes that are meant",
                }
                .to_owned())
            }
            Field::PathPrefix => check_path(action, value).map(|()| Self::PathPrefix(value.into())),
        }
    }

    pub(super) const fn field(&self) -> Field {
        match self {
            Self::Network(_) => Field::Network,
            Self::User(_) => Field::User,
            Self::UserKeyword(_) => Field::UserKeyword,
            Self::UserAgent(_) => Field::UserAgent,
            Self::Path(_) => Field::Path,
            Self::PathPrefix(_) => Field::PathPrefix,
        }
    }
}

fn check_path(action: Action, path: &str) -> Result<(), String> {
    paths::check(path)?;
    if action == Action::Allow && !path.bytes().all(|b| b.is_ascii_graphic()) {
        return Err("has characters that clients percent-encode, and no rule allows an encoded path; write a path of plain ASCII".to_owned());
    }
    Ok(())
}

/// The value as it is written in a file.
impl fmt::Display for Pattern {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Self::Network(network) if network.prefix_len() == network.max_prefix_len() => {
                network.addr().fmt(f)
            }
            Self::Network(network) => network.fmt(f),
            Self::User(text)
            | Self::UserKeyword(text)
            | Self::UserAgent(text)
            | Self::Path(text)
            | Self::PathPrefix(text) => f.write_str(text),
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn values_that_match_nothing_or_everything_are_refused() {
        for (field, value, word) in [
            (Field::User, " ", "blank"),
            (Field::UserKeyword, "", "blank"),
            (Field::UserKeyword, "\u{200b}\u{ad}", "invisible"),
            (Field::UserAgent, "  ", "blank"),
            (Field::UserAgent, "Müller", "printable ASCII"),
            (Field::UserAgent, "a\tb", "printable ASCII"),
            (Field::Path, "login", "\"/login\""),
            (Field::Path, "/a//b", "empty segment"),
            (Field::Path, "/a%20b", "%"),
            (Field::PathPrefix, "/admin/", "\"/admin\""),
            (Field::PathPrefix, "/a/../b", ".."),
            (Field::PathPrefix, "/", "every path"),
        ] {
            for action in [Action::Allow, Action::Deny] {
                let reason = Pattern::parse(action, field, value).expect_err(value);
                assert!(reason.contains(word), "{value:?}: {reason}");
            }
        }
        for field in Field::ALL {
            let long = format!("/{}", "a".repeat(1_000));
            assert!(
                Pattern::parse(Action::Deny, field, &long).is_err(),
                "{field:?}"
            );
        }
        assert!(Pattern::parse(Action::Allow, Field::Path, "/käse").is_err());
        assert!(Pattern::parse(Action::Deny, Field::Path, "/käse").is_ok());
        // The root itself is one path.
        assert!(Pattern::parse(Action::Allow, Field::Path, "/").is_ok());
    }
}
