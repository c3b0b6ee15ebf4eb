//! A real Redis with replicas and Sentinels that watch it, each test with its own.

use std::{
    fs,
    process::{Child, Command, Stdio},
};

use tempfile::TempDir;

use super::{
    Authority, RedisServer,
    redis_server::{SYNC_AT_ONCE, free_port, program},
    wait_until,
};

/// The name that Sentinels know the primary by.
pub const NAME: &str = "logins";

/// A primary, two replicas and three Sentinels, stopped when dropped.
pub struct RedisSentinel {
    pub servers: Vec<RedisServer>,
    sentinels: Vec<(u16, Child)>,
    is_tls: bool,
    directory: TempDir,
}

impl RedisSentinel {
    pub fn start() -> Self {
        let primary = RedisServer::start_with(&SYNC_AT_ONCE);
        let port = primary.port();
        let of_primary = [&["--replicaof", "127.0.0.1", &port], &SYNC_AT_ONCE[..]].concat();
        let replicas = [(); 2].map(|()| RedisServer::start_with(&of_primary));
        Self::watching(primary, replicas, None)
    }

    /// Over TLS, among themselves too. Whoever comes to a server or a Sentinel needs a certificate.
    pub fn start_tls(authority: &Authority) -> Self {
        let tls = ["--tls-replication", "yes", "--tls-auth-clients", "yes"];
        let tls = authority
            .settings()
            .into_iter()
            .chain(tls.map(str::to_owned));
        let tls: Vec<_> = tls.collect();
        let primary = RedisServer::start_tls(tls.clone());
        let of_primary = ["--replicaof", "127.0.0.1", &primary.port()].map(str::to_owned);
        let settings = [&tls[..], &of_primary].concat();
        let replicas = [(); 2].map(|()| RedisServer::start_tls(settings.clone()));
        Self::watching(primary, replicas, Some(&tls))
    }

    fn watching(primary: RedisServer, replicas: [RedisServer; 2], tls: Option<&[String]>) -> Self {
        let directory = tempfile::tempdir().expect("a directory");
        let sentinels = (0..3).map(|i| watch(&primary, &directory, i, tls));
        let this = Self {
            sentinels: sentinels.collect(),
            servers: [primary].into_iter().chain(replicas).collect(),
            is_tls: tls.is_some(),
            directory,
        };
        this.wait_until_agreed();
        this
    }

    fn wait_until_agreed(&self) {
        let info = |number: usize, port: u16| -> Option<String> {
            let url = match self.is_tls {
                true => format!("unix://{}", socket(&self.directory, number)),
                false => format!("redis://127.0.0.1:{port}"),
            };
            let client = redis::Client::open(url).ok()?;
            let mut connection = client.get_connection().ok()?;
            let mut command = redis::cmd("INFO");
            command.arg("sentinel").query(&mut connection).ok()
        };
        let agrees = |(number, (port, _)): (usize, &(u16, Child))| {
            let known = "slaves=2,sentinels=3";
            let info = info(number, *port);
            info.is_some_and(|info| info.contains("status=ok") && info.contains(known))
        };
        let all = || self.sentinels.iter().enumerate().all(agrees);
        wait_until("the Sentinels do not agree", all);
    }

    /// The server that takes writes, by its place.
    pub fn primary(&self) -> usize {
        let is_it = |server: &RedisServer| server.is_running() && server.is_primary();
        self.servers.iter().position(is_it).expect("a primary")
    }

    /// How often a replica was made the primary.
    pub fn promotions(&self) -> usize {
        let promoted = |server: &RedisServer| server.times_in_log("MODE enabled (user request");
        self.servers.iter().map(promoted).sum()
    }

    /// Starts a server that was killed again, as a replica of whoever is the primary now.
    pub fn bring_back(&mut self, killed: usize) {
        let primary = self.servers[self.primary()].port();
        let server = &mut self.servers[killed];
        server.restart();
        let _: () = server.command(&["REPLICAOF", "127.0.0.1", &primary]);
        wait_until("a server that is back is no replica", || {
            server.is_replica()
        });
    }

    pub fn url(&self) -> String {
        let hosts = self.sentinels.iter();
        let hosts: Vec<_> = hosts.map(|(port, _)| format!("127.0.0.1:{port}")).collect();
        let scheme = if self.is_tls { "rediss" } else { "redis" };
        format!("{scheme}+sentinel://{}/{NAME}", hosts.join(","))
    }
}

fn socket(directory: &TempDir, number: usize) -> String {
    let path = directory.path().join(format!("sentinel-{number}.sock"));
    path.display().to_string()
}

fn watch(
    primary: &RedisServer,
    directory: &TempDir,
    number: usize,
    tls: Option<&[String]>,
) -> (u16, Child) {
    let port = free_port();
    let file = directory.path().join(format!("sentinel-{number}.conf"));
    let primary = primary.port();
    let listening = match tls {
        None => format!("port {port}\n"),
        Some(tls) => {
            let socket = socket(directory, number);
            let settings = tls.chunks(2).map(|words| words.join(" "));
            let settings = settings.map(|line| line.replacen("--", "", 1) + "\n");
            let settings: String = settings.collect();
            format!("port 0\ntls-port {port}\nunixsocket {socket}\n{settings}")
        }
    };
    let settings = format!(
        "{listening}bind 127.0.0.1\nlogfile sentinel-{number}.log\n\
         sentinel monitor {NAME} 127.0.0.1 {primary} 2\n\
         sentinel down-after-milliseconds {NAME} 1000\n\
         sentinel failover-timeout {NAME} 5000\n"
    );
    fs::write(&file, settings).expect("settings");
    let process = Command::new(program())
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
