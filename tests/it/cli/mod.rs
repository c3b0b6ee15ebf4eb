//! The program `login-rate-limit`, run as a process of its own.

mod changes;
mod doctor;
mod errors;
mod events;
mod lists;
mod policy;
mod schema;
mod serve;
mod terminal;
mod topologies;

use std::process::{Command, Output, Stdio};

use serde_json::Value;
use tower_login_rate_limit::{
    LoginLimiter, Policy,
    event::{RedisStream, UserDisplay},
};

use crate::support::{RedisServer, fail, ip};

/// The program, with nothing of the environment that it would read.
fn program() -> Command {
    let mut command = Command::new(env!("CARGO_BIN_EXE_login-rate-limit"));
    let read = std::env::vars().map(|(name, _)| name);
    for name in read.filter(|name| name.starts_with("LOGIN_RATE_LIMIT_")) {
        command.env_remove(name);
    }
    for name in ["REDIS_URL", "LISTEN", "API_TOKEN", "NO_COLOR", "RUST_LOG"] {
        command.env_remove(name);
    }
    command.env("USER", "tester").stdin(Stdio::null());
    command
}

/// What a run has printed, and how it ended.
#[derive(Debug)]
struct Ran {
    code: i32,
    out: String,
    error: String,
}

impl Ran {
    fn of(output: Output) -> Self {
        let text = |bytes| String::from_utf8(bytes).expect("text");
        Self {
            code: output.status.code().expect("a code"),
            out: text(output.stdout),
            error: text(output.stderr),
        }
    }

    /// The one JSON value on its output, which docs/cli-schema.json describes.
    #[track_caller]
    fn json(&self, name: &str) -> Value {
        let value = serde_json::from_str(&self.out);
        let value = value.unwrap_or_else(|error| panic!("{error}: {self:?}"));
        schema::expect(name, &value);
        value
    }

    /// The JSON values on its output, one per line, which are events.
    #[track_caller]
    fn events(&self) -> Vec<Value> {
        let lines = self.out.lines();
        let event = |line| {
            let value = serde_json::from_str(line).expect("JSON");
            schema::expect("events", &value);
            value
        };
        lines.map(event).collect()
    }

    /// Expects this code.
    #[track_caller]
    fn ends_with(self, code: i32) -> Self {
        assert_eq!(self.code, code, "{self:?}");
        // Errors and notes are one line each.
        for line in self.error.lines() {
            let is_one = line.starts_with("error: ") || line.starts_with("note: ");
            assert!(is_one || code == 2, "{self:?}");
        }
        self
    }
}

/// Runs it against a store, with the policy that its app was started with.
fn run(redis: &RedisServer, words: &[&str]) -> Ran {
    let mut command = program();
    command.env("REDIS_URL", redis.url());
    command.env("LOGIN_RATE_LIMIT_BASE_POLICY", "strict");
    Ran::of(command.args(words).output().expect("a run"))
}

/// The same, with `--json`.
#[track_caller]
fn json(redis: &RedisServer, words: &[&str], code: i32) -> Value {
    let ran = run(redis, &[words, &["--json"]].concat());
    ran.ends_with(code).json(&schema::name(words))
}

/// A server whose keys may outlive the longest block: rules and events do.
fn redis() -> RedisServer {
    let mut redis = RedisServer::start();
    redis.keys_may_live(None);
    redis
}

/// An app: strict, with names in clear, and a stream.
async fn app(redis: &RedisServer) -> LoginLimiter {
    let stream = RedisStream::open(redis.url()).expect("a stream");
    let limiter = LoginLimiter::new(Policy::strict(), redis.store().await)
        .with_user_display(UserDisplay::Clear)
        .with_observer(stream);
    limiter.live().await.expect("a live limiter")
}

/// Alice and Bob are blocked at home, Alice has failed elsewhere too, and an address guesses at many.
async fn attacked(redis: &RedisServer) -> LoginLimiter {
    let limiter = app(redis).await;
    fail(&limiter, ip(HOME), "alice", 5).await;
    fail(&limiter, ip(HOME), "bob@example.org", 5).await;
    fail(&limiter, ip(ELSEWHERE), "alice", 5).await;
    for i in 0..25 {
        fail(&limiter, ip(GUESSER), &format!("user{i}"), 1).await;
    }
    limiter.all_settled().await.expect("settled");
    limiter
}

const HOME: &str = "192.0.2.1";
const ELSEWHERE: &str = "198.51.100.7";
const GUESSER: &str = "203.0.113.77";
