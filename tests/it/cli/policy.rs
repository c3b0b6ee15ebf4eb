//! Policies: checked, set, compared, rolled back, replayed.

use std::fs;

use super::{app, attacked, json, program, redis, run};
use crate::support::{RedisServer, eventually};

const WHY: [&str; 3] = ["--yes", "--reason", "botnet"];

const FILE: &str = r#"
[[rules]]
name = "user-address"
key = ["user", "address"]
limit = 3
within = "1 day"
block = "1 day"
"#;

/// Without a store.
fn check(words: &[&str]) -> super::Ran {
    super::Ran::of(
        program()
            .args(["policy", "check"])
            .args(words)
            .output()
            .unwrap(),
    )
}

#[test]
fn a_file_is_checked_without_a_store() {
    let directory = tempfile::tempdir().unwrap();
    let path = |name: &str| directory.path().join(name).display().to_string();
    fs::write(path("good.toml"), FILE).unwrap();
    fs::write(path("bad.toml"), FILE.replace("limit = 3", "limt = 3")).unwrap();
    fs::write(path("good.json"), r#"{"policy": {}, "access": []}"#).unwrap();
    fs::write(path("bad.json"), r#"{"policy": {}, "acces": []}"#).unwrap();
    assert!(
        check(&[&path("good.toml")])
            .ends_with(0)
            .out
            .contains("3 failures within 1 day")
    );
    assert_eq!(
        check(&[&path("good.json"), "--json"])
            .ends_with(0)
            .json("policy-check")["valid"],
        true
    );
    for (name, key) in [("bad.toml", "limt"), ("bad.json", "acces")] {
        let ran = check(&[&path(name)]).ends_with(1);
        assert!(
            ran.error.contains(name) && ran.error.contains(key),
            "{ran:?}"
        );
        assert_eq!(ran.error.lines().count(), 1, "{ran:?}");
        let report = check(&[&path(name), "--json"])
            .ends_with(1)
            .json("policy-check");
        assert_eq!(report["valid"], false);
        assert!(report["error"].as_str().unwrap().contains(key), "{report}");
    }
    check(&[&path("missing.toml")]).ends_with(1);
    for name in ["pci", "nist", "owasp"] {
        check(&[name, "--standard", name]).ends_with(0);
        let report = check(&["default", "--standard", name, "--json"])
            .ends_with(1)
            .json("policy-check");
        assert!(report["findings"][0]["clause"].is_string(), "{report}");
    }
    check(&["default", "--standard", "iso"]).ends_with(2);
}

fn file(redis: &RedisServer, text: &str) -> String {
    let path = redis.rdb().with_file_name("policy.toml");
    fs::write(&path, text).unwrap();
    path.display().to_string()
}

#[tokio::test]
async fn a_policy_is_set_compared_and_rolled_back_on_a_live_instance() {
    let redis = redis();
    let limiter = app(&redis).await;
    json(&redis, &["policy", "history"], 5);
    let file = file(&redis, FILE);
    let differences = json(&redis, &["policy", "diff", &file], 0)["differences"].clone();
    assert!(!differences.as_array().unwrap().is_empty());

    let set = json(&redis, &[&["policy", "set", &file][..], &WHY].concat(), 0);
    assert_eq!(
        (&set["from"], &set["version"], &set["differences"]),
        (&0.into(), &1.into(), &differences)
    );
    eventually(|| limiter.version() == 1).await;
    assert_eq!(limiter.policy().rules().len(), 1);
    json(&redis, &["policy", "diff", &file], 5);
    json(&redis, &[&["policy", "set", &file][..], &WHY].concat(), 5);

    // Two operators: the second one expects what the first has replaced.
    let late = [&["policy", "set", "strict", "--expect", "0"][..], &WHY].concat();
    let ran = run(&redis, &late).ends_with(3);
    assert!(
        ran.error.contains("the newest version is 1, by tester@"),
        "{ran:?}"
    );

    let canary = [&["policy", "set", "strict", "--canary", "5"][..], &WHY].concat();
    assert_eq!(json(&redis, &canary, 0)["version"], 2);
    let shown = json(&redis, &["policy", "show"], 0);
    assert_eq!(shown["ruleset"]["canary"]["share"], 5.0);
    assert!(
        run(&redis, &["policy", "show"])
            .out
            .contains("Canary, for 5 % of the addresses")
    );
    assert_eq!(
        json(&redis, &["policy", "show", "--version", "1"], 0)["version"],
        1
    );
    json(&redis, &["policy", "diff", "1", "2"], 0);

    let back = json(
        &redis,
        &[&["policy", "rollback", "1"][..], &WHY].concat(),
        0,
    );
    assert_eq!((&back["from"], &back["version"]), (&2.into(), &3.into()));
    run(&redis, &[&["policy", "rollback", "99"][..], &WHY].concat()).ends_with(5);
    let history = json(&redis, &["policy", "history"], 0);
    let versions = history["versions"].as_array().unwrap();
    assert_eq!(
        versions
            .iter()
            .map(|version| version["version"].as_u64().unwrap())
            .collect::<Vec<_>>(),
        [3, 2, 1]
    );
    assert_eq!(versions[0]["reason"], "botnet");

    // What is shown as a file can be set again.
    let text = run(&redis, &["policy", "show", "--toml"]).ends_with(0).out;
    let file = self::file(&redis, &text);
    json(&redis, &["policy", "diff", &file], 5);
}

#[tokio::test]
async fn recorded_events_are_replayed_under_another_policy() {
    let redis = redis();
    attacked(&redis).await;
    let events = run(&redis, &["events", "--json", "--limit", "100000"])
        .ends_with(0)
        .out;
    let record = redis.rdb().with_file_name("events.jsonl");
    fs::write(&record, format!("{events}no event\n")).unwrap();
    let record = record.display().to_string();
    let file = file(&redis, FILE);
    let ran = run(&redis, &["replay", &record, "--policy", &file, "--json"]).ends_with(0);
    assert!(ran.error.contains("1 line skipped"), "{ran:?}");
    let report = ran.json("replay");
    assert_eq!(report["attempts"], 40);
    assert_eq!(
        report["refused"], 6,
        "two more each at three pairs: {report}"
    );
    let text = run(&redis, &["replay", &record, "--policy", "default"])
        .ends_with(0)
        .out;
    assert!(text.starts_with("40 attempts from "), "{text}");
    run(&redis, &["replay", "/nowhere", "--policy", "default"]).ends_with(1);
}
