//! Times in text: RFC 3339, as in `2026-12-31T18:00:00Z`.

use crate::algorithm::Millis;

/// The last millisecond of the year 9999, the last that has a text.
pub(crate) const MAX: Millis = 253_402_300_799_999;

const DAY: Millis = 24 * 60 * 60 * 1000;

/// The text of a time, in UTC, with milliseconds only if there are any.
pub(crate) fn to_text(time: Millis) -> String {
    let (year, month, day) = date(time / DAY);
    let second = time % DAY / 1000;
    let (hour, minute, second) = (second / 3600, second / 60 % 60, second % 60);
    let millis = match time % 1000 {
        0 => String::new(),
        millis => format!(".{millis:03}"),
    };
    format!("{year:04}-{month:02}-{day:02}T{hour:02}:{minute:02}:{second:02}{millis}Z")
}

/// The text of a time, in UTC, always with milliseconds: texts sort as their times do.
#[cfg(feature = "serde")]
pub(crate) fn to_fixed_text(time: Millis) -> String {
    let mut text = to_text(time.min(MAX));
    if text.len() == "1970-01-01T00:00:00Z".len() {
        text.insert_str(text.len() - 1, ".000");
    }
    text
}

/// Reads a time from 1970 to 9999.
#[cfg(feature = "serde")]
pub(crate) fn parse(text: &str) -> Option<Millis> {
    let bytes = text.as_bytes();
    let (fixed, rest) = (bytes.get(..19)?, text.get(19..)?);
    let punctuation = [(4, b'-'), (7, b'-'), (10, b'T'), (13, b':'), (16, b':')];
    if punctuation.iter().any(|(at, byte)| fixed[*at] != *byte) {
        return None;
    }
    let number = |from, to| digits(text.get(from..to)?);
    let (year, month, day) = (number(0, 4)?, number(5, 7)?, number(8, 10)?);
    let (hour, minute, second) = (number(11, 13)?, number(14, 16)?, number(17, 19)?);
    if hour > 23 || minute > 59 || second > 59 || !(1970..=9999).contains(&year) {
        return None;
    }
    let (millis, zone) = match rest.strip_prefix('.') {
        Some(fraction) => {
            let len = fraction.bytes().take_while(u8::is_ascii_digit).count();
            let scale = [100, 10, 1].get(len.checked_sub(1)?)?;
            (digits(&fraction[..len])? * scale, &fraction[len..])
        }
        None => (0, rest),
    };
    let days = days(year, month, day)?;
    let local = days * DAY + (hour * 3600 + minute * 60 + second) * 1000 + millis;
    let time = match offset(zone)? {
        (true, ahead) => local.checked_sub(ahead)?,
        (false, behind) => local.checked_add(behind)?,
    };
    (time <= MAX).then_some(time)
}

/// Whether the zone is ahead of UTC, and by how much.
#[cfg(feature = "serde")]
fn offset(zone: &str) -> Option<(bool, Millis)> {
    if zone == "Z" {
        return Some((true, 0));
    }
    let is_ahead = zone.starts_with('+');
    let (hours, minutes) = zone.strip_prefix(['+', '-'])?.split_once(':')?;
    if hours.len() != 2 || minutes.len() != 2 {
        return None;
    }
    let (hours, minutes) = (digits(hours)?, digits(minutes)?);
    let offset = (hours * 60 + minutes) * 60 * 1000;
    (hours < 24 && minutes < 60).then_some((is_ahead, offset))
}

#[cfg(feature = "serde")]
fn digits(text: &str) -> Option<u64> {
    let are_digits = text.bytes().all(|b| b.is_ascii_digit());
    are_digits.then(|| text.parse().ok()).flatten()
}

/// Days since 1970-01-01; `None` if the month has no such day.
#[cfg(feature = "serde")]
fn days(year: u64, month: u64, day: u64) -> Option<u64> {
    let months = 1..=12;
    if !months.contains(&month) || !(1..=days_of(year, month)).contains(&day) {
        return None;
    }
    let earlier: u64 = (1..month).map(|month| days_of(year, month)).sum();
    Some(days_before(year) + earlier + day - 1)
}

/// Year, month and day of a number of days since 1970-01-01.
fn date(days: u64) -> (u64, u64, u64) {
    // A year has 366 days at most, so this one is not too late; at 9999 it is some five years early.
    let mut year = 1970 + days / 366;
    while days_before(year + 1) <= days {
        year += 1;
    }
    let (mut month, mut left) = (1, days - days_before(year));
    while left >= days_of(year, month) {
        left -= days_of(year, month);
        month += 1;
    }
    (year, month, left + 1)
}

/// Days from 1970 to the start of the year.
const fn days_before(year: u64) -> u64 {
    (year - 1970) * 365 + leap_days(year - 1) - leap_days(1969)
}

/// Leap days up to the end of the year.
const fn leap_days(year: u64) -> u64 {
    year / 4 - year / 100 + year / 400
}

const fn days_of(year: u64, month: u64) -> u64 {
    match month {
        2 if leap_days(year) > leap_days(year - 1) => 29,
        2 => 28,
        4 | 6 | 9 | 11 => 30,
        _ => 31,
    }
}

#[cfg(all(test, feature = "serde"))]
mod tests {
    use super::*;
    use proptest::prelude::*;

    #[test]
    fn known_times() {
        for (text, time) in [
            ("1970-01-01T00:00:00Z", 0),
            ("2000-02-29T12:34:56.007Z", 951_827_696_007),
            ("2026-11-18T04:00:00Z", 1_794_974_400_000),
            ("2100-03-01T00:00:00Z", 4_107_542_400_000),
            ("9999-12-31T23:59:59.999Z", MAX),
        ] {
            assert_eq!(parse(text), Some(time), "{text}");
            assert_eq!(to_text(time), text);
            assert_eq!(parse(&to_fixed_text(time)), Some(time), "{text}");
            assert_eq!(to_fixed_text(time).len(), 24);
        }
        for (text, same) in [
            ("2026-11-18T05:30:00+01:30", "2026-11-18T04:00:00Z"),
            ("2026-11-17T23:00:00-05:00", "2026-11-18T04:00:00Z"),
            ("2026-11-18T04:00:00.5Z", "2026-11-18T04:00:00.500Z"),
        ] {
            assert_eq!(parse(text), parse(same), "{text}");
        }
    }

    #[test]
    fn what_is_not_a_time() {
        for text in [
            "",
            "2026-11-18",
            "2026-11-18T04:00:00",
            "2026-11-18 04:00:00Z",
            "2026-02-29T00:00:00Z",
            "2100-02-29T00:00:00Z",
            "2026-13-01T00:00:00Z",
            "2026-00-01T00:00:00Z",
            "2026-01-00T00:00:00Z",
            "2026-11-18T24:00:00Z",
            "2026-11-18T04:60:00Z",
            "2026-11-18T04:00:60Z",
            "2026-11-18T04:00:00.Z",
            "2026-11-18T04:00:00.1234Z",
            "2026-11-18T04:00:00+1:00",
            "2026-11-18T04:00:00+24:00",
            "1969-12-31T23:59:59Z",
            "1970-01-01T00:00:00+00:01",
            "9999-12-31T23:59:59-00:01",
            "2026-11-18T04:00:0\u{e9}Z",
            "+026-11-18T04:00:00Z",
        ] {
            assert_eq!(parse(text), None, "{text:?}");
        }
    }

    proptest! {
        #![proptest_config(ProptestConfig { failure_persistence: None, cases: 2_000, ..Default::default() })]
        #[test]
        fn text_is_read_back(time in 0..=MAX) {
            prop_assert_eq!(parse(&to_text(time)), Some(time));
        }

        #[test]
        fn no_text_panics(text in any::<String>()) {
            let _ = parse(&text);
        }
    }
}
