//! What is special about the memory store: its bound.

use std::{net::IpAddr, sync::Arc, time::Duration};

use tower_login_rate_limit::{
    KnownAddresses, Limit, LoginLimiter, Outcome, Part, Period, Policy, ReserveError, Rule, Token,
    clock::{Clock, ManualClock},
    store::{Key, KnownAddress, MemoryStore, Settlement, Slot, Store, StoreErrorKind},
};

use crate::support::{DAY, START, attempt, fail, ip};

fn limited_to(counters: usize) -> (Arc<MemoryStore>, Arc<ManualClock>, LoginLimiter) {
    let clock = Arc::new(ManualClock::at(START));
    let store = Arc::new(MemoryStore::with_capacity(counters).with_clock(Arc::clone(&clock)));
    let shared = Arc::clone(&store) as Arc<dyn Store>;
    (store, clock, LoginLimiter::new(Policy::default(), shared))
}

fn address(i: u32) -> IpAddr {
    IpAddr::from(i.to_be_bytes())
}

#[tokio::test]
async fn a_flood_can_neither_grow_it_nor_wash_away_what_is_there() {
    let (store, _, limiter) = limited_to(1_000);
    fail(&limiter, ip("192.0.2.1"), "victim", 4).await;

    let mut full = 0;
    for i in 0..10_000 {
        // From everywhere: a network of its own each.
        match limiter.reserve((address(i << 8), "anybody")).await {
            Ok(attempt) => attempt.settle(Outcome::Failure).await.unwrap(),
            Err(ReserveError::Store(error)) => {
                assert_eq!(error.kind(), StoreErrorKind::Full);
                assert!(error.to_string().contains("larger capacity"), "{error}");
                full += 1;
            }
            Err(error) => panic!("{error:?}"),
        }
        assert!(store.len() <= 1_000);
    }
    assert_eq!(
        full,
        10_000 - 499,
        "all that was left was used, and no more"
    );

    // Those who are there are decided as ever, and what is half new is written nowhere.
    let report = limiter.check((ip("192.0.2.1"), "victim")).await.unwrap();
    assert_eq!(report.rule(Rule::USER_ADDRESS).unwrap().usage, 4);
    assert!(limiter.reserve((ip("192.0.2.1"), "new")).await.is_err());
    assert_eq!(
        limiter
            .check(ip("192.0.2.1"))
            .await
            .unwrap()
            .rule(Rule::ADDRESS)
            .unwrap()
            .usage,
        4
    );
    fail(&limiter, ip("192.0.2.1"), "victim", 1).await;
    assert!(
        attempt(&limiter, ip("192.0.2.1"), "victim", Outcome::Success)
            .await
            .is_err()
    );
}

/// New names and new addresses, ten times as many as there is room for, all of one network.
#[tokio::test]
async fn a_flood_from_one_network_leaves_room_for_people_elsewhere() {
    const CAPACITY: usize = 20_000;
    let ipv4: fn(u32) -> IpAddr = |i| IpAddr::from([203, 0, 113, i as u8]);
    let ipv6: fn(u32) -> IpAddr = |i| IpAddr::from([0x2001, 0xdb8, 7, i as u16, 0, 0, 0, 1]);
    // Without a rule that would stop the flood by itself.
    let rule = |name, parts: &[Part], limit| {
        let limit = Limit::attempts(limit).within(Period::hours(24));
        Rule::new(name, parts.to_vec(), limit).unwrap()
    };
    let policy = Policy::new([
        rule(Rule::ADDRESS, &[Part::Address], 100_000),
        rule(Rule::USER_ADDRESS, &[Part::Address, Part::User], 5),
        rule(Rule::ACCOUNT, &[Part::User], 1_000),
    ])
    .unwrap();
    for flooding in [ipv4, ipv6] {
        let store = Arc::new(MemoryStore::with_capacity(CAPACITY));
        let shared = Arc::clone(&store) as Arc<dyn Store>;
        let limiter = LoginLimiter::new(policy.clone(), shared);
        fail(&limiter, ip("192.0.2.1"), "victim", 4).await;
        let mut full = 0;
        for i in 0..10 * CAPACITY as u32 {
            let name = format!("name {i}");
            match limiter.reserve((flooding(i), name)).await {
                Ok(attempt) => attempt.settle(Outcome::Failure).await.unwrap(),
                Err(_) => full += 1,
            }
        }
        assert!(full > 9 * CAPACITY && store.len() <= CAPACITY);

        // A few may have the same share as the network.
        let mut logged_in = 0;
        for i in 0..100 {
            let (newcomer, name) = (address(0x0b00_0000 + (i << 8)), format!("newcomer {i}"));
            let guess = async |outcome| match limiter.reserve((newcomer, &*name)).await {
                Ok(attempt) => attempt.settle(outcome).await.is_ok(),
                Err(_) => false,
            };
            let typo = guess(Outcome::Failure).await;
            logged_in += u32::from(typo && guess(Outcome::Success).await);
            let mut guesses = 0;
            for _ in 0..20 {
                guesses += u32::from(guess(Outcome::Failure).await);
            }
            assert!(guesses <= 5);
        }
        assert!(logged_in >= 90, "{logged_in} of 100 newcomers");
        // And nothing was forgotten.
        let report = limiter.check((ip("192.0.2.1"), "victim")).await.unwrap();
        assert_eq!(report.rule(Rule::USER_ADDRESS).unwrap().usage, 4);
        fail(&limiter, ip("192.0.2.1"), "victim", 1).await;
        let refused = attempt(&limiter, ip("192.0.2.1"), "victim", Outcome::Success).await;
        assert_eq!(refused.unwrap_err().rule(), Rule::USER_ADDRESS);
    }
}

#[tokio::test]
async fn there_is_room_again_when_counters_run_out() {
    let (store, clock, limiter) = limited_to(100);
    for i in 0..50 {
        fail(&limiter, address(i), "user", 1).await;
    }
    assert_eq!(store.len(), 100);
    assert!(limiter.reserve(ip("192.0.2.1")).await.is_err());
    clock.advance(Duration::from_millis(DAY));
    clock.advance(Duration::from_secs(30));
    fail(&limiter, ip("192.0.2.1"), "user", 1).await;
    // One failure counts for a day, whatever a block would last.
    assert_eq!(store.len(), 2);
}

#[tokio::test]
async fn it_does_not_grow_with_what_has_run_out() {
    let (store, clock, limiter) = limited_to(usize::MAX);
    let mut most = 0;
    for week in 0..40 {
        for i in 0..5_000 {
            fail(&limiter, address(week * 5_000 + i), "user", 1).await;
        }
        most = most.max(store.len());
        clock.advance(Duration::from_millis(8 * DAY));
    }
    // A week's worth is 10,000 counters; a table is searched when it would have to grow, and grows
    // by doubling.
    assert!(most <= 4 * 10_000, "{most} counters were held");
}

#[tokio::test]
async fn what_went_well_leaves_nothing_behind() {
    let (store, _, limiter) = limited_to(10);
    for i in 0..1_000 {
        attempt(&limiter, address(i), "user", Outcome::Success)
            .await
            .unwrap();
        attempt(&limiter, address(i), "user", Outcome::MfaPending)
            .await
            .unwrap();
        attempt(&limiter, address(i), "user", Outcome::NotAnAttempt)
            .await
            .unwrap();
    }
    assert!(store.is_empty());
}

#[tokio::test]
async fn a_block_that_a_new_policy_made_longer_outlives_the_search_for_room() {
    for block in [Period::days(300), Period::Forever] {
        let (store, clock, finite) = limited_to(100);
        let limit = Limit::attempts(5)
            .within(Period::hours(24))
            .blocked_for(block);
        let longer = Policy::default().with_user_address_limit(limit).unwrap();
        let longer = LoginLimiter::new(longer, Arc::clone(&store));
        fail(&finite, ip("192.0.2.1"), "user", 5).await;
        attempt(&longer, ip("192.0.2.1"), "user", Outcome::Success)
            .await
            .unwrap_err();
        clock.advance(Duration::from_millis(200 * DAY));
        for i in 0..200 {
            let _ = attempt_anyhow(&finite, address(i)).await;
        }
        assert!(store.len() <= 100);
        let refusal = longer
            .check((ip("192.0.2.1"), "user"))
            .await
            .unwrap()
            .refusal();
        assert!(refusal.is_some(), "the block was dropped");
    }
}

async fn attempt_anyhow(limiter: &LoginLimiter, address: IpAddr) -> Result<(), ReserveError> {
    let attempt = limiter.reserve((address, "anybody")).await?;
    attempt.settle(Outcome::Failure).await?;
    Ok(())
}

/// Any clock will do, at its end too.
#[tokio::test]
async fn a_clock_at_its_end_admits_nothing_extra() {
    let clock = Arc::new(ManualClock::at(u64::MAX - 10));
    let store = MemoryStore::new().with_clock(Arc::clone(&clock));
    let limiter = LoginLimiter::new(Policy::default(), store);
    let mut admitted = 0;
    for _ in 0..50 {
        admitted += u32::from(
            attempt(&limiter, ip("192.0.2.1"), "user", Outcome::Failure)
                .await
                .is_ok(),
        );
        clock.advance(Duration::from_millis(1));
    }
    assert_eq!((admitted, clock.now()), (5, u64::MAX));
}

/// Counters of one attempt that are under two locks, taken crosswise by many threads.
#[test]
fn attempts_under_two_locks_do_not_wait_for_each_other() {
    let by_user = |name: &str| {
        Rule::new(
            name,
            [Part::User],
            Limit::attempts(100_000).within(Period::hours(1)),
        )
        .unwrap()
    };
    let policy = Policy::new([by_user("one"), by_user("other")]).unwrap();
    let limiter = LoginLimiter::new(policy, MemoryStore::new());
    std::thread::scope(|scope| {
        for thread in 0..4 {
            let limiter = limiter.clone();
            scope.spawn(move || {
                let runtime = tokio::runtime::Builder::new_current_thread()
                    .build()
                    .unwrap();
                runtime.block_on(async {
                    for i in 0..20_000 {
                        let user = format!("user {}", (i * 7 + thread) % 50);
                        attempt(&limiter, ip("192.0.2.1"), &user, Outcome::Failure)
                            .await
                            .unwrap();
                    }
                });
            });
        }
    });
}

/// A block for ever that a new policy gives an end no longer takes room for ever.
#[tokio::test]
async fn a_block_that_was_given_an_end_makes_room_after_it() {
    let clock = Arc::new(ManualClock::at(START));
    let store = MemoryStore::with_capacity(1).with_clock(Arc::clone(&clock));
    let limit = |block| {
        let limit = Limit::attempts(1).within(Period::seconds(60));
        limit.blocked_for(block).build().unwrap()
    };
    let (for_ever, a_minute) = (limit(Period::Forever), limit(Period::seconds(60)));
    let key = |name: &'static str| Key::of_subject("test", name.as_bytes());
    let reserve =
        |name, limit| store.reserve(Token::new(), Duration::ZERO, &[Slot::new(key(name), limit)]);

    assert!(reserve("one", &for_ever).await.unwrap().admitted());
    assert!(!reserve("one", &for_ever).await.unwrap().admitted());
    assert!(reserve("another", &a_minute).await.is_err());
    assert!(!reserve("one", &a_minute).await.unwrap().admitted());
    clock.advance(Duration::from_secs(120));
    assert!(reserve("another", &a_minute).await.unwrap().admitted());
}

/// A store may be asked for one counter twice, with and without an exception. It takes the room of one.
#[tokio::test]
async fn a_counter_that_is_asked_for_twice_takes_its_room_once() {
    let store = MemoryStore::with_capacity(2);
    let limit = Limit::attempts(5).within(Period::hours(1)).build().unwrap();
    let (home, keep) = ("192.0.2.1".parse().unwrap(), KnownAddresses::default());
    let counter = || Slot::new(Key::of_subject("account", &b"user"[..]), &limit);
    let exempt = || counter().unless_known(KnownAddress::new("homes", home, keep));
    // Which takes room too.
    let homes = Key::of_subject("homes", &b"user"[..]);
    store.remember(&homes, home, keep).await.unwrap();
    for slots in [
        [exempt(), counter()],
        [counter(), exempt()],
        [counter(), counter()],
    ] {
        for _ in 0..2 {
            let token = Token::new();
            let lease = Duration::from_secs(30);
            let standings = store.reserve(token, lease, &slots).await.unwrap();
            assert!(standings.admitted());
            assert_eq!(store.len(), 2);
            store
                .settle(&[token], Settlement::Canceled, &slots, Duration::ZERO)
                .await
                .unwrap();
            assert_eq!(store.len(), 1);
        }
    }
}
