//! Attacks and innocent people, as events.

use std::time::Duration;

use super::*;
use crate::{
    Address, Outcome, Period, Reason,
    algorithm::Millis,
    event::{Event, EventUser, LiftedBy, Signal, UserDisplay, UserHasher, What, WrongBy},
};

const START: Millis = 1_794_960_000_000;
const MINUTE: Millis = 60_000;
const DAY: Millis = 24 * 60 * MINUTE;

fn hasher() -> UserHasher {
    UserHasher::new([7; 32]).unwrap()
}

fn about(what: What, at: Millis, address: u32, user: &str) -> Event {
    let address = std::net::IpAddr::V4(address.into());
    Event::new(what)
        .with_time(at)
        .with_address(Address::new(address, 64))
        .with_user(EventUser::new(user, user, &UserDisplay::Masked))
}

fn settled(outcome: Outcome, at: Millis, address: u32, user: &str) -> Event {
    let second_factor = false;
    about(
        What::Settled {
            outcome,
            second_factor,
        },
        at,
        address,
        user,
    )
}

fn failed(at: Millis, address: u32, user: &str) -> Event {
    settled(Outcome::Failure, at, address, user)
}

fn refused(at: Millis, address: u32, user: &str, shadow: bool) -> Event {
    let what = What::Refused {
        rule: "address".into(),
        reason: Reason::Blocked,
        usage: 25,
        limit: 25,
        lifts: Period::days(7),
        shadow,
    };
    about(what, at, address, user)
}

fn began(at: Millis, address: u32, user: &str) -> Event {
    let what = What::BlockBegan {
        rule: "user-address".into(),
        counter: format!("{address} {user}").into(),
        usage: 5,
        limit: 5,
        lifts: Period::days(1),
        attempts: Vec::new(),
        shadow: false,
    };
    about(what, at, address, user)
}

fn lifted(at: Millis, address: u32, user: &str, by: LiftedBy) -> Event {
    let what = What::BlockLifted {
        rule: "user-address".into(),
        counter: format!("{address} {user}").into(),
        by,
    };
    about(what, at, address, user)
}

/// Reports of other processes are read from the store.
#[test]
fn no_number_in_a_report_ends_the_process() {
    let many = format!(
        r#"[{{"id": "a", "failures": {0}, "refusals": {0}, "uncertain": {0}}}, {{"id": "b", "failures": {0}, "refusals": 1, "uncertain": 1}}]"#,
        u64::MAX
    );
    let report = format!(
        r#"{{"addresses": {many}, "users": {many}, "address_floor": {0}, "user_floor": {0}}}"#,
        u64::MAX
    );
    let report: BusiestReport = serde_json::from_str(&report).unwrap();
    let both = report.clone().merge(report).first(1);
    assert_eq!(both.addresses[0].guesses(), u64::MAX);
    assert_eq!(both.user_floor, u64::MAX);
}

#[test]
fn the_busiest_are_counted_lately_and_shown_as_chosen() {
    let mut busiest = Busiest::new(hasher());
    for n in 0..100 {
        busiest.record(&failed(START, 1, "alice"));
        busiest.record(&refused(START, 1, &format!("user{n}"), false));
        busiest.record(&refused(START, 3, "shadow", true));
        busiest.record(&settled(Outcome::Success, START, 4, "bob"));
    }
    (0..30).for_each(|_| busiest.record(&failed(START, 2, "carol")));
    let report = busiest.report(2);
    let [first, second] = &report.addresses[..] else {
        panic!("{report:?}");
    };
    assert_eq!(
        (&*first.id, first.failures, first.refusals),
        ("0.0.0.1", 100, 100)
    );
    assert_eq!(
        (&*second.id, second.failures, second.uncertain),
        ("0.0.0.2", 30, 0)
    );
    let user = &report.users[0];
    assert_eq!(*user.id, *hasher().hash("alice"));
    assert_eq!((user.shown.as_deref(), user.failures), (Some("a***"), 100));
    assert_eq!((report.address_floor, report.user_floor), (0, 1));

    // In the next half hour they are still there, and after it no longer.
    busiest.record(&failed(START + 30 * MINUTE, 2, "carol"));
    assert_eq!(busiest.report(9).addresses[0].failures, 100);
    assert_eq!(busiest.report(9).addresses[1].failures, 31);
    busiest.record(&settled(Outcome::Success, START + 90 * MINUTE, 9, "dave"));
    assert!(busiest.report(9).addresses.is_empty());
}

#[test]
fn a_flood_of_names_pushes_no_busy_user_out() {
    let mut busiest = Busiest::new(hasher());
    for n in 0..100_000_u32 {
        busiest.record(&failed(START, n, &format!("noise{n}")));
        if n % 100 == 0 {
            busiest.record(&failed(START, u32::MAX, "victim"));
        }
    }
    let report = busiest.report(usize::MAX);
    assert!(report.users.len() <= 512 && report.addresses.len() <= 512);
    let id = hasher().hash("victim");
    let victim = report.users.iter().find(|user| *user.id == *id).unwrap();
    assert!(victim.failures <= 1_000, "{victim:?}");
    assert!(victim.guesses() + victim.uncertain >= 1_000, "{victim:?}");
    assert!(victim.uncertain <= 101_000 / 256, "{victim:?}");
}

#[test]
fn reports_of_processes_add_up() {
    let mut processes = [Busiest::new(hasher()), Busiest::new(hasher())];
    let mut alone = Busiest::new(hasher());
    for n in 0..1_000_u32 {
        let event = failed(START, n % 7, &format!("user{}", n % 5));
        processes[(n % 2) as usize].record(&event);
        alone.record(&event);
    }
    let [one, other] = processes.map(|process| process.report(usize::MAX));
    assert_eq!(one.clone().merge(other.clone()), alone.report(usize::MAX));
    // What one list leaves out, the other does not make certain.
    let merged = one.clone().first(1).merge(other.first(1));
    let (least, truth) = (&merged.addresses[0], &alone.report(1).addresses[0]);
    assert!(least.guesses() + least.uncertain >= truth.guesses());
    #[cfg(feature = "serde")]
    {
        let json = serde_json::to_string(&one).unwrap();
        assert_eq!(serde_json::from_str::<BusiestReport>(&json).unwrap(), one);
        assert!(!json.contains("user1"), "{json}");
    }
}

fn signals_of(signals: &mut Signals, events: impl Iterator<Item = Event>) -> Vec<What> {
    let found = events.flat_map(|event| signals.record(&event));
    found.map(|event| event.what).collect()
}

#[test]
fn one_address_at_many_users_is_one_signal_until_it_has_stopped() {
    let mut signals = Signals::new();
    let spray = |start: Millis, users: u32| {
        (0..users).map(move |n| failed(start + Millis::from(n) * 1_000, 1, &format!("user{n}")))
    };
    // Many failures of few users are no spraying, nor are successes of many.
    let office = (0..5_000).map(|n| failed(START, 1, &format!("clerk{}", n % 8)));
    assert!(signals_of(&mut signals, office).is_empty());
    let office = (0..500).map(|n| settled(Outcome::Success, START, 1, &n.to_string()));
    assert!(signals_of(&mut signals, office).is_empty());

    let found = signals_of(&mut signals, spray(START, 400));
    let [What::Signal(Signal::ManyUsers { users })] = found[..] else {
        panic!("{found:?}");
    };
    assert!((25..=40).contains(&users), "{users}");
    // It goes on for an hour: nothing new. A day later it is.
    for tens in 1..6 {
        let found = signals_of(&mut signals, spray(START + tens * 10 * MINUTE, 400));
        assert!(found.is_empty(), "{found:?}");
    }
    assert_eq!(signals_of(&mut signals, spray(START + DAY, 400)).len(), 1);
}

#[test]
fn a_botnet_at_one_account_is_a_signal_with_its_user() {
    let mut signals = Signals::new();
    let mut found = Vec::new();
    for n in 0..500 {
        found.extend(signals.record(&failed(START + Millis::from(n), n, "alice")));
        found.extend(signals.record(&failed(START, n + 10_000, &format!("other{n}"))));
    }
    assert_eq!(found.len(), 1);
    assert_eq!(found[0].user.as_ref().unwrap().identified(), Some("alice"));
    assert!(found[0].address.is_none());
    assert!(matches!(
        found[0].what,
        What::Signal(Signal::ManyAddresses { addresses: 25..=40 })
    ));
}

#[test]
fn noise_hides_neither_attack_nor_takes_memory() {
    let mut signals = Signals::new().with_many_users(50);
    let mut found = 0;
    for n in 0..50_000_u32 {
        signals.record(&failed(START, n, &format!("noise{n}")));
        if n % 100 == 0 {
            found += signals
                .record(&failed(START, u32::MAX, &format!("target{n}")))
                .len();
        }
    }
    assert_eq!(found, 1);
}

#[test]
fn far_more_failures_than_usual_are_one_signal_and_slow_growth_is_none() {
    let mut signals = Signals::new();
    let mut found = Vec::new();
    let mut minute = |found: &mut Vec<(Millis, What)>, minute: Millis, failures: u64| {
        for n in 0..failures {
            let at = START + minute * MINUTE + n;
            let event = failed(
                at,
                u32::try_from(n).unwrap() + 1_000,
                &format!("u{minute}.{n}"),
            );
            let rates = signals.record(&event).into_iter().map(|event| event.what);
            found.extend(rates.map(|what| (minute, what)));
        }
    };
    let rates = |found: &[(Millis, What)]| -> Vec<Millis> {
        let is_rate = |what: &What| matches!(what, What::Signal(Signal::FailureRate { .. }));
        let rates = found.iter().filter(|(_, what)| is_rate(what));
        rates.map(|(minute, _)| *minute).collect()
    };
    // A day as usual, with a peak in the morning.
    (0..1_440).for_each(|m| minute(&mut found, m, if m % 720 < 60 { 60 } else { 20 }));
    assert!(rates(&found).is_empty());
    // Four hours of attack, an hour of quiet, another attack.
    (1_440..1_680).for_each(|m| minute(&mut found, m, 400));
    let began = rates(&found);
    assert!(matches!(began[..], [1_441..=1_445]), "{began:?}");
    (1_680..1_740).for_each(|m| minute(&mut found, m, 20));
    (1_740..1_800).for_each(|m| minute(&mut found, m, 400));
    let began = rates(&found);
    assert!(matches!(began[..], [_, 1_741..=1_745]), "{began:?}");
}

#[test]
fn the_first_hour_of_a_new_site_is_no_attack() {
    let mut signals = Signals::new();
    for n in 0..59 * 500 {
        let at = START + n * MINUTE / 500;
        let found = signals.record(&failed(at, u32::try_from(n).unwrap(), &n.to_string()));
        assert!(found.is_empty(), "{found:?}");
    }
}

fn row(wrong: &WrongBlocks, rule: &str, day: u64) -> (u64, u64, u64) {
    let mut rows = wrong.table().rows();
    let found = rows.find(|row| *row.rule == *rule && row.day == (START / DAY) + day);
    found.map_or((0, 0, 0), |row| (row.blocks, row.wrong, row.stopped))
}

#[test]
fn a_block_is_wrong_if_its_own_user_logs_in_from_there_or_an_operator_lifts_it() {
    let mut wrong = WrongBlocks::new(hasher());
    let mut by = Vec::new();
    let mut record = |event: Event| {
        for event in wrong.record(&event) {
            let What::WrongBlock { by: found, .. } = event.what else {
                panic!("{event:?}");
            };
            by.push(found);
        }
    };
    let operator = || LiftedBy::Operator {
        author: "bob".into(),
        reason: "phoned".into(),
    };
    for user in ["alice", "other-user", "elsewhere", "late", "phoned", "over"] {
        record(began(START, 1, user));
        record(refused(START + 1, 1, user, false));
        record(refused(START + 1, 1, user, true));
    }
    // Twice: a block is wrong once.
    record(settled(Outcome::Success, START + DAY + 5, 1, "alice"));
    record(settled(Outcome::Success, START + DAY + 6, 1, "alice"));
    record(settled(Outcome::Success, START + DAY, 1, "someone"));
    record(settled(Outcome::Success, START + DAY, 2, "elsewhere"));
    record(settled(Outcome::Success, START + 2 * DAY + 1, 1, "late"));
    record(settled(Outcome::MfaPending, START + DAY, 1, "other-user"));
    record(lifted(START + 9, 1, "phoned", operator()));
    record(lifted(START + 9, 1, "phoned", operator()));
    record(settled(Outcome::Success, START + 10, 1, "phoned"));
    record(lifted(START + DAY, 1, "over", LiftedBy::Time));
    assert_eq!(by, [WrongBy::Success, WrongBy::Operator]);
    assert_eq!(row(&wrong, "user-address", 0), (6, 2, 0));
    assert_eq!(row(&wrong, "address", 0), (0, 0, 6));
    assert_eq!(row(&wrong, "user-address", 1), (0, 0, 0));
}

#[test]
fn a_flood_of_blocks_is_bounded_and_the_table_has_thirty_days() {
    let mut wrong = WrongBlocks::new(hasher());
    for n in 0..40_000 {
        wrong.record(&began(START + Millis::from(n), n, "user"));
    }
    // The newest are still watched, the oldest no longer.
    assert_eq!(
        wrong
            .record(&settled(Outcome::Success, START + DAY, 39_999, "user"))
            .len(),
        1
    );
    assert_eq!(
        wrong
            .record(&settled(Outcome::Success, START + DAY, 0, "user"))
            .len(),
        0
    );
    assert_eq!(row(&wrong, "user-address", 0).0, 40_000);
    for day in 0..100 {
        wrong.record(&began(START + day * DAY, 1, "user"));
    }
    assert_eq!(wrong.table().rows().count(), 30);
    assert_eq!(row(&wrong, "user-address", 99).0, 1);
}

#[test]
fn tables_of_processes_add_up() {
    let mut processes = [WrongBlocks::new(hasher()), WrongBlocks::new(hasher())];
    for n in 0..10 {
        processes[n % 2].record(&began(START + DAY * (n as u64 / 4), 1, &n.to_string()));
    }
    let [one, other] = processes.map(|process| process.table().clone());
    let merged = one.clone().merge(&other);
    let blocks: Vec<_> = merged.rows().map(|row| row.blocks).collect();
    assert_eq!(blocks, [4, 4, 2]);
    #[cfg(feature = "serde")]
    {
        let json = serde_json::to_string(&merged).unwrap();
        assert_eq!(
            serde_json::from_str::<WrongBlockTable>(&json).unwrap(),
            merged
        );
    }
}

#[cfg(feature = "serde")]
#[test]
fn recorded_events_add_up_as_live_ones_did() {
    let display = UserDisplay::Hashed(hasher());
    let user = |name: &str| EventUser::new(name, name, &display);
    let live = [
        began(START, 1, "alice").with_user(user("alice")),
        refused(START + 1, 1, "alice", false).with_user(user("alice")),
        settled(Outcome::Success, START + DAY, 1, "alice").with_user(user("alice")),
    ];
    let mut wrong = [WrongBlocks::new(hasher()), WrongBlocks::new(hasher())];
    let mut busiest = [Busiest::new(hasher()), Busiest::new(hasher())];
    for event in live {
        let json = event.to_json();
        let recorded: Event = serde_json::from_str(&json).unwrap();
        for (i, event) in [&event, &recorded].into_iter().enumerate() {
            wrong[i].record(event);
            busiest[i].record(event);
        }
    }
    assert_eq!(wrong[0].table(), wrong[1].table());
    assert_eq!(row(&wrong[1], "user-address", 0), (1, 1, 0));
    assert_eq!(busiest[0].report(9), busiest[1].report(9));
}

#[test]
fn a_long_silence_is_passed_at_once() {
    let mut signals = Signals::new();
    signals.record(&failed(START, 1, "alice"));
    let later =
        START + Millis::try_from(Duration::from_secs(u64::from(u32::MAX)).as_millis()).unwrap();
    assert!(signals.record(&failed(later, 1, "alice")).is_empty());
}

/// Masked users look alike, and a sealed one looks like many.
#[test]
fn recorded_users_that_can_not_be_told_apart_are_no_attack() {
    let mut signals = Signals::new();
    for n in 0..500 {
        let masked = EventUser::from_shown("a***");
        let from_all_over = failed(START, n, "").with_user(masked);
        assert!(signals.record(&from_all_over).is_empty());
        let sealed = EventUser::from_shown(&format!("sealed:{n}"));
        let one_person = failed(START, u32::MAX, "").with_user(sealed);
        assert!(signals.record(&one_person).is_empty());
    }
    let hashed = |n: u32| EventUser::from_shown(&format!("hash:{n:016x}"));
    let found = (0..500).flat_map(|n| signals.record(&failed(START, 7, "").with_user(hashed(n))));
    assert_eq!(found.count(), 1);
}
