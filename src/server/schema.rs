//! Schemas of what has a form of its own in JSON.
//!
//! Types of the library write themselves; here is what they write. The API is tested against it.

#![allow(dead_code)] // descriptions

use serde::Serialize;
use utoipa::{
    ToSchema,
    openapi::{
        KnownFormat, Object, ObjectBuilder, RefOr, Schema, SchemaFormat,
        schema::{AnyOfBuilder, ArrayBuilder, Type},
    },
};

pub(super) use super::problem::ProblemBody as Problem;

fn text() -> ObjectBuilder {
    ObjectBuilder::new().schema_type(Type::String)
}

fn formatted(format: KnownFormat) -> Object {
    text()
        .format(Some(SchemaFormat::KnownFormat(format)))
        .build()
}

fn null() -> Object {
    ObjectBuilder::new().schema_type(Type::Null).build()
}

/// An IPv4 or IPv6 address.
pub(super) fn ip_address() -> RefOr<Schema> {
    AnyOfBuilder::new()
        .item(formatted(KnownFormat::Ipv4))
        .item(formatted(KnownFormat::Ipv6))
        .into()
}

pub(super) fn optional_ip_address() -> RefOr<Schema> {
    AnyOfBuilder::new()
        .item(formatted(KnownFormat::Ipv4))
        .item(formatted(KnownFormat::Ipv6))
        .item(null())
        .into()
}

pub(super) fn optional_ip_addresses() -> RefOr<Schema> {
    let list = ArrayBuilder::new()
        .items(ip_address())
        .max_items(Some(1_000));
    AnyOfBuilder::new().item(list).item(null()).into()
}

/// A network, or an address.
pub(super) fn network() -> RefOr<Schema> {
    text()
        .max_length(Some(64))
        .examples(["192.0.2.0/24"])
        .into()
}

pub(super) fn optional_network() -> RefOr<Schema> {
    let network = text().max_length(Some(64)).examples(["192.0.2.0/24"]);
    AnyOfBuilder::new().item(network).item(null()).into()
}

/// Why something is changed.
pub(super) fn reason() -> RefOr<Schema> {
    let reason = text().min_length(Some(1)).max_length(Some(1_000));
    reason.examples(["ticket 4711"]).into()
}

/// A length of time.
pub(super) fn period() -> RefOr<Schema> {
    text().examples(["1 day", "12h", "forever"]).into()
}

pub(super) fn action() -> RefOr<Schema> {
    text().enum_values(Some(["allow", "deny"])).into()
}

/// Whatever is typed.
pub(super) fn anything() -> RefOr<Schema> {
    utoipa::openapi::schema::empty().into()
}

/// Values of the app by name.
pub(super) fn values() -> RefOr<Schema> {
    ObjectBuilder::new()
        .property_names(Some(text().min_length(Some(1)).max_length(Some(64))))
        .additional_properties(Some(Schema::from(text().max_length(Some(256)))))
        .max_properties(Some(16))
        .into()
}

/// Nothing to say.
#[derive(Serialize, ToSchema)]
#[serde(deny_unknown_fields)]
pub(super) struct Empty {}

/// A page of the list of blocks.
#[derive(Serialize, ToSchema)]
#[serde(deny_unknown_fields)]
pub(super) struct Blocks {
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
pub(super) struct Block {
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
pub(super) struct BlockCount {
    rule: String,
    blocks: u64,
}

/// What is counted of a subject, and what follows from it.
#[derive(Serialize, ToSchema)]
#[serde(deny_unknown_fields)]
pub(super) struct Explanation {
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
pub(super) struct ExplainedLimit {
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
pub(super) enum LimitState {
    Exempt,
    Clear,
    Busy,
    Blocked,
}

/// An attempt in a counter.
#[derive(Serialize, ToSchema)]
#[serde(deny_unknown_fields)]
pub(super) struct ExplainedAttempt {
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
pub(super) enum NextFailure {
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
pub(super) struct Unblocked {
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
pub(super) struct Forgiven {
    /// Where.
    addresses: Vec<String>,
    /// The blocks that ended by it.
    lifted: Vec<Block>,
    /// The access rule that denies the user.
    denied_by: Option<AccessRule>,
    /// The blocks of the user that are still in force.
    refused_by: Vec<Block>,
}

/// An access rule, as in files: an action, and one of the conditions, or network and user together.
#[derive(Serialize, ToSchema)]
#[serde(deny_unknown_fields)]
pub(super) struct AccessRule {
    name: String,
    #[schema(schema_with = action)]
    action: String,
    network: Option<String>,
    user: Option<String>,
    user_keyword: Option<String>,
    user_agent: Option<String>,
    path: Option<String>,
    path_prefix: Option<String>,
    /// That any client can send what is allowed is accepted.
    #[serde(default)]
    forgeable: bool,
    /// When it ends.
    #[schema(format = DateTime)]
    expires: Option<String>,
    /// Who has added it.
    author: Option<String>,
    /// Why it exists.
    note: Option<String>,
}

/// A version of the ruleset.
#[derive(Serialize, ToSchema)]
#[serde(deny_unknown_fields)]
pub(super) struct Version {
    /// One more for each version; 0 for what the process was started with.
    version: u64,
    /// When it was written.
    #[schema(format = DateTime)]
    at: String,
    /// Who wrote it.
    author: String,
    /// Why.
    reason: String,
    ruleset: Ruleset,
}

/// The policy, the access rules and a canary, as in files.
#[derive(Serialize, ToSchema)]
#[serde(deny_unknown_fields)]
pub(super) struct Ruleset {
    policy: Policy,
    #[serde(default)]
    access: Vec<AccessRule>,
    canary: Option<Canary>,
}

/// A policy for a part of the addresses.
#[derive(Serialize, ToSchema)]
#[serde(deny_unknown_fields)]
pub(super) struct Canary {
    /// In percent.
    #[schema(minimum = 0.01, maximum = 100)]
    share: f64,
    /// Chooses the addresses: pass it back, so that they stay the same.
    #[serde(default)]
    secret: Vec<u64>,
    policy: Policy,
}

/// What is limited, and how much.
#[derive(Serialize, ToSchema)]
#[serde(deny_unknown_fields)]
pub(super) struct Policy {
    /// How long an attempt may be in flight: `30s`.
    lease: Option<String>,
    /// How many bits of an IPv6 address count.
    ipv6_prefix: Option<u8>,
    #[schema(value_type = Option<Object>)]
    known_addresses: Option<()>,
    /// The rules; the default ones if it is left out.
    rules: Option<Vec<Rule>>,
}

/// A rule of a policy, with the fields of its algorithm.
#[derive(Serialize, ToSchema)]
pub(super) struct Rule {
    name: String,
}

/// The busiest addresses and users, the busiest first.
#[derive(Serialize, ToSchema)]
#[serde(deny_unknown_fields)]
pub(super) struct Busiest {
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
pub(super) struct Busy {
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
pub(super) struct WrongBlockRow {
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
pub(super) struct Minute {
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
pub(super) struct Event {
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
pub(super) struct ReplayReport {
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
pub(super) struct ReplayedRule {
    rule: String,
    /// Whether the record tells what the rule counts by.
    is_replayed: bool,
    recorded: RuleCounts,
    replayed: RuleCounts,
}

/// Blocks and refusals of a rule.
#[derive(Serialize, ToSchema)]
#[serde(deny_unknown_fields)]
pub(super) struct RuleCounts {
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
pub(super) struct ReplayedSubjects {
    /// How many in all.
    count: u64,
    /// The first of them.
    subjects: Vec<ReplayedSubject>,
}

/// An address, a user or both.
#[derive(Serialize, ToSchema)]
#[serde(deny_unknown_fields)]
pub(super) struct ReplayedSubject {
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
