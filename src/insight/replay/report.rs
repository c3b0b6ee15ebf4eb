//! What a replay shows.

use std::sync::Arc;

#[cfg(feature = "admin")]
use crate::admin::text;
use crate::{Address, algorithm::Millis, event::EventUser};

/// What a policy would have done with recorded attempts, beside what was done. See [`Replay`](super::Replay).
#[derive(Clone, Debug)]
#[cfg_attr(feature = "admin", derive(serde::Serialize))]
#[non_exhaustive]
pub struct ReplayReport {
    /// When the first attempt of the record ended; `None` if there is none.
    #[cfg_attr(feature = "admin", serde(serialize_with = "text::optional_time"))]
    pub from: Option<Millis>,
    /// When the last one did.
    #[cfg_attr(feature = "admin", serde(serialize_with = "text::optional_time"))]
    pub to: Option<Millis>,
    /// How many attempts were replayed.
    pub attempts: u64,
    /// How many attempts of the record could not be replayed. The [notes](Self::notes) tell why.
    pub omitted: u64,
    /// The rules of the policy, in its order, and others that the record names.
    pub rules: Vec<ReplayedRule>,
    /// Attempts that were admitted and would have been refused.
    pub refused: u64,
    /// Those of them that succeeded: logins of honest people.
    pub refused_successes: u64,
    /// Those of them that failed: guesses.
    pub refused_guesses: u64,
    /// Attempts that were refused and would have been admitted. Their outcome is unknown; they are replayed as
    /// failures.
    pub admitted: u64,
    /// Who would have been blocked and was not, those with most refused successes first.
    pub blocked: ReplayedSubjects,
    /// Who was blocked and would not have been, those with most attempts that would have been admitted first.
    pub freed: ReplayedSubjects,
    /// In words, what the record does not tell, and what is approximate for that reason.
    pub notes: Vec<String>,
}

/// A rule in the record, and under the policy that was replayed.
#[derive(Clone, Debug, PartialEq, Eq)]
#[cfg_attr(feature = "admin", derive(serde::Serialize))]
#[non_exhaustive]
pub struct ReplayedRule {
    /// Its name.
    pub rule: Arc<str>,
    /// Whether the policy has the rule, enabled, and the record contains what the rule counts by.
    pub is_replayed: bool,
    /// What the record has of it.
    pub recorded: RuleCounts,
    /// What it would have done.
    pub replayed: RuleCounts,
}

/// What a rule did.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
#[cfg_attr(feature = "admin", derive(serde::Serialize))]
#[non_exhaustive]
pub struct RuleCounts {
    /// Blocks that began.
    pub blocks: u64,
    /// Those of them that were probably wrong: the same user logged in from the same address while it was in force or
    /// within 24 hours after, or an operator lifted it.
    pub wrong: u64,
    /// Attempts that they refused.
    pub refused: u64,
    /// Blocks that began in shadow, and refused nothing. They are not among `blocks`.
    pub shadow_blocks: u64,
}

/// The most affected of those who are blocked or freed.
#[derive(Clone, Debug, Default)]
#[cfg_attr(feature = "admin", derive(serde::Serialize))]
#[non_exhaustive]
pub struct ReplayedSubjects {
    /// How many there are; at least, if the record has more than 65,536 that were blocked.
    pub count: u64,
    /// The most affected, 100 at most.
    pub subjects: Vec<ReplayedSubject>,
}

/// Who is blocked under a rule, in the record or in the replay.
#[derive(Clone, Debug)]
#[cfg_attr(feature = "admin", derive(serde::Serialize))]
#[non_exhaustive]
pub struct ReplayedSubject {
    /// The rule.
    pub rule: Arc<str>,
    /// The address or network, if the rule counts by it.
    #[cfg_attr(feature = "admin", serde(serialize_with = "text::optional_address"))]
    pub address: Option<Address>,
    /// The user as events show it, if the rule counts by it.
    pub user: Option<EventUser>,
    /// When the newest block began.
    #[cfg_attr(feature = "admin", serde(serialize_with = "text::time"))]
    pub at: Millis,
    /// Blocks in the record.
    pub recorded: u64,
    /// Blocks in the replay.
    pub replayed: u64,
    /// Attempts that the replay refused by these blocks.
    pub refused: u64,
    /// Those of them that succeeded in the record.
    pub refused_successes: u64,
    /// Attempts that the record refused by these blocks and the replay admitted.
    pub admitted: u64,
}
