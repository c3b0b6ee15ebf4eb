//! A change of the policy, until it is in force on the last of sixteen instances.

use std::time::{Duration, Instant};

use benches::redis_server::RedisServer;
use tokio::{runtime::Builder, time::sleep};
use tower_login_rate_limit::{
    Limit, LoginLimiter, Period, Policy, Rule, admin::Author, live::Ruleset, store::RedisStore,
};

const INSTANCES: usize = 16;
const CHANGES: u32 = 100;
/// Above the limits of the default policy, so that no version equals it.
const BASE: u32 = 100;
/// The time that a change is promised to take at most.
const PROMISED: Duration = Duration::from_secs(1);
/// After which a change is taken for lost.
const PATIENCE: Duration = Duration::from_secs(60);

fn version(number: u32) -> Ruleset {
    let limit = Limit::attempts(BASE + number).within(Period::days(1));
    let policy = Policy::default().with_address_limit(limit);
    Ruleset::new(policy.expect("a policy"))
}

fn enforces(limiter: &LoginLimiter, number: u32) -> bool {
    let policy = limiter.policy();
    let rule = policy.rule(Rule::ADDRESS).expect("a rule");
    rule.limit().max_attempts() == BASE + number
}

pub fn measure() {
    let redis = RedisServer::start();
    let runtime = Builder::new_multi_thread().enable_all().build();
    runtime.expect("a runtime").block_on(async {
        let mut instances = Vec::new();
        for _ in 0..INSTANCES {
            // Connections of its own, as another server has.
            let store = RedisStore::builder().with_deadline(Duration::from_secs(5));
            let store = store.connect(redis.url()).await.expect("a store");
            let limiter = LoginLimiter::new(Policy::default(), store);
            instances.push(limiter.live().await.expect("an instance"));
        }
        let author = Author::new("benches", "measures").expect("an author");
        let mut delays = Vec::new();
        for number in 1..=CHANGES {
            let admin = instances[number as usize % INSTANCES].admin();
            let admin = admin.expect("a ledger");
            let expected = u64::from(number) - 1;
            let started = Instant::now();
            let changed = admin.replace_ruleset(expected, version(number), &author);
            changed.await.expect("a version");
            while !instances.iter().all(|limiter| enforces(limiter, number)) {
                assert!(
                    started.elapsed() < PATIENCE,
                    "change {number} is nowhere in force"
                );
                sleep(Duration::from_millis(1)).await;
            }
            delays.push(started.elapsed());
        }
        delays.sort_unstable();
        let milliseconds = |delay: Duration| delay.as_secs_f64() * 1e3;
        let in_time = delays.iter().filter(|delay| **delay <= PROMISED).count();
        println!("in-time {in_time}");
        println!("median {}", milliseconds(delays[delays.len() / 2]));
        println!("slowest {}", milliseconds(delays[delays.len() - 1]));
    });
}
