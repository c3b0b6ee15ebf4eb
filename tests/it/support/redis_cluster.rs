//! A real Redis Cluster, each test with its own.

use std::sync::Arc;

use redis::cluster::ClusterClient;
use tower_login_rate_limit::{clock::Clock, store::RedisStore};

use super::{Authority, RedisServer, redis_server::SYNC_AT_ONCE, wait_until};

const SLOTS: usize = 16_384;
const PRIMARIES: usize = 3;

/// Three primaries that share the slots evenly, stopped when dropped.
pub struct RedisCluster {
    pub nodes: Vec<RedisServer>,
}

impl RedisCluster {
    pub fn start() -> Self {
        // Long, so that nobody is declared dead on a busy machine.
        Self::of(PRIMARIES, "60000", RedisServer::start_with_all)
    }

    /// Over TLS, among themselves too. Whoever comes needs a certificate.
    pub fn start_tls(authority: &Authority) -> Self {
        Self::of(PRIMARIES, "60000", |mut settings| {
            settings.extend(authority.settings());
            let tls = ["--tls-cluster", "yes", "--tls-auth-clients", "yes"];
            settings.extend(tls.map(str::to_owned));
            RedisServer::start_tls(settings)
        })
    }

    /// With a replica for each of them, the first of which is at the place after the last primary. A
    /// server that is silent for two seconds is replaced.
    pub fn with_replicas() -> Self {
        let cluster = Self::of(PRIMARIES * 2, "2000", RedisServer::start_with_all);
        for (i, replica) in cluster.nodes.iter().enumerate().skip(PRIMARIES) {
            let primary: String = cluster.nodes[i - PRIMARIES].command(&["CLUSTER", "MYID"]);
            let _: () = replica.command(&["CLUSTER", "REPLICATE", &primary]);
        }
        // Only those that everybody knows of will be voted for.
        let knows_replicas = |node: &RedisServer| {
            let nodes: String = node.command(&["CLUSTER", "NODES"]);
            nodes.matches(" slave ").count() + nodes.matches(",slave ").count() == PRIMARIES
        };
        wait_until("the replicas do not replicate", || {
            cluster.nodes.iter().all(knows_replicas)
                && cluster.nodes[PRIMARIES..]
                    .iter()
                    .all(RedisServer::is_replica)
        });
        cluster
    }

    fn of(nodes: usize, timeout: &str, start: impl Fn(Vec<String>) -> RedisServer) -> Self {
        let settings = [
            "--cluster-enabled",
            "yes",
            "--cluster-node-timeout",
            timeout,
        ];
        let settings = settings.iter().chain(&SYNC_AT_ONCE);
        let settings: Vec<_> = settings.map(|word| (*word).to_owned()).collect();
        let nodes: Vec<_> = (0..nodes).map(|_| start(settings.clone())).collect();
        for (i, node) in nodes.iter().enumerate() {
            let mine = (0..SLOTS).filter(|slot| slot * PRIMARIES / SLOTS == i);
            let mine: Vec<_> = mine.collect();
            if !mine.is_empty() {
                let mut command = redis::cmd("CLUSTER");
                command.arg("ADDSLOTS").arg(mine);
                command.exec(&mut node.connection()).expect("slots");
            }
            let epoch = (i + 1).to_string();
            let _: () = node.command(&["CLUSTER", "SET-CONFIG-EPOCH", &epoch]);
            let _: () = node.command(&["CLUSTER", "MEET", "127.0.0.1", &nodes[0].port()]);
        }
        let cluster = Self { nodes };
        // A node tells what is published only to those that it has a connection to.
        let agrees = |node: &RedisServer| {
            let info: String = node.command(&["CLUSTER", "INFO"]);
            let known: String = node.command(&["CLUSTER", "NODES"]);
            let connected = known.lines().filter(|line| line.contains(" connected"));
            info.contains("cluster_state:ok")
                && !known.contains("handshake")
                && known.lines().count() == cluster.nodes.len()
                && connected.count() == cluster.nodes.len()
        };
        wait_until("the nodes of a cluster do not agree", || {
            cluster.nodes.iter().all(agrees)
        });
        cluster
    }

    fn running(&self) -> impl Iterator<Item = &RedisServer> {
        self.nodes.iter().filter(|node| node.is_running())
    }

    pub fn slot_of(&self, key: &str) -> u16 {
        let node = self.running().next().expect("a node");
        node.command(&["CLUSTER", "KEYSLOT", key])
    }

    /// The primary that serves a key, by its place among the nodes.
    pub fn serving(&self, key: &str) -> usize {
        let slot = self.slot_of(key);
        let node = self.running().next().expect("a node");
        let nodes: String = node.command(&["CLUSTER", "NODES"]);
        let line = nodes.lines().find(|line| serves(line, slot));
        let line = line.expect("somebody who serves it");
        let is_it = |node: &RedisServer| line.contains(&format!(":{}@", node.port()));
        self.nodes.iter().position(is_it).expect("one of ours")
    }

    /// How often a replica took the place of a primary.
    pub fn promotions(&self) -> usize {
        let won = |node: &RedisServer| node.times_in_log("Failover election won");
        self.nodes.iter().map(won).sum()
    }

    /// Starts a server that was killed and replaced again; it becomes a replica by itself.
    pub fn bring_back(&mut self, killed: usize) {
        let node = &mut self.nodes[killed];
        node.restart();
        wait_until("a server that is back is no replica", || node.is_replica());
    }

    pub fn url(&self) -> String {
        let hosts = self.nodes.iter();
        let hosts: Vec<_> = hosts
            .map(|node| format!("127.0.0.1:{}", node.port()))
            .collect();
        format!("redis+cluster://{}", hosts.join(","))
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
        let builder = self.nodes[0].builder().with_clock(clock);
        let store = builder.build_with_manager(self.client());
        store.expect("a store")
    }

    pub fn flush(&self) {
        self.nodes.iter().for_each(RedisServer::flush);
    }
}

/// Whether a line of `CLUSTER NODES` says that its node serves a slot.
fn serves(line: &str, slot: u16) -> bool {
    let mut slots = line.split(' ').skip(8);
    slots.any(|slots| {
        let (first, last) = slots.split_once('-').unwrap_or((slots, slots));
        let number = |text: &str| text.parse::<u16>().ok();
        number(first).is_some_and(|first| first <= slot)
            && number(last).is_some_and(|last| slot <= last)
    })
}
