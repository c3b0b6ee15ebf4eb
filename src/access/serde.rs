//! Access rules in files.

use std::fmt;

use serde::{Deserialize, Deserializer, Serialize, Serializer, de};

use super::{AccessRule, AccessRules, Field, rule::invalid};
use crate::{PolicyError, algorithm::Millis, timestamp};

/// A rule. Flat, with a field for each kind of value: an error names the rule and the field, and a list of
/// rules is easy to scan.
#[derive(Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
struct RuleFile {
    name: String,
    action: String,
    #[serde(skip_serializing_if = "Option::is_none")]
    network: Option<String>,
    #[serde(skip_serializing_if = "Option::is_none")]
    user: Option<String>,
    #[serde(skip_serializing_if = "Option::is_none")]
    user_keyword: Option<String>,
    #[serde(skip_serializing_if = "Option::is_none")]
    user_agent: Option<String>,
    #[serde(skip_serializing_if = "Option::is_none")]
    path: Option<String>,
    #[serde(skip_serializing_if = "Option::is_none")]
    path_prefix: Option<String>,
    #[serde(default, skip_serializing_if = "is_false")]
    forgeable: bool,
    #[serde(skip_serializing_if = "Option::is_none")]
    expires: Option<Expiry>,
    #[serde(skip_serializing_if = "Option::is_none")]
    author: Option<String>,
    #[serde(skip_serializing_if = "Option::is_none")]
    note: Option<String>,
}

#[allow(clippy::trivially_copy_pass_by_ref)] // serde passes a reference
const fn is_false(value: &bool) -> bool {
    !*value
}

impl RuleFile {
    fn value(&mut self, field: Field) -> &mut Option<String> {
        match field {
            Field::Network => &mut self.network,
            Field::User => &mut self.user,
            Field::UserKeyword => &mut self.user_keyword,
            Field::UserAgent => &mut self.user_agent,
            Field::Path => &mut self.path,
            Field::PathPrefix => &mut self.path_prefix,
        }
    }
}

impl TryFrom<RuleFile> for AccessRule {
    type Error = PolicyError;

    fn try_from(mut file: RuleFile) -> Result<Self, PolicyError> {
        let name = file.name.clone();
        let mut values = Vec::new();
        for field in Field::ALL {
            values.extend(file.value(field).take().map(|value| (field, value)));
        }
        let names = Field::ALL.map(Field::as_str).join(", ");
        let mut only_user = None;
        let (field, value) = match &values[..] {
            [(field, value)] => (*field, value),
            [(Field::Network, network), (Field::User, user)] => {
                only_user = Some(user);
                (Field::Network, network)
            }
            [] => {
                let reason = format!("is missing; set one of {names}");
                return Err(invalid(&name, "network", reason));
            }
            [_, (second, _), ..] => {
                let reason = format!(
                    "is a second condition; set one of {names}, or network and user, and write a rule for each"
                );
                return Err(invalid(&name, second.as_str(), reason));
            }
        };
        let mut rule = match (&*file.action, file.forgeable) {
            ("allow", true) => Self::allow_forgeable(name, field, value)?,
            ("allow", false) => Self::allow(name, field, value)?,
            ("deny", true) => return Err(Self::deny(name, field, value)?.not_forgeable()),
            ("deny", false) => Self::deny(name, field, value)?,
            (other, _) => {
                let reason = format!("{other:?} is neither \"allow\" nor \"deny\"");
                return Err(invalid(&name, "action", reason));
            }
        };
        if let Some(user) = only_user {
            rule = rule.for_user(user)?;
        }
        if let Some(Expiry(text)) = file.expires {
            let time = timestamp::parse(&text).ok_or_else(|| {
                let reason = format!("cannot read {text:?}: write a time from 1970 to 9999 like \"2026-12-31T18:00:00Z\"");
                rule.invalid("expires", reason)
            })?;
            rule = rule.with_expiry(time)?;
        }
        if let Some(author) = file.author {
            rule = rule.with_author(author)?;
        }
        if let Some(note) = file.note {
            rule = rule.with_note(note)?;
        }
        Ok(rule)
    }
}

impl From<&AccessRule> for RuleFile {
    fn from(rule: &AccessRule) -> Self {
        let mut file = Self {
            name: rule.name().to_owned(),
            action: rule.action().as_str().to_owned(),
            network: None,
            user: None,
            user_keyword: None,
            user_agent: None,
            path: None,
            path_prefix: None,
            forgeable: rule.is_forgeable(),
            expires: rule.expires_at().map(Expiry::from),
            author: rule.author().map(str::to_owned),
            note: rule.note().map(str::to_owned),
        };
        *file.value(rule.field()) = Some(rule.value());
        if let Some(user) = rule.only_user() {
            file.user = Some(user.to_owned());
        }
        file
    }
}

/// The text of a time. TOML has times of its own, which other formats have not: the error asks for quotes.
#[derive(Serialize)]
struct Expiry(String);

impl From<Millis> for Expiry {
    fn from(time: Millis) -> Self {
        Self(timestamp::to_text(time))
    }
}

impl<'de> Deserialize<'de> for Expiry {
    fn deserialize<D: Deserializer<'de>>(deserializer: D) -> Result<Self, D::Error> {
        struct Text;

        impl de::Visitor<'_> for Text {
            type Value = Expiry;

            fn expecting(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
                f.write_str("a time in quotes, like \"2026-12-31T18:00:00Z\"")
            }

            fn visit_str<E: de::Error>(self, text: &str) -> Result<Expiry, E> {
                Ok(Expiry(text.to_owned()))
            }
        }

        deserializer.deserialize_str(Text)
    }
}

impl Serialize for AccessRule {
    fn serialize<S: Serializer>(&self, serializer: S) -> Result<S::Ok, S::Error> {
        RuleFile::from(self).serialize(serializer)
    }
}

impl<'de> Deserialize<'de> for AccessRule {
    fn deserialize<D: Deserializer<'de>>(deserializer: D) -> Result<Self, D::Error> {
        let file = RuleFile::deserialize(deserializer)?;
        file.try_into().map_err(de::Error::custom)
    }
}

/// The list of the rules.
impl Serialize for AccessRules {
    fn serialize<S: Serializer>(&self, serializer: S) -> Result<S::Ok, S::Error> {
        serializer.collect_seq(self.rules())
    }
}

/// Users are compared in the form of [`normalize`](crate::normalize) until
/// [another one](AccessRules::with_normalizer) is set.
impl<'de> Deserialize<'de> for AccessRules {
    fn deserialize<D: Deserializer<'de>>(deserializer: D) -> Result<Self, D::Error> {
        let rules = Vec::<AccessRule>::deserialize(deserializer)?;
        Self::new(rules).map_err(de::Error::custom)
    }
}
