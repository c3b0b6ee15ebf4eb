//! The words of a page, in the language of the app.

use std::fmt;

use super::{Denial, DenialKind};
use crate::{Period, Reason};

/// A unit of time.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
#[non_exhaustive]
pub enum Unit {
    /// 24 hours.
    Day,
    /// 60 minutes.
    Hour,
    /// 60 seconds.
    Minute,
    /// A second.
    Second,
}

/// The words of an [`HtmlPage`](super::HtmlPage), to be translated. [`English`] is the original.
///
/// Everything is text, which the page escapes.
///
/// ```
/// use std::time::Duration;
/// use tower_login_rate_limit::{Period, response::{Denial, DenialKind, HtmlPage, Unit, Words}};
///
/// struct German;
///
/// impl Words for German {
///     fn language(&self) -> &str {
///         "de"
///     }
///     fn count(&self, n: u64, unit: Unit) -> String {
///         let (one, many) = match unit {
///             Unit::Day => ("Tag", "Tagen"), // as after "in"
///             Unit::Hour => ("Stunde", "Stunden"),
///             Unit::Minute => ("Minute", "Minuten"),
///             _ => ("Sekunde", "Sekunden"),
///         };
///         format!("{n} {}", if n == 1 { one } else { many })
///     }
///     fn heading(&self, denial: &Denial) -> String {
///         match denial.kind() {
///             DenialKind::Refused(_) => "Zu viele Versuche".to_owned(),
///             _ => "Anmeldung nicht möglich".to_owned(),
///         }
///     }
///     fn advice(&self, _: &Denial, wait: Option<&str>) -> String {
///         match wait {
///             Some(wait) => format!("Bitte versuchen Sie es in {wait} wieder."),
///             None => "Bitte wenden Sie sich an uns.".to_owned(),
///         }
///     }
/// }
///
/// let period = Period::Of(Duration::from_secs(2 * 86_400 + 3600));
/// assert_eq!(German.period(period).as_deref(), Some("2 Tagen 1 Stunde"));
/// let page = HtmlPage::new().with_words(German);
/// ```
pub trait Words: Send + Sync + 'static {
    /// The language, as in the attribute `lang`: `en`, `pt-BR`.
    fn language(&self) -> &str;

    /// A number of units, as it stands in [`advice`](Self::advice): `1 hour`, `23 hours`.
    fn count(&self, n: u64, unit: Unit) -> String;

    /// What happened, in a few words.
    fn heading(&self, denial: &Denial) -> String;

    /// What to do, in a sentence or two. `wait` is [`period`](Self::period) of the time after which another
    /// attempt makes sense; `None` if none ever does. Where the text contains it, the page emphasizes it.
    fn advice(&self, denial: &Denial, wait: Option<&str>) -> String;

    /// A period, rounded up to its two largest units; `None` is forever.
    fn period(&self, period: Period) -> Option<String> {
        let seconds = period.rounded_up().as_duration()?.as_secs();
        let parts = [
            (seconds / 86_400, Unit::Day),
            (seconds % 86_400 / 3600, Unit::Hour),
            (seconds % 3600 / 60, Unit::Minute),
            (seconds % 60, Unit::Second),
        ];
        let parts = parts.into_iter().filter(|(n, _)| *n > 0);
        let parts: Vec<_> = parts.map(|(n, unit)| self.count(n, unit)).collect();
        Some(parts.join(" "))
    }
}

/// The default [`Words`].
#[derive(Clone, Copy, Debug, Default)]
pub struct English;

impl Words for English {
    fn language(&self) -> &str {
        "en"
    }

    fn count(&self, n: u64, unit: Unit) -> String {
        let unit = match unit {
            Unit::Day => "day",
            Unit::Hour => "hour",
            Unit::Minute => "minute",
            Unit::Second => "second",
        };
        let plural = if n == 1 { "" } else { "s" };
        format!("{n} {unit}{plural}")
    }

    fn heading(&self, denial: &Denial) -> String {
        match denial.kind() {
            DenialKind::Refused(refusal) if !refusal.is_login() => "Too many requests",
            DenialKind::Refused(refusal) if refusal.reason() == Reason::Busy => {
                "Too many attempts at once"
            }
            DenialKind::Refused(_) => "Too many failed attempts",
            DenialKind::Denied(_) => "Access is denied",
            _ if denial.status().is_server_error() => "Logging in is not possible right now",
            _ => "This login could not be read",
        }
        .to_owned()
    }

    fn advice(&self, denial: &Denial, wait: Option<&str>) -> String {
        match (denial.kind(), wait) {
            (DenialKind::Refused(refusal), Some(wait)) if refusal.reason() == Reason::Blocked => {
                format!("You can try again in {wait}. Trying earlier does not make it longer.")
            }
            (DenialKind::Denied(_), Some(wait)) => format!("Try again in {wait}."),
            (DenialKind::Refused(refusal), None) if !refusal.is_login() => {
                "This is blocked until the operator of this site lifts it.".to_owned()
            }
            (DenialKind::Refused(_), None) => {
                "Logging in is blocked until the operator of this site lifts it.".to_owned()
            }
            (_, Some(_)) => "Please try again in a moment.".to_owned(),
            (_, None) if denial.status().is_server_error() => {
                "It is an error of this site, and not yours.".to_owned()
            }
            (_, None) => "Please go back, reload the page and try again.".to_owned(),
        }
    }
}

impl fmt::Debug for dyn Words {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_tuple("Words").field(&self.language()).finish()
    }
}
