//! What observers and metrics learn of logins, compared with what was done.

use std::{
    collections::BTreeMap,
    sync::{Arc, Mutex},
    time::Duration,
};

use axum::{Router, body::Body, routing::post};
use http::{HeaderName, Request, StatusCode};
use metrics_exporter_prometheus::PrometheusBuilder;
use tower::ServiceExt;
use tower_login_rate_limit::{
    Caller, Limit, LoginAttempt, LoginLimiter, LoginRateLimitLayer, Outcome, Period, Policy,
    ReserveError,
    access::{AccessRule, AccessRules, Field},
    clock::ManualClock,
    event::{Event, UserDisplay, UserHasher, What},
    extract::{Header, PeerAddressExtension},
    insight::Insight,
    store::{MemoryStore, RedisStore},
};

use crate::support::{
    BothStores, CLIENT, Fault, Proxy, RedisServer, START, attempt, eventually, fail, ip, refused,
};

#[derive(Clone, Default)]
struct Seen(Arc<Mutex<Vec<Event>>>);

impl Seen {
    fn observer(&self) -> impl Fn(&Event) + Send + Sync + 'static {
        let seen = Arc::clone(&self.0);
        move |event: &Event| seen.lock().unwrap().push(event.clone())
    }

    fn count(&self, matches: impl Fn(&Event) -> bool) -> usize {
        self.0
            .lock()
            .unwrap()
            .iter()
            .filter(|event| matches(event))
            .count()
    }

    fn named(&self, name: &str) -> usize {
        self.count(|event| event.what.name() == name)
    }

    fn lifted(&self, user: &str, wanted: &str) -> usize {
        self.count(|event| {
            let of = event.user.as_ref().and_then(|user| user.identified());
            let by = matches!(&event.what, What::BlockLifted { by, .. } if by.name() == wanted);
            by && of == Some(user)
        })
    }

    fn settled(&self, wanted: Outcome) -> usize {
        self.count(|event| matches!(event.what, What::Settled { outcome, .. } if outcome == wanted))
    }
}

/// Values of all metrics by name and labels, but for durations.
fn scraped(text: &str) -> BTreeMap<String, u64> {
    let lines = text
        .lines()
        .filter(|line| !line.is_empty() && !line.starts_with('#'));
    let values = lines.filter_map(|line| line.rsplit_once(' '));
    values
        .filter_map(|(name, value)| Some((name.to_owned(), value.parse().ok()?)))
        .collect()
}

/// The scripted run: each number in it is found again in the events and in the text of Prometheus.
async fn run(limiter: &LoginLimiter) {
    let office = ip("198.51.100.1");
    for user in ["a", "b", "c"] {
        attempt(limiter, office, user, Outcome::Success)
            .await
            .unwrap();
    }
    fail(limiter, ip(CLIENT), "Alice", 5).await;
    for _ in 0..7 {
        refused(limiter.reserve((ip(CLIENT), "alice")).await);
    }
    for outcome in [
        Outcome::UnknownUser,
        Outcome::MfaPending,
        Outcome::NotAnAttempt,
    ] {
        attempt(limiter, office, "d", outcome).await.unwrap();
    }
    let code = Caller::new(office).with_user("a").with_second_factor(true);
    let code = limiter.reserve(code).await.unwrap();
    code.settle(Outcome::Failure).await.unwrap();
    let _in_flight = limiter.reserve((office, "e")).await.unwrap();
    let denied = limiter.reserve((ip("203.0.113.1"), "f")).await;
    assert!(matches!(denied, Err(ReserveError::Denied(_))));
    let mut aliased = limiter.reserve((ip(CLIENT), "a.lice")).await.unwrap();
    refused(aliased.identify("alice").await);
    aliased.settle(Outcome::Failure).await.unwrap();
}

fn limiter(seen: &Seen) -> LoginLimiter {
    let rules =
        AccessRules::new([AccessRule::deny("botnet", Field::Network, "203.0.113.0/24").unwrap()]);
    LoginLimiter::new(Policy::default(), MemoryStore::new())
        .with_access_rules(rules.unwrap())
        .unwrap()
        .with_user_display(UserDisplay::Masked)
        .with_observer(seen.observer())
}

#[test]
fn events_and_metrics_of_a_scripted_run_equal_what_was_done() {
    let recorder = PrometheusBuilder::new().build_recorder();
    let seen = Seen::default();
    let runtime = tokio::runtime::Builder::new_current_thread()
        .enable_all()
        .build()
        .unwrap();
    metrics::with_local_recorder(&recorder, || {
        runtime.block_on(async {
            let limiter = limiter(&seen);
            run(&limiter).await;
            assert!(limiter.observed().await);
        });
    });
    assert_eq!(seen.settled(Outcome::Success), 3);
    assert_eq!(seen.settled(Outcome::Failure), 6);
    assert_eq!(seen.settled(Outcome::UnknownUser), 1);
    assert_eq!(seen.settled(Outcome::MfaPending), 1);
    assert_eq!(seen.settled(Outcome::NotAnAttempt), 1);
    assert_eq!(seen.named("refused"), 8);
    assert_eq!(seen.named("access_rule_hit"), 1);
    assert_eq!(seen.named("block_began"), 1);
    assert_eq!(
        seen.count(|event| matches!(
            event.what,
            What::Settled {
                second_factor: true,
                ..
            }
        )),
        1
    );
    let values = scraped(&recorder.handle().render());
    let value = |name: &str| {
        values
            .get(name)
            .copied()
            .unwrap_or_else(|| panic!("{name}: {values:#?}"))
    };
    for (name, expected) in [
        ("login_admissions_total", 14),
        ("login_attempts_in_flight", 1),
        ("login_attempts_total{outcome=\"success\"}", 3),
        ("login_attempts_total{outcome=\"failure\"}", 6),
        ("login_attempts_total{outcome=\"unknown_user\"}", 1),
        ("login_attempts_total{outcome=\"mfa_pending\"}", 1),
        ("login_attempts_total{outcome=\"not_an_attempt\"}", 1),
        ("login_access_rule_hits_total{action=\"deny\"}", 1),
        ("login_access_rule_hits_total{action=\"allow\"}", 0),
        (
            "login_refusals_total{rule=\"user-address\",reason=\"blocked\",shadow=\"false\"}",
            8,
        ),
        ("login_blocks_begun_total{rule=\"user-address\"}", 1),
        ("login_blocks_begun_total{rule=\"address\"}", 0),
    ] {
        assert_eq!(value(name), expected, "{name}");
    }
}

#[tokio::test]
async fn an_event_has_the_user_as_typed_and_shows_what_was_chosen() {
    let seen = Seen::default();
    let limiter = limiter(&seen);
    fail(&limiter, ip(CLIENT), "Alice", 5).await;
    refused(limiter.reserve((ip(CLIENT), "ALICE")).await);
    assert!(limiter.observed().await);
    let events = seen.0.lock().unwrap();
    for event in &*events {
        let user = event.user.as_ref().expect("a user");
        assert_eq!(user.identified(), Some("alice"));
        assert_eq!(event.address.unwrap().to_string(), CLIENT);
        for text in [format!("{event:?}"), serde_json::to_string(event).unwrap()] {
            assert!(!text.to_lowercase().contains("alice"), "{text}");
            assert!(text.contains("a***"), "{text}");
        }
    }
    let typed: Vec<_> = events
        .iter()
        .filter_map(|event| event.user.as_ref()?.typed())
        .collect();
    assert!(
        typed.contains(&"Alice") && typed.contains(&"ALICE"),
        "{typed:?}"
    );
}

/// A request through two layers of one limiter is one attempt, and one event.
#[tokio::test]
async fn a_login_that_passes_nested_layers_is_one_event() {
    let seen = Seen::default();
    let limiter = limiter(&seen);
    let by_header = Header::new(HeaderName::from_static("x-user"));
    let layer = LoginRateLimitLayer::new(limiter.clone());
    let handler = async |attempt: LoginAttempt| {
        attempt.failed();
        StatusCode::UNAUTHORIZED
    };
    let app = Router::new()
        .route(
            "/login",
            post(handler).layer(layer.clone().with_user(by_header)),
        )
        .layer(layer);
    for i in 0..6 {
        let mut request = Request::post("/login")
            .header("x-user", "alice")
            .body(Body::empty())
            .unwrap();
        let peer = PeerAddressExtension((ip(CLIENT), 5000).into());
        request.extensions_mut().insert(peer);
        let status = app.clone().oneshot(request).await.unwrap().status();
        assert_eq!(status == 429, i == 5, "{status}");
    }
    assert!(limiter.observed().await);
    assert_eq!(seen.settled(Outcome::Failure), 5);
    assert_eq!(seen.named("block_began"), 1);
    assert_eq!(seen.named("refused"), 1);
    let with_user = seen.count(|event| event.user.is_some());
    assert_eq!(with_user, 7, "the layer that knows the user reports");
}

#[tokio::test]
async fn a_store_that_goes_down_and_comes_back_is_reported() {
    let redis = RedisServer::start();
    let proxy = Proxy::start(format!("127.0.0.1:{}", redis.port())).await;
    let store = RedisStore::connect(proxy.url()).await.unwrap();
    let seen = Seen::default();
    let limiter = LoginLimiter::new(Policy::default(), store).with_observer(seen.observer());
    fail(&limiter, ip(CLIENT), "alice", 1).await;
    proxy.fail(Fault::Resets);
    fail(&limiter, ip(CLIENT), "alice", 2).await;
    // The breaker opens when calls have failed for a while.
    for i in 0.. {
        let address = ip(&format!("198.51.{}.{}", i / 250, i % 250));
        fail(&limiter, address, "alice", 1).await;
        if seen.named("store_down") == 1 {
            break;
        }
        tokio::time::sleep(Duration::from_millis(20)).await;
    }
    proxy.fail(Fault::None);
    eventually(|| seen.named("store_up") == 1).await;
    eventually(|| seen.named("journal_replayed") == 1).await;
    let replayed = seen.count(
        |event| matches!(event.what, What::JournalReplayed { replayed, dropped: 0, .. } if replayed >= 3),
    );
    assert_eq!(replayed, 1);
}

/// One address at many users is a signal, a login after a block makes the block look wrong, and the busiest are
/// known.
#[tokio::test]
async fn insight_finds_attacks_wrong_blocks_and_the_busiest() {
    let (seen, clock) = (Seen::default(), Arc::new(ManualClock::at(START)));
    let insight = Insight::new(UserHasher::new("sixteen bytes or more").unwrap());
    let store = MemoryStore::new().with_clock(Arc::clone(&clock));
    let limiter = LoginLimiter::new(Policy::default(), store)
        .with_insight(insight.clone())
        .with_observer(seen.observer());
    let attacker = ip("203.0.113.9");
    for i in 0..25 {
        fail(&limiter, attacker, &format!("user-{i}"), 1).await;
    }
    for i in 0..20 {
        let user = format!("other-{i}");
        refused(limiter.reserve((attacker, &*user)).await);
    }
    fail(&limiter, ip(CLIENT), "alice", 5).await;
    clock.advance(Duration::from_secs(25 * 60 * 60));
    attempt(&limiter, ip(CLIENT), "alice", Outcome::Success)
        .await
        .unwrap();
    // What insight finds is emitted by its own thread.
    assert!(limiter.observed().await && limiter.observed().await);
    let busiest = insight.busiest(1);
    assert_eq!(&*busiest.addresses[0].id, "203.0.113.9");
    assert_eq!(busiest.addresses[0].guesses(), 45);
    let rows: Vec<_> = insight.wrong_blocks().rows().collect();
    let pair = rows.iter().find(|row| &*row.rule == "user-address");
    let pair = pair.expect("a row");
    assert_eq!((pair.blocks, pair.wrong), (1, 1));
    let address = rows.iter().find(|row| &*row.rule == "address").unwrap();
    assert_eq!((address.blocks, address.wrong, address.stopped), (1, 0, 20));
    assert_eq!(seen.named("wrong_block"), 1);
    assert_eq!(seen.named("signal"), 1);
}

/// A block that ends by time is reported; one that the app has lifted ends no second time.
#[tokio::test]
async fn a_block_that_is_over_is_reported_once_whatever_ended_it() {
    let seen = Seen::default();
    let second = Limit::attempts(2)
        .within(Period::seconds(1))
        .blocked_for(Period::seconds(1));
    let policy = Policy::default().with_user_address_limit(second).unwrap();
    let limiter = LoginLimiter::new(policy, MemoryStore::new()).with_observer(seen.observer());
    fail(&limiter, ip(CLIENT), "over", 2).await;
    fail(&limiter, ip(CLIENT), "lifted", 2).await;
    limiter.unblock((ip(CLIENT), "lifted")).await.unwrap();
    eventually(|| seen.named("block_lifted") > 1).await;
    tokio::time::sleep(Duration::from_millis(300)).await;
    assert_eq!(seen.named("block_began"), 2);
    assert_eq!(seen.lifted("over", "time"), 1);
    assert_eq!(seen.lifted("lifted", "app"), 1);
    assert_eq!(seen.named("block_lifted"), 2);
}

/// A slow login counts as a failure when its lease ends, which begins a block, and succeeds after all.
#[tokio::test]
async fn a_block_that_a_success_ends_is_reported_once() {
    let both = BothStores::start().await;
    for (name, limiter) in both.limiters(&Policy::default()) {
        let seen = Seen::default();
        let limiter = limiter.with_observer(seen.observer());
        let caller = (ip(CLIENT), "owner");
        fail(&limiter, ip(CLIENT), "owner", 4).await;
        let owner = limiter.reserve(caller).await.unwrap();
        let over = limiter.resume(owner.token(), caller);
        over.settle(Outcome::Failure).await.unwrap();
        limiter.all_settled().await.unwrap();
        let began = (seen.named("block_began"), seen.named("block_lifted"));
        assert_eq!(began, (1, 0), "{name}");

        owner.settle(Outcome::Success).await.unwrap();
        limiter.all_settled().await.unwrap();
        let lifted = (seen.lifted("owner", "success"), seen.named("block_lifted"));
        assert_eq!(lifted, (1, 1), "{name}");
    }
}
