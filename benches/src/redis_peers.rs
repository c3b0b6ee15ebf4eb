//! What else one could do with a Redis, each as one operation of a task.

use std::{
    io::{BufRead, BufReader, Write},
    path::Path,
    process::{Child, ChildStdin, ChildStdout, Command, Stdio},
    sync::{
        Arc,
        atomic::{AtomicUsize, Ordering},
    },
    time::{SystemTime, UNIX_EPOCH},
};

use bb8_redis::{RedisConnectionManager, bb8::Pool};
use redis::{
    AsyncConnectionConfig, Client, Cmd, FromRedisValue,
    aio::{ConnectionLike, MultiplexedConnection},
};
use tower_login_rate_limit::Token;
use trypema::{
    RateLimit, RateLimitDecision, RateLimiterBuilder, WindowSize,
    redis::{RedisKey, RedisRateLimiterProvider},
};

use crate::{
    callers::{address, keys},
    overheard::Call,
    redis_server::RedisServer,
    tasks::{Operation, operation},
};

/// Two connections that everybody shares, as our store has, and nothing else: no deadline, no breaker, no
/// strict look at what comes back.
#[derive(Clone)]
pub struct Shared {
    connections: Arc<[MultiplexedConnection]>,
    next: Arc<AtomicUsize>,
}

impl Shared {
    pub async fn connect(url: &str) -> Self {
        let client = Client::open(url).expect("a URL");
        let mut connections = Vec::new();
        for _ in 0..2 {
            let config = AsyncConnectionConfig::new().set_response_timeout(None);
            let connection = client.get_multiplexed_async_connection_with_config(&config);
            connections.push(connection.await.expect("a connection"));
        }
        Self {
            connections: connections.into(),
            next: Arc::default(),
        }
    }

    fn get(&self) -> MultiplexedConnection {
        let next = self.next.fetch_add(1, Ordering::Relaxed);
        self.connections[next % self.connections.len()].clone()
    }

    async fn send<T: FromRedisValue>(&self, command: &Cmd) -> T {
        command
            .query_async(&mut self.get())
            .await
            .expect("an answer")
    }

    pub async fn pinged(&self) {
        self.send(&redis::cmd("PING")).await
    }

    pub fn ping(self) -> Operation {
        operation(move |_| {
            let shared = self.clone();
            async move { shared.pinged().await }
        })
    }

    /// A script that does nothing, called as ours is.
    pub fn trivial_script(self, server: &RedisServer, reserve: &Call) -> Operation {
        let call = Arc::new(reserve.of_script(server.load("return 1")));
        operation(move |n| {
            let (shared, call) = (self.clone(), Arc::clone(&call));
            async move {
                let command = call.command(&keys(n), Token::new().as_bytes());
                let one: u64 = shared.send(&command).await;
                assert_eq!(one, 1);
            }
        })
    }

    pub fn two_calls(self, calls: &TwoCalls) -> Operation {
        let calls = calls.clone();
        operation(move |n| {
            let (shared, calls) = (self.clone(), calls.clone());
            async move {
                for command in calls.of(n) {
                    calls.make(command, &mut shared.get()).await;
                }
            }
        })
    }
}

/// A sliding window for each key, asked one after the other, as login limiters that are published do: the
/// second only if the first admits.
#[derive(Clone)]
pub struct TwoCalls {
    hash: Arc<str>,
}

impl TwoCalls {
    const SCRIPT: &str = "
        local key, token, now, window = KEYS[1], ARGV[1], tonumber(ARGV[2]), tonumber(ARGV[3])
        local limit, block = tonumber(ARGV[4]), tonumber(ARGV[5])
        local newest = redis.call('ZREVRANGEBYSCORE', key, '+inf', '-inf', 'WITHSCORES', 'LIMIT', 0, 1)
        local usage = redis.call('ZCOUNT', key, now - window, '+inf')
        if usage >= limit then return { usage, limit, false, newest[2] + block - now } end
        redis.call('ZADD', key, now, token)
        redis.call('PEXPIRE', key, window + block)
        return { usage + 1, limit, token, 0 }
    ";

    pub fn new(server: &RedisServer) -> Self {
        Self {
            hash: server.load(Self::SCRIPT).into(),
        }
    }

    /// The two calls of the nth caller, with the numbers of our default policy.
    fn of(&self, n: u64) -> impl Iterator<Item = Cmd> {
        const DAY: u64 = 86_400_000;
        let now = SystemTime::now().duration_since(UNIX_EPOCH);
        let now = now.expect("a time after 1970").as_millis() as u64;
        let (hash, token) = (Arc::clone(&self.hash), Token::new().to_string());
        let limits = [(25, 7 * DAY), (5, DAY)];
        keys(n)
            .into_iter()
            .zip(limits)
            .map(move |(key, (limit, block))| {
                let mut command = redis::cmd("EVALSHA");
                command.arg(&*hash).arg(1).arg(key).arg(&token);
                command.arg(now).arg(DAY).arg(limit).arg(block);
                command
            })
    }

    async fn make(&self, command: Cmd, connection: &mut impl ConnectionLike) {
        let answer = command.query_async(connection).await;
        let (_, _, token, _): (u64, u64, Option<String>, u64) = answer.expect("an answer");
        assert!(token.is_some(), "nobody has been here before");
    }

    /// With a connection out of a pool, which nobody else has meanwhile, for each call.
    pub async fn pooled(self, server: &RedisServer) -> Operation {
        let manager = RedisConnectionManager::new(server.url()).expect("a URL");
        let pool = Pool::builder().build(manager).await.expect("a pool");
        operation(move |n| {
            let (pool, calls) = (pool.clone(), self.clone());
            async move {
                for command in calls.of(n) {
                    let mut connection = pool.get().await.expect("a connection");
                    calls.make(command, &mut *connection).await;
                }
            }
        })
    }
}

/// The crate trypema: a limiter for each key, asked one after the other.
pub async fn trypema(server: &RedisServer) -> Operation {
    let client = Client::open(server.url()).expect("a URL");
    let connection = client.get_connection_manager().await.expect("a connection");
    let limiter = RedisRateLimiterProvider::builder(connection)
        .window_size(WindowSize::days_or_panic(1))
        // What it cleans up in the background would be counted as well.
        .cleanup_enabled(false)
        .build()
        .expect("a limiter");
    operation(move |n| {
        let limiter = Arc::clone(&limiter);
        async move {
            let names = [format!("address_{}", address(n)), format!("pair_{n:032x}")];
            for (name, limit) in names.into_iter().zip([25.0, 5.0]) {
                let (key, limit) = (
                    RedisKey::new_or_panic(name),
                    RateLimit::per_day_or_panic(limit),
                );
                let decision = limiter.absolute().inc(&key, &limit, 1).await;
                assert!(
                    matches!(decision, Ok(RateLimitDecision::Allowed)),
                    "{decision:?}"
                );
            }
        }
    })
}

/// Redis' own load generator with our script: over one connection, 16 calls at a time. It says how many
/// there were in a second.
pub fn redis_benchmark(server: &RedisServer, reserve: &Call) -> f64 {
    const CALLS: &str = "30000";
    let program = std::env::var("REDIS_BENCHMARK").unwrap_or_else(|_| "redis-benchmark".to_owned());
    // It puts twelve digits in the place of each of these twelve characters.
    let any = "__rand_int__";
    let keys = [
        format!("login:{{{any}}}:address"),
        format!("login:{{{any}}}:user-address:{}{any}", "0".repeat(20)),
    ];
    let output = Command::new(&program)
        .args(["-p", &server.port().to_string(), "-c", "1", "-P", "16"])
        .args(["-n", CALLS, "-r", "1000000", "--csv"])
        .args(reserve.words(&keys, &format!("0000{any}")))
        .output()
        .unwrap_or_else(|error| panic!("{program} can't be run: {error}; see benches/run.sh"));
    let output = String::from_utf8_lossy(&output.stdout);
    // "test","rps",…
    let line = output.lines().last().unwrap_or_default();
    let rate = line
        .split("\",\"")
        .nth(1)
        .and_then(|rate| rate.parse().ok());
    rate.unwrap_or_else(|| panic!("{program} says {output:?}"))
}

/// rate-limiter-flexible, in Node.js, which takes a turn whenever it is told to.
pub struct RateLimiterFlexible {
    process: Child,
    turns: ChildStdin,
    seen: BufReader<ChildStdout>,
}

impl RateLimiterFlexible {
    pub fn start(server: &RedisServer, tasks: usize) -> Self {
        let program = Path::new(env!("CARGO_MANIFEST_DIR")).join("peers/rate-limiter-flexible");
        let mut process = Command::new("node")
            .arg("bench.mjs")
            .args([server.port().to_string(), tasks.to_string()])
            .current_dir(program)
            .stdin(Stdio::piped())
            .stdout(Stdio::piped())
            .spawn()
            .unwrap_or_else(|error| panic!("node can't be run: {error}; see benches/run.sh"));
        let (turns, seen) = (process.stdin.take(), process.stdout.take());
        Self {
            process,
            turns: turns.expect("a pipe"),
            seen: BufReader::new(seen.expect("a pipe")),
        }
    }

    pub fn take_turn(&mut self) -> serde_json::Value {
        let mut seen = String::new();
        let asked = writeln!(self.turns, "go");
        let read = asked.and_then(|()| self.seen.read_line(&mut seen));
        read.expect("an answer of rate-limiter-flexible; see benches/run.sh");
        serde_json::from_str(&seen).expect("a line of JSON")
    }
}

impl Drop for RateLimiterFlexible {
    fn drop(&mut self) {
        let _ = self.process.kill();
        let _ = self.process.wait();
    }
}
