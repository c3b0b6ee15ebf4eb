//! Rules that change while logins are served.

mod processes;

use std::{io::Write, time::Duration};

use tower_login_rate_limit::{
    Limit, LoginLimiter, Outcome, Part, Period, Policy, ReserveError, Rule,
    access::{AccessRule, Field},
    admin::{AdminErrorKind, Author, BlockFilter, Subject},
    event::{Event, UserDisplay, What},
    live::{Canary, Ruleset},
    store::{MemoryStore, RedisStore, Store},
};

use crate::support::{CLIENT, RedisCluster, RedisServer, attempt, eventually, fail, ip, refused};

fn author() -> Author {
    Author::new("alice", "a test").unwrap()
}

/// The default policy with another limit for a pair.
fn policy(limit: u32) -> Policy {
    let limit = Limit::attempts(limit)
        .within(Period::days(1))
        .blocked_for(Period::days(1));
    Policy::default().with_user_address_limit(limit).unwrap()
}

fn limit_of(limiter: &LoginLimiter) -> u32 {
    limiter
        .policy()
        .rule(Rule::USER_ADDRESS)
        .unwrap()
        .limit()
        .max_attempts()
}

/// The ruleset is kept until it is replaced.
fn server(settings: &[&str]) -> RedisServer {
    let mut redis = RedisServer::start_with(settings);
    redis.keys_may_live(None);
    redis
}

async fn live(store: impl Store) -> LoginLimiter {
    LoginLimiter::new(Policy::default(), store)
        .live()
        .await
        .unwrap()
}

/// With a generous deadline: the machine may be busy with other tests.
async fn connect(url: String) -> RedisStore {
    let builder = RedisStore::builder().with_deadline(Duration::from_secs(20));
    builder.connect(url).await.unwrap()
}

async fn two_on(redis: &RedisServer) -> (LoginLimiter, LoginLimiter) {
    let connect = || connect(redis.url());
    (live(connect().await).await, live(connect().await).await)
}

#[tokio::test]
async fn a_change_is_in_force_here_at_once_and_survives_a_restart() {
    let redis = server(&[]);
    let (one, other) = two_on(&redis).await;
    let admin = one.admin().unwrap();
    let current = admin.ruleset().await.unwrap();
    assert_eq!((current.version, &*current.author), (0, ""));
    let stricter = current.ruleset.clone().with_policy(policy(3));
    let version = admin.replace_ruleset(0, stricter, &author()).await.unwrap();
    assert_eq!((version, one.version(), limit_of(&one)), (1, 1, 3));
    eventually(|| other.version() == 1).await;
    assert_eq!(limit_of(&other), 3);
    fail(&other, ip(CLIENT), "alice", 3).await;
    refused(one.reserve((ip(CLIENT), "alice")).await);

    let restarted = live(connect(redis.url()).await).await;
    assert_eq!((restarted.version(), limit_of(&restarted)), (1, 3));
    let written = admin.ruleset().await.unwrap();
    assert_eq!((&*written.author, &*written.reason), ("alice", "a test"));
}

#[tokio::test]
async fn the_second_of_two_operators_receives_a_conflict_with_the_difference() {
    let limiter = live(MemoryStore::new()).await;
    let admin = limiter.admin().unwrap();
    let seen = admin.ruleset().await.unwrap();
    let bob = Author::new("bob", "too many complaints").unwrap();
    let looser = seen.ruleset.clone().with_policy(policy(10));
    admin
        .replace_ruleset(seen.version, looser, &bob)
        .await
        .unwrap();

    let stricter = seen.ruleset.clone().with_policy(policy(3));
    let error = admin
        .replace_ruleset(seen.version, stricter, &author())
        .await
        .unwrap_err();
    assert_eq!(error.kind(), AdminErrorKind::Conflict);
    assert!(error.to_string().contains("bob"), "{error}");
    let conflict = error.conflict().unwrap();
    assert_eq!(conflict.version, 1);
    assert_eq!(conflict.reason, "too many complaints");
    assert_eq!(
        conflict.differences,
        ["policy.rules.user-address.limit: 5 → 10"]
    );
    assert_eq!(limit_of(&limiter), 10, "nothing was overwritten");
}

#[tokio::test]
async fn a_version_is_rolled_back_by_writing_it_again() {
    let limiter = live(MemoryStore::new()).await;
    let admin = limiter.admin().unwrap();
    for (expected, limit) in [(0, 3), (1, 10), (2, 7)] {
        let ruleset = Ruleset::new(policy(limit));
        admin
            .replace_ruleset(expected, ruleset, &author())
            .await
            .unwrap();
    }
    assert_eq!(admin.roll_back(3, 1, &author()).await.unwrap(), 4);
    assert_eq!(limit_of(&limiter), 3);
    let history = admin.history().await.unwrap();
    let versions: Vec<_> = history.iter().map(|version| version.version).collect();
    assert_eq!(versions, [4, 3, 2, 1]);
    let error = admin.roll_back(4, 99, &author()).await.unwrap_err();
    assert_eq!(error.kind(), AdminErrorKind::InvalidInput);
}

#[tokio::test]
async fn an_attempt_under_way_finishes_under_the_policy_it_began_with() {
    let limiter = live(MemoryStore::new()).await;
    let admin = limiter.admin().unwrap();
    fail(&limiter, ip(CLIENT), "alice", 3).await;
    let under_way = limiter.reserve((ip(CLIENT), "alice")).await.unwrap();
    let only_address = Policy::default()
        .with_rule_enabled(Rule::USER_ADDRESS, false)
        .unwrap();
    admin
        .replace_ruleset(0, Ruleset::new(only_address), &author())
        .await
        .unwrap();
    under_way.settle(Outcome::Failure).await.unwrap();
    // Its failure is in the counter of the pair, although that rule is not in force meanwhile.
    let default = Ruleset::new(Policy::default());
    admin.replace_ruleset(1, default, &author()).await.unwrap();
    let report = limiter.check((ip(CLIENT), "alice")).await.unwrap();
    assert_eq!(report.rule(Rule::USER_ADDRESS).unwrap().usage, 4);
}

#[tokio::test]
async fn what_the_fleet_enforces_survives_a_redis_that_forgets() {
    let redis = server(&[]);
    let (one, other) = two_on(&redis).await;
    let admin = one.admin().unwrap();
    admin
        .replace_ruleset(0, Ruleset::new(policy(3)), &author())
        .await
        .unwrap();
    eventually(|| other.version() == 1).await;
    let _: String = redis.command(&["FLUSHALL"]);
    tokio::time::sleep(Duration::from_millis(1_200)).await;
    assert_eq!(
        (limit_of(&one), limit_of(&other)),
        (3, 3),
        "what was in force stays"
    );
    let newcomer = || async {
        let store = connect(redis.url()).await;
        limit_of(&live(store).await)
    };
    for _ in 0..100 {
        if newcomer().await == 3 {
            return;
        }
        tokio::time::sleep(Duration::from_millis(100)).await;
    }
    panic!("the ruleset was not written back");
}

/// Each change begins with the newest version, so one that no instance can read could not be replaced either.
#[tokio::test]
async fn an_operator_writes_no_ruleset_that_the_fleet_can_not_read() {
    let many = (0..101).fold(Policy::default(), |policy, i| {
        let limit = Limit::attempts(9).within(Period::days(1));
        policy.with_rule(Rule::new(format!("rule-{i}"), [Part::Address], limit).unwrap())
    });
    let none = Policy::new([]).unwrap();
    for policy in [many, none] {
        let store = MemoryStore::new();
        let limiter = LoginLimiter::new(policy, store).live().await.unwrap();
        let (admin, author) = (limiter.admin().unwrap(), author());
        let blocked = admin.block(Subject::user("mallory"), Period::days(1), &author);
        let error = blocked.await.unwrap_err();
        assert_eq!(error.kind(), AdminErrorKind::InvalidInput, "{error}");
        assert_eq!(admin.ruleset().await.unwrap().version, 0);
        let valid = admin.replace_ruleset(0, Ruleset::new(self::policy(3)), &author);
        assert_eq!(valid.await.unwrap(), 1);
    }
}

#[tokio::test]
async fn a_ruleset_of_a_newer_version_changes_nothing_and_is_reported() {
    let redis = server(&[]);
    let (one, _other) = two_on(&redis).await;
    let admin = one.admin().unwrap();
    admin
        .replace_ruleset(0, Ruleset::new(policy(3)), &author())
        .await
        .unwrap();
    let store = connect(redis.url()).await;
    let ledger = store.ledger().unwrap();
    let newer =
        r#"{"at":1,"author":"x","reason":"y","ruleset":{"policy":{"rules":[{"name":"quantum"}]}}}"#;
    ledger.replace_document(1, newer).await.unwrap().unwrap();
    tokio::time::sleep(Duration::from_millis(1_500)).await;
    assert_eq!((one.version(), limit_of(&one)), (1, 3));
    let error = admin.ruleset().await.unwrap_err();
    assert!(
        error.to_string().contains("newer version of this crate"),
        "{error}"
    );
    let started = LoginLimiter::new(Policy::default(), store).live().await;
    assert!(
        started.is_err(),
        "an instance does not start with rules that it can't read"
    );
}

#[tokio::test]
async fn a_canary_is_for_its_share_and_the_same_everywhere() {
    let redis = server(&[]);
    let (one, other) = two_on(&redis).await;
    let admin = one.admin().unwrap();
    let canary = Canary::new(policy(1), 20.0).unwrap();
    let ruleset = Ruleset::new(Policy::default()).with_canary(canary);
    admin.replace_ruleset(0, ruleset, &author()).await.unwrap();
    eventually(|| other.version() == 1).await;
    let mut in_canary = 0;
    for i in 0..200_u32 {
        let address = ip(&format!("10.1.{}.{}", i / 100, i % 100));
        let limit = async |limiter: &LoginLimiter| {
            let report = limiter.check((address, "alice")).await.unwrap();
            report.rule(Rule::USER_ADDRESS).unwrap().limit
        };
        let (here, there) = (limit(&one).await, limit(&other).await);
        assert_eq!(here, there, "{address}");
        in_canary += u32::from(here == 1);
    }
    assert!((15..80).contains(&in_canary), "{in_canary} of 200");
    let current = admin.ruleset().await.unwrap();
    let kept = current.ruleset.without_canary(true);
    admin.replace_ruleset(1, kept, &author()).await.unwrap();
    assert_eq!(limit_of(&one), 1);
}

#[tokio::test]
async fn a_block_by_hand_is_enforced_by_other_instances_and_ends() {
    let redis = server(&[]);
    let (one, other) = two_on(&redis).await;
    let admin = one.admin().unwrap();
    let day = Period::days(1);
    let pair = Subject::pair(ip(CLIENT), "Alice");
    let pair = admin.block(pair, day, &author()).await.unwrap();
    let user = admin
        .block(Subject::user("mallory"), day, &author())
        .await
        .unwrap();
    let network = Subject::network("198.51.100.0/24").unwrap();
    admin
        .block(network, Period::Forever, &author())
        .await
        .unwrap();
    eventually(|| other.version() == 3).await;
    let denied = async |address: &str, user: &str| match other.reserve((ip(address), user)).await {
        Err(ReserveError::Denied(denied)) => Some(denied.rule().to_owned()),
        Ok(attempt) => {
            attempt.settle(Outcome::NotAnAttempt).await.unwrap();
            None
        }
        Err(error) => panic!("{error}"),
    };
    assert_eq!(denied(CLIENT, "alice").await.as_ref(), Some(&pair));
    assert_eq!(denied(CLIENT, "bob").await, None);
    assert_eq!(denied("192.0.2.99", "MALLORY").await.as_ref(), Some(&user));
    assert!(denied("198.51.100.7", "bob").await.is_some());
    let rules = other.access_rules();
    let rule = rules.rule(&user).unwrap();
    assert_eq!(
        (rule.author(), rule.note()),
        (Some("alice"), Some("a test"))
    );

    admin.remove_access_rule(&user, &author()).await.unwrap();
    eventually(|| other.version() == 4).await;
    assert_eq!(denied("192.0.2.99", "mallory").await, None);
    let every = admin
        .block(Subject::network("0.0.0.0/0").unwrap(), day, &author())
        .await;
    assert!(
        every
            .unwrap_err()
            .to_string()
            .contains("every login would be refused")
    );
}

/// Operators who add rules at the same time lose none of them.
#[tokio::test]
async fn rules_that_are_added_at_once_are_all_there() {
    let redis = server(&[]);
    let (one, other) = two_on(&redis).await;
    let adding: Vec<_> = (0..8)
        .map(|i| {
            let limiter = if i % 2 == 0 {
                one.clone()
            } else {
                other.clone()
            };
            tokio::spawn(async move {
                let network = format!("203.0.113.{i}");
                let rule = AccessRule::deny(format!("rule-{i}"), Field::Network, network);
                let admin = limiter.admin().unwrap();
                admin
                    .add_access_rule(rule.unwrap(), &author())
                    .await
                    .unwrap()
            })
        })
        .collect();
    for task in adding {
        task.await.unwrap();
    }
    let current = one.admin().unwrap().ruleset().await.unwrap();
    assert_eq!(
        (current.version, current.ruleset.access.rules().len()),
        (8, 8)
    );
}

#[tokio::test]
async fn instances_report_which_version_they_enforce() {
    let redis = server(&[]);
    let (one, other) = two_on(&redis).await;
    let admin = one.admin().unwrap();
    for _ in 0..200 {
        let instances = admin.instances().await.unwrap();
        if instances.len() == 2 {
            assert!(
                instances
                    .iter()
                    .all(|instance| instance.version == other.version())
            );
            assert_ne!(instances[0].id, instances[1].id);
            return;
        }
        tokio::time::sleep(Duration::from_millis(50)).await;
    }
    panic!("two instances never reported themselves");
}

#[tokio::test]
async fn a_change_is_an_event_with_its_author_and_difference() {
    let (sender, receiver) = std::sync::mpsc::channel();
    let sender = std::sync::Mutex::new(sender);
    let limiter = LoginLimiter::new(Policy::default(), MemoryStore::new())
        .with_observer(move |event: &Event| {
            let _ = sender.lock().unwrap().send(event.clone());
        })
        .live()
        .await
        .unwrap();
    let admin = limiter.admin().unwrap();
    admin
        .replace_ruleset(0, Ruleset::new(policy(3)), &author())
        .await
        .unwrap();
    assert!(limiter.observed().await);
    let event = receiver.recv().unwrap();
    let What::DocumentChanged {
        author,
        from,
        to,
        changes,
        ..
    } = &event.what
    else {
        panic!("{event:?}");
    };
    assert_eq!((&**author, *from, *to), ("alice", 0, 1));
    assert_eq!(&*changes[0], "policy.rules.user-address.limit: 5 → 3");
}

#[tokio::test]
async fn a_cluster_is_live_too() {
    let mut cluster = RedisCluster::start();
    for node in &mut cluster.nodes {
        node.keys_may_live(None);
    }
    let connect = || connect(cluster.url());
    let (one, other) = (live(connect().await).await, live(connect().await).await);
    let admin = one.admin().unwrap();
    admin
        .replace_ruleset(0, Ruleset::new(policy(3)), &author())
        .await
        .unwrap();
    eventually(|| limit_of(&other) == 3).await;
    attempt(&other, ip(CLIENT), "alice", Outcome::Success)
        .await
        .unwrap();
}

#[tokio::test]
async fn a_file_is_followed_and_a_broken_one_changes_nothing() {
    let directory = tempfile::tempdir().unwrap();
    let path = directory.path().join("limits.toml");
    let write = |text: &str| {
        let mut file = std::fs::File::create(&path).unwrap();
        file.write_all(text.as_bytes()).unwrap();
    };
    let limits = |limit: u32| {
        format!(
            "[[policy.rules]]\nname = \"user-address\"\nlimit = {limit}\nwithin = \"1 day\"\n\n[[access]]\nname = \"office\"\naction = \"allow\"\nnetwork = \"192.0.2.0/24\"\n"
        )
    };
    let limiter = || LoginLimiter::new(Policy::default(), MemoryStore::new());
    let missing = limiter().follow_file(&path, |text| toml::from_str::<Ruleset>(text));
    assert!(missing.unwrap_err().to_string().contains("limits.toml"));
    write(&limits(4));
    let limiter = limiter()
        .follow_file(&path, |text| toml::from_str(text))
        .unwrap();
    assert_eq!(
        (limit_of(&limiter), limiter.access_rules().rules().len()),
        (4, 1)
    );
    write("[[policy.rules]]\nname = ");
    tokio::time::sleep(Duration::from_millis(1_200)).await;
    assert_eq!(limit_of(&limiter), 4, "half a file");
    write(&limits(42));
    eventually(|| limit_of(&limiter) == 42).await;
}

/// A setting that is made after the limiter is live does not detach it from the fleet.
#[tokio::test]
async fn a_limiter_follows_whatever_is_set_after_it_is_live() {
    let redis = server(&[]);
    let (one, other) = two_on(&redis).await;
    let other = other.with_user_display(UserDisplay::Masked);
    let admin = one.admin().unwrap();
    admin
        .replace_ruleset(0, Ruleset::new(policy(3)), &author())
        .await
        .unwrap();
    eventually(|| limit_of(&other) == 3).await;
}

#[tokio::test]
async fn a_block_of_an_ipv6_address_is_for_its_neighbors_too() {
    let limiter = live(MemoryStore::new()).await;
    let admin = limiter.admin().unwrap();
    let attacker = Subject::address(ip("2001:db8:1:2::3"));
    admin
        .block(attacker, Period::days(1), &author())
        .await
        .unwrap();
    let denied = |result| matches!(result, Err(ReserveError::Denied(_)));
    assert!(denied(
        limiter.reserve((ip("2001:db8:1:2::4"), "alice")).await
    ));
    assert!(!denied(
        limiter.reserve((ip("2001:db8:1:3::4"), "alice")).await
    ));
}

/// A counter over all addresses is shared by both policies, and an admission under one drops what the other counts.
#[tokio::test]
async fn a_canary_can_not_clear_what_the_policy_still_counts() {
    let limiter = live(MemoryStore::new()).await;
    let admin = limiter.admin().unwrap();
    let hour = Limit::attempts(100)
        .within(Period::hours(1))
        .without_block();
    let looser = Policy::strict().with_account_limit(hour).unwrap();
    let ruleset = Ruleset::new(Policy::strict()).with_canary(Canary::new(looser, 5.0).unwrap());
    let error = admin
        .replace_ruleset(0, ruleset, &author())
        .await
        .unwrap_err();
    assert!(
        error.to_string().contains("counts over all addresses"),
        "{error}"
    );
    let strict = Canary::new(Policy::strict(), 5.0).unwrap();
    let ruleset = Ruleset::new(Policy::default()).with_canary(strict);
    admin.replace_ruleset(0, ruleset, &author()).await.unwrap();
}

#[tokio::test]
async fn rolling_a_policy_back_lifts_no_block_by_hand() {
    let limiter = live(MemoryStore::new()).await;
    let admin = limiter.admin().unwrap();
    admin
        .replace_ruleset(0, Ruleset::new(policy(3)), &author())
        .await
        .unwrap();
    let current = admin.ruleset().await.unwrap();
    let looser = current.ruleset.with_policy(policy(10));
    admin.replace_ruleset(1, looser, &author()).await.unwrap();
    admin
        .block(Subject::user("mallory"), Period::days(1), &author())
        .await
        .unwrap();
    admin.roll_back(3, 1, &author()).await.unwrap();
    assert_eq!(limit_of(&limiter), 3);
    let denied = limiter.reserve((ip(CLIENT), "mallory")).await;
    assert!(matches!(denied, Err(ReserveError::Denied(_))), "{denied:?}");
}

/// A process that only administers judges by the limits of the fleet, and not by its own.
#[tokio::test]
async fn an_operator_without_a_fleet_sees_its_blocks_and_lifts_them() {
    let redis = server(&[]);
    let (one, _other) = two_on(&redis).await;
    let admin = one.admin().unwrap();
    admin
        .replace_ruleset(0, Ruleset::new(policy(2)), &author())
        .await
        .unwrap();
    fail(&one, ip(CLIENT), "alice", 2).await;
    one.all_settled().await.unwrap();
    let store = connect(redis.url()).await;
    let command = LoginLimiter::new(Policy::default(), store);
    let admin = command.admin().unwrap();
    let page = admin.blocks(&BlockFilter::new()).await.unwrap();
    assert_eq!(page.blocks.len(), 1);
    let pair = Subject::pair(ip(CLIENT), "alice");
    assert_eq!(admin.unblock(pair, &author()).await.unwrap().count, 1);
    attempt(&one, ip(CLIENT), "alice", Outcome::Success)
        .await
        .unwrap();
}

#[tokio::test]
async fn no_event_of_a_block_by_hand_names_the_user() {
    let (sender, receiver) = std::sync::mpsc::channel();
    let sender = std::sync::Mutex::new(sender);
    let limiter = LoginLimiter::new(Policy::default(), MemoryStore::new())
        .with_observer(move |event: &Event| {
            let _ = sender.lock().unwrap().send(format!("{event:?}"));
        })
        .live()
        .await
        .unwrap();
    let admin = limiter.admin().unwrap();
    for subject in [
        Subject::user("mallory"),
        Subject::pair(ip(CLIENT), "mallory"),
    ] {
        admin
            .block(subject, Period::days(1), &author())
            .await
            .unwrap();
    }
    assert!(limiter.observed().await);
    let events: Vec<_> = receiver.try_iter().collect();
    assert_eq!(events.len(), 4);
    assert!(!events.concat().contains("mallory"), "{events:?}");
}
