//! Events, and what they add up to.

use serde::Serialize;
use utoipa::ToSchema;

/// The busiest addresses and users, the busiest first.
#[derive(Serialize, ToSchema)]
#[serde(deny_unknown_fields)]
pub(in super::super) struct Busiest {
    addresses: Vec<Busy>,
    users: Vec<Busy>,
    /// How many guesses an address that is not on the list can have made.
    address_floor: u64,
    /// How many guesses there can have been at a user who is not on the list.
    user_floor: u64,
}

/// An address or a user, and its guesses lately.
#[derive(Serialize, ToSchema)]
#[serde(deny_unknown_fields)]
pub(in super::super) struct Busy {
    /// The address, or the hash of the user.
    id: String,
    /// The user as users are shown.
    shown: Option<String>,
    /// Attempts that failed, at least.
    failures: u64,
    /// Attempts that were refused, at least.
    refusals: u64,
    /// How many more of both there may have been.
    uncertain: u64,
}

/// The blocks of a rule on one day.
#[derive(Serialize, ToSchema)]
#[serde(deny_unknown_fields)]
pub(in super::super) struct WrongBlockRow {
    /// Days since 1970-01-01, in UTC.
    day: u64,
    rule: String,
    /// Blocks that began on this day.
    blocks: u64,
    /// Those of them that were probably wrong.
    wrong: u64,
    /// Guesses that the rule's blocks stopped.
    stopped: u64,
}

/// What happened in one minute.
#[derive(Serialize, ToSchema)]
#[serde(deny_unknown_fields)]
pub(in super::super) struct Minute {
    /// When it began.
    #[schema(format = DateTime)]
    at: String,
    successes: u64,
    failures: u64,
    /// Attempts that ended otherwise.
    other: u64,
    refusals: u64,
    /// Blocks that began.
    blocks: u64,
    /// Blocks that ended.
    lifted: u64,
    /// Blocks that were found to be probably wrong.
    wrong_blocks: u64,
}

/// Something that happened. Each kind of event has members of its own beside these.
#[derive(Serialize, ToSchema)]
pub(in super::super) struct Event {
    /// When.
    #[schema(format = DateTime)]
    at: String,
    /// What: `settled`, `refused`, `block_began` and others.
    event: String,
    /// The client's address as it is counted.
    address: Option<String>,
    /// The user as users are shown.
    user: Option<String>,
    /// Which attempt.
    attempt: Option<String>,
}

/// What a policy would have done with the recorded attempts.
#[derive(Serialize, ToSchema)]
#[serde(deny_unknown_fields)]
pub(in super::super) struct ReplayReport {
    /// The time of the first event.
    #[schema(format = DateTime)]
    from: Option<String>,
    /// The time of the last event.
    #[schema(format = DateTime)]
    to: Option<String>,
    /// How many attempts were replayed.
    attempts: u64,
    /// How many were left out.
    omitted: u64,
    /// Each rule, as recorded and as replayed.
    rules: Vec<ReplayedRule>,
    /// Attempts that were admitted and would have been refused.
    refused: u64,
    /// Those of them that succeeded.
    refused_successes: u64,
    /// Those of them that failed.
    refused_guesses: u64,
    /// Attempts that were refused and would have been admitted.
    admitted: u64,
    /// Who would have been blocked.
    blocked: ReplayedSubjects,
    /// Who would not have been blocked.
    freed: ReplayedSubjects,
    /// What has to be known to judge it.
    notes: Vec<String>,
}

/// A rule, as recorded and as replayed.
#[derive(Serialize, ToSchema)]
#[serde(deny_unknown_fields)]
pub(in super::super) struct ReplayedRule {
    rule: String,
    /// Whether the record tells what the rule counts by.
    is_replayed: bool,
    recorded: RuleCounts,
    replayed: RuleCounts,
}

/// Blocks and refusals of a rule.
#[derive(Serialize, ToSchema)]
#[serde(deny_unknown_fields)]
pub(in super::super) struct RuleCounts {
    blocks: u64,
    /// Blocks that were probably wrong.
    wrong: u64,
    /// Attempts that it refused.
    refused: u64,
    /// Blocks that refuse nothing.
    shadow_blocks: u64,
}

/// Addresses and users.
#[derive(Serialize, ToSchema)]
#[serde(deny_unknown_fields)]
pub(in super::super) struct ReplayedSubjects {
    /// How many in all.
    count: u64,
    /// The first of them.
    subjects: Vec<ReplayedSubject>,
}

/// An address, a user or both.
#[derive(Serialize, ToSchema)]
#[serde(deny_unknown_fields)]
pub(in super::super) struct ReplayedSubject {
    rule: String,
    address: Option<String>,
    user: Option<String>,
    /// When the first block that differs began.
    #[schema(format = DateTime)]
    at: String,
    /// Blocks in the record.
    recorded: u64,
    /// Blocks in the replay.
    replayed: u64,
    refused: u64,
    refused_successes: u64,
    admitted: u64,
}
