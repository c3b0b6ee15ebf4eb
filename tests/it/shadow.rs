//! A rule in shadow counts as ever and refuses nothing; what it would have refused is reported.

use std::{
    sync::{Arc, Mutex},
    time::Duration,
};

use http::{HeaderName, Request, Response, StatusCode};
use http_body_util::Full;
use tower::{Layer, ServiceExt, service_fn};
use tower_login_rate_limit::{
    Limit, LoginAttempt, LoginLimiter, LoginRateLimitLayer, Outcome, Part, Period, Policy, Reason,
    Rule, Standard,
    admin::{BlockFilter, Subject},
    algorithm::State,
    event::{Event, What},
    extract::Header,
    store::{MemoryStore, RedisStore, Store, redis::Outage},
};

use crate::{
    account::everywhere,
    log::Log,
    support::{RedisServer, attempt, fail, ip, refused, request},
    without_redis::App,
};

const HOME: &str = "192.0.2.1";
const TRIAL: &str = "trial";

/// Two failures of a user from an address block them for three hours.
fn trial() -> Rule {
    let limit = Limit::attempts(2).within(Period::hours(1));
    let parts = [Part::User, Part::Address];
    Rule::new(TRIAL, parts, limit.blocked_for(Period::hours(3))).unwrap()
}

/// The default policy, and a rule that is tried out or in force.
fn policy(shadow: bool) -> Policy {
    Policy::default().with_rule(trial().with_shadow(shadow))
}

fn limiters(store: &Arc<dyn Store>) -> [LoginLimiter; 2] {
    [true, false].map(|shadow| LoginLimiter::new(policy(shadow), Arc::clone(store)))
}

#[tokio::test]
async fn what_a_rule_in_shadow_would_refuse_is_admitted_reported_and_counted_by_the_others() {
    let (_redis, _cluster, stores) = everywhere().await;
    for (name, store) in stores {
        let [limiter, _] = limiters(&store);
        for i in 1..=5 {
            let attempt = limiter.reserve((ip(HOME), "user")).await.unwrap();
            let report = attempt.report();
            let shadowed: Vec<_> = report.shadowed().collect();
            let standing = report.rule(TRIAL).unwrap();
            assert!(!standing.refuses() && report.refusal().is_none(), "{name}");
            if i <= 2 {
                assert_eq!(
                    (standing.state, standing.usage),
                    (State::Clear, i),
                    "{name}"
                );
                assert!(shadowed.is_empty(), "{name}");
            } else {
                assert_eq!((standing.usage, standing.limit), (2, 2), "{name}");
                let [refusal] = &shadowed[..] else {
                    panic!("{name}: {shadowed:?}");
                };
                assert_eq!((refusal.rule(), refusal.usage()), (TRIAL, 2), "{name}");
                assert_eq!(refusal.reason(), Reason::Blocked, "{name}");
                assert!(refusal.lifts() > Period::hours(2), "{name}: {refusal}");
            }
            // The others count each of them, and what is left is what they admit.
            let pair = report.rule(Rule::USER_ADDRESS).unwrap();
            assert_eq!((pair.usage, report.remaining()), (i, Some(5 - i)), "{name}");
            let full = (i == 5).then(|| Period::hours(24));
            assert_eq!(report.block_if_failed(), full, "{name}");
            attempt.settle(Outcome::Failure).await.unwrap();
        }
        let refusal = refused(limiter.reserve((ip(HOME), "user")).await);
        assert_eq!(refusal.rule(), Rule::USER_ADDRESS, "{name}");
        // A check reports both.
        let report = limiter.check((ip(HOME), "user")).await.unwrap();
        assert_eq!(report.refusal().unwrap().rule(), Rule::USER_ADDRESS);
        let shadowed: Vec<_> = report.shadowed().collect();
        assert_eq!((shadowed.len(), shadowed[0].rule()), (1, TRIAL), "{name}");
    }
}

/// Two attempts at once: the second factor of the trial is busy, and admits.
#[tokio::test]
async fn attempts_in_flight_keep_a_rule_in_shadow_busy() {
    let (_redis, _cluster, stores) = everywhere().await;
    for (name, store) in stores {
        let [limiter, _] = limiters(&store);
        let reserve = || limiter.reserve((ip(HOME), "user"));
        let (first, second) = (reserve().await.unwrap(), reserve().await.unwrap());
        let third = reserve().await.unwrap();
        let busy = State::Shadowed { lifts: None };
        assert_eq!(third.report().rule(TRIAL).unwrap().state, busy, "{name}");
        let refusal = third.report().shadowed().next().unwrap();
        assert_eq!(refusal.reason(), Reason::Busy, "{name}");
        // A success makes room, and takes back what the rule has counted.
        first.settle(Outcome::Failure).await.unwrap();
        third.settle(Outcome::Failure).await.unwrap();
        second.settle(Outcome::Success).await.unwrap();
        let report = limiter.check((ip(HOME), "user")).await.unwrap();
        assert_eq!(report.rule(TRIAL).unwrap().usage, 0, "{name}");
    }
}

/// Taken out of shadow, a rule refuses what it said that it would; put into it, it refuses nothing, however it is
/// cached.
#[tokio::test]
async fn a_rule_comes_into_force_with_what_it_has_counted_and_leaves_nobody_blocked() {
    let (_redis, _cluster, stores) = everywhere().await;
    for (name, store) in stores {
        let [shadow, enforced] = limiters(&store);
        fail(&shadow, ip(HOME), "user", 3).await;
        for _ in 0..3 {
            let refusal = refused(enforced.reserve((ip(HOME), "user")).await);
            assert_eq!((refusal.rule(), refusal.usage()), (TRIAL, 2), "{name}");
            attempt(&shadow, ip(HOME), "user", Outcome::NotAnAttempt)
                .await
                .unwrap();
        }
        fail(&shadow, ip(HOME), "user", 2).await;
        let refusal = refused(shadow.reserve((ip(HOME), "user")).await);
        assert_eq!(refusal.rule(), Rule::USER_ADDRESS, "{name}");
    }
}

/// The block was cached while the rule was in force, and is not written back to a new server for one in shadow.
#[tokio::test]
async fn a_rule_in_shadow_restores_no_block() {
    let mut redis = RedisServer::start();
    let builder = RedisStore::builder().with_deadline(Duration::from_secs(20));
    let store: Arc<dyn Store> = Arc::new(builder.connect(redis.url()).await.unwrap());
    let [shadow, enforced] = limiters(&store);
    fail(&enforced, ip(HOME), "user", 2).await;
    refused(enforced.reserve((ip(HOME), "user")).await);
    redis.kill();
    redis.restart();
    // For longer than a block is fresh.
    for _ in 0..4 {
        tokio::time::sleep(Duration::from_millis(300)).await;
        attempt(&shadow, ip(HOME), "user", Outcome::NotAnAttempt)
            .await
            .unwrap();
    }
    // The list of blocks is apart.
    let keys = redis.keys().into_iter().map(|(key, _)| key);
    let counters: Vec<_> = keys
        .filter(|key| key.contains("192.0.2.1}:trial"))
        .collect();
    assert_eq!(counters, [""; 0]);
}

#[tokio::test]
async fn an_outage_refuses_nothing_by_a_rule_in_shadow() {
    let builder = RedisStore::builder().with_outage(Outage::Fallback);
    let app = App::start_with(builder, policy(true)).await;
    fail(&app.limiter, ip(HOME), "user", 2).await;
    app.lose_redis().await;
    fail(&app.limiter, ip(HOME), "user", 2).await;
    let attempt = app.limiter.reserve((ip(HOME), "user")).await.unwrap();
    let shadowed = attempt.report().shadowed().next().unwrap();
    assert_eq!((shadowed.rule(), shadowed.usage()), (TRIAL, 2));
    attempt.settle(Outcome::Failure).await.unwrap();
    let refusal = refused(app.limiter.reserve((ip(HOME), "user")).await);
    assert_eq!(refusal.rule(), Rule::USER_ADDRESS);
    app.find_redis().await;
    // Redis has of each rule what it counted.
    let report = app.limiter.check((ip(HOME), "user")).await.unwrap();
    assert_eq!(report.rule(TRIAL).unwrap().usage, 2);
    assert_eq!(report.rule(Rule::USER_ADDRESS).unwrap().usage, 5);
}

/// An operator sees the block, and that it refuses nobody; observers see both.
#[tokio::test]
async fn a_block_in_shadow_is_explained_and_observed_as_one() {
    let seen = Arc::new(Mutex::new(Vec::new()));
    let observed = Arc::clone(&seen);
    let [limiter, enforced] = limiters(&(Arc::new(MemoryStore::new()) as Arc<dyn Store>));
    let limiter = limiter.with_observer(move |event: &Event| {
        let what = match &event.what {
            What::BlockBegan { rule, shadow, .. } => ("began", rule, *shadow),
            What::Refused { rule, shadow, .. } => ("refused", rule, *shadow),
            _ => return,
        };
        let (what, rule, shadow) = what;
        let mut seen = observed.lock().unwrap();
        seen.push((what, rule.to_string(), shadow));
    });
    fail(&limiter, ip(HOME), "user", 3).await;
    assert!(limiter.observed().await);
    let trial = |what| (what, TRIAL.to_owned(), true);
    assert_eq!(*seen.lock().unwrap(), [trial("began"), trial("refused")]);

    let admin = limiter.admin().unwrap();
    let explanation = admin.explain(&Subject::pair(ip(HOME), "user")).await;
    let explanation = explanation.unwrap();
    assert!(!explanation.refuses());
    let mut limits = explanation.limits.iter();
    let limit = limits.find(|limit| *limit.rule == *TRIAL).unwrap();
    assert!(limit.shadow && limit.state.refuses(), "{limit:?}");
    assert!(limit.words.starts_with("in shadow"), "{}", limit.words);
    // In force, the same block refuses.
    for (admin, shadow) in [(admin, true), (enforced.admin().unwrap(), false)] {
        let blocks = admin.blocks(&BlockFilter::new()).await.unwrap().blocks;
        assert_eq!((blocks.len(), blocks[0].shadow), (1, shadow));
    }
}

fn layer(limiter: LoginLimiter) -> LoginRateLimitLayer {
    LoginRateLimitLayer::new(limiter)
        .with_user(Header::new(HeaderName::from_static("x-user")))
        .with_rate_limit_fields(true)
}

/// One wrong password.
async fn guess(layer: &LoginRateLimitLayer) -> Response<()> {
    let handler = |request: Request<Full<bytes::Bytes>>| async move {
        let attempt = request.extensions().get::<LoginAttempt>().unwrap();
        attempt.failed();
        let mut response = Response::new(Full::<bytes::Bytes>::default());
        *response.status_mut() = StatusCode::UNAUTHORIZED;
        Ok::<_, std::convert::Infallible>(response)
    };
    let mut request = request();
    *request.method_mut() = http::Method::POST;
    let user = "alice".parse().unwrap();
    request.headers_mut().insert("x-user", user);
    let service = layer.layer(service_fn(handler));
    service.oneshot(request).await.unwrap().map(drop)
}

/// A client sees no difference, and the operator sees the rule, some times and not each time.
#[tokio::test]
async fn the_layer_logs_what_a_rule_in_shadow_would_refuse_and_shows_it_to_no_client() {
    let limit = Limit::attempts(1).within(Period::hours(1));
    let address = Policy::new([trial().with_shadow(true)])
        .unwrap()
        .with_address_limit(limit)
        .unwrap()
        .with_rule_shadow(Rule::ADDRESS, true)
        .unwrap();
    let none = Policy::new([trial().with_enabled(false)]).unwrap();
    let [with, without] =
        [address, none].map(|policy| layer(LoginLimiter::new(policy, MemoryStore::new())));
    let (log, _guard) = Log::start();
    for _ in 0..12 {
        let (with, without) = (guess(&with).await, guess(&without).await);
        assert_eq!(with.status(), StatusCode::UNAUTHORIZED);
        assert_eq!(with.headers(), without.headers());
    }
    let text = log.text();
    let lines = |words: &[&str]| {
        let has_all = |line: &&str| words.iter().all(|word| line.contains(word));
        text.lines().filter(has_all).count()
    };
    let refused = "would be refused by a rule in shadow";
    // The eleven and ten that they would have refused: the first, and the tenth.
    assert_eq!(lines(&[refused, "rule=\"address\""]), 2, "{text}");
    assert_eq!(lines(&[refused, "rule=\"trial\"", "usage=2", "limit=2"]), 2);
    assert_eq!(lines(&["login block began", "shadow=true"]), 2, "{text}");
    assert_eq!(log.count("login block began"), 2);
    assert!(!text.contains("alice"));
}

/// Nor does a standard take a rule in shadow for one in force.
#[test]
fn a_policy_does_not_conform_by_rules_in_shadow() {
    for (standard, policy) in [
        (Standard::Nist, Policy::nist()),
        (Standard::Pci, Policy::pci()),
        (Standard::Owasp, Policy::owasp()),
    ] {
        assert!(policy.check(standard).is_empty(), "{standard:?}");
        let names = policy.rules().iter().map(|rule| rule.name().to_owned());
        let names: Vec<_> = names.collect();
        let shadow = names.iter().fold(policy, |policy, name| {
            policy.with_rule_shadow(name, true).unwrap()
        });
        assert!(!shadow.check(standard).is_empty(), "{standard:?}");
    }
}

#[test]
fn policies_in_files_have_rules_in_shadow() {
    let text = r#"
        [[rules]]
        name = "address"
        limit = 25
        within = "24h"

        [[rules]]
        name = "trial"
        key = ["user", "address"]
        limit = 2
        within = "1h"
        block = "3h"
        shadow = true
    "#;
    let read: Policy = toml::from_str(text).unwrap();
    assert_eq!(read.rule(TRIAL).unwrap(), &trial().with_shadow(true));
    assert!(!read.rule(Rule::ADDRESS).unwrap().is_shadow());
    let written = toml::to_string(&read).unwrap();
    assert_eq!(written.matches("shadow").count(), 1, "{written}");
    assert_eq!(toml::from_str::<Policy>(&written).unwrap(), read);
    // A new limit leaves a rule where it is.
    let limit = Limit::attempts(7).within(Period::hours(1));
    let policy = policy(true).with_rule_shadow(Rule::ADDRESS, true).unwrap();
    let policy = policy.with_address_limit(limit).unwrap();
    assert!(policy.rule(Rule::ADDRESS).unwrap().is_shadow());
    policy.with_rule_shadow("missing", true).unwrap_err();
}
