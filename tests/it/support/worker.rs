//! This program once more, as a process of its own: for what must hold between processes.

use std::{
    fmt::Display,
    io::{BufRead, BufReader, Write},
    process::{Child, ChildStdout, Command, Stdio},
};

/// Names the Redis that a worker uses. A test that finds it in its environment is a worker.
const URL: &str = "LOGIN_WORKER_REDIS_URL";
/// What a line that answers begins with, since the test harness writes lines of its own.
const ANSWER: &str = "worker: ";

/// A process that does what it is asked to, one line each. Ended when dropped.
pub struct Worker {
    process: Child,
    answers: BufReader<ChildStdout>,
}

impl Worker {
    /// Starts this program with one of its tests, named with its module, as a worker on this Redis.
    pub fn start(test: &str, url: &str, environment: &[(&str, &str)]) -> Self {
        let this = std::env::current_exe().expect("this program");
        let mut process = Command::new(this)
            .args(["--exact", test, "--nocapture"])
            .env(URL, url)
            .envs(environment.iter().copied())
            .stdin(Stdio::piped())
            .stdout(Stdio::piped())
            .spawn()
            .expect("a process");
        let answers = BufReader::new(process.stdout.take().expect("its output"));
        Self { process, answers }
    }

    /// The Redis to use, if this process is a worker.
    pub fn url() -> Option<String> {
        std::env::var(URL).ok()
    }

    /// Sends a line, and waits for nothing.
    pub fn send(&mut self, line: impl Display) {
        let input = self.process.stdin.as_mut().expect("its input");
        writeln!(input, "{line}").expect("sent");
    }

    /// The next answer.
    pub fn answer(&mut self) -> String {
        loop {
            let mut line = String::new();
            let read = self.answers.read_line(&mut line).expect("its output");
            assert!(read > 0, "a worker has ended");
            if let Some((_, answer)) = line.split_once(ANSWER) {
                return answer.trim_end().to_owned();
            }
        }
    }

    /// The next line that was sent to this worker; `None` once there will be no more.
    pub fn read() -> Option<String> {
        let mut line = String::new();
        let read = std::io::stdin().read_line(&mut line).expect("a line");
        (read > 0).then(|| line.trim_end().to_owned())
    }

    /// Answers, as a worker.
    pub fn reply(answer: impl Display) {
        println!("{ANSWER}{answer}");
    }
}

impl Drop for Worker {
    fn drop(&mut self) {
        let _ = self.process.kill();
        let _ = self.process.wait();
    }
}
