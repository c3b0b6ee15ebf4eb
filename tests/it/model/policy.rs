//! Rules: in numbers for the oracle, in the crate's words for everybody else.

use std::time::Duration;

use tower_login_rate_limit::{
    Address, KnownAddresses, Limit, LimitBuilder, Period,
    store::{Key, KnownAddress, Slot},
};

use super::history::{RULES, Rules, SPELLINGS, USERS, Who};
use crate::support::{
    HOUR,
    oracle::{Asked, Blocks, Length, Numbers},
};

pub const USER_NAMES: [&[u8]; USERS] = [b"user", b"us:er", b"{user}\0"];
/// As they may be typed, in place of the normal form.
const TYPED: [Option<&[u8]>; SPELLINGS] = [None, Some(b"USER"), Some(b"User")];
pub const KNOWN_FOR: u64 = 2 * HOUR;

pub fn period(length: Length) -> Period {
    length.map_or(Period::Forever, |millis| {
        Period::Of(Duration::from_millis(millis))
    })
}

/// The numbers in the crate's words.
pub fn limit(numbers: &Numbers) -> Limit {
    let limit = match numbers {
        Numbers::Window {
            limit,
            window,
            block,
        } => {
            let words = Limit::attempts(*limit).within(period(*window));
            with_blocks(words, block).build()
        }
        Numbers::Backoff {
            waits,
            jitter,
            forget,
        } => Limit::backoff(waits.iter().copied().map(Duration::from_millis))
            .with_jitter(*jitter)
            .forgotten_after(period(*forget))
            .build(),
        Numbers::Bucket {
            capacity,
            refill,
            block,
        } => {
            let words = Limit::attempts(*capacity).within(period(Some(*refill)));
            with_blocks(words.as_token_bucket(), block).build()
        }
        Numbers::Counter {
            limit,
            window,
            block,
        } => {
            let words = Limit::attempts(*limit).within(period(Some(*window)));
            with_blocks(words.as_sliding_counter(), block).build()
        }
    };
    limit.expect("valid numbers")
}

pub fn with_blocks(words: LimitBuilder, blocks: &Option<Blocks>) -> LimitBuilder {
    let Some(Blocks { lengths, again }) = blocks else {
        return words.without_block();
    };
    let words = words.blocked_for(period(lengths[0]));
    if lengths.len() == 1 {
        return words;
    }
    let then_for = |words: LimitBuilder, length: &Length| words.then_for(period(*length));
    let words = lengths[1..].iter().fold(words, then_for);
    words.again_within(period(Some(*again)))
}

pub fn block(numbers: &Numbers) -> Option<&Blocks> {
    match numbers {
        Numbers::Window { block, .. }
        | Numbers::Bucket { block, .. }
        | Numbers::Counter { block, .. } => block.as_ref(),
        Numbers::Backoff { .. } => None,
    }
}

/// Every length that means something to a rule, those of its blocks last.
pub fn lengths(numbers: &Numbers) -> Vec<Length> {
    let mut lengths = match numbers {
        Numbers::Window { window, .. } => vec![*window],
        Numbers::Backoff { waits, forget, .. } => {
            let waits = waits.iter().copied().map(Some);
            [*forget].into_iter().chain(waits).collect()
        }
        Numbers::Bucket {
            capacity, refill, ..
        } => {
            let one = refill.div_ceil(u64::from(*capacity));
            vec![Some(*refill), Some(one)]
        }
        Numbers::Counter { window, .. } => vec![Some(*window), Some(2 * window)],
    };
    if let Some(blocks) = block(numbers) {
        lengths.extend(&blocks.lengths);
        // Whether a block came again soon matters only if that makes it longer.
        if blocks.lengths.len() > 1 {
            let again = |length: &Length| length.map(|length| length + blocks.again);
            lengths.extend(blocks.lengths.iter().map(again));
        }
    }
    lengths
}

/// How many entries a counter may hold after an admission: no more than the limit, and where there is a
/// past, those in flight and the newest 8.
pub fn most_held(numbers: &Numbers) -> usize {
    match numbers {
        Numbers::Window { limit, .. } => *limit as usize,
        Numbers::Backoff { waits, .. } => waits.len() + 1,
        Numbers::Bucket { capacity, .. } => *capacity as usize + 8,
        Numbers::Counter { limit, .. } => *limit as usize + 8,
    }
}

/// Three rules: in numbers for the oracle, in the crate's words for everybody else.
pub struct Policy {
    pub numbers: Rules,
    pub limits: [Limit; 3],
    /// Which of them are in shadow.
    pub shadow: [bool; 3],
}

impl Policy {
    pub fn new(numbers: &Rules, shadow: [bool; 3]) -> Self {
        Self {
            numbers: numbers.clone(),
            limits: numbers.each_ref().map(limit),
            shadow,
        }
    }

    /// The counters that apply, for the oracle. Only the account makes exceptions.
    pub fn asked(&self, who: Who, exempt: bool) -> Vec<Asked> {
        let names = names(who).into_iter().zip(self.numbers.clone());
        let asked = |(i, (key, numbers))| Asked {
            key,
            numbers,
            exempt: exempt && i == 2,
            shadow: self.shadow[i],
        };
        names.enumerate().map(asked).collect()
    }

    /// The same for the state machine; it knows of no exceptions.
    pub fn limits(&self, who: Who, exempt: bool) -> Vec<(String, Option<&Limit>)> {
        let limits = self.limits.iter().enumerate();
        let limits = limits.map(|(i, limit)| Some(limit).filter(|_| !exempt || i != 2));
        names(who).into_iter().zip(limits).collect()
    }

    /// The same for the stores.
    pub fn slots(&self, who: Who) -> Vec<Slot<'_>> {
        let address = address(who.address);
        let [by_address, by_pair, by_account] = &self.limits;
        let of_address = |rule| Key::of_address(address, rule);
        let mut slots = vec![Slot::new(of_address(RULES[0]), by_address)];
        if let Some(user) = who.user {
            let pair = of_address(RULES[1]).and_subject(USER_NAMES[user]);
            let account = Slot::new(Key::of_subject(RULES[2], USER_NAMES[user]), by_account);
            let account = account.unless_known(KnownAddress::new(HOMES, address, kept()));
            for slot in [Slot::new(pair, by_pair), account] {
                slots.push(match TYPED[who.spelling] {
                    Some(typed) => slot.spelled(typed),
                    None => slot,
                });
            }
        }
        let slots = slots.into_iter().zip(self.shadow);
        slots
            .map(|(slot, shadow)| slot.with_shadow(shadow))
            .collect()
    }
}

/// What the addresses that a user is known to come from are kept under.
const HOMES: &str = "homes";

pub fn homes(user: usize, spelling: usize) -> Key<'static> {
    let key = Key::of_subject(HOMES, USER_NAMES[user]);
    match TYPED[spelling] {
        Some(typed) => key.spelled(typed),
        None => key,
    }
}

pub fn kept() -> KnownAddresses {
    let kept_for = Duration::from_millis(KNOWN_FOR);
    KnownAddresses::new(10, kept_for).expect("valid numbers")
}

pub fn address(i: usize) -> Address {
    ["192.0.2.1", "2001:db8:1:2::/64"][i]
        .parse()
        .expect("an address")
}

/// Keys as text, in the order of the rules.
pub fn names(who: Who) -> Vec<String> {
    let Who { address, user, .. } = who;
    let mut names = vec![format!("address {address}")];
    if let Some(user) = user {
        names.push(format!("address {address} user {user}"));
        names.push(format!("user {user}"));
    }
    names
}

/// The pair's key first, where there is one: what a success cleans up.
pub fn pair_first<T>(mut keys: Vec<T>) -> Vec<T> {
    if keys.len() > 1 {
        keys.swap(0, 1);
    }
    keys
}
