//! The sliding-window counter: the last window's count, weighted, and this one's.

use super::{Block, Millis, adding_up::AddsUp};

/// The numbers of a sliding-window counter. Put into words by
/// [`as_sliding_counter`](crate::LimitBuilder::as_sliding_counter).
///
/// Time is cut into windows. The rate is what failed in this window, and of what failed in the one
/// before as large a part as still lies within a window's length of now. That is an estimate: it is
/// right if the failures of the window before were spread evenly.
///
/// Memory does not grow with the limit. The newest 8 failures are kept one by one: a cancel or a
/// success takes back exactly those and what is in flight. Older ones are a mere number: a success
/// of the user whose counter it is forgets them; from a counter that is shared with others they can't
/// be taken back, and leave with time.
///
/// ```
/// use tower_login_rate_limit::{Limit, Period};
///
/// let limit = Limit::attempts(10_000).within(Period::hours(1)).as_sliding_counter().build()?;
/// if let Limit::SlidingCounter(numbers) = limit {
///     assert_eq!((numbers.limit(), numbers.window()), (10_000, 60 * 60 * 1000));
/// }
/// # Ok::<(), tower_login_rate_limit::PolicyError>(())
/// ```
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct SlidingCounter {
    /// At least 1.
    pub(crate) limit: u32,
    /// At least 1. Times the limit this is below 2⁵³, so that Lua can compute with it exactly.
    pub(crate) window: Millis,
    pub(crate) block: Option<Block>,
}

impl SlidingCounter {
    /// The rate that is too much: so many in a window.
    pub const fn limit(&self) -> u32 {
        self.limit
    }

    /// How long a window is.
    pub const fn window(&self) -> Millis {
        self.window
    }

    /// What happens when the rate reaches the limit. With no block of its own, the next attempt is
    /// free as soon as the rate is below it.
    pub const fn block(&self) -> Option<&Block> {
        self.block.as_ref()
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

    /// The counts as they are seen from `at`.
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

/// How many failed in the window that begins at `start`, and in the one before.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) struct Counts {
    start: Millis,
    previous: u64,
    current: u64,
}

impl AddsUp for SlidingCounter {
    type Sum = Counts;

    fn limit(&self) -> u32 {
        self.limit
    }

    fn block(&self) -> Option<&Block> {
        self.block.as_ref()
    }

    fn begin(&self, at: Millis) -> Counts {
        Counts {
            start: at - at % self.window,
            previous: 0,
            current: 0,
        }
    }

    fn count(&self, sum: &mut Counts, at: Millis) {
        *sum = self.moved_on(sum, at);
        sum.current += 1;
    }

    fn parts(&self, sum: &Counts, now: Millis) -> (u64, u64) {
        (self.rate(sum, now), self.window)
    }

    fn usage(&self, sum: &Counts, now: Millis) -> u32 {
        u32::try_from(self.rate(sum, now) / self.window).unwrap_or(u32::MAX)
    }

    fn room_at(&self, sum: &Counts, now: Millis) -> Millis {
        let limit = u64::from(self.limit);
        let sum = self.moved_on(sum, now);
        // In this window, if the failures of the one before are all that is too much; else in the
        // next one, where this one's are the ones before.
        let (start, leaving, room) = match limit.checked_sub(sum.current) {
            None | Some(0) => (sum.start.saturating_add(self.window), sum.current, limit),
            Some(room) => (sum.start, sum.previous, room),
        };
        // The longest part of the window that leaves them below the room there is.
        let most = (room * self.window - 1).checked_div(leaving);
        let left = most.map_or(self.window, |most| most.min(self.window));
        start.saturating_add(self.window - left)
    }
}
