//! A real Redis Cluster, each test with its own.

use std::{
    sync::Arc,
    thread,
    time::{Duration, Instant},
};

use redis::cluster::ClusterClient;
use tower_login_rate_limit::{clock::Clock, store::RedisStore};

use super::{Authority, RedisServer};

const SLOTS: usize = 16_384;

/// A node's time is long, so that nobody is declared dead on a busy machine.
const SETTINGS: [&str; 4] = [
    "--cluster-enabled",
    "yes",
    "--cluster-node-timeout",
    "60000",
];

/// Three primaries that share the slots, stopped when dropped.
pub struct RedisCluster {
    pub nodes: Vec<RedisServer>,
}

impl RedisCluster {
    pub fn start() -> Self {
        Self::of([(); 3].map(|()| RedisServer::start_with(&SETTINGS)))
    }

    /// Over TLS, among themselves too. Whoever comes needs a certificate.
    pub fn start_tls(authority: &Authority) -> Self {
        let settings = SETTINGS.iter().map(|word| (*word).to_owned());
        let settings = settings.chain(authority.settings());
        let tls = ["--tls-cluster", "yes", "--tls-auth-clients", "yes"];
        let settings: Vec<_> = settings.chain(tls.map(str::to_owned)).collect();
        Self::of([(); 3].map(|()| RedisServer::start_tls(settings.clone())))
    }

    fn of(nodes: [RedisServer; 3]) -> Self {
        for (i, node) in nodes.iter().enumerate() {
            let mine = (0..SLOTS).filter(|slot| slot * nodes.len() / SLOTS == i);
            let mut command = redis::cmd("CLUSTER");
            command.arg("ADDSLOTS").arg(mine.collect::<Vec<_>>());
            let added: Result<(), _> = command.query(&mut node.connection());
            added.expect("slots");
            let _: () = node.command(&["CLUSTER", "MEET", "127.0.0.1", &nodes[0].port()]);
        }
        let cluster = Self {
            nodes: nodes.into(),
        };
        cluster.wait_until_agreed();
        cluster
    }

    fn wait_until_agreed(&self) {
        let started = Instant::now();
        let agrees = |node: &RedisServer| {
            let info: String = node.command(&["CLUSTER", "INFO"]);
            let nodes = format!("cluster_known_nodes:{}\r", self.nodes.len());
            info.contains("cluster_state:ok") && info.contains(&nodes)
        };
        while !self.nodes.iter().all(agrees) {
            assert!(
                started.elapsed() < Duration::from_secs(60),
                "the nodes of a cluster do not agree"
            );
            thread::sleep(Duration::from_millis(20));
        }
    }

    pub fn client(&self) -> ClusterClient {
        let urls = self.nodes.iter().map(RedisServer::url);
        ClusterClient::new(urls).expect("a client")
    }

    /// A store with a generous deadline: the machine may be busy with other tests.
    pub fn store(&self) -> RedisStore {
        let builder = self.nodes[0].builder();
        let store = builder.build_with_manager(self.client());
        store.expect("a store")
    }

    /// The same with a clock of the test's.
    pub fn store_with_clock(&self, clock: Arc<impl Clock>) -> RedisStore {
        let builder = self.nodes[0].builder().clock(clock);
        let store = builder.build_with_manager(self.client());
        store.expect("a store")
    }

    pub fn flush(&self) {
        self.nodes.iter().for_each(RedisServer::flush);
    }
}
