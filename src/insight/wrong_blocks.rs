//! Blocks that were probably wrong.

use std::{
    collections::BTreeMap,
    hash::{BuildHasher, RandomState},
    sync::Arc,
};

use super::{
    findings::Found,
    identity::user_id,
    watched::{Block, Watched},
};
use crate::{
    Outcome, Reason,
    algorithm::Millis,
    event::{Event, LiftedBy, UserHasher, What, WrongBy},
};

const DAY: Millis = 24 * 60 * 60 * 1000;
/// For how many days there are counts.
const DAYS: u64 = 30;
/// How many rules have counts of a day. Policies have fewer.
const MAX_RULES: usize = 64;

/// Measures how many blocks were probably wrong, by rule and day.
///
/// A block was probably wrong if the same user logs in from the same address while it is in force or within 24
/// hours after it has ended, or if an operator lifts it. An attacker who guesses at an own account and then logs in
/// makes a right block look wrong: read the share, and who it was, before a limit is loosened.
///
/// One process sees its own events. In a fleet a user may log in through another one: an
/// [`Insight`](super::Insight) hears of those through the stream of all events.
///
/// Memory is bounded: 16,384 blocks are watched at a time, beyond which the oldest is taken to be right.
///
/// ```
/// use tower_login_rate_limit::{event::UserHasher, insight::WrongBlocks};
///
/// let mut wrong = WrongBlocks::new(UserHasher::new("32 random bytes, the same on each server")?);
/// // For each event: wrong.record(&event), which returns a `WrongBlock` when it finds one.
/// for row in wrong.table().rows() {
///     println!("{} {}: {} of {} blocks", row.day, row.rule, row.wrong, row.blocks);
/// }
/// # Ok::<(), tower_login_rate_limit::event::SecretError>(())
/// ```
#[derive(Debug)]
pub struct WrongBlocks {
    hasher: UserHasher,
    hashes: RandomState,
    watched: Watched,
    table: WrongBlockTable,
}

impl WrongBlocks {
    /// Distinguishes users with this hasher; with the secret of the recorded hashes, if events are read back.
    #[must_use]
    pub fn new(hasher: UserHasher) -> Self {
        Self {
            hasher,
            hashes: RandomState::new(),
            watched: Watched::default(),
            table: WrongBlockTable::default(),
        }
    }

    /// Takes notice of an event, and returns one for each block that turns out to be wrong by it.
    pub fn record(&mut self, event: &Event) -> Vec<Event> {
        let user = event.user.as_ref();
        let user = user.and_then(|user| user_id(user, &self.hasher));
        let found = self.record_of(event, user).into_iter();
        found.map(|found| found.event).collect()
    }

    /// The same, with the id of the user.
    pub(super) fn record_of(&mut self, event: &Event, user: Option<u64>) -> Vec<Found> {
        match &event.what {
            What::BlockBegan {
                rule,
                counter,
                lifts,
                shadow: false,
                ..
            } => {
                self.table.row(event.at, rule).blocks += 1;
                let block = Block::new(rule, self.pair(event, user), event.at, *lifts);
                let id = self.block(rule, counter);
                self.watched.watch(id, block);
                Vec::new()
            }
            What::Refused {
                rule,
                reason: Reason::Blocked,
                shadow: false,
                ..
            } => {
                self.table.row(event.at, rule).stopped += 1;
                Vec::new()
            }
            What::BlockLifted {
                rule,
                counter,
                by: LiftedBy::Operator { .. },
            } => {
                let id = self.block(rule, counter);
                let wrong = self.watched.unwatch(id);
                let wrong = wrong.map(|wrong| self.found(id, &wrong, WrongBy::Operator, event));
                wrong.into_iter().collect()
            }
            What::Settled {
                outcome: Outcome::Success,
                ..
            } => {
                let pair = self.pair(event, user);
                let wrong = pair.map(|pair| self.watched.succeeded(pair, event.at));
                let wrong = wrong.unwrap_or_default();
                wrong
                    .iter()
                    .map(|(id, wrong)| self.found(*id, wrong, WrongBy::Success, event))
                    .collect()
            }
            _ => Vec::new(),
        }
    }

    /// The counts of the last 30 days, by UTC.
    #[must_use]
    pub const fn table(&self) -> &WrongBlockTable {
        &self.table
    }

    fn pair(&self, event: &Event, user: Option<u64>) -> Option<u64> {
        Some(self.hashes.hash_one((event.address?, user?)))
    }

    /// The block of a counter, the same in all processes with the secret.
    fn block(&self, rule: &str, counter: &str) -> u64 {
        self.hasher.id(&format!("{}:{rule}:{counter}", rule.len()))
    }

    fn found(&mut self, id: u64, wrong: &Block, by: WrongBy, event: &Event) -> Found {
        self.table.row(wrong.began, &wrong.rule).wrong += 1;
        let rule = Arc::clone(&wrong.rule);
        let mut found = Event::new(What::WrongBlock { rule, by }).with_time(event.at);
        found.address = event.address;
        Found {
            name: format!("wrong_block {id:016x} {}", wrong.began),
            event: found.with_user(event.user.clone()),
        }
    }
}

/// Blocks by rule and day: how many, and how many of them were probably wrong.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
#[cfg_attr(feature = "serde", derive(serde::Serialize, serde::Deserialize))]
#[cfg_attr(
    feature = "serde",
    serde(from = "Vec<WrongBlockRow>", into = "Vec<WrongBlockRow>")
)]
pub struct WrongBlockTable {
    /// By day since 1970, and by rule.
    days: BTreeMap<u64, BTreeMap<Arc<str>, Counts>>,
}

#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
struct Counts {
    blocks: u64,
    wrong: u64,
    stopped: u64,
}

/// The blocks of a rule on one day.
#[derive(Clone, Debug, PartialEq, Eq)]
#[cfg_attr(feature = "serde", derive(serde::Serialize, serde::Deserialize))]
#[non_exhaustive]
pub struct WrongBlockRow {
    /// Days since 1970-01-01, in UTC.
    pub day: u64,
    /// The rule.
    pub rule: Arc<str>,
    /// Blocks that began on this day.
    pub blocks: u64,
    /// Those of them that were probably wrong.
    pub wrong: u64,
    /// Guesses that the rule's blocks stopped on this day.
    pub stopped: u64,
}

impl WrongBlockTable {
    /// The rows, the oldest day first.
    pub fn rows(&self) -> impl Iterator<Item = WrongBlockRow> {
        self.days.iter().flat_map(|(day, rules)| {
            rules.iter().map(|(rule, counts)| WrongBlockRow {
                day: *day,
                rule: Arc::clone(rule),
                blocks: counts.blocks,
                wrong: counts.wrong,
                stopped: counts.stopped,
            })
        })
    }

    /// Adds the counts of another process.
    #[must_use]
    pub fn merge(mut self, other: &Self) -> Self {
        for row in other.rows() {
            self.add(&row);
        }
        self
    }

    fn add(&mut self, row: &WrongBlockRow) {
        let counts = self.row(row.day.saturating_mul(DAY), &row.rule);
        counts.blocks = counts.blocks.saturating_add(row.blocks);
        counts.wrong = counts.wrong.saturating_add(row.wrong);
        counts.stopped = counts.stopped.saturating_add(row.stopped);
    }

    /// The counts of a rule at a time. Days that are too old go.
    fn row(&mut self, at: Millis, rule: &Arc<str>) -> &mut Counts {
        let day = at / DAY;
        self.days.entry(day).or_default();
        while self.days.len() > 1
            && let (Some((oldest, _)), Some((newest, _))) =
                (self.days.first_key_value(), self.days.last_key_value())
            && newest - oldest >= DAYS
            && *oldest != day
        {
            self.days.pop_first();
        }
        let rules = self.days.entry(day).or_default();
        // Names come from policies, or from a record that another process wrote.
        let rule = if rules.contains_key(rule) || rules.len() < MAX_RULES {
            Arc::clone(rule)
        } else {
            "other:".into()
        };
        rules.entry(rule).or_default()
    }
}

impl From<Vec<WrongBlockRow>> for WrongBlockTable {
    fn from(rows: Vec<WrongBlockRow>) -> Self {
        let mut table = Self::default();
        rows.iter().for_each(|row| table.add(row));
        table
    }
}

impl From<WrongBlockTable> for Vec<WrongBlockRow> {
    fn from(table: WrongBlockTable) -> Self {
        table.rows().collect()
    }
}
