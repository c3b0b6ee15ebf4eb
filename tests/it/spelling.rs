//! Names that fold to one and are several accounts: they share a budget, and a success takes back the failures
//! of its own spelling only.

use std::{sync::Arc, time::Duration};

use tower_login_rate_limit::{
    Limit, LoginLimiter, Outcome, Period, Policy, Rule, Token,
    algorithm::State,
    clock::ManualClock,
    store::{Key, MemoryStore, RedisStore, Settlement, Slot, Store, redis::Outage},
};

use crate::{
    account::{allow_known_addresses, everywhere},
    support::{RedisCluster, RedisServer, START, attempt, fail, ip, refused},
};

const ATTACKER: &str = "192.0.2.66";
const HOME: &str = "192.0.2.1";

async fn usage(limiter: &LoginLimiter, user: &str, rule: &str) -> u32 {
    let report = limiter.check((ip(ATTACKER), user)).await.unwrap();
    report.rule(rule).unwrap().usage
}

/// The app knows both `victim` and `Victim`; the attacker owns one of them.
#[tokio::test]
async fn logging_in_to_another_spelling_of_the_victims_name_buys_no_guess() {
    let (mut redis, mut cluster, stores) = everywhere().await;
    allow_known_addresses(&mut redis, &mut cluster);
    for (name, store) in stores {
        for (i, (victim, own)) in [
            ("victim", "Victim"),
            ("Victim", "victim"),
            ("VICTIM", "Victim"),
        ]
        .into_iter()
        .enumerate()
        {
            let address = ip(&format!("192.0.2.{}", 100 + i));
            let limiter = LoginLimiter::new(Policy::strict(), Arc::clone(&store));
            let mut guesses = 0;
            for _ in 0..20 {
                for _ in 0..4 {
                    let guess = attempt(&limiter, address, victim, Outcome::Failure).await;
                    guesses += u32::from(guess.is_ok());
                }
                let _ = attempt(&limiter, address, own, Outcome::Success).await;
            }
            assert_eq!(
                guesses, 5,
                "{name}: guesses at {victim} by the owner of {own}"
            );
            // Nor is the attacker known at the victim's account.
            let known = limiter.known_addresses(victim).await.unwrap();
            assert!(known.iter().all(|known| known.ip() != address), "{name}");
            limiter.unblock((address, victim)).await.unwrap();
        }
    }
}

/// Memory, a server and a cluster, in a time of their own.
async fn in_manual_time() -> (
    RedisServer,
    RedisCluster,
    Arc<ManualClock>,
    [(&'static str, Arc<dyn Store>); 3],
) {
    let clock = Arc::new(ManualClock::at(START));
    let (mut redis, mut cluster) = (RedisServer::start(), RedisCluster::start());
    allow_known_addresses(&mut redis, &mut cluster);
    let shared = redis.builder().with_clock(Arc::clone(&clock));
    let shared = shared.connect(redis.url()).await.unwrap();
    let stores: [(_, Arc<dyn Store>); 3] = [
        (
            "memory",
            Arc::new(MemoryStore::new().with_clock(Arc::clone(&clock))),
        ),
        ("redis", Arc::new(shared)),
        (
            "cluster",
            Arc::new(cluster.store_with_clock(Arc::clone(&clock))),
        ),
    ];
    (redis, cluster, clock, stores)
}

/// How the name of the victim gets into a guess.
#[derive(Clone, Copy, Debug)]
enum Named {
    Typed,
    /// By the handler, at once.
    Identified,
    /// By the handler, when the lease has ended.
    IdentifiedLate,
}

/// The handler is kept waiting until the lease has ended; then the owner of the other spelling logs in.
#[tokio::test]
async fn a_guess_that_is_kept_in_flight_beyond_its_lease_is_not_taken_back_by_another_account() {
    let (_redis, _cluster, clock, stores) = in_manual_time().await;
    for (name, store) in stores {
        let named = [Named::Typed, Named::Identified, Named::IdentifiedLate];
        for (i, named) in named.into_iter().enumerate() {
            let address = ip(&format!("192.0.2.{}", 100 + i));
            let limiter = LoginLimiter::new(Policy::strict(), Arc::clone(&store));
            let mut guesses = 0;
            for _ in 0..10 {
                // Several at once, to be settled after all of them were taken back.
                let mut in_flight = Vec::new();
                for _ in 0..3 {
                    let typed = match named {
                        Named::Typed => "Victim",
                        Named::Identified | Named::IdentifiedLate => "victim",
                    };
                    let Ok(mut guess) = limiter.reserve((address, typed)).await else {
                        continue;
                    };
                    if matches!(named, Named::Identified) {
                        guess.identify("Victim").await.unwrap();
                    }
                    in_flight.push(guess);
                }
                clock.advance(Duration::from_secs(31));
                let _ = attempt(&limiter, address, "victim", Outcome::Success).await;
                for mut guess in in_flight {
                    let is_late = matches!(named, Named::IdentifiedLate);
                    if is_late && guess.identify("Victim").await.is_err() {
                        continue;
                    }
                    let _ = attempt(&limiter, address, "victim", Outcome::Success).await;
                    guess.settle(Outcome::Failure).await.unwrap();
                    guesses += 1;
                }
            }
            assert_eq!(guesses, 5, "{name}, {named:?}");
            limiter.unblock((address, "victim")).await.unwrap();
        }
    }
}

/// Attempts that were reserved in the normal form have it when their leases end.
#[tokio::test]
async fn a_login_still_takes_back_what_a_crashed_process_left_in_flight() {
    let (_redis, _cluster, clock, stores) = in_manual_time().await;
    for (name, store) in stores {
        let limiter = LoginLimiter::new(Policy::default(), store);
        for _ in 0..4 {
            let _crashed = limiter.reserve((ip(ATTACKER), "alice")).await.unwrap();
        }
        clock.advance(Duration::from_secs(31));
        assert_eq!(
            usage(&limiter, "alice", Rule::USER_ADDRESS).await,
            4,
            "{name}"
        );
        attempt(&limiter, ip(ATTACKER), "alice", Outcome::Success)
            .await
            .unwrap();
        assert_eq!(
            usage(&limiter, "alice", Rule::USER_ADDRESS).await,
            0,
            "{name}"
        );
    }
}

/// The first copy of a command comes after the second one was answered, and the attempt failed.
#[tokio::test]
async fn a_reserve_that_arrives_after_its_attempt_has_failed_counts_once() {
    let (_redis, _cluster, stores) = everywhere().await;
    let limit = Policy::default();
    let limit = limit.rule(Rule::USER_ADDRESS).unwrap().limit();
    for (name, store) in stores {
        for (user, spelling) in [("alice", None), ("bob", Some("Bob"))] {
            let key = Key::of_address(ATTACKER.parse().unwrap(), Rule::USER_ADDRESS);
            let mut slot = Slot::new(key.and_subject(user.as_bytes()), limit);
            if let Some(spelling) = spelling {
                slot = slot.spelled(spelling.as_bytes());
            }
            let (token, lease) = (Token::new(), Duration::from_secs(30));
            let reserve = || store.reserve(token, lease, std::slice::from_ref(&slot));
            reserve().await.unwrap();
            let failed = store.settle(&[token], Settlement::Failed, &[slot], Duration::ZERO);
            failed.await.unwrap();
            let standings = reserve().await.unwrap();
            assert!(standings.admitted(), "{name}");
            assert_eq!(standings[0].usage, 1, "{name}: {user}");
        }
    }
}

/// The block came of guesses at `Victim`. On an empty server that takes the place of the old one, the owner of
/// `victim` has an attempt in flight when another process writes the block back.
#[tokio::test]
async fn logging_in_to_another_spelling_does_not_lift_a_block_that_was_written_back() {
    let five = || Limit::attempts(5).within(Period::hours(1));
    let limits = [
        five().blocked_for(Period::hours(3)),
        five().without_block(),
        five()
            .blocked_for(Period::hours(1))
            .then_for(Period::hours(9)),
        five().as_token_bucket().without_block(),
        five().as_sliding_counter().blocked_for(Period::hours(4)),
    ];
    for limit in limits {
        let mut redis = RedisServer::start();
        redis.keys_may_live(None);
        let policy = Policy::default().with_user_address_limit(limit.clone());
        let policy = policy.unwrap();
        let server = async || {
            let builder = RedisStore::builder().with_deadline(Duration::from_secs(20));
            let store = builder.connect(redis.url()).await.unwrap();
            LoginLimiter::new(policy.clone(), store)
        };
        let (knows, new) = (server().await, server().await);
        fail(&knows, ip(HOME), "Victim", 5).await;
        refused(knows.reserve((ip(HOME), "Victim")).await);
        redis.kill();
        redis.restart();
        let own = new.reserve((ip(HOME), "victim")).await.unwrap();
        let is_written = || {
            let keys = redis.counters().into_iter().map(|(key, _)| key);
            let pair = keys.filter(|key| key.contains("user-address"));
            pair.map(|key| redis.command::<usize>(&["ZCARD", &key]))
                .sum::<usize>()
                > 1
        };
        while !is_written() {
            refused(knows.reserve((ip(HOME), "Victim")).await);
            tokio::time::sleep(Duration::from_millis(20)).await;
        }
        own.settle(Outcome::Success).await.unwrap();
        let refusal = refused(new.reserve((ip(HOME), "Victim")).await);
        assert_eq!(refusal.rule(), Rule::USER_ADDRESS, "{limit:?}");
    }
}

/// The same where older failures are summed up, which have no spelling any more.
#[tokio::test]
async fn logging_in_to_another_spelling_does_not_clear_what_is_summed_up() {
    let limits = [
        Limit::attempts(12)
            .within(Period::hours(1))
            .as_token_bucket()
            .without_block(),
        Limit::attempts(12)
            .within(Period::hours(1))
            .as_sliding_counter()
            .without_block(),
    ];
    let (_redis, _cluster, stores) = everywhere().await;
    for (name, store) in stores {
        for (i, limit) in limits.iter().enumerate() {
            let policy = Policy::default()
                .with_user_address_limit(limit.clone())
                .unwrap();
            let limiter = LoginLimiter::new(policy, Arc::clone(&store));
            let address = ip(&format!("192.0.2.{}", 10 + i));
            for (victim, own) in [("Victim", "victim"), ("bob", "BOB")] {
                let mut guesses = 0;
                for _ in 0..4 {
                    for _ in 0..11 {
                        let guess = attempt(&limiter, address, victim, Outcome::Failure).await;
                        guesses += u32::from(guess.is_ok());
                    }
                    let _ = attempt(&limiter, address, own, Outcome::Success).await;
                }
                assert_eq!(guesses, 12, "{name}: {limit:?}, {victim}");
                limiter.unblock((address, victim)).await.unwrap();
                let pair = limiter.check((address, victim)).await.unwrap();
                assert_eq!(pair.rule(Rule::USER_ADDRESS).unwrap().usage, 0, "{name}");
            }
        }
    }
}

#[tokio::test]
async fn a_user_who_always_types_capitals_clears_the_own_failures() {
    let (_redis, _cluster, stores) = everywhere().await;
    for (name, store) in stores {
        let limiter = LoginLimiter::new(Policy::default(), store);
        for _ in 0..10 {
            fail(&limiter, ip(ATTACKER), "Alice@Example.com", 4).await;
            attempt(
                &limiter,
                ip(ATTACKER),
                "Alice@Example.com",
                Outcome::Success,
            )
            .await
            .unwrap();
        }
        assert_eq!(
            usage(&limiter, "alice@example.com", Rule::USER_ADDRESS).await,
            0,
            "{name}"
        );
        assert_eq!(
            usage(&limiter, "alice@example.com", Rule::ADDRESS).await,
            0,
            "{name}"
        );

        // All spellings share the budget, and each takes back its own.
        fail(&limiter, ip(ATTACKER), "Alice@Example.com", 2).await;
        fail(&limiter, ip(ATTACKER), "alice@example.com", 2).await;
        attempt(
            &limiter,
            ip(ATTACKER),
            "alice@example.com",
            Outcome::Success,
        )
        .await
        .unwrap();
        assert_eq!(
            usage(&limiter, "ALICE@example.com", Rule::USER_ADDRESS).await,
            2,
            "{name}"
        );
        assert_eq!(
            usage(&limiter, "ALICE@example.com", Rule::ADDRESS).await,
            2,
            "{name}"
        );
    }
}

/// The account that the handler found counts, however its name was typed.
#[tokio::test]
async fn an_identified_account_clears_failures_of_every_spelling() {
    let (mut redis, mut cluster, stores) = everywhere().await;
    allow_known_addresses(&mut redis, &mut cluster);
    for (name, store) in stores {
        let limiter = LoginLimiter::new(Policy::strict(), store);
        let log_in = async |typed: &'static str, outcome| {
            let mut attempt = limiter.reserve((ip(HOME), typed)).await.unwrap();
            attempt.identify("alice").await.unwrap();
            attempt.settle(outcome).await.unwrap();
        };
        log_in("Alice", Outcome::Failure).await;
        log_in("ALICE", Outcome::Failure).await;
        log_in(" alice ", Outcome::Failure).await;
        log_in("aLice", Outcome::Success).await;
        let report = limiter.check((ip(HOME), "alice")).await.unwrap();
        for (rule, standing) in report.iter() {
            assert_eq!(standing.usage, 0, "{name}: {}", rule.name());
        }
        // From here on, alice is known at home.
        assert_eq!(
            report.rule(Rule::ACCOUNT).unwrap().state,
            State::Exempt,
            "{name}"
        );
    }
}

/// A password reset of the attacker's own account.
#[tokio::test]
async fn resetting_the_password_of_another_spelling_clears_no_failures() {
    let (_redis, _cluster, stores) = everywhere().await;
    for (name, store) in stores {
        let limiter = LoginLimiter::new(Policy::default(), store);
        fail(&limiter, ip(ATTACKER), "victim", 4).await;
        limiter.cleanup("Victim", [ip(ATTACKER)]).await.unwrap();
        assert_eq!(
            usage(&limiter, "victim", Rule::USER_ADDRESS).await,
            4,
            "{name}"
        );
        limiter.cleanup("victim", [ip(ATTACKER)]).await.unwrap();
        assert_eq!(
            usage(&limiter, "victim", Rule::USER_ADDRESS).await,
            0,
            "{name}"
        );
        // An operator lifts the block of a name, however it is spelled.
        fail(&limiter, ip(ATTACKER), "Victim", 5).await;
        refused(limiter.reserve((ip(ATTACKER), "victim")).await);
        limiter.unblock((ip(ATTACKER), "victim")).await.unwrap();
        fail(&limiter, ip(ATTACKER), "victim", 1).await;
    }
}

/// While Redis is away failures are in the journal, and the fallback decides.
#[tokio::test]
async fn an_outage_does_not_make_two_spellings_one() {
    let app = crate::without_redis::App::start(Outage::Fallback).await;
    fail(&app.limiter, ip(HOME), "victim", 2).await;
    app.lose_redis().await;
    fail(&app.limiter, ip(HOME), "victim", 2).await;
    attempt(&app.limiter, ip(HOME), "Victim", Outcome::Success)
        .await
        .unwrap();
    let report = app.limiter.check((ip(HOME), "victim")).await.unwrap();
    assert_eq!(report.rule(Rule::USER_ADDRESS).unwrap().usage, 4);
    app.find_redis().await;
    assert_eq!(app.both_in_redis("victim").await, (4, 4));
    attempt(&app.limiter, ip(HOME), "victim", Outcome::Success)
        .await
        .unwrap();
    assert_eq!(app.both_in_redis("victim").await, (0, 0));
}

/// What an outage decides is replayed in the spelling of the account that the handler found.
#[tokio::test]
async fn an_account_that_is_identified_in_an_outage_clears_its_failures_afterwards() {
    let app = crate::without_redis::App::start(Outage::Fallback).await;
    app.lose_redis().await;
    for _ in 0..3 {
        let mut attempt = app.limiter.reserve((ip(HOME), "VICTIM")).await.unwrap();
        attempt.identify("victim").await.unwrap();
        attempt.settle(Outcome::Failure).await.unwrap();
    }
    app.find_redis().await;
    assert_eq!(app.both_in_redis("victim").await, (3, 3));
    attempt(&app.limiter, ip(HOME), "victim", Outcome::Success)
        .await
        .unwrap();
    assert_eq!(app.both_in_redis("victim").await, (0, 0));
}

/// A reader of the database does not see that two keys belong to one name.
#[tokio::test]
async fn spellings_are_hashed_apart_in_each_key() {
    let redis = crate::support::RedisServer::start();
    let store = redis.store().await;
    let limiter = LoginLimiter::new(Policy::default(), store);
    fail(&limiter, ip(HOME), "Alice", 1).await;
    fail(&limiter, ip(ATTACKER), "Alice", 1).await;
    let keys: Vec<String> = redis.command(&["KEYS", "*user-address*"]);
    let suffixes = keys.iter().map(|key| {
        let members: Vec<Vec<u8>> = redis.command(&["ZRANGE", key, "0", "-1"]);
        assert_eq!((members.len(), members[0].len()), (1, 24));
        members[0][16..].to_vec()
    });
    let suffixes: Vec<_> = suffixes.collect();
    assert_eq!(suffixes.len(), 2);
    assert_ne!(suffixes[0], suffixes[1]);
}
