//! The rules change a hundred times while several processes serve logins and Redis restarts.

use std::{
    net::IpAddr,
    sync::{
        Arc, Mutex,
        atomic::{AtomicU32, Ordering},
    },
    time::{Duration, SystemTime},
};

use tokio::runtime::Runtime;
use tower_login_rate_limit::{
    Limit, LoginLimiter, Outcome, Period, Policy, Rule,
    admin::{AdminErrorKind, Author},
    live::Ruleset,
    store::RedisStore,
};

use super::{policy, server};
use crate::support::{Proxy, RedisServer, Worker};

const CHANGES: u32 = 100;
/// What the number of a version is added to, to be the limit of both its rules.
const BASE: u32 = 100;

/// Both rules have the same limit, so that a decision under two versions would show.
fn version(number: u32) -> Ruleset {
    let same = Limit::attempts(BASE + number).within(Period::days(1));
    Ruleset::new(policy(BASE + number).with_address_limit(same).unwrap())
}

/// In microseconds. The processes share the clock of the machine.
fn now() -> u64 {
    let now = SystemTime::UNIX_EPOCH.elapsed().expect("a time");
    now.as_micros().try_into().expect("a time")
}

/// What the logins of one process were decided by.
#[derive(Default)]
struct Decisions {
    /// When the first decision was made by each version.
    first: Mutex<Vec<Option<u64>>>,
    served: AtomicU32,
    /// Decisions by rules of more than one version.
    mixed: AtomicU32,
    /// Decisions by an older version than the one before.
    back: AtomicU32,
    failed: Mutex<Option<String>>,
}

impl Decisions {
    fn first(&self, number: u32) -> Option<u64> {
        let first = self.first.lock().unwrap();
        first.get(number as usize).copied().flatten()
    }

    fn add(&self, number: u32) {
        let (mut first, number) = (self.first.lock().unwrap(), number as usize);
        if first.len() <= number {
            first.resize(number + 1, None);
        }
        first[number].get_or_insert_with(now);
    }

    /// Logins of one client after the other, each with the right password.
    async fn serve(&self, limiter: LoginLimiter, task: u8, pause: Duration) {
        let mut newest = 0;
        let user = format!("user of process {}", std::process::id());
        for login in 0_u32.. {
            let [_, high, middle, low] = login.to_be_bytes();
            let address = IpAddr::from([10 + task, high, middle, low]);
            let failed = match limiter.reserve((address, &*user)).await {
                Ok(attempt) => {
                    let limit = |rule| attempt.report().rule(rule).map(|s| s.limit);
                    match (limit(Rule::USER_ADDRESS), limit(Rule::ADDRESS)) {
                        // The policy that the process was started with.
                        (Some(5), Some(25)) => {
                            self.back
                                .fetch_add(u32::from(newest > 0), Ordering::Relaxed);
                        }
                        (Some(one), Some(other)) if one == other && one > BASE => {
                            let number = one - BASE;
                            self.add(number);
                            let is_back = u32::from(number < newest);
                            self.back.fetch_add(is_back, Ordering::Relaxed);
                            newest = number;
                        }
                        _ => {
                            self.mixed.fetch_add(1, Ordering::Relaxed);
                        }
                    }
                    self.served.fetch_add(1, Ordering::Relaxed);
                    attempt.settle(Outcome::Success).await.err()
                }
                Err(error) => {
                    *self.failed.lock().unwrap() = Some(format!("{error:?}"));
                    None
                }
            };
            if let Some(error) = failed {
                *self.failed.lock().unwrap() = Some(format!("{error:?}"));
            }
            tokio::time::sleep(pause).await;
        }
    }
}

/// Writes a version, again while Redis restarts.
async fn change(limiter: &LoginLimiter, number: u32) {
    let admin = limiter.admin().unwrap();
    let author = Author::new("alice", format!("change {number}")).unwrap();
    loop {
        let expected = u64::from(number) - 1;
        let written = admin.replace_ruleset(expected, version(number), &author);
        match written.await {
            Ok(written) => return assert_eq!(written, u64::from(number)),
            Err(error) if error.kind() == AdminErrorKind::Store => {}
            Err(error) => {
                // The reply was lost, and the write was not.
                let other = error.conflict().expect("a conflict");
                assert_eq!(other.version, u64::from(number), "{error}");
                assert_eq!(other.reason, author.reason(), "{error}");
                return;
            }
        }
        tokio::time::sleep(Duration::from_millis(20)).await;
    }
}

/// What each of the processes does: serves logins, and does what it reads.
fn work(url: &str, tasks: u8, pause: Duration) {
    Runtime::new().expect("a runtime").block_on(async {
        // Generous: many processes start at once. A server that is gone refuses at once.
        let builder = RedisStore::builder().with_deadline(Duration::from_secs(5));
        let store = builder.connect(url).await.expect("a store");
        let limiter = LoginLimiter::new(Policy::default(), store);
        let limiter = limiter.live().await.expect("live");
        let decisions = Arc::new(Decisions::default());
        for task in 0..tasks {
            let (decisions, limiter) = (Arc::clone(&decisions), limiter.clone());
            tokio::spawn(async move { decisions.serve(limiter, task, pause).await });
        }
        Worker::reply("serving");
        while let Some(line) = Worker::read() {
            let (order, number) = line.split_once(' ').expect("an order and a number");
            let number = number.parse().expect("a number");
            match order {
                "change" => {
                    change(&limiter, number).await;
                    Worker::reply(now());
                }
                "enforce" => {
                    let started = SystemTime::now();
                    let first = loop {
                        if let Some(first) = decisions.first(number) {
                            break first;
                        }
                        let waited = started.elapsed().unwrap_or_default();
                        assert!(waited.as_secs() < 60, "{number} was never enforced");
                        tokio::time::sleep(Duration::from_millis(1)).await;
                    };
                    Worker::reply(first);
                }
                "end" => {
                    let count = |of: &AtomicU32| of.load(Ordering::Relaxed);
                    assert_eq!(count(&decisions.mixed), 0, "mixtures");
                    assert_eq!(count(&decisions.back), 0, "went back");
                    assert_eq!(*decisions.failed.lock().unwrap(), None);
                    let lost = (1..=number).filter(|n| decisions.first(*n).is_none());
                    assert_eq!(lost.collect::<Vec<_>>(), [0; 0], "never enforced here");
                    Worker::reply(count(&decisions.served));
                }
                _ => panic!("{line}"),
            }
        }
    });
}

/// Processes that serve logins, each through a proxy that counts how often it polls.
struct Fleet {
    redis: RedisServer,
    instances: Vec<(Worker, Proxy)>,
    /// Of each change, how long it took until it was in force on the last instance, in microseconds.
    delays: Vec<u64>,
    /// Of each change and instance that has not made it, how often the instance has polled meanwhile.
    polls: Vec<usize>,
    _runtime: Runtime,
}

impl Fleet {
    fn start(test: &str, instances: usize) -> Self {
        let redis = server(&["--appendonly", "yes", "--appendfsync", "always"]);
        let runtime = Runtime::new().expect("a runtime");
        let address = redis.url().replace("redis://", "");
        let test = format!("live::processes::{test}");
        let mut instances: Vec<_> = (0..instances)
            .map(|_| {
                let proxy = runtime.block_on(Proxy::start(address.clone()));
                (Worker::start(&test, &proxy.url(), &[]), proxy)
            })
            .collect();
        for (worker, _) in &mut instances {
            assert_eq!(worker.answer(), "serving");
        }
        Self {
            redis,
            instances,
            delays: Vec::new(),
            polls: Vec::new(),
            _runtime: runtime,
        }
    }

    /// One instance makes a change, and all enforce it.
    fn change(&mut self, number: u32, restarts: bool) {
        let before: Vec<_> = self.instances.iter().map(|(_, p)| p.polls()).collect();
        let by = number as usize % self.instances.len();
        let time = |text: String| -> u64 { text.parse().expect("a time") };
        self.instances[by].0.send(format!("change {number}"));
        if restarts {
            // The change may have been written or not, and its reply may be lost.
            self.redis.kill();
            self.redis.restart();
        }
        let changed = time(self.instances[by].0.answer());
        let mut last = changed;
        for (i, (worker, proxy)) in self.instances.iter_mut().enumerate() {
            worker.send(format!("enforce {number}"));
            last = last.max(time(worker.answer()));
            if i != by {
                self.polls.push(proxy.polls() - before[i]);
            }
        }
        self.delays.push(last - changed);
    }

    /// What the instances say at the end, and what was measured.
    fn end(mut self) {
        for (worker, _) in &mut self.instances {
            worker.send(format!("end {CHANGES}"));
            let served: u32 = worker.answer().parse().expect("a number");
            assert!(served > CHANGES, "{served} logins");
        }
        let kept = RedisStore::connect(self.redis.url());
        let history = self._runtime.block_on(async {
            let limiter = LoginLimiter::new(Policy::default(), kept.await.expect("a store"));
            limiter.admin().unwrap().history().await.expect("versions")
        });
        assert_eq!(
            history.first().expect("versions").version,
            u64::from(CHANGES)
        );
        for kept in &history {
            let number = u32::try_from(kept.version).expect("a number");
            assert_eq!(kept.reason, format!("change {number}"));
            let differences = kept.ruleset.differences(&version(number));
            assert_eq!(differences, [""; 0], "version {number}");
        }
        self.delays.sort_unstable();
        let delay = |percent: usize| {
            let position = (self.delays.len() * percent).div_ceil(100).max(1) - 1;
            Duration::from_micros(self.delays[position])
        };
        let in_time = self.delays.iter().filter(|delay| **delay <= 1_000_000);
        println!(
            "{} changes in force on all of {} instances: {} within a second; \
             median {:?}, 95 % {:?}, slowest {:?}",
            self.delays.len(),
            self.instances.len(),
            in_time.count(),
            delay(50),
            delay(95),
            delay(100)
        );
        let mut polls = self.polls;
        polls.sort_unstable();
        let most = polls[polls.len() * 95 / 100 - 1];
        println!(
            "polls from before a change until it is in force: median {}, 95 % {most}, most {}",
            polls[polls.len() / 2],
            polls[polls.len() - 1]
        );
        // One that was under way when the change was written, and the next. They are half a second apart at most.
        assert!(most <= 2, "{polls:?}");
    }
}

#[test]
fn a_hundred_changes_by_two_processes_are_enforced_by_the_other_while_redis_restarts() {
    if let Some(url) = Worker::url() {
        return work(&url, 4, Duration::from_millis(5));
    }
    let test = "a_hundred_changes_by_two_processes_are_enforced_by_the_other_while_redis_restarts";
    let mut fleet = Fleet::start(test, 2);
    for number in 1..=CHANGES {
        fleet.change(number, number % 23 == 0);
    }
    fleet.end();
}

#[test]
fn a_hundred_changes_reach_sixteen_processes() {
    if let Some(url) = Worker::url() {
        return work(&url, 1, Duration::from_millis(10));
    }
    let mut fleet = Fleet::start("a_hundred_changes_reach_sixteen_processes", 16);
    for number in 1..=CHANGES {
        fleet.change(number, false);
    }
    fleet.end();
}
