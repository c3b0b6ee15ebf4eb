//! The time that each script takes in Redis, beside a script that executes the same commands and decides
//! nothing.

use std::time::{SystemTime, UNIX_EPOCH};

use tokio::runtime::{Builder, Runtime};
use tower_login_rate_limit::{LoginLimiter, Outcome, Policy, store::RedisStore};

use crate::{
    callers::{address, keys, user},
    overheard::Call,
    redis_server::RedisServer,
    report::{Goal, Report},
    rounds::{Contender, Rounds},
};

const SECTION: &str = "Time of a script in Redis";
/// Clients of one turn. Each makes the call once.
const CLIENTS: u64 = 5_000;

/// The token under which an attempt could have been replayed, which a success names too. No attempt has it.
const DERIVED: &[u8; 16] = b"a derived token.";

/// What a client calls.
#[derive(Clone, Copy)]
enum Step {
    Reserve,
    Fail,
    Succeed,
}

struct Case {
    what: &'static str,
    ours: &'static str,
    bare: &'static str,
    /// What each client has called before, which is not timed.
    before: &'static [Step],
    timed: Step,
    /// The commands of the timed step, with literals in place of what is computed.
    commands: &'static str,
}

const CASES: [Case; 4] = [
    Case {
        what: "reserve, a new client",
        ours: "reserve, a new client: ours",
        bare: "reserve, a new client: the same commands",
        before: &[],
        timed: Step::Reserve,
        commands: "
            call('TIME')
            call('EXISTS', KEYS[1], KEYS[2])
            call('ZADD', KEYS[1], 'LEASE', ARGV[1])
            call('ZADD', KEYS[2], 'LEASE', ARGV[1])
            call('PEXPIRE', KEYS[1], '86430000')
            call('PEXPIRE', KEYS[2], '86430000')
            return ARGV[1]",
    },
    Case {
        what: "reserve, a pair with a failure",
        ours: "reserve, a pair with a failure: ours",
        bare: "reserve, a pair with a failure: the same commands",
        before: &[Step::Reserve, Step::Fail],
        timed: Step::Reserve,
        commands: "
            call('TIME')
            call('EXISTS', KEYS[1], KEYS[2])
            call('ZCARD', KEYS[1])
            call('ZCARD', KEYS[2])
            call('ZADD', KEYS[1], 'NX', 'LEASE', ARGV[1])
            call('ZADD', KEYS[2], 'NX', 'LEASE', ARGV[1])
            call('ZREMRANGEBYSCORE', KEYS[1], '-inf', 'BEGINS')
            call('PEXPIRE', KEYS[1], '86430000')
            call('ZREMRANGEBYSCORE', KEYS[2], '-inf', 'BEGINS')
            call('PEXPIRE', KEYS[2], '86430000')
            return ARGV[1]",
    },
    Case {
        what: "a failure",
        ours: "a failure: ours",
        bare: "a failure: the same commands",
        before: &[Step::Reserve],
        timed: Step::Fail,
        commands: "
            call('TIME')
            call('ZCARD', KEYS[1])
            call('ZCARD', KEYS[2])
            call('ZADD', KEYS[1], 'XX', 'LT', 'CH', 'NOW', ARGV[1])
            call('ZADD', KEYS[2], 'XX', 'LT', 'CH', 'NOW', ARGV[1])
            return 2",
    },
    Case {
        what: "a success",
        ours: "a success: ours",
        bare: "a success: the same commands",
        before: &[Step::Reserve],
        timed: Step::Succeed,
        commands: "
            call('ZCARD', KEYS[1])
            call('ZCARD', KEYS[2])
            call('ZREM', KEYS[1], ARGV[1], 'a derived token.')
            call('ZREM', KEYS[2], ARGV[1], 'a derived token.')
            return {}",
    },
];

/// The script of a new client that decides nothing, with the reply that other clients receive: the numbers of each
/// counter. Why a new client is answered with a string.
const TABLE: &str = "reserve, a new client: the same commands, with a table as the reply";
const REPLY: &str = "{1, 25, ARGV[1], 0, 1000, 1, 5, ARGV[1], 0, 1000}";

pub fn measure(report: &mut Report) {
    let runtime = Builder::new_current_thread().enable_all().build();
    let scripts = &Scripts::new(&runtime.expect("a runtime"));
    let bare = CASES.map(|case| scripts.bare(&case, case.commands));
    let [newcomer, ..] = &CASES;
    let commands = newcomer
        .commands
        .replace("return ARGV[1]", &format!("return {REPLY}"));
    let table = scripts.bare(newcomer, &commands);
    let mut contenders: Vec<Contender<'_>> = Vec::new();
    for (case, bare) in CASES.iter().zip(&bare) {
        let ours = scripts.call(case.timed);
        // Should the scripts change, so has what they are compared with.
        let executed = [ours, bare].map(|call| scripts.turn(case, call).0);
        assert_eq!(executed[0], executed[1], "{}", case.what);
        contenders.push((case.ours, Box::new(|| scripts.turn(case, ours).1)));
        contenders.push((case.bare, Box::new(|| scripts.turn(case, bare).1)));
    }
    contenders.push((TABLE, Box::new(|| scripts.turn(newcomer, &table).1)));
    let rounds = Rounds::take_turns(contenders);
    for case in CASES {
        for name in [case.ours, case.bare] {
            report.number(SECTION, name, rounds.median(name), "µs", None);
        }
        let what = format!("{}: ours to the same commands", case.what);
        let ratio = rounds.ratio(case.ours, case.bare);
        report.ratio(SECTION, what, ratio, Some(Goal::AtMost(1.1)));
    }
    report.number(SECTION, TABLE, rounds.median(TABLE), "µs", None);
    let what = "reserve, a new client: a table to a string as the reply";
    report.ratio(SECTION, what, rounds.ratio(TABLE, newcomer.bare), None);
}

struct Scripts {
    redis: RedisServer,
    reserve: Call,
    fail: Call,
    succeed: Call,
}

impl Scripts {
    /// A server, and the calls that our store makes under the default policy.
    fn new(runtime: &Runtime) -> Self {
        let redis = RedisServer::start();
        let store = runtime.block_on(RedisStore::connect(redis.url()));
        let limiter = LoginLimiter::new(Policy::default(), store.expect("a store"));
        let log_in = async |n, outcome| {
            let attempt = limiter.reserve((address(n), user(n))).await;
            let settled = attempt.expect("a new client").settle(outcome).await;
            settled.expect("an answer");
        };
        let log_in = |n, outcome| runtime.block_on(log_in(n, outcome));
        // The first call of each script carries its text.
        log_in(0, Outcome::Failure);
        log_in(1, Outcome::Success);
        let failed = Call::overhear(&redis.url(), || log_in(2, Outcome::Failure));
        let succeeded = Call::overhear(&redis.url(), || log_in(3, Outcome::Success));
        let [reserve, fail] = failed.try_into().expect("a login is two calls");
        let [_, succeed] = succeeded.try_into().expect("a login is two calls");
        Self {
            redis,
            reserve,
            fail,
            succeed,
        }
    }

    const fn call(&self, step: Step) -> &Call {
        match step {
            Step::Reserve => &self.reserve,
            Step::Fail => &self.fail,
            Step::Succeed => &self.succeed,
        }
    }

    /// The call of a script that decides nothing, with the same keys and arguments.
    fn bare(&self, case: &Case, commands: &str) -> Call {
        let now = SystemTime::now().duration_since(UNIX_EPOCH);
        let now = now.expect("a time after 1970").as_millis();
        let commands = commands
            .replace("LEASE", &(now + 30_000).to_string())
            .replace("BEGINS", &(now - 86_400_000).to_string())
            .replace("NOW", &now.to_string());
        let text = format!("local call, KEYS, ARGV = redis.call, KEYS, ARGV{commands}");
        self.call(case.timed).of_script(self.redis.load(&text))
    }

    /// The commands that were executed for all clients, and the microseconds that a call of the script took.
    fn turn(&self, case: &Case, timed: &Call) -> (Vec<(String, f64)>, f64) {
        self.redis.flush();
        for step in case.before {
            let call = self.call(*step);
            self.redis.pipeline(0..CLIENTS, |n| {
                call.command(&names(*step, n), &u128::from(n).to_be_bytes())
            });
        }
        let is_ours = std::ptr::eq(timed, self.call(case.timed));
        let before = self.redis.commands();
        let (calls, micros) = self.redis.calls("evalsha");
        self.redis.pipeline(0..CLIENTS, |n| {
            let tokens = match case.timed {
                // A further attempt.
                Step::Reserve => u128::from(n + CLIENTS).to_be_bytes().to_vec(),
                // Ours finds both tokens in one argument; the other has the second in its text.
                Step::Succeed if is_ours => [u128::from(n).to_be_bytes(), *DERIVED].concat(),
                Step::Fail | Step::Succeed => u128::from(n).to_be_bytes().to_vec(),
            };
            timed.command(&names(case.timed, n), &tokens)
        });
        let after = self.redis.calls("evalsha");
        let executed = self.redis.commands().into_iter();
        let executed = executed.filter_map(|(name, calls)| {
            let times = calls - before.get(&name).unwrap_or(&0.0);
            // The store sends itself a heartbeat.
            let is_counted = times > 0.0 && !matches!(&*name, "info" | "publish");
            is_counted.then_some((name, times))
        });
        let executed = executed.collect();
        assert_eq!(after.0 - calls, CLIENTS as f64, "{}", case.what);
        (executed, (after.1 - micros) / CLIENTS as f64)
    }
}

/// The counters of the nth client, in the order of the call.
fn names(step: Step, n: u64) -> [String; 2] {
    let [address, pair] = keys(n);
    match step {
        Step::Reserve | Step::Fail => [address, pair],
        // A success cleans up the counter of the pair, which comes first.
        Step::Succeed => [pair, address],
    }
}
