//! A Redis that has no memory left: what docs/operations.md has an operator do, and what works meanwhile.

use std::{
    error::Error,
    sync::{Arc, Mutex},
    time::Duration,
};

use tower_login_rate_limit::{
    LoginLimiter, Outcome, Period, Policy,
    admin::{Admin, AdminErrorKind, Author, BlockFilter, Subject},
    event::{Event, What},
    store::RedisStore,
};

use crate::support::{RedisServer, attempt, fail, ip, refused};

/// Writes until Redis has no memory for more. Then, so that a buffer that is freed makes no difference, it gets less.
fn fill(redis: &RedisServer) {
    let used = |redis: &RedisServer| -> u64 {
        let info: String = redis.command(&["INFO", "memory"]);
        let line = info
            .lines()
            .find_map(|line| line.strip_prefix("used_memory:"));
        line.and_then(|bytes| bytes.parse().ok()).expect("a number")
    };
    let most = used(redis) + 4 * 1024 * 1024;
    redis.command::<()>(&["CONFIG", "SET", "maxmemory", &most.to_string()]);
    let (mut connection, value) = (redis.connection(), "x".repeat(10_000));
    let mut written = 0;
    let error = loop {
        let mut set = redis::cmd("SET");
        set.arg(format!("other:{written}")).arg(&value);
        match set.exec(&mut connection) {
            Ok(()) => written += 1,
            Err(error) => break error,
        }
    };
    assert!(error.to_string().contains("OOM"), "{error}");
    assert!(written > 100);
    let less = most - 1024 * 1024;
    redis.command::<()>(&["CONFIG", "SET", "maxmemory", &less.to_string()]);
}

/// What the page has an operator do while Redis is full.
async fn look(store: &RedisStore, admin: &Admin) -> Result<(), Box<dyn Error>> {
    // [while it is full]
    let status = store.status();
    println!(
        "without Redis: {}, {} writes wait",
        status.is_degraded, status.pending
    );

    // What reads, and what frees memory, works.
    let page = admin.blocks(&BlockFilter::new()).await?;
    println!("{} blocks", page.blocks.len());
    let author = Author::new("bob@support", "bob phoned, ticket 4712")?;
    let unblocked = admin.unblock(Subject::user("bob"), &author).await?;
    println!("{} lifted", unblocked.count);

    // What writes does not, and is not carried out later.
    let network = Subject::network("203.0.113.0/24")?;
    let blocked = admin.block(network, Period::days(1), &author).await;
    assert_eq!(blocked.unwrap_err().kind(), AdminErrorKind::Store);
    // [end]
    assert_eq!((page.blocks.len(), unblocked.count), (2, 1));
    Ok(())
}

/// And when there is memory again.
async fn wait_for_replay(limiter: &LoginLimiter) {
    // [when there is memory]
    while limiter.all_settled().await.is_err() {
        tokio::time::sleep(Duration::from_millis(250)).await;
    }
    println!("Redis has all that happened meanwhile");
    // [end]
}

/// The page has these lines, and no others.
#[test]
fn the_page_has_the_code_that_is_tested() {
    let (source, page) = (
        include_str!("full_redis.rs"),
        include_str!("../../docs/operations.md"),
    );
    for part in ["while it is full", "when there is memory"] {
        let begin = format!("    // [{part}]\n");
        let (_, code) = source.split_once(&begin).expect(part);
        let (code, _) = code.split_once("    // [end]").expect("an end");
        let code: Vec<_> = code
            .lines()
            .map(|line| line.strip_prefix("    ").unwrap_or(line))
            .collect();
        let code = code.join("\n");
        assert!(page.contains(code.trim_end()), "{part}:\n{code}");
    }
}

#[tokio::test]
async fn a_redis_that_is_full_lists_and_unblocks_and_writes_nothing() {
    let mut redis = RedisServer::start_with(&["--maxmemory-policy", "noeviction"]);
    redis.keys_may_live(None);
    let builder = RedisStore::builder().with_deadline(Duration::from_millis(500));
    let store = builder.connect(redis.url()).await.unwrap();
    let errors = Arc::new(Mutex::new(Vec::new()));
    let noting = Arc::clone(&errors);
    let limiter = LoginLimiter::new(Policy::default(), store.clone())
        .with_observer(move |event: &Event| {
            if let What::StoreDown { error, .. } = &event.what {
                noting.lock().unwrap().push(error.to_string());
            }
        })
        .live()
        .await
        .unwrap();
    let (alice, bob, carol) = (ip("192.0.2.1"), ip("192.0.2.2"), ip("192.0.2.3"));
    fail(&limiter, alice, "alice", 5).await;
    fail(&limiter, bob, "bob", 5).await;
    limiter.all_settled().await.unwrap();
    let admin = limiter.admin().unwrap();
    let version = admin.ruleset().await.unwrap().version;
    fill(&redis);

    // Logins go on, by what this process knows, and no limit is forgotten.
    refused(limiter.reserve((alice, "alice")).await);
    attempt(&limiter, carol, "dave", Outcome::Success)
        .await
        .unwrap();
    fail(&limiter, carol, "carol", 5).await;
    refused(limiter.reserve((carol, "carol")).await);
    for i in 0_u32.. {
        if store.status().is_degraded {
            break;
        }
        let address = ip(&format!("198.51.{}.{}", i / 200 % 200, i % 200));
        fail(&limiter, address, "erin", 1).await;
        tokio::time::sleep(Duration::from_millis(20)).await;
    }
    assert!(store.status().pending > 0 && store.status().fallback_decisions > 0);
    assert!(limiter.observed().await);
    let errors = errors.lock().unwrap().clone();
    assert_eq!(errors.len(), 1);
    assert!(errors[0].contains("maxmemory"), "{errors:?}");

    look(&store, &admin).await.unwrap();
    let explanation = admin.explain(&Subject::pair(alice, "alice")).await;
    assert!(explanation.unwrap().refuses());
    // Bob is admitted although nothing can be written.
    attempt(&limiter, bob, "bob", Outcome::Failure)
        .await
        .unwrap();
    assert_eq!(admin.ruleset().await.unwrap().version, version);
    assert!(limiter.all_settled().await.is_err(), "writes wait");

    redis.command::<()>(&["CONFIG", "SET", "maxmemory", "0"]);
    wait_for_replay(&limiter).await;
    let status = store.status();
    assert_eq!((status.is_degraded, status.pending), (false, 0));
    let other = LoginLimiter::new(Policy::default(), redis.store().await);
    for (address, user, usage) in [(alice, "alice", 5), (bob, "bob", 1), (carol, "carol", 5)] {
        let report = other.check((address, user)).await.unwrap();
        let rule = report.rule("user-address").unwrap();
        assert_eq!(rule.usage, usage, "{user}");
    }
    assert_eq!(admin.ruleset().await.unwrap().version, version);
    let author = Author::new("alice@ops", "incident 17").unwrap();
    let network = Subject::network("203.0.113.0/24").unwrap();
    admin
        .block(network, Period::days(1), &author)
        .await
        .unwrap();
    refused(limiter.reserve((carol, "carol")).await);
}
