//! The sliding-window counter: the count of this window, and the weighted count of the previous one.

use super::{
    Limit, Millis,
    aggregate::{Aggregate, Aggregation},
    counter::Summary,
};

/// The numbers of a sliding-window counter.
pub(super) struct SlidingCounter {
    limit: u64,
    window: Millis,
}

impl SlidingCounter {
    pub(super) fn new(limit: &Limit) -> Self {
        Self {
            limit: limit.attempts.into(),
            window: limit.finite_window(),
        }
    }

    /// The rate, times the length of the window so that nothing is rounded.
    fn rate(&self, sum: &Counts, at: Millis) -> u64 {
        let Counts {
            start,
            previous,
            current,
        } = self.moved_on(sum, at);
        let left = self.window - at.saturating_sub(start);
        previous * left + current * self.window
    }

    /// The counts as seen from `at`.
    fn moved_on(&self, sum: &Counts, at: Millis) -> Counts {
        match at.saturating_sub(sum.start) / self.window {
            0 => *sum,
            windows => Counts {
                start: sum.start + windows * self.window,
                previous: if windows == 1 { sum.current } else { 0 },
                current: 0,
            },
        }
    }
}

/// How many attempts failed in the window that begins at `start`, and in the previous one.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) struct Counts {
    pub(crate) start: Millis,
    pub(crate) previous: u64,
    pub(crate) current: u64,
}

impl Aggregation for SlidingCounter {
    type Sum = Counts;

    fn start(&self, at: Millis) -> Counts {
        Counts {
            start: at - at % self.window,
            previous: 0,
            current: 0,
        }
    }

    fn add(&self, sum: &mut Counts, at: Millis) {
        *sum = self.moved_on(sum, at);
        sum.current += 1;
    }

    fn parts(&self, sum: &Counts, now: Millis) -> (u64, u64) {
        (self.rate(sum, now), self.window)
    }

    fn usage(&self, sum: &Counts, now: Millis) -> u32 {
        u32::try_from(self.rate(sum, now) / self.window).unwrap_or(u32::MAX)
    }

    fn free_at(&self, sum: &Counts, now: Millis) -> Millis {
        let sum = self.moved_on(sum, now);
        // In this window, if the previous one's failures are what exceeds the limit; else in the next
        // window, where this one is the previous.
        let (start, leaving, free) = match self.limit.checked_sub(sum.current) {
            None | Some(0) => (
                sum.start.saturating_add(self.window),
                sum.current,
                self.limit,
            ),
            Some(free) => (sum.start, sum.previous, free),
        };
        // The longest part of the previous window whose failures are fewer than are free.
        let longest = (free * self.window - 1).checked_div(leaving);
        let left = longest.map_or(self.window, |longest| longest.min(self.window));
        start.saturating_add(self.window - left)
    }

    fn to_summary(aggregate: Aggregate<Counts>) -> Summary {
        Summary::Counts(aggregate)
    }

    fn from_summary(summary: &Summary) -> Option<Aggregate<Counts>> {
        match summary {
            Summary::Counts(aggregate) => Some(*aggregate),
            _ => None,
        }
    }
}
