//! What happened.

use std::{sync::Arc, time::Duration};

use crate::{
    AttemptId, Outcome, Period, Reason, access::Action, algorithm::Millis, store::StoreErrorKind,
};

/// What happened. Variants and fields will be added: match with `..` and a last arm `_`.
///
/// In JSON the name of the variant is the field `event`, in snake case, beside the fields of the variant. A name
/// of a rule is the one in the policy; it never names a user.
#[derive(Clone, Debug, PartialEq)]
#[cfg_attr(feature = "serde", derive(serde::Serialize, serde::Deserialize))]
#[cfg_attr(feature = "serde", serde(tag = "event", rename_all = "snake_case"))]
#[non_exhaustive]
pub enum What {
    /// An attempt that was admitted has ended.
    #[non_exhaustive]
    Settled {
        /// How it ended.
        #[cfg_attr(feature = "serde", serde(with = "super::names::outcome"))]
        outcome: Outcome,
        /// Whether it was an attempt at a second factor, such as a code.
        #[cfg_attr(feature = "serde", serde(default))]
        second_factor: bool,
    },
    /// An attempt was refused.
    #[non_exhaustive]
    Refused {
        /// The rule that refused it.
        rule: Arc<str>,
        /// Whether too many have failed, or too many are in flight.
        #[cfg_attr(feature = "serde", serde(with = "super::names::reason"))]
        reason: Reason,
        /// The number of attempts that count.
        usage: u32,
        /// The number of attempts that may count.
        limit: u32,
        /// The time until the next attempt may be admitted.
        #[cfg_attr(
            feature = "serde",
            serde(rename = "lifts_in_ms", with = "super::serde::period")
        )]
        lifts: Period,
        /// Whether it was admitted nevertheless, in shadow mode.
        #[cfg_attr(feature = "serde", serde(default))]
        shadow: bool,
    },
    /// The store could not decide on an attempt.
    #[non_exhaustive]
    Undecided {
        /// Why not.
        #[cfg_attr(feature = "serde", serde(with = "super::names::store_error"))]
        kind: StoreErrorKind,
        /// Whether it was admitted nevertheless, in shadow mode.
        #[cfg_attr(feature = "serde", serde(default))]
        shadow: bool,
    },
    /// A failure began a block. Emitted once for each block in a fleet, by the process that settled the failure.
    #[non_exhaustive]
    BlockBegan {
        /// The rule.
        rule: Arc<str>,
        /// What is blocked under the rule, such as `192.0.2.1`. The same text for the same counter in a fleet;
        /// it never contains a name.
        counter: Box<str>,
        /// The number of failures that count.
        usage: u32,
        /// The number of failures that may count.
        limit: u32,
        /// The time until the block lifts.
        #[cfg_attr(
            feature = "serde",
            serde(rename = "lifts_in_ms", with = "super::serde::period")
        )]
        lifts: Period,
        /// The failures that the block consists of, as far as the store keeps them one by one.
        #[cfg_attr(feature = "serde", serde(default))]
        attempts: Vec<CountedAttempt>,
        /// Whether the block refuses nothing, in shadow mode.
        #[cfg_attr(feature = "serde", serde(default))]
        shadow: bool,
    },
    /// A block has ended.
    #[non_exhaustive]
    BlockLifted {
        /// The rule.
        rule: Arc<str>,
        /// What was blocked, as in [`BlockBegan`](Self::BlockBegan).
        counter: Box<str>,
        /// What ended it.
        #[cfg_attr(feature = "serde", serde(flatten))]
        by: LiftedBy,
    },
    /// A reservation of a [`KeyLimiter`](crate::KeyLimiter) took the last place of its key, which is the user of this
    /// event: the next one is refused.
    #[non_exhaustive]
    LimitReached {
        /// The name of the limiter.
        rule: Arc<str>,
        /// The number of reservations that may count.
        limit: u32,
    },
    /// A rule of the access list decided in place of the limits. An attempt that it allowed ends with a
    /// [`Settled`](Self::Settled) of the same attempt, which no limit has counted.
    #[non_exhaustive]
    AccessRuleHit {
        /// The name of the rule.
        rule: Arc<str>,
        /// What it did.
        action: Action,
    },
    /// The store has become unavailable: attempts are decided without it.
    #[non_exhaustive]
    StoreDown {
        /// Why.
        #[cfg_attr(feature = "serde", serde(with = "super::names::store_error"))]
        kind: StoreErrorKind,
        /// The same in words.
        error: Box<str>,
    },
    /// The store is available again.
    #[non_exhaustive]
    StoreUp {
        /// How long it was not.
        #[cfg_attr(
            feature = "serde",
            serde(rename = "down_for_ms", with = "super::serde::duration")
        )]
        down_for: Duration,
        /// How many writes are in the journal, to be replayed.
        pending: u64,
    },
    /// The journal is empty again.
    #[non_exhaustive]
    JournalReplayed {
        /// How many writes were replayed.
        replayed: u64,
        /// How many writes were given up, because the store rejects them.
        dropped: u64,
    },
    /// The policy or the access rules were changed.
    #[non_exhaustive]
    DocumentChanged {
        /// Who changed them.
        author: Box<str>,
        /// Why.
        reason: Box<str>,
        /// The version before.
        from: u64,
        /// The version that is in force now.
        to: u64,
        /// What is different, in words.
        #[cfg_attr(feature = "serde", serde(default))]
        changes: Vec<Box<str>>,
    },
    /// An operator acted on the address or user of this event.
    #[non_exhaustive]
    Administered {
        /// What was done.
        action: AdminAction,
        /// Who did it.
        author: Box<str>,
        /// Why.
        reason: Box<str>,
        /// The network that it was done to, if it was one.
        #[cfg_attr(
            feature = "serde",
            serde(default, skip_serializing_if = "Option::is_none")
        )]
        network: Option<Box<str>>,
    },
    /// Attempts look like a spread-out attack.
    Signal(Signal),
    /// A block that has ended was probably wrong.
    #[non_exhaustive]
    WrongBlock {
        /// The rule.
        rule: Arc<str>,
        /// What suggests it.
        by: WrongBy,
    },
}

/// A failure that counts towards a block.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
#[cfg_attr(feature = "serde", derive(serde::Serialize, serde::Deserialize))]
#[non_exhaustive]
pub struct CountedAttempt {
    /// Which attempt.
    pub attempt: AttemptId,
    /// When it failed, in milliseconds since 1970.
    #[cfg_attr(feature = "serde", serde(with = "super::serde::time"))]
    pub at: Millis,
}

/// What ended a block.
#[derive(Clone, Debug, PartialEq, Eq)]
#[cfg_attr(feature = "serde", derive(serde::Serialize, serde::Deserialize))]
#[cfg_attr(feature = "serde", serde(tag = "by", rename_all = "snake_case"))]
#[non_exhaustive]
pub enum LiftedBy {
    /// It was over. Reported by the process that reported its beginning, for up to 16,384 blocks at a time.
    Time,
    /// A login succeeded that was under way when the block began, and took the user's failures back.
    Success,
    /// The app lifted it, through [`LoginLimiter::unblock`](crate::LoginLimiter::unblock) or
    /// [`cleanup`](crate::LoginLimiter::cleanup).
    App,
    /// An operator lifted it.
    Operator {
        /// Who.
        author: Box<str>,
        /// Why.
        reason: Box<str>,
    },
}

impl LiftedBy {
    /// The name in JSON, as in `time`.
    #[must_use]
    pub const fn name(&self) -> &'static str {
        match self {
            Self::Time => "time",
            Self::Success => "success",
            Self::App => "app",
            Self::Operator { .. } => "operator",
        }
    }
}

/// What an operator did.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
#[cfg_attr(feature = "serde", derive(serde::Serialize, serde::Deserialize))]
#[cfg_attr(feature = "serde", serde(rename_all = "snake_case"))]
#[non_exhaustive]
pub enum AdminAction {
    /// Lifted blocks.
    Unblock,
    /// Removed a user's own failures, as after a password was reset.
    Forgive,
    /// Blocked by hand.
    Block,
    /// Removed known addresses of a user.
    Forget,
    /// Wrote a note, which is the reason.
    Note,
}

impl AdminAction {
    /// The name in JSON, as in `unblock`.
    #[must_use]
    pub const fn name(self) -> &'static str {
        match self {
            Self::Unblock => "unblock",
            Self::Forgive => "forgive",
            Self::Block => "block",
            Self::Forget => "forget",
            Self::Note => "note",
        }
    }
}

/// What attempts look like, seen together.
///
/// Each is emitted when it begins, once, and again only after it has ended in between.
#[derive(Clone, Copy, Debug, PartialEq)]
#[cfg_attr(feature = "serde", derive(serde::Serialize, serde::Deserialize))]
#[cfg_attr(feature = "serde", serde(tag = "signal", rename_all = "snake_case"))]
#[non_exhaustive]
pub enum Signal {
    /// The address of this event fails at many users: credential stuffing or password spraying.
    ManyUsers {
        /// How many lately, estimated.
        users: u32,
    },
    /// The user of this event fails from many addresses: a botnet guesses at one account.
    ManyAddresses {
        /// How many lately, estimated.
        addresses: u32,
    },
    /// Far more attempts fail than usually do on this site.
    FailureRate {
        /// Failures per minute now.
        per_minute: f64,
        /// Failures per minute as usual.
        baseline: f64,
    },
}

/// What suggests that a block was wrong.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
#[cfg_attr(feature = "serde", derive(serde::Serialize, serde::Deserialize))]
#[cfg_attr(feature = "serde", serde(rename_all = "snake_case"))]
#[non_exhaustive]
pub enum WrongBy {
    /// The same user logged in from the same address soon after.
    Success,
    /// An operator lifted the block.
    Operator,
}

impl WrongBy {
    /// The name in JSON: `success` or `operator`.
    #[must_use]
    pub const fn name(self) -> &'static str {
        match self {
            Self::Success => "success",
            Self::Operator => "operator",
        }
    }
}

impl What {
    /// The name of the event, as in JSON: `block_began`.
    #[must_use]
    pub const fn name(&self) -> &'static str {
        match self {
            Self::Settled { .. } => "settled",
            Self::Refused { .. } => "refused",
            Self::Undecided { .. } => "undecided",
            Self::BlockBegan { .. } => "block_began",
            Self::BlockLifted { .. } => "block_lifted",
            Self::LimitReached { .. } => "limit_reached",
            Self::AccessRuleHit { .. } => "access_rule_hit",
            Self::StoreDown { .. } => "store_down",
            Self::StoreUp { .. } => "store_up",
            Self::JournalReplayed { .. } => "journal_replayed",
            Self::DocumentChanged { .. } => "document_changed",
            Self::Administered { .. } => "administered",
            Self::Signal(_) => "signal",
            Self::WrongBlock { .. } => "wrong_block",
        }
    }
}
