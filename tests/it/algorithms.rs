//! Every algorithm by its examples, on both stores.

use std::{sync::Arc, time::Duration};

use tower_login_rate_limit::{
    __private::{Counter, Spelling},
    KeyLimiter, Limit, LoginLimiter, Outcome, Part, Period, Policy, ReserveError, Rule, Token,
    algorithm::{Standing, State},
    clock::Clock,
    store::{Key, MemoryStore, Settlement, Slot, Store},
};

use crate::support::{
    BothStores, DAY, HOUR, MINUTE, RedisServer, SECOND, attempt, clean_up, fail, ip, refused,
};

const HOME: &str = "192.0.2.1";

fn millis(period: Period) -> u64 {
    period
        .as_duration()
        .expect("not for ever")
        .as_millis()
        .try_into()
        .expect("not that long")
}

/// Counts so many attempts at once, each of which must be admitted.
async fn count(store: &Arc<dyn Store>, limit: &Limit, times: u32) {
    for i in 0..times {
        assert!(once(store, limit).await.1, "attempt {}", i + 1);
    }
}

/// Counts one attempt, if it is admitted.
async fn once(store: &Arc<dyn Store>, limit: &Limit) -> (Standing, bool) {
    let slots = [Slot::new(Key::of_subject("test", &b"key"[..]), limit)];
    let standings = store.reserve(Token::new(), Duration::ZERO, &slots);
    let standings = standings.await.expect("decided");
    (standings[0], standings.admitted())
}

async fn check(store: &Arc<dyn Store>, limit: &Limit) -> Standing {
    let slots = [Slot::new(Key::of_subject("test", &b"key"[..]), limit)];
    store.check(&slots).await.expect("checked")[0]
}

/// Limit 10, 9 in the minute before and 5 in this one: too much after a quarter of it, and not after
/// half.
#[tokio::test]
async fn a_sliding_counter_weighs_the_window_before() {
    let both = BothStores::start().await;
    let words = |limit| {
        let words = Limit::attempts(limit).within(Period::minutes(1));
        words.as_sliding_counter().build().unwrap()
    };
    let (ten, hundred) = (words(10), words(100));
    let a_minute = both.clock.now() / MINUTE * MINUTE + MINUTE;
    for (name, store) in both.stores() {
        both.clock.set(a_minute);
        count(&store, &hundred, 9).await;
        both.clock.set(a_minute + MINUTE);
        count(&store, &hundred, 5).await;

        both.clock.set(a_minute + MINUTE + 15 * SECOND);
        let (standing, admitted) = once(&store, &ten).await;
        assert_eq!((standing.rate(), admitted), (11.75, false), "{name}");
        // It falls below 10 when less than 5 of the 9 weigh.
        let State::Blocked { lifts } = standing.state else {
            panic!("{name}: {standing:?}");
        };
        assert_eq!(millis(lifts), 26_667 - 15_000, "{name}");

        both.clock.set(a_minute + MINUTE + 30 * SECOND);
        let standing = check(&store, &ten).await;
        assert_eq!((standing.rate(), standing.remaining()), (9.5, 1), "{name}");
        assert!(once(&store, &ten).await.1, "{name}");
        assert!(!once(&store, &ten).await.1, "{name}");
    }
}

/// 1, 2, 4, 8, 16, 30, 60, 180 and 300 seconds, and 300 from then on.
#[tokio::test]
async fn a_backoff_waits_step_by_step() {
    let both = BothStores::start().await;
    let policy = Policy::new([Rule::new(
        Rule::USER_ADDRESS,
        [Part::User, Part::Address],
        Limit::default_backoff(),
    )
    .unwrap()])
    .unwrap();
    for (name, limiter) in both.limiters(&policy) {
        let reserve = || limiter.reserve((ip(HOME), "user"));
        for seconds in [1, 2, 4, 8, 16, 30, 60, 180, 300, 300, 300] {
            fail(&limiter, ip(HOME), "user", 1).await;
            let refusal = refused(reserve().await);
            assert_eq!(refusal.lifts(), Period::seconds(seconds), "{name}");
            both.clock
                .advance(Duration::from_millis(u64::from(seconds) * SECOND - 1));
            assert_eq!(millis(refused(reserve().await).lifts()), 1, "{name}");
            both.clock.advance(Duration::from_millis(1));
        }
        // One at a time: had the one in flight failed, the other would have to wait.
        let attempt = reserve().await.unwrap();
        assert_eq!(
            refused(reserve().await).reason(),
            tower_login_rate_limit::Reason::Busy
        );
        attempt.settle(Outcome::Success).await.unwrap();

        fail(&limiter, ip(HOME), "user", 1).await;
        let refusal = refused(reserve().await);
        assert_eq!(refusal.lifts(), Period::seconds(1), "{name}: begins anew");
        // And by itself after a day.
        both.clock.advance(Duration::from_millis(DAY));
        fail(&limiter, ip(HOME), "user", 1).await;
        assert_eq!(refused(reserve().await).lifts(), Period::seconds(1));
        both.clock.advance(Duration::from_millis(DAY));
    }
}

#[tokio::test]
async fn failures_that_cost_no_wait_may_come_together() {
    let both = BothStores::start().await;
    let waits = [0, 0, 10, 60].map(Duration::from_secs);
    let limit = Limit::backoff(waits).build().unwrap();
    for (name, store) in both.stores() {
        let standing = check(&store, &limit).await;
        assert_eq!((standing.limit, standing.remaining()), (3, 3), "{name}");
        count(&store, &limit, 3).await;
        let lifts = Period::seconds(10);
        let (standing, _) = once(&store, &limit).await;
        assert_eq!(standing.state, State::Blocked { lifts }, "{name}");
    }
}

#[tokio::test]
async fn jitter_makes_waits_shorter_and_longer_within_its_bounds() {
    let both = BothStores::start().await;
    let limit = Limit::backoff([Duration::from_secs(100)]).with_jitter(20);
    for (name, store) in both.stores() {
        let codes = KeyLimiter::new("code", limit.clone(), store).unwrap();
        let mut waits = Vec::new();
        for i in 0..100 {
            let key = i.to_string();
            codes.reserve(&key).await.unwrap();
            waits.push(millis(refused(codes.reserve(&key).await).lifts()));
        }
        let (least, most) = (waits.iter().min().unwrap(), waits.iter().max().unwrap());
        assert!((80_000..95_000).contains(least), "{name}: {least}");
        assert!((105_000..=120_000).contains(most), "{name}: {most}");
    }
}

/// 999 callers at once, one bucket of 3 that takes 100 seconds to fill.
#[tokio::test(flavor = "multi_thread")]
async fn a_bucket_of_three_admits_three_of_999() {
    let redis = RedisServer::start();
    let stores: [(_, Arc<dyn Store>); 2] = [
        ("memory", Arc::new(MemoryStore::new())),
        ("redis", Arc::new(redis.store().await)),
    ];
    for (name, store) in stores {
        let limit = Limit::attempts(3).within(Period::seconds(100));
        let codes = KeyLimiter::new("code", limit.as_token_bucket(), store).unwrap();
        let callers: Vec<_> = (0..999)
            .map(|_| {
                let codes = codes.clone();
                tokio::spawn(async move { codes.reserve("somebody").await })
            })
            .collect();
        let mut admitted = 0;
        for caller in callers {
            match caller.await.unwrap() {
                Ok(_) => admitted += 1,
                Err(ReserveError::Refused(_)) => {}
                Err(error) => panic!("{error:?}"),
            }
        }
        assert_eq!(admitted, 3, "{name}");
    }
}

/// 30 in 30 minutes: after 28 in minute 1 and one in minute 29, the 28 are over at minute 31. A
/// counter whose end is put off by each attempt would still hold them.
#[tokio::test]
async fn time_is_counted_continuously() {
    let both = BothStores::start().await;
    let words = || Limit::attempts(30).within(Period::minutes(30));
    let window = words().build().unwrap();
    let bucket = words().as_token_bucket().build().unwrap();
    let start = both.clock.now();
    for (name, store) in both.stores() {
        for (limit, free) in [(&window, [2, 2, 1, 29]), (&bucket, [2, 30, 29, 30])] {
            let free_now = async || check(&store, limit).await.remaining();
            both.clock.set(start + MINUTE);
            count(&store, limit, 28).await;
            assert_eq!(free_now().await, free[0], "{name}");
            both.clock.set(start + 29 * MINUTE);
            assert_eq!(free_now().await, free[1], "{name}");
            count(&store, limit, 1).await;
            assert_eq!(free_now().await, free[2], "{name}");
            both.clock.set(start + 31 * MINUTE);
            assert_eq!(free_now().await, free[3], "{name}");
            let slot = Slot::new(Key::of_subject("test", &b"key"[..]), limit);
            clean_up(&store, &[], &[slot], &[]).await.unwrap();
        }
    }
}

#[tokio::test]
async fn a_bucket_refills_evenly_and_locks_when_it_is_empty() {
    let both = BothStores::start().await;
    let words = Limit::attempts(30)
        .within(Period::minutes(30))
        .as_token_bucket();
    let limit = words.blocked_for(Period::minutes(30)).build().unwrap();
    let start = both.clock.now();
    for (name, store) in both.stores() {
        both.clock.set(start);
        count(&store, &limit, 29).await;
        both.clock.set(start + MINUTE - 1);
        let standing = check(&store, &limit).await;
        assert_eq!(standing.remaining(), 1, "{name}: no token before its time");
        assert_eq!((standing.usage, standing.rate()), (29, 28.0), "{name}");
        both.clock.set(start + MINUTE);
        assert_eq!(check(&store, &limit).await.remaining(), 2, "{name}");
        count(&store, &limit, 2).await;

        let lifts = Period::minutes(30);
        let (standing, _) = once(&store, &limit).await;
        assert_eq!(standing.state, State::Blocked { lifts }, "{name}");
        // One token has come back, but it is locked.
        both.clock.set(start + 31 * MINUTE - 1);
        let standing = check(&store, &limit).await;
        assert!(standing.refuses() && standing.usage < 30, "{name}");
        both.clock.set(start + 31 * MINUTE);
        assert_eq!(check(&store, &limit).await.remaining(), 30, "{name}");
    }
}

/// In milliseconds, more than one token comes back at a time.
#[test]
fn a_bucket_may_refill_faster_than_the_clock_ticks() {
    let words = Limit::attempts(20).within(Duration::from_millis(7));
    let limit = words.as_token_bucket().build().unwrap();
    let mut counter = Counter::default();
    for _ in 0..20 {
        counter.admit(&limit, Token::new(), Spelling::NORMAL, 0, 1_000);
    }
    let remaining = |now| counter.standing(&limit, now).remaining();
    assert_eq!(
        (1_000..1_008).map(remaining).collect::<Vec<_>>(),
        [0, 2, 5, 8, 11, 14, 17, 20]
    );
}

#[tokio::test]
async fn blocks_that_come_again_too_soon_grow() {
    let mut both = BothStores::start().await;
    both.redis.keys_may_live(None);
    let words = || {
        let words = Limit::attempts(3).within(Period::hours(1));
        let words = words
            .blocked_for(Period::hours(24))
            .then_for(Period::days(7));
        words
            .then_for(Period::Forever)
            .again_within(Period::days(30))
    };
    let limits = [
        ("window", words()),
        ("bucket", words().as_token_bucket()),
        ("counter", words().as_sliding_counter()),
    ];
    let start = both.clock.now();
    for (algorithm, words) in limits {
        let limit = words.build().unwrap();
        for (name, store) in both.stores() {
            both.clock.set(start);
            let blocked_for = async || {
                count(&store, &limit, 3).await;
                match once(&store, &limit).await.0.state {
                    State::Blocked { lifts } => lifts,
                    state => panic!("{algorithm} {name}: {state:?}"),
                }
            };
            assert_eq!(blocked_for().await, Period::hours(24), "{algorithm} {name}");
            both.clock.advance(Duration::from_millis(DAY + 29 * DAY));
            assert_eq!(blocked_for().await, Period::days(7), "{algorithm} {name}");
            // 30 days of quiet after the end, and it begins anew.
            both.clock.advance(Duration::from_millis(37 * DAY));
            assert_eq!(blocked_for().await, Period::hours(24), "{algorithm} {name}");
            both.clock.advance(Duration::from_millis(DAY + HOUR));
            assert_eq!(blocked_for().await, Period::days(7), "{algorithm} {name}");
            both.clock.advance(Duration::from_millis(8 * DAY));
            assert_eq!(blocked_for().await, Period::Forever, "{algorithm} {name}");

            // Unblocked is forgiven, the earlier blocks too.
            let slots = [Slot::new(Key::of_subject("test", &b"key"[..]), &limit)];
            clean_up(&store, &[], &slots, &[]).await.unwrap();
            assert_eq!(blocked_for().await, Period::hours(24), "{algorithm} {name}");
            clean_up(&store, &[], &slots, &[]).await.unwrap();
        }
    }
}

/// What the owner of an account takes back by logging in is their own, and an attacker who owns one
/// gains nothing for the next block of the address: not even with the failure that brought the block.
#[tokio::test]
async fn a_success_does_not_make_the_next_block_of_an_address_shorter() {
    let mut both = BothStores::start().await;
    both.redis.keys_may_live(None);
    let growing = || {
        let growing = Limit::attempts(6).within(Period::hours(1));
        let growing = growing.blocked_for(Period::hours(3));
        growing.then_for(Period::days(1)).then_for(Period::days(7))
    };
    let limits = [
        ("window", growing()),
        ("bucket", growing().as_token_bucket()),
        ("counter", growing().as_sliding_counter()),
    ];
    for (algorithm, limit) in limits {
        let policy = Policy::default()
            .with_address_limit(limit)
            .unwrap()
            .with_user_address_limit(Limit::attempts(3).within(Period::hours(1)))
            .unwrap();
        for (name, limiter) in both.limiters(&policy) {
            for round in [Period::hours(3), Period::days(1), Period::days(7)] {
                fail(&limiter, ip(HOME), "victim", 2).await;
                fail(&limiter, ip(HOME), "other", 2).await;
                both.clock.advance(Duration::from_millis(1));
                fail(&limiter, ip(HOME), "own", 2).await;
                let refusal = refused(limiter.reserve(ip(HOME)).await);
                assert_eq!(refusal.lifts(), round, "{algorithm} {name}");
                both.clock.advance(round.as_duration().unwrap());
                let own = attempt(&limiter, ip(HOME), "own", Outcome::Success).await;
                own.unwrap();
            }
            limiter.unblock(ip(HOME)).await.unwrap();
            both.clock.advance(Duration::from_millis(DAY));
        }
    }
}

/// Many in flight that all fail leave no more behind than failures one after the other, and being
/// refused does not cost more with each.
#[tokio::test]
async fn failures_are_folded_by_every_kind_of_next_call() {
    let both = BothStores::start().await;
    let words = || {
        let words = Limit::attempts(300).within(Period::days(3));
        words.blocked_for(Period::hours(3))
    };
    for words in [words().as_token_bucket(), words().as_sliding_counter()] {
        let limit = words.build().unwrap();
        let [_, (_, store)] = both.stores();
        let slots = [Slot::new(Key::of_subject("test", &b"key"[..]), &limit)];
        let held = || -> u64 {
            let (key, _) = both.redis.keys().remove(0);
            both.redis.command(&["ZCARD", &key])
        };
        let lease = Duration::from_secs(30);
        let tokens: Vec<_> = (0..300).map(|_| Token::new()).collect();
        for token in &tokens {
            store.reserve(*token, lease, &slots).await.unwrap();
        }
        // Half of them fail, and the others are left to their leases.
        for token in &tokens[..150] {
            store
                .settle(&[*token], Settlement::Failed, &slots, Duration::ZERO)
                .await
                .unwrap();
        }
        assert_eq!(held(), 150 + 8 + 1);
        both.clock.advance(lease);
        let (standing, _) = once(&store, &limit).await;
        assert!(matches!(standing.state, State::Blocked { .. }));
        assert_eq!(held(), 8 + 1);
        assert_eq!(check(&store, &limit).await, standing);
        both.redis.flush();
    }
}

/// Counters of every kind are decided together, all or nothing, in one round trip.
#[tokio::test]
async fn rules_of_every_kind_reserve_together() {
    let both = BothStores::start().await;
    let words = |limit| Limit::attempts(limit).within(Period::hours(1));
    let by_address = |name: &'static str, limit: Limit| {
        let parts = [Part::Address, Part::value(name)];
        Rule::new(name, parts, limit).unwrap()
    };
    let policy = Policy::default()
        .with_rule(by_address(
            "bucket",
            words(3).as_token_bucket().build().unwrap(),
        ))
        .with_rule(by_address(
            "counter",
            words(4).as_sliding_counter().build().unwrap(),
        ))
        .with_rule(by_address(
            "window",
            words(2).without_block().build().unwrap(),
        ))
        .with_rule(by_address(
            "waits",
            Limit::backoff([0, 0, 60].map(Duration::from_secs))
                .build()
                .unwrap(),
        ))
        // A short window beside the long one.
        .with_rule(
            Rule::new(
                "burst",
                [Part::User, Part::Address],
                words(2).without_block(),
            )
            .unwrap(),
        );
    for (name, limiter) in both.limiters(&policy) {
        let calls = || both.redis.calls_of("evalsha") + both.redis.calls_of("eval");
        let before = calls();
        fail(&limiter, ip(HOME), "user", 1).await;
        let expected = if name == "redis" { 2 } else { 0 };
        assert_eq!(
            calls() - before,
            expected,
            "one each to reserve and to settle"
        );
        fail(&limiter, ip(HOME), "user", 1).await;
        limiter.all_settled().await.unwrap();
        let before = calls();
        let refusal = refused(limiter.reserve((ip(HOME), "user")).await);
        assert_eq!(refusal.lifts(), Period::hours(1), "{name}");
        assert_eq!(calls() - before, expected / 2, "{name}");
        // The refused one is nowhere.
        let report = limiter.check((ip(HOME), "user")).await.unwrap();
        let usage: Vec<_> = report.iter().map(|(_, standing)| standing.usage).collect();
        assert_eq!(usage, [2; 7], "{name}");
        // The short window lets go before the long one, which still has 3.
        both.clock.advance(Duration::from_millis(HOUR));
        let report = limiter.check((ip(HOME), "user")).await.unwrap();
        assert_eq!(report.rule("burst").unwrap().usage, 0, "{name}");
        assert_eq!(report.rule(Rule::USER_ADDRESS).unwrap().usage, 2, "{name}");
        both.clock.advance(Duration::from_millis(HOUR));
        attempt(&limiter, ip(HOME), "user", Outcome::Success)
            .await
            .unwrap();
        let report = limiter.check((ip(HOME), "user")).await.unwrap();
        assert_eq!(report.remaining(), Some(2), "{name}: {report:?}");
        both.clock.advance(Duration::from_millis(DAY));
    }
}

/// A bucket and a counter keep the newest 8 one by one; older ones can't be told apart from others'.
#[tokio::test]
async fn what_is_taken_back_is_never_more_than_was_taken() {
    let both = BothStores::start().await;
    for counted in ["bucket", "counter"] {
        let words = Limit::attempts(50).within(Period::days(1));
        let words = match counted {
            "bucket" => words.as_token_bucket(),
            _ => words.as_sliding_counter(),
        };
        let policy = Policy::default()
            .with_address_limit(words)
            .unwrap()
            .with_user_address_limit(Limit::attempts(20).within(Period::days(1)))
            .unwrap();
        for (name, limiter) in both.limiters(&policy) {
            let usage = async |limiter: &LoginLimiter| {
                let report = limiter.check(ip(HOME)).await.unwrap();
                report.rule(Rule::ADDRESS).unwrap().usage
            };
            for i in 0..15 {
                let user = if i < 12 { "user" } else { "other" };
                fail(&limiter, ip(HOME), user, 1).await;
                both.clock.advance(Duration::from_millis(1));
            }
            attempt(&limiter, ip(HOME), "user", Outcome::Success)
                .await
                .unwrap();
            // Of the user's 12, 5 are among the newest 8; the other's 3 stay.
            assert_eq!(usage(&limiter).await, 10, "{counted} {name}");
            // Said again, nothing more comes back.
            attempt(&limiter, ip(HOME), "user", Outcome::Success)
                .await
                .unwrap();
            assert_eq!(usage(&limiter).await, 10, "{counted} {name}");
            limiter.unblock(ip(HOME)).await.unwrap();
            limiter.unblock((ip(HOME), "other")).await.unwrap();
            assert_eq!(usage(&limiter).await, 0, "{counted} {name}");
        }
    }
}

/// Memory does not grow with the limit.
#[tokio::test]
async fn a_counter_of_a_hundred_thousand_is_as_small_as_one_of_ten() {
    let both = BothStores::start().await;
    let [_, (_, store)] = both.stores();
    for words in [
        Limit::attempts(100_000)
            .within(Period::hours(1))
            .as_sliding_counter(),
        Limit::attempts(100_000)
            .within(Period::hours(1))
            .as_token_bucket(),
    ] {
        let limit = words.build().unwrap();
        count(&store, &limit, 10).await;
        let size = || -> u64 {
            let (key, _) = both.redis.keys().remove(0);
            both.redis.command(&["MEMORY", "USAGE", &key])
        };
        let small = size();
        count(&store, &limit, 3_000).await;
        assert!(size() <= small + 32, "{small} became {}", size());
        both.redis.flush();
    }
}
