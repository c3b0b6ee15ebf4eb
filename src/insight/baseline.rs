//! How much is usual.

use crate::algorithm::Millis;

const MINUTE: Millis = 60_000;
/// For how long the baseline is a plain average, and nothing is unusual yet.
const WARM_UP: u64 = 60;
/// How much a minute moves the baseline up: a day of attack makes it usual.
const UP: f64 = 1.0 / 1_440.0;
/// And down: quiet is believed sooner, so that an attack during the first hour does not hide the next one.
const DOWN: f64 = 1.0 / 60.0;
/// How much a minute moves the rate now: some five minutes count.
const NOW: f64 = 0.3;
/// After this many minutes without an event everything has decayed.
const FORGOTTEN: u64 = 3_000;

/// A rate per minute, and what it usually is: exponentially weighted averages.
#[derive(Debug, Default)]
pub(super) struct Baseline {
    /// The minute that is being counted.
    minute: Option<u64>,
    count: u32,
    minutes: u64,
    now: f64,
    usual: f64,
}

impl Baseline {
    /// Lets time pass. Returns whether a minute has ended.
    pub(super) fn advance(&mut self, at: Millis) -> bool {
        let minute = at / MINUTE;
        let Some(current) = self.minute else {
            self.minute = Some(minute);
            return false;
        };
        let ended = minute.saturating_sub(current);
        if ended == 0 {
            return false;
        }
        for _ in 0..ended.min(FORGOTTEN) {
            self.end_minute();
        }
        self.minute = Some(minute);
        true
    }

    pub(super) const fn count(&mut self) {
        self.count = self.count.saturating_add(1);
    }

    #[allow(clippy::cast_precision_loss)] // at most 60
    fn end_minute(&mut self) {
        let rate = f64::from(std::mem::take(&mut self.count));
        self.now += (rate - self.now) * NOW;
        if self.minutes < WARM_UP {
            self.minutes += 1;
            self.usual += (rate - self.usual) / self.minutes as f64;
            return;
        }
        // One minute counts as twice the usual at most: a short flood must not become usual.
        let rate = rate.min((self.usual * 2.0).max(1.0));
        let weight = if rate > self.usual { UP } else { DOWN };
        self.usual += (rate - self.usual) * weight;
    }

    /// Whether the baseline means something yet.
    pub(super) const fn is_warm(&self) -> bool {
        self.minutes >= WARM_UP
    }

    /// Per minute now, and as usual.
    pub(super) const fn rates(&self) -> (f64, f64) {
        (self.now, self.usual)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_short_flood_does_not_become_usual_and_quiet_is_believed_sooner() {
        let mut baseline = Baseline::default();
        let mut pass = |minutes: std::ops::Range<u64>, count: u32| {
            for minute in minutes {
                baseline.advance(minute * MINUTE);
                (0..count).for_each(|_| baseline.count());
            }
            baseline.rates().1
        };
        let usual = pass(0..200, 20);
        assert!((19.0..=20.0).contains(&usual), "{usual}");
        let after = pass(200..205, 1_000_000);
        assert!(after < 21.0, "{after}");
        let after_a_day = pass(205..205 + 1_440, 100);
        assert!((35.0..80.0).contains(&after_a_day), "{after_a_day}");
        let after_an_hour = pass(1_645..1_705, 20);
        assert!(after_an_hour < 45.0, "{after_an_hour}");
    }
}
