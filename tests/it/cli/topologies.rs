//! The same commands on a cluster and through Sentinel.

use tower_login_rate_limit::{LoginLimiter, Policy, event::RedisStream, store::RedisStore};

use super::{HOME, Ran, program};
use crate::support::{RedisCluster, RedisSentinel, fail, ip};

fn run(url: &str, words: &[&str]) -> Ran {
    let mut command = program();
    command
        .env("REDIS_URL", url)
        .env("LOGIN_RATE_LIMIT_BASE_POLICY", "default");
    Ran::of(command.args(words).output().unwrap())
}

async fn is_operated(url: &str) {
    let store = RedisStore::connect(url).await.unwrap();
    let limiter =
        LoginLimiter::new(Policy::default(), store).with_observer(RedisStream::open(url).unwrap());
    fail(&limiter, ip(HOME), "alice", 5).await;
    limiter.all_settled().await.unwrap();
    let blocks = run(url, &["blocked", "--json"]).ends_with(0).json();
    assert_eq!(blocks["blocks"].as_array().unwrap().len(), 1);
    let events = run(url, &["events", "--json"]).ends_with(0).out;
    assert_eq!(events.lines().count(), 6, "{events}");
    run(url, &["explain", HOME, "--user", "alice"]).ends_with(0);
    let why = ["--reason", "r", "--yes"];
    run(url, &[&["unblock", "--user", "alice"][..], &why].concat()).ends_with(0);
    run(url, &["blocked"]).ends_with(5);
    run(url, &[&["policy", "set", "strict"][..], &why].concat()).ends_with(0);
    run(url, &["doctor"]).ends_with(0);
}

#[tokio::test]
async fn a_cluster_is_operated_like_one_server() {
    let mut cluster = RedisCluster::start();
    for node in &mut cluster.nodes {
        node.keys_may_live(None);
    }
    is_operated(&cluster.url()).await;
}

#[tokio::test]
async fn the_primary_that_sentinel_names_is_operated() {
    let mut sentinel = RedisSentinel::start();
    for server in &mut sentinel.servers {
        server.keys_may_live(None);
    }
    is_operated(&sentinel.url()).await;
}
