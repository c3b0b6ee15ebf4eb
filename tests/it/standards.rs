//! Policies and published standards: the check against attackers that are simulated.

use std::{net::IpAddr, sync::Arc, time::Duration};

use proptest::prelude::*;
use tower_login_rate_limit::{
    Limit, LoginLimiter, Outcome, Part, Period, Policy, ReserveError, Rule, Standard,
    algorithm::{Algorithm, Millis},
    clock::{Clock, ManualClock},
    store::MemoryStore,
};

const STANDARDS: [Standard; 3] = [Standard::Nist, Standard::Pci, Standard::Owasp];
const SECOND: u64 = 1000;
const MINUTE: u64 = 60 * SECOND;
const HOUR: u64 = 60 * MINUTE;
const DAY: u64 = 24 * HOUR;

fn findings(policy: &Policy, standard: Standard) -> Vec<String> {
    let findings = policy.check(standard);
    findings.iter().map(ToString::to_string).collect()
}

#[test]
fn each_preset_conforms_to_its_own_standard() {
    assert_eq!(findings(&Policy::nist(), Standard::Nist), [""; 0]);
    assert_eq!(findings(&Policy::pci(), Standard::Pci), [""; 0]);
    assert_eq!(findings(&Policy::owasp(), Standard::Owasp), [""; 0]);
}

#[test]
fn presets_are_what_they_say() {
    let account = |policy: Policy, limit| {
        let limit: Result<Limit, _> = limit;
        let rule = Rule::new(Rule::ACCOUNT, [Part::User], limit.unwrap()).unwrap();
        assert_eq!(policy, Policy::default().with_rule(rule));
    };
    let hundred = Limit::attempts(100).within(Period::Forever);
    account(Policy::nist(), hundred.without_block().build());
    let ten = Limit::attempts(10).within(Period::hours(24));
    account(Policy::pci(), ten.blocked_for(Period::minutes(30)).build());
    let waits = [
        0, 0, 0, 0, 1, 2, 4, 8, 16, 32, 64, 128, 256, 512, 1024, 2048, 3600,
    ];
    let owasp = Limit::backoff(waits.map(Duration::from_secs));
    let codes = Limit::attempts(20).within(Period::hours(24));
    let owasp = Policy::default()
        .with_account_limit(owasp)
        .and_then(|policy| policy.with_second_factor_limit(codes.without_block()));
    assert_eq!(Policy::owasp(), owasp.unwrap());
}

#[test]
fn the_default_and_the_strict_policy_are_judged_honestly() {
    for standard in STANDARDS {
        let default = findings(&Policy::default(), standard);
        assert_eq!(default.len(), 1, "{default:?}");
        assert!(default[0].contains("no rule counts by user"), "{default:?}");
    }
    assert_eq!(findings(&Policy::strict(), Standard::Owasp), [""; 0]);
    assert_eq!(
        findings(&Policy::strict(), Standard::Nist),
        [
            "NIST SP 800-63B-4, 3.2.2: rule \"account\" admits attempts again after a while, so consecutive \
             failures are not limited to 100: count within \"forever\", and without a block that ends",
            "NIST SP 800-63B-4, 3.2.2: rule \"account\" does not count failures from known addresses",
        ]
    );
    assert_eq!(
        findings(&Policy::strict(), Standard::Pci),
        [
            "PCI DSS 4.0.1, 8.3.4: rule \"account\" locks after 100 attempts; 10 at most are allowed",
            "PCI DSS 4.0.1, 8.3.4: rule \"account\" can lock for less than a second; at least 30 minutes are \
             required",
            "PCI DSS 4.0.1, 8.3.4: rule \"account\" does not lock the account for known addresses",
        ]
    );
}

/// The standards contradict each other: one demands a lock, the other that strangers can't bring it.
#[test]
fn a_lock_that_strangers_can_bring_is_a_finding_for_owasp() {
    for policy in [Policy::nist(), Policy::pci()] {
        let [finding] = &policy.check(Standard::Owasp)[..] else {
            panic!("{:?}", findings(&policy, Standard::Owasp));
        };
        assert_eq!(finding.clause(), "ASVS 5.0, 6.1.1");
        assert_eq!(finding.rule(), Some(Rule::ACCOUNT));
        assert!(finding.reason().contains("lock the owner out"));
    }
}

#[test]
fn a_rule_that_is_disabled_or_counts_something_else_does_not_conform() {
    let off = Policy::pci().with_rule_enabled(Rule::ACCOUNT, false);
    assert_eq!(off.unwrap().check(Standard::Pci).len(), 1);
    // Passwords do not count under a rule for codes.
    let codes = Limit::attempts(10).within(Period::hours(24));
    let codes = Policy::default().with_second_factor_limit(codes).unwrap();
    assert_eq!(codes.check(Standard::Pci).len(), 1);
    assert_eq!(codes.check(Standard::Pci)[0].rule(), None);
    // The client chooses its user agent, and with it the counter.
    let limit = Limit::attempts(10)
        .within(Period::hours(24))
        .blocked_for(Period::hours(1));
    let parts = [Part::User, Part::user_agent()];
    let by_agent = Policy::default().with_rule(Rule::new("agent", parts, limit).unwrap());
    assert_eq!(by_agent.check(Standard::Pci).len(), 1);
    let off = Policy::owasp().with_rule_enabled(Rule::ADDRESS, false);
    let findings = off.unwrap().check(Standard::Owasp);
    assert!(findings[0].reason().contains("by address"), "{findings:?}");
}

/// Of several rules by user, the one that conforms decides.
#[test]
fn one_rule_that_conforms_is_enough() {
    let own = Limit::attempts(3).within(Period::minutes(1));
    let own = Rule::new("burst", [Part::User], own).unwrap();
    let policy = Policy::pci().with_rule(own);
    assert_eq!(findings(&policy, Standard::Pci), [""; 0]);
}

/// How an attacker with as many addresses as it takes, and any patience, guesses at one account.
#[derive(Clone, Copy, Debug, PartialEq)]
enum Attack {
    /// At every opportunity.
    Greedy,
    /// One failure short of the limit, and again when they are forgotten.
    Short,
    /// Once, and the rest just before that failure is forgotten.
    Late,
}

const ATTACKS: [Attack; 3] = [Attack::Greedy, Attack::Short, Attack::Late];

/// What became of it.
#[derive(Debug, Default)]
struct Course {
    failures: Vec<Millis>,
    /// After how many failures an attempt was refused, and until when it would have been.
    refused: Vec<(usize, Period)>,
}

impl Course {
    /// The most failures in any time of this length.
    fn most_within(&self, span: Millis) -> usize {
        let from = |start: &Millis| {
            let inside = |at: &&Millis| (*start..start + span).contains(*at);
            self.failures.iter().filter(inside).count()
        };
        self.failures.iter().map(from).max().unwrap_or(0)
    }
}

/// Attacks until `failures` have been admitted, or until nothing is admitted any more.
fn attack(attack: Attack, limit: &Limit, failures: usize) -> Course {
    let clock = Arc::new(ManualClock::at(1_000_000));
    let store = MemoryStore::new().with_clock(Arc::clone(&clock));
    let rule = Rule::new("by-user", [Part::User], limit.clone()).unwrap();
    let limiter = LoginLimiter::new(Policy::new([rule]).unwrap(), store);
    let address = IpAddr::from([192, 0, 2, 1]);
    let runtime = tokio::runtime::Builder::new_current_thread().build();
    let (mut course, mut in_turn) = (Course::default(), 0);
    let forgotten = match limit.algorithm() {
        Algorithm::SlidingCounter => limit.window().as_duration().map(|window| 2 * window),
        _ => limit.window().as_duration(),
    };
    runtime.unwrap().block_on(async {
        while course.failures.len() < failures {
            let is_over = match attack {
                Attack::Greedy => false,
                Attack::Short => in_turn + 1 >= limit.max_attempts(),
                Attack::Late => in_turn == 1 && limit.max_attempts() > 1,
            };
            match forgotten {
                Some(forgotten) if is_over && in_turn > 0 => {
                    let early = u64::from(attack == Attack::Late);
                    clock.advance(forgotten - Duration::from_millis(early));
                    in_turn = if attack == Attack::Late { 2 } else { 0 };
                }
                _ if is_over && attack == Attack::Short => return,
                _ => {}
            }
            match limiter.reserve((address, "victim")).await {
                Ok(attempt) => {
                    attempt.settle(Outcome::Failure).await.unwrap();
                    course.failures.push(clock.now());
                    in_turn += 1;
                }
                Err(ReserveError::Refused(refusal)) => {
                    course
                        .refused
                        .push((course.failures.len(), refusal.lifts()));
                    let Period::Of(lifts) = refusal.lifts() else {
                        return;
                    };
                    clock.advance(lifts);
                }
                Err(error) => panic!("{error}"),
            }
        }
    });
    course
}

fn period() -> impl Strategy<Value = Period> {
    let lengths = vec![
        SECOND,
        MINUTE,
        30 * MINUTE - 1,
        30 * MINUTE,
        HOUR - 1,
        HOUR,
        DAY,
    ];
    prop_oneof![
        6 => prop::sample::select(lengths).prop_map(|ms| Period::Of(Duration::from_millis(ms))),
        2 => Just(Period::Forever),
    ]
}

fn limit() -> impl Strategy<Value = Limit> {
    let attempts = prop_oneof![1_u32..=12, 95_u32..=105];
    let counted = (attempts, period(), prop::option::of(period()), 0..3_u8);
    let counted = counted.prop_filter_map("no such limit", |(attempts, within, block, kind)| {
        let mut limit = Limit::attempts(attempts).within(within).without_block();
        if let Some(block) = block {
            limit = limit.blocked_for(block);
        }
        match kind {
            0 => limit.build().ok(),
            1 => limit.as_token_bucket().build().ok(),
            _ => limit.as_sliding_counter().build().ok(),
        }
    });
    let waits = prop::sample::select(vec![0, SECOND, MINUTE, 30 * MINUTE - 1, 30 * MINUTE, HOUR]);
    let waits = prop::collection::vec(waits, 1..14);
    let backoff = (waits, period()).prop_filter_map("no such waits", |(mut waits, forgotten)| {
        waits.sort_unstable();
        let waits = waits.into_iter().map(Duration::from_millis);
        Limit::backoff(waits)
            .forgotten_after(forgotten)
            .build()
            .ok()
    });
    prop_oneof![3 => counted, 1 => backoff]
}

fn conforms(limit: &Limit, standard: Standard) -> bool {
    let rule = Rule::new("by-user", [Part::User], limit.clone()).unwrap();
    let findings = Policy::new([rule]).unwrap().check(standard);
    // What a single rule by user always lacks.
    let is_about_limit = |text: &str| !text.contains("by address") && !text.contains("exempts no");
    !findings
        .iter()
        .any(|finding| is_about_limit(finding.reason()))
}

proptest! {
    #![proptest_config(ProptestConfig::with_cases(2_000))]

    #[test]
    fn nist_conforms_if_and_only_if_no_patience_brings_a_hundred_and_one_failures(limit in limit()) {
        let most = ATTACKS.map(|a| attack(a, &limit, 101).failures.len()).into_iter().max();
        prop_assert_eq!(conforms(&limit, Standard::Nist), most <= Some(100), "{:?}", most);
    }

    /// A limit that counts exactly conforms if each lock comes in time and is long enough, and failures are
    /// kept long enough.
    #[test]
    fn pci_conforms_if_and_only_if_every_attack_is_locked_in_time_and_for_long(limit in limit()) {
        let is_lock = |lifts: Period| lifts >= Period::minutes(30);
        let holds = |a| {
            let course = attack(a, &limit, 40);
            // Short waits of a back-off are no locks, and do no harm.
            let mut since = 0;
            let is_in_time = |(after, lifts): &(usize, Period)| {
                let unlocked = after - since;
                since = if is_lock(*lifts) { *after } else { since };
                unlocked <= 10
            };
            if limit.algorithm() == Algorithm::Backoff {
                return course.refused.iter().all(is_in_time);
            }
            let first = course.refused.first();
            let in_time = a != Attack::Greedy || first.is_some_and(|(after, _)| *after <= 10);
            in_time && course.refused.iter().all(|(_, lifts)| is_lock(*lifts))
        };
        let is_exact = matches!(limit.algorithm(), Algorithm::SlidingWindow | Algorithm::Backoff);
        let keeps = limit.window() >= Period::minutes(30);
        let expected = is_exact && keeps && ATTACKS.into_iter().all(holds);
        prop_assert_eq!(conforms(&limit, Standard::Pci), expected);
    }

    #[test]
    fn owasp_conforms_only_if_no_attack_fails_more_than_a_hundred_times_an_hour(limit in limit()) {
        let most = |a| attack(a, &limit, 250).most_within(HOUR);
        let [greedy, short, late] = ATTACKS.map(most);
        let conforms = conforms(&limit, Standard::Owasp);
        prop_assert!(!conforms || greedy.max(short).max(late) <= 100, "{} {} {}", greedy, short, late);
        // Exact where the simulated attack is the best one.
        if limit.algorithm() == Algorithm::SlidingWindow && limit.block().is_none() {
            prop_assert_eq!(conforms, greedy <= 100, "{}", greedy);
        }
    }
}
