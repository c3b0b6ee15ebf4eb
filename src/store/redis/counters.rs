//! Counters as the scripts take them.

use std::{fmt::Write, time::Duration};

use redis::{Cmd, ToRedisArgs};

use super::{
    keys::{KeyScheme, hash_tag},
    scripts::{CLEANUP, RESERVE, SETTLE, Script, or_empty},
};
use crate::{
    Address, KnownAddresses, Limit, Token,
    algorithm::{Block, Millis},
    clock::to_millis,
    store::{Slot, Standings},
};

/// Some counters, ready to be sent.
pub(super) struct Counters(Vec<Counter>);

struct Counter {
    key: Vec<u8>,
    of_address: bool,
    limit: Limit,
    exception: Option<Exception>,
}

/// An address that does not count, if it is known.
struct Exception {
    key: Vec<u8>,
    address: Address,
    keep: KnownAddresses,
}

/// How an attempt is settled.
#[derive(Clone, Copy)]
pub(super) enum Settling<'a> {
    Fail(Token),
    Cancel(&'a [Token]),
}

/// Those of some counters that a cluster keeps together.
pub(super) struct Group {
    pub(super) counters: Counters,
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

    fn keys(&self) -> Vec<&[u8]> {
        self.0.iter().map(|counter| &*counter.key).collect()
    }

    /// Those that make an exception, by their place from 1.
    fn exceptions(&self) -> impl Iterator<Item = (usize, &Exception)> {
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
    pub(super) fn apart(self) -> Vec<Group> {
        let mut groups: Vec<Group> = Vec::new();
        for (slot, counter) in self.0.into_iter().enumerate() {
            let same_tag = |group: &&mut Group| group.counters.0[0].tag() == counter.tag();
            match groups.iter_mut().find(same_tag) {
                Some(group) => {
                    group.counters.0.push(counter);
                    group.slots.push(slot);
                }
                None => groups.push(Group {
                    counters: Self(vec![counter]),
                    slots: vec![slot],
                }),
            }
        }
        groups.sort_by_key(|group| !group.counters.0[0].of_address);
        groups
    }

    /// A call of `reserve.lua`; without a token it only reports.
    pub(super) fn reserve(
        &self,
        token: Option<Token>,
        lease: Duration,
        now: Option<Millis>,
    ) -> Cmd {
        let lease = to_millis(lease);
        let mut keys = self.keys();
        keys.extend(self.exceptions().map(|(_, exception)| &*exception.key));
        let mut command = RESERVE.call(&keys);
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
    pub(super) fn settle(&self, settling: Settling<'_>, now: Option<Millis>) -> Cmd {
        let (verb, tokens) = match settling {
            Settling::Fail(token) => ("fail", token.as_bytes().to_vec()),
            Settling::Cancel(tokens) => {
                let bytes = tokens.iter().flat_map(Token::as_bytes).copied();
                ("cancel", bytes.collect())
            }
        };
        self.change(&SETTLE, &tokens, verb, now)
    }

    /// A call of `cleanup.lua`, the first so many counters being the main ones.
    pub(super) fn clean_up(&self, token: Option<Token>, mains: usize, now: Option<Millis>) -> Cmd {
        let token = token.as_ref().map_or(&[][..], |token| token.as_bytes());
        self.change(&CLEANUP, token, mains, now)
    }

    fn change(
        &self,
        script: &Script,
        tokens: &[u8],
        how: impl ToRedisArgs,
        now: Option<Millis>,
    ) -> Cmd {
        let mut command = script.call(&self.keys());
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
            let waits = numbers.waits().iter().copied().map(Some);
            command.arg(list(waits)).arg(numbers.jitter())
        }
        (_, Some(block)) => command
            .arg(list(block.lengths().iter().copied()))
            .arg(block.again_within()),
        (_, None) => command.arg("").arg(0),
    };
    let keep = |block| {
        limit
            .retention(block)
            .map(|keep| keep.saturating_add(lease))
    };
    command.arg(keep(None).unwrap_or(0));
    let blocks = block.map_or(1, |block: &Block| block.lengths().len());
    command.arg(list((1..=blocks).map(|nth| keep(u32::try_from(nth).ok()))));
}

/// Numbers joined by commas.
fn list(numbers: impl Iterator<Item = Option<Millis>>) -> String {
    let mut list = String::new();
    for number in numbers {
        let comma = if list.is_empty() { "" } else { "," };
        // Writing to a string can't fail.
        let _ = write!(list, "{comma}{}", number.unwrap_or(0));
    }
    list
}
