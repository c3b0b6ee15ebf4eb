//! The form in which a policy stands in a file.

use std::time::Duration;

use serde::{Deserialize, Serialize};

use super::{KnownAddresses, LimitBuilder, Part, Policy, PolicyError, Rule};
use crate::{
    Limit, Period,
    algorithm::{Backoff, Block, Millis},
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

/// A rule, with the numbers of whichever algorithm it has.
#[derive(Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
struct RuleFile {
    name: String,
    #[serde(default, skip_serializing_if = "Option::is_none")]
    key: Option<Vec<String>>,
    #[serde(default, skip_serializing_if = "AlgorithmFile::is_the_usual")]
    algorithm: AlgorithmFile,
    #[serde(default, skip_serializing_if = "Option::is_none")]
    limit: Option<u32>,
    #[serde(default, skip_serializing_if = "Option::is_none")]
    within: Option<Period>,
    #[serde(default, skip_serializing_if = "Option::is_none")]
    block: Option<BlockFile>,
    #[serde(default, skip_serializing_if = "Option::is_none")]
    again_within: Option<Period>,
    #[serde(default, skip_serializing_if = "Option::is_none")]
    waits: Option<Vec<Period>>,
    #[serde(default, skip_serializing_if = "Option::is_none")]
    jitter: Option<u32>,
    #[serde(default, skip_serializing_if = "Option::is_none")]
    forgotten_after: Option<Period>,
    #[serde(default, skip_serializing_if = "Option::is_none")]
    exempt_known_addresses: Option<bool>,
    #[serde(default = "on")]
    enabled: bool,
}

#[derive(Clone, Copy, Default, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "kebab-case")]
enum AlgorithmFile {
    #[default]
    SlidingWindow,
    TokenBucket,
    SlidingCounter,
    Backoff,
}

impl AlgorithmFile {
    fn is_the_usual(&self) -> bool {
        *self == Self::default()
    }
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
            let kept_for = file.kept_for.unwrap_or(Period::Of(default.kept_for()));
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
                kept_for: Some(Period::Of(keep.kept_for())),
            }),
            rules: Some(policy.rules.iter().map(RuleFile::from).collect()),
        }
    }
}

impl TryFrom<RuleFile> for Rule {
    type Error = PolicyError;

    fn try_from(file: RuleFile) -> Result<Self, Self::Error> {
        let parts = match (&file.key, file.name.as_str()) {
            (Some(key), name) => (key.iter())
                .map(|word| Part::from_word(word, name))
                .collect::<Result<_, _>>()?,
            (None, name) => Self::built_in_parts(name)
                .ok_or_else(|| {
                    PolicyError::new(
                        format!("{name}.key"),
                        "is missing; only \"address\", \"user-address\" and \"account\" have one by themselves",
                    )
                })?
                .to_vec(),
        };
        let limit = file.to_limit().map_err(|error| error.within(&file.name))?;
        let is_account = file.name == Self::ACCOUNT;
        let rule = Self::new(file.name, parts, limit)?.enabled(file.enabled);
        match file.exempt_known_addresses.unwrap_or(is_account) {
            true => rule.exempting_known_addresses(),
            false => Ok(rule),
        }
    }
}

impl RuleFile {
    fn to_limit(&self) -> Result<Limit, PolicyError> {
        let is_backoff = self.algorithm == AlgorithmFile::Backoff;
        let no_meaning = |field: &str, reason: &str| Err(PolicyError::new(field, reason));
        // What does not belong to the algorithm is not ignored: somebody meant something by it.
        let of_attempts = [
            ("limit", self.limit.is_some()),
            ("within", self.within.is_some()),
            ("block", self.block.is_some()),
            ("again_within", self.again_within.is_some()),
        ];
        let of_backoff = [
            ("waits", self.waits.is_some()),
            ("jitter", self.jitter.is_some()),
            ("forgotten_after", self.forgotten_after.is_some()),
        ];
        for (field, is_there) in of_attempts {
            if is_there && is_backoff {
                return no_meaning(field, "means nothing to a backoff; it has waits");
            }
        }
        for (field, is_there) in of_backoff {
            if is_there && !is_backoff {
                return no_meaning(field, "is for algorithm = \"backoff\"");
            }
        }
        match is_backoff {
            true => self.to_backoff(),
            false => self.to_attempts(),
        }
    }

    fn to_backoff(&self) -> Result<Limit, PolicyError> {
        let mut words = match &self.waits {
            None => Limit::default_backoff(),
            Some(waits) => Limit::backoff(
                (waits.iter())
                    .map(|wait| finite("waits", *wait))
                    .collect::<Result<Vec<_>, _>>()?,
            ),
        };
        if let Some(percent) = self.jitter {
            words = words.with_jitter(percent);
        }
        if let Some(time) = self.forgotten_after {
            words = words.forgotten_after(time);
        }
        words.build()
    }

    fn to_attempts(&self) -> Result<Limit, PolicyError> {
        let missing = |field| PolicyError::new(field, "is missing");
        let limit = self.limit.ok_or_else(|| missing("limit"))?;
        let within = self.within.ok_or_else(|| missing("within"))?;
        let words = Limit::attempts(limit).within(within);
        let mut words: LimitBuilder = match self.algorithm {
            AlgorithmFile::TokenBucket => words.as_token_bucket(),
            AlgorithmFile::SlidingCounter => words.as_sliding_counter(),
            AlgorithmFile::SlidingWindow | AlgorithmFile::Backoff => words,
        };
        let period = |text: &String| {
            let parsed = text.parse::<Period>();
            parsed.map_err(|error| PolicyError::new("block", error.to_string()))
        };
        match &self.block {
            None => {}
            Some(BlockFile::One(block)) if block.eq_ignore_ascii_case(NO_BLOCK) => {
                words = words.without_block();
            }
            Some(BlockFile::One(block)) => words = words.blocked_for(period(block)?),
            Some(BlockFile::Growing(blocks)) => {
                let Some((first, then)) = blocks.split_first() else {
                    let reason = "is an empty list; say \"none\" for no block";
                    return Err(PolicyError::new("block", reason));
                };
                words = words.blocked_for(period(first)?);
                for block in then {
                    words = words.then_for(period(block)?);
                }
            }
        }
        if let Some(time) = self.again_within {
            words = words.again_within(time);
        }
        words.build()
    }
}

impl From<&Rule> for RuleFile {
    fn from(rule: &Rule) -> Self {
        let limit = rule.limit();
        let (algorithm, attempts, within) = match limit {
            Limit::SlidingWindow(numbers) => (
                AlgorithmFile::SlidingWindow,
                Some(numbers.limit()),
                Some(period(numbers.window())),
            ),
            Limit::TokenBucket(numbers) => (
                AlgorithmFile::TokenBucket,
                Some(numbers.capacity()),
                Some(period(Some(numbers.refill()))),
            ),
            Limit::SlidingCounter(numbers) => (
                AlgorithmFile::SlidingCounter,
                Some(numbers.limit()),
                Some(period(Some(numbers.window()))),
            ),
            Limit::Backoff(_) => (AlgorithmFile::Backoff, None, None),
        };
        let backoff = match limit {
            Limit::Backoff(numbers) => Some(numbers),
            _ => None,
        };
        let waits = |numbers: &Backoff| {
            let waits = numbers.waits().iter();
            waits.map(|wait| period(Some(*wait))).collect()
        };
        let grows = limit.block().filter(|block| block.lengths().len() > 1);
        Self {
            name: rule.name().to_owned(),
            key: Some(rule.parts().iter().map(Part::to_word).collect()),
            algorithm,
            limit: attempts,
            within,
            block: attempts.map(|_| BlockFile::from(limit.block())),
            again_within: grows.map(|block| period(Some(block.again_within()))),
            waits: backoff.map(waits),
            jitter: backoff.map(Backoff::jitter),
            forgotten_after: backoff.map(|numbers| period(numbers.forgotten_after())),
            exempt_known_addresses: Some(rule.exempts_known_addresses()),
            enabled: rule.is_enabled(),
        }
    }
}

impl From<Option<&Block>> for BlockFile {
    fn from(block: Option<&Block>) -> Self {
        let words = |length: &Option<Millis>| period(*length).to_string();
        match block.map(Block::lengths) {
            None => Self::One(NO_BLOCK.to_owned()),
            Some([one]) => Self::One(words(one)),
            Some(lengths) => Self::Growing(lengths.iter().map(words).collect()),
        }
    }
}

impl Part {
    fn from_word(word: &str, rule: &str) -> Result<Self, PolicyError> {
        match (word, word.strip_prefix("value:")) {
            ("address", _) => Ok(Self::Address),
            ("user", _) => Ok(Self::User),
            (Self::PATH | Self::USER_AGENT, _) => Ok(Self::value(word)),
            (_, Some(name)) if !name.is_empty() => Ok(Self::value(name)),
            _ => Err(PolicyError::new(
                format!("{rule}.key"),
                format!(
                    "{word:?} is none of \"address\", \"user\", \"path\", \"user-agent\" and \"value:…\" with the name of a value of the app's own"
                ),
            )),
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
