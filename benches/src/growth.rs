//! How the cost of an attempt grows: with the keys that are there, and with the limit.

use std::{
    cell::Cell,
    time::{Duration, Instant, SystemTime, UNIX_EPOCH},
};

use redis::Value;
use tokio::runtime::{Builder, Runtime};
use tower_login_rate_limit::{
    Limit, LoginLimiter, Outcome, Period, Policy, Token,
    store::{MemoryStore, RedisStore},
};

use crate::{
    callers::{address, keys, user},
    overheard::Call,
    redis_server::RedisServer,
    report::{Goal, Report},
    rounds::{Contender, Rounds},
};

const SECTION: &str = "How the cost of an attempt grows";

/// A name, and how many of something.
type Size = (&'static str, u64);

const KEYS: [Size; 5] = [
    ("10³", 1_000),
    ("10⁴", 10_000),
    ("10⁵", 100_000),
    ("10⁶", 1_000_000),
    ("10⁷", 10_000_000),
];
const LIMITS: [Size; 4] = [("5", 5), ("100", 100), ("1,000", 1_000), ("10,000", 10_000)];

pub fn measure(report: &mut Report) {
    let runtime = Builder::new_current_thread().enable_all().build();
    let runtime = runtime.expect("a runtime");
    keys_in_redis(&runtime, report);
    limits_in_redis(&runtime, report);
    keys_in_memory(&runtime, report);
}

/// Lets sizes take turns, and says what each took and how many times as much as the smallest.
fn compare(
    report: &mut Report,
    what: &str,
    sizes: &[Size],
    unit: &'static str,
    most: Option<Goal>,
    turn: impl Fn(usize) -> f64,
) {
    let turn = &turn;
    let contenders = sizes
        .iter()
        .enumerate()
        .map(|(i, (name, _))| -> Contender<'_> { (name, Box::new(move || turn(i))) });
    let rounds = Rounds::take_turns(contenders.collect());
    for (name, _) in sizes {
        let number = rounds.median(name);
        report.number(SECTION, format!("{what} {name}"), number, unit, None);
    }
    let (smallest, largest) = (sizes[0].0, sizes[sizes.len() - 1].0);
    for (name, _) in &sizes[1..] {
        let ratio = rounds.ratio(name, smallest);
        let goal = most.filter(|_| *name == largest);
        report.ratio(SECTION, format!("{what} {name} / {smallest}"), ratio, goal);
    }
}

fn keys_in_redis(runtime: &Runtime, report: &mut Report) {
    let sizes = &KEYS[..4];
    let filled = sizes.iter().map(|(_, size)| {
        // Each caller has two.
        let filled = Filled::new(runtime, Policy::default(), size / 2);
        filled
            .redis
            .pipeline(0..size / 2, |n| filled.reserve.command(&keys(n), &token(n)));
        let found: u64 = filled.redis.ask(&redis::cmd("DBSIZE"));
        assert_eq!(found, *size);
        filled
    });
    let filled: Vec<_> = filled.collect();
    let (what, goal) = ("time in Redis, keys that are there:", Goal::AtMost(1.3));
    compare(report, what, sizes, "µs", Some(goal), |i| {
        filled[i].time_of_attempts(4, 500)
    });
}

fn limits_in_redis(runtime: &Runtime, report: &mut Report) {
    const CALLERS: u64 = 50;
    let now = SystemTime::now().duration_since(UNIX_EPOCH);
    let now = now.expect("a time after 1970").as_millis() as u64;
    let filled = LIMITS.iter().map(|(_, limit)| {
        let filled = Filled::new(runtime, limited_to(*limit as u32), CALLERS);
        // As many failures as there may be before the last one, in the last minutes: this is what the
        // script would have written, had they happened then.
        for n in 0..CALLERS {
            for key in keys(n) {
                filled.redis.pipeline(1..*limit, |i| {
                    let mut add = redis::cmd("ZADD");
                    add.arg(&key).arg(now - i * 10).arg(&token(i));
                    add
                });
            }
        }
        filled
    });
    let filled: Vec<_> = filled.collect();
    let (what, goal) = ("time in Redis, one below a limit of", Goal::AtMost(1.5));
    compare(report, what, &LIMITS, "µs", Some(goal), |i| {
        filled[i].time_of_attempts(20, CALLERS)
    });
}

/// Both rules of the default policy, with this limit.
fn limited_to(limit: u32) -> Policy {
    let limit = || {
        let limit = Limit::attempts(limit).within(Period::days(1));
        limit.blocked_for(Period::days(1))
    };
    let policy = Policy::default().with_address_limit(limit());
    let policy = policy.and_then(|policy| policy.with_user_address_limit(limit()));
    policy.expect("a policy")
}

/// A Redis in which callers have been before.
struct Filled {
    redis: RedisServer,
    callers: u64,
    reserve: Call,
    cancel: Call,
    /// Whose turn it is.
    next: Cell<u64>,
}

impl Filled {
    /// Empty, and with the calls that our store makes under this policy.
    fn new(runtime: &Runtime, policy: Policy, callers: u64) -> Self {
        let redis = RedisServer::start();
        let store = runtime.block_on(RedisStore::connect(redis.url()));
        let limiter = LoginLimiter::new(policy, store.expect("a store"));
        let attempt = async || {
            let attempt = limiter.reserve((address(0), user(0))).await;
            let attempt = attempt.expect("nobody has been here before");
            let settled = attempt.settle(Outcome::NotAnAttempt).await;
            settled.expect("an answer");
        };
        // The first call of each script carries its text.
        runtime.block_on(attempt());
        let calls = Call::overhear(&redis.url(), || runtime.block_on(attempt()));
        let [reserve, cancel] = calls.try_into().expect("an attempt is two calls");
        redis.flush();
        Self {
            redis,
            callers,
            reserve,
            cancel,
            next: Cell::new(0),
        }
    }

    /// The microseconds that an attempt takes in Redis, by some batches of callers who have been here
    /// before. They are taken back after each batch, which does not count.
    fn time_of_attempts(&self, batches: u64, batch: u64) -> f64 {
        let mut time = 0.0;
        for _ in 0..batches {
            let first = self.next.replace(self.next.get() + batch);
            // A stride that has no factor in common with how many there are: each comes once.
            let callers = (first..first + batch).map(|i| i * 7_919 % self.callers);
            let callers: Vec<_> = callers.collect();
            let token = Token::new();
            let (_, before) = self.redis.calls("evalsha");
            let answers = self.redis.pipeline(callers.iter().copied(), |n| {
                self.reserve.command(&keys(n), token.as_bytes())
            });
            time += self.redis.calls("evalsha").1 - before;
            assert!(answers.iter().all(is_admitted), "somebody was refused");
            let answers = self
                .redis
                .pipeline(callers, |n| self.cancel.command(&keys(n), token.as_bytes()));
            assert!(answers.iter().all(|counters| *counters == Value::Int(2)));
        }
        time / (batches * batch) as f64
    }
}

/// A script that admits replies with a string, which begins with the token, or with the token among the
/// values of each counter.
fn is_admitted(answer: &Value) -> bool {
    match answer {
        Value::Array(values) => matches!(values.get(2), Some(Value::BulkString(_))),
        answer => matches!(answer, Value::BulkString(_)),
    }
}

fn token(n: u64) -> [u8; 16] {
    u128::from(n).to_be_bytes()
}

fn keys_in_memory(runtime: &Runtime, report: &mut Report) {
    let filled = KEYS.map(|(_, size)| {
        let limiter = LoginLimiter::new(
            Policy::default(),
            MemoryStore::with_capacity(2 * size as usize),
        );
        runtime.block_on(async {
            for n in 0..size / 2 {
                let attempt = limiter.reserve((address(n), user(n))).await;
                let attempt = attempt.expect("nobody has been here before");
                let settled = attempt.settle(Outcome::Failure).await;
                settled.expect("there is room");
            }
        });
        (limiter, size / 2)
    });
    let next = Cell::new(0_u64);
    let what = "time in memory, reserved and taken back, keys that are there:";
    compare(report, what, &KEYS, "ns", None, |i| {
        let (limiter, callers) = &filled[i];
        let (mut time, batches, batch) = (Duration::ZERO, 200, 1_000);
        for _ in 0..batches {
            let first = next.replace(next.get() + batch);
            let numbers =
                (first..first + batch).map(|i| i.wrapping_mul(0x9E37_79B9_7F4A_7C15) % callers);
            // Made ahead, so that it is not them who are measured.
            let batch: Vec<_> = numbers.map(|n| (address(n), user(n))).collect();
            let started = Instant::now();
            runtime.block_on(async {
                for (address, user) in &batch {
                    let attempt = limiter.reserve((*address, user.as_str())).await;
                    let attempt = attempt.expect("one failure is not too many");
                    let settled = attempt.settle(Outcome::NotAnAttempt).await;
                    settled.expect("it was there");
                }
            });
            time += started.elapsed();
        }
        time.as_nanos() as f64 / (batches * batch) as f64
    });
}
