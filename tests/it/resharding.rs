//! Slots of a cluster move from server to server while passwords are being guessed. Nobody notices.
//!
//! `RESHARDING_SECONDS=30` goes on for longer than usual.

use std::{
    collections::{BTreeMap, HashMap},
    time::{Duration, Instant},
};

use redis::{Cmd, Connection, FromRedisValue};
use tower_login_rate_limit::{LoginLimiter, Policy, Rule, store::redis::RedisStoreBuilder};

use crate::support::{Guessing, RedisCluster, closed, eventually, fail, ip, wait_until};

/// While a slot moves, Redis decides on two counters only if it finds both; so somebody new has to
/// wait until the slot has moved.
fn builder() -> RedisStoreBuilder {
    closed().with_deadline(Duration::from_secs(2))
}

/// Moves slots as `redis-cli --cluster reshard` does.
struct Mover {
    nodes: Vec<Node>,
    /// Which node has a slot that was moved.
    owners: HashMap<u16, usize>,
}

struct Node {
    connection: Connection,
    id: String,
    port: String,
}

impl Node {
    fn ask<T: FromRedisValue>(&mut self, command: &Cmd) -> T {
        command.query(&mut self.connection).expect("an answer")
    }

    /// The epoch of each node as this one sees it: who has the highest is believed.
    fn epochs(&mut self) -> BTreeMap<String, String> {
        let nodes: String = self.ask(redis::cmd("CLUSTER").arg("NODES"));
        let epoch = |line: &str| {
            let words: Vec<_> = line.split(' ').collect();
            (words[0].to_owned(), words[6].to_owned())
        };
        nodes.lines().map(epoch).collect()
    }
}

fn cluster(words: &[&str], slot: u16) -> Cmd {
    let mut command = redis::cmd("CLUSTER");
    command.arg(words[0]).arg(slot).arg(&words[1..]);
    command
}

impl Mover {
    fn new(cluster: &RedisCluster) -> Self {
        let nodes = cluster.nodes.iter().map(|node| Node {
            connection: node.connection(),
            id: node.command(&["CLUSTER", "MYID"]),
            port: node.port(),
        });
        Self {
            nodes: nodes.collect(),
            owners: HashMap::new(),
        }
    }

    fn owner_of(&mut self, slot: u16) -> usize {
        let even = usize::from(slot) * self.nodes.len() / 16_384;
        *self.owners.entry(slot).or_insert(even)
    }

    /// Waits until all nodes know the epochs of each other. Who is given a slot takes an epoch above all
    /// that it knows of; if it does not know of one, it may lose the slot again to a message that was
    /// under way.
    fn wait_until_agreed(&mut self) {
        wait_until("the nodes of a cluster do not agree", || {
            let views = self.nodes.iter_mut().map(Node::epochs);
            let views: Vec<_> = views.collect();
            views.windows(2).all(|views| views[0] == views[1])
        });
    }

    fn slot_of(&mut self, key: &str) -> u16 {
        self.nodes[0].ask(redis::cmd("CLUSTER").arg("KEYSLOT").arg(key))
    }

    /// How many keys went with it.
    fn move_slot(&mut self, slot: u16, to: usize) -> usize {
        if self.owner_of(slot) == to {
            return 0;
        }
        if !self.begin(slot, to) {
            return 0;
        }
        let mut moved = 0;
        while self.move_a_key(slot, to) {
            moved += 1;
        }
        self.finish(slot, to);
        moved
    }

    /// Not if the nodes are not of one mind yet about who has it; then it stays where it is.
    fn begin(&mut self, slot: u16, to: usize) -> bool {
        let from = self.owner_of(slot);
        let (source, target) = (self.nodes[from].id.clone(), self.nodes[to].id.clone());
        let importing = cluster(&["SETSLOT", "IMPORTING", &source], slot);
        let migrating = cluster(&["SETSLOT", "MIGRATING", &target], slot);
        let mut begin = |node: usize, command: Cmd| command.exec(&mut self.nodes[node].connection);
        if begin(to, importing).is_ok() && begin(from, migrating).is_ok() {
            return true;
        }
        for node in [from, to] {
            let _: () = self.nodes[node].ask(&cluster(&["SETSLOT", "STABLE"], slot));
        }
        false
    }

    /// Whether there was one. One at a time, so that there is a moment at which some are here and some
    /// are there.
    fn move_a_key(&mut self, slot: u16, to: usize) -> bool {
        let (from, port) = (self.owner_of(slot), self.nodes[to].port.clone());
        let from = &mut self.nodes[from];
        let keys: Vec<String> = from.ask(&cluster(&["GETKEYSINSLOT", "1"], slot));
        let Some(key) = keys.first() else {
            return false;
        };
        let mut migrate = redis::cmd("MIGRATE");
        migrate.arg("127.0.0.1").arg(port).arg(key).arg(0).arg(5000);
        let _: String = from.ask(&migrate);
        true
    }

    fn finish(&mut self, slot: u16, to: usize) {
        let (from, target) = (self.owner_of(slot), self.nodes[to].id.clone());
        // The new owner first: should it fail, the old one is still there.
        let others = (0..self.nodes.len()).filter(|node| *node != from && *node != to);
        for node in [to, from].into_iter().chain(others) {
            let _: () = self.nodes[node].ask(&cluster(&["SETSLOT", "NODE", &target], slot));
        }
        self.owners.insert(slot, to);
    }
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn slots_that_move_cause_no_error_and_no_overshoot() {
    let seconds = std::env::var("RESHARDING_SECONDS").map_or(10, |n| n.parse().expect("a number"));
    let redis = RedisCluster::start();
    let mut limiters = Vec::new();
    for _ in 0..3 {
        let store = builder().connect(redis.url()).await.expect("a store");
        limiters.push(LoginLimiter::new(Policy::default(), store));
    }
    let guessing = Guessing::start(limiters, Duration::from_millis(500));
    let mut mover = Mover::new(&redis);
    let (mut rounds, mut keys) = (0, 0);
    let started = Instant::now();
    while started.elapsed() < Duration::from_secs(seconds) {
        mover.wait_until_agreed();
        for address in guessing.addresses() {
            // The slot of its counters, and one that is empty or somebody else's.
            for key in [format!("{{{address}}}"), format!("beside {address}")] {
                let slot = mover.slot_of(&key);
                keys += mover.move_slot(slot, rounds % redis.nodes.len());
            }
        }
        rounds += 1;
    }
    let tally = guessing.end().await;
    println!(
        "{keys} keys moved in {rounds} rounds; {} guesses let through, {} refused, {} errors",
        tally.admitted(),
        tally.refused,
        tally.errors.len()
    );
    assert!(keys > 100, "{keys} keys have moved");
    assert_eq!(tally.errors.first().map(ToString::to_string), None);
    tally.assert_within(1);
}

/// Redis decides on two counters where it finds both. While it does not, it says so, and is asked again.
#[tokio::test]
async fn a_slot_on_its_way_is_asked_until_it_has_arrived() {
    let redis = RedisCluster::start();
    let store = redis.nodes[0].builder().connect(redis.url()).await;
    let limiter = LoginLimiter::new(Policy::default(), store.expect("a store"));
    let home = ip("192.0.2.1");
    fail(&limiter, home, "user", 2).await;

    let mut mover = Mover::new(&redis);
    let slot = mover.slot_of(&home.to_string());
    let to = (mover.owner_of(slot) + 1) % redis.nodes.len();
    let try_agains = || -> u64 {
        let nodes = redis.nodes.iter();
        nodes.map(|node| node.errors_of("TRYAGAIN")).sum()
    };
    let ask = |user: &'static str| {
        let limiter = limiter.clone();
        tokio::spawn(async move { fail(&limiter, home, user, 1).await })
    };
    // One of two has moved.
    let _ = mover.begin(slot, to);
    assert!(mover.move_a_key(slot, to));
    let asked = ask("user");
    eventually(|| try_agains() > 30).await;
    // Both have. Who asks the old server is sent to the new one.
    assert!(mover.move_a_key(slot, to));
    asked.await.expect("decided");
    fail(&limiter, home, "user", 1).await;
    assert!(redis.nodes.iter().any(|node| node.errors_of("ASK") > 0));
    // Somebody new has a counter nowhere yet.
    let before = try_agains();
    let asked = ask("other");
    eventually(|| try_agains() > before).await;
    mover.finish(slot, to);
    asked.await.expect("decided");

    let report = limiter.check((home, "user")).await.expect("an answer");
    let usage = |rule| report.rule(rule).map(|standing| standing.usage);
    assert_eq!(usage(Rule::ADDRESS), Some(5));
    assert_eq!(usage(Rule::USER_ADDRESS), Some(4));
}
