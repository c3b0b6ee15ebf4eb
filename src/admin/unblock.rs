//! Lifting blocks, exactly those that are meant.

use std::collections::HashSet;

use serde::Serialize;

use super::{
    Admin, AdminError, Author, Block, BlockId, Subject,
    counters::{Counter, enabled_rules},
    subject::Repr,
};
use crate::{
    Address, Rule, access::AccessRule, event::AdminAction, limiter::block_note::Note,
    store::Contents,
};

/// How many counters are cleared by one call of the store.
const CHUNK: usize = 100;
/// How many entries of the index are read at a time.
const PAGE: usize = 500;
/// How many lifted blocks are returned at most.
const MAX_RETURNED: usize = 1_000;

/// What an operator unblocks. A [`Subject`] converts into it.
#[derive(Clone, Debug)]
#[must_use = "nothing is unblocked until it is passed to `Admin::unblock`"]
pub struct Unblock {
    subject: Subject,
    with_pairs: bool,
}

impl Unblock {
    /// Unblocks a subject.
    pub const fn of(subject: Subject) -> Self {
        Self {
            subject,
            with_pairs: false,
        }
    }

    /// Whether the blocks of users at an address are lifted with those of the address. They are not unless set. It
    /// makes no difference to other subjects.
    pub const fn with_pairs(mut self, with_pairs: bool) -> Self {
        self.with_pairs = with_pairs;
        self
    }

    /// Whether the counters of a rule are meant.
    fn includes(&self, rule: &Rule) -> bool {
        let (by_user, by_address) = (rule.counts_by_user(), rule.counts_by_address());
        match self.subject.0 {
            Repr::Pair(..) => by_user && by_address,
            Repr::User(_) => by_user,
            // A network around it is shared with others.
            Repr::Address(_) => {
                by_address && rule.network().is_none() && (!by_user || self.with_pairs)
            }
            Repr::Network(_) => by_address,
        }
    }

    /// Whether a counter whose rule is meant belongs to the subject, and not to a network around it.
    fn includes_address(&self, address: Option<Address>) -> bool {
        match (&self.subject.0, address) {
            (Repr::Network(network), Some(address)) => {
                address.prefix() >= network.prefix_len() && network.contains(&address.ip())
            }
            _ => true,
        }
    }
}

impl From<Subject> for Unblock {
    fn from(subject: Subject) -> Self {
        Self::of(subject)
    }
}

/// What was unblocked, and what still refuses.
#[derive(Clone, Debug, Default, Serialize)]
#[non_exhaustive]
pub struct Unblocked {
    /// The blocks that were lifted, 1,000 at most.
    pub lifted: Vec<Block>,
    /// How many were lifted in all.
    pub count: usize,
    /// The access rule that denies the subject, whatever is unblocked.
    pub denied_by: Option<AccessRule>,
    /// The blocks in force that refuse the subject all the same: the address of a pair, or the network around an
    /// address.
    pub refused_by: Vec<Block>,
}

impl Admin {
    /// Lifts the blocks of a subject, and no others: failures of other people stay counted, and so does every counter
    /// that is not blocked.
    ///
    /// | subject | lifted | not lifted |
    /// |---|---|---|
    /// | pair | the blocks of the user at the address | those of the address, and of the user everywhere |
    /// | user | the blocks of the user everywhere, and at each address where one is listed | those of addresses |
    /// | address | the blocks of the address; [with pairs](Unblock::with_pairs) those of users there | those of networks around it |
    /// | network | the listed blocks of addresses in it and of users there | those of networks around it |
    ///
    /// What the result has in [`refused_by`](Unblocked::refused_by) still refuses the subject. Attempts in flight are
    /// not touched. It may be repeated.
    ///
    /// # Errors
    ///
    /// If the user is blank, or the store failed; some blocks may have been lifted then.
    pub async fn unblock(
        &self,
        target: impl Into<Unblock> + Send,
        author: &Author,
    ) -> Result<Unblocked, AdminError> {
        self.unblock_for(target.into(), Some(author)).await
    }

    /// What [`unblock`](Self::unblock) would lift at present, and what would still refuse the subject. Changes
    /// nothing.
    ///
    /// # Errors
    ///
    /// If the user is blank, or the store failed.
    pub async fn preview_unblock(
        &self,
        target: impl Into<Unblock> + Send,
    ) -> Result<Unblocked, AdminError> {
        let mut preview = self.unblock_for(target.into(), None).await?;
        let is_lifted = |block: &Block| preview.lifted.iter().any(|lifted| lifted.id == block.id);
        preview.refused_by.retain(|block| !is_lifted(block));
        Ok(preview)
    }

    /// Without an author nothing is lifted.
    async fn unblock_for(
        &self,
        target: Unblock,
        author: Option<&Author>,
    ) -> Result<Unblocked, AdminError> {
        self.catch_up().await?;
        let subject = &target.subject.0;
        let (searches, mut direct) = {
            let in_force = self.limiter.in_force();
            let searches = self.searches(&in_force, subject, |rule| target.includes(rule))?;
            let mut direct = self.direct(&in_force, subject);
            direct.retain(|counter| {
                target.includes(&counter.rule) && target.includes_address(counter.address)
            });
            (searches, direct)
        };
        if let Some(author) = author {
            self.audit(AdminAction::Unblock, Some(subject), author);
        }
        let mut unblocked = Unblocked::default();
        let mut asked = None;
        for search in searches {
            let mut after = None;
            loop {
                let (mut found, now, next) = self.search(&search, after.as_deref(), PAGE).await?;
                // A block that begins meanwhile is not one that the operator has seen.
                let asked = *asked.get_or_insert(now);
                found.retain(|(counter, contents)| {
                    Block::of(counter, contents)
                        .is_some_and(|block| block.since.is_none_or(|since| since <= asked))
                });
                self.lift(&found, author, &mut unblocked).await?;
                after = next;
                if after.is_none() {
                    break;
                }
            }
        }
        if author.is_none() {
            // Those that are listed are still blocked.
            let is_found = |id| unblocked.lifted.iter().any(|block| block.id == id);
            direct.retain(|counter| !is_found(counter.id()));
        }
        let contents = self.read(&direct).await?;
        let direct = direct.into_iter().zip(contents);
        let blocked = direct.filter_map(|(counter, contents)| Some((counter, contents?)));
        let blocked = blocked.filter(|(_, contents)| contents.standing.is_blocked());
        let blocked: Vec<_> = blocked.collect();
        self.lift(&blocked, author, &mut unblocked).await?;

        let with_users = !matches!(subject, Repr::Address(_)) || target.with_pairs;
        let refuses = |rule: &Rule| with_users || !rule.counts_by_user();
        (unblocked.denied_by, unblocked.refused_by) = self.refusing(subject, refuses).await?;
        Ok(unblocked)
    }

    /// Lifts one block of a list. What else refuses the client is not known, so the result does not contain it.
    ///
    /// # Errors
    ///
    /// If the policy has no such rule or the store no such counter, or if the store failed.
    pub async fn unblock_counter(
        &self,
        id: &BlockId,
        author: &Author,
    ) -> Result<Unblocked, AdminError> {
        self.catch_up().await?;
        let counters = self.counters_of(id);
        if counters.is_empty() {
            let in_force = self.limiter.in_force();
            let known: Vec<_> = enabled_rules(&in_force).map(Rule::name).collect();
            return Err(AdminError::invalid(format!(
                "the policy has no enabled rule of this name; it has {}",
                known.join(", ")
            )));
        }
        let contents = self.read(&counters).await?;
        if contents.iter().all(Option::is_none) {
            return Err(AdminError::invalid(
                "this is not the id of a block in this store: pass on the one that a list contains",
            ));
        }
        self.audit(AdminAction::Unblock, None, author);
        let mut unblocked = Unblocked::default();
        let blocked = blocked(counters, contents);
        self.lift(&blocked, Some(author), &mut unblocked).await?;
        Ok(unblocked)
    }

    /// Lifts several blocks of a list, as one action. Those that are not blocked are left out, and so are ids whose rule
    /// or counter has gone since the list was read.
    ///
    /// # Errors
    ///
    /// If the store failed; some blocks may have been lifted then. It may be repeated.
    pub async fn unblock_counters(
        &self,
        ids: &[BlockId],
        author: &Author,
    ) -> Result<Unblocked, AdminError> {
        self.catch_up().await?;
        let counters: Vec<_> = ids.iter().flat_map(|id| self.counters_of(id)).collect();
        let contents = self.read(&counters).await?;
        self.audit(AdminAction::Unblock, None, author);
        let mut unblocked = Unblocked::default();
        let blocked = blocked(counters, contents);
        self.lift(&blocked, Some(author), &mut unblocked).await?;
        Ok(unblocked)
    }

    /// The counter of this id under the rules that are in force: with a canary there may be two.
    fn counters_of(&self, id: &BlockId) -> Vec<Counter> {
        let in_force = self.limiter.in_force();
        let canary = in_force.canary.as_ref().map(|canary| &canary.policy);
        let policies = std::iter::once(&in_force.policy).chain(canary);
        let rules = policies.filter_map(|policy| policy.rule(&id.rule));
        let rules = rules.filter(|rule| rule.is_enabled());
        let counters = rules.map(|rule| Counter {
            rule: rule.clone(),
            name: id.counter.clone(),
            address: None,
            note: Note::default(),
            listed: None,
        });
        counters.collect()
    }

    /// Lifts the blocks of these counters, if there is an author, and adds them to the result. Their entries in the
    /// index are as they were before: one that is renewed by a block which begins meanwhile stays.
    async fn lift(
        &self,
        blocked: &[(Counter, Contents)],
        author: Option<&Author>,
        unblocked: &mut Unblocked,
    ) -> Result<(), AdminError> {
        for chunk in blocked.chunks(CHUNK) {
            let named = chunk.iter();
            let named = named.map(|(counter, _)| (&counter.name, counter.rule.limit()));
            let cleared = match author {
                Some(_) => self.ledger.clear(&named.collect::<Vec<_>>()).await?,
                None => vec![true; chunk.len()],
            };
            for ((counter, contents), was_blocked) in chunk.iter().zip(cleared) {
                if let Some(block) = Block::of(counter, contents).filter(|_| was_blocked) {
                    if let Some(author) = author {
                        self.lifted(&block, author);
                    }
                    unblocked.count += 1;
                    if unblocked.lifted.len() < MAX_RETURNED {
                        unblocked.lifted.push(block);
                    }
                }
            }
            if author.is_none() {
                continue;
            }
            let listed = chunk
                .iter()
                .filter_map(|(counter, _)| counter.listed.clone());
            self.drop_notes(&listed.collect::<Vec<_>>()).await;
        }
        Ok(())
    }
}

/// Those of the counters that are blocked, each once: under a limit for some of the addresses it may be blocked, and
/// under the other one not.
fn blocked(counters: Vec<Counter>, contents: Vec<Option<Contents>>) -> Vec<(Counter, Contents)> {
    let mut seen = HashSet::new();
    let read = counters.into_iter().zip(contents);
    let read = read.filter_map(|(counter, contents)| Some((counter, contents?)));
    let blocked = read.filter(|(_, contents)| contents.standing.is_blocked());
    blocked
        .filter(|(counter, _)| seen.insert((counter.rule.shared_name(), counter.name.clone())))
        .collect()
}
