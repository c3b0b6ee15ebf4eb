//! What follows when a limit is reached, and when it is reached again.

use std::sync::Arc;

use super::Millis;
use crate::Period;

/// How long a counter refuses once its limit is reached. With several lengths, a block that comes too soon
/// after the last one has the next length.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(crate) struct Block {
    /// Not empty; `None` is forever.
    lengths: Arc<[Option<Millis>]>,
    again_within: Millis,
}

impl Block {
    /// `lengths` must not be empty.
    pub(crate) fn new(lengths: impl Into<Arc<[Option<Millis>]>>, again_within: Millis) -> Self {
        let lengths = lengths.into();
        debug_assert!(!lengths.is_empty(), "a block without a length");
        Self {
            lengths,
            again_within,
        }
    }

    /// The length of the first block, of the second in a row, and so on; `None` is forever.
    pub(crate) fn lengths(&self) -> &[Option<Millis>] {
        &self.lengths
    }

    /// A block that begins within this time of the end of the last one is the next in a row.
    pub(crate) const fn again_within(&self) -> Millis {
        self.again_within
    }

    /// Whether there is more than one length, so that the last block is kept.
    pub(crate) fn grows(&self) -> bool {
        self.lengths.len() > 1
    }

    /// The length of the `nth` block in a row, from 1.
    pub(super) fn length(&self, nth: u32) -> Option<Millis> {
        let last = self.lengths.len().saturating_sub(1);
        let i = (nth as usize).saturating_sub(1).min(last);
        self.lengths.get(i).copied().flatten()
    }

    /// When `block` no longer makes the next one longer; `None` is never.
    pub(super) fn forgotten(&self, block: LastBlock) -> Option<Millis> {
        let kept = self.length(block.nth)?.saturating_add(self.again_within);
        Some(block.began.saturating_add(kept))
    }

    /// The block that begins at `at`, after `last`.
    pub(super) fn after(&self, last: Option<LastBlock>, at: Millis) -> LastBlock {
        let max = u32::try_from(self.lengths.len()).unwrap_or(u32::MAX);
        let nth = match last {
            None => 1,
            Some(last) if self.left(last, at).is_some() => last.nth.min(max),
            Some(last) if self.forgotten(last).is_none_or(|end| at < end) => {
                last.nth.saturating_add(1).min(max)
            }
            Some(_) => 1,
        };
        LastBlock { nth, began: at }
    }

    /// What is left of `block` at `now`; `None` if it is over.
    pub(super) fn left(&self, block: LastBlock, now: Millis) -> Option<Period> {
        let Some(length) = self.length(block.nth) else {
            return Some(Period::Forever);
        };
        // Computed from its age: the time of its end could overflow.
        let left = match now.checked_sub(block.began) {
            Some(age) => length.saturating_sub(age),
            None => length.saturating_add(block.began - now),
        };
        (left > 0).then(|| Period::of_millis(left))
    }
}

#[cfg(feature = "admin")]
impl Block {
    /// How long a block lasts that begins at `now`, after one with this number in a row that began then, and
    /// after another one that began at `full`, if there were such.
    pub(crate) fn next_length(
        &self,
        last: Option<(u32, Millis)>,
        full: Option<Millis>,
        now: Millis,
    ) -> Period {
        let mut last = last.map(|(nth, began)| LastBlock { nth, began });
        if let Some(full) = full {
            last = Some(self.after(last, full));
        }
        Period::of_millis(self.length(self.after(last, now).nth))
    }
}

/// The newest block of a counter: its number in a row of blocks, from 1, and when it began.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) struct LastBlock {
    pub(crate) nth: u32,
    pub(crate) began: Millis,
}
