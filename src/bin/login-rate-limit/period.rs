//! Lengths of time and points in time, as options have them.

use std::time::Duration;

use tower_login_rate_limit::{
    __private::{time_from_text, time_to_text},
    Period,
    algorithm::Millis,
    clock::{Clock, SystemClock},
};

/// A length of time or `forever`.
pub(crate) fn period(text: &str) -> Result<Period, String> {
    text.parse::<Period>().map_err(|error| error.to_string())
}

/// A length of time.
pub(crate) fn duration(text: &str) -> Result<Duration, String> {
    let duration = period(text)?.as_duration();
    let duration = duration.filter(|duration| !duration.is_zero());
    duration.ok_or_else(|| "write a length of time, like 90s, 30m, 12h or 7d".to_owned())
}

/// A point in time: RFC 3339, or a length of time before now.
pub(crate) fn past(text: &str) -> Result<Millis, String> {
    if let Some(time) = time_from_text(text) {
        return Ok(time);
    }
    match duration(text) {
        Ok(ago) => Ok(now().saturating_sub(millis(ago))),
        Err(_) => {
            Err("write a time like 2026-11-18T07:00:00Z, or how long ago, like 2h".to_owned())
        }
    }
}

/// A point in time: RFC 3339.
pub(crate) fn time(text: &str) -> Result<Millis, String> {
    time_from_text(text).ok_or_else(|| "write a time like 2026-12-31T18:00:00Z".to_owned())
}

pub(crate) fn now() -> Millis {
    SystemClock.now()
}

pub(crate) fn millis(duration: Duration) -> Millis {
    duration.as_millis().try_into().unwrap_or(Millis::MAX)
}

/// A time in a table: `2026-11-18 07:00:00`, in UTC.
pub(crate) fn shown(time: Millis) -> String {
    // Whole seconds, so that columns align.
    let text = time_to_text(time / 1000 * 1000);
    text.replace('T', " ").replace('Z', "")
}

/// What is left until a time, in its two largest units.
pub(crate) fn left(until: Option<Millis>, now: Millis) -> String {
    match until {
        None => "never".to_owned(),
        Some(until) => {
            let left = Duration::from_millis(until.saturating_sub(now));
            Period::Of(left).rounded_up().to_string()
        }
    }
}

/// A length of time without its smaller units, such as how long something has been running.
pub(crate) fn about(duration: Duration) -> String {
    Period::Of(Duration::from_secs(duration.as_secs()))
        .rounded_up()
        .to_string()
}
