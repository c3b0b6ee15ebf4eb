//! Real Redis servers, each test with its own.

use std::{
    net::TcpListener,
    process::{Child, Command, Stdio},
    thread,
    time::{Duration, Instant},
};

use redis::{Connection, Value};
use rustix::process::{Pid, Signal, kill_process};
use tempfile::TempDir;
use tower_login_rate_limit::store::redis::{Outage, RedisStore, RedisStoreBuilder};

/// Where a server with TLS also listens, in its directory.
const SOCKET: &str = "redis.sock";

/// For servers that have replicas: these get all there is at once, and not after some seconds.
pub const SYNC_AT_ONCE: [&str; 2] = ["--repl-diskless-sync-delay", "0"];

/// A server on a free port of this machine, stopped when dropped.
///
/// Then it also looks at every key that is left: each must have an end, no later than the longest
/// window or block plus the lease.
pub struct RedisServer {
    process: Child,
    port: u16,
    directory: TempDir,
    settings: Vec<String>,
    is_tls: bool,
    longest: Option<Duration>,
}

impl RedisServer {
    pub fn start() -> Self {
        Self::start_with(&[])
    }

    /// With these on its command line.
    pub fn start_with(settings: &[&str]) -> Self {
        let settings = settings.iter().map(|word| (*word).to_owned());
        Self::start_with_all(settings.collect())
    }

    pub fn start_with_all(settings: Vec<String>) -> Self {
        Self::start_so(settings, false)
    }

    /// With nothing but TLS on its port, and these on its command line.
    pub fn start_tls(settings: Vec<String>) -> Self {
        expect_tls();
        Self::start_so(settings, true)
    }

    fn start_so(settings: Vec<String>, is_tls: bool) -> Self {
        let directory = tempfile::tempdir().expect("a directory for redis");
        // Somebody may take the port between finding and using it.
        for _ in 0..10 {
            let port = free_port();
            let mut process = spawn(port, &directory, &settings, is_tls);
            if wait_until_ready(&inner_url(port, &directory, is_tls), &mut process) {
                return Self {
                    process,
                    port,
                    directory,
                    settings,
                    is_tls,
                    longest: Some(Duration::from_secs(7 * 24 * 60 * 60 + 30)),
                };
            }
            let _ = process.kill();
            let _ = process.wait();
        }
        panic!("redis-server did not start; its log is in {directory:?}");
    }

    pub fn port(&self) -> String {
        self.port.to_string()
    }

    pub fn url(&self) -> String {
        let scheme = if self.is_tls { "rediss" } else { "redis" };
        format!("{scheme}://127.0.0.1:{}", self.port)
    }

    /// A store with a generous deadline: the machine may be busy with other tests.
    /// For a store that says what Redis says and nothing else.
    pub fn builder(&self) -> RedisStoreBuilder {
        RedisStore::builder()
            .with_deadline(Duration::from_secs(20))
            .with_outage(Outage::Closed)
            .with_block_cache_capacity(0)
    }

    pub async fn store(&self) -> RedisStore {
        let store = self.builder().connect(self.url()).await;
        store.expect("a store")
    }

    /// How long a key may live at most; `None` if some may live for ever.
    pub fn keys_may_live(&mut self, longest: Option<Duration>) {
        self.longest = longest;
    }

    pub fn connection(&self) -> Connection {
        let url = inner_url(self.port, &self.directory, self.is_tls);
        let client = redis::Client::open(url).expect("a client");
        client.get_connection().expect("a connection")
    }

    pub fn command<T: redis::FromRedisValue>(&self, words: &[&str]) -> T {
        let mut command = redis::cmd(words[0]);
        command.arg(&words[1..]);
        command.query(&mut self.connection()).expect("an answer")
    }

    pub fn is_running(&self) -> bool {
        let client = redis::Client::open(self.url()).expect("a client");
        client.get_connection().is_ok()
    }

    /// Waits until so many replicas have what was written so far. On a cluster this server must serve
    /// the key, which is of no other use.
    pub fn wait_for_replicas(&self, replicas: usize, key: &str) {
        // WAIT is about what was written on the same connection.
        let mut connection = self.connection();
        let mut write = redis::cmd("SET");
        write.arg(key).arg("").arg("PX").arg(60_000);
        write.exec(&mut connection).expect("written");
        let mut wait = redis::cmd("WAIT");
        let replicated: usize = (wait.arg(replicas).arg(30_000))
            .query(&mut connection)
            .expect("an answer");
        assert!(replicated >= replicas, "{replicated} replicas have it");
    }

    pub fn is_primary(&self) -> bool {
        let info: String = self.command(&["INFO", "replication"]);
        info.contains("role:master\r")
    }

    /// Whether it is one and has all that its primary has.
    pub fn is_replica(&self) -> bool {
        let info: String = self.command(&["INFO", "replication"]);
        info.contains("role:slave\r") && info.contains("master_link_status:up\r")
    }

    /// How many lines of its log have this in them, from before a restart too.
    pub fn times_in_log(&self, words: &str) -> usize {
        let log = std::fs::read_to_string(self.directory.path().join("redis.log"));
        let log = log.expect("a log");
        log.lines().filter(|line| line.contains(words)).count()
    }

    /// Where it saves its data, if it is told to.
    pub fn rdb(&self) -> std::path::PathBuf {
        self.directory.path().join("dump.rdb")
    }

    /// The keys of counters, without those of the list of blocks.
    pub fn counters(&self) -> Vec<(String, i64)> {
        let mut keys = self.keys();
        keys.retain(|(key, _)| !key.contains("blocks"));
        keys
    }

    /// Every key with the milliseconds that it still has; -1 for ever.
    pub fn keys(&self) -> Vec<(String, i64)> {
        let mut connection = self.connection();
        // A replica in a cluster does not tell otherwise; one that is in none knows no such command.
        let _ = redis::cmd("READONLY").exec(&mut connection);
        let keys: Vec<String> = redis::cmd("KEYS")
            .arg("*")
            .query(&mut connection)
            .expect("keys");
        let ttl = |key: &String| redis::cmd("PTTL").arg(key).query(&mut connection);
        let ttls: Vec<i64> = keys
            .iter()
            .map(ttl)
            .map(|ttl| ttl.expect("a TTL"))
            .collect();
        // Some may have gone in between.
        let keys = keys.into_iter().zip(ttls);
        keys.filter(|(_, ttl)| *ttl != -2).collect()
    }

    /// How often a command was executed, by the server's own statistics, in scripts too.
    pub fn calls_of(&self, command: &str) -> u64 {
        let stats: String = self.command(&["INFO", "commandstats"]);
        let line = format!("cmdstat_{command}:calls=");
        stats
            .lines()
            .find_map(|l| l.strip_prefix(&line)?.split(',').next()?.parse().ok())
            .unwrap_or(0)
    }

    /// How often it has answered with an error that begins with this word.
    pub fn errors_of(&self, word: &str) -> u64 {
        let stats: String = self.command(&["INFO", "errorstats"]);
        let line = format!("errorstat_{word}:count=");
        stats
            .lines()
            .find_map(|l| l.strip_prefix(&line)?.parse().ok())
            .unwrap_or(0)
    }

    pub fn flush(&self) {
        let _: Value = self.command(&["FLUSHALL"]);
    }

    /// Stops it from answering, with its connections open.
    pub fn pause(&self) {
        self.signal(Signal::STOP);
    }

    pub fn resume(&self) {
        self.signal(Signal::CONT);
    }

    /// Ends it at once and forgets all.
    pub fn kill(&mut self) {
        self.process.kill().expect("killed");
        self.process.wait().expect("ended");
    }

    /// Starts it again where it was.
    pub fn restart(&mut self) {
        self.process = spawn(self.port, &self.directory, &self.settings, self.is_tls);
        let url = inner_url(self.port, &self.directory, self.is_tls);
        assert!(
            wait_until_ready(&url, &mut self.process),
            "redis-server did not start again"
        );
    }

    fn signal(&self, signal: Signal) {
        let id = self.process.id().try_into().expect("a process id");
        let pid = Pid::from_raw(id).expect("a process id");
        kill_process(pid, signal).expect("a signal");
    }

    fn check_ends_of_keys(&self, keys: Vec<(String, i64)>) {
        for (key, ttl) in keys {
            match (self.longest, u64::try_from(ttl)) {
                (None, _) => {}
                (Some(_), Err(_)) => panic!("{key} never ends"),
                (Some(longest), Ok(ttl)) => {
                    let ttl = Duration::from_millis(ttl);
                    assert!(ttl <= longest, "{key} lives for {ttl:?}");
                }
            }
        }
    }
}

impl Drop for RedisServer {
    fn drop(&mut self) {
        let running = matches!(self.process.try_wait(), Ok(None));
        if running {
            self.resume();
        }
        let keys = (running && !thread::panicking()).then(|| self.keys());
        let _ = self.process.kill();
        let _ = self.process.wait();
        if let Some(keys) = keys {
            self.check_ends_of_keys(keys);
        }
    }
}

pub fn free_port() -> u16 {
    // The nodes of a cluster talk to each other on a port that is higher by 10,000.
    loop {
        let listener = TcpListener::bind("127.0.0.1:0").expect("a free port");
        let port = listener.local_addr().expect("an address").port();
        if port < u16::MAX - 10_000 {
            return port;
        }
    }
}

/// What the test itself talks to the server by: it needs no certificate.
fn inner_url(port: u16, directory: &TempDir, is_tls: bool) -> String {
    match is_tls {
        true => format!("unix://{}", directory.path().join(SOCKET).display()),
        false => format!("redis://127.0.0.1:{port}"),
    }
}

pub fn program() -> String {
    std::env::var("REDIS_SERVER").unwrap_or_else(|_| "redis-server".to_owned())
}

/// A server that does not know TLS would look like one that does not start.
fn expect_tls() {
    let nowhere = ["--port", "0", "--tls-port", "0"];
    let output = Command::new(program()).args(nowhere).output();
    let said = output.expect("redis-server can be run").stderr;
    let said = String::from_utf8_lossy(&said);
    assert!(
        !said.contains("Bad directive"),
        "{} was built without TLS, which the tests need: {said}",
        program()
    );
}

fn spawn(port: u16, directory: &TempDir, settings: &[String], is_tls: bool) -> Child {
    let server = program();
    let port = port.to_string();
    let ports = match is_tls {
        true => vec!["--port", "0", "--tls-port", &port, "--unixsocket", SOCKET],
        false => vec!["--port", &port],
    };
    Command::new(&server)
        .args(["--bind", "127.0.0.1"])
        .args(ports)
        .args(["--save", "", "--appendonly", "no"])
        .args(settings)
        // First: Redis 6.2 opens the log when it reads its name.
        .arg("--dir")
        .arg(directory.path())
        .args(["--logfile", "redis.log"])
        .stdin(Stdio::null())
        .stdout(Stdio::null())
        .spawn()
        .unwrap_or_else(|error| panic!("{server} can't be run ({error}): run tests/run.sh, which installs it, or set REDIS_SERVER"))
}

/// Whether it came up; not if it ended, as it does when the port is taken.
fn wait_until_ready(url: &str, process: &mut Child) -> bool {
    let client = redis::Client::open(url).expect("a client");
    let started = Instant::now();
    while started.elapsed() < Duration::from_secs(30) {
        if let Ok(Some(_)) = process.try_wait() {
            return false;
        }
        if let Ok(mut connection) = client.get_connection() {
            // Somebody else's server may have taken the port; ours says so in its process id.
            let info: Result<String, _> = redis::cmd("INFO").arg("server").query(&mut connection);
            let ours = format!("process_id:{}\r", process.id());
            if info.is_ok_and(|info| info.contains(&ours)) {
                return true;
            }
        }
        thread::sleep(Duration::from_millis(5));
    }
    false
}
