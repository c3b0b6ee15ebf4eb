//! A Redis of our own, on the loopback and with nothing on disk.

use std::{
    collections::{BTreeMap, HashMap},
    env,
    net::TcpListener,
    process::{Child, Command, Stdio},
    sync::{Mutex, PoisonError},
    thread,
    time::{Duration, Instant},
};

use redis::{Cmd, Connection, ConnectionLike, FromRedisValue, Pipeline, Value};

/// A server that ends with this value.
pub struct RedisServer {
    process: Child,
    port: u16,
    /// For what goes on between turns; what is measured has connections of its own.
    admin: Mutex<Connection>,
}

impl RedisServer {
    pub fn start() -> Self {
        let program = env::var("REDIS_SERVER").unwrap_or_else(|_| "redis-server".to_owned());
        // Nobody else has it now, and it is taken at once.
        let port = TcpListener::bind(("127.0.0.1", 0))
            .and_then(|listener| listener.local_addr())
            .expect("a free port")
            .port();
        let process = Command::new(&program)
            .args(["--port", &port.to_string(), "--bind", "127.0.0.1"])
            .args(["--save", "", "--appendonly", "no"])
            .stdout(Stdio::null())
            .spawn()
            .unwrap_or_else(|error| panic!("{program} can't be run: {error}; see benches/run.sh"));
        let (process, admin) = connect(process, port);
        Self {
            process,
            port,
            admin: Mutex::new(admin),
        }
    }

    pub const fn port(&self) -> u16 {
        self.port
    }

    pub fn url(&self) -> String {
        url(self.port)
    }

    pub fn ask<T: FromRedisValue>(&self, command: &Cmd) -> T {
        let mut admin = self.admin.lock().unwrap_or_else(PoisonError::into_inner);
        command.query(&mut *admin).expect("an answer")
    }

    /// Sends a command for each number, many at once, and returns the replies.
    pub fn pipeline(
        &self,
        numbers: impl IntoIterator<Item = u64>,
        command: impl Fn(u64) -> Cmd,
    ) -> Vec<Value> {
        let commands: Vec<_> = numbers.into_iter().map(command).collect();
        let mut replies = Vec::with_capacity(commands.len());
        for some in commands.chunks(1_000) {
            let mut pipeline = Pipeline::with_capacity(some.len());
            for command in some {
                pipeline.add_command(command.clone());
            }
            let mut admin = self.admin.lock().unwrap_or_else(PoisonError::into_inner);
            let some: Vec<Value> = pipeline.query(&mut *admin).expect("replies");
            replies.extend(some);
        }
        replies
    }

    /// Forgets every key, and has done so when this returns.
    pub fn flush(&self) {
        self.ask(redis::cmd("FLUSHALL").arg("SYNC"))
    }

    /// The hash of a script that it knows from now on.
    pub fn load(&self, script: &str) -> String {
        self.ask(redis::cmd("SCRIPT").arg("LOAD").arg(script))
    }

    /// A number out of `INFO`: of a line `name:number`.
    pub fn info(&self, section: &str, name: &str) -> f64 {
        let lines = self.lines_of_info(section);
        let number = lines.get(name).and_then(|number| number.parse().ok());
        number.unwrap_or_else(|| panic!("INFO {section} says nothing of {name}"))
    }

    /// How often a command was called, and the microseconds that it took in all.
    pub fn calls(&self, command: &str) -> (f64, f64) {
        let lines = self.lines_of_info("commandstats");
        let line = lines.get(&format!("cmdstat_{command}"));
        line.map_or((0.0, 0.0), |line| calls_and_time(line))
    }

    /// How often each command was called, by clients and by scripts.
    pub fn commands(&self) -> BTreeMap<String, f64> {
        let lines = self.lines_of_info("commandstats");
        let command = |(name, line): (&String, &String)| {
            let name = name.strip_prefix("cmdstat_")?;
            Some((name.to_owned(), calls_and_time(line).0))
        };
        lines.iter().filter_map(command).collect()
    }

    /// How often anything was called, by clients and by scripts, but for `INFO`.
    pub fn all_calls(&self) -> f64 {
        let commands = self.commands().into_iter();
        let others = commands.filter(|(name, _)| name != "info");
        others.map(|(_, calls)| calls).sum()
    }

    fn lines_of_info(&self, section: &str) -> HashMap<String, String> {
        let info: String = self.ask(redis::cmd("INFO").arg(section));
        let lines = info.lines().filter_map(|line| line.split_once(':'));
        lines
            .map(|(name, value)| (name.to_owned(), value.to_owned()))
            .collect()
    }
}

/// Out of a line `calls=1,usec=2,…`.
fn calls_and_time(line: &str) -> (f64, f64) {
    let number = |name: &str| {
        let mut fields = line.split(',').filter_map(|field| field.split_once('='));
        let field = fields.find(|(known, _)| *known == name);
        field.and_then(|(_, number)| number.parse().ok())
    };
    let numbers = number("calls").zip(number("usec"));
    numbers.unwrap_or_else(|| panic!("calls and usec are not in {line}"))
}

/// With its process, so that it ends also if it never answers.
fn connect(mut process: Child, port: u16) -> (Child, Connection) {
    let until = Instant::now() + Duration::from_secs(10);
    loop {
        if let Some(mut connection) = open(port)
            && let Ok(Value::SimpleString(_)) = connection.req_command(&redis::cmd("PING"))
        {
            return (process, connection);
        }
        if Instant::now() > until {
            let _ = process.kill();
            panic!("the redis-server on port {port} does not answer");
        }
        thread::sleep(Duration::from_millis(20));
    }
}

fn open(port: u16) -> Option<Connection> {
    redis::Client::open(url(port)).ok()?.get_connection().ok()
}

fn url(port: u16) -> String {
    format!("redis://127.0.0.1:{port}")
}

impl Drop for RedisServer {
    fn drop(&mut self) {
        let _ = self.process.kill();
        let _ = self.process.wait();
    }
}
