//! What is special about the memory store: its bound.

use std::{net::IpAddr, sync::Arc, time::Duration};

use tower_login_rate_limit::{
    LoginLimiter, Outcome, Policy, ReserveError, Rule,
    clock::ManualClock,
    store::{MemoryStore, Store, StoreErrorKind},
};

use crate::support::{DAY, START, attempt, fail, ip};

fn limited_to(counters: usize) -> (Arc<MemoryStore>, Arc<ManualClock>, LoginLimiter) {
    let clock = Arc::new(ManualClock::at(START));
    let store = Arc::new(MemoryStore::with_capacity(counters).with_clock(Arc::clone(&clock)));
    let shared = Arc::clone(&store) as Arc<dyn Store>;
    (
        store,
        clock,
        LoginLimiter::with_shared_store(Policy::default(), shared),
    )
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
        match limiter.reserve((address(i), "anybody")).await {
            Ok(attempt) => limiter.settle(&attempt, Outcome::Failure).await.unwrap(),
            Err(ReserveError::Store(error)) => {
                assert_eq!(error.kind(), StoreErrorKind::Full);
                assert!(error.to_string().contains("larger capacity"), "{error}");
                full += 1;
            }
            Err(ReserveError::Refused(refusal)) => panic!("{refusal}"),
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
    // The pairs have run out; the addresses could still be blocked for a week.
    assert_eq!(store.len(), 50 + 2);
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
