//! Recorded attempts under another policy, and under their own.

use std::{
    net::IpAddr,
    sync::{Arc, Mutex},
    time::Duration,
};

use proptest::{prelude::*, sample::Index};
use tokio::runtime::Runtime;
use tower_login_rate_limit::{
    Address, Attempt, Caller, Limit, LoginLimiter, Outcome, Part, Period, Policy, ReserveError,
    Rule,
    access::{AccessRule, AccessRules, Field},
    admin::{Author, Forgive, Subject, Unblock},
    clock::{Clock, ManualClock},
    event::{Event, EventUser, Sealer, UserDisplay, What},
    insight::{Replay, ReplayReport, ReplayedRule},
    store::MemoryStore,
};

use crate::{
    model::{any_rule, limit},
    support::{DAY, HOUR, MINUTE, SECOND, START, ip},
};

const ADDRESSES: [&str; 6] = [
    "192.0.2.1",
    "198.51.100.7",
    "2001:db8:1:2::a",
    "2001:db8:1:2::b",
    "2001:db8:1:3::",
    ALLOWED,
];
const ALLOWED: &str = "203.0.113.9";
const USERS: [&str; 3] = ["alice", "bob", "carol"];
const SECRET: &str = "a secret of at least 16 bytes";

/// A limiter on a clock of its own, and the events that it emits, with the times of that clock.
struct Recorder {
    clock: Arc<ManualClock>,
    limiter: LoginLimiter,
    observed: Arc<Mutex<Vec<Event>>>,
    events: Vec<Event>,
    held: Vec<Attempt>,
}

impl Recorder {
    fn new(policy: Policy, display: UserDisplay) -> Self {
        let clock = Arc::new(ManualClock::at(START));
        let store = MemoryStore::new().with_clock(Arc::clone(&clock));
        let observed = Arc::<Mutex<Vec<Event>>>::default();
        let observer = Arc::clone(&observed);
        let office = AccessRule::allow("office", Field::Network, ALLOWED).unwrap();
        let limiter = LoginLimiter::new(policy, store)
            .with_user_display(display)
            .with_access_rules(AccessRules::new([office]).unwrap())
            .unwrap()
            .with_observer(move |event: &Event| observer.lock().unwrap().push(event.clone()));
        Self {
            clock,
            limiter,
            observed,
            events: Vec::new(),
            held: Vec::new(),
        }
    }

    /// Events have the system's time, and get that of the clock.
    async fn drain(&mut self) {
        assert!(self.limiter.observed().await);
        let now = self.clock.now();
        let observed = std::mem::take(&mut *self.observed.lock().unwrap());
        let events = observed.into_iter().map(|event| event.with_time(now));
        self.events.extend(events);
    }

    async fn begin(&mut self, caller: Caller<'_>) {
        match self.limiter.reserve(caller).await {
            Ok(attempt) => self.held.push(attempt),
            Err(ReserveError::Refused(_)) => {}
            Err(error) => panic!("{error}"),
        }
        self.drain().await;
    }

    async fn end(&mut self, i: usize, outcome: Outcome) {
        self.held.remove(i).settle(outcome).await.unwrap();
        self.drain().await;
    }

    async fn attempt(&mut self, address: &str, user: &str, outcome: Outcome) {
        let caller = Caller::new(ip(address)).with_user(user);
        let held = self.held.len();
        self.begin(caller).await;
        if self.held.len() > held {
            self.end(held, outcome).await;
        }
    }

    async fn wait(&mut self, millis: u64) {
        // A record does not tell when attempts begin, so nothing may expire while they are in flight.
        while millis > 2 && !self.held.is_empty() {
            self.end(0, Outcome::Failure).await;
        }
        self.clock.advance(Duration::from_millis(millis));
    }

    async fn play(&mut self, op: &Op) {
        match op {
            Op::Attempt(who, outcome) => {
                let held = self.held.len();
                self.begin(who.caller()).await;
                if self.held.len() > held {
                    self.end(held, *outcome).await;
                }
            }
            Op::Begin(who) => self.begin(who.caller()).await,
            Op::End(index, outcome) if !self.held.is_empty() => {
                self.end(index.index(self.held.len()), *outcome).await;
            }
            Op::End(..) => {}
            Op::Wait(millis) => self.wait(*millis).await,
            Op::Unblock(subject, with_pairs) => {
                let target = Unblock::of(subject.subject()).with_pairs(*with_pairs);
                let admin = self.limiter.admin().unwrap();
                admin.unblock(target, &author()).await.unwrap();
                self.drain().await;
            }
            Op::Forgive(user) => {
                let admin = self.limiter.admin().unwrap();
                let forgive = Forgive::user(USERS[*user]);
                admin.forgive(&forgive, &author()).await.unwrap();
                self.drain().await;
            }
        }
    }
}

fn author() -> Author {
    Author::new("bob", "phoned").unwrap()
}

#[derive(Clone, Debug)]
struct Who {
    address: usize,
    user: Option<usize>,
    /// Other than the normal form.
    is_spelled: bool,
    second_factor: bool,
}

impl Who {
    fn caller(&self) -> Caller<'static> {
        let caller =
            Caller::new(ip(ADDRESSES[self.address])).with_second_factor(self.second_factor);
        let name = |user: usize| match self.is_spelled {
            true => USERS[user].to_uppercase(),
            false => USERS[user].to_owned(),
        };
        match self.user {
            Some(user) => caller.with_user(name(user)),
            None => caller,
        }
    }

    fn subject(&self) -> Subject {
        let address = ip(ADDRESSES[self.address]);
        match self.user {
            Some(user) if self.second_factor => Subject::user(USERS[user]),
            Some(user) => Subject::pair(address, USERS[user]),
            None => Subject::address(address),
        }
    }
}

#[derive(Clone, Debug)]
enum Op {
    Attempt(Who, Outcome),
    Begin(Who),
    End(Index, Outcome),
    Wait(u64),
    Unblock(Who, bool),
    Forgive(usize),
}

fn who() -> impl Strategy<Value = Who> {
    let user = proptest::option::weighted(0.8, 0..USERS.len());
    let rarely = || proptest::bool::weighted(0.2);
    (0..ADDRESSES.len(), user, rarely(), rarely()).prop_map(
        |(address, user, is_spelled, second_factor)| Who {
            address,
            user,
            is_spelled,
            second_factor,
        },
    )
}

fn outcome() -> impl Strategy<Value = Outcome> {
    prop_oneof![
        6 => Just(Outcome::Failure),
        1 => Just(Outcome::UnknownUser),
        1 => Just(Outcome::Success),
        1 => Just(Outcome::MfaPending),
        1 => Just(Outcome::NotAnAttempt),
    ]
}

/// Forgiving a user of several spellings removes failures without lifting a block, of which there is no event.
fn op(overlap: u32, forgive: u32) -> impl Strategy<Value = Op> {
    let wait = prop_oneof![0..3_u64, 1..MINUTE, 1..2 * HOUR, 1..30 * HOUR];
    prop_oneof![
        20 => (who(), outcome()).prop_map(|(who, outcome)| Op::Attempt(who, outcome)),
        overlap => who().prop_map(Op::Begin),
        overlap => (any::<Index>(), outcome()).prop_map(|(index, outcome)| Op::End(index, outcome)),
        8 => wait.prop_map(Op::Wait),
        1 => (who(), any::<bool>()).prop_map(|(who, with_pairs)| Op::Unblock(who, with_pairs)),
        forgive => (0..USERS.len()).prop_map(Op::Forgive),
    ]
}

/// A policy with rules of every kind. Those in shadow, and exemptions, depend on when attempts begin, which a record
/// does not tell; they are left out where attempts overlap.
fn policy(overlaps: bool) -> impl Strategy<Value = Policy> {
    let shadow = proptest::option::of(0..4_usize);
    let rules = [any_rule(), any_rule(), any_rule(), any_rule(), any_rule()];
    (rules, shadow, any::<bool>()).prop_map(move |(numbers, shadow, exempts)| {
        let (user, address) = (Part::User, Part::Address);
        let keys = [
            ("address", vec![address.clone()]),
            ("user-address", vec![user.clone(), address]),
            ("account", vec![user.clone()]),
            ("network-56", vec![Part::Network(56)]),
            ("second-factor", vec![user]),
        ];
        let rules = keys.into_iter().zip(numbers).enumerate();
        let rules = rules.map(|(i, ((name, parts), numbers))| {
            let rule = Rule::new(name, parts, limit(&numbers)).unwrap();
            if !overlaps && exempts && name == "account" {
                return rule.with_known_addresses_exempt().unwrap();
            }
            rule.with_shadow(!overlaps && shadow == Some(i))
        });
        let policy = Policy::new(rules).unwrap();
        policy.with_lease(Duration::from_millis(DAY)).unwrap()
    })
}

fn replayed(policy: &Policy, events: &[Event]) -> ReplayReport {
    let mut replay = Replay::new(policy.clone()).with_sealer(Sealer::new(SECRET).unwrap());
    events.iter().for_each(|event| replay.record(event));
    replay.finish()
}

/// Under the policy that was recorded, each rule did what it does in the replay.
fn agrees(policy: &Policy, events: &[Event]) -> Result<(), TestCaseError> {
    let report = replayed(policy, events);
    for rule in &report.rules {
        prop_assert!(rule.is_replayed);
        prop_assert_eq!(rule.recorded, rule.replayed, "{}", rule.rule);
    }
    prop_assert_eq!((report.refused, report.admitted), (0, 0));
    prop_assert_eq!((report.blocked.count, report.freed.count), (0, 0));
    Ok(())
}

fn exact(
    policy: Policy,
    ops: &[Op],
    display: UserDisplay,
    is_recorded: bool,
) -> Result<(), TestCaseError> {
    let mut recorder = Recorder::new(policy.clone(), display);
    let runtime = Runtime::new().unwrap();
    runtime.block_on(async {
        for op in ops {
            let mut op = op.clone();
            // A record has no spellings.
            if let (true, Op::Attempt(who, _) | Op::Begin(who)) = (is_recorded, &mut op) {
                who.is_spelled = false;
            }
            recorder.play(&op).await;
        }
    });
    let mut events = recorder.events;
    if is_recorded {
        let recorded = events.iter().map(|event| event.to_json());
        let read = recorded.map(|json| serde_json::from_str(&json).unwrap());
        events = read.collect();
    }
    // Blocks begin at the same moment, not only as often.
    let is_block = |event: &Event| matches!(event.what, What::BlockBegan { .. });
    for i in 1..events.len() {
        // One failure may begin several.
        if is_block(&events[i - 1]) && !is_block(&events[i]) {
            agrees(&policy, &events[..i])?;
        }
    }
    agrees(&policy, &events)
}

proptest! {
    #![proptest_config(ProptestConfig { failure_persistence: None, cases: 200, ..Default::default() })]

    #[test]
    fn under_its_own_policy_a_history_is_replayed_exactly(
        policy in policy(false),
        ops in prop::collection::vec(op(0, 0), 1..80),
    ) {
        exact(policy, &ops, UserDisplay::Hidden, false)?;
    }

    #[test]
    fn attempts_that_overlap_are_replayed_exactly(
        policy in policy(true),
        ops in prop::collection::vec(op(10, 0), 1..80),
    ) {
        exact(policy, &ops, UserDisplay::Masked, false)?;
    }

    #[test]
    fn a_record_is_replayed_exactly_however_users_are_shown(
        policy in policy(false),
        ops in prop::collection::vec(op(0, 1), 1..80),
        display in 0..3_usize,
    ) {
        let displays = [
            UserDisplay::Clear,
            UserDisplay::hashed(SECRET).unwrap(),
            UserDisplay::sealed(SECRET).unwrap(),
        ];
        exact(policy, &ops, displays[display].clone(), true)?;
    }
}

/// A guesser at one account, a person with typos who gets in at the fourth try, and an office.
async fn mixed(display: UserDisplay) -> Vec<Event> {
    let mut recorder = Recorder::new(Policy::default(), display);
    for _ in 0..8 {
        (recorder.attempt("192.0.2.1", "alice", Outcome::Failure)).await;
        recorder.wait(2 * SECOND).await;
    }
    for outcome in [
        Outcome::Failure,
        Outcome::Failure,
        Outcome::Failure,
        Outcome::Success,
    ] {
        recorder.attempt("198.51.100.7", "bob", outcome).await;
        recorder.wait(10 * SECOND).await;
    }
    for i in 0..40 {
        let user = format!("user{i}");
        recorder
            .attempt("203.0.113.7", &user, Outcome::Failure)
            .await;
        recorder
            .attempt("203.0.113.7", &user, Outcome::Success)
            .await;
        recorder.wait(MINUTE).await;
    }
    recorder.events
}

fn pairs(attempts: u32) -> Policy {
    let limit = Limit::attempts(attempts).within(Period::days(1));
    Policy::default().with_user_address_limit(limit).unwrap()
}

fn rule<'r>(report: &'r ReplayReport, name: &str) -> &'r ReplayedRule {
    let found = report.rules.iter().find(|rule| &*rule.rule == name);
    found.unwrap_or_else(|| panic!("{name}: {report:?}"))
}

fn note(report: &ReplayReport, words: &str) -> bool {
    report.notes.iter().any(|note| note.contains(words))
}

#[tokio::test]
async fn a_stricter_policy_blocks_more_and_tells_which_honest_logins_that_costs() {
    let events = mixed(UserDisplay::Clear).await;
    let report = replayed(&pairs(3), &events);
    let pairs = rule(&report, Rule::USER_ADDRESS);
    assert_eq!((pairs.recorded.blocks, pairs.replayed.blocks), (1, 2));
    assert_eq!((pairs.recorded.wrong, pairs.replayed.wrong), (0, 1));
    assert_eq!((pairs.recorded.refused, pairs.replayed.refused), (3, 6));
    // Two guesses that were admitted, and bob.
    let refused = (
        report.refused,
        report.refused_guesses,
        report.refused_successes,
    );
    assert_eq!(refused, (3, 2, 1));
    assert_eq!(
        (report.admitted, report.freed.count, report.blocked.count),
        (0, 0, 1)
    );
    let bob = &report.blocked.subjects[0];
    assert_eq!(bob.user.as_ref().unwrap().to_string(), "bob");
    assert_eq!(bob.address.unwrap().to_string(), "198.51.100.7");
    assert_eq!(
        (bob.refused, bob.refused_successes, bob.replayed),
        (1, 1, 1)
    );
    assert_eq!(report.attempts, 92);
    assert!(
        note(&report, "the record covers 39 minutes"),
        "{:?}",
        report.notes
    );
}

#[tokio::test]
async fn under_a_looser_policy_what_was_refused_is_a_failure_and_counted_apart() {
    let events = mixed(UserDisplay::Clear).await;
    let report = replayed(&pairs(7), &events);
    let pairs = rule(&report, Rule::USER_ADDRESS);
    assert_eq!((pairs.recorded.blocks, pairs.replayed.blocks), (1, 1));
    // Two of the three that were refused are admitted, fail, and then it is blocked.
    assert_eq!(
        (report.admitted, pairs.replayed.refused, report.refused),
        (2, 1, 0)
    );
    assert_eq!((report.freed.count, report.blocked.count), (0, 0));
    let report = replayed(&self::pairs(9), &events);
    assert_eq!((report.admitted, report.freed.count), (3, 1));
    let alice = &report.freed.subjects[0];
    assert_eq!((alice.recorded, alice.replayed, alice.admitted), (1, 0, 3));
    // And without the rule.
    let without = Policy::default()
        .with_rule_enabled(Rule::USER_ADDRESS, false)
        .unwrap();
    let report = replayed(&without, &events);
    assert_eq!(report.freed.count, 1);
    assert!(!rule(&report, Rule::USER_ADDRESS).is_replayed);
    let removed = Policy::new([Policy::default().rule(Rule::ADDRESS).unwrap().clone()]).unwrap();
    let report = replayed(&removed, &events);
    assert_eq!(
        (
            report.freed.count,
            rule(&report, Rule::USER_ADDRESS).recorded.blocks
        ),
        (1, 1)
    );
}

#[tokio::test]
async fn what_a_record_lacks_is_noted_and_not_guessed() {
    let reread = |events: Vec<Event>| -> Vec<Event> {
        let json = events.iter().map(|event| event.to_json());
        json.map(|json| serde_json::from_str(&json).unwrap())
            .collect()
    };
    let hidden = reread(mixed(UserDisplay::Hidden).await);
    let report = replayed(&pairs(3), &hidden);
    assert_eq!(rule(&report, Rule::USER_ADDRESS).replayed.blocks, 0);
    assert_eq!(report.freed.count, 0);
    // The office seems to fail 40 times and to take nothing back.
    assert_eq!(rule(&report, Rule::ADDRESS).replayed.blocks, 1);
    let words = "a success among them took back no earlier failures";
    assert!(note(&report, words), "{:?}", report.notes);

    // The office's users look alike, and like a single one.
    let masked = reread(mixed(UserDisplay::Masked).await);
    let report = replayed(&pairs(3), &masked);
    assert!(note(&report, "counted as one"), "{:?}", report.notes);

    let sealed = reread(mixed(UserDisplay::sealed(SECRET).unwrap()).await);
    let mut closed = Replay::new(pairs(3));
    sealed.iter().for_each(|event| closed.record(event));
    assert!(note(
        &closed.finish(),
        "the secret that opens it was not given"
    ));
    assert_eq!(replayed(&pairs(3), &sealed).blocked.count, 1);

    let tenant = Rule::new(
        "tenant",
        [Part::value("tenant")],
        Limit::attempts(1).within(Period::days(1)),
    );
    let report = replayed(&Policy::default().with_rule(tenant.unwrap()), &hidden);
    let tenant = rule(&report, "tenant");
    assert_eq!((tenant.replayed.refused, tenant.is_replayed), (0, false));
    assert!(
        note(&report, "rule tenant counts by values"),
        "{:?}",
        report.notes
    );
}

#[tokio::test]
async fn a_record_that_begins_in_the_middle_invents_no_blocks() {
    let events = mixed(UserDisplay::Clear).await;
    for start in 1..events.len() {
        let report = replayed(&Policy::default(), &events[start..]);
        assert_eq!(
            (report.blocked.count, report.freed.count),
            (0, 0),
            "{start}"
        );
        assert_eq!((report.refused, report.admitted), (0, 0), "{start}");
    }
}

#[tokio::test]
async fn blocks_that_the_app_lifted_are_lifted_in_the_replay() {
    let mut recorder = Recorder::new(Policy::default(), UserDisplay::Clear);
    for _ in 0..3 {
        for _ in 0..5 {
            (recorder.attempt("192.0.2.1", "alice", Outcome::Failure)).await;
        }
        let lifted = recorder.limiter.unblock((ip("192.0.2.1"), "alice"));
        lifted.await.unwrap();
        recorder.drain().await;
    }
    agrees(&Policy::default(), &recorder.events).unwrap();
    let report = replayed(&pairs(3), &recorder.events);
    assert_eq!(rule(&report, Rule::USER_ADDRESS).replayed.blocks, 3);
}

#[tokio::test]
async fn small_disorder_is_tolerated_and_a_record_read_backwards_is_noticed() {
    let mut events = mixed(UserDisplay::Clear).await;
    for pair in events.chunks_mut(2) {
        pair.reverse();
    }
    let report = replayed(&pairs(3), &events);
    assert_eq!((report.blocked.count, report.omitted), (1, 0));
    events.reverse();
    let report = replayed(&pairs(3), &events);
    assert!(
        report.omitted > 50 && note(&report, "from its oldest event on"),
        "{report:?}"
    );
}

#[test]
fn a_longer_ipv6_prefix_can_not_be_replayed() {
    let failure = || {
        let json = r#"{"at":"2026-11-18T07:00:00.123Z","event":"settled","outcome":"failure"}"#;
        serde_json::from_str::<Event>(json).unwrap()
    };
    let network = |text: &str| text.parse::<Address>().unwrap();
    let events: Vec<_> = (["2001:db8:1::/48", "2001:db8:1::/48", "192.0.2.1"].into_iter())
        .map(|text| failure().with_address(network(text)))
        .collect();
    let report = replayed(&Policy::default(), &events);
    assert!(
        note(&report, "2 attempts come from IPv6 networks"),
        "{:?}",
        report.notes
    );
    let shorter = Policy::default().with_ipv6_prefix(32).unwrap();
    assert!(!note(&replayed(&shorter, &events), "IPv6"));
}

#[test]
fn a_flood_is_replayed_in_bounded_memory() {
    let mut replay = Replay::with_capacity(Policy::default(), 1_000);
    let json = r#"{"at":"2026-11-18T07:00:00.123Z","event":"settled","outcome":"failure"}"#;
    let failure: Event = serde_json::from_str(json).unwrap();
    for i in 0..20_000_u32 {
        let address = Address::new(IpAddr::V4(i.wrapping_mul(0x9e37_79b1).into()), 64);
        let user = EventUser::from_shown(&format!("user{i}"));
        replay.record(&failure.clone().with_address(address).with_user(user));
    }
    let report = replay.finish();
    assert_eq!(report.attempts + report.omitted, 20_000);
    assert!(
        report.attempts <= 500 && note(&report, "exceeded the capacity"),
        "{report:?}"
    );
}

#[tokio::test]
async fn the_report_is_json_with_users_as_they_are_shown() {
    let report = replayed(&pairs(3), &mixed(UserDisplay::Masked).await);
    let json = serde_json::to_value(&report).unwrap();
    assert_eq!(json["blocked"]["subjects"][0]["user"], "b***");
    assert_eq!(json["blocked"]["subjects"][0]["address"], "198.51.100.7");
    assert_eq!(json["from"], "2026-09-21T14:13:20.000Z");
    assert_eq!(json["rules"][3]["replayed"]["wrong"], 1);
    assert!(!format!("{json} {report:?}").contains("bob"));
}
