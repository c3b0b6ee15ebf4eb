//! Blocks that this process knows of: whoever is blocked is refused without asking Redis.

use std::{
    collections::HashMap,
    sync::{
        Arc, Mutex, MutexGuard, PoisonError,
        atomic::{AtomicU64, Ordering},
    },
    time::Duration,
};

use super::counters::Counters;
use crate::{
    Limit, Period,
    algorithm::{Millis, Standing, State},
    clock::Clock,
    store::Standings,
};

/// How long a block is believed in without asking while others would say if it was lifted,
const BELIEVED: Millis = 10_000;
/// and while they could not. An unblock is to be honoured everywhere within a second.
const BELIEVED_UNHEARD: Millis = 500;
/// How long others wait for the answer of one who asks. It may have gone away.
const ASKED_FOR: Millis = 100;
/// How often at most all of them are searched for some that are over.
const SWEEP_EVERY: Millis = 1_000;

/// Counters that are blocked, as Redis last said.
///
/// A block lifts by itself, at a time that was said with it; or because somebody lifts it, which is
/// [announced](super::announcements).
pub(super) struct Blocks {
    held: Mutex<Held>,
    capacity: usize,
    clock: Arc<dyn Clock>,
    /// Since which subscription announcements have been heard without a gap; 0: they are not.
    subscription: AtomicU64,
    /// How many blocks were announced to be lifted.
    lifted: AtomicU64,
    refused: AtomicU64,
}

#[derive(Default)]
struct Held {
    blocks: HashMap<Vec<u8>, Block>,
    swept: Option<Millis>,
}

struct Block {
    standing: Standing,
    /// What it was judged by. Under another limit Redis may say something else.
    limit: Limit,
    /// `None` for never.
    lifts: Option<Millis>,
    /// When Redis said so.
    said: Millis,
    /// When somebody asked last whose answer is still to come.
    asking: Option<Millis>,
    subscription: u64,
}

/// How far what was said before is believed.
#[derive(Clone, Copy, PartialEq, Eq)]
pub(super) enum Belief {
    /// For a while.
    Recent,
    /// For a while; then this caller is about to ask, and others believe it until there is an answer.
    Asking,
    /// Until the block is over: there is nobody to ask.
    Blind,
}

/// What was so when Redis was asked.
#[derive(Clone, Copy)]
pub(super) struct Asked {
    pub(super) at: Millis,
    subscription: u64,
    lifted: u64,
}

impl Blocks {
    pub(super) fn new(capacity: usize, clock: Arc<dyn Clock>) -> Self {
        Self {
            held: Mutex::default(),
            capacity,
            clock,
            subscription: AtomicU64::new(0),
            lifted: AtomicU64::new(0),
            refused: AtomicU64::new(0),
        }
    }

    pub(super) const fn are_kept(&self) -> bool {
        self.capacity > 0
    }

    /// How many attempts were refused from memory.
    pub(super) fn refused(&self) -> u64 {
        self.refused.load(Ordering::Relaxed)
    }

    pub(super) fn are_announced(&self) -> bool {
        self.subscription.load(Ordering::Relaxed) != 0
    }

    /// How counters stand of which one is known to be blocked; those that nothing is known of are
    /// said to be untouched. `None` if Redis has to be asked.
    pub(super) fn refuse(&self, counters: &Counters, belief: Belief) -> Option<Standings> {
        if !self.are_kept() {
            return None;
        }
        let mut held = self.held();
        if held.blocks.is_empty() {
            return None;
        }
        let now = self.clock.now();
        let subscription = self.subscription.load(Ordering::Relaxed);
        let mut refusing: Option<Standings> = None;
        for (i, key, limit) in counters.without_exception() {
            let Some(block) = held.blocks.get_mut(key) else {
                continue;
            };
            let left = match block.lifts {
                None => Period::Forever,
                Some(lifts) if now < lifts => Period::Of(Duration::from_millis(lifts - now)),
                Some(_) => {
                    held.blocks.remove(key);
                    continue;
                }
            };
            if block.limit != *limit {
                continue;
            }
            let heard = block.subscription != 0 && block.subscription == subscription;
            let believed = if heard { BELIEVED } else { BELIEVED_UNHEARD };
            let is_asked = |asking: Millis| now.saturating_sub(asking) < ASKED_FOR;
            if belief != Belief::Blind
                && now.saturating_sub(block.said) >= believed
                && !block.asking.is_some_and(is_asked)
            {
                if belief == Belief::Asking {
                    block.asking = Some(now);
                }
                return None;
            }
            let standings = refusing.get_or_insert_with(|| counters.untouched());
            standings.as_mut()[i] = Standing {
                state: State::Blocked { lifts: left },
                ..block.standing
            };
        }
        if refusing.is_some() {
            self.refused.fetch_add(1, Ordering::Relaxed);
        }
        refusing
    }

    /// To be called before Redis is asked.
    pub(super) fn asking(&self) -> Asked {
        Asked {
            at: self.clock.now(),
            subscription: self.subscription.load(Ordering::Relaxed),
            lifted: self.lifted.load(Ordering::Relaxed),
        }
    }

    /// Remembers which counters Redis said are blocked, and that the others are not.
    pub(super) fn learn(&self, asked: Asked, counters: &Counters, standings: &Standings) {
        let blocked = |i: usize| match standings.get(i)?.state {
            State::Blocked { lifts } => Some((standings[i], lifts)),
            _ => None,
        };
        if !self.are_kept() {
            return;
        }
        let any = (0..counters.len()).any(|i| blocked(i).is_some());
        let mut held = self.held();
        if !any && held.blocks.is_empty() {
            return;
        }
        // One of these may have been lifted meanwhile, after Redis had answered.
        let is_current = self.lifted.load(Ordering::Relaxed) == asked.lifted;
        for (i, key, limit) in counters.without_exception() {
            let Some((standing, lifts)) = blocked(i).filter(|_| is_current) else {
                held.blocks.remove(key);
                continue;
            };
            if held.blocks.len() >= self.capacity && !held.blocks.contains_key(key) {
                held.sweep(asked.at);
                if held.blocks.len() >= self.capacity {
                    continue;
                }
            }
            let block = Block {
                standing,
                limit: limit.clone(),
                // From when it was asked, so that nobody is refused for longer than Redis would.
                lifts: match lifts {
                    Period::Of(left) => {
                        Some(asked.at.saturating_add(crate::clock::to_millis(left)))
                    }
                    Period::Forever => None,
                },
                said: asked.at,
                asking: None,
                subscription: asked.subscription,
            };
            held.blocks.insert(key.to_vec(), block);
        }
    }

    /// These may no longer be blocked.
    pub(super) fn forget(&self, counters: &Counters) {
        let mut held = self.held();
        if !held.blocks.is_empty() {
            for key in counters.keys() {
                held.blocks.remove(key);
            }
        }
    }

    /// It was announced that this one may no longer be blocked.
    pub(super) fn was_lifted(&self, key: &[u8]) {
        // Ahead of forgetting it, so that what was said before is not learned afterwards.
        self.lifted.fetch_add(1, Ordering::Relaxed);
        self.held().blocks.remove(key);
    }

    /// Announcements are heard from now on, or no longer.
    pub(super) fn subscribed(&self, subscription: u64) {
        self.subscription.store(subscription, Ordering::Relaxed);
    }

    fn held(&self) -> MutexGuard<'_, Held> {
        self.held.lock().unwrap_or_else(PoisonError::into_inner)
    }
}

impl Held {
    fn sweep(&mut self, now: Millis) {
        let since = self.swept.map(|swept| now.saturating_sub(swept));
        if since.is_none_or(|since| since >= SWEEP_EVERY) {
            self.swept = Some(now);
            self.blocks
                .retain(|_, block| block.lifts.is_none_or(|lifts| now < lifts));
        }
    }
}
