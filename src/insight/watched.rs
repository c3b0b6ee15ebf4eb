//! Blocks that are watched: whether one was wrong is known by what follows.

use std::{collections::HashMap, sync::Arc};

use crate::{Period, algorithm::Millis, clock::to_millis};

const DAY: Millis = 24 * 60 * 60 * 1000;
/// How many blocks are watched until a day after they end.
const CAPACITY: usize = 16_384;

/// The newest blocks, by the keyed hash of rule and counter. Beyond its capacity the oldest is taken to be right.
#[derive(Debug, Default)]
pub(super) struct Watched {
    blocks: HashMap<u64, Block>,
    /// The blocks of a user at an address, by a hash of the two.
    of_pair: HashMap<u64, Vec<u64>>,
}

#[derive(Debug)]
pub(super) struct Block {
    pub(super) rule: Arc<str>,
    /// The user at the address whose failure began it.
    pub(super) pair: Option<u64>,
    pub(super) began: Millis,
    /// Until when a success counts; `None` if that is always.
    until: Option<Millis>,
}

impl Block {
    pub(super) fn new(rule: &Arc<str>, pair: Option<u64>, began: Millis, lifts: Period) -> Self {
        let lifts = lifts.as_duration().map(to_millis);
        Self {
            rule: Arc::clone(rule),
            pair,
            began,
            until: lifts.map(|lifts| began.saturating_add(lifts).saturating_add(DAY)),
        }
    }
}

impl Watched {
    pub(super) fn watch(&mut self, id: u64, block: Block) {
        // The block before it at the same counter has ended.
        self.unwatch(id);
        if self.blocks.len() >= CAPACITY {
            self.make_room(block.began);
        }
        if let Some(pair) = block.pair {
            self.of_pair.entry(pair).or_default().push(id);
        }
        self.blocks.insert(id, block);
    }

    /// Ends to watch a block, because an operator lifts it.
    pub(super) fn unwatch(&mut self, id: u64) -> Option<Block> {
        let block = self.blocks.remove(&id)?;
        if let Some(pair) = block.pair
            && let Some(blocks) = self.of_pair.get_mut(&pair)
        {
            blocks.retain(|other| *other != id);
            if blocks.is_empty() {
                self.of_pair.remove(&pair);
            }
        }
        Some(block)
    }

    /// The user logs in from the address. Returns the blocks that are wrong by it.
    pub(super) fn succeeded(&mut self, pair: u64, at: Millis) -> Vec<(u64, Block)> {
        let blocks = self.of_pair.remove(&pair).into_iter().flatten();
        blocks
            .filter_map(|id| Some((id, self.blocks.remove(&id)?)))
            .filter(|(_, block)| block.until.is_none_or(|until| at <= until))
            .collect()
    }

    /// Drops blocks that are over, and an eighth of the others, the oldest, so that this is rarely needed.
    fn make_room(&mut self, now: Millis) {
        let order = |block: &Block| {
            let is_over = block.until.is_some_and(|until| until < now);
            (!is_over, block.began)
        };
        let blocks = self.blocks.iter();
        let mut blocks: Vec<_> = blocks.map(|(id, block)| (order(block), *id)).collect();
        blocks.sort_unstable();
        for (_, id) in blocks.into_iter().take(CAPACITY / 8) {
            self.unwatch(id);
        }
    }
}
