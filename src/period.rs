//! A stretch of time that may have no end, and how people write it.

use std::{error::Error, fmt, str::FromStr, time::Duration};

const MINUTE: u64 = 60;
const HOUR: u64 = 60 * MINUTE;
const DAY: u64 = 24 * HOUR;

/// A stretch of time, or for ever.
///
/// Windows, blocks and the time until a block lifts are all periods. "For ever" has a value of its
/// own, so that a zero can never be mistaken for it.
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
    /// This long.
    Of(Duration),
    /// Without end.
    Forever,
}

impl Period {
    /// So many seconds.
    pub const fn seconds(n: u32) -> Self {
        Self::Of(Duration::from_secs(n as u64))
    }

    /// So many minutes.
    pub const fn minutes(n: u32) -> Self {
        Self::Of(Duration::from_secs(n as u64 * MINUTE))
    }

    /// So many hours.
    pub const fn hours(n: u32) -> Self {
        Self::Of(Duration::from_secs(n as u64 * HOUR))
    }

    /// So many days of 24 hours.
    pub const fn days(n: u32) -> Self {
        Self::Of(Duration::from_secs(n as u64 * DAY))
    }

    /// The length, or `None` for ever.
    pub const fn as_duration(self) -> Option<Duration> {
        match self {
            Self::Of(duration) => Some(duration),
            Self::Forever => None,
        }
    }

    /// Rounded up to its two largest units, as one would say it.
    ///
    /// Up, because a person who comes back too early is refused again.
    ///
    /// ```
    /// use std::time::Duration;
    /// use tower_login_rate_limit::Period;
    ///
    /// let left = Period::Of(Duration::from_secs(6 * 86_400 + 22 * 3_600 + 1));
    /// assert_eq!(left.rounded_up().to_string(), "6 days 23 hours");
    /// ```
    #[must_use]
    pub fn rounded_up(self) -> Self {
        let Self::Of(duration) = self else {
            return self;
        };
        let seconds = whole_seconds_up(duration).max(1);
        let step = match seconds {
            DAY.. => HOUR,
            HOUR.. => MINUTE,
            _ => 1,
        };
        Self::Of(Duration::from_secs(
            seconds.div_ceil(step).saturating_mul(step),
        ))
    }

    /// Writes what [`Display`](fmt::Display) does, without the machinery of formatting: every refusal says
    /// when it lifts.
    pub(crate) fn write_words(self, words: &mut impl fmt::Write) -> fmt::Result {
        let Self::Of(duration) = self else {
            return words.write_str("forever");
        };
        let seconds = duration.as_secs();
        let parts = [
            (seconds / DAY, " day"),
            (seconds % DAY / HOUR, " hour"),
            (seconds % HOUR / MINUTE, " minute"),
            (seconds % MINUTE, " second"),
            (u64::from(duration.subsec_millis()), " millisecond"),
        ];
        let mut between = "";
        for (n, unit) in parts.into_iter().filter(|(n, _)| *n > 0) {
            let plural = if n == 1 { "" } else { "s" };
            for part in [between, itoa::Buffer::new().format(n), unit, plural] {
                words.write_str(part)?;
            }
            between = " ";
        }
        match between {
            "" => words.write_str("0 seconds"),
            _ => Ok(()),
        }
    }
}

/// Seconds, with a started one counted whole.
fn whole_seconds_up(duration: Duration) -> u64 {
    duration
        .as_secs()
        .saturating_add(u64::from(duration.subsec_nanos() > 0))
}

impl From<Duration> for Period {
    fn from(duration: Duration) -> Self {
        Self::Of(duration)
    }
}

/// In words and without loss, to the millisecond: `7 days`, `1 hour 30 minutes`, `forever`.
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

/// Numbers and units in turn: `1h 30m`, `7 days`.
fn parse(text: &str) -> Option<Duration> {
    let mut rest = text;
    let mut millis = 0_u64;
    while !rest.is_empty() {
        let (number, behind) = rest.split_at(rest.find(|c: char| !c.is_ascii_digit())?);
        let behind = behind.trim_start();
        let end = behind.find(|c: char| !c.is_alphabetic());
        let (unit, behind) = behind.split_at(end.unwrap_or(behind.len()));
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
        rest = behind.trim_start();
    }
    (!text.is_empty()).then(|| Duration::from_millis(millis))
}

/// The text is not a period.
///
/// ```
/// use tower_login_rate_limit::Period;
///
/// let error = "soon".parse::<Period>().unwrap_err();
/// assert!(error.to_string().contains("7 days"));
/// ```
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

#[cfg(feature = "serde")]
mod serde_impls {
    use super::Period;
    use serde::{Deserialize, Deserializer, Serialize, Serializer, de::Error};

    impl Serialize for Period {
        fn serialize<S: Serializer>(&self, serializer: S) -> Result<S::Ok, S::Error> {
            serializer.collect_str(self)
        }
    }

    impl<'de> Deserialize<'de> for Period {
        fn deserialize<D: Deserializer<'de>>(deserializer: D) -> Result<Self, D::Error> {
            String::deserialize(deserializer)?
                .parse()
                .map_err(D::Error::custom)
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn words(millis: u64) -> String {
        Period::Of(Duration::from_millis(millis))
            .rounded_up()
            .to_string()
    }

    #[test]
    fn rounds_up_to_two_units_and_never_to_nothing() {
        assert_eq!(words(0), "1 second");
        assert_eq!(words(1), "1 second");
        assert_eq!(words(59_001), "1 minute");
        assert_eq!(words(61_000), "1 minute 1 second");
        assert_eq!(words(3_600_001), "1 hour 1 minute");
        assert_eq!(words(86_399_001), "1 day");
        assert_eq!(
            words(6 * 86_400_000 + 22 * 3_600_000 + 1),
            "6 days 23 hours"
        );
        assert_eq!(words(7 * 86_400_000 - 1), "7 days");
        assert_eq!(Period::Forever.rounded_up().to_string(), "forever");
    }

    #[test]
    fn what_is_written_is_read_back() {
        for millis in [
            0,
            1,
            999,
            1_001,
            61_000,
            90_061_001,
            604_800_000,
            31_536_000_000,
        ] {
            let period = Period::Of(Duration::from_millis(millis));
            assert_eq!(period.to_string().parse::<Period>().unwrap(), period);
        }
        assert_eq!(" Forever ".parse::<Period>().unwrap(), Period::Forever);
    }

    #[test]
    fn every_unit_is_read() {
        let read = |text: &str| text.parse::<Period>().unwrap();
        assert_eq!(
            read("1w 1d 1h 1m 1s 1ms"),
            Period::Of(Duration::from_millis(694_861_001))
        );
        assert_eq!(read("90min"), read("1 hour 30 minutes"));
        assert_eq!(read("2 weeks"), Period::days(14));
    }

    #[test]
    fn the_error_says_what_to_write() {
        let error = "soon".parse::<Period>().unwrap_err().to_string();
        assert!(
            error.contains("\"soon\"") && error.contains("\"7 days\""),
            "{error}"
        );
        assert!("".parse::<Period>().is_err());
        assert!("-1s".parse::<Period>().is_err());
        for text in [
            "99999999999999999999 days",
            "7",
            "days",
            "7 dayz",
            "1h-",
            "١ day",
            "1.5h",
        ] {
            assert!(text.parse::<Period>().is_err(), "{text}");
        }
        assert!(
            "18446744073709551615s 1000000000ms"
                .parse::<Period>()
                .is_err()
        );
    }
}
