//! The example programs, started as separate processes. Also used by `tests/browser`.

use std::{
    io::{BufRead, BufReader},
    process::{Child, Command, Stdio},
};

use serde_json::Value;

use super::client::client;

/// The executable of an example, built by `cargo test`.
pub fn program(name: &str) -> Command {
    let this = std::env::current_exe().expect("this program");
    let directory = this
        .parent()
        .and_then(|deps| deps.parent())
        .expect("a directory");
    let program = directory.join("examples").join(name);
    assert!(
        program.exists(),
        "{program:?} is missing; run `cargo build --examples` first"
    );
    Command::new(program)
}

/// A running example server, stopped when dropped.
pub struct Example {
    process: Child,
    pub url: String,
    /// What it printed before its address.
    pub before: Vec<String>,
    pub said: std::sync::mpsc::Receiver<String>,
}

impl Example {
    pub fn start(name: &str, environment: &[(&str, &str)]) -> Self {
        Self::run(program(name), environment)
    }

    /// Another program that prints the address on which it listens.
    pub fn run(mut program: Command, environment: &[(&str, &str)]) -> Self {
        let mut process = program
            .env_remove("REDIS_URL")
            .env("LISTEN", "127.0.0.1:0")
            .envs(environment.iter().copied())
            .stdout(Stdio::piped())
            .spawn()
            .expect("a process");
        let mut lines = BufReader::new(process.stdout.take().expect("its output")).lines();
        // The first line with an address is the one it listens on.
        let mut before = Vec::new();
        let url = lines
            .find_map(|line| {
                let line = line.expect("a line");
                let Some(address) = line.split("127.0.0.1:").nth(1) else {
                    before.push(line);
                    return None;
                };
                let port: String = address.chars().take_while(char::is_ascii_digit).collect();
                Some(format!("http://127.0.0.1:{port}"))
            })
            .expect("an address");
        // The rest of its output is read in the background, so the pipe never fills up.
        let (say, said) = std::sync::mpsc::channel();
        std::thread::spawn(move || {
            for line in lines.map_while(Result::ok) {
                let _ = say.send(line);
            }
        });
        Self {
            process,
            url,
            before,
            said,
        }
    }

    pub async fn post(&self, path: &str, body: Value) -> (u16, Value) {
        let response = client()
            .post(format!("{}{path}", self.url))
            .json(&body)
            .send()
            .await;
        let response = response.expect("a response");
        (
            response.status().as_u16(),
            response.json().await.unwrap_or_default(),
        )
    }
}

impl Drop for Example {
    fn drop(&mut self) {
        let _ = self.process.kill();
        let _ = self.process.wait();
    }
}
