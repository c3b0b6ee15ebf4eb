//! The moment at which a block begins is reported once, by the settlement that brings it.

mod processes;

use std::{
    collections::HashMap,
    sync::{Arc, Mutex},
    time::Duration,
};

use tower_login_rate_limit::{
    LoginLimiter, Outcome, Policy, Rule, Token,
    store::{Key, MemoryStore, RedisStore, Settlement, Slot, Store},
};

use crate::{
    log::Log,
    support::{RedisCluster, RedisServer, attempt, fail, ip},
};

const HOME: &str = "192.0.2.1";
const USERS: usize = 5;

/// Guesses at several users of two addresses until everything is blocked, all at once, through several
/// stores; each block that begins in Redis is reported by exactly one of them.
async fn guess_through(name: &str, stores: Vec<Arc<dyn Store>>) {
    let policy = Policy::default();
    let began = Arc::new(Mutex::new(HashMap::<String, u32>::new()));
    let mut tasks = Vec::new();
    for task in 0..256 {
        let (store, policy) = (Arc::clone(&stores[task % stores.len()]), policy.clone());
        let began = Arc::clone(&began);
        tasks.push(tokio::spawn(async move {
            for round in 0..8 * USERS {
                let (address, user) = address_and_user(task + round);
                let names = names(&address, &user);
                let slots = slots(&policy, &address, &user);
                let token = Token::new();
                let lease = Duration::from_secs(30);
                let standings = store.reserve(token, lease, &slots).await.unwrap();
                if !standings.admitted() {
                    continue;
                }
                let failed = Settlement::Failed;
                let settled = store.settle(&[token], failed, &slots, Duration::ZERO).await;
                for (position, standing) in settled.unwrap().began {
                    assert!(standing.is_blocked());
                    let name = names[position].clone();
                    *began.lock().unwrap().entry(name).or_default() += 1;
                }
            }
        }));
    }
    for task in tasks {
        task.await.unwrap();
    }
    let began = began.lock().unwrap().clone();
    let mut blocked = Vec::new();
    for i in 0..2 * USERS {
        let (address, user) = address_and_user(i);
        let slots = slots(&policy, &address, &user);
        let standings = stores[0].check(&slots).await.unwrap();
        for (name, standing) in names(&address, &user).iter().zip(&*standings) {
            if standing.is_blocked() && !blocked.contains(name) {
                blocked.push(name.clone());
            }
        }
    }
    // Five failures of five users are the limit of an address.
    assert_eq!(blocked.len(), 2 * (USERS + 1), "{name}: {blocked:?}");
    for block in &blocked {
        assert_eq!(began.get(block), Some(&1), "{name}: {block}");
    }
    assert_eq!(began.len(), blocked.len(), "{name}: {began:?}");
}

fn address_and_user(i: usize) -> (String, String) {
    (
        format!("192.0.2.{}", i % 2),
        format!("user{}", i / 2 % USERS),
    )
}

fn names(address: &str, user: &str) -> [String; 2] {
    [address.to_owned(), format!("{user} at {address}")]
}

fn slots<'a>(policy: &'a Policy, address: &str, user: &'a str) -> [Slot<'a>; 2] {
    let limit = |name| policy.rule(name).unwrap().limit();
    let key = |name| Key::of_address(address.parse().unwrap(), name);
    let pair = key(Rule::USER_ADDRESS).and_subject(user.as_bytes());
    [
        Slot::new(key(Rule::ADDRESS), limit(Rule::ADDRESS)),
        Slot::new(pair, limit(Rule::USER_ADDRESS)),
    ]
}

#[tokio::test(flavor = "multi_thread")]
async fn parallel_guesses_through_four_stores_report_each_block_once() {
    guess_through("memory", vec![Arc::new(MemoryStore::new())]).await;
    let redis = RedisServer::start();
    let mut stores: Vec<Arc<dyn Store>> = Vec::new();
    for _ in 0..4 {
        // Without the cache, so that every store asks.
        let builder = RedisStore::builder().with_block_cache_capacity(0);
        let builder = builder.with_deadline(Duration::from_secs(20));
        let store = builder.connect(redis.url()).await.unwrap();
        stores.push(Arc::new(store));
    }
    guess_through("redis", stores).await;
    let cluster = RedisCluster::start();
    let stores = (0..4).map(|_| {
        let builder = RedisStore::builder().with_block_cache_capacity(0);
        let builder = builder.with_deadline(Duration::from_secs(20));
        let store = builder.build_with_manager(cluster.client());
        Arc::new(store.unwrap()) as Arc<dyn Store>
    });
    guess_through("cluster", stores.collect()).await;
}

#[tokio::test]
async fn a_block_that_begins_is_logged_once_with_its_address_and_without_the_user() {
    let redis = RedisServer::start();
    let stores: [Arc<dyn Store>; 2] = [Arc::new(MemoryStore::new()), Arc::new(redis.store().await)];
    for store in stores {
        let limiter = LoginLimiter::new(Policy::default(), store);
        let (log, _guard) = Log::start();
        fail(&limiter, ip(HOME), "alice", 4).await;
        assert_eq!(log.count("login block began"), 0);
        fail(&limiter, ip(HOME), "alice", 1).await;
        for _ in 0..3 {
            let refused = attempt(&limiter, ip(HOME), "alice", Outcome::Failure).await;
            refused.unwrap_err();
        }
        assert_eq!(log.count("login block began"), 1);
        let text = log.text();
        for words in ["user-address", "192.0.2.1", "usage=5", "limit=5", "1 day"] {
            assert!(text.contains(words), "{words}: {text}");
        }
        assert!(!text.contains("alice"));
    }
}
