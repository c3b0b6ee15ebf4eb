//! What a login costs Redis: calls, time, bytes on the wire and bytes kept.

use std::{
    net::IpAddr,
    ops::{Add, Sub},
};

use tokio::runtime::{Builder, Runtime};
use tower_login_rate_limit::{LoginLimiter, Outcome, Policy, ReserveError, store::RedisStore};

use crate::{
    callers::{address, user},
    redis_server::RedisServer,
    report::{Goal, Report},
};

const SECTION: &str = "What a login costs Redis";
const LOGINS: u64 = 5_000;

pub fn measure(report: &mut Report) {
    let runtime = Builder::new_current_thread().enable_all().build();
    let runtime = runtime.expect("a runtime");
    let server = RedisServer::start();
    let store = runtime.block_on(RedisStore::connect(server.url()));
    let store = store.expect("a store");
    let cost = Cost {
        limiter: LoginLimiter::new(Policy::default(), store.clone()),
        runtime,
        server,
    };
    let strict = LoginLimiter::new(Policy::strict(), store);
    cost.of_logins(report, &cost.limiter, "", Some(Goal::AtMost(1.0)));
    cost.of_logins(report, &strict, ", strict policy", None);
    cost.of_a_block(report);
    cost.of_keys(report);
}

struct Cost {
    // The connections go before the server does.
    limiter: LoginLimiter,
    runtime: Runtime,
    server: RedisServer,
}

impl Cost {
    fn of_logins(
        &self,
        report: &mut Report,
        limiter: &LoginLimiter,
        policy: &str,
        calls: Option<Goal>,
    ) {
        for (what, outcome) in [
            ("failed", Outcome::Failure),
            ("successful", Outcome::Success),
        ] {
            // The first call of each script carries its text, and is not an EVALSHA.
            self.runtime.block_on(async {
                let attempt = limiter.reserve((address(LOGINS), user(LOGINS))).await;
                let settled = attempt.expect("a new client").settle(outcome).await;
                settled.expect("an answer");
            });
            self.server.flush();
            let (mut before, mut after) = (Done::default(), Done::default());
            // Some at a time, so that there is a before and an after.
            for batch in 0..50 {
                let batch = batch * LOGINS / 50..(batch + 1) * LOGINS / 50;
                let mut attempts = Vec::new();
                before = before
                    + self.during(async || {
                        for n in batch {
                            let attempt = limiter.reserve((address(n), user(n))).await;
                            attempts.push(attempt.expect("nobody has been here before"));
                        }
                    });
                after = after
                    + self.during(async || {
                        for attempt in attempts {
                            let settled = attempt.settle(outcome).await;
                            settled.expect("an answer");
                        }
                    });
            }
            let mut number = |of: &str, number: f64, unit, goal| {
                let each = number / LOGINS as f64;
                report.number(
                    SECTION,
                    format!("{what} login{policy}: {of}"),
                    each,
                    unit,
                    goal,
                );
            };
            number(
                "before the password is checked",
                before.calls,
                "script calls",
                calls,
            );
            number("after that", after.calls, "script calls", calls);
            let both = before + after;
            number("time in Redis", both.micros, "µs", None);
            number("to Redis", both.bytes_in, "bytes", None);
            number("from Redis", both.bytes_out, "bytes", None);
        }
    }

    fn of_a_block(&self, report: &mut Report) {
        self.server.flush();
        let who: (IpAddr, _) = (address(0), user(0));
        self.runtime.block_on(self.fail(who.clone(), 5));
        let mut blocked = |which: &str, times: u64, goal| {
            let done = self.during(async || {
                for _ in 0..times {
                    let refused = self.limiter.reserve(who.clone()).await;
                    assert!(matches!(refused, Err(ReserveError::Refused(_))));
                }
            });
            let (what, each) = (format!("blocked login: {which}"), done.calls / times as f64);
            report.number(SECTION, what, each, "script calls", goal);
        };
        blocked("the first that a process sees", 1, None);
        blocked("each one after it", LOGINS, Some(Goal::AtMost(0.0)));
    }

    fn of_keys(&self, report: &mut Report) {
        // The address counts up to 25, the user at it up to 5, so others have to help.
        for (failures, most) in [(1, 185.0), (5, 300.0), (25, 910.0)] {
            self.server.flush();
            // Nobody whom the store remembers as blocked.
            let address = address(LOGINS + failures);
            for helper in 0..failures.div_ceil(5) {
                let who = (address, user(helper));
                self.runtime.block_on(self.fail(who, failures.min(5)));
            }
            let mut keys: Vec<String> = self.server.ask(redis::cmd("KEYS").arg("login:*"));
            // Users at the address hold fewer, if there is more than one.
            keys.retain(|key| failures <= 5 || key.ends_with(":address"));
            assert!(!keys.is_empty(), "there are no counters");
            for key in keys {
                let members: u64 = self.server.ask(redis::cmd("ZCARD").arg(&key));
                assert_eq!(members, failures, "{key}");
                let usage = redis::cmd("MEMORY")
                    .arg("USAGE")
                    .arg(&key)
                    .arg("SAMPLES")
                    .arg(0)
                    .to_owned();
                let kind = if key.ends_with(":address") {
                    "an address"
                } else {
                    "a user at an address"
                };
                let what = format!("counter of {kind}, failures: {failures}");
                report.number(
                    SECTION,
                    what,
                    self.server.ask(&usage),
                    "bytes",
                    Some(Goal::AtMost(most)),
                );
            }
        }
    }

    async fn fail(&self, who: (IpAddr, String), times: u64) {
        for _ in 0..times {
            let attempt = self.limiter.reserve(who.clone()).await.expect("admitted");
            let settled = attempt.settle(Outcome::Failure).await;
            settled.expect("an answer");
        }
    }

    /// What Redis did meanwhile, without what it takes to ask it for that.
    fn during(&self, work: impl AsyncFnOnce()) -> Done {
        let before = Done::so_far(&self.server);
        let nothing = Done::so_far(&self.server) - before;
        let before = Done::so_far(&self.server);
        self.runtime.block_on(work());
        Done::so_far(&self.server) - before - nothing
    }
}

#[derive(Clone, Copy, Default)]
struct Done {
    calls: f64,
    micros: f64,
    bytes_in: f64,
    bytes_out: f64,
}

impl Done {
    fn so_far(server: &RedisServer) -> Self {
        let (calls, micros) = server.calls("evalsha");
        Self {
            calls,
            micros,
            bytes_in: server.info("stats", "total_net_input_bytes"),
            bytes_out: server.info("stats", "total_net_output_bytes"),
        }
    }

    fn with(self, other: Self, both: impl Fn(f64, f64) -> f64) -> Self {
        Self {
            calls: both(self.calls, other.calls),
            micros: both(self.micros, other.micros),
            bytes_in: both(self.bytes_in, other.bytes_in),
            bytes_out: both(self.bytes_out, other.bytes_out),
        }
    }
}

impl Add for Done {
    type Output = Self;

    fn add(self, other: Self) -> Self {
        self.with(other, |one, other| one + other)
    }
}

impl Sub for Done {
    type Output = Self;

    fn sub(self, other: Self) -> Self {
        self.with(other, |one, other| one - other)
    }
}
