//! Policies and rulesets in files.

use std::{ffi::OsStr, fs, path::Path};

use serde::de::DeserializeOwned;
use tower_login_rate_limit::{
    Policy,
    access::AccessRules,
    live::{Canary, Ruleset},
};

use crate::failure::Failure;

/// What a file contains.
#[derive(Clone, Debug)]
pub(crate) enum Contents {
    /// The limits alone: access rules stay as they are.
    Policy(Policy),
    Ruleset(Ruleset),
}

impl Contents {
    pub(crate) const fn policy(&self) -> &Policy {
        match self {
            Self::Policy(policy) => policy,
            Self::Ruleset(ruleset) => &ruleset.policy,
        }
    }

    pub(crate) const fn canary(&self) -> Option<&Canary> {
        match self {
            Self::Policy(_) => None,
            Self::Ruleset(ruleset) => ruleset.canary.as_ref(),
        }
    }

    /// The ruleset that replaces `current`.
    pub(crate) fn over(self, current: &Ruleset) -> Ruleset {
        match self {
            Self::Policy(policy) => current.clone().without_canary(false).with_policy(policy),
            Self::Ruleset(ruleset) => ruleset,
        }
    }

    pub(crate) fn access(&self) -> Option<&AccessRules> {
        match self {
            Self::Policy(_) => None,
            Self::Ruleset(ruleset) => Some(&ruleset.access),
        }
    }
}

/// Reads a file, TOML or JSON.
pub(crate) fn read(path: &Path) -> Result<Contents, Failure> {
    let about = |failure: Failure| failure.about(path.display());
    let text = fs::read_to_string(path).map_err(|error| about(error.into()))?;
    let is_json = match path.extension().and_then(OsStr::to_str) {
        Some("json") => true,
        Some("toml") => false,
        _ => text.trim_start().starts_with('{'),
    };
    let format = if is_json { Format::Json } else { Format::Toml };
    format.parse(&text).map_err(about)
}

/// Reads a file of which only the limits are wanted.
pub(crate) fn read_policy(path: &Path) -> Result<Policy, Failure> {
    read(path).map(|contents| contents.policy().clone())
}

#[derive(Clone, Copy)]
enum Format {
    Json,
    Toml,
}

impl Format {
    fn parse(self, text: &str) -> Result<Contents, Failure> {
        // Which of both it is decides what an error is about.
        let is_ruleset = match self {
            Self::Json => {
                let value: serde_json::Value = self.read(text)?;
                value.get("policy").is_some()
            }
            Self::Toml => {
                let value: toml::Table = self.read(text)?;
                value.contains_key("policy")
            }
        };
        if is_ruleset {
            self.read(text).map(Contents::Ruleset)
        } else {
            self.read(text).map(Contents::Policy)
        }
    }

    fn read<T: DeserializeOwned>(self, text: &str) -> Result<T, Failure> {
        match self {
            Self::Json => serde_json::from_str(text).map_err(Failure::from),
            Self::Toml => toml::from_str(text).map_err(|error| toml_failure(text, &error)),
        }
    }
}

/// The error in one line, without the excerpt.
pub(crate) fn toml_failure(text: &str, error: &toml::de::Error) -> Failure {
    let message = error.message().lines().collect::<Vec<_>>().join(" ");
    let line = error.span().filter(|span| span.start > 0).map(|span| {
        let before = text.get(..span.start).unwrap_or_default();
        before.matches('\n').count() + 1
    });
    Failure::error(match line {
        Some(line) => format!("line {line}: {message}"),
        None => message,
    })
}
