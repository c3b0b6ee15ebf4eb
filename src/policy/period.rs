//! A length of time that may have no end, and its text form.

use std::{error::Error, fmt, str::FromStr, time::Duration};

use crate::algorithm::Millis;

const MINUTE: u64 = 60;
const HOUR: u64 = 60 * MINUTE;
const DAY: u64 = 24 * HOUR;

/// A length of time, or forever.
///
/// Windows, blocks and the time until a block lifts are periods. Forever is a value of its own, so that a
/// zero can't be mistaken for it.
///
/// ```
/// use tower_login_rate_limit::Period;
///
/// assert_eq!("24h".parse::<Period>()?, Period::hours(24));
/// assert_eq!(Period::days(7).to_string(), "7 days");
/// assert_eq!("forever".parse::<Period>()?, Period::Forever);
/// # Ok::<(), tower_login_rate_limit::ParsePeriodError>(())
/// ```
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub enum Period {
    /// A finite length.
    Of(Duration),
    /// No end.
    Forever,
}

impl Period {
    /// `n` seconds.
    #[must_use]
    pub const fn seconds(n: u32) -> Self {
        Self::Of(Duration::from_secs(n as u64))
    }

    /// `n` minutes.
    #[must_use]
    pub const fn minutes(n: u32) -> Self {
        Self::Of(Duration::from_secs(n as u64 * MINUTE))
    }

    /// `n` hours.
    #[must_use]
    pub const fn hours(n: u32) -> Self {
        Self::Of(Duration::from_secs(n as u64 * HOUR))
    }

    /// `n` days of 24 hours.
    #[must_use]
    pub const fn days(n: u32) -> Self {
        Self::Of(Duration::from_secs(n as u64 * DAY))
    }

    /// `None` is forever.
    pub(crate) fn of_millis(millis: impl Into<Option<Millis>>) -> Self {
        let millis = millis.into().map(Duration::from_millis);
        millis.map_or(Self::Forever, Self::Of)
    }

    /// The length, or `None` if it is [`Forever`](Self::Forever).
    #[must_use]
    pub const fn as_duration(self) -> Option<Duration> {
        match self {
            Self::Of(duration) => Some(duration),
            Self::Forever => None,
        }
    }

    /// Rounded to its two largest units, for display: `6 days 22 hours 1 second` becomes `6 days 23 hours`.
    /// Up, because a client that comes back too early is refused again.
    #[must_use]
    pub fn rounded_up(self) -> Self {
        let Self::Of(duration) = self else {
            return self;
        };
        let started = u64::from(duration.subsec_nanos() > 0);
        let seconds = duration.as_secs().saturating_add(started).max(1);
        let step = match seconds {
            DAY.. => HOUR,
            HOUR.. => MINUTE,
            _ => 1,
        };
        Self::Of(Duration::from_secs(
            seconds.div_ceil(step).saturating_mul(step),
        ))
    }

    /// As [`Display`](fmt::Display), but without the cost of a formatter: every refusal contains a period.
    /// Whole seconds, rounded up and at least 1, as in `Retry-After`; `None` if it is forever.
    pub(crate) fn whole_seconds(self) -> Option<u64> {
        let duration = self.as_duration()?;
        let started = u64::from(duration.subsec_millis() > 0);
        Some(duration.as_secs().saturating_add(started).max(1))
    }

    pub(crate) fn write_words(self, text: &mut impl fmt::Write) -> fmt::Result {
        let Self::Of(duration) = self else {
            return text.write_str("forever");
        };
        let seconds = duration.as_secs();
        let parts = [
            (seconds / DAY, " day"),
            (seconds % DAY / HOUR, " hour"),
            (seconds % HOUR / MINUTE, " minute"),
            (seconds % MINUTE, " second"),
            (u64::from(duration.subsec_millis()), " millisecond"),
        ];
        let mut separator = "";
        for (n, unit) in parts.into_iter().filter(|(n, _)| *n > 0) {
            let plural = if n == 1 { "" } else { "s" };
            for part in [separator, itoa::Buffer::new().format(n), unit, plural] {
                text.write_str(part)?;
            }
            separator = " ";
        }
        if separator.is_empty() {
            text.write_str("0 seconds")?;
        }
        Ok(())
    }
}

impl From<Duration> for Period {
    fn from(duration: Duration) -> Self {
        Self::Of(duration)
    }
}

/// In words, exact to the millisecond: `7 days`, `1 hour 30 minutes`, `forever`.
impl fmt::Display for Period {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        self.write_words(f)
    }
}

impl FromStr for Period {
    type Err = ParsePeriodError;

    fn from_str(text: &str) -> Result<Self, Self::Err> {
        let text = text.trim();
        if text.eq_ignore_ascii_case("forever") {
            return Ok(Self::Forever);
        }
        parse(text)
            .map(Self::Of)
            .ok_or_else(|| ParsePeriodError(text.to_owned()))
    }
}

/// Parses alternating numbers and units: `1h 30m`, `7 days`.
fn parse(text: &str) -> Option<Duration> {
    let mut rest = text;
    let mut millis = 0_u64;
    while !rest.is_empty() {
        let (number, after) = rest.split_at(rest.find(|c: char| !c.is_ascii_digit())?);
        let after = after.trim_start();
        let end = after.find(|c: char| !c.is_alphabetic());
        let (unit, after) = after.split_at(end.unwrap_or(after.len()));
        let unit: u64 = match unit {
            "ms" | "millisecond" | "milliseconds" => 1,
            "s" | "sec" | "second" | "seconds" => 1000,
            "m" | "min" | "minute" | "minutes" => 1000 * MINUTE,
            "h" | "hour" | "hours" => 1000 * HOUR,
            "d" | "day" | "days" => 1000 * DAY,
            "w" | "week" | "weeks" => 1000 * 7 * DAY,
            _ => return None,
        };
        let length = number.parse::<u64>().ok()?.checked_mul(unit)?;
        millis = millis.checked_add(length)?;
        rest = after.trim_start();
    }
    (!text.is_empty()).then(|| Duration::from_millis(millis))
}

/// A text that is not a [`Period`].
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct ParsePeriodError(String);

impl fmt::Display for ParsePeriodError {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(
            f,
            "cannot read {:?} as a period: write it like \"90s\", \"24h\", \"7 days\" or \"forever\"",
            self.0
        )
    }
}

impl Error for ParsePeriodError {}

#[cfg(test)]
mod tests {
    use super::*;

    fn words(millis: u64) -> String {
        Period::of_millis(millis).rounded_up().to_string()
    }

    #[test]
    fn rounds_up_to_two_units_and_never_to_nothing() {
        assert_eq!(words(0), "1 second");
        assert_eq!(words(1), "1 second");
        assert_eq!(words(59_001), "1 minute");
        assert_eq!(words(61_000), "1 minute 1 second");
        assert_eq!(words(3_600_001), "1 hour 1 minute");
        assert_eq!(words(86_399_001), "1 day");
        assert_eq!(words(597_600_001), "6 days 23 hours");
        assert_eq!(words(7 * 86_400_000 - 1), "7 days");
        assert_eq!(Period::Forever.rounded_up().to_string(), "forever");
    }

    #[test]
    fn what_is_written_is_read_back() {
        for millis in [0, 1, 999, 1_001, 61_000, 90_061_001, 31_536_000_000] {
            let period = Period::of_millis(millis);
            assert_eq!(period.to_string().parse::<Period>().unwrap(), period);
        }
        assert_eq!(" Forever ".parse::<Period>().unwrap(), Period::Forever);
    }

    #[test]
    fn every_unit_is_read() {
        let read = |text: &str| text.parse::<Period>().unwrap();
        let one_of_each = Period::of_millis(694_861_001);
        assert_eq!(read("1w 1d 1h 1m 1s 1ms"), one_of_each);
        assert_eq!(read("90min"), read("1 hour 30 minutes"));
        assert_eq!(read("2 weeks"), Period::days(14));
    }

    #[test]
    fn the_error_names_the_text_and_what_to_write() {
        let error = "soon".parse::<Period>().unwrap_err().to_string();
        assert!(error.contains("\"soon\""), "{error}");
        assert!(error.contains("\"7 days\""), "{error}");
        let overflows = "18446744073709551615s 1000000000ms";
        let too_long = "99999999999999999999 days";
        for text in [
            "", "-1s", "7", "days", "7 dayz", "1h-", "١ day", "1.5h", too_long, overflows,
        ] {
            assert!(text.parse::<Period>().is_err(), "{text}");
        }
    }
}
