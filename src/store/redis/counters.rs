//! Counters as the scripts take them.

use std::{fmt::Write, sync::Arc, time::Duration};

use redis::{Cmd, ToRedisArgs, Value};
use smallvec::SmallVec;

use super::{
    keys::{KeyScheme, hash_tag, local_key},
    reply,
    scripts::{CLEANUP, MERGE, RESERVE, SETTLE, Script, or_empty},
};
use crate::{
    Address, KnownAddresses, Limit, Token,
    algorithm::{self, Block, Millis, State},
    clock::to_millis,
    store::{KnownAddress, Slot, Standings, StoreError},
};

/// Some counters, ready to be sent.
#[derive(Clone, Default)]
pub(super) struct Counters(Vec<Counter>);

#[derive(Clone)]
struct Counter {
    key: Vec<u8>,
    of_address: bool,
    limit: Limit,
    exception: Option<Exception>,
}

/// An address that does not count, if it is known.
#[derive(Clone)]
struct Exception {
    key: Vec<u8>,
    address: Address,
    keep: KnownAddresses,
}

/// How an attempt is settled.
#[derive(Clone, Copy)]
pub(super) enum Settling<'a> {
    /// So long ago.
    Fail(Token, Millis),
    Cancel(&'a [Token]),
}

/// Those of some counters that a cluster keeps together.
pub(super) struct Group {
    pub(super) counters: Arc<Counters>,
    /// Where they stand among all.
    pub(super) slots: Vec<usize>,
}

impl Group {
    /// Puts what was said of these counters where it belongs among all.
    pub(super) fn place(&self, standings: &Standings, all: &mut Standings) {
        for (i, standing) in self.slots.iter().zip(&**standings) {
            all.as_mut()[*i] = *standing;
        }
    }
}

impl Counters {
    pub(super) fn new<'s>(
        slots: impl IntoIterator<Item = &'s Slot<'s>>,
        scheme: &KeyScheme,
    ) -> Self {
        let counter = |slot: &Slot<'_>| Counter {
            key: scheme.write(&slot.key),
            of_address: slot.key.address().is_some(),
            limit: slot.limit.clone(),
            exception: slot.unless_known.as_ref().map(|known| Exception {
                key: scheme.write(&slot.key.known_addresses(known.kind)),
                address: known.address,
                keep: known.keep,
            }),
        };
        Self(slots.into_iter().map(counter).collect())
    }

    pub(super) const fn len(&self) -> usize {
        self.0.len()
    }

    pub(super) fn keys(&self) -> Vec<&[u8]> {
        self.each_key().collect()
    }

    fn each_key(&self) -> impl Iterator<Item = &[u8]> + Clone {
        self.0.iter().map(|counter| &*counter.key)
    }

    /// Names and limits of those in which every attempt counts, and their places.
    pub(super) fn without_exception(&self) -> impl Iterator<Item = (usize, &[u8], &Limit)> {
        let counters = self.0.iter().enumerate();
        counters
            .filter(|(_, counter)| counter.exception.is_none())
            .map(|(i, counter)| (i, &*counter.key, &counter.limit))
    }

    /// What `reserve.lua` said of them.
    pub(super) fn standings(
        &self,
        reply: &Value,
        token: Option<Token>,
    ) -> Result<Standings, StoreError> {
        reply::standings(reply, token, self.len(), |i| match self.0[i].limit {
            Limit::SlidingWindow(ref numbers) => Some(numbers.limit()),
            _ => None,
        })
    }

    /// How they would stand if nothing had ever been counted.
    pub(super) fn untouched(&self) -> Standings {
        let counters = self.0.iter();
        counters
            .map(|counter| algorithm::Counter::default().standing(&counter.limit, 0))
            .collect()
    }

    /// The same counters in a store of this process.
    pub(super) fn slots(&self) -> SmallVec<[Slot<'_>; 3]> {
        self.0.iter().map(Counter::slot).collect()
    }

    /// Gives all of them this tag.
    pub(super) fn move_to(&mut self, tag: &[u8]) {
        for counter in &mut self.0 {
            let (old, key) = (counter.tag().to_vec(), counter.key.clone());
            let begin = key
                .iter()
                .position(|byte| *byte == b'{')
                .map_or(0, |at| at + 1);
            counter.key = [&key[..begin], tag, &key[begin + old.len()..]].concat();
        }
    }

    pub(super) fn extend(&mut self, more: Self) {
        self.0.extend(more.0);
    }

    /// Takes these out.
    pub(super) fn remove(&mut self, keys: &[&[u8]]) {
        self.0.retain(|counter| !keys.contains(&&*counter.key));
    }

    /// Those in which an attempt that was admitted so counts.
    pub(super) fn counting(&self, standings: &Standings) -> Self {
        let counters = self.0.iter().zip(&**standings);
        let counting = counters.filter(|(_, standing)| standing.state != State::Exempt);
        Self(counting.map(|(counter, _)| counter.clone()).collect())
    }

    /// Those that make an exception, by their place from 1.
    fn exceptions(&self) -> impl Iterator<Item = (usize, &Exception)> + Clone {
        let counters = self.0.iter().zip(1..);
        counters.filter_map(|(counter, i)| Some((i, counter.exception.as_ref()?)))
    }

    /// Whether a cluster keeps all of them together.
    pub(super) fn have_one_tag(&self) -> bool {
        let mut tags = self.0.iter().map(Counter::tag);
        let first = tags.next();
        tags.all(|tag| Some(tag) == first)
    }

    /// As a cluster keeps them, those of an address first.
    pub(super) fn apart(&self) -> Vec<Group> {
        let mut groups: Vec<Vec<usize>> = Vec::new();
        for (slot, counter) in self.0.iter().enumerate() {
            let same_tag = |group: &&mut Vec<usize>| self.0[group[0]].tag() == counter.tag();
            match groups.iter_mut().find(same_tag) {
                Some(group) => group.push(slot),
                None => groups.push(vec![slot]),
            }
        }
        groups.sort_by_key(|group| !self.0[group[0]].of_address);
        let group = |slots: Vec<usize>| {
            let counters = slots.iter().map(|slot| self.0[*slot].clone());
            Group {
                counters: Arc::new(Self(counters.collect())),
                slots,
            }
        };
        groups.into_iter().map(group).collect()
    }

    /// A call of `reserve.lua`; without a token it only reports.
    pub(super) fn reserve(
        &self,
        token: Option<Token>,
        lease: Duration,
        now: Option<Millis>,
    ) -> Cmd {
        let lease = to_millis(lease);
        let known = self.exceptions().map(|(_, exception)| &*exception.key);
        let mut command = RESERVE.call(self.each_key().chain(known));
        or_empty(&mut command, token.as_ref().map(Token::as_bytes));
        or_empty(&mut command, now);
        command.arg(lease);
        self.write_limits(&mut command, lease);
        for (i, exception) in self.exceptions() {
            command
                .arg(i)
                .arg(exception.address.to_string())
                .arg(to_millis(exception.keep.kept_for()))
                .arg(exception.keep.newest());
        }
        command
    }

    /// A call of `settle.lua`.
    pub(super) fn settle(&self, settling: Settling<'_>, now: Option<Millis>, channel: &str) -> Cmd {
        let (verb, age, tokens) = match settling {
            Settling::Fail(token, age) => ("fail", age, token.as_bytes().to_vec()),
            Settling::Cancel(tokens) => {
                let bytes = tokens.iter().flat_map(Token::as_bytes).copied();
                ("cancel", 0, bytes.collect())
            }
        };
        let mut command = self.change(&SETTLE, &tokens, verb, now);
        command.arg(age).arg(channel);
        command
    }

    /// A call of `cleanup.lua`, the first so many counters being the main ones.
    pub(super) fn clean_up(
        &self,
        token: Option<Token>,
        mains: usize,
        age: Millis,
        now: Option<Millis>,
        channel: &str,
    ) -> Cmd {
        // By whichever of its two names Redis knows it.
        let tokens = token.map_or_else(Vec::new, |token| {
            [*token.as_bytes(), *token.twin().as_bytes()].concat()
        });
        let mut command = self.change(&CLEANUP, &tokens, mains, now);
        command.arg(age).arg(channel);
        command
    }

    /// A call of `merge.lua`.
    pub(super) fn merge(&self, token: Token, age: Millis, now: Option<Millis>) -> Cmd {
        self.change(&MERGE, token.as_bytes(), age, now)
    }

    fn change(
        &self,
        script: &Script,
        tokens: &[u8],
        how: impl ToRedisArgs,
        now: Option<Millis>,
    ) -> Cmd {
        let mut command = script.call(self.each_key());
        command.arg(tokens);
        or_empty(&mut command, now);
        command.arg(how);
        self.write_limits(&mut command, 0);
        command
    }

    fn write_limits(&self, command: &mut Cmd, lease: Millis) {
        command.arg(self.len());
        for counter in &self.0 {
            write_limit(command, &counter.limit, lease);
        }
    }
}

impl Counter {
    fn slot(&self) -> Slot<'_> {
        let slot = Slot::new(local_key(&self.key), &self.limit);
        match &self.exception {
            Some(Exception { key, address, keep }) => {
                let kind = local_key(key).kind;
                slot.unless_known(KnownAddress::new(kind, *address, *keep))
            }
            None => slot,
        }
    }

    fn tag(&self) -> &[u8] {
        hash_tag(&self.key)
    }
}

/// The seven arguments that `counters.lua` describes. What is for ever is 0 there.
fn write_limit(command: &mut Cmd, limit: &Limit, lease: Millis) {
    let block = limit.block();
    let grows = block.is_some_and(|block| block.lengths().len() > 1);
    let (algorithm, attempts, window) = match limit {
        Limit::SlidingWindow(numbers) if grows => ("growing", numbers.limit(), numbers.window()),
        Limit::SlidingWindow(numbers) => ("window", numbers.limit(), numbers.window()),
        Limit::TokenBucket(numbers) => ("bucket", numbers.capacity(), Some(numbers.refill())),
        Limit::SlidingCounter(numbers) => ("counter", numbers.limit(), Some(numbers.window())),
        Limit::Backoff(numbers) => ("backoff", numbers.free(), numbers.forgotten_after()),
    };
    command
        .arg(algorithm)
        .arg(attempts)
        .arg(window.unwrap_or(0));
    match (limit, block) {
        (Limit::Backoff(numbers), _) => {
            write_list(command, numbers.waits().iter().copied().map(Some));
            command.arg(numbers.jitter())
        }
        (_, Some(block)) => {
            write_list(command, block.lengths().iter().copied());
            command.arg(block.again_within())
        }
        (_, None) => command.arg("").arg(0),
    };
    let keep = |block| {
        limit
            .retention(block)
            .map(|keep| keep.saturating_add(lease))
    };
    command.arg(keep(None).unwrap_or(0));
    let blocks = block.map_or(1, |block: &Block| block.lengths().len());
    write_list(
        command,
        (0..blocks).map(|i| keep(u32::try_from(i + 1).ok())),
    );
}

/// Numbers joined by commas, as one argument. Most are alone.
fn write_list(command: &mut Cmd, mut numbers: impl ExactSizeIterator<Item = Option<Millis>>) {
    debug_assert!(numbers.len() > 0, "nothing would be read as for ever");
    let first = numbers.next().flatten().unwrap_or(0);
    if numbers.len() == 0 {
        command.arg(first);
        return;
    }
    let mut list = first.to_string();
    for number in numbers {
        // Writing to a string can't fail.
        let _ = write!(list, ",{}", number.unwrap_or(0));
    }
    command.arg(list);
}
