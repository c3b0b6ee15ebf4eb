//! A fault every ten seconds, for a minute, or for as long as `SOAK_SECONDS` says: nobody gets more
//! guesses than the rules allow, nobody honest is blocked, and neither memory nor open files grow.
//!
//! Runs in a process of its own, so that what is measured is its own.

use std::{
    collections::HashMap,
    net::IpAddr,
    process::Command,
    sync::{
        Arc, Mutex,
        atomic::{AtomicBool, AtomicU32, Ordering},
    },
    time::{Duration, Instant},
};

use tokio::task::JoinSet;
use tower_login_rate_limit::{
    Limit, LoginLimiter, Outcome, Period, Policy, Reason, ReserveError,
    store::{RedisStore, redis::RedisStoreBuilder},
};

use crate::support::{Fault, Proxy, RedisServer, eventually, ip};

const WORKER: &str = "SOAK_WORKER";
const EVERY: Duration = Duration::from_secs(10);
const SERVERS: usize = 3;
const LIMIT: usize = 5;
/// How long a failure counts, and blocks.
const WINDOW: Duration = Duration::from_secs(3);
/// How much earlier or later a failure may be written than it was made.
const SLACK: Duration = Duration::from_millis(600);

#[test]
fn a_fault_every_ten_seconds() {
    if std::env::var(WORKER).is_err() {
        let this = std::env::current_exe().expect("this program");
        let soak = Command::new(this)
            .args(["--exact", "soak::a_fault_every_ten_seconds", "--nocapture"])
            .env(WORKER, "yes")
            .output()
            .expect("a process");
        println!("{}", String::from_utf8_lossy(&soak.stdout));
        eprintln!("{}", String::from_utf8_lossy(&soak.stderr));
        assert!(soak.status.success());
        return;
    }
    let seconds = std::env::var("SOAK_SECONDS").map_or(60, |text| text.parse().expect("a number"));
    let runtime = tokio::runtime::Builder::new_multi_thread()
        .worker_threads(2)
        .enable_all()
        .build();
    runtime
        .expect("a runtime")
        .block_on(soak(Duration::from_secs(seconds)));
}

fn builder() -> RedisStoreBuilder {
    RedisStore::builder()
}

async fn soak(time: Duration) {
    let redis = RedisServer::start();
    let proxy = Proxy::start(format!("127.0.0.1:{}", redis.port())).await;
    let limit = Limit::attempts(LIMIT as u32)
        .within(Period::Of(WINDOW))
        .blocked_for(Period::Of(WINDOW));
    let policy = Policy::default()
        .with_user_address_limit(limit)
        .and_then(|policy| policy.with_rule_enabled("address", false))
        .expect("a policy");
    let mut stores = Vec::new();
    for _ in 0..SERVERS {
        stores.push(builder().connect(proxy.url()).await.expect("a store"));
    }
    let limiters: Vec<_> = (stores.iter())
        .map(|store| LoginLimiter::new(policy.clone(), store.clone()))
        .collect();

    let load = Load::default();
    let mut tasks = JoinSet::new();
    for (server, limiter) in limiters.iter().enumerate() {
        for task in 0..8 {
            tasks.spawn(guess(limiter.clone(), server, task, load.clone()));
            let person = server * 8 + task;
            tasks.spawn(log_in(limiter.clone(), person, load.clone()));
        }
    }

    let (started, mut faults, mut measured) = (Instant::now(), 0, Vec::new());
    while started.elapsed() < time {
        let name = strike(&redis, &proxy, faults).await;
        faults += 1;
        let left = EVERY.saturating_sub(Duration::from_millis(
            (started.elapsed().as_millis() % EVERY.as_millis()) as u64,
        ));
        tokio::time::sleep(left).await;
        let status = stores[0].status();
        let usage = Usage::now();
        println!(
            "{:>4} s, {name}: {usage:?}, {} guesses and {} logins, {status:?}",
            started.elapsed().as_secs(),
            load.guesses.load(Ordering::Relaxed),
            load.logins.load(Ordering::Relaxed),
        );
        measured.push(usage);
    }
    load.done.store(true, Ordering::Relaxed);
    while let Some(task) = tasks.join_next().await {
        task.expect("a task that kept its word");
    }
    for store in &stores {
        eventually(|| !store.status().is_degraded && store.status().pending == 0).await;
    }
    assert!(load.logins.load(Ordering::Relaxed) > 100);
    load.assert_within_limits();
    assert_flat(&measured);

    // And as exact as ever.
    let mut guesses = JoinSet::new();
    for i in 0..60 {
        let limiter = limiters[i % SERVERS].clone();
        guesses.spawn(async move {
            let attempt = limiter.reserve((ip("203.0.113.1"), "victim")).await;
            attempt.is_ok()
        });
    }
    let admitted = guesses
        .join_all()
        .await
        .into_iter()
        .filter(|admitted| *admitted);
    assert_eq!(admitted.count(), LIMIT);
}

/// Does something bad for a while.
async fn strike(redis: &RedisServer, proxy: &Proxy, number: usize) -> &'static str {
    let for_a_while = async |fault: Fault, millis: u64| {
        proxy.fail(fault);
        tokio::time::sleep(Duration::from_millis(millis)).await;
        proxy.fail(Fault::None);
    };
    match number % 9 {
        0 => {
            for_a_while(Fault::BlackHole, 2_000).await;
            "black hole"
        }
        1 => {
            redis.pause();
            tokio::time::sleep(Duration::from_secs(5)).await;
            redis.resume();
            "stopped for 5 seconds"
        }
        2 => {
            for_a_while(Fault::Resets, 1_000).await;
            "resets"
        }
        3 => {
            for_a_while(Fault::LostReplies, 1_000).await;
            "lost replies"
        }
        4 => {
            for_a_while(Fault::Slow(Duration::from_millis(300)), 2_000).await;
            "slow"
        }
        5 => {
            redis.command::<()>(&["CONFIG", "SET", "maxmemory", "1"]);
            tokio::time::sleep(Duration::from_secs(2)).await;
            redis.command::<()>(&["CONFIG", "SET", "maxmemory", "0"]);
            "out of memory"
        }
        6 => {
            for _ in 0..100 {
                redis.command::<()>(&["SCRIPT", "FLUSH"]);
                tokio::time::sleep(Duration::from_millis(10)).await;
            }
            "scripts forgotten"
        }
        7 => {
            for_a_while(Fault::Answers(b"+OK\r\n".to_vec()), 1_000).await;
            "garbage"
        }
        _ => {
            proxy.forget_connections();
            "connections forgotten"
        }
    }
}

#[derive(Clone, Default)]
struct Load {
    done: Arc<AtomicBool>,
    guesses: Arc<AtomicU32>,
    logins: Arc<AtomicU32>,
    admitted: Arc<Mutex<Admitted>>,
}

/// When each server admitted a guess at a user: not before it was asked, and not after it had answered.
type Admitted = HashMap<(usize, usize), Vec<(Instant, Instant)>>;

impl Load {
    /// A server admits the limit in a window at most, whoever decides.
    fn assert_within_limits(&self) {
        let window = WINDOW - SLACK;
        for ((server, user), times) in &*self.admitted.lock().expect("times") {
            for within in times.windows(LIMIT + 1) {
                // A machine that stands still for a while makes answers late, and guesses look closer
                // together than they were.
                let first = within.iter().map(|(asked, _)| *asked).min();
                let taken = within[LIMIT].1 - first.expect("some");
                assert!(
                    taken >= window,
                    "{} guesses at user {user} in {taken:?} on server {server}",
                    LIMIT + 1
                );
            }
        }
    }
}

/// Wrong passwords for users that all servers are asked for.
async fn guess(limiter: LoginLimiter, server: usize, task: usize, load: Load) {
    let user = task % 4;
    while !load.done.load(Ordering::Relaxed) {
        let asked = Instant::now();
        let reserved = limiter
            .reserve((ip("198.51.100.1"), format!("victim {user}")))
            .await;
        match reserved {
            Ok(attempt) => {
                {
                    let mut admitted = load.admitted.lock().expect("times");
                    let times = admitted.entry((server, user)).or_default();
                    times.push((asked, Instant::now()));
                }
                attempt.settle(Outcome::Failure).await.expect("settled");
                load.guesses.fetch_add(1, Ordering::Relaxed);
            }
            Err(ReserveError::Refused(_)) => {}
            Err(error) => panic!("an error in spite of the fallback: {error:?}"),
        }
        tokio::time::sleep(Duration::from_millis(10)).await;
    }
}

/// Somebody who knows their password.
async fn log_in(limiter: LoginLimiter, person: usize, load: Load) {
    let home = IpAddr::from([192, 0, 2, u8::try_from(person).expect("few people")]);
    while !load.done.load(Ordering::Relaxed) {
        match limiter.reserve((home, "owner")).await {
            Ok(attempt) => {
                attempt.settle(Outcome::Success).await.expect("settled");
                load.logins.fetch_add(1, Ordering::Relaxed);
            }
            Err(ReserveError::Refused(refusal)) => {
                // An attempt whose answer got lost may be in flight until it is taken back.
                assert_eq!(
                    refusal.reason(),
                    Reason::Busy,
                    "somebody honest was blocked"
                );
            }
            Err(error) => panic!("an error in spite of the fallback: {error:?}"),
        }
        tokio::time::sleep(Duration::from_millis(20)).await;
    }
}

/// What this process uses.
#[derive(Clone, Copy, Debug)]
struct Usage {
    kilobytes: u64,
    files: usize,
}

impl Usage {
    fn now() -> Self {
        let status = std::fs::read_to_string("/proc/self/status").expect("Linux");
        let line = status.lines().find_map(|line| line.strip_prefix("VmRSS:"));
        let kilobytes = line.and_then(|line| line.split_whitespace().next()?.parse().ok());
        Self {
            kilobytes: kilobytes.expect("a number"),
            files: std::fs::read_dir("/proc/self/fd").expect("Linux").count(),
        }
    }
}

/// After the first rounds, in which everything is met once, nothing grows.
fn assert_flat(measured: &[Usage]) {
    let (early, late) = measured.split_at(measured.len() / 2);
    let most = |usage: &[Usage], of: fn(&Usage) -> u64| usage.iter().map(of).max().unwrap_or(0);
    let memory = |usage| most(usage, |usage| usage.kilobytes);
    let files = |usage| most(usage, |usage| usage.files as u64);
    assert!(memory(late) < memory(early) + 20_000, "{measured:?}");
    assert!(files(late) <= files(early) + 20, "{measured:?}");
}
