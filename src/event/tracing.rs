//! Events in the log.

use std::{
    collections::HashMap,
    fmt,
    sync::{Mutex, PoisonError},
};

use tracing::{
    Dispatch, debug, dispatcher, error,
    field::{DisplayValue, display},
    info, warn,
};

use super::{Event, LiftedBy, Observe, Signal, What, escape::Escaped, names};
use crate::{Period, algorithm::Millis};

/// The target of all events.
const TARGET: &str = "login_rate_limit";
/// Refusals are counted by rule within this time.
const WINDOW: Millis = 60_000;
/// How many rules are counted separately. Policies have fewer.
const MAX_RULES: usize = 64;

/// Logs events through the `tracing` crate, with the target `login_rate_limit`.
///
/// Each has a field `event` with its name, and the fields that it has in JSON: `address`, `user`, `attempt`,
/// `rule` and so on; times that something lasts are in words. Names of users appear as the app chose, and on one
/// line whatever they contain.
///
/// | level | events |
/// |---|---|
/// | `ERROR` | `store_down` |
/// | `WARN` | `block_began`, `store_up`, `journal_replayed`, `signal`, `wrong_block`, `document_changed`, `administered`, `undecided` |
/// | `INFO` | `refused`, `limit_reached`, `block_lifted`, `access_rule_hit` |
/// | `DEBUG` | `settled` |
///
/// The crate logs refusals and the beginning of blocks by itself too, once and without users, beside what is wrong with a
/// configuration: under the target `tower_login_rate_limit::events`, which a filter can restrict to errors.
///
/// Clients cause refusals at will. Of each rule the first, tenth, hundredth and so on within a minute is logged,
/// with their number so far as `count`. So are undecided attempts, reached limits and hits of access rules.
pub struct TracingObserver {
    dispatch: Option<Dispatch>,
    samples: Mutex<Samples>,
}

impl TracingObserver {
    /// Logs to the subscriber that is set as the global default.
    #[must_use]
    #[allow(clippy::new_without_default)] // observers are alike, but not equal
    pub fn new() -> Self {
        Self {
            dispatch: None,
            samples: Mutex::default(),
        }
    }

    /// Logs to this subscriber. The default of a thread is not used, since observers run on threads of their own.
    #[must_use]
    pub fn with_dispatch(mut self, dispatch: Dispatch) -> Self {
        self.dispatch = Some(dispatch);
        self
    }

    /// The number of such events within the minute, if this one is to be logged.
    fn sample(&self, key: &str, at: Millis) -> Option<u64> {
        let mut samples = self.samples.lock().unwrap_or_else(PoisonError::into_inner);
        samples.next(key, at)
    }
}

impl fmt::Debug for TracingObserver {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("TracingObserver").finish_non_exhaustive()
    }
}

/// Counts what clients can cause at will.
#[derive(Default)]
struct Samples {
    window: Millis,
    counts: HashMap<Box<str>, u64>,
}

impl Samples {
    fn next(&mut self, key: &str, at: Millis) -> Option<u64> {
        let window = at / WINDOW;
        if self.window != window {
            self.window = window;
            self.counts.clear();
        }
        if !self.counts.contains_key(key) && self.counts.len() >= MAX_RULES {
            return None;
        }
        let count = self.counts.entry(key.into()).or_default();
        *count += 1;
        let is_power = count.checked_ilog10().map(|digits| 10_u64.pow(digits)) == Some(*count);
        is_power.then_some(*count)
    }
}

/// Text that a client, a server or an operator wrote.
fn escaped(text: &str) -> DisplayValue<Escaped<'_>> {
    display(Escaped(text))
}

impl Observe for TracingObserver {
    fn observe(&self, event: &Event) {
        match &self.dispatch {
            Some(dispatch) => dispatcher::with_default(dispatch, || self.log(event)),
            None => self.log(event),
        }
    }
}

/// Logs with the fields that all events have.
macro_rules! log {
    ($level:ident, $event:ident, $($fields:tt)*) => {
        $level!(
            target: TARGET,
            event = $event.what.name(),
            address = $event.address.map(display),
            user = $event.user.as_ref().filter(|user| user.shown().is_some()).map(display),
            attempt = $event.attempt.map(display),
            $($fields)*
        )
    };
}

impl TracingObserver {
    #[allow(clippy::too_many_lines)] // an arm for each event
    fn log(&self, event: &Event) {
        match &event.what {
            What::Settled {
                outcome,
                second_factor,
            } => {
                let outcome = names::outcome::name(*outcome);
                log!(
                    debug,
                    event,
                    outcome,
                    second_factor,
                    "login attempt settled"
                );
            }
            What::Refused {
                rule,
                reason,
                usage,
                limit,
                lifts,
                shadow,
            } => {
                if let Some(count) = self.sample(rule, event.at) {
                    let (rule, reason) = (escaped(rule), names::reason::name(*reason));
                    let lifts = display(lifts.rounded_up());
                    log!(
                        info,
                        event,
                        rule,
                        reason,
                        usage,
                        limit,
                        lifts,
                        shadow,
                        count,
                        "login attempt refused"
                    );
                }
            }
            What::Undecided { kind, shadow } => {
                // No rule has such a name.
                if let Some(count) = self.sample("undecided:", event.at) {
                    let kind = names::store_error::name(*kind);
                    log!(
                        warn,
                        event,
                        kind,
                        shadow,
                        count,
                        "login attempt not decided: the store failed"
                    );
                }
            }
            What::BlockBegan {
                rule,
                counter,
                usage,
                limit,
                lifts,
                shadow,
                ..
            } => {
                let (rule, counter) = (escaped(rule), escaped(counter));
                let lifts = display(lifts.rounded_up());
                log!(
                    warn,
                    event,
                    rule,
                    counter,
                    usage,
                    limit,
                    lifts,
                    shadow,
                    "login block began"
                );
            }
            What::BlockLifted { rule, counter, by } => {
                let (rule, counter) = (escaped(rule), escaped(counter));
                let (author, reason) = match by {
                    LiftedBy::Operator { author, reason } => {
                        (Some(escaped(author)), Some(escaped(reason)))
                    }
                    _ => (None, None),
                };
                let by = by.name();
                log!(
                    info,
                    event,
                    rule,
                    counter,
                    by,
                    author,
                    reason,
                    "login block lifted"
                );
            }
            What::LimitReached { rule, limit } => {
                if let Some(count) = self.sample(&format!("reached:{rule}"), event.at) {
                    let rule = escaped(rule);
                    log!(
                        info,
                        event,
                        rule,
                        limit,
                        count,
                        "a key has reached its limit"
                    );
                }
            }
            What::AccessRuleHit { rule, action } => {
                if let Some(count) = self.sample(&format!("access:{rule}"), event.at) {
                    let (rule, action) = (escaped(rule), action.as_str());
                    log!(info, event, rule, action, count, "access rule decided");
                }
            }
            What::StoreDown { kind, error } => {
                let (kind, error) = (names::store_error::name(*kind), escaped(error));
                log!(
                    error,
                    event,
                    kind,
                    error,
                    "the store is unavailable: login attempts are decided without it"
                );
            }
            What::StoreUp { down_for, pending } => {
                let down_for = display(Period::Of(*down_for));
                log!(
                    warn,
                    event,
                    down_for,
                    pending,
                    "the store is available again; pending writes are replayed"
                );
            }
            What::JournalReplayed { replayed, dropped } => {
                log!(
                    warn,
                    event,
                    replayed,
                    dropped,
                    "pending writes were replayed"
                );
            }
            What::DocumentChanged {
                author,
                reason,
                from,
                to,
                changes,
            } => {
                let (author, reason) = (escaped(author), escaped(reason));
                let changes = changes.join("; ");
                let changes = escaped(&changes);
                log!(
                    warn,
                    event,
                    author,
                    reason,
                    from,
                    to,
                    changes,
                    "login policy changed"
                );
            }
            What::Administered {
                action,
                author,
                reason,
                network,
            } => {
                let (author, reason) = (escaped(author), escaped(reason));
                let network = network.as_deref().map(escaped);
                let action = action.name();
                log!(
                    warn,
                    event,
                    action,
                    author,
                    reason,
                    network,
                    "operator acted on login attempts"
                );
            }
            What::Signal(signal) => {
                let message = "login attempts look like an attack";
                match *signal {
                    Signal::ManyUsers { users } => {
                        log!(warn, event, signal = "many_users", users, "{message}");
                    }
                    Signal::ManyAddresses { addresses } => {
                        log!(
                            warn,
                            event,
                            signal = "many_addresses",
                            addresses,
                            "{message}"
                        );
                    }
                    Signal::FailureRate {
                        per_minute,
                        baseline,
                    } => {
                        let signal = "failure_rate";
                        log!(warn, event, signal, per_minute, baseline, "{message}");
                    }
                }
            }
            What::WrongBlock { rule, by } => {
                let (rule, by) = (escaped(rule), by.name());
                log!(warn, event, rule, by, "a login block was probably wrong");
            }
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_flood_is_logged_some_times_a_minute() {
        let mut samples = Samples::default();
        let logged = |samples: &mut Samples, at| {
            let counts = (0..10_000).filter_map(|_| samples.next("address", at));
            counts.collect::<Vec<_>>()
        };
        assert_eq!(logged(&mut samples, 0), [1, 10, 100, 1_000, 10_000]);
        assert!(logged(&mut samples, WINDOW - 1).is_empty());
        assert_eq!(logged(&mut samples, WINDOW), [1, 10, 100, 1_000, 10_000]);
        for rule in 0..1_000 {
            samples.next(&rule.to_string(), WINDOW);
        }
        assert_eq!(samples.counts.len(), MAX_RULES);
    }
}
