//! Codes are limited by account over all addresses, and passwords are not.

use tower::{Layer, ServiceExt, service_fn};
use tower_login_rate_limit::{
    Caller, LoginAttempt, LoginLimiter, LoginRateLimitLayer, Outcome, Policy, Refusal,
    ReserveError, Rule, store::MemoryStore,
};

use crate::{
    account::{allow_known_addresses, bot, everywhere},
    log::Log,
    support::{attempt, ip, request},
};

const HOME: &str = "192.0.2.1";

async fn code(
    limiter: &LoginLimiter,
    address: std::net::IpAddr,
    user: &str,
    outcome: Outcome,
) -> Result<(), Refusal> {
    let caller = Caller::new(address)
        .with_user(user)
        .with_second_factor(true);
    match limiter.reserve(caller).await {
        Ok(attempt) => {
            attempt.settle(outcome).await.unwrap();
            Ok(())
        }
        Err(ReserveError::Refused(refusal)) => Err(refusal),
        Err(error) => panic!("{error:?}"),
    }
}

/// The attacker has the password, and starts the login over from a new address after every five codes.
#[tokio::test]
async fn codes_from_a_hundred_addresses_are_twenty_in_all() {
    let (_redis, _cluster, stores) = everywhere().await;
    for (name, store) in stores {
        let limiter = LoginLimiter::new(Policy::default(), store);
        let (mut codes, mut refusals) = (0, Vec::new());
        for i in 0..100 {
            attempt(&limiter, bot(i), "victim", Outcome::MfaPending)
                .await
                .unwrap();
            for _ in 0..5 {
                match code(&limiter, bot(i), "victim", Outcome::Failure).await {
                    Ok(()) => codes += 1,
                    Err(refusal) => refusals.push(refusal),
                }
            }
        }
        assert_eq!(codes, 20, "{name}");
        let is_second_factor = |refusal: &&Refusal| refusal.rule() == Rule::SECOND_FACTOR;
        assert_eq!(
            refusals.iter().filter(is_second_factor).count(),
            480,
            "{name}"
        );
        // Other accounts, and the victim's password step, are as before.
        code(&limiter, ip(HOME), "other", Outcome::Success)
            .await
            .unwrap();
        attempt(&limiter, ip(HOME), "victim", Outcome::MfaPending)
            .await
            .unwrap();
    }
}

/// Without the password, an attacker gets nowhere near the codes: nobody is locked out of their second factor
/// by wrong passwords.
#[tokio::test]
async fn wrong_passwords_do_not_use_up_the_codes_of_an_account() {
    let (_redis, _cluster, stores) = everywhere().await;
    for (name, store) in stores {
        let limiter = LoginLimiter::new(Policy::default(), store);
        for i in 0..50 {
            attempt(&limiter, bot(i), "owner", Outcome::Failure)
                .await
                .unwrap();
        }
        code(&limiter, ip(HOME), "owner", Outcome::Success)
            .await
            .unwrap();
        let caller = Caller::new(ip(HOME))
            .with_user("owner")
            .with_second_factor(true);
        let report = limiter.check(caller).await.unwrap();
        assert_eq!(report.rule(Rule::SECOND_FACTOR).unwrap().usage, 0, "{name}");
        let report = limiter.check((ip(HOME), "owner")).await.unwrap();
        assert!(report.rule(Rule::SECOND_FACTOR).is_none());
    }
}

#[tokio::test]
async fn a_correct_code_takes_back_the_owners_own_wrong_ones_and_no_others() {
    let (_redis, _cluster, stores) = everywhere().await;
    for (name, store) in stores {
        let limiter = LoginLimiter::new(Policy::default(), store);
        for _ in 0..3 {
            code(&limiter, ip(HOME), "owner", Outcome::Failure)
                .await
                .unwrap();
        }
        for i in 0..4 {
            code(&limiter, bot(i), "owner", Outcome::Failure)
                .await
                .unwrap();
        }
        code(&limiter, ip(HOME), "owner", Outcome::Success)
            .await
            .unwrap();
        let caller = Caller::new(ip(HOME))
            .with_user("owner")
            .with_second_factor(true);
        let report = limiter.check(caller).await.unwrap();
        assert_eq!(report.rule(Rule::SECOND_FACTOR).unwrap().usage, 4, "{name}");
    }
}

/// Under a policy that knows where the owner logs in from, the attacker's codes do not lock the owner out.
#[tokio::test]
async fn the_owner_enters_the_code_at_home_while_an_attacker_has_used_them_up() {
    let (mut redis, mut cluster, stores) = everywhere().await;
    allow_known_addresses(&mut redis, &mut cluster);
    for (name, store) in stores {
        let limiter = LoginLimiter::new(Policy::strict(), store);
        code(&limiter, ip(HOME), "owner", Outcome::Success)
            .await
            .unwrap();
        for i in 0..30 {
            let _ = code(&limiter, bot(i), "owner", Outcome::Failure).await;
        }
        let refusal = code(&limiter, bot(99), "owner", Outcome::Failure)
            .await
            .unwrap_err();
        assert_eq!(refusal.rule(), Rule::SECOND_FACTOR, "{name}");
        code(&limiter, ip(HOME), "owner", Outcome::Success)
            .await
            .unwrap();
    }
}

#[tokio::test]
async fn a_code_step_without_its_layer_is_logged_once() {
    async fn log_in(limiter: &LoginLimiter) {
        let service = service_fn(async |request: http::Request<_>| {
            request
                .extensions()
                .get::<LoginAttempt>()
                .unwrap()
                .mfa_pending();
            let _: http_body_util::Full<bytes::Bytes> = request.into_body();
            Ok::<_, std::convert::Infallible>(http::Response::new(()))
        });
        let layer = LoginRateLimitLayer::new(limiter.clone())
            .with_user(|_: &http::request::Parts| Some("user".to_owned()));
        let service = layer.layer(service);
        for _ in 0..3 {
            service.clone().oneshot(request()).await.unwrap();
        }
    }
    let (log, guard) = Log::start();
    let limiter = LoginLimiter::new(Policy::default(), MemoryStore::new());
    log_in(&limiter).await;
    assert_eq!(log.count("awaits a second factor"), 1);
    drop(guard);

    let (log, _guard) = Log::start();
    let limiter = LoginLimiter::new(Policy::default(), MemoryStore::new());
    let _for_code = LoginRateLimitLayer::new(limiter.clone()).with_second_factor(true);
    log_in(&limiter).await;
    assert_eq!(log.count("awaits a second factor"), 0);
}
