//! Back-off: after each failure the wait grows.

use std::{sync::Arc, time::Duration};

use super::{
    Millis, Standing, State,
    attempts::{Attempts, Entry},
    counter::Judgement,
};
use crate::Period;

/// The numbers of a back-off. Put into words by [`Limit::backoff`](crate::Limit::backoff).
///
/// After a failure nothing is admitted until the wait is over, and then one attempt at a time. As
/// many failures as there are waits are kept one by one: a cancel or a success takes back exactly
/// its own, and success begins anew.
///
/// ```
/// use tower_login_rate_limit::Limit;
///
/// if let Limit::Backoff(numbers) = Limit::default_backoff().build()? {
///     assert_eq!(numbers.waits()[..3], [1_000, 2_000, 4_000]);
/// }
/// # Ok::<(), tower_login_rate_limit::PolicyError>(())
/// ```
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Backoff {
    /// Not empty, never falling, the last one not zero.
    pub(crate) waits: Arc<[Millis]>,
    /// Percent, 100 at most.
    pub(crate) jitter: u32,
    /// At least as long as the longest wait can be; `None` for ever.
    pub(crate) forgotten_after: Option<Millis>,
}

impl Backoff {
    /// How long to wait after the first failure, the second, and so on; the last one stays.
    pub fn waits(&self) -> &[Millis] {
        &self.waits
    }

    /// By how much a wait may be shorter or longer, in percent.
    pub const fn jitter(&self) -> u32 {
        self.jitter
    }

    /// After so long without a failure all are forgotten; `None` for never.
    pub const fn forgotten_after(&self) -> Option<Millis> {
        self.forgotten_after
    }

    /// How many failures cost no wait.
    pub(crate) fn free(&self) -> u32 {
        let free = self.waits.partition_point(|wait| *wait == 0);
        u32::try_from(free).unwrap_or(u32::MAX)
    }

    pub(super) fn judge(&self, attempts: &Attempts, now: Millis) -> Judgement {
        let failures = attempts.failures(now);
        let in_flight = attempts.len() - failures.len();
        let is_over = |last: &&Entry| {
            let quiet = now.saturating_sub(last.at);
            self.forgotten_after.is_some_and(|after| quiet >= after)
        };
        let last = failures.last().filter(|last| !is_over(last));
        let counted = match last {
            Some(_) => failures.len().min(self.waits.len()),
            None => 0,
        };
        let limit = counted.max(self.free() as usize) + 1;
        let standing = |usage: usize, state| {
            let whole = |n: usize| u32::try_from(n).unwrap_or(u32::MAX);
            Standing::new(whole(usage), whole(limit), state)
        };

        let lifts = last.map(|last| last.at.saturating_add(self.wait(counted, last)));
        let standing = match lifts {
            Some(lifts) if now < lifts => {
                let lifts = Period::Of(Duration::from_millis(lifts - now));
                standing(counted, State::Blocked { lifts })
            }
            _ => {
                let usage = counted + in_flight;
                standing(usage, State::clear_below(usage, limit))
            }
        };
        Judgement {
            standing,
            obsolete: failures.len() - counted,
            folded: None,
            past: None,
            block: None,
        }
    }

    /// The wait after this many failures, of which this is the last.
    ///
    /// Jitter comes from its token: that is random and nobody outside knows it, and whoever looks
    /// comes to the same wait.
    fn wait(&self, failures: usize, last: &Entry) -> Millis {
        let Some(wait) = failures.checked_sub(1).and_then(|i| self.waits.get(i)) else {
            return 0;
        };
        let throw = i64::from(last.token.as_bytes()[0]) - 128;
        let by = i64::from(self.jitter) * throw * wait.cast_signed();
        wait.saturating_add_signed(by.div_euclid(12_800))
    }
}
