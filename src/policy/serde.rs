//! Policies in files.

use std::time::Duration;

use serde::{Deserialize, Deserializer, Serialize, Serializer, de::Error};

use super::{KnownAddresses, Part, Policy, PolicyError, Rule};
use crate::{Limit, Period, algorithm::Algorithm};

/// A policy. Periods are read as text, here and below, so that an error names the rule and the field.
#[derive(Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
struct PolicyFile {
    #[serde(skip_serializing_if = "Option::is_none")]
    lease: Option<String>,
    #[serde(skip_serializing_if = "Option::is_none")]
    ipv6_prefix: Option<u8>,
    #[serde(skip_serializing_if = "Option::is_none")]
    known_addresses: Option<KnownAddressesFile>,
    #[serde(skip_serializing_if = "Option::is_none")]
    rules: Option<Vec<RuleFile>>,
}

#[derive(Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
struct KnownAddressesFile {
    newest: Option<u32>,
    kept_for: Option<String>,
}

/// A rule, with the fields of every algorithm. Not an enum tagged by `algorithm`: serde has no default for a
/// tag, and an error would name neither the rule nor what to write.
#[derive(Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
struct RuleFile {
    name: String,
    #[serde(skip_serializing_if = "Option::is_none")]
    key: Option<Vec<String>>,
    #[serde(default, skip_serializing_if = "is_default")]
    algorithm: Algorithm,
    #[serde(skip_serializing_if = "Option::is_none")]
    limit: Option<u32>,
    #[serde(skip_serializing_if = "Option::is_none")]
    within: Option<String>,
    #[serde(skip_serializing_if = "Option::is_none")]
    block: Option<BlockFile>,
    #[serde(skip_serializing_if = "Option::is_none")]
    again_within: Option<String>,
    #[serde(skip_serializing_if = "Option::is_none")]
    waits: Option<Vec<String>>,
    #[serde(skip_serializing_if = "Option::is_none")]
    jitter: Option<u32>,
    #[serde(skip_serializing_if = "Option::is_none")]
    forgotten_after: Option<String>,
    #[serde(skip_serializing_if = "Option::is_none")]
    exempt_known_addresses: Option<bool>,
    #[serde(default = "enabled")]
    enabled: bool,
    #[serde(default, skip_serializing_if = "std::ops::Not::not")]
    shadow: bool,
}

fn is_default(algorithm: &Algorithm) -> bool {
    *algorithm == Algorithm::default()
}

const fn enabled() -> bool {
    true
}

/// One length, or several of blocks that grow.
#[derive(Serialize, Deserialize)]
#[serde(
    untagged,
    expecting = "a block is a length like \"24h\", \"forever\" or \"none\", or a list of lengths"
)]
enum BlockFile {
    One(String),
    Growing(Vec<String>),
}

/// The `block` of a limit without one.
const NO_BLOCK: &str = "none";

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
            Some(rules) => {
                let rules = rules.into_iter().map(Rule::try_from);
                Self::new(rules.collect::<Result<Vec<_>, _>>()?)?
            }
            None => Self::default(),
        };
        if let Some(lease) = file.lease {
            policy = policy.with_lease(duration("lease", &lease)?)?;
        }
        if let Some(bits) = file.ipv6_prefix {
            policy = policy.with_ipv6_prefix(bits)?;
        }
        if let Some(file) = file.known_addresses {
            let default = KnownAddresses::default();
            let newest = file.newest.unwrap_or(default.newest());
            let kept_for = match file.kept_for {
                Some(text) => duration("known_addresses.kept_for", &text)?,
                None => default.kept_for(),
            };
            policy = policy.with_known_addresses(KnownAddresses::new(newest, kept_for)?);
        }
        Ok(policy)
    }
}

impl From<&Policy> for PolicyFile {
    fn from(policy: &Policy) -> Self {
        Self {
            lease: Some(Period::Of(policy.lease).to_string()),
            ipv6_prefix: Some(policy.ipv6_prefix),
            known_addresses: policy.known_addresses.map(|keep| KnownAddressesFile {
                newest: Some(keep.newest()),
                kept_for: Some(Period::Of(keep.kept_for()).to_string()),
            }),
            rules: Some(policy.rules.iter().map(RuleFile::from).collect()),
        }
    }
}

impl TryFrom<RuleFile> for Rule {
    type Error = PolicyError;

    fn try_from(file: RuleFile) -> Result<Self, Self::Error> {
        let limit = file.to_limit().map_err(|error| error.within(&file.name))?;
        let parts = file.to_parts().map_err(|error| error.within(&file.name))?;
        let is_account = file.name == Self::ACCOUNT;
        let rule = Self::new(file.name, parts, limit)?
            .with_enabled(file.enabled)
            .with_shadow(file.shadow);
        if file.exempt_known_addresses.unwrap_or(is_account) {
            rule.with_known_addresses_exempt()
        } else {
            Ok(rule)
        }
    }
}

impl RuleFile {
    fn to_parts(&self) -> Result<Vec<Part>, PolicyError> {
        match (&self.key, Rule::predefined_parts(&self.name)) {
            (Some(key), _) => key.iter().map(|text| Part::from_text(text)).collect(),
            (None, Some(parts)) => Ok(parts.to_vec()),
            (None, None) => Err(PolicyError::new(
                "key",
                "is missing; only the rules \"address\", \"network-56\", \"network-48\", \"user-address\", \"account\" and \"second-factor\" have a default",
            )),
        }
    }

    fn to_limit(&self) -> Result<Limit, PolicyError> {
        let is_backoff = self.algorithm == Algorithm::Backoff;
        // A field of another algorithm is an error: it was meant to have an effect.
        for (field, is_set, is_of_backoff) in [
            ("limit", self.limit.is_some(), false),
            ("within", self.within.is_some(), false),
            ("block", self.block.is_some(), false),
            ("again_within", self.again_within.is_some(), false),
            ("waits", self.waits.is_some(), true),
            ("jitter", self.jitter.is_some(), true),
            ("forgotten_after", self.forgotten_after.is_some(), true),
        ] {
            if is_set && is_backoff != is_of_backoff {
                return Err(PolicyError::new(
                    field,
                    if is_backoff {
                        "is not a field of algorithm = \"backoff\"; set `waits`"
                    } else {
                        "is a field of algorithm = \"backoff\" only"
                    },
                ));
            }
        }
        if is_backoff {
            self.to_backoff()
        } else {
            self.to_attempts()
        }
    }

    fn to_backoff(&self) -> Result<Limit, PolicyError> {
        let mut builder = match &self.waits {
            None => Limit::default_backoff(),
            Some(waits) => {
                let waits = waits.iter().map(|wait| duration("waits", wait));
                Limit::backoff(waits.collect::<Result<Vec<_>, _>>()?)
            }
        };
        if let Some(percent) = self.jitter {
            builder = builder.with_jitter(percent);
        }
        if let Some(time) = &self.forgotten_after {
            builder = builder.forgotten_after(period("forgotten_after", time)?);
        }
        builder.build()
    }

    fn to_attempts(&self) -> Result<Limit, PolicyError> {
        let missing = |field, what| PolicyError::new(field, format!("is missing; set {what}"));
        let limit = (self.limit).ok_or_else(|| missing("limit", "how many attempts may fail"))?;
        let within = self.within.as_ref();
        let within = within.ok_or_else(|| missing("within", "how long a failure counts"))?;
        let mut builder = Limit::attempts(limit).within(period("within", within)?);
        builder = match self.algorithm {
            Algorithm::TokenBucket => builder.as_token_bucket(),
            Algorithm::SlidingCounter => builder.as_sliding_counter(),
            Algorithm::SlidingWindow | Algorithm::Backoff => builder,
        };
        match &self.block {
            None => {}
            Some(BlockFile::One(block)) if block.eq_ignore_ascii_case(NO_BLOCK) => {
                builder = builder.without_block();
            }
            Some(BlockFile::One(block)) => builder = builder.blocked_for(period("block", block)?),
            Some(BlockFile::Growing(blocks)) => {
                let Some((first, then)) = blocks.split_first() else {
                    let reason = "is an empty list; write \"none\" for no block";
                    return Err(PolicyError::new("block", reason));
                };
                builder = builder.blocked_for(period("block", first)?);
                for block in then {
                    builder = builder.then_for(period("block", block)?);
                }
            }
        }
        if let Some(time) = &self.again_within {
            builder = builder.again_within(period("again_within", time)?);
        }
        builder.build()
    }
}

impl From<&Rule> for RuleFile {
    fn from(rule: &Rule) -> Self {
        let limit = rule.limit();
        let is_backoff = limit.algorithm() == Algorithm::Backoff;
        let text = |wait| Period::Of(wait).to_string();
        Self {
            name: rule.name().to_owned(),
            key: Some(rule.parts().iter().map(Part::to_text).collect()),
            algorithm: limit.algorithm(),
            limit: (!is_backoff).then(|| limit.max_attempts()),
            within: (!is_backoff).then(|| limit.window().to_string()),
            block: (!is_backoff).then(|| BlockFile::from(limit)),
            again_within: limit.again_within().map(|time| time.to_string()),
            waits: is_backoff.then(|| limit.waits().map(text).collect()),
            jitter: is_backoff.then(|| limit.jitter()),
            forgotten_after: is_backoff.then(|| limit.window().to_string()),
            exempt_known_addresses: Some(rule.exempts_known_addresses()),
            enabled: rule.is_enabled(),
            shadow: rule.is_shadow(),
        }
    }
}

impl From<&Limit> for BlockFile {
    fn from(limit: &Limit) -> Self {
        let lengths: Vec<_> = limit.blocks().map(|length| length.to_string()).collect();
        match &lengths[..] {
            [] => Self::One(NO_BLOCK.to_owned()),
            [length] => Self::One(length.clone()),
            _ => Self::Growing(lengths),
        }
    }
}

impl Part {
    fn from_text(text: &str) -> Result<Self, PolicyError> {
        let network = text
            .strip_prefix("network/")
            .and_then(|bits| bits.parse().ok());
        if let Some(bits) = network {
            return Ok(Self::Network(bits));
        }
        match (text, text.strip_prefix("value:")) {
            ("address", _) => Ok(Self::Address),
            ("user", _) => Ok(Self::User),
            (Self::PATH | Self::USER_AGENT, _) => Ok(Self::value(text)),
            (_, Some(name)) if !name.is_empty() => Ok(Self::value(name)),
            _ => Err(PolicyError::new(
                "key",
                format!(
                    "{text:?} is none of \"address\", \"network/56\" or another number of bits, \"user\", \"path\", \"user-agent\" and \"value:…\" with the name of a value of the app"
                ),
            )),
        }
    }
}

fn period(part: &str, text: &str) -> Result<Period, PolicyError> {
    let period = text.parse::<Period>();
    period.map_err(|error| PolicyError::new(part, error.to_string()))
}

fn duration(part: &str, text: &str) -> Result<Duration, PolicyError> {
    let duration = period(part, text)?.as_duration();
    duration.ok_or_else(|| PolicyError::new(part, "can't be \"forever\""))
}

impl Serialize for Policy {
    fn serialize<S: Serializer>(&self, serializer: S) -> Result<S::Ok, S::Error> {
        PolicyFile::from(self).serialize(serializer)
    }
}

impl<'de> Deserialize<'de> for Policy {
    fn deserialize<D: Deserializer<'de>>(deserializer: D) -> Result<Self, D::Error> {
        let file = PolicyFile::deserialize(deserializer)?;
        file.try_into().map_err(D::Error::custom)
    }
}

impl Serialize for Period {
    fn serialize<S: Serializer>(&self, serializer: S) -> Result<S::Ok, S::Error> {
        serializer.collect_str(self)
    }
}

impl<'de> Deserialize<'de> for Period {
    fn deserialize<D: Deserializer<'de>>(deserializer: D) -> Result<Self, D::Error> {
        let text = String::deserialize(deserializer)?;
        text.parse().map_err(D::Error::custom)
    }
}
