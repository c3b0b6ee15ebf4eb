//! The same commands on a cluster, through Sentinel and over TLS.

use tower_login_rate_limit::{LoginLimiter, Policy, event::RedisStream, store::RedisStore};

use super::{HOME, Ran, program};
use crate::support::{Authority, RedisCluster, RedisSentinel, RedisServer, fail, ip};

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
    let blocks = run(url, &["blocked", "--json"])
        .ends_with(0)
        .json("blocked");
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

#[test]
fn over_tls_the_servers_certificate_is_verified_and_the_clients_shown() {
    let authority = Authority::new();
    let mut settings = authority.settings();
    settings.extend(["--tls-auth-clients", "yes"].map(str::to_owned));
    let redis = RedisServer::start_tls(settings);
    let certificates = authority.known_and_client();
    let client = certificates.client_tls.unwrap();
    let directory = tempfile::tempdir().unwrap();
    let file = |name: &str, pem: Vec<u8>| {
        let path = directory.path().join(name);
        std::fs::write(&path, pem).unwrap();
        path.display().to_string()
    };
    let ca = file("ca.pem", certificates.root_cert.unwrap());
    let certificate = file("client.pem", client.client_cert);
    let key = file("client.key", client.client_key);
    let url = redis.url();
    run(&url, &["blocked"]).ends_with(4);
    let trusting = ["blocked", "--ca-cert", &ca];
    run(&url, &trusting).ends_with(4);
    let shown = ["--client-cert", &certificate, "--client-key", &key];
    run(&url, &[&trusting[..], &shown].concat()).ends_with(5);
    let half = [&trusting[..], &shown[..2]].concat();
    run(&url, &half).ends_with(2);
}
