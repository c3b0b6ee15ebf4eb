//! What only a ledger in Redis has to stand: other processes, lost replies, outages, a million blocks.

use std::{
    collections::{BTreeMap, HashMap, HashSet},
    sync::Arc,
    time::Duration,
};

use redis::Value;
use tower_login_rate_limit::{
    Address, AttemptId, KnownAddresses, Limit, LoginLimiter, Outcome, Period, Policy, Token,
    clock::ManualClock,
    store::{
        BlockNote, BlockQuery, CounterName, Document, Key, Ledger, RedisStore, Settlement, Slot,
        Store, StoreErrorKind,
    },
};

use super::suite;
use crate::support::{
    Fault, Proxy, RedisCluster, RedisSentinel, RedisServer, START, attempt, closed, eventually,
    fail, ip, refused,
};

const HOME: &str = "192.0.2.1";

fn address() -> Address {
    HOME.parse().expect("an address")
}

fn hour() -> Limit {
    let limit = Limit::attempts(5).within(Period::hours(1)).build();
    limit.expect("a limit")
}

/// A store with everything that a fleet has.
async fn connect(url: impl AsRef<str>) -> RedisStore {
    let builder = RedisStore::builder().with_deadline(Duration::from_secs(20));
    let store = builder.connect(url).await.expect("a store");
    eventually(|| store.status().is_subscribed).await;
    store
}

fn ledger(store: &RedisStore) -> Arc<dyn Ledger> {
    store.ledger().expect("a ledger")
}

#[tokio::test]
async fn a_store_on_one_server_conforms() {
    let mut redis = RedisServer::start();
    redis.keys_may_live(None);
    let clock = Arc::new(ManualClock::at(START));
    let builder = redis.builder().with_clock(Arc::clone(&clock));
    let store = builder.connect(redis.url()).await.expect("a store");
    suite::run(&store, &clock).await;
}

#[tokio::test]
async fn a_store_on_a_cluster_conforms() {
    let mut cluster = RedisCluster::start();
    for node in &mut cluster.nodes {
        node.keys_may_live(None);
    }
    let clock = Arc::new(ManualClock::at(START));
    let builder = cluster.nodes[0].builder().with_clock(Arc::clone(&clock));
    let store = builder.connect(cluster.url()).await.expect("a store");
    suite::run(&store, &clock).await;
    // The index is spread over all of them.
    for node in &cluster.nodes {
        let keys = node.keys().into_iter();
        assert!(keys.filter(|(key, _)| key.contains("{blocks:")).count() > 0);
    }
}

#[tokio::test]
async fn a_store_behind_sentinels_conforms() {
    let mut sentinel = RedisSentinel::start();
    for server in &mut sentinel.servers {
        server.keys_may_live(None);
    }
    let clock = Arc::new(ManualClock::at(START));
    let builder = closed().with_deadline(Duration::from_secs(20));
    let builder = builder.with_clock(Arc::clone(&clock));
    let store = builder.connect(sentinel.url()).await.expect("a store");
    suite::run(&store, &clock).await;
}

/// The permissions that docs/production.md lists as sufficient.
#[tokio::test]
async fn a_user_with_the_rights_of_the_documentation_can_operate() {
    let page = concat!(env!("CARGO_MANIFEST_DIR"), "/docs/production.md");
    let page = std::fs::read_to_string(page).expect("the page");
    let acl = page.lines().find(|line| line.starts_with("ACL SETUSER"));
    let acl: Vec<_> = acl.expect("the rights").split(' ').collect();
    let mut redis = RedisServer::start();
    redis.keys_may_live(None);
    redis.command::<()>(&acl);
    let clock = Arc::new(ManualClock::at(START));
    let builder = redis.builder().with_prefix("shop:login");
    let builder = builder.with_clock(Arc::clone(&clock));
    let url = format!("redis://shop:password@127.0.0.1:{}", redis.port());
    let store = builder.connect(url).await.expect("a store");
    suite::run(&store, &clock).await;
    let denied: Vec<HashMap<String, Value>> = redis.command(&["ACL", "LOG"]);
    let denied = denied.iter().map(|entry| format!("{:?}", entry["object"]));
    // The client library introduces itself. Redis 6.2 has no such command, and checks the permission first.
    let denied: Vec<_> = denied.filter(|object| !object.contains("client")).collect();
    assert_eq!(denied, [""; 0]);
}

/// Every key, as it is in the database.
fn dump(redis: &RedisServer) -> BTreeMap<String, (Vec<u8>, i64)> {
    let mut connection = redis.connection();
    let keys = redis.keys().into_iter().map(|(key, _)| {
        let value = redis::cmd("DUMP").arg(&key).query(&mut connection);
        let expires = redis::cmd("PTTL").arg(&key).query(&mut connection);
        let expires: i64 = expires.expect("a TTL");
        (key, (value.expect("a value"), i64::from(expires >= 0)))
    });
    keys.collect()
}

#[tokio::test]
async fn clearing_one_pair_leaves_every_other_key_as_it_is_byte_for_byte() {
    let redis = RedisServer::start();
    let store = redis.store().await;
    let limiter = LoginLimiter::new(Policy::default(), store.clone());
    for user in ["victim", "other", "third"] {
        fail(&limiter, ip(HOME), user, 5).await;
        fail(&limiter, ip("2001:db8:1:2::1"), user, 2).await;
    }
    let policy = Policy::default();
    let rule = policy
        .rules()
        .iter()
        .find(|rule| rule.name() == "user-address");
    let limit = rule.expect("the rule by user and address").limit().clone();
    let before = dump(&redis);
    let pair = Key::of_address(address(), "user-address").and_subject(b"victim");
    let name = ledger(&store).name(&pair);
    assert!(before.contains_key(name.as_str()), "{name} is a key");
    let cleared = ledger(&store).clear(&[(&name, &limit)]).await;
    assert_eq!(cleared.expect("cleared"), [true]);
    let mut after = dump(&redis);
    after.remove(name.as_str());
    let mut others = before;
    others.remove(name.as_str());
    assert_eq!(after, others);
    attempt(&limiter, ip(HOME), "victim", Outcome::NotAnAttempt)
        .await
        .expect("admitted");
    refused(limiter.reserve((ip(HOME), "other")).await);
}

#[tokio::test]
async fn clearing_reaches_the_caches_of_all_processes() {
    let redis = RedisServer::start();
    let stores = [connect(redis.url()).await, connect(redis.url()).await];
    let limiters = stores
        .each_ref()
        .map(|store| LoginLimiter::new(Policy::default(), store.clone()));
    fail(&limiters[0], ip(HOME), "victim", 5).await;
    for limiter in &limiters {
        for _ in 0..2 {
            refused(limiter.reserve((ip(HOME), "victim")).await);
        }
    }
    assert!(
        stores
            .iter()
            .all(|store| store.status().cached_refusals > 0)
    );
    let key = Key::of_address(address(), "user-address").and_subject(b"victim");
    let name = ledger(&stores[0]).name(&key);
    let limit = hour();
    ledger(&stores[0])
        .clear(&[(&name, &limit)])
        .await
        .expect("cleared");
    // Here at once, there as soon as it is received.
    let admitted = attempt(&limiters[0], ip(HOME), "victim", Outcome::NotAnAttempt).await;
    admitted.expect("admitted");
    let mut is_admitted = false;
    for _ in 0..1_000 {
        let again = limiters[1].reserve((ip(HOME), "victim")).await;
        is_admitted = again.is_ok();
        if is_admitted {
            break;
        }
        tokio::time::sleep(Duration::from_millis(5)).await;
    }
    assert!(is_admitted, "an entry is fresh for ten seconds otherwise");
}

/// A server that has lost a block must not get it back from a process that has cached it, once an operator has
/// lifted it.
#[tokio::test]
async fn a_block_that_redis_has_lost_can_be_lifted() {
    let redis = RedisServer::start();
    let store = connect(redis.url()).await;
    let limiter = LoginLimiter::new(Policy::default(), store.clone());
    fail(&limiter, ip(HOME), "victim", 5).await;
    refused(limiter.reserve((ip(HOME), "victim")).await);
    redis.flush();
    let key = Key::of_address(address(), "user-address").and_subject(b"victim");
    let name = ledger(&store).name(&key);
    let limit = hour();
    let other = connect(redis.url()).await;
    let cleared = ledger(&other).clear(&[(&name, &limit)]).await;
    assert_eq!(cleared.expect("cleared"), [false]);
    let mut is_admitted = false;
    for _ in 0..1_000 {
        is_admitted = limiter.reserve((ip(HOME), "victim")).await.is_ok();
        if is_admitted {
            break;
        }
        tokio::time::sleep(Duration::from_millis(5)).await;
    }
    assert!(is_admitted);
}

#[tokio::test]
async fn in_an_outage_calls_fail_in_time_and_nothing_is_written_later() {
    let redis = RedisServer::start();
    let proxy = Proxy::start(format!("127.0.0.1:{}", redis.port())).await;
    let store = RedisStore::builder().connect(proxy.url()).await;
    let store = store.expect("a store");
    let ledger = ledger(&store);
    let limiter = LoginLimiter::new(Policy::default(), store.clone());
    proxy.fail(Fault::BlackHole);
    // The fallback blocks, and the journal holds the failures.
    fail(&limiter, ip(HOME), "victim", 5).await;
    refused(limiter.reserve((ip(HOME), "victim")).await);
    let pending = store.status().pending;
    assert!(pending > 0);

    let key = Key::of_address(address(), "user-address").and_subject(b"victim");
    let (name, limit) = (ledger.name(&key), hour());
    let note = BlockNote::new(&name, "user-address", Period::hours(1));
    let failed = [
        ledger.note(&note).await.err(),
        ledger
            .blocks(&BlockQuery::new(&["user-address"]))
            .await
            .err(),
        ledger.block_counts(&["user-address"]).await.err(),
        ledger.inspect(&[(&name, &limit)]).await.err(),
        ledger.document_version().await.err(),
        ledger.replace_document(0, "text").await.err(),
        ledger.instances().await.err(),
        ledger.forget(&key, None).await.err(),
    ];
    for error in failed {
        let kind = error.expect("an error").kind();
        assert!(matches!(
            kind,
            StoreErrorKind::Timeout | StoreErrorKind::Connection
        ));
    }
    assert_eq!(store.status().pending, pending, "nothing is journaled");

    // Clearing reports that Redis was not reached, and takes effect here, pending failures included.
    assert!(ledger.clear(&[(&name, &limit)]).await.is_err());
    attempt(&limiter, ip(HOME), "victim", Outcome::NotAnAttempt)
        .await
        .expect("admitted by the fallback");
    proxy.fail(Fault::None);
    // It takes a while until another connection is opened.
    while store.flush().await.is_err() {
        tokio::time::sleep(Duration::from_millis(20)).await;
    }
    let contents = ledger.inspect(&[(&name, &limit)]).await;
    assert_eq!(contents.expect("contents")[0].standing.usage, 0);
    let shared = ledger.name(&Key::of_address(address(), "address"));
    let contents = ledger.inspect(&[(&shared, &limit)]).await;
    let usage = contents.expect("contents")[0].standing.usage;
    assert_eq!(usage, 5, "what was not cleared is replayed");
    assert_eq!(ledger.document_version().await.expect("a reply"), 0);
}

/// It is written under another token then, and must be found by the id that events have.
#[tokio::test]
async fn an_attempt_that_was_replayed_has_its_own_id() {
    let redis = RedisServer::start();
    let proxy = Proxy::start(format!("127.0.0.1:{}", redis.port())).await;
    let store = RedisStore::builder().connect(proxy.url()).await;
    let store = store.expect("a store");
    let (token, limit) = (Token::new(), hour());
    let key = Key::of_subject("replayed", b"alice");
    let slots = [Slot::new(key, &limit)];
    proxy.fail(Fault::BlackHole);
    let reserved = store.reserve(token, Duration::from_secs(30), &slots).await;
    assert!(reserved.expect("a reply").admitted());
    let settled = store.settle(&[token], Settlement::Failed, &slots, Duration::ZERO);
    settled.await.expect("settled");
    proxy.fail(Fault::None);
    while store.flush().await.is_err() {
        tokio::time::sleep(Duration::from_millis(20)).await;
    }
    let name = ledger(&store).name(&key);
    let members: Vec<Vec<u8>> = redis.command(&["ZRANGE", name.as_str(), "0", "-1"]);
    assert_eq!(members.len(), 1);
    assert_ne!(members[0], token.as_bytes(), "it is derived");
    let contents = ledger(&store).inspect(&[(&name, &limit)]).await;
    let attempts = &contents.expect("contents")[0].attempts;
    assert_eq!(attempts[0].id, AttemptId::of(token));
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn of_concurrent_writers_one_wins_each_version() {
    const WRITERS: usize = 100;
    const VERSIONS: usize = 20;
    let mut redis = RedisServer::start();
    redis.keys_may_live(None);
    let stores = [redis.store().await, redis.store().await];
    let writers: Vec<_> = (0..WRITERS)
        .map(|writer| {
            let ledger = ledger(&stores[writer % 2]);
            tokio::spawn(async move {
                let mut won = Vec::new();
                let mut expected = 0;
                while won.len() < VERSIONS {
                    let text = format!("{writer} {}", won.len());
                    match ledger
                        .replace_document(expected, &text)
                        .await
                        .expect("a reply")
                    {
                        Ok(version) => {
                            assert_eq!(version, expected + 1);
                            won.push((version, text));
                            expected = version;
                        }
                        Err(current) => {
                            let current = current.expect("a document");
                            assert!(current.version > expected);
                            expected = current.version;
                        }
                    }
                }
                won
            })
        })
        .collect();
    let mut won = BTreeMap::new();
    for writer in writers {
        for (version, text) in writer.await.expect("a writer") {
            let before = won.insert(version, text);
            assert_eq!(before, None, "version {version} has two writers");
        }
    }
    let total = (WRITERS * VERSIONS) as u64;
    assert!(won.keys().copied().eq(1..=total));
    let newest = ledger(&stores[0]).document().await.expect("a reply");
    assert_eq!(newest, Some(Document::new(total, &*won[&total])));
    let past = ledger(&stores[0]).past_documents().await.expect("a reply");
    assert_eq!(past.len(), 50);
    assert!(past.iter().all(|past| won[&past.version] == past.text));
}

#[tokio::test]
async fn a_lost_reply_writes_no_second_version_and_is_no_conflict() {
    let mut redis = RedisServer::start();
    redis.keys_may_live(None);
    let proxy = Proxy::start(format!("127.0.0.1:{}", redis.port())).await;
    let builder = closed().with_deadline(Duration::from_secs(20));
    let builder = builder.with_block_cache_capacity(0);
    let store = builder.connect(proxy.url()).await.expect("a store");
    let ledger = ledger(&store);
    for version in 0..20 {
        proxy.lose_replies(1 + version as usize % 2);
        let text = format!("after {version}");
        let written = ledger.replace_document(version, &text).await;
        assert_eq!(written.expect("a reply"), Ok(version + 1));
        assert!(proxy.has_lost_them());
    }
    // A caller that saw an error repeats it, another change having come in between.
    let written = ledger.replace_document(20, "mine").await;
    assert_eq!(written.expect("a reply"), Ok(21));
    let other = ledger.replace_document(21, "another's").await;
    assert_eq!(other.expect("a reply"), Ok(22));
    let again = ledger.replace_document(20, "mine").await;
    assert_eq!(again.expect("a reply"), Ok(21));
    let late = ledger.replace_document(20, "late").await;
    let current = Document::new(22, "another's");
    assert_eq!(late.expect("a reply"), Err(Some(current)));
    assert_eq!(ledger.document_version().await.expect("a reply"), 22);
}

#[tokio::test]
async fn announcements_reach_other_stores_and_are_caught_up_after_a_restart() {
    let mut redis = RedisServer::start();
    redis.keys_may_live(None);
    let writer = redis.store().await;
    // One with a subscription of its own, and one that subscribes for this.
    let readers = [connect(redis.url()).await, redis.store().await];
    let mut announced = readers
        .each_ref()
        .map(|store| ledger(store).announcements());
    let in_time = Duration::from_secs(60);
    for (reader, announced) in readers.iter().zip(&mut announced) {
        eventually(|| reader.status().is_subscribed).await;
        // The subscription itself is a reason to ask.
        while announced.has_changed() {
            announced.changed().await;
        }
    }
    let written = ledger(&writer).replace_document(0, "one").await;
    assert_eq!(written.expect("a reply"), Ok(1));
    for announced in &mut announced {
        let changed = tokio::time::timeout(in_time, announced.changed()).await;
        assert_eq!(changed, Ok(true));
    }
    redis.kill();
    redis.restart();
    for announced in &mut announced {
        let changed = tokio::time::timeout(in_time, announced.changed()).await;
        assert_eq!(changed, Ok(true), "what was announced meanwhile is missed");
    }
    // A version that is lost is another one.
    let version = ledger(&writer).document_version().await;
    assert_eq!(version.expect("a reply"), 0);
    let [first, second] = readers;
    drop((first, second));
    for announced in &mut announced {
        let ended = async { while announced.changed().await {} };
        let ended = tokio::time::timeout(in_time, ended).await;
        assert!(ended.is_ok(), "a store that is gone announces nothing more");
    }
}

#[tokio::test]
async fn an_index_expires_with_its_last_block() {
    let mut redis = RedisServer::start();
    redis.keys_may_live(None);
    let store = redis.store().await;
    let ledger = ledger(&store);
    let ttls = || -> HashSet<i64> {
        let keys = redis.keys().into_iter();
        let keys = keys.filter(|(key, _)| key.contains("blocks"));
        keys.map(|(_, ttl)| (ttl + 59_999) / 60_000).collect()
    };
    let pair = Key::of_address(address(), "pair").and_subject(b"alice");
    let name = ledger.name(&pair);
    let note = |lifts| {
        let note = BlockNote::new(&name, "pair", lifts).at_address(address());
        note.of_subject(b"alice")
    };
    let minutes = |minutes| note(Period::minutes(minutes));
    ledger.note(&minutes(10)).await.expect("noted");
    assert_eq!(redis.keys().len(), 6, "three indexes of two keys");
    assert_eq!(ttls(), [10].into());
    ledger.note(&minutes(5)).await.expect("noted");
    assert_eq!(ttls(), [5].into());
    ledger.note(&note(Period::Forever)).await.expect("noted");
    assert_eq!(ttls(), [0].into(), "never");
    ledger.note(&minutes(20)).await.expect("noted");
    assert_eq!(ttls(), [20].into());
    let page = ledger.blocks(&BlockQuery::new(&["pair"])).await;
    let page = page.expect("a page");
    ledger.drop_notes(&page.blocks).await.expect("dropped");
    assert!(redis.keys().is_empty());

    // By the server's own clock, what has lifted is dropped by the next note, a hundred at a time.
    let part = |i: u8| {
        ledger.name(&Key::of_address(
            Address::new([10, 0, 0, i].into(), 64),
            "pair",
        ))
    };
    for i in 0..100 {
        let name = part(i);
        let note = BlockNote::new(&name, "pair", Period::Of(Duration::from_millis(1)));
        ledger.note(&note).await.expect("noted");
    }
    let name = part(200);
    let note = BlockNote::new(&name, "pair", Period::hours(1));
    tokio::time::sleep(Duration::from_millis(10)).await;
    ledger.note(&note).await.expect("noted");
    let counts = ledger.block_counts(&["pair"]).await;
    assert_eq!(counts.expect("counts"), [1]);
    let sets = redis.keys().into_iter();
    let sets = sets.filter(|(key, _)| key.ends_with(":lifts"));
    let sizes = sets.map(|(key, _)| redis.command::<u64>(&["ZCARD", &key]));
    assert_eq!(sizes.sum::<u64>(), 1, "what has lifted is dropped");
}

/// The same with the server's clock, which the suite does without.
#[tokio::test]
async fn by_the_clock_of_the_server_everything_works_too() {
    let redis = RedisServer::start();
    let store = redis.store().await;
    let ledger = ledger(&store);
    let (limit, key) = (hour(), Key::of_subject("clock", b"alice"));
    let slots = [Slot::new(key, &limit)];
    for _ in 0..5 {
        let token = [Token::new()];
        let recorded = store.settle(&token, Settlement::Recorded, &slots, Duration::ZERO);
        recorded.await.expect("recorded");
    }
    let name = ledger.name(&key);
    let contents = ledger.inspect(&[(&name, &limit)]).await;
    let contents = &contents.expect("contents")[0];
    assert!(contents.standing.is_blocked());
    let is_now = |at: u64| contents.now.abs_diff(at) < 60_000;
    assert!(contents.attempts.iter().all(|attempt| is_now(attempt.at)));
    let note = BlockNote::new(&name, "clock", Period::hours(1)).with_text("why");
    ledger.note(&note).await.expect("noted");
    let page = ledger.blocks(&BlockQuery::new(&["clock"])).await;
    let page = page.expect("a page");
    assert_eq!((page.blocks.len(), page.next), (1, None));
    let lifts_at = page.blocks[0].lifts_at.expect("a time");
    assert!(is_now(page.now) && is_now(lifts_at - 3_600_000));
    let cleared = ledger.clear(&[(&name, &limit)]).await;
    assert_eq!(cleared.expect("cleared"), [true]);
    ledger.drop_notes(&page.blocks).await.expect("dropped");
    let counts = ledger.block_counts(&["clock"]).await;
    assert_eq!(counts.expect("counts"), [0]);
    let minute = Duration::from_secs(60);
    ledger
        .report_instance("a", "7", minute)
        .await
        .expect("reported");
    assert_eq!(ledger.instances().await.expect("instances").len(), 1);
    // The scripts may be flushed at any time.
    redis.command::<()>(&["SCRIPT", "FLUSH"]);
    assert_eq!(ledger.instances().await.expect("instances").len(), 1);
    ledger.note(&note).await.expect("noted");
    ledger.inspect(&[(&name, &limit)]).await.expect("contents");
}

/// Where one address has nearly all blocks, the others are not listed again and again.
#[tokio::test]
async fn a_crowded_address_costs_a_search_in_its_network_few_scripts() {
    const BLOCKS: usize = 2_000;
    let mut redis = RedisServer::start();
    redis.keys_may_live(None);
    let store = redis.store().await;
    let ledger = ledger(&store);
    let at = Address::new(ip("192.0.2.7"), 64);
    for n in 0..BLOCKS {
        let user = format!("user{n}");
        let name = ledger.name(&Key::of_address(at, "user-address").and_subject(user.as_bytes()));
        let note = BlockNote::new(&name, "user-address", Period::hours(1));
        let note = note.at_address(at).of_subject(user.as_bytes());
        ledger.note(&note).await.expect("noted");
    }
    let query = BlockQuery::new(&["user-address"]).with_limit(1_000);
    let query = query.in_network(ip("192.0.2.0"), 24);
    // Loads the script.
    ledger.blocks(&query).await.expect("a page");
    let before = redis.calls_of("evalsha");
    let first = ledger.blocks(&query).await.expect("a page");
    let next = first.next.as_deref().expect("more");
    let second = ledger.blocks(&query.after(next)).await.expect("a page");
    let mut found: Vec<_> = first.blocks.iter().chain(&second.blocks).collect();
    found.sort_by(|one, other| one.counter.cmp(&other.counter));
    found.dedup_by(|one, other| one.counter == other.counter);
    assert_eq!(found.len(), BLOCKS);
    let scripts = redis.calls_of("evalsha") - before;
    // Each address once for each page, and a few more for the crowded one.
    assert!(scripts < 560, "{scripts}");
}

/// A page, wherever it begins, and everything else that an operator does must not keep Redis from others.
#[tokio::test]
async fn among_a_million_blocks_no_command_takes_five_milliseconds() {
    const BLOCKS: u64 = 1_000_000;
    let mut redis = RedisServer::start();
    redis.keys_may_live(None);
    let fill = "for i = ARGV[1], ARGV[2] do \
         local name = string.format('login:{10.%d.%d.%d}:address', i / 65536 % 256, i / 256 % 256, i % 256) \
         local at = i % 10 == 0 and '+inf' or ARGV[3] + i % 1000 * 60000 \
         redis.call('ZADD', KEYS[1], at, name) \
         redis.call('HSET', KEYS[2], name, string.format('0 10.%d.%d.%d - 7 address {}', i / 65536 % 256, i / 256 % 256, i % 256)) \
         end";
    let now = std::time::SystemTime::UNIX_EPOCH.elapsed().expect("a time");
    let later = now.as_millis() as u64 + 3_600_000;
    let mut connection = redis.connection();
    let (step, each) = (5_000, BLOCKS / 8);
    for shard in 0..8_u64 {
        let mut pipeline = redis::pipe();
        for first in (shard * each..(shard + 1) * each).step_by(step as usize) {
            let mut eval = redis::cmd("EVAL");
            eval.arg(fill).arg(2);
            eval.arg(format!("login:{{blocks:{shard}}}:address:lifts"));
            eval.arg(format!("login:{{blocks:{shard}}}:address:notes"));
            eval.arg(first).arg(first + step - 1).arg(later);
            pipeline.add_command(eval).ignore();
        }
        let _: () = pipeline.query(&mut connection).expect("filled");
    }
    redis.command::<()>(&["CONFIG", "SET", "slowlog-log-slower-than", "5000"]);
    let store = redis.store().await;
    let ledger = ledger(&store);
    let rules = ["address", "user-address"];
    let work = async || {
        let query = BlockQuery::new(&rules);
        let counts = ledger.block_counts(&rules).await.expect("counts");
        assert_eq!(counts, [BLOCKS, 0]);
        let first = ledger.blocks(&query).await.expect("a page");
        assert_eq!(first.blocks.len(), 100);
        let mut cursor = first.next.expect("more");
        // Among the hundred thousand that never lift.
        let never = ledger.blocks(&query.with_limit(1_000).after(&cursor)).await;
        assert_eq!(never.expect("a page").blocks.len(), 1_000);
        for _ in 0..10 {
            let page = ledger.blocks(&query.after(&cursor)).await.expect("a page");
            assert_eq!(page.blocks.len(), 100);
            cursor = page.next.expect("more");
        }
        let here = ip("10.3.0.0");
        let found = ledger
            .blocks(&query.in_network(here, 16))
            .await
            .expect("a page");
        assert!(
            found.next.is_some(),
            "it goes on where the search has ended"
        );
        let name = ledger.name(&Key::of_address(address(), "address"));
        let note = BlockNote::new(&name, "address", Period::minutes(1));
        ledger.note(&note).await.expect("noted");
        let soon = ledger.blocks(&query).await.expect("a page");
        assert_eq!(soon.blocks[0].counter, name);
        ledger.drop_notes(&soon.blocks[..1]).await.expect("dropped");
    };
    // Another process may take the processor away from Redis for a while, not time after time.
    let mut slow = 0;
    for _ in 0..5 {
        redis.command::<()>(&["SLOWLOG", "RESET"]);
        work().await;
        slow = redis.command::<usize>(&["SLOWLOG", "LEN"]);
        if slow == 0 {
            break;
        }
    }
    let log: redis::Value = redis.command(&["SLOWLOG", "GET", "3"]);
    assert_eq!(slow, 0, "{log:?}");
    // The cursor of the last page, as if the forever ones were reached.
    let forever = ledger
        .blocks(&BlockQuery::new(&rules).after(&last_cursor()))
        .await;
    let forever = forever.expect("a page");
    assert!(forever.blocks.iter().all(|block| block.lifts_at.is_none()));
    assert_eq!(forever.blocks.len(), 100);
    assert_eq!(redis.calls_of("keys") + redis.calls_of("scan"), 0);
}

/// A cursor in the middle of the blocks that never lift.
fn last_cursor() -> String {
    use base64::{Engine, engine::general_purpose::URL_SAFE_NO_PAD};
    let mut bytes = vec![1];
    bytes.extend_from_slice(&u64::MAX.to_be_bytes());
    bytes.extend_from_slice(b"login:{10.7.");
    URL_SAFE_NO_PAD.encode(bytes)
}

/// What a reader of the database, or of what is sent to it, learns of a user.
#[tokio::test]
async fn no_user_is_in_the_database_or_on_the_wire_unless_a_text_has_it() {
    const USER: &str = "somebody-with-a-name";
    let mut redis = RedisServer::start();
    redis.keys_may_live(None);
    let store = redis.store().await;
    let ledger = ledger(&store);
    let (address, limit) = (address(), hour());
    let client = redis::Client::open(redis.url()).expect("a client");
    let mut monitor = client.get_connection().expect("a connection");
    monitor
        .send_packed_command(b"*1\r\n$7\r\nMONITOR\r\n")
        .expect("sent");
    monitor.recv_response().expect("monitoring");

    let pair = Key::of_address(address, "user-address").and_subject(USER.as_bytes());
    let name = ledger.name(&pair);
    let token = [Token::new()];
    let slots = [Slot::new(pair, &limit).spelled(b"Somebody-With-A-Name")];
    let recorded = store.settle(&token, Settlement::Recorded, &slots, Duration::ZERO);
    recorded.await.expect("recorded");
    let note = BlockNote::new(&name, "user-address", Period::hours(1));
    let note = note.at_address(address).of_subject(USER.as_bytes());
    ledger.note(&note.with_text("text")).await.expect("noted");
    let query = BlockQuery::new(&["user-address"]).of_subject(USER.as_bytes());
    let page = ledger.blocks(&query).await.expect("a page");
    assert_eq!(page.blocks.len(), 1);
    assert!(!format!("{page:?}").to_lowercase().contains(USER));
    let contents = ledger.inspect(&[(&name, &limit)]).await.expect("contents");
    assert!(!format!("{contents:?}").contains(&token[0].to_string()));

    let all = dump(&redis);
    redis.command::<()>(&["SET", "the:end", ""]);
    let mut sent = String::new();
    while !sent.contains("the:end") {
        sent += &format!("{:?}\n", monitor.recv_response().expect("a line"));
    }
    assert!(sent.contains("EVALSHA") || sent.contains("EVAL"));
    assert!(!sent.to_lowercase().contains(USER));
    for (key, (value, _)) in &all {
        let value = String::from_utf8_lossy(value).to_lowercase();
        assert!(!key.contains(USER) && !value.contains(USER), "{key}");
    }
    redis.command::<()>(&["SAVE"]);
    let rdb = std::fs::read(redis.rdb()).expect("a file");
    assert!(!String::from_utf8_lossy(&rdb).to_lowercase().contains(USER));
    // With it in the text, all of these would find it.
    ledger.note(&note.with_text(USER)).await.expect("noted");
    redis.command::<()>(&["SAVE"]);
    let rdb = std::fs::read(redis.rdb()).expect("a file");
    assert!(String::from_utf8_lossy(&rdb).contains(USER));
}

/// The names of counters that an operator's tool passes on may come from anywhere.
#[tokio::test]
async fn no_name_reaches_a_key_that_is_no_counter() {
    let mut redis = RedisServer::start();
    redis.keys_may_live(None);
    let store = redis.store().await;
    let ledger = ledger(&store);
    let key = Key::of_subject("known:addresses", b"alice");
    let keep = KnownAddresses::default();
    store.remember(&key, address(), keep).await.expect("known");
    let name = ledger.name(&Key::of_address(address(), "address"));
    let note = BlockNote::new(&name, "address", Period::hours(1)).at_address(address());
    ledger.note(&note).await.expect("noted");
    let written = ledger.replace_document(0, "text").await;
    assert_eq!(written.expect("a reply"), Ok(1));
    let minute = Duration::from_secs(60);
    ledger
        .report_instance("a", "7", minute)
        .await
        .expect("reported");
    redis.command::<()>(&["ZADD", "sessions:{192.0.2.1}:x", "1", "session"]);
    let before = dump(&redis);
    let limit = hour();
    for key in before.keys() {
        let name: CounterName = key.parse().expect("a text");
        let cleared = ledger.clear(&[(&name, &limit)]).await;
        let error = cleared.expect_err("no counter");
        assert_eq!(error.kind(), StoreErrorKind::InvalidInput, "{key}");
    }
    assert_eq!(dump(&redis), before);
}
