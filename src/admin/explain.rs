//! Why a subject is refused, or will be.

use std::sync::Arc;

use serde::Serialize;

use super::{
    Admin, AdminError, Block, BlockId, NextFailure, Subject, block::since, counters::Counter,
    subject::Repr, text, words,
};
use crate::{
    Address, AttemptId, Rule,
    access::{AccessQuery, AccessRule, Action},
    algorithm::{Algorithm, Millis, State},
    clock::{Clock, SystemClock, to_millis},
    event::EventUser,
    limiter::InForce,
    store::Contents,
};

/// How many blocks of the index an explanation contains at most, for each kind of rule.
const MAX_LISTED: usize = 200;

/// What is counted of a subject, and what follows from it. Returned by [`Admin::explain`].
#[derive(Clone, Debug, Serialize)]
#[non_exhaustive]
pub struct Explanation {
    /// The version of policy and access rules that it is explained by.
    pub version: u64,
    /// The access rule that decides ahead of the limits, if one does.
    pub decided_by: Option<AccessRule>,
    /// The access rules that match and do not decide.
    pub overruled: Vec<AccessRule>,
    /// The limits that apply.
    pub limits: Vec<ExplainedLimit>,
    /// The addresses that the user, spelled like this, has logged in from, the newest first.
    #[serde(serialize_with = "text::addresses")]
    pub known_addresses: Vec<Address>,
    /// Whether there are more blocks in the index than are explained here.
    pub is_truncated: bool,
}

impl Explanation {
    /// Whether an attempt is refused now, by an access rule or a limit.
    pub fn refuses(&self) -> bool {
        match self.decided_by.as_ref().map(AccessRule::action) {
            Some(Action::Deny) => true,
            Some(Action::Allow) => false,
            None => {
                let mut enforced = self.limits.iter().filter(|limit| !limit.shadow);
                enforced.any(|limit| limit.state.refuses())
            }
        }
    }
}

/// How one counter stands, and why.
#[derive(Clone, Debug, Serialize)]
#[non_exhaustive]
pub struct ExplainedLimit {
    /// Names the counter, for [`Admin::unblock_counter`].
    pub id: BlockId,
    /// The rule.
    pub rule: Arc<str>,
    /// The address or network that the counter belongs to; `None` if the rule counts by user alone.
    #[serde(serialize_with = "text::optional_address")]
    pub address: Option<Address>,
    /// Whether the rule counts by user.
    pub by_user: bool,
    /// The user as it is listed, for a counter that is known by the index.
    pub user: Option<EventUser>,
    /// Whether attempts are admitted.
    pub state: LimitState,
    /// Whether the rule is in shadow: it counts, and refuses nothing. The rest is as if it were in force.
    #[serde(skip_serializing_if = "std::ops::Not::not")]
    pub shadow: bool,
    /// The number of attempts that count: failures and, unless the counter is blocked, those in flight.
    pub usage: u32,
    /// The number of attempts that may count.
    pub limit: u32,
    /// The attempts that are kept one by one, the newest first.
    pub attempts: Vec<ExplainedAttempt>,
    /// How many attempts are kept one by one, if that is more than are listed here.
    pub kept: usize,
    /// What older failures still count for, in thousandths of an attempt, where they are not kept one by one.
    pub older_thousandths: u64,
    /// When the block began, in milliseconds since 1970.
    #[serde(serialize_with = "text::optional_time")]
    pub since: Option<Millis>,
    /// When the block lifts, in milliseconds since 1970; `None` for never, and if there is none.
    #[serde(serialize_with = "text::optional_time")]
    pub lifts_at: Option<Millis>,
    /// What one more failure would do.
    pub next_failure: NextFailure,
    /// All of it in a sentence.
    pub words: String,
}

/// Whether a limit admits attempts.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize)]
#[serde(rename_all = "snake_case")]
#[non_exhaustive]
pub enum LimitState {
    /// Admitted without being counted: the user has logged in from this address before.
    Exempt,
    /// Admitted.
    Clear,
    /// Refused while others are in flight.
    Busy,
    /// Refused until the block lifts.
    Blocked,
}

impl LimitState {
    /// Whether attempts are refused.
    #[must_use]
    pub const fn refuses(self) -> bool {
        matches!(self, Self::Busy | Self::Blocked)
    }
}

/// An attempt in a counter.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize)]
#[non_exhaustive]
pub struct ExplainedAttempt {
    /// Which attempt, as in events.
    pub attempt: AttemptId,
    /// When it failed or, if it is in flight, when its lease ends, in milliseconds since 1970.
    #[serde(serialize_with = "text::time")]
    pub at: Millis,
    /// Whether it is reserved and not settled.
    pub in_flight: bool,
    /// Whether it counts at present.
    pub counts: bool,
}

impl Admin {
    /// Explains a subject: the rules that apply, the attempts that count under each, what a block consists of, when it
    /// lifts, and what the next failure would do.
    ///
    /// For an address these are the rules without a user, and the blocks of users there that are listed. For a
    /// user it is the rules by user alone, and the listed blocks of the user at addresses. For a pair it is every rule
    /// that applies. For a network it is the rules of the networks around it and the listed blocks in it. Rules by
    /// values of the app are known by the list of blocks alone.
    ///
    /// # Errors
    ///
    /// If the user is blank, or the store failed.
    pub async fn explain(&self, subject: &Subject) -> Result<Explanation, AdminError> {
        self.catch_up().await?;
        let subject = &subject.0;
        let (version, access, searches, mut counters) = {
            let in_force = self.limiter.in_force();
            let applies = |_: &Rule| true;
            let searches = self.searches(&in_force, subject, applies)?;
            let counters = self.direct(&in_force, subject);
            let access = self.access_of(&in_force, subject);
            (in_force.version, access, searches, counters)
        };
        let contents = self.read(&counters).await?;
        let (mut found, mut is_truncated) = (Vec::new(), false);
        for search in searches {
            let (listed, _, next) = self.search(&search, None, MAX_LISTED).await?;
            is_truncated |= next.is_some();
            for (listed, contents) in listed {
                match counters.iter_mut().find(|known| known.name == listed.name) {
                    Some(known) => known.note = listed.note,
                    None => found.push((listed, contents)),
                }
            }
        }
        let known_addresses = self.known_to(subject).await?;
        let direct = counters.into_iter().zip(contents);
        let direct = direct.filter_map(|(counter, contents)| Some((counter, contents?)));
        let limits = direct.chain(found).map(|(counter, contents)| {
            let contents = exempted(subject, &counter, contents, &known_addresses);
            ExplainedLimit::new(&counter, &contents)
        });
        Ok(Explanation {
            version,
            decided_by: access.0,
            overruled: access.1,
            limits: limits.collect(),
            known_addresses,
            is_truncated,
        })
    }

    /// The access rule that decides on a subject, and the others that match.
    fn access_of(
        &self,
        in_force: &InForce,
        subject: &Repr,
    ) -> (Option<AccessRule>, Vec<AccessRule>) {
        let user = subject.user().map(|user| self.limiter.normalize(user));
        let mut query = AccessQuery::new();
        if let Some(ip) = subject.ip() {
            query = query.with_address(ip);
        }
        if let Some(user) = &user {
            query = query.with_user(user);
        }
        let explanation = in_force.access.explain(&query, SystemClock.now());
        let overruled = explanation.overruled().iter().copied().cloned();
        (explanation.decides().cloned(), overruled.collect())
    }

    async fn known_to(&self, subject: &Repr) -> Result<Vec<Address>, AdminError> {
        match subject.user() {
            Some(user) => self.known_addresses(user).await,
            None => Ok(Vec::new()),
        }
    }

    /// What refuses a subject: the access rule that denies it, and the blocks in force.
    pub(super) async fn refusing(
        &self,
        subject: &Repr,
        chosen: impl Fn(&Rule) -> bool,
    ) -> Result<(Option<AccessRule>, Vec<Block>), AdminError> {
        let (denied, searches, counters) = {
            let in_force = self.limiter.in_force();
            let (decides, _) = self.access_of(&in_force, subject);
            let denied = decides.filter(|rule| rule.action() == Action::Deny);
            let refuses = |rule: &Rule| chosen(rule) && !rule.is_shadow();
            let searches = self.searches(&in_force, subject, refuses)?;
            let mut counters = self.direct(&in_force, subject);
            counters.retain(|counter| refuses(&counter.rule));
            (denied, searches, counters)
        };
        let known = self.known_to(subject).await?;
        let contents = self.read(&counters).await?;
        let mut blocks = Vec::new();
        for (counter, contents) in counters.iter().zip(contents) {
            if let Some(contents) = contents {
                let contents = exempted(subject, counter, contents, &known);
                blocks.extend(Block::of(counter, &contents));
            }
        }
        for search in searches {
            let (found, ..) = self.search(&search, None, MAX_LISTED).await?;
            for (counter, contents) in found {
                let block = Block::of(&counter, &contents);
                match blocks.iter_mut().find(|block| block.id == counter.id()) {
                    Some(known) => {
                        known.shadow = counter.is_shadow();
                        known.user = counter.note.user;
                    }
                    None => blocks.extend(block),
                }
            }
        }
        Ok((denied, blocks))
    }
}

/// The contents as they decide on attempts from an address that may be known.
fn exempted(
    subject: &Repr,
    counter: &Counter,
    mut contents: Contents,
    known: &[Address],
) -> Contents {
    if counter.rule.exempts_known_addresses()
        && let Some(ip) = subject.ip()
        && known
            .iter()
            .any(|known| Address::new(ip, known.prefix()) == *known)
    {
        contents.standing.state = State::Exempt;
    }
    contents
}

impl ExplainedLimit {
    fn new(counter: &Counter, contents: &Contents) -> Self {
        let (limit, standing) = (counter.rule.limit(), contents.standing);
        let next_failure = NextFailure::of(limit, contents);
        let (state, lifts) = match standing.state {
            State::Exempt => (LimitState::Exempt, None),
            State::Clear => (LimitState::Clear, None),
            State::Busy | State::Shadowed { lifts: None } => (LimitState::Busy, None),
            State::Blocked { lifts } | State::Shadowed { lifts: Some(lifts) } => {
                (LimitState::Blocked, lifts.as_duration())
            }
        };
        let is_blocked = state == LimitState::Blocked;
        Self {
            id: counter.id(),
            rule: counter.rule.shared_name(),
            address: counter.address,
            by_user: counter.rule.counts_by_user(),
            user: counter.note.user.clone(),
            shadow: counter.rule.is_shadow(),
            state,
            usage: standing.usage,
            limit: standing.limit,
            attempts: attempts(limit.algorithm(), contents),
            kept: contents.kept,
            older_thousandths: contents.summary.map_or(0, |summary| summary.thousandths),
            since: is_blocked.then(|| since(contents)).flatten(),
            lifts_at: lifts.map(|lifts| contents.now.saturating_add(to_millis(lifts))),
            next_failure,
            words: words::sentence(&counter.rule, contents, next_failure),
        }
    }
}

/// The attempts of a counter, and which of them count: the newest, as many as its usage.
fn attempts(algorithm: Algorithm, contents: &Contents) -> Vec<ExplainedAttempt> {
    let standing = contents.standing;
    // Where older ones are aggregated, what is kept one by one counts in part.
    let is_whole = matches!(algorithm, Algorithm::SlidingWindow | Algorithm::Backoff);
    let mut left = standing.usage;
    let counted = |in_flight: bool| {
        let counts = if !is_whole {
            standing.usage > 0
        } else if in_flight && standing.is_blocked() {
            return false;
        } else {
            left > 0
        };
        left = left.saturating_sub(1);
        counts
    };
    let mut counted = counted;
    let kept = contents.attempts.iter();
    kept.map(|kept| ExplainedAttempt {
        attempt: kept.id,
        at: kept.at,
        in_flight: kept.is_in_flight,
        counts: counted(kept.is_in_flight),
    })
    .collect()
}
