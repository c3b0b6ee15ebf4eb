//! `doctor`: finds what is wrong, and says what to change.

use serde_json::Value;
use tower_login_rate_limit::{LoginLimiter, Policy, event::UserDisplay};

use super::{HOME, Ran, app, attacked, program, run};
use crate::support::{RedisCluster, RedisServer, eventually, fail, ip};

fn look(url: &str, words: &[&str]) -> Ran {
    let mut command = program();
    command.env("REDIS_URL", url).args(["doctor", "--json"]);
    Ran::of(command.args(words).output().unwrap())
}

/// The findings of a check that are not fine.
fn of<'v>(report: &'v Value, check: &str, level: &str) -> Vec<&'v Value> {
    let findings = report["findings"].as_array().unwrap().iter();
    let found = findings.filter(|finding| finding["check"] == check && finding["level"] == level);
    found.collect()
}

fn with(settings: &[&str]) -> RedisServer {
    let mut redis = RedisServer::start_with(settings);
    redis.keys_may_live(None);
    redis
}

#[tokio::test]
async fn a_healthy_store_has_nothing_to_change() {
    let redis = with(&["--appendonly", "yes"]);
    let limiter = app(&redis).await;
    fail(&limiter, ip(HOME), "alice", 5).await;
    limiter.all_settled().await.unwrap();
    eventually(|| !of(&look(&redis.url(), &[]).json("doctor"), "instances", "ok").is_empty()).await;
    let ran = run(&redis, &["doctor"]).ends_with(0);
    assert!(ran.out.ends_with("Nothing to change.\n"), "{ran:?}");
    let report = look(&redis.url(), &[]).ends_with(0).json("doctor");
    assert_eq!(report["ok"], true);
    for check in [
        "latency",
        "scripts",
        "server",
        "memory",
        "persistence",
        "clock",
        "rights",
        "secret",
        "stream",
    ] {
        assert_eq!(of(&report, check, "ok").len(), 1, "{check} {report}");
    }
}

#[tokio::test]
async fn settings_that_lose_blocks_are_warnings_with_what_to_change() {
    let redis = with(&["--maxmemory", "100mb", "--maxmemory-policy", "allkeys-lru"]);
    app(&redis).await;
    let report = look(&redis.url(), &[]).ends_with(0).json("doctor");
    let evicts = of(&report, "settings", "warning");
    assert!(
        evicts[0]["advice"].as_str().unwrap().contains("noeviction"),
        "{report}"
    );
    let persists = of(&report, "persistence", "warning");
    assert!(
        persists[0]["advice"]
            .as_str()
            .unwrap()
            .contains("appendonly yes"),
        "{report}"
    );
}

#[tokio::test]
async fn rights_that_are_missing_are_named() {
    let redis = with(&[]);
    attacked(&redis).await;
    let rights = [
        "~login:*", "&login:*", "+@all", "-zadd", "-publish", "-xadd",
    ];
    let user = [&["ACL", "SETUSER", "app", "on", ">secret"][..], &rights].concat();
    let _: redis::Value = redis.command(&user);
    let url = redis.url().replace("redis://", "redis://app:secret@");
    let report = look(&url, &[]).ends_with(1).json("doctor");
    let problem = of(&report, "rights", "problem");
    assert!(
        problem[0]["message"].as_str().unwrap().contains("ZADD"),
        "{report}"
    );
    assert!(
        problem[0]["advice"].as_str().unwrap().contains("+zadd"),
        "{report}"
    );
    assert_eq!(of(&report, "rights", "warning").len(), 2, "{report}");

    // Without the right to ask, commands that read are tried.
    let user = [
        "ACL",
        "SETUSER",
        "app",
        "+zadd",
        "+publish",
        "+xadd",
        "-acl|dryrun",
        "-zscore",
    ];
    let _: redis::Value = redis.command(&user);
    let report = look(&url, &[]).ends_with(1).json("doctor");
    assert!(
        of(&report, "rights", "problem")[0]["message"]
            .as_str()
            .unwrap()
            .contains("ZSCORE"),
        "{report}"
    );
    let user = ["ACL", "SETUSER", "app", "+zscore"];
    let _: redis::Value = redis.command(&user);
    assert_eq!(
        of(&look(&url, &[]).ends_with(0).json("doctor"), "rights", "ok").len(),
        1
    );
    let wrong = redis.url().replace("redis://", "redis://app:wrong@");
    let ran = look(&wrong, &[]);
    assert!(
        ran.code != 0 && !ran.json("doctor")["ok"].as_bool().unwrap(),
        "{ran:?}"
    );
}

#[tokio::test]
async fn another_prefix_or_secret_than_the_apps_is_noticed() {
    let redis = with(&[]);
    let store = redis
        .builder()
        .with_prefix("shop")
        .with_secret("the secret of the app");
    let store = store.connect(redis.url()).await.unwrap();
    let limiter = LoginLimiter::new(Policy::default(), store).with_user_display(UserDisplay::Clear);
    fail(&limiter, ip(HOME), "alice", 5).await;
    limiter.all_settled().await.unwrap();
    let report = look(&redis.url(), &[]).ends_with(0).json("doctor");
    let advice = of(&report, "prefix", "warning")[0]["advice"]
        .as_str()
        .unwrap();
    assert!(advice.contains("shop"), "{report}");
    let report = look(&redis.url(), &["--prefix", "shop"])
        .ends_with(1)
        .json("doctor");
    assert_eq!(of(&report, "secret", "problem").len(), 1, "{report}");
    let file = redis.rdb().with_file_name("secret");
    std::fs::write(&file, "the secret of the app\n").unwrap();
    let file = file.display().to_string();
    let report = look(&redis.url(), &["--prefix", "shop", "--secret-file", &file]);
    assert_eq!(
        of(&report.ends_with(0).json("doctor"), "secret", "ok").len(),
        1
    );
}

#[tokio::test]
async fn the_servers_of_a_cluster_are_looked_at_each() {
    let mut cluster = RedisCluster::start();
    for node in &mut cluster.nodes {
        node.keys_may_live(None);
    }
    let report = look(&cluster.url(), &[]).ends_with(0).json("doctor");
    assert_eq!(of(&report, "server", "ok").len(), 3, "{report}");
    let state = of(&report, "cluster", "ok");
    assert_eq!(
        state[0]["message"], "3 primaries, 16384 slots ok",
        "{report}"
    );
}

/// Long names are cut where they are shown, and can't be searched for.
#[tokio::test]
async fn an_attacker_with_long_names_does_not_make_the_secret_look_wrong() {
    let redis = with(&[]);
    let limiter = app(&redis).await;
    for i in 1..=21 {
        let name = format!("{i}{}", "x".repeat(400));
        fail(&limiter, ip(&format!("192.0.2.{i}")), &name, 5).await;
    }
    limiter.all_settled().await.unwrap();
    let report = look(&redis.url(), &[]).json("doctor");
    assert!(of(&report, "secret", "problem").is_empty(), "{report}");
    assert_eq!(of(&report, "secret", "ok").len(), 1, "{report}");
}
