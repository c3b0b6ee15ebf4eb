//! The Redis user of docs/production.md: enough for everything, and for nothing else.

use std::{
    collections::{BTreeSet, HashMap},
    sync::Arc,
    time::Duration,
};

use tower_login_rate_limit::{
    KeyLimiter, Limit, LoginLimiter, Outcome, Period, Policy,
    access::{AccessRule, Field},
    admin::{Author, BlockFilter, Forgive, Subject},
    event::{Feed, RedisStream, UserHasher},
    insight::Insight,
    store::{RedisStore, redis::Outage},
};

use crate::support::{RedisCluster, RedisServer, attempt, eventually, fail, ip, refused};

const HOME: &str = "192.0.2.1";

/// The line of the page, in words.
fn rights() -> Vec<&'static str> {
    let page = include_str!("../../docs/production.md");
    let line = page.lines().find(|line| line.starts_with("ACL SETUSER"));
    line.expect("the rights").split(' ').collect()
}

/// Everything that this crate does with Redis.
async fn do_everything(url: &str) {
    let builder = RedisStore::builder()
        .with_outage(Outage::Closed)
        .with_prefix("shop:login")
        .with_deadline(Duration::from_secs(20));
    let store = builder.connect(url).await.unwrap();
    eventually(|| store.status().is_subscribed).await;
    assert_eq!(store.health().await.unwrap().warnings, Vec::<String>::new());
    let hour = Period::hours(1);
    let limit = || Limit::attempts(3).within(hour);
    for limit in [
        limit().build(),
        limit().as_token_bucket().build(),
        limit().as_sliding_counter().build(),
        limit().blocked_for(hour).then_for(hour).build(),
        limit().blocked_for(Period::Forever).build(),
        Limit::default_backoff().build(),
    ] {
        let policy = Policy::strict()
            .with_user_address_limit(limit.unwrap())
            .unwrap();
        let limiter = LoginLimiter::new(policy, store.clone());
        for outcome in [Outcome::MfaPending, Outcome::Success, Outcome::Failure] {
            attempt(&limiter, ip(HOME), "user", outcome).await.unwrap();
        }
        while attempt(&limiter, ip(HOME), "user", Outcome::Failure)
            .await
            .is_ok()
        {}
        limiter.unblock((ip(HOME), "user")).await.unwrap();
        limiter.cleanup("user", [ip(HOME)]).await.unwrap();
        attempt(&limiter, ip(HOME), "user", Outcome::Success)
            .await
            .unwrap();
        assert_eq!(limiter.known_addresses("user").await.unwrap().len(), 1);
    }
    administer(&store, url).await;

    let three = Limit::attempts(3).within(hour).without_block();
    let keys = KeyLimiter::new("mail", three, store.clone()).unwrap();
    let token = keys.reserve("alice").await.unwrap();
    assert!(keys.cancel("alice", token).await.unwrap());
    // What fails is only known to the journal.
    assert_eq!(store.status().pending, 0);
}

/// What an operator does, and what a fleet with all observers writes by itself.
async fn administer(store: &RedisStore, url: &str) {
    let hasher = UserHasher::new("a secret of at least 16 bytes").unwrap();
    let insight = Insight::new(hasher);
    let stream = RedisStream::builder().with_key("shop:login:events");
    let stream = stream.with_insight(insight.clone()).open(url).unwrap();
    let stream = Arc::new(stream);
    let feed = Feed::new(1_000).with_insight(insight.clone());
    let following = feed.follow(stream.reader());
    let limiter = LoginLimiter::new(Policy::strict(), store.clone())
        .with_insight(insight)
        .with_observer(Arc::clone(&stream))
        .live()
        .await
        .unwrap();
    let (admin, author) = (
        limiter.admin().unwrap(),
        Author::new("bob", "phoned").unwrap(),
    );
    let (office, other) = (ip("198.51.100.1"), ip("198.51.100.2"));
    attempt(&limiter, office, "alice", Outcome::Success)
        .await
        .unwrap();
    for address in [office, other] {
        fail(&limiter, address, "alice", 5).await;
        refused(limiter.reserve((address, "alice")).await);
    }
    limiter.all_settled().await.unwrap();
    assert_eq!(
        admin
            .blocks(&BlockFilter::new())
            .await
            .unwrap()
            .blocks
            .len(),
        2
    );
    let counts = admin.block_counts().await.unwrap();
    assert_eq!(counts.iter().map(|count| count.blocks).sum::<u64>(), 2);
    let explained = admin.explain(&Subject::pair(office, "alice")).await;
    assert!(explained.unwrap().refuses());
    let unblocked = admin.unblock(Subject::pair(office, "alice"), &author).await;
    assert_eq!(unblocked.unwrap().count, 1);
    let forgiven = admin.forgive(&Forgive::user("alice"), &author).await;
    forgiven.unwrap();
    assert_eq!(admin.known_addresses("alice").await.unwrap().len(), 1);
    admin.forget_address("alice", None, &author).await.unwrap();

    let rule = AccessRule::deny("botnet", Field::Network, "203.0.113.0/24").unwrap();
    let version = admin.add_access_rule(rule, &author).await.unwrap();
    let rule = admin
        .block(Subject::user("mallory"), Period::hours(1), &author)
        .await;
    let version_2 = version + 1;
    assert_eq!(admin.ruleset().await.unwrap().version, version_2);
    admin
        .remove_access_rule(&rule.unwrap(), &author)
        .await
        .unwrap();
    admin
        .roll_back(version_2 + 1, version, &author)
        .await
        .unwrap();
    assert!(!admin.history().await.unwrap().is_empty());
    // Each instance reports itself.
    let mut instances = Vec::new();
    while instances.is_empty() {
        instances = admin.instances().await.unwrap();
    }
    assert!(!admin.busiest(10).await.unwrap().addresses.is_empty());
    limiter.all_settled().await.unwrap();
    let mut reader = stream.reader();
    let mut read = 0;
    loop {
        match reader.read(1_000).await.unwrap().len() {
            0 => break,
            more => read += more,
        }
    }
    assert!(read > 10 && stream.lost() == 0, "{read}");
    // That was a wrong block, which one process of a fleet emits.
    let found = || feed.latest(1, |event| event.what.name() == "wrong_block");
    eventually(|| !found().is_empty()).await;
    following.abort();
}

/// What a server has refused to a user, by its own record.
fn denied(server: &RedisServer) -> Vec<String> {
    let log: Vec<HashMap<String, String>> = server.command(&["ACL", "LOG"]);
    let denied = log.into_iter().map(|entry| entry["object"].clone());
    // The client announces its name and version where a server knows how, and does without.
    denied
        .filter(|object| !matches!(&**object, "client" | "client|setinfo"))
        .collect()
}

#[tokio::test]
async fn a_user_with_the_rights_of_the_page_can_do_everything_and_nothing_else() {
    let rights = rights();
    let mut redis = RedisServer::start();
    redis.keys_may_live(None);
    let mut cluster = RedisCluster::start();
    for node in &mut cluster.nodes {
        node.keys_may_live(None);
    }
    for server in cluster.nodes.iter().chain([&redis]) {
        server.command::<()>(&rights);
        server.command::<()>(&["CONFIG", "RESETSTAT"]);
        server.command::<()>(&["ACL", "LOG", "RESET"]);
    }
    let user = "shop:password@127.0.0.1";
    do_everything(&format!("redis://{user}:{}", redis.port())).await;
    do_everything(&cluster.url().replace("://", "://shop:password@")).await;

    // Nothing was denied, noticed or not, and every right is one that was used.
    let mut executed = BTreeSet::new();
    for server in cluster.nodes.iter().chain([&redis]) {
        assert_eq!(denied(server), [""; 0]);
        let stats: String = server.command(&["INFO", "commandstats"]);
        let names = stats.lines().filter_map(|line| {
            let (name, _) = line.strip_prefix("cmdstat_")?.split_once(':')?;
            Some(name.to_owned())
        });
        executed.extend(names);
    }
    let permitted = rights.iter().filter_map(|word| word.strip_prefix('+'));
    let unused: Vec<_> = permitted
        .filter(|right| {
            // Redis 6.2 counts no subcommands.
            let command = right.split('|').next().unwrap_or(right);
            !executed.contains(*right) && !executed.contains(command)
        })
        .collect();
    assert_eq!(unused, [""; 0], "rights that nothing needs");

    // Neither other keys, nor other commands, nor other channels.
    let client = redis::Client::open(format!("redis://{user}:{}", redis.port())).unwrap();
    let mut connection = client.get_connection().unwrap();
    for command in [
        "ZADD other:key 1 a",
        "EVAL return(redis.call('ZCARD','other:key')) 0",
        "XADD login:events * e 1",
        "GET shop:login:x",
        "DEL shop:login:x",
        "KEYS *",
        "SCAN 0",
        "FLUSHALL",
        "CONFIG GET *",
        "ACL LIST",
        "MONITOR",
        "PUBLISH other x",
        "CLUSTER NODES",
        "SCRIPT FLUSH",
    ] {
        let words: Vec<_> = command.split(' ').collect();
        let answer = redis::cmd(words[0]).arg(&words[1..]).exec(&mut connection);
        let error = answer.expect_err(command).to_string();
        assert!(
            ["NOPERM", "permission", "can't access"]
                .iter()
                .any(|words| error.contains(words)),
            "{command}: {error}"
        );
    }
}
