//! A real Redis with replicas and Sentinels that watch it, each test with its own.

use std::{
    fs,
    process::{Child, Command, Stdio},
    thread,
    time::{Duration, Instant},
};

use tempfile::TempDir;

use super::{RedisServer, redis_server::free_port};

/// The name that Sentinels know the primary by.
pub const NAME: &str = "logins";

/// A primary, two replicas and three Sentinels, stopped when dropped.
pub struct RedisSentinel {
    pub servers: Vec<RedisServer>,
    sentinels: Vec<(u16, Child)>,
    _directory: TempDir,
}

impl RedisSentinel {
    pub fn start() -> Self {
        let primary = RedisServer::start();
        let of_primary = ["--replicaof", "127.0.0.1", &primary.port()];
        let replicas = [(); 2].map(|()| RedisServer::start_with(&of_primary));
        let directory = tempfile::tempdir().expect("a directory");
        let sentinels = (0..3).map(|i| watch(&primary, &directory, i)).collect();
        let this = Self {
            servers: [primary].into_iter().chain(replicas).collect(),
            sentinels,
            _directory: directory,
        };
        this.wait_until_agreed();
        this
    }

    fn wait_until_agreed(&self) {
        let started = Instant::now();
        let info = |port: u16| -> Option<String> {
            let client = redis::Client::open(format!("redis://127.0.0.1:{port}")).ok()?;
            let mut connection = client.get_connection().ok()?;
            let mut command = redis::cmd("INFO");
            command.arg("sentinel").query(&mut connection).ok()
        };
        let agrees = |(port, _): &(u16, Child)| {
            let known = "slaves=2,sentinels=3";
            info(*port).is_some_and(|info| info.contains("status=ok") && info.contains(known))
        };
        while !self.sentinels.iter().all(agrees) {
            assert!(
                started.elapsed() < Duration::from_secs(60),
                "the Sentinels do not agree"
            );
            thread::sleep(Duration::from_millis(50));
        }
    }

    pub fn url(&self) -> String {
        let hosts = self.sentinels.iter();
        let hosts: Vec<_> = hosts.map(|(port, _)| format!("127.0.0.1:{port}")).collect();
        format!("redis+sentinel://{}/{NAME}", hosts.join(","))
    }
}

fn watch(primary: &RedisServer, directory: &TempDir, number: usize) -> (u16, Child) {
    let port = free_port();
    let file = directory.path().join(format!("sentinel-{number}.conf"));
    let primary = primary.port();
    let settings = format!(
        "port {port}\nbind 127.0.0.1\nlogfile sentinel-{number}.log\n\
         sentinel monitor {NAME} 127.0.0.1 {primary} 2\n\
         sentinel down-after-milliseconds {NAME} 1000\n\
         sentinel failover-timeout {NAME} 5000\n"
    );
    fs::write(&file, settings).expect("settings");
    let server = std::env::var("REDIS_SERVER").unwrap_or_else(|_| "redis-server".to_owned());
    let process = Command::new(server)
        .arg(&file)
        .arg("--sentinel")
        .current_dir(directory.path())
        .stdin(Stdio::null())
        .stdout(Stdio::null())
        .spawn()
        .expect("a Sentinel");
    (port, process)
}

impl Drop for RedisSentinel {
    fn drop(&mut self) {
        for (_, sentinel) in &mut self.sentinels {
            let _ = sentinel.kill();
            let _ = sentinel.wait();
        }
    }
}
