//! Blocks as observers count them, in several processes, compared with the blocks in the store.

use std::{
    collections::{BTreeMap, BTreeSet},
    net::IpAddr,
    path::Path,
    sync::Arc,
    time::Duration,
};

use serde_json::Value;
use tokio::{runtime::Runtime, sync::Barrier, task::JoinSet};
use tower_login_rate_limit::{
    LoginLimiter, Outcome, Policy, ReserveError, Rule, admin::BlockFilter, event::JsonLines,
};

use crate::support::{RedisCluster, RedisSentinel, RedisServer, Worker, closed};

const PROCESSES: usize = 4;
const TASKS: usize = 256;
/// Everything starts anew at other addresses so many times, all processes at the same moment.
const WAVES: u32 = 20;
const ADDRESSES: u32 = 12;
/// More than the failures of an address suffice for: which of them are blocked is left to chance.
const USERS: u32 = 6;
/// How often a task guesses in a wave.
const GUESSES: u32 = 4;
const FILE: &str = "BLOCK_BEGAN_FILE";

/// The one that a guess is at. Tasks next to each other guess at the same.
fn target(wave: u32, guess: u32) -> (IpAddr, String) {
    let address = IpAddr::from([10, 0, wave as u8, (guess % ADDRESSES) as u8]);
    (address, format!("user{}", guess / ADDRESSES % USERS))
}

async fn limiter(url: &str) -> LoginLimiter {
    let builder = closed().with_deadline(Duration::from_secs(60));
    let store = builder.connect(url).await.expect("a store");
    LoginLimiter::new(Policy::default(), store)
}

/// All tasks of one process, all at once, with wrong passwords.
async fn guess(limiter: &LoginLimiter, wave: u32) {
    let start = Arc::new(Barrier::new(TASKS));
    let mut tasks = JoinSet::new();
    for task in 0..TASKS as u32 {
        let (limiter, start) = (limiter.clone(), Arc::clone(&start));
        tasks.spawn(async move {
            start.wait().await;
            for guess in 0..GUESSES {
                let (address, user) = target(wave, task + guess * 7);
                match limiter.reserve((address, &*user)).await {
                    Ok(attempt) => attempt.settle(Outcome::Failure).await.expect("settled"),
                    Err(ReserveError::Refused(_)) => {}
                    Err(error) => panic!("{error:?}"),
                }
            }
        });
    }
    tasks.join_all().await;
}

/// What each of the processes does: a wave for each line that it reads. Events go to its file.
fn work(url: &str) {
    let path = std::env::var(FILE).expect("a file");
    Runtime::new().expect("a runtime").block_on(async {
        let file = Arc::new(JsonLines::open(path).expect("a file"));
        let limiter = limiter(url).await.with_observer(Arc::clone(&file));
        while let Some(wave) = Worker::read() {
            guess(&limiter, wave.parse().expect("a number")).await;
            // With what is written of blocks, and with the observers.
            limiter.all_settled().await.expect("settled");
            let [status] = limiter.observers()[..] else {
                panic!("one observer");
            };
            assert_eq!((status.dropped, file.lost()), (0, 0));
            Worker::reply(file.written());
        }
    });
}

/// How many events there are of each block that began, by rule and counter.
fn began(file: &Path) -> Vec<String> {
    let lines = std::fs::read_to_string(file).expect("events");
    let events = lines
        .lines()
        .map(|line| serde_json::from_str::<Value>(line).expect("JSON"));
    let began = events.filter(|event| event["event"] == "block_began");
    let text = |value: &Value| value.as_str().expect("a text").to_owned();
    began
        .map(|event| format!("{}/{}", text(&event["rule"]), text(&event["counter"])))
        .collect()
}

/// The blocks that the list has, each of which was verified by its counter.
async fn listed(limiter: &LoginLimiter) -> BTreeSet<String> {
    let admin = limiter.admin().expect("a ledger");
    let (mut filter, mut blocks) = (BlockFilter::new(), BTreeSet::new());
    loop {
        let page = admin.blocks(&filter).await.expect("a page");
        for block in page.blocks {
            assert!(blocks.insert(block.id.to_string()), "{block:?} twice");
        }
        let Some(next) = page.next else {
            return blocks;
        };
        filter = filter.after(next);
    }
}

/// How many counters refuse, asked one by one and not by the list.
async fn refusing(limiter: &LoginLimiter) -> usize {
    let mut refusing = 0;
    for wave in 0..WAVES {
        for guess in 0..ADDRESSES * USERS {
            let (address, user) = target(wave, guess);
            let report = limiter.check((address, &*user)).await.expect("a report");
            let is_blocked = |rule| report.rule(rule).is_some_and(|s| s.is_blocked());
            refusing += usize::from(is_blocked(Rule::USER_ADDRESS));
            // An address is asked with each of its users, and counts once.
            let is_first = guess < ADDRESSES;
            refusing += usize::from(is_first && is_blocked(Rule::ADDRESS));
        }
    }
    refusing
}

/// Starts the processes and compares, or is one of them.
fn each_block_is_one_event(test: &str, start: impl FnOnce() -> (Box<dyn std::any::Any>, String)) {
    if let Some(url) = Worker::url() {
        return work(&url);
    }
    let (_servers, url) = start();
    let directory = tempfile::tempdir().expect("a directory");
    let files: Vec<_> = (0..PROCESSES)
        .map(|process| directory.path().join(format!("{process}.jsonl")))
        .collect();
    let test = format!("block_began::processes::{test}");
    let mut workers: Vec<_> = files
        .iter()
        .map(|file| Worker::start(&test, &url, &[(FILE, file.to_str().expect("a path"))]))
        .collect();
    for wave in 0..WAVES {
        // Each of them is the first at times.
        workers.rotate_left(1);
        workers.iter_mut().for_each(|worker| worker.send(wave));
        for worker in &mut workers {
            worker.answer();
        }
    }
    let mut events = BTreeMap::<String, usize>::new();
    let mut reporting = 0;
    for file in &files {
        let began = began(file);
        reporting += usize::from(!began.is_empty());
        for block in began {
            *events.entry(block).or_default() += 1;
        }
    }
    let (blocks, refusing) = Runtime::new().expect("a runtime").block_on(async {
        let limiter = limiter(&url).await;
        (listed(&limiter).await, refusing(&limiter).await)
    });
    let twice: Vec<_> = events.iter().filter(|(_, times)| **times != 1).collect();
    assert!(twice.is_empty(), "reported more than once: {twice:?}");
    let events: BTreeSet<_> = events.into_keys().collect();
    let only = |one: &BTreeSet<_>, other: &BTreeSet<_>| -> Vec<String> {
        one.difference(other).cloned().collect()
    };
    let (unreported, untrue) = (only(&blocks, &events), only(&events, &blocks));
    assert!(unreported.is_empty(), "never reported: {unreported:?}");
    assert!(untrue.is_empty(), "reported, not in force: {untrue:?}");
    assert_eq!(refusing, blocks.len(), "the list against the counters");
    // Every address is blocked, and at least one of its users: 25 failures of 6 users with at most 5 each.
    let addresses = (WAVES * ADDRESSES) as usize;
    assert!(blocks.len() >= 2 * addresses, "{} blocks", blocks.len());
    assert!(reporting > 1, "all blocks began in one process");
    println!(
        "{} blocks, each reported once, by {reporting} processes",
        blocks.len()
    );
}

#[test]
fn each_block_of_four_processes_is_one_event_on_redis() {
    each_block_is_one_event("each_block_of_four_processes_is_one_event_on_redis", || {
        let redis = RedisServer::start();
        let url = redis.url();
        (Box::new(redis), url)
    });
}

#[test]
fn each_block_of_four_processes_is_one_event_on_a_cluster() {
    let test = "each_block_of_four_processes_is_one_event_on_a_cluster";
    each_block_is_one_event(test, || {
        let cluster = RedisCluster::start();
        let url = cluster.url();
        (Box::new(cluster), url)
    });
}

#[test]
fn each_block_of_four_processes_is_one_event_by_sentinel() {
    let test = "each_block_of_four_processes_is_one_event_by_sentinel";
    each_block_is_one_event(test, || {
        let sentinel = RedisSentinel::start();
        let url = sentinel.url();
        (Box::new(sentinel), url)
    });
}
