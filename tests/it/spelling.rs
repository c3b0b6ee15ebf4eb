//! Names that fold to one and are several accounts: they share a budget, and a success takes back the failures
//! of its own spelling only.

use std::sync::Arc;

use tower_login_rate_limit::{
    Limit, LoginLimiter, Outcome, Period, Policy, Rule, algorithm::State, store::redis::Outage,
};

use crate::{
    account::{allow_known_addresses, everywhere},
    support::{attempt, fail, ip, refused},
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
