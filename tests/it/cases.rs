//! What went wrong in other systems, case by case, on both stores.

use std::time::Duration;

use redis::Value;
use tower_login_rate_limit::{
    Limit, LoginLimiter, Outcome, Period, Policy, Reason, ReserveError, Rule, Token,
    clock::Clock,
    store::{Key, Settled, Settlement, Slot, StoreErrorKind},
};

use crate::support::{
    BothStores, DAY, HOUR, MINUTE, RedisServer, SECOND, START, attempt, clean_up, fail, ip, refused,
};

const HOME: &str = "192.0.2.1";

async fn usage(limiter: &LoginLimiter, address: &str, user: &str) -> (u32, u32) {
    let report = limiter.check((ip(address), user)).await.expect("checked");
    let of = |rule| report.rule(rule).expect("the rule applies").usage;
    (of(Rule::ADDRESS), of(Rule::USER_ADDRESS))
}

#[tokio::test]
async fn the_default_policy_blocks_a_pair_after_5_and_an_address_after_25() {
    let both = BothStores::start().await;
    for (name, limiter) in both.limiters(&Policy::default()) {
        for user in ["a", "b", "c", "d", "e"] {
            fail(&limiter, ip(HOME), user, 4).await;
        }
        fail(&limiter, ip(HOME), "a", 1).await;
        let refusal = refused(limiter.reserve((ip(HOME), "a")).await);
        assert_eq!(refusal.rule(), Rule::USER_ADDRESS, "{name}");
        assert_eq!(refusal.reason(), Reason::Blocked);
        assert_eq!(
            (refusal.usage(), refusal.limit(), refusal.remaining()),
            (5, 5, 0)
        );
        assert_eq!(refusal.lifts(), Period::hours(24));
        assert_eq!(refusal.lifts_in_words(), "in 1 day");

        for user in ["f", "g", "h", "i"] {
            attempt(&limiter, ip(HOME), user, Outcome::UnknownUser)
                .await
                .expect("admitted");
        }
        both.clock.set(both.clock.now() + HOUR);
        let refusal = refused(limiter.reserve((ip(HOME), "somebody else")).await);
        assert_eq!(refusal.rule(), Rule::ADDRESS, "{name}");
        assert_eq!((refusal.usage(), refusal.limit()), (25, 25));
        assert_eq!(
            refusal.to_string(),
            "too many failed attempts, try again in 6 days 23 hours"
        );
        both.clock.set(START);
    }
}

#[tokio::test]
async fn retrying_a_blocked_pair_leaves_the_address_count_unchanged() {
    let both = BothStores::start().await;
    for (name, limiter) in both.limiters(&Policy::default()) {
        fail(&limiter, ip(HOME), "user", 5).await;
        let refusal = refused(limiter.reserve((ip(HOME), "user")).await);
        for _ in 0..50 {
            both.clock.set(both.clock.now() + SECOND);
            refused(limiter.reserve((ip(HOME), "user")).await);
        }
        assert_eq!(usage(&limiter, HOME, "user").await, (5, 5), "{name}");
        // And it extends nothing.
        let later = refused(limiter.reserve((ip(HOME), "user")).await);
        let (before, after) = (refusal.lifts().as_duration(), later.lifts().as_duration());
        assert_eq!(
            before.unwrap() - after.unwrap(),
            Duration::from_secs(50),
            "{name}"
        );
        both.clock.set(START);
    }
}

#[tokio::test]
async fn a_node_with_a_wrong_clock_admits_nothing_extra() {
    let redis = RedisServer::start();
    let limiter = LoginLimiter::new(Policy::default(), redis.store().await);
    redis.command::<()>(&["CONFIG", "SET", "slowlog-log-slower-than", "0"]);
    redis.command::<()>(&["CONFIG", "SET", "slowlog-max-len", "10000"]);
    fail(&limiter, ip(HOME), "user", 5).await;
    limiter.cleanup("other", [ip(HOME)]).await.unwrap();
    refused(limiter.reserve((ip(HOME), "user")).await);

    // No call tells the server what time it is; so no node's clock can matter.
    type Entry = (i64, i64, i64, Vec<Vec<u8>>, String, String);
    let log: Vec<Entry> = redis.command(&["SLOWLOG", "GET", "-1"]);
    let calls: Vec<_> = log
        .iter()
        .map(|entry| &entry.3)
        .filter(|args| args[0].starts_with(b"EVAL"))
        .collect();
    // Those that list the block come on top, in their time.
    let is_of_list =
        |arg: &Vec<u8>| arg.starts_with(b"login:") && arg.windows(6).any(|word| word == b"blocks");
    let counting = calls.iter().filter(|args| !args.iter().any(is_of_list));
    assert_eq!(counting.count(), 5 + 5 + 1 + 1);
    let now = std::time::SystemTime::now()
        .duration_since(std::time::UNIX_EPOCH)
        .unwrap();
    let now = now.as_secs().to_string();
    for args in calls {
        for arg in args {
            let text = String::from_utf8_lossy(arg);
            assert!(!text.starts_with(&now[..6]), "a time was sent: {text}");
        }
    }
}

#[tokio::test]
async fn at_exactly_the_end_of_a_block_the_attempt_is_admitted() {
    let both = BothStores::start().await;
    let limit = Limit::attempts(2)
        .within(Period::hours(1))
        .blocked_for(Period::hours(2));
    let policy = Policy::default().with_user_address_limit(limit).unwrap();
    for (name, limiter) in both.limiters(&policy) {
        fail(&limiter, ip(HOME), "user", 2).await;
        both.clock.set(START + 2 * HOUR - 1);
        let refusal = refused(limiter.reserve((ip(HOME), "user")).await);
        assert_eq!(
            refusal.lifts(),
            Period::Of(Duration::from_millis(1)),
            "{name}"
        );
        assert_eq!(refusal.lifts_in_words(), "in 1 second");
        both.clock.set(START + 2 * HOUR);
        let report = limiter.check((ip(HOME), "user")).await.unwrap();
        assert_eq!(report.refusal(), None, "{name}");
        assert!(limiter.reserve((ip(HOME), "user")).await.is_ok(), "{name}");
        // The slate is clean: this one alone counts.
        assert_eq!(usage(&limiter, HOME, "user").await.1, 1, "{name}");
        both.clock.set(START);
    }
}

#[tokio::test]
async fn finite_changed_to_for_ever_and_back_by_a_new_policy() {
    let mut both = BothStores::start().await;
    both.redis
        .keys_may_live(Some(Duration::from_millis(7 * DAY + 30 * SECOND)));
    let with_block = |block: Period| {
        let limit = Limit::attempts(2)
            .within(Period::hours(1))
            .blocked_for(block);
        Policy::default().with_user_address_limit(limit).unwrap()
    };
    let (finite, for_ever) = (with_block(Period::hours(2)), with_block(Period::Forever));
    for (name, store) in both.stores() {
        let limiter = |policy: &Policy| LoginLimiter::new(policy.clone(), store.clone());
        let pair_ttl = || {
            let keys = both.redis.counters();
            keys.into_iter()
                .find(|(key, _)| key.contains("user-address"))
                .map(|(_, ttl)| ttl)
        };
        fail(&limiter(&finite), ip(HOME), "user", 2).await;

        let refusal = refused(limiter(&for_ever).reserve((ip(HOME), "user")).await);
        assert_eq!(refusal.lifts(), Period::Forever, "{name}");
        assert_eq!(
            refusal.to_string(),
            "too many failed attempts, blocked forever"
        );
        if name == "redis" {
            assert_eq!(
                pair_ttl(),
                Some(-1),
                "the key would run out before the block"
            );
        }
        both.clock.set(START + 30 * DAY);
        refused(limiter(&for_ever).reserve((ip(HOME), "user")).await);
        both.clock.set(START + HOUR);

        let refusal = refused(limiter(&finite).reserve((ip(HOME), "user")).await);
        assert_eq!(refusal.lifts(), Period::hours(1), "{name}");
        if name == "redis" {
            assert!(pair_ttl().unwrap() > 0, "the key would stay for ever");
        }
        both.clock.set(START + 2 * HOUR);
        assert!(
            limiter(&finite).reserve((ip(HOME), "user")).await.is_ok(),
            "{name}"
        );
        both.clock.set(START);
    }
}

#[tokio::test]
async fn a_block_for_ever_has_no_end_and_everything_short_of_it_does() {
    let mut both = BothStores::start().await;
    both.redis.keys_may_live(None);
    let limit = Limit::attempts(3)
        .within(Period::hours(1))
        .blocked_for(Period::Forever);
    let policy = Policy::new([])
        .unwrap()
        .with_user_address_limit(limit)
        .unwrap();
    let [_, (_, limiter)] = both.limiters(&policy);
    let ttl = || both.redis.counters().first().map(|(_, ttl)| *ttl);

    fail(&limiter, ip(HOME), "user", 2).await;
    assert!(ttl().unwrap() > 0);
    // The third could fail without anybody saying so: the key must outlive that.
    let third = limiter.reserve((ip(HOME), "user")).await.unwrap();
    assert_eq!(ttl(), Some(-1));
    third.settle(Outcome::MfaPending).await.unwrap();
    assert!(ttl().unwrap() > 0);

    // It fails when the first two have just left the window: no block, so an end.
    both.clock.set(START + HOUR - SECOND);
    let third = limiter.reserve((ip(HOME), "user")).await.unwrap();
    assert_eq!(ttl(), Some(-1));
    both.clock.set(START + HOUR + SECOND);
    third.settle(Outcome::Failure).await.unwrap();
    assert!(ttl().unwrap() > 0);

    fail(&limiter, ip(HOME), "user", 2).await;
    assert_eq!(ttl(), Some(-1));
    assert_eq!(
        refused(limiter.reserve((ip(HOME), "user")).await).lifts(),
        Period::Forever
    );
    limiter.unblock((ip(HOME), "user")).await.unwrap();
    assert_eq!(ttl(), None);
}

/// With a limit of one, somebody's first failure blocks, and may do so for longer than it counts.
#[tokio::test]
async fn a_key_outlives_the_block_that_its_first_failure_brings() {
    let mut both = BothStores::start().await;
    both.redis.keys_may_live(None);
    for (block, user) in [(Period::days(1), "a day"), (Period::Forever, "for ever")] {
        let limit = Limit::attempts(1)
            .within(Period::minutes(1))
            .blocked_for(block);
        let policy = Policy::new([])
            .unwrap()
            .with_user_address_limit(limit)
            .unwrap();
        let [_, (_, limiter)] = both.limiters(&policy);
        fail(&limiter, ip(HOME), user, 1).await;
        let ttl = both.redis.counters().first().map(|(_, ttl)| *ttl);
        match block {
            Period::Of(block) => assert!(ttl.unwrap() > block.as_millis() as i64),
            Period::Forever => assert_eq!(ttl, Some(-1)),
        }
        limiter.unblock((ip(HOME), user)).await.unwrap();
    }
}

#[tokio::test]
async fn a_token_reserved_twice_counts_once() {
    let both = BothStores::start().await;
    let limit = Limit::attempts(2).within(Period::hours(1)).build().unwrap();
    for (name, store) in both.stores() {
        let key = Key::of_subject("test", &b"key"[..]);
        let slots = [Slot::new(key, &limit)];
        let lease = Duration::from_secs(30);
        let (first, second) = (Token::new(), Token::new());
        for _ in 0..10 {
            let standings = store.reserve(first, lease, &slots).await.unwrap();
            assert_eq!(
                (standings[0].usage, standings.admitted()),
                (1, true),
                "{name}"
            );
        }
        assert!(
            store
                .reserve(second, lease, &slots)
                .await
                .unwrap()
                .admitted()
        );
        // Also when the counter is full with it.
        for token in [first, second] {
            let standings = store.reserve(token, lease, &slots).await.unwrap();
            assert_eq!(
                (standings[0].usage, standings.admitted()),
                (2, true),
                "{name}"
            );
        }
        assert!(
            !store
                .reserve(Token::new(), lease, &slots)
                .await
                .unwrap()
                .admitted()
        );
        // Settling twice is settling once.
        assert_eq!(
            store
                .settle(&[first], Settlement::Failed, &slots, Duration::ZERO)
                .await
                .unwrap(),
            Settled::changed(1)
        );
        both.clock.set(both.clock.now() + SECOND);
        assert_eq!(
            store
                .settle(&[first], Settlement::Failed, &slots, Duration::ZERO)
                .await
                .unwrap(),
            Settled::changed(0)
        );
        assert_eq!(
            store
                .settle(&[second], Settlement::Canceled, &slots, Duration::ZERO)
                .await
                .unwrap(),
            Settled::changed(1)
        );
        assert_eq!(
            store
                .settle(&[second], Settlement::Canceled, &slots, Duration::ZERO)
                .await
                .unwrap(),
            Settled::changed(0)
        );
        assert_eq!(store.check(&slots).await.unwrap()[0].usage, 1, "{name}");
        both.clock.set(START);
    }
}

#[tokio::test]
async fn cleanup_keeps_attempts_in_flight_and_everybody_elses_tokens() {
    let both = BothStores::start().await;
    for (name, limiter) in both.limiters(&Policy::default()) {
        fail(&limiter, ip(HOME), "owner", 3).await;
        fail(&limiter, ip(HOME), "other", 2).await;
        let in_flight = limiter.reserve((ip(HOME), "owner")).await.unwrap();
        assert_eq!(usage(&limiter, HOME, "owner").await, (6, 4), "{name}");

        attempt(&limiter, ip(HOME), "owner", Outcome::Success)
            .await
            .unwrap();
        assert_eq!(usage(&limiter, HOME, "owner").await, (3, 1), "{name}");
        assert_eq!(usage(&limiter, HOME, "other").await, (3, 2), "{name}");

        in_flight.settle(Outcome::Failure).await.unwrap();
        assert_eq!(usage(&limiter, HOME, "owner").await, (3, 1), "{name}");
    }
}

#[tokio::test]
async fn cleanup_of_10_000_members() {
    let both = BothStores::start().await;
    let limit = Limit::attempts(50_000)
        .within(Period::hours(1))
        .build()
        .unwrap();
    for (name, store) in both.stores() {
        let slot = |subject: &'static str| {
            let key = Key::of_address(HOME.parse().unwrap(), "test");
            Slot::new(key.and_subject(subject.as_bytes()), &limit)
        };
        let slots = [slot("main"), slot("shared")];
        for i in 0..10_000 {
            let reserved = store
                .reserve(Token::new(), Duration::ZERO, &slots)
                .await
                .unwrap();
            assert_eq!(reserved[0].usage, i + 1, "{name}");
        }
        for _ in 0..100 {
            let others = &slots[1..];
            assert!(
                store
                    .reserve(Token::new(), Duration::ZERO, others)
                    .await
                    .unwrap()
                    .admitted()
            );
        }
        clean_up(&store, &[], &slots[..1], &slots[1..])
            .await
            .unwrap();
        let standings = store.check(&slots).await.unwrap();
        assert_eq!((standings[0].usage, standings[1].usage), (0, 100), "{name}");
    }
}

#[tokio::test]
async fn strange_user_names_have_budgets_of_their_own() {
    let both = BothStores::start().await;
    let million = "x".repeat(1_000_000);
    let names = [
        "{",
        "}",
        "{}",
        "a:b",
        "a}:user-address:b",
        "a b",
        "a\0",
        "a\0b",
        "",
        "*",
        "ü",
        "名前",
        "\u{1F600}",
        "192.0.2.1",
        "login:{192.0.2.1}:address",
        "\r\n",
        "$6\r\nfoobar",
        &million,
        &million[1..],
    ];
    let wide = Limit::attempts(1_000).within(Period::hours(24));
    let policy = Policy::default().with_address_limit(wide).unwrap();
    for (store, limiter) in both.limiters(&policy) {
        // "\r\n" is trimmed to nothing, and "" is what it becomes.
        for (i, name) in names.iter().enumerate() {
            let shown = name.chars().take(30).collect::<String>();
            if name.trim().is_empty() && !name.is_empty() {
                assert_eq!(usage(&limiter, HOME, name).await.1, 5);
                continue;
            }
            assert_eq!(
                usage(&limiter, HOME, name).await.1,
                0,
                "{store}: {i} {shown:?}"
            );
            fail(&limiter, ip(HOME), name, 5).await;
            refused(limiter.reserve((ip(HOME), *name)).await);
        }
    }
    for (key, _) in both.redis.keys() {
        assert!(key.len() < 100, "{key}");
    }
}

#[tokio::test]
async fn one_address_with_any_number_of_names_takes_a_bounded_place() {
    let both = BothStores::start().await;
    for (name, limiter) in both.limiters(&Policy::default()) {
        let mut admitted = 0;
        for i in 0..2_000 {
            let user = format!("{i}{}", "x".repeat(i * 50));
            let attempt = attempt(&limiter, ip(HOME), &user, Outcome::UnknownUser).await;
            admitted += u32::from(attempt.is_ok());
        }
        assert_eq!(admitted, 25, "{name}");
    }
    assert_eq!(both.redis.counters().len(), 26);
}

#[tokio::test]
async fn attempts_in_flight_are_busy_not_blocked() {
    let both = BothStores::start().await;
    for (name, limiter) in both.limiters(&Policy::default()) {
        let mut attempts = Vec::new();
        for _ in 0..5 {
            attempts.push(limiter.reserve((ip(HOME), "user")).await.unwrap());
        }
        let refusal = refused(limiter.reserve((ip(HOME), "user")).await);
        assert_eq!(refusal.reason(), Reason::Busy, "{name}");
        assert_eq!(refusal.lifts(), Period::seconds(1));
        assert_eq!(
            refusal.to_string(),
            "too many attempts at once, try again in a moment"
        );

        for attempt in attempts {
            attempt.settle(Outcome::Success).await.unwrap();
        }
        assert_eq!(usage(&limiter, HOME, "user").await, (0, 0), "{name}");
    }
    assert_eq!(both.redis.keys(), []);
}

#[tokio::test]
async fn an_attempt_that_is_never_settled_becomes_a_failure_when_its_lease_ends() {
    let both = BothStores::start().await;
    for (name, limiter) in both.limiters(&Policy::default()) {
        let mut attempts = Vec::new();
        for _ in 0..5 {
            attempts.push(limiter.reserve((ip(HOME), "user")).await.unwrap());
        }
        both.clock.set(START + 30 * SECOND - 1);
        let refusal = refused(limiter.reserve((ip(HOME), "user")).await);
        assert_eq!(refusal.reason(), Reason::Busy, "{name}");
        both.clock.set(START + 30 * SECOND);
        let refusal = refused(limiter.reserve((ip(HOME), "user")).await);
        assert_eq!(refusal.reason(), Reason::Blocked, "{name}");
        assert_eq!(refusal.lifts(), Period::hours(24), "{name}");

        // Saying late that it failed extends nothing; saying that it went well still helps.
        both.clock.set(START + 10 * MINUTE);
        attempts.remove(0).settle(Outcome::Failure).await.unwrap();
        let refusal = refused(limiter.reserve((ip(HOME), "user")).await);
        let left = Duration::from_millis(DAY + 30 * SECOND - 10 * MINUTE);
        assert_eq!(refusal.lifts(), Period::Of(left), "{name}");
        attempts.remove(0).settle(Outcome::Success).await.unwrap();
        assert_eq!(usage(&limiter, HOME, "user").await, (0, 0), "{name}");
        both.clock.set(START);
    }
}

#[tokio::test]
async fn success_at_an_own_account_buys_no_guess_at_another() {
    let both = BothStores::start().await;
    for (name, limiter) in both.limiters(&Policy::default()) {
        let mut guesses = 0;
        for _ in 0..20 {
            for _ in 0..4 {
                guesses += u32::from(
                    attempt(&limiter, ip(HOME), "victim", Outcome::Failure)
                        .await
                        .is_ok(),
                );
            }
            attempt(&limiter, ip(HOME), "attacker", Outcome::Success)
                .await
                .unwrap();
        }
        assert_eq!(guesses, 5, "{name}");
        assert_eq!(usage(&limiter, HOME, "victim").await, (5, 5), "{name}");
    }
}

#[tokio::test]
async fn a_right_password_does_not_refill_the_guesses_at_the_code() {
    let both = BothStores::start().await;
    for (name, limiter) in both.limiters(&Policy::default()) {
        let mut codes = 0;
        for _ in 0..20 {
            let password = attempt(&limiter, ip(HOME), "user", Outcome::MfaPending).await;
            let code = attempt(&limiter, ip(HOME), "user", Outcome::Failure).await;
            assert_eq!(password.is_ok(), codes < 5, "{name}");
            codes += u32::from(code.is_ok());
        }
        assert_eq!(codes, 5, "{name}");
    }
}

#[tokio::test]
async fn whose_fifth_password_is_right_still_gets_to_type_the_code() {
    let both = BothStores::start().await;
    for (name, limiter) in both.limiters(&Policy::default()) {
        fail(&limiter, ip(HOME), "user", 4).await;
        attempt(&limiter, ip(HOME), "user", Outcome::MfaPending)
            .await
            .expect("password");
        attempt(&limiter, ip(HOME), "user", Outcome::Success)
            .await
            .expect("code");
        assert_eq!(usage(&limiter, HOME, "user").await, (0, 0), "{name}");
    }
}

#[tokio::test]
async fn without_a_block_the_next_is_free_when_the_oldest_leaves() {
    let both = BothStores::start().await;
    let limit = Limit::attempts(2)
        .within(Period::minutes(10))
        .without_block();
    let policy = Policy::new([]).unwrap().with_address_limit(limit).unwrap();
    for (name, limiter) in both.limiters(&policy) {
        fail(&limiter, ip(HOME), "user", 1).await;
        both.clock.set(START + 4 * MINUTE);
        fail(&limiter, ip(HOME), "user", 1).await;
        both.clock.set(START + 5 * MINUTE);
        let refusal = refused(limiter.reserve(ip(HOME)).await);
        assert_eq!(refusal.lifts(), Period::minutes(5), "{name}");
        both.clock.set(START + 10 * MINUTE);
        fail(&limiter, ip(HOME), "user", 1).await;
        let refusal = refused(limiter.reserve(ip(HOME)).await);
        assert_eq!(refusal.lifts(), Period::minutes(4), "{name}");
        both.clock.set(START);
    }
}

#[tokio::test]
async fn a_window_for_ever_never_forgets() {
    let mut both = BothStores::start().await;
    both.redis.keys_may_live(None);
    let limit = Limit::attempts(3).within(Period::Forever);
    let policy = Policy::new([]).unwrap().with_address_limit(limit).unwrap();
    for (name, limiter) in both.limiters(&policy) {
        for years in 0..3 {
            both.clock.set(START + years * 365 * DAY);
            fail(&limiter, ip(HOME), "user", 1).await;
        }
        let refusal = refused(limiter.reserve(ip(HOME)).await);
        assert_eq!(refusal.lifts_in_words(), "forever", "{name}");
        both.clock.set(START);
    }
    assert_eq!(both.redis.counters()[0].1, -1);
}

#[tokio::test]
async fn a_redis_without_memory_admits_nothing_and_still_takes_back() {
    let redis = RedisServer::start();
    let limiter = LoginLimiter::new(Policy::default(), redis.store().await);
    let attempt = limiter.reserve((ip(HOME), "user")).await.unwrap();
    let failed = limiter.reserve((ip(HOME), "user")).await.unwrap();

    redis.command::<()>(&["CONFIG", "SET", "maxmemory", "1"]);
    for user in ["user", "other"] {
        match limiter.reserve((ip(HOME), user)).await {
            Err(ReserveError::Store(error)) => {
                assert_eq!(error.kind(), StoreErrorKind::Server);
                assert!(error.to_string().contains("maxmemory"), "{error}");
            }
            other => panic!("{other:?}"),
        }
    }
    // What frees memory works; a failure that can't be written now is told later.
    attempt.settle(Outcome::Success).await.unwrap();
    failed.settle(Outcome::Failure).await.unwrap();
    redis.command::<()>(&["CONFIG", "SET", "maxmemory", "0"]);
    limiter.all_settled().await.unwrap();
    assert_eq!(usage(&limiter, HOME, "user").await, (1, 1));
}

#[tokio::test]
async fn a_key_of_another_type_is_an_error_not_a_permission() {
    let redis = RedisServer::start();
    let store = redis.store().await;
    let limiter = LoginLimiter::new(Policy::default(), store.clone());
    redis.command::<()>(&["SET", "login:{192.0.2.1}:address", "1", "EX", "10"]);
    match limiter.reserve((ip(HOME), "user")).await {
        Err(ReserveError::Store(error)) => assert_eq!(error.kind(), StoreErrorKind::Server),
        other => panic!("{other:?}"),
    }
    assert_eq!(redis.keys().len(), 1, "something was written all the same");
}

#[tokio::test]
async fn a_check_writes_nothing() {
    let redis = RedisServer::start();
    let limiter = LoginLimiter::new(Policy::default(), redis.store().await);
    fail(&limiter, ip(HOME), "user", 5).await;
    fail(&limiter, ip(HOME), "other", 1).await;
    let dump = || {
        let mut state = redis.keys();
        state.sort();
        let dumped: Vec<Value> = state
            .iter()
            .map(|(key, _)| redis.command(&["DUMP", key]))
            .collect();
        let info: String = redis.command(&["INFO", "persistence"]);
        let changes = info
            .lines()
            .find(|line| line.starts_with("rdb_changes_since"))
            .map(str::to_owned);
        (dumped, changes)
    };
    let before = dump();
    for user in ["user", "other", "nobody"] {
        for _ in 0..10 {
            limiter.check((ip(HOME), user)).await.unwrap();
            limiter.check((ip("192.0.2.99"), user)).await.unwrap();
        }
    }
    assert_eq!(dump(), before);
}

#[tokio::test]
async fn each_step_is_one_round_trip_and_nothing_is_pinged() {
    let redis = RedisServer::start();
    let limiter = LoginLimiter::new(Policy::default(), redis.store().await);
    // The first call of each script carries its text, and is one round trip too.
    let calls = || redis.calls_of("evalsha") + redis.calls_of("eval");
    let before = calls();
    let pings = redis.calls_of("ping");
    for _ in 0..4 {
        fail(&limiter, ip(HOME), "user", 1).await;
    }
    assert_eq!(calls() - before, 8, "one before the password and one after");
    attempt(&limiter, ip(HOME), "other", Outcome::Success)
        .await
        .unwrap();
    assert_eq!(calls() - before, 10);
    // The block that begins is listed, which no login waits for.
    fail(&limiter, ip(HOME), "user", 1).await;
    limiter.all_settled().await.unwrap();
    let before = calls();
    refused(limiter.reserve((ip(HOME), "user")).await);
    assert_eq!(calls() - before, 1);
    assert_eq!(redis.calls_of("ping"), pings);
}

#[tokio::test]
async fn an_attempt_cleans_up_once_however_often_its_success_is_repeated() {
    let both = BothStores::start().await;
    let limit = Limit::attempts(5).within(Period::hours(1)).build().unwrap();
    for (name, store) in both.stores() {
        let slot = |subject: &'static str| {
            let key = Key::of_address(HOME.parse().unwrap(), "test");
            Slot::new(key.and_subject(subject.as_bytes()), &limit)
        };
        let (pair, others) = (slot("pair"), [slot("shared")]);
        let slots = [pair, others[0]];
        let success = Token::new();
        store
            .reserve(success, Duration::from_secs(30), &slots)
            .await
            .unwrap();
        clean_up(&store, &[success], &slots[..1], &others)
            .await
            .unwrap();
        for _ in 0..4 {
            store
                .reserve(Token::new(), Duration::ZERO, &slots)
                .await
                .unwrap();
        }
        // As after a reply that was lost.
        clean_up(&store, &[success], &slots[..1], &others)
            .await
            .unwrap();
        let standings = store.check(&slots).await.unwrap();
        assert_eq!((standings[0].usage, standings[1].usage), (4, 4), "{name}");
    }
}

#[tokio::test]
async fn a_key_that_comes_back_from_the_edge_of_a_block_for_ever_has_an_end_again() {
    let mut both = BothStores::start().await;
    both.redis
        .keys_may_live(Some(Duration::from_secs(7 * 86_400 + 30)));
    let limit = Limit::attempts(3)
        .within(Period::hours(1))
        .blocked_for(Period::Forever);
    let policy = Policy::default().with_address_limit(limit).unwrap();
    let [_, (_, limiter)] = both.limiters(&policy);
    fail(&limiter, ip(HOME), "other", 1).await;
    fail(&limiter, ip(HOME), "user", 1).await;
    // The third makes the address full while it is in flight; that it goes well takes two away.
    attempt(&limiter, ip(HOME), "user", Outcome::Success)
        .await
        .unwrap();
    assert_eq!(usage(&limiter, HOME, "other").await, (1, 1));
}
