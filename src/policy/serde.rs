//! The form in which a policy stands in a file.

use std::time::Duration;

use serde::{Deserialize, Serialize};

use super::{KnownAddresses, LimitBuilder, Part, Policy, PolicyError, Rule};
use crate::{
    Limit, Period,
    algorithm::{Block, Millis, SlidingWindow},
};

#[derive(Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
struct PolicyFile {
    #[serde(default, skip_serializing_if = "Option::is_none")]
    lease: Option<Period>,
    #[serde(default, skip_serializing_if = "Option::is_none")]
    ipv6_prefix: Option<u8>,
    #[serde(default, skip_serializing_if = "Option::is_none")]
    known_addresses: Option<KnownAddressesFile>,
    #[serde(default, skip_serializing_if = "Option::is_none")]
    rules: Option<Vec<RuleFile>>,
}

#[derive(Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
struct KnownAddressesFile {
    newest: Option<u32>,
    kept_for: Option<Period>,
}

#[derive(Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
struct RuleFile {
    name: String,
    #[serde(default, skip_serializing_if = "Option::is_none")]
    key: Option<Vec<String>>,
    limit: u32,
    within: Period,
    #[serde(default, skip_serializing_if = "Option::is_none")]
    block: Option<String>,
    #[serde(default = "on")]
    enabled: bool,
}

/// A block that is none: pure sliding.
const NO_BLOCK: &str = "none";

const fn on() -> bool {
    true
}

impl TryFrom<PolicyFile> for Policy {
    type Error = PolicyError;

    fn try_from(file: PolicyFile) -> Result<Self, Self::Error> {
        let mut policy = match file.rules {
            Some(rules) if rules.is_empty() => {
                return Err(PolicyError::new(
                    "rules",
                    "is empty, so nothing would be limited; leave it out for the default ones",
                ));
            }
            Some(rules) => Self::new(
                rules
                    .into_iter()
                    .map(Rule::try_from)
                    .collect::<Result<Vec<_>, _>>()?,
            )?,
            None => Self::default(),
        };
        if let Some(lease) = file.lease {
            policy = policy.with_lease(finite("lease", lease)?)?;
        }
        if let Some(bits) = file.ipv6_prefix {
            policy = policy.with_ipv6_prefix(bits)?;
        }
        if let Some(file) = file.known_addresses {
            let default = KnownAddresses::default();
            let kept_for = file.kept_for.unwrap_or(Period::Of(default.kept_for));
            policy = policy.with_known_addresses(KnownAddresses::new(
                file.newest.unwrap_or(default.newest),
                finite("known_addresses.kept_for", kept_for)?,
            )?);
        }
        Ok(policy)
    }
}

impl From<&Policy> for PolicyFile {
    fn from(policy: &Policy) -> Self {
        Self {
            lease: Some(Period::Of(policy.lease)),
            ipv6_prefix: Some(policy.ipv6_prefix),
            known_addresses: policy.known_addresses.map(|keep| KnownAddressesFile {
                newest: Some(keep.newest),
                kept_for: Some(Period::Of(keep.kept_for)),
            }),
            rules: Some(policy.rules.iter().map(RuleFile::from).collect()),
        }
    }
}

impl TryFrom<RuleFile> for Rule {
    type Error = PolicyError;

    fn try_from(file: RuleFile) -> Result<Self, Self::Error> {
        let parts = match (file.key, file.name.as_str()) {
            (Some(key), name) => (key.iter())
                .map(|word| Part::from_word(word, name))
                .collect::<Result<_, _>>()?,
            (None, Self::ADDRESS) => vec![Part::Address],
            (None, Self::USER_ADDRESS) => vec![Part::User, Part::Address],
            (None, name) => {
                return Err(PolicyError::new(
                    format!("{name}.key"),
                    "is missing; only \"address\" and \"user-address\" have one by themselves",
                ));
            }
        };
        let limit = Limit::attempts(file.limit).within(file.within);
        let limit: LimitBuilder = match file.block.as_deref() {
            None => limit,
            Some(block) if block.eq_ignore_ascii_case(NO_BLOCK) => limit.without_block(),
            Some(block) => limit.blocked_for(block.parse::<Period>().map_err(|error| {
                PolicyError::new(format!("{}.block", file.name), error.to_string())
            })?),
        };
        Ok(Self::new(file.name, parts, limit)?.enabled(file.enabled))
    }
}

impl From<&Rule> for RuleFile {
    fn from(rule: &Rule) -> Self {
        let Limit::SlidingWindow(SlidingWindow {
            limit,
            window,
            block,
        }) = *rule.limit();
        Self {
            name: rule.name().to_owned(),
            key: Some(rule.parts().iter().map(Part::to_word).collect()),
            limit,
            within: period(window),
            block: Some(match block {
                Block::Sliding => NO_BLOCK.to_owned(),
                Block::For(block) => period(Some(block)).to_string(),
                Block::Forever => Period::Forever.to_string(),
            }),
            enabled: rule.is_enabled(),
        }
    }
}

impl Part {
    fn from_word(word: &str, rule: &str) -> Result<Self, PolicyError> {
        match (word, word.strip_prefix("value:")) {
            ("address", _) => Ok(Self::Address),
            ("user", _) => Ok(Self::User),
            (_, Some(name)) => Ok(Self::value(name)),
            _ => Err(PolicyError::new(
                format!("{rule}.key"),
                format!(
                    "{word:?} is none of \"address\", \"user\" and \"value:…\" with the name of a value of the app's own"
                ),
            )),
        }
    }

    fn to_word(&self) -> String {
        match self {
            Self::Address => "address".to_owned(),
            Self::User => "user".to_owned(),
            Self::Value(name) => format!("value:{name}"),
        }
    }
}

fn period(millis: Option<Millis>) -> Period {
    millis.map_or(Period::Forever, |millis| {
        Period::Of(Duration::from_millis(millis))
    })
}

fn finite(part: &str, period: Period) -> Result<Duration, PolicyError> {
    period
        .as_duration()
        .ok_or_else(|| PolicyError::new(part, "can't be for ever"))
}

impl Serialize for Policy {
    fn serialize<S: serde::Serializer>(&self, serializer: S) -> Result<S::Ok, S::Error> {
        PolicyFile::from(self).serialize(serializer)
    }
}

impl<'de> Deserialize<'de> for Policy {
    fn deserialize<D: serde::Deserializer<'de>>(deserializer: D) -> Result<Self, D::Error> {
        PolicyFile::deserialize(deserializer)?
            .try_into()
            .map_err(serde::de::Error::custom)
    }
}
