//! Blocks, and what they consist of.

use serde::Serialize;
use utoipa::ToSchema;

use super::AccessRule;

/// A page of the list of blocks.
#[derive(Serialize, ToSchema)]
#[serde(deny_unknown_fields)]
pub(in super::super) struct Blocks {
    /// Those that lift first at the beginning.
    blocks: Vec<Block>,
    /// Where the next page begins, for `after`; `null` if this is the last one.
    next: Option<String>,
    /// When the list was read, by the store's clock.
    #[schema(format = DateTime)]
    now: String,
}

/// A block in force.
#[derive(Serialize, ToSchema)]
#[serde(deny_unknown_fields)]
pub(in super::super) struct Block {
    /// Names the block, to lift it.
    id: String,
    /// The rule that blocks.
    rule: String,
    /// The address or network that is blocked; `null` if the rule counts by user alone.
    address: Option<String>,
    /// Whether the rule counts by user.
    by_user: bool,
    /// The user as users are shown. A text that clients choose: escape it.
    user: Option<String>,
    /// When it began, if that is known.
    #[schema(format = DateTime)]
    since: Option<String>,
    /// When it lifts; `null` for never.
    #[schema(format = DateTime)]
    lifts_at: Option<String>,
    /// The number of failures that count.
    usage: u32,
    /// The number of failures that may count.
    limit: u32,
    /// Whether it refuses nothing.
    shadow: bool,
}

/// How many blocks a rule has.
#[derive(Serialize, ToSchema)]
#[serde(deny_unknown_fields)]
pub(in super::super) struct BlockCount {
    rule: String,
    blocks: u64,
}

/// What is counted of a subject, and what follows from it.
#[derive(Serialize, ToSchema)]
#[serde(deny_unknown_fields)]
pub(in super::super) struct Explanation {
    /// The version of the ruleset that it is explained by.
    version: u64,
    /// The access rule that decides ahead of the limits.
    decided_by: Option<AccessRule>,
    /// The access rules that match and do not decide.
    overruled: Vec<AccessRule>,
    /// The limits that apply.
    limits: Vec<ExplainedLimit>,
    /// Where the user has logged in from, the newest first.
    known_addresses: Vec<String>,
    /// Whether there are more blocks than are explained here.
    is_truncated: bool,
}

/// How one counter stands, and why.
#[derive(Serialize, ToSchema)]
#[serde(deny_unknown_fields)]
pub(in super::super) struct ExplainedLimit {
    /// Names the counter, to unblock it.
    id: String,
    rule: String,
    /// The address or network that the counter belongs to.
    address: Option<String>,
    /// Whether the rule counts by user.
    by_user: bool,
    /// The user as users are shown.
    user: Option<String>,
    state: LimitState,
    /// Whether the rule is in shadow: it counts, and refuses nothing.
    #[serde(default)]
    shadow: bool,
    /// The number of attempts that count.
    usage: u32,
    /// The number of attempts that may count.
    limit: u32,
    /// The attempts that are kept one by one, the newest first.
    attempts: Vec<ExplainedAttempt>,
    /// How many attempts are kept one by one.
    kept: u64,
    /// What older failures still count for, in thousandths of an attempt.
    older_thousandths: u64,
    /// When the block began.
    #[schema(format = DateTime)]
    since: Option<String>,
    /// When the block lifts; `null` for never, and if there is none.
    #[schema(format = DateTime)]
    lifts_at: Option<String>,
    next_failure: NextFailure,
    /// All of it in a sentence.
    words: String,
}

/// Whether a limit admits attempts.
#[derive(Serialize, ToSchema)]
#[serde(rename_all = "snake_case")]
pub(in super::super) enum LimitState {
    Exempt,
    Clear,
    Busy,
    Blocked,
}

/// An attempt in a counter.
#[derive(Serialize, ToSchema)]
#[serde(deny_unknown_fields)]
pub(in super::super) struct ExplainedAttempt {
    /// Which attempt, as in events.
    attempt: String,
    /// When it failed or, if it is in flight, when its lease ends.
    #[schema(format = DateTime)]
    at: String,
    in_flight: bool,
    /// Whether it counts at present.
    counts: bool,
}

/// What one more failure would do.
#[derive(Serialize, ToSchema)]
#[serde(tag = "effect", rename_all = "snake_case")]
pub(in super::super) enum NextFailure {
    /// Attempts are still admitted after it.
    Counts { remaining: u32 },
    /// It begins a block.
    Blocks {
        /// How long it lasts, or longer unless `exact`; `null` for ever.
        for_ms: Option<u64>,
        exact: bool,
    },
    /// There is none: attempts are refused.
    Refused {},
    /// It does not count.
    Exempt {},
}

/// What was unblocked, and what still refuses.
#[derive(Serialize, ToSchema)]
#[serde(deny_unknown_fields)]
pub(in super::super) struct Unblocked {
    /// The blocks that were lifted, 1,000 at most.
    lifted: Vec<Block>,
    /// How many were lifted in all.
    count: u64,
    /// The access rule that denies the subject all the same.
    denied_by: Option<AccessRule>,
    /// The blocks that refuse the subject all the same.
    refused_by: Vec<Block>,
}

/// What was forgiven, and what still refuses the user.
#[derive(Serialize, ToSchema)]
#[serde(deny_unknown_fields)]
pub(in super::super) struct Forgiven {
    /// Where.
    addresses: Vec<String>,
    /// The blocks that ended by it.
    lifted: Vec<Block>,
    /// The access rule that denies the user.
    denied_by: Option<AccessRule>,
    /// The blocks of the user that are still in force.
    refused_by: Vec<Block>,
}
