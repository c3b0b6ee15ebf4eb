//! The load generator wrk.

use std::{
    path::Path,
    process::{Child, Command, Stdio},
    sync::atomic::{AtomicU64, Ordering},
};

/// A wrk that runs.
pub struct Wrk(Child);

/// Who logs in.
#[derive(Clone, Copy, Debug)]
pub enum Callers {
    /// Always somebody who has not been here before.
    Fresh,
    /// Always the one who is blocked.
    Blocked,
}

/// What it saw.
#[derive(Clone, Copy, Debug)]
pub struct Load {
    pub requests: f64,
    /// Answers other than 2xx and 3xx.
    pub refused: f64,
    /// Requests per second.
    pub rate: f64,
    /// Microseconds.
    pub p99: f64,
}

impl Wrk {
    pub fn start(port: u16, connections: u32, seconds: u32, callers: Callers) -> Self {
        // No turn gets as far as the next one begins.
        static TURN: AtomicU64 = AtomicU64::new(0);
        let from = TURN.fetch_add(1 << 20, Ordering::Relaxed);
        let script = Path::new(env!("CARGO_MANIFEST_DIR")).join("login.lua");
        let mut command = Command::new("wrk");
        // Longer than any turn, so that a request which waits is slow and not lost.
        command.args(["--threads", "1", "--latency", "--timeout", "10s"]);
        command.args(["--connections", &connections.to_string()]);
        command.args(["--duration", &format!("{seconds}s")]);
        command.arg("--script").arg(script);
        command
            .arg(format!("http://127.0.0.1:{port}/login"))
            .arg("--");
        match callers {
            Callers::Fresh => command.args(["fresh", &from.to_string()]),
            Callers::Blocked => command.arg("blocked"),
        };
        let process = command.stdout(Stdio::piped()).spawn();
        let process =
            process.unwrap_or_else(|error| panic!("wrk can't be run: {error}; see benches/run.sh"));
        Self(process)
    }

    pub fn finish(self) -> Load {
        let output = self.0.wait_with_output().expect("an end of wrk");
        let output = String::from_utf8_lossy(&output.stdout);
        let line = output.lines().find_map(|line| line.strip_prefix("seen "));
        let numbers = line.map(|line| line.split(' ').map(str::parse).collect());
        let Some(Ok::<Vec<f64>, _>(numbers)) = numbers else {
            panic!("wrk says {output}");
        };
        let [requests, micros, refused, lost, _p50, p99] = numbers[..] else {
            panic!("wrk says {output}");
        };
        assert_eq!(lost, 0.0, "requests got no answer: {output}");
        Load {
            requests,
            refused,
            rate: requests / (micros / 1e6),
            p99,
        }
    }
}
