//! Presets for published standards, and the check of a policy against them.

use std::{fmt, sync::Arc, time::Duration};

use super::{DAY, Part, Policy, Rule, a_day, second_factor};
use crate::{
    Limit, Period,
    algorithm::{Algorithm, Block, Millis},
};

const HOUR: Duration = Duration::from_secs(60 * 60);
const NIST_FAILURES: u64 = 100;
const PCI_ATTEMPTS: u64 = 10;
const PCI_LOCKOUT: Duration = Duration::from_secs(30 * 60);
const OWASP_FAILURES_AN_HOUR: u64 = 100;

/// What [`Policy::check`] compares a policy with.
///
/// ```
/// use tower_login_rate_limit::{Policy, Standard};
///
/// assert!(Policy::pci().check(Standard::Pci).is_empty());
/// for finding in Policy::default().check(Standard::Pci) {
///     // PCI DSS 4.0.1, 8.3.4: no rule counts by user over all addresses, …
///     println!("{finding}");
/// }
/// ```
///
/// | | what is compared |
/// |---|---|
/// | [`Nist`](Self::Nist) | at most 100 consecutive failures of an account, then disabled for good |
/// | [`Pci`](Self::Pci) | at most 10 attempts at an account, then locked for at least 30 minutes |
/// | [`Owasp`](Self::Owasp) | at most 100 failures of an account an hour, a limit by address, and no way for strangers to lock an owner out |
///
/// # What a policy can't show
///
/// A policy is a part of conforming. The check knows neither the strength of passwords nor whether an app puts
/// its layer on every way in, identifies users and records outcomes; nor what happens while a store is
/// unavailable, when each process counts by itself or, if so configured, not at all.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
#[non_exhaustive]
pub enum Standard {
    /// NIST SP 800-63B-4, section 3.2.2: the verifier limits consecutive failures of an account with one
    /// authenticator to 100 at most and then disables the authenticator, until it is bound anew. A policy that
    /// counts all authenticators of an account together limits each of them.
    Nist,
    /// PCI DSS 4.0.1, requirement 8.3.4: an account is locked out after 10 invalid attempts at most, for at
    /// least 30 minutes or until the user's identity is confirmed.
    ///
    /// The requirement names no time after which failures may be forgotten. The check accepts 30 minutes and
    /// more: more guesses than the lock-out itself permits are then impossible.
    Pci,
    /// OWASP ASVS 4.0.3 (2.2.1) and 5.0 (6.1.1), and the Authentication Cheat Sheet: failures are counted by
    /// account, 100 an hour at most; anti-automation against guesses at many accounts; an account can't be
    /// locked maliciously.
    Owasp,
}

impl fmt::Display for Standard {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(match self {
            Self::Nist => "NIST SP 800-63B-4",
            Self::Pci => "PCI DSS 4.0.1",
            Self::Owasp => "OWASP",
        })
    }
}

/// What in a policy does not conform to a [`Standard`]. The [`Display`](fmt::Display) text is a sentence that
/// begins with the standard and the clause.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Finding {
    standard: Standard,
    clause: &'static str,
    rule: Option<Arc<str>>,
    reason: String,
}

impl Finding {
    /// The standard that the policy was compared with.
    pub const fn standard(&self) -> Standard {
        self.standard
    }

    /// The clause of the standard: `8.3.4`.
    pub const fn clause(&self) -> &'static str {
        self.clause
    }

    /// The name of the rule that comes closest to the clause; `None` if no rule is about it.
    pub fn rule(&self) -> Option<&str> {
        self.rule.as_deref()
    }

    /// What does not conform, without the clause.
    pub fn reason(&self) -> &str {
        &self.reason
    }
}

impl fmt::Display for Finding {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "{}, {}: ", self.standard, self.clause)?;
        if let Some(rule) = &self.rule {
            write!(f, "rule {rule:?} ")?;
        }
        f.write_str(&self.reason)
    }
}

impl Policy {
    /// The default policy, and a limit of 100 failures of an account without an end: what NIST SP 800-63B-4
    /// requires in section 3.2.2. An account that has reached it is refused until
    /// [`LoginLimiter::unblock_user`](crate::LoginLimiter::unblock_user), which belongs to binding a new authenticator.
    ///
    /// Growing waits are allowed in addition, as by [`Limit::backoff`].
    ///
    /// # What it costs
    ///
    /// - A stranger with 20 addresses can disable any account, and its owner then has to bind a new password.
    ///   The standard requires it. Offer a way that does not pass this limiter.
    /// - Failures do not expire, so every name that was ever tried has a counter that stays, those of users
    ///   that do not exist included. Give the store capacity for it.
    ///
    /// Failures of other addresses stay when the user logs in, so fewer than 100 *consecutive* ones can reach
    /// the limit, never more.
    pub fn nist() -> Self {
        let hundred = Limit {
            window: None,
            ..a_day(100, None)
        };
        Self::default().with_rule(Rule::of(Rule::ACCOUNT, [Part::User], hundred))
    }

    /// The default policy, and a limit of 10 failures of an account within 24 hours, which lock it for 30
    /// minutes: what PCI DSS 4.0.1 requires in 8.3.4.
    ///
    /// A stranger with two addresses can lock any account for 30 minutes, again and again. The standard
    /// requires it, and leaves another way: the lock ends when the user's identity is confirmed, by
    /// [`LoginLimiter::unblock_user`](crate::LoginLimiter::unblock_user).
    pub fn pci() -> Self {
        let ten = a_day(10, Some(DAY / 48));
        Self::default().with_rule(Rule::of(Rule::ACCOUNT, [Part::User], ten))
    }

    /// The default policy, and waits of an account that double from 1 second to an hour, beginning with the
    /// fifth failure within 24 hours: the exponential lock-out of OWASP's Authentication Cheat Sheet.
    ///
    /// Addresses that the user has logged in from are exempt, so that strangers can't lock the owner out; see
    /// [`strict`](Self::strict).
    pub fn owasp() -> Self {
        let doubling = (0..12).map(|i| 1000 << i);
        let waits = [0; 4].into_iter().chain(doubling).chain([DAY / 24]);
        let limit = Limit {
            algorithm: Algorithm::Backoff,
            attempts: 5,
            window: Some(DAY),
            block: None,
            waits: Some(waits.collect()),
            jitter: 0,
        };
        let account = Rule::of(Rule::ACCOUNT, [Part::User], limit);
        Self::default()
            .with_rule(account.exempting(true))
            .with_rule(second_factor().exempting(true))
    }

    /// Compares the policy with a standard. Returns what does not conform, each with its clause; an empty list
    /// if the policy conforms. See [`Standard`] for what is compared.
    ///
    /// A rule conforms by itself: two that conform only together are reported.
    pub fn check(&self, standard: Standard) -> Vec<Finding> {
        match standard {
            Standard::Nist => self.closest(standard, "3.2.2", nist),
            Standard::Pci => self.closest(standard, "8.3.4", pci),
            Standard::Owasp => {
                let mut findings = self.closest(standard, "ASVS 4.0.3, 2.2.1", owasp);
                findings.extend(self.lockouts());
                findings.extend(self.missing_address_rule());
                findings
            }
        }
    }

    /// The rules that count every attempt at an account, over all addresses.
    fn account_rules(&self) -> impl Iterator<Item = &Rule> {
        let enforced = self.rules.iter().filter(|rule| rule.is_enforced());
        enforced.filter(|rule| rule.parts() == [Part::User] && !rule.is_of_second_factor())
    }

    /// The findings of the account rule that has the fewest.
    fn closest(
        &self,
        standard: Standard,
        clause: &'static str,
        reasons: fn(&Rule) -> Vec<String>,
    ) -> Vec<Finding> {
        let finding = |rule, reason| Finding {
            standard,
            clause,
            rule,
            reason,
        };
        let rules = self.account_rules().map(|rule| (rule, reasons(rule)));
        match rules.min_by_key(|(_, reasons)| reasons.len()) {
            Some((rule, reasons)) => {
                let of_rule = |reason| finding(Some(rule.shared_name()), reason);
                reasons.into_iter().map(of_rule).collect()
            }
            None => vec![finding(
                None,
                "no rule counts by user over all addresses, so failures of an account have no limit: set one \
                 with `with_account_limit`"
                    .to_owned(),
            )],
        }
    }

    /// Rules by account that refuse the owner together with the attacker.
    fn lockouts(&self) -> impl Iterator<Item = Finding> {
        let locking = self.account_rules();
        let locking = locking.filter(|rule| !rule.exempts_known_addresses());
        locking.map(|rule| Finding {
            standard: Standard::Owasp,
            clause: "ASVS 5.0, 6.1.1",
            rule: Some(rule.shared_name()),
            reason: "exempts no known addresses, so a stranger can lock the owner out".to_owned(),
        })
    }

    fn missing_address_rule(&self) -> Option<Finding> {
        let mut rules = self.rules.iter();
        let is_by_address = |rule: &Rule| rule.is_enforced() && rule.parts() == [Part::Address];
        (!rules.any(is_by_address)).then(|| Finding {
            standard: Standard::Owasp,
            clause: "ASVS 4.0.3, 2.2.1",
            rule: None,
            reason: "no rule counts by address over all users, so one guess at each of many accounts has no \
                     limit: set one with `with_address_limit`"
                .to_owned(),
        })
    }
}

fn nist(rule: &Rule) -> Vec<String> {
    let mut reasons = Vec::new();
    match most_failures(rule.limit(), None) {
        Some(0..=NIST_FAILURES) => {}
        Some(failures) => reasons.push(format!(
            "admits {failures} consecutive failures; {NIST_FAILURES} at most are allowed"
        )),
        None => reasons.push(format!(
            "admits attempts again after a while, so consecutive failures are not limited to {NIST_FAILURES}: \
             count within \"forever\", and without a block that ends"
        )),
    }
    if rule.exempts_known_addresses() {
        reasons.push("does not count failures from known addresses".to_owned());
    }
    reasons
}

fn pci(rule: &Rule) -> Vec<String> {
    let limit = rule.limit();
    let mut reasons = Vec::new();
    let exact = match limit.algorithm {
        Algorithm::SlidingWindow => {
            if u64::from(limit.attempts) > PCI_ATTEMPTS {
                reasons.push(format!(
                    "locks after {} attempts; {PCI_ATTEMPTS} at most are allowed",
                    limit.attempts
                ));
            }
            true
        }
        // What follows the tenth failure is what counts, and no later wait is shorter.
        Algorithm::Backoff => true,
        Algorithm::TokenBucket | Algorithm::SlidingCounter => {
            reasons.push(format!(
                "does not count exactly, so more than {PCI_ATTEMPTS} attempts can pass without a lock"
            ));
            false
        }
    };
    let lockout = shortest_lockout(limit);
    if exact && lockout < Period::Of(PCI_LOCKOUT) {
        let lockout = match lockout {
            Period::Of(Duration::ZERO) => "can lock for less than a second".to_owned(),
            lockout => format!("locks for {lockout}"),
        };
        reasons.push(format!("{lockout}; at least 30 minutes are required"));
    }
    let window = limit.window();
    if window < Period::Of(PCI_LOCKOUT) {
        reasons.push(format!(
            "forgets failures after {window}; below 30 minutes that admits more guesses than the lock-out"
        ));
    }
    if rule.exempts_known_addresses() {
        reasons.push("does not lock the account for known addresses".to_owned());
    }
    reasons
}

fn owasp(rule: &Rule) -> Vec<String> {
    let mut reasons = Vec::new();
    let failures = most_failures(rule.limit(), Some(HOUR)).unwrap_or(u64::MAX);
    if failures > OWASP_FAILURES_AN_HOUR {
        reasons.push(format!(
            "admits up to {failures} failures an hour; {OWASP_FAILURES_AN_HOUR} at most are allowed"
        ));
    }
    reasons
}

/// The shortest time for which an account is locked once a limit is reached, or after the tenth failure of a
/// back-off.
fn shortest_lockout(limit: &Limit) -> Period {
    if let Some(waits) = &limit.waits {
        let tenth = waits.len().min(PCI_ATTEMPTS as usize);
        let wait = tenth.checked_sub(1).and_then(|i| waits.get(i));
        return Period::of_millis(without_jitter(wait.copied().unwrap_or(0), limit));
    }
    match limit.block() {
        Some(block) => block,
        // Lifts when the oldest failure leaves the window, which may be at once.
        None if limit.attempts > 1 && limit.window.is_some() => Period::Of(Duration::ZERO),
        None => limit.window(),
    }
}

/// An upper bound of the failures that a limit admits within any time of this length, without an end if `None`.
/// `None` if there is no bound.
fn most_failures(limit: &Limit, within: Option<Duration>) -> Option<u64> {
    let attempts = u64::from(limit.attempts);
    let span = within.map(|within| within.as_millis() as Millis);
    let every = |lasts: Option<Millis>| match lasts {
        None => Some(attempts),
        Some(lasts) => Some(span?.div_ceil(lasts.max(1)).saturating_mul(attempts)),
    };
    match (limit.algorithm, limit.block.as_ref().map(first)) {
        // Every failure brings the block.
        (_, Some(block)) if attempts == 1 => every(block),
        // A block that ends clears the counter, and one that would begin can be avoided.
        (Algorithm::SlidingWindow, Some(block)) => every(shorter(block, limit.window)),
        (Algorithm::SlidingWindow, None) => every(limit.window),
        (Algorithm::TokenBucket | Algorithm::SlidingCounter, _) => {
            // A whole limit at once, and what comes back meanwhile.
            let window = limit.window.unwrap_or(Millis::MAX).max(1);
            let back = u128::from(attempts) * u128::from(span?);
            let back = back.div_ceil(u128::from(window));
            Some(attempts.saturating_add(u64::try_from(back).unwrap_or(u64::MAX)))
        }
        (Algorithm::Backoff, _) => {
            // Forgotten after a window without a failure, the waits begin anew.
            let (span, window) = (span?, limit.window.unwrap_or(Millis::MAX).max(1));
            let at_once = in_a_row(limit, span.min(window));
            Some(span.div_ceil(window).saturating_mul(at_once))
        }
    }
}

/// The failures of a back-off within `span`, from the first one on.
fn in_a_row(limit: &Limit, span: Millis) -> u64 {
    let waits = limit.waits.as_deref().unwrap_or_default();
    let (mut at, mut failures) = (0_u64, 0_u64);
    for wait in waits {
        if at >= span {
            return failures;
        }
        failures += 1;
        at = at.saturating_add(without_jitter(*wait, limit));
    }
    // The last wait repeats.
    let last = waits.last().map_or(0, |wait| without_jitter(*wait, limit));
    failures.saturating_add(span.saturating_sub(at).div_ceil(last.max(1)))
}

/// The shortest that a wait can be.
fn without_jitter(wait: Millis, limit: &Limit) -> Millis {
    let jitter = wait.saturating_mul(limit.jitter.into()).div_ceil(100);
    wait.saturating_sub(jitter)
}

/// The shortest block; `None` is forever.
fn first(block: &Block) -> Option<Millis> {
    block.lengths().first().copied().flatten()
}

/// The shorter of two lengths; `None` is forever.
fn shorter(a: Option<Millis>, b: Option<Millis>) -> Option<Millis> {
    match (a, b) {
        (Some(a), Some(b)) => Some(a.min(b)),
        (a, b) => a.or(b),
    }
}
