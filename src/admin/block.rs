//! A block in force, as operators see it.

use std::{fmt, str::FromStr, sync::Arc};

use serde::{Serialize, Serializer};

use super::{AdminError, counters::Counter, text};
use crate::{
    Address,
    algorithm::{Millis, State},
    clock::to_millis,
    event::EventUser,
    store::{Contents, CounterName},
};

/// A block in force. In JSON times are RFC 3339, and `"lifts_at": null` is never.
#[derive(Clone, Debug, Serialize)]
#[non_exhaustive]
pub struct Block {
    /// Names the block, for [`Admin::unblock_counter`](super::Admin::unblock_counter) and
    /// [`unblock_counters`](super::Admin::unblock_counters).
    pub id: BlockId,
    /// The rule that blocks.
    pub rule: Arc<str>,
    /// The address or network that is blocked; `None` if the rule counts by user alone.
    #[serde(serialize_with = "text::optional_address")]
    pub address: Option<Address>,
    /// Whether the rule counts by user, so that other users are not refused.
    pub by_user: bool,
    /// The user as the limiter [shows](crate::LoginLimiter::with_user_display) users, if the block is listed and
    /// users are shown. It is a text that clients chose: escape it.
    pub user: Option<EventUser>,
    /// When it began, in milliseconds since 1970; `None` if the failures that began it are no longer kept.
    #[serde(serialize_with = "text::optional_time")]
    pub since: Option<Millis>,
    /// When it lifts, in milliseconds since 1970; `None` for never.
    #[serde(serialize_with = "text::optional_time")]
    pub lifts_at: Option<Millis>,
    /// The number of failures that count.
    pub usage: u32,
    /// The number of failures that may count.
    pub limit: u32,
    /// Whether it refuses nothing: it began in shadow mode, or its rule is in shadow.
    pub shadow: bool,
}

impl Block {
    /// The block of a counter with these contents, if it is blocked.
    pub(super) fn of(counter: &Counter, contents: &Contents) -> Option<Self> {
        let State::Blocked { lifts } = contents.standing.state else {
            return None;
        };
        let lifts = lifts.as_duration().map(to_millis);
        Some(Self {
            id: counter.id(),
            rule: counter.rule.shared_name(),
            address: counter.address,
            by_user: counter.rule.counts_by_user(),
            user: counter.note.user.clone(),
            since: since(contents),
            lifts_at: lifts.map(|lifts| contents.now.saturating_add(lifts)),
            usage: contents.standing.usage,
            limit: contents.standing.limit,
            shadow: counter.is_shadow(),
        })
    }
}

/// When the block of a blocked counter began: with the newest failure, since nothing is admitted after it.
pub(super) fn since(contents: &Contents) -> Option<Millis> {
    let mut failed = contents.attempts.iter().filter(|kept| !kept.is_in_flight);
    let recorded = contents.summary.and_then(|summary| summary.last_block);
    failed
        .next()
        .map(|kept| kept.at)
        .or_else(|| recorded.map(|block| block.began))
}

/// Names a counter and its rule, as a text to be shown, kept and passed back. It contains no user.
#[derive(Clone, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub struct BlockId {
    pub(super) rule: Arc<str>,
    pub(super) counter: CounterName,
}

impl fmt::Display for BlockId {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "{}/{}", self.rule, self.counter)
    }
}

impl fmt::Debug for BlockId {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "BlockId({self})")
    }
}

impl FromStr for BlockId {
    type Err = AdminError;

    fn from_str(text: &str) -> Result<Self, AdminError> {
        let (rule, counter) = text.split_once('/').ok_or_else(|| {
            AdminError::invalid(
                "this is not the id of a block: pass on the one that a list contains",
            )
        })?;
        Ok(Self {
            rule: rule.into(),
            counter: counter.parse()?,
        })
    }
}

impl Serialize for BlockId {
    fn serialize<S: Serializer>(&self, serializer: S) -> Result<S::Ok, S::Error> {
        serializer.collect_str(self)
    }
}
