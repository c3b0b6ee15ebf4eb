//! An event in one line.

use tower_login_rate_limit::{
    Outcome, Period, Reason,
    event::{Event, LiftedBy, Signal, What, WrongBy},
};
use unicode_width::UnicodeWidthStr;

use crate::{
    output::{Output, Style, safe},
    period,
    session::Session,
};

/// `2026-11-18 07:00:00  refused          192.0.2.1           a***          by address: 25 of 25, for 7 days`
pub(super) fn line(event: &Event, session: &Session, output: &Output) -> String {
    let user = event.user.as_ref();
    let user = user.map_or(String::new(), |user| safe(&session.user(Some(user))));
    let address = event
        .address
        .map_or(String::new(), |address| address.to_string());
    let (style, words) = words(&event.what);
    format!(
        "{}  {}  {}  {}  {}",
        output.paint(Style::Dim, &period::shown(event.at)),
        output.paint(style, &padded(event.what.name(), 16)),
        padded(&address, 18),
        padded(&user, 14),
        safe(&words)
    )
}

/// Aligned, unless it is longer.
fn padded(text: &str, width: usize) -> String {
    format!("{text}{}", " ".repeat(width.saturating_sub(text.width())))
}

fn words(what: &What) -> (Style, String) {
    match what {
        What::Settled {
            outcome,
            second_factor,
            ..
        } => {
            let style = if *outcome == Outcome::Success {
                Style::Green
            } else {
                Style::Plain
            };
            let of = if *second_factor {
                ", second factor"
            } else {
                ""
            };
            (style, format!("{}{of}", outcome.name()))
        }
        What::Refused {
            rule,
            reason,
            usage,
            limit,
            lifts,
            shadow,
            ..
        } => {
            let text = match reason {
                Reason::Busy => format!("by {rule}: busy, {usage} of {limit}"),
                _ => format!("by {rule}: {usage} of {limit}, {}", lasts(*lifts)),
            };
            (Style::Yellow, in_shadow(text, *shadow))
        }
        What::BlockBegan {
            rule,
            usage,
            limit,
            lifts,
            shadow,
            ..
        } => {
            let text = format!("{rule}: {usage} of {limit}, {}", lasts(*lifts));
            (Style::Red, in_shadow(text, *shadow))
        }
        What::BlockLifted { rule, by, .. } => {
            let by = match by {
                LiftedBy::Operator { author, reason } => format!("by {author}: {reason}"),
                _ => "it was over".to_owned(),
            };
            (Style::Green, format!("{rule}, {by}"))
        }
        What::LimitReached { rule, limit, .. } => (Style::Yellow, format!("{rule}: {limit}")),
        What::AccessRuleHit { rule, action, .. } => {
            (Style::Plain, format!("{} by {rule}", action.as_str()))
        }
        What::StoreDown { error, .. } => (Style::Red, error.to_string()),
        What::StoreUp {
            down_for, pending, ..
        } => (
            Style::Green,
            format!("after {}, {pending} pending", period::about(*down_for)),
        ),
        What::JournalReplayed {
            replayed, dropped, ..
        } => (
            Style::Green,
            format!("{replayed} replayed, {dropped} dropped"),
        ),
        What::DocumentChanged {
            author,
            reason,
            to,
            changes,
            ..
        } => {
            let changes = changes.join("; ");
            (
                Style::Bold,
                format!("version {to} by {author}: {reason} ({changes})"),
            )
        }
        What::Administered {
            action,
            author,
            reason,
            network,
            ..
        } => {
            let network = network
                .as_ref()
                .map_or(String::new(), |network| format!(" {network}"));
            (
                Style::Bold,
                format!("{}{network} by {author}: {reason}", action.name()),
            )
        }
        What::Signal(signal) => (Style::Red, signaled(signal)),
        What::WrongBlock { rule, by, .. } => {
            let by = match by {
                WrongBy::Success => "the user logged in soon after",
                _ => "an operator lifted it",
            };
            (Style::Yellow, format!("{rule}: {by}"))
        }
        other => (
            Style::Plain,
            serde_json::to_string(other).unwrap_or_default(),
        ),
    }
}

fn signaled(signal: &Signal) -> String {
    match signal {
        Signal::ManyUsers { users } => format!("one address fails at {users} users"),
        Signal::ManyAddresses { addresses } => format!("one user fails from {addresses} addresses"),
        Signal::FailureRate {
            per_minute,
            baseline,
        } => {
            format!("{per_minute:.0} failures per minute, {baseline:.0} as usual")
        }
        _ => "unusual attempts".to_owned(),
    }
}

fn lasts(lifts: Period) -> String {
    match lifts {
        Period::Forever => "for good".to_owned(),
        lifts => format!("for {}", lifts.rounded_up()),
    }
}

fn in_shadow(text: String, shadow: bool) -> String {
    if shadow {
        format!("{text} (shadow: admitted)")
    } else {
        text
    }
}
