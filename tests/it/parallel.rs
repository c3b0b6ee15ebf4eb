//! Many at once: guesses are counted exactly, and good logins are let through.

use std::{
    io::{BufRead, BufReader, Write},
    net::IpAddr,
    process::{Child, Command, Stdio},
    sync::Arc,
    time::Duration,
};

use tokio::{sync::Barrier, task::JoinSet};
use tower_login_rate_limit::{LoginLimiter, Outcome, Policy, ReserveError, store::MemoryStore};

use crate::support::{RedisCluster, RedisSentinel, RedisServer, attempt, closed, ip};

const ROUNDS: u32 = 200;
const PROCESSES: usize = 4;
const TASKS: usize = 256;
const WORKER: &str = "GUESSING_WORKER_REDIS_URL";

/// Where there are more servers it takes longer; `GUESSING_ROUNDS=200` does as many there.
fn rounds_elsewhere() -> u32 {
    std::env::var("GUESSING_ROUNDS").map_or(50, |rounds| rounds.parse().expect("a number"))
}

/// Whom the tasks of one round guess at: all at one user, or each at another.
#[derive(Clone, Copy)]
enum Target {
    OnePair,
    OneAddress,
}

impl Target {
    const BOTH: [Self; 2] = [Self::OnePair, Self::OneAddress];

    fn limit(self) -> usize {
        match self {
            Self::OnePair => 5,
            Self::OneAddress => 25,
        }
    }

    fn user(self, process: usize, task: usize) -> String {
        match self {
            Self::OnePair => "victim".to_owned(),
            Self::OneAddress => format!("victim {process} {task}"),
        }
    }
}

/// All at once, with wrong passwords; how many were let through.
async fn guess(
    limiter: &LoginLimiter,
    target: Target,
    round: u32,
    process: usize,
    tasks: usize,
) -> usize {
    let address = IpAddr::from((round + 1).to_be_bytes());
    let start = Arc::new(Barrier::new(tasks));
    let mut guesses = JoinSet::new();
    for task in 0..tasks {
        let (limiter, start) = (limiter.clone(), Arc::clone(&start));
        guesses.spawn(async move {
            start.wait().await;
            let user = target.user(process, task);
            match limiter.reserve((address, &*user)).await {
                Ok(attempt) => {
                    tokio::task::yield_now().await;
                    attempt.settle(Outcome::Failure).await.expect("settled");
                    1
                }
                Err(ReserveError::Refused(_)) => 0,
                Err(error) => panic!("{error:?}"),
            }
        });
    }
    guesses.join_all().await.into_iter().sum()
}

/// One of several processes that guess at the same time; this same test, started once more.
struct Guesser {
    process: Child,
    answers: BufReader<std::process::ChildStdout>,
}

impl Guesser {
    fn start(url: &str, test: &str) -> Self {
        let this = std::env::current_exe().expect("this program");
        let mut process = Command::new(this)
            .args(["--exact", test, "--nocapture"])
            .env(WORKER, url)
            .stdin(Stdio::piped())
            .stdout(Stdio::piped())
            .spawn()
            .expect("a process");
        let answers = BufReader::new(process.stdout.take().expect("its output"));
        Self { process, answers }
    }

    fn begin(&mut self, target: usize, round: u32, process: usize) {
        let input = self.process.stdin.as_mut().expect("its input");
        writeln!(input, "{target} {round} {process}").expect("told");
    }

    fn admitted(&mut self) -> usize {
        loop {
            let mut line = String::new();
            assert!(
                self.answers.read_line(&mut line).expect("an answer") > 0,
                "it ended"
            );
            if let Some((_, answer)) = line.split_once("admitted ") {
                return answer.trim().parse().expect("a number");
            }
        }
    }

    /// What such a process does.
    fn work(url: String) {
        let runtime = tokio::runtime::Runtime::new().expect("a runtime");
        runtime.block_on(async {
            let builder = closed().with_deadline(Duration::from_secs(60));
            let store = builder.connect(url).await.expect("a store");
            let limiter = LoginLimiter::new(Policy::default(), store);
            for line in std::io::stdin().lines() {
                let line = line.expect("a line");
                let words: Vec<usize> = line
                    .split(' ')
                    .map(|n| n.parse().expect("a number"))
                    .collect();
                let [target, round, process] = words[..] else {
                    panic!("{line}");
                };
                let target = Target::BOTH[target];
                let admitted = guess(&limiter, target, round as u32, process, TASKS).await;
                println!("admitted {admitted}");
            }
        });
    }
}

impl Drop for Guesser {
    fn drop(&mut self) {
        let _ = self.process.kill();
        let _ = self.process.wait();
    }
}

/// Starts them, or is one of them.
fn four_processes_guess_exactly_as_often_as_the_limit<R>(
    test: &str,
    start: impl FnOnce() -> R,
    url: impl FnOnce(&R) -> String,
    flush: impl Fn(&R),
    rounds: u32,
) {
    if let Ok(url) = std::env::var(WORKER) {
        return Guesser::work(url);
    }
    let redis = start();
    let (url, test) = (url(&redis), format!("parallel::{test}"));
    let mut guessers: Vec<_> = (0..PROCESSES)
        .map(|_| Guesser::start(&url, &test))
        .collect();
    for (target, kind) in Target::BOTH.into_iter().enumerate() {
        for round in 0..rounds {
            for (process, guesser) in guessers.iter_mut().enumerate() {
                guesser.begin(target, round, process);
            }
            let admitted: usize = guessers.iter_mut().map(Guesser::admitted).sum();
            assert_eq!(admitted, kind.limit(), "round {round}");
        }
        flush(&redis);
    }
}

#[test]
fn four_processes_guess_exactly_as_often_as_the_limit_on_redis() {
    four_processes_guess_exactly_as_often_as_the_limit(
        "four_processes_guess_exactly_as_often_as_the_limit_on_redis",
        RedisServer::start,
        RedisServer::url,
        RedisServer::flush,
        ROUNDS,
    );
}

#[test]
fn four_processes_guess_exactly_as_often_as_the_limit_on_a_cluster() {
    four_processes_guess_exactly_as_often_as_the_limit(
        "four_processes_guess_exactly_as_often_as_the_limit_on_a_cluster",
        RedisCluster::start,
        RedisCluster::url,
        RedisCluster::flush,
        rounds_elsewhere(),
    );
}

#[test]
fn four_processes_guess_exactly_as_often_as_the_limit_by_sentinel() {
    four_processes_guess_exactly_as_often_as_the_limit(
        "four_processes_guess_exactly_as_often_as_the_limit_by_sentinel",
        RedisSentinel::start,
        RedisSentinel::url,
        |sentinel| sentinel.servers[sentinel.primary()].flush(),
        rounds_elsewhere(),
    );
}

#[tokio::test(flavor = "multi_thread", worker_threads = 4)]
async fn a_thousand_tasks_guess_exactly_as_often_as_the_limit_in_memory() {
    for target in Target::BOTH {
        let limiter = LoginLimiter::new(Policy::default(), MemoryStore::new());
        for round in 0..ROUNDS {
            let admitted = guess(&limiter, target, round, 0, PROCESSES * TASKS).await;
            assert_eq!(admitted, target.limit(), "round {round}");
        }
    }
}

/// 500 people in one office, at the same moment, each with the right password.
async fn five_hundred_good_logins(limiter: LoginLimiter) {
    let office = ip("192.0.2.1");
    let mut people = JoinSet::new();
    for person in 0..500 {
        let limiter = limiter.clone();
        people.spawn(async move {
            let user = format!("person {person}");
            // Whoever is told that it is busy comes again; nobody is told of a block.
            while let Err(refusal) = attempt(&limiter, office, &user, Outcome::Success).await {
                assert_eq!(refusal.reason(), tower_login_rate_limit::Reason::Busy);
                tokio::time::sleep(Duration::from_millis(1)).await;
            }
        });
    }
    people.join_all().await;
    let report = limiter.check(office).await.unwrap();
    assert_eq!((report.refusal(), report.remaining()), (None, Some(25)));
}

#[tokio::test(flavor = "multi_thread", worker_threads = 4)]
async fn five_hundred_good_logins_at_once_leave_nothing_behind_on_redis() {
    let redis = RedisServer::start();
    five_hundred_good_logins(LoginLimiter::new(Policy::default(), redis.store().await)).await;
    assert_eq!(redis.keys(), []);
}

#[tokio::test(flavor = "multi_thread", worker_threads = 4)]
async fn five_hundred_good_logins_at_once_leave_nothing_behind_in_memory() {
    let store = Arc::new(MemoryStore::new());
    five_hundred_good_logins(LoginLimiter::new(Policy::default(), Arc::clone(&store))).await;
    assert!(store.is_empty());
}
