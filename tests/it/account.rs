//! The account rule: a botnet is stopped, and the owner is not.

use std::{
    convert::Infallible,
    net::IpAddr,
    sync::{
        Arc,
        atomic::{AtomicUsize, Ordering},
    },
    time::Duration,
};

use http::{HeaderName, Request, Response, StatusCode};
use tower::{Layer, ServiceExt, service_fn};
use tower_login_rate_limit::{
    KnownAddresses, Limit, LoginAttempt, LoginLimiter, LoginRateLimitLayer, Outcome, Part, Period,
    Policy, ReserveError, Rule, Token,
    algorithm::State,
    extract::{Header, PeerAddressExtension},
    store::{Key, MemoryStore, Settlement, Slot, Store},
};

use crate::support::{
    BothStores, DAY, HOUR, RedisCluster, RedisServer, attempt, clean_up, closed, eventually, fail,
    ip, refused,
};

const HOME: &str = "192.0.2.1";
const OFFICE: &str = "198.51.100.7";

pub fn bot(i: usize) -> IpAddr {
    IpAddr::from([203, 0, (i / 256) as u8, (i % 256) as u8])
}

/// Every kind of place in which an account's counter may be.
pub async fn everywhere() -> (
    RedisServer,
    RedisCluster,
    [(&'static str, Arc<dyn Store>); 3],
) {
    let (redis, cluster) = (RedisServer::start(), RedisCluster::start());
    let stores: [(_, Arc<dyn Store>); 3] = [
        ("memory", Arc::new(MemoryStore::new())),
        ("redis", Arc::new(redis.store().await)),
        ("cluster", Arc::new(cluster.store())),
    ];
    (redis, cluster, stores)
}

/// 200 addresses, three guesses each and all at once, at one account through the layer: a hundred get
/// to the handler. The owner logs in from home while they try.
#[tokio::test(flavor = "multi_thread")]
async fn two_hundred_addresses_guess_a_hundred_times_and_the_owner_logs_in() {
    let (mut redis, mut cluster, stores) = everywhere().await;
    allow_known_addresses(&mut redis, &mut cluster);
    for (name, store) in stores {
        let limiter = LoginLimiter::new(Policy::strict(), store);
        attempt(&limiter, ip(HOME), "alice", Outcome::Success)
            .await
            .unwrap();

        let guesses = Arc::new(AtomicUsize::new(0));
        let handler = {
            let guesses = Arc::clone(&guesses);
            service_fn(move |request: Request<()>| {
                let guesses = Arc::clone(&guesses);
                async move {
                    let attempt = request.extensions().get::<LoginAttempt>().unwrap();
                    let mut response = Response::new(());
                    if request.headers().contains_key("right") {
                        attempt.succeeded();
                    } else {
                        guesses.fetch_add(1, Ordering::Relaxed);
                        attempt.failed();
                        *response.status_mut() = StatusCode::UNAUTHORIZED;
                    }
                    Ok::<_, Infallible>(response)
                }
            })
        };
        let layer = LoginRateLimitLayer::new(limiter.clone())
            .with_user(Header::new(HeaderName::from_static("user")));
        let service = layer.layer(handler);
        let ask = |address: IpAddr, right: bool| {
            let mut request = Request::builder().header("user", "alice");
            if right {
                request = request.header("right", "yes");
            }
            let mut request = request.body(()).unwrap();
            let peer = PeerAddressExtension((address, 5000).into());
            request.extensions_mut().insert(peer);
            let answer = service.clone().oneshot(request);
            async move { answer.await.unwrap().status().as_u16() }
        };

        let bots: Vec<_> = (0..600)
            .map(|i| tokio::spawn(ask(bot(i % 200), false)))
            .collect();
        assert_eq!(ask(ip(HOME), true).await, 200, "{name}: while they guess");
        for bot in bots {
            let status = bot.await.unwrap();
            assert!(matches!(status, 401 | 429), "{name}: {status}");
        }
        // Those that were busy come again, until none gets through.
        for round in 0.. {
            let before = guesses.load(Ordering::Relaxed);
            for i in 0..200 {
                ask(bot(i), false).await;
            }
            if guesses.load(Ordering::Relaxed) == before {
                break;
            }
            assert!(round < 10, "{name}");
        }
        assert_eq!(guesses.load(Ordering::Relaxed), 100, "{name}");
        assert_eq!(ask(ip(HOME), true).await, 200, "{name}: afterwards");
        assert_eq!(
            ask(ip(OFFICE), true).await,
            429,
            "{name}: from somewhere new"
        );
        let refusal = refused(limiter.reserve((ip(OFFICE), "alice")).await);
        assert_eq!(refusal.rule(), Rule::ACCOUNT, "{name}");
        // Nobody else is touched.
        attempt(&limiter, bot(0), "bob", Outcome::Success)
            .await
            .unwrap();
    }
}

/// Keys of known addresses live longer than counters.
pub fn allow_known_addresses(redis: &mut RedisServer, cluster: &mut RedisCluster) {
    let longest = Some(Duration::from_millis(90 * DAY));
    redis.keys_may_live(longest);
    for node in &mut cluster.nodes {
        node.keys_may_live(longest);
    }
}

fn strict(account: u32) -> Policy {
    let limit = Limit::attempts(account)
        .within(Period::hours(1))
        .without_block();
    Policy::default().with_account_limit(limit).unwrap()
}

#[tokio::test]
async fn a_refusal_by_one_takes_back_the_others() {
    let (mut redis, mut cluster, stores) = everywhere().await;
    allow_known_addresses(&mut redis, &mut cluster);
    for (name, store) in stores {
        let limiter = LoginLimiter::new(strict(6), store);
        let usage = async |address: &str, user: &str| {
            let report = limiter.check((ip(address), user)).await.unwrap();
            let usage = report.iter().map(|(_, standing)| standing.usage);
            <[u32; 3]>::try_from(usage.collect::<Vec<_>>()).unwrap()
        };
        // Refused by the pair: the account does not notice.
        fail(&limiter, ip(HOME), "alice", 5).await;
        let refusal = refused(limiter.reserve((ip(HOME), "alice")).await);
        assert_eq!(refusal.rule(), Rule::USER_ADDRESS, "{name}");
        assert_eq!(usage(HOME, "alice").await, [5, 5, 5], "{name}");

        // Refused by the account: the address and the pair do not.
        fail(&limiter, ip(OFFICE), "alice", 1).await;
        let refusal = refused(limiter.reserve((ip(OFFICE), "alice")).await);
        assert_eq!(
            (refusal.rule(), refusal.usage()),
            (Rule::ACCOUNT, 6),
            "{name}"
        );
        assert_eq!(usage(OFFICE, "alice").await, [1, 1, 6], "{name}");
        // Refused by both: told of the one that takes longer.
        let refusal = refused(limiter.reserve((ip(HOME), "alice")).await);
        assert_eq!(refusal.rule(), Rule::USER_ADDRESS, "{name}");

        // Named later, as where the layer can't read the body.
        let mut attempt = limiter.reserve(ip(OFFICE)).await.unwrap();
        let refusal = refused(attempt.identify("alice").await);
        assert_eq!(refusal.rule(), Rule::ACCOUNT, "{name}");
        assert_eq!(usage(OFFICE, "alice").await, [1, 1, 6], "{name}");
    }
}

#[tokio::test]
async fn a_success_takes_back_the_users_own_failures_from_the_account_too() {
    let (mut redis, mut cluster, stores) = everywhere().await;
    allow_known_addresses(&mut redis, &mut cluster);
    for (name, store) in stores {
        let limiter = LoginLimiter::new(strict(10), store);
        let account = async || {
            let report = limiter.check((bot(9), "alice")).await.unwrap();
            report.rule(Rule::ACCOUNT).unwrap().usage
        };
        fail(&limiter, ip(HOME), "alice", 3).await;
        fail(&limiter, bot(1), "alice", 4).await;
        assert_eq!(account().await, 7, "{name}");
        attempt(&limiter, ip(HOME), "alice", Outcome::Success)
            .await
            .unwrap();
        assert_eq!(account().await, 4, "{name}");
        attempt(&limiter, bot(2), "alice", Outcome::NotAnAttempt)
            .await
            .unwrap();
        assert_eq!(account().await, 4, "{name}");
        limiter.unblock((bot(1), "alice")).await.unwrap();
        assert_eq!(account().await, 4, "{name}");
        limiter.unblock_user("Alice").await.unwrap();
        assert_eq!(account().await, 0, "{name}");
    }
}

#[tokio::test]
async fn an_address_is_known_after_a_success_and_for_a_time() {
    let mut both = BothStores::start().await;
    both.redis
        .keys_may_live(Some(Duration::from_millis(90 * DAY)));
    for (name, limiter) in both.limiters(&strict(2)) {
        let state = async |address: &str| {
            let report = limiter.check((ip(address), "alice")).await.unwrap();
            report.rule(Rule::ACCOUNT).unwrap().state
        };
        // A failure, or a right password without the second factor, proves nothing.
        fail(&limiter, ip(HOME), "alice", 1).await;
        attempt(&limiter, ip(HOME), "alice", Outcome::MfaPending)
            .await
            .unwrap();
        assert_eq!(state(HOME).await, State::Clear, "{name}");
        attempt(&limiter, ip(HOME), "alice", Outcome::Success)
            .await
            .unwrap();
        assert_eq!(state(HOME).await, State::Exempt, "{name}");

        // What is exempt does not count, and counts nowhere else less.
        fail(&limiter, ip(HOME), "alice", 4).await;
        let report = limiter.check((ip(HOME), "alice")).await.unwrap();
        assert_eq!(report.rule(Rule::ACCOUNT).unwrap().usage, 0, "{name}");
        assert_eq!(
            (report.remaining(), report.refusal()),
            (Some(1), None),
            "{name}"
        );
        fail(&limiter, ip(HOME), "alice", 1).await;
        let refusal = refused(limiter.reserve((ip(HOME), "alice")).await);
        assert_eq!(refusal.rule(), Rule::USER_ADDRESS, "{name}");

        // It is known for this user only.
        let report = limiter.check((ip(HOME), "bob")).await.unwrap();
        assert_eq!(report.rule(Rule::ACCOUNT).unwrap().state, State::Clear);
        both.clock.advance(Duration::from_millis(90 * DAY - 1));
        assert_eq!(state(HOME).await, State::Exempt, "{name}");
        both.clock.advance(Duration::from_millis(1));
        assert_eq!(state(HOME).await, State::Clear, "{name}");

        // The newest ten are.
        for i in 0..11 {
            both.clock.advance(Duration::from_millis(HOUR));
            attempt(&limiter, bot(i), "alice", Outcome::Success)
                .await
                .unwrap();
        }
        assert_eq!(state(&bot(0).to_string()).await, State::Clear, "{name}");
        assert_eq!(state(&bot(1).to_string()).await, State::Exempt, "{name}");
    }
}

/// Whoever is blocked by address can't take an account's places away, not even for a moment: on a
/// cluster the address is asked first.
#[tokio::test]
async fn a_blocked_address_never_reaches_the_account() {
    let cluster = RedisCluster::start();
    let policy = strict(100)
        .with_address_limit(Limit::attempts(1).within(Period::hours(1)))
        .unwrap();
    let limiter = LoginLimiter::new(policy, cluster.store());
    fail(&limiter, ip(HOME), "somebody", 1).await;
    limiter.all_settled().await.unwrap();
    let writes = || -> u64 {
        let zadd = cluster.nodes.iter().map(|node| node.calls_of("zadd"));
        zadd.sum()
    };
    let before = writes();
    for i in 0..50 {
        refused(limiter.reserve((ip(HOME), format!("user {i}"))).await);
    }
    assert_eq!(writes(), before);
}

/// Two windows over one account, both with exceptions.
#[tokio::test]
async fn several_rules_over_one_account() {
    let both = BothStores::start().await;
    let burst = Limit::attempts(2)
        .within(Period::minutes(10))
        .without_block();
    let rule = Rule::new("account-burst", [Part::User], burst.clone()).unwrap();
    let policy = strict(5).with_rule(rule.with_known_addresses_exempt().unwrap());
    for (name, limiter) in both.limiters(&policy) {
        fail(&limiter, bot(1), "alice", 2).await;
        let refusal = refused(limiter.reserve((bot(2), "alice")).await);
        assert_eq!(refusal.rule(), "account-burst", "{name}");
        both.clock.advance(Duration::from_secs(600));
        fail(&limiter, bot(2), "alice", 2).await;
        both.clock.advance(Duration::from_secs(600));
        fail(&limiter, bot(2), "alice", 1).await;
        let refusal = refused(limiter.reserve((bot(3), "alice")).await);
        assert_eq!(refusal.rule(), Rule::ACCOUNT, "{name}");
        both.clock.advance(Duration::from_millis(DAY));
    }
    let by_address = Rule::new("both", [Part::User, Part::Address], burst).unwrap();
    let error = by_address.with_known_addresses_exempt().unwrap_err();
    assert_eq!(error.part(), "both.exempt_known_addresses");
}

/// A server of a cluster hangs for a moment while an office logs in. Whatever had been admitted by
/// then is taken back, on the healthy servers too: an error must not lead to a block.
#[tokio::test]
async fn a_server_of_a_cluster_that_hangs_leaves_no_failures_behind() {
    let cluster = RedisCluster::start();
    let store = closed().with_deadline(Duration::from_secs(1));
    let store = store.build_with_manager(cluster.client()).unwrap();
    let limiter = LoginLimiter::new(strict(100), store);
    attempt(&limiter, ip(HOME), "somebody", Outcome::NotAnAttempt)
        .await
        .unwrap();
    for node in &cluster.nodes {
        node.pause();
        let logins: Vec<_> = (0..60)
            .map(|i| {
                let limiter = limiter.clone();
                tokio::spawn(async move {
                    match limiter.reserve((bot(i), format!("person {i}"))).await {
                        Ok(attempt) => Some(attempt),
                        Err(ReserveError::Store(_)) => None,
                        Err(error) => panic!("{error:?}"),
                    }
                })
            })
            .collect();
        let mut admitted = Vec::new();
        for login in logins {
            admitted.extend(login.await.unwrap());
        }
        assert!(admitted.len() < 60, "nobody noticed");
        node.resume();
        for attempt in admitted {
            let settle = attempt.settle(Outcome::NotAnAttempt);
            settle.await.expect("settled");
        }
        eventually(|| {
            let keys = cluster.nodes.iter().map(|node| node.keys().len());
            keys.sum::<usize>() == 0
        })
        .await;
    }
}

/// What a store promises of cleaning up, with counters in two places and main ones in none or both.
#[tokio::test]
async fn cleaning_up_keeps_its_word_everywhere() {
    let (_redis, _cluster, stores) = everywhere().await;
    let limit = Limit::attempts(5).within(Period::hours(1)).build().unwrap();
    let home = Key::of_address(HOME.parse().unwrap(), "test");
    let slots = [
        Slot::new(home, &limit),
        Slot::new(Key::of_subject("test", &b"somebody"[..]), &limit),
    ];
    for (name, store) in stores {
        let usage = async || {
            let standings = store.check(&slots).await.unwrap();
            (standings[0].usage, standings[1].usage)
        };
        let lease = Duration::from_secs(30);
        let token = Token::new();
        store.reserve(token, lease, &slots).await.unwrap();
        assert_eq!(usage().await, (1, 1), "{name}");
        clean_up(&store, &[token], &[], &slots).await.unwrap();
        assert_eq!(usage().await, (0, 0), "{name}: none");

        store.reserve(token, lease, &slots).await.unwrap();
        let failed = Token::new();
        store.reserve(failed, Duration::ZERO, &slots).await.unwrap();
        clean_up(&store, &[token], &slots[1..], &slots[..1])
            .await
            .unwrap();
        assert_eq!(usage().await, (0, 0), "{name}: the account's");

        store.reserve(failed, Duration::ZERO, &slots).await.unwrap();
        store.reserve(token, lease, &slots).await.unwrap();
        clean_up(&store, &[], &slots, &[]).await.unwrap();
        assert_eq!(usage().await, (1, 1), "{name}: both, but what is in flight");
        store
            .settle(&[token], Settlement::Canceled, &slots, Duration::ZERO)
            .await
            .unwrap();
    }
}

/// Kept under an earlier policy is not known under one that keeps fewer.
#[tokio::test]
async fn a_policy_that_keeps_fewer_addresses_knows_fewer() {
    let mut both = BothStores::start().await;
    both.redis
        .keys_may_live(Some(Duration::from_millis(90 * DAY)));
    let two = KnownAddresses::new(2, Duration::from_millis(90 * DAY)).unwrap();
    let fewer = strict(5).with_known_addresses(two);
    for (name, store) in both.stores() {
        let limiter = LoginLimiter::new(strict(5), Arc::clone(&store));
        for i in 0..3 {
            both.clock.advance(Duration::from_millis(HOUR));
            limiter.remember("alice", bot(i)).await.unwrap();
        }
        let fewer = LoginLimiter::new(fewer.clone(), store);
        for (limiter, exempt) in [(&limiter, [true; 3]), (&fewer, [false, true, true])] {
            for (i, exempt) in exempt.into_iter().enumerate() {
                let report = limiter.check((bot(i), "alice")).await.unwrap();
                let state = report.rule(Rule::ACCOUNT).unwrap().state;
                assert_eq!(state == State::Exempt, exempt, "{name}: address {i}");
            }
        }
    }
}

/// A passkey needs no name. Failures from many addresses must not refuse those who log in with one.
#[tokio::test]
async fn failures_without_a_name_from_many_addresses_refuse_no_login_without_a_name() {
    let limiter = LoginLimiter::new(Policy::strict(), MemoryStore::new());
    for i in 0..40 {
        fail(&limiter, bot(i), "", 5).await;
        refused(limiter.reserve((bot(i), "")).await);
    }
    let attempt = limiter.reserve((bot(1_000), "")).await.unwrap();
    assert!(attempt.report().rule(Rule::ACCOUNT).is_none());
    attempt.settle(Outcome::Success).await.unwrap();
    // A name that is found later is counted by account as well.
    let mut attempt = limiter.reserve((bot(1_000), "")).await.unwrap();
    attempt.identify("alice").await.unwrap();
    assert_eq!(attempt.report().rule(Rule::ACCOUNT).unwrap().usage, 1);
    attempt.identify("").await.unwrap();
    assert!(attempt.report().rule(Rule::ACCOUNT).is_none());
    attempt.settle(Outcome::Failure).await.unwrap();
    let report = limiter.check((bot(1_001), "alice")).await.unwrap();
    assert_eq!(report.rule(Rule::ACCOUNT).unwrap().usage, 0);
}
