//! Commands that change something.

use tower_login_rate_limit::{LoginLimiter, Outcome, ReserveError};

use super::{ELSEWHERE, GUESSER, HOME, app, attacked, json, redis, run};
use crate::support::{attempt, eventually, ip};

const WHY: [&str; 2] = ["--reason", "ticket 4711"];

async fn is_admitted(limiter: &LoginLimiter, address: &str, user: &str) -> bool {
    match limiter.reserve((ip(address), user)).await {
        Ok(attempt) => {
            attempt.settle(Outcome::NotAnAttempt).await.unwrap();
            true
        }
        Err(ReserveError::Store(error)) => panic!("{error}"),
        Err(_) => false,
    }
}

#[tokio::test]
async fn a_pair_is_unblocked_and_audited_with_author_and_reason() {
    let redis = redis();
    let limiter = attacked(&redis).await;
    let pair = ["unblock", "--user", "alice", "--address", HOME];
    let dry = json(&redis, &[&pair[..], &["--dry-run"]].concat(), 0);
    assert_eq!((&dry["dry_run"], &dry["count"]), (&true.into(), &1.into()));
    assert!(!is_admitted(&limiter, HOME, "alice").await);

    let error = run(&redis, &pair).ends_with(2).error;
    assert!(error.contains("--reason"), "{error}");
    let done = json(&redis, &[&pair[..], &WHY].concat(), 0);
    assert_eq!(
        (&done["dry_run"], &done["count"]),
        (&false.into(), &1.into())
    );
    assert_eq!(done["lifted"][0]["user"], "alice");
    assert!(is_admitted(&limiter, HOME, "alice").await);
    assert!(!is_admitted(&limiter, ELSEWHERE, "alice").await);
    assert!(!is_admitted(&limiter, HOME, "bob@example.org").await);
    json(&redis, &[&pair[..], &WHY].concat(), 5);

    let events = run(&redis, &["events", "--event", "block_lifted", "--json"]);
    let event = &events.ends_with(0).events()[0];
    assert_eq!(
        (&event["by"], &event["reason"]),
        (&"operator".into(), &"ticket 4711".into())
    );
    let author = event["author"].as_str().unwrap();
    assert!(author.starts_with("tester@"), "{author}");
}

#[tokio::test]
async fn what_affects_many_is_not_done_without_yes() {
    let redis = redis();
    let limiter = attacked(&redis).await;
    let before = json(&redis, &["blocked"], 0)["blocks"].clone();
    for words in [
        &["unblock", "192.0.2.0/24"][..],
        &["unblock", "--user", "alice"],
        &["unblock", HOME, "--with-users"],
        &["forgive", "alice"],
        &["block", "192.0.2.0/24", "--for", "1d"],
        &["block", "--user", "alice", "--for", "1d"],
        &["deny", "add", "net", "--network", "192.0.2.0/24"],
        &["allow", "add", "net", "--network", "192.0.2.0/24"],
        &["policy", "set", "pci"],
    ] {
        let ran = run(&redis, &[words, &WHY].concat()).ends_with(2);
        assert!(
            ran.error.contains("pass --yes, or --dry-run"),
            "{words:?} {ran:?}"
        );
        let dry = json(&redis, &[words, &["--dry-run"]].concat(), 0);
        assert_eq!(dry["dry_run"], true, "{words:?}");
    }
    assert_eq!(json(&redis, &["blocked"], 0)["blocks"], before);
    assert_eq!(json(&redis, &["policy", "show"], 0)["version"], 0);
    assert!(
        !redis
            .keys()
            .iter()
            .any(|(key, _)| key.contains("{document}"))
    );

    let network = ["unblock", "192.0.2.0/24", "--yes"];
    assert_eq!(json(&redis, &[&network[..], &WHY].concat(), 0)["count"], 2);
    assert!(is_admitted(&limiter, HOME, "alice").await);
    assert!(!is_admitted(&limiter, GUESSER, "alice").await);
}

#[tokio::test]
async fn blocks_of_the_list_are_lifted_by_their_ids() {
    let redis = redis();
    attacked(&redis).await;
    let listed = json(&redis, &["blocked", "--user", "alice"], 0);
    let ids: Vec<_> = listed["blocks"]
        .as_array()
        .unwrap()
        .iter()
        .map(|block| block["id"].as_str().unwrap())
        .collect();
    let words = ["unblock", "--id", ids[0], "--id", ids[1]];
    run(&redis, &[&words[..], &WHY].concat()).ends_with(2);
    let dry = json(&redis, &[&words[..], &["--dry-run"]].concat(), 0);
    assert_eq!(dry["count"], 2);
    let done = json(&redis, &[&words[..], &WHY, &["--yes"]].concat(), 0);
    assert_eq!(done["count"], 2);
    json(&redis, &["blocked", "--user", "alice"], 5);
    run(
        &redis,
        &[&["unblock", "--id", "nonsense"][..], &WHY].concat(),
    )
    .ends_with(2);
}

#[tokio::test]
async fn a_user_is_forgiven_and_known_addresses_are_forgotten() {
    let redis = redis();
    let limiter = attacked(&redis).await;
    let forgive = [&["forgive", "alice", "--address", HOME][..], &WHY].concat();
    let forgiven = json(&redis, &forgive, 0);
    assert_eq!(forgiven["addresses"], serde_json::json!([HOME]));
    assert_eq!(forgiven["refused_by"].as_array().unwrap().len(), 1);
    assert!(is_admitted(&limiter, HOME, "alice").await);
    let all = [&["forgive", "alice", "--yes"][..], &WHY].concat();
    assert!(
        run(&redis, &all)
            .ends_with(0)
            .out
            .starts_with("Forgiven: user alice at 198.51.100.7")
    );

    attempt(&limiter, ip(HOME), "carol", Outcome::Success)
        .await
        .unwrap();
    let forget = ["known", "carol", "--forget", HOME];
    assert_eq!(
        json(&redis, &[&forget[..], &["-n"]].concat(), 0)["forgotten"],
        1
    );
    assert_eq!(
        json(&redis, &[&forget[..], &WHY].concat(), 0)["forgotten"],
        1
    );
    json(&redis, &[&forget[..], &WHY].concat(), 5);
    json(&redis, &["known", "carol"], 5);
}

#[tokio::test]
async fn rules_by_hand_are_enforced_by_a_live_instance_and_removed() {
    let redis = redis();
    let limiter = app(&redis).await;
    let block = [&["block", HOME, "--for", "1d"][..], &WHY].concat();
    let rule = json(&redis, &block, 0)["rule"].as_str().unwrap().to_owned();
    eventually(|| limiter.version() == 1).await;
    assert!(!is_admitted(&limiter, HOME, "alice").await);
    assert_eq!(
        json(&redis, &["explain", HOME], 0)["decided_by"]["name"],
        *rule
    );

    let allow = [
        "allow",
        "add",
        "office",
        "--network",
        "192.0.2.0/24",
        "--for",
        "7d",
        "--yes",
    ];
    assert_eq!(json(&redis, &[&allow[..], &WHY].concat(), 0)["version"], 2);
    let tried = json(&redis, &["allow", "try", "--address", HOME], 0);
    assert_eq!(tried["decided_by"]["name"], *rule);
    assert_eq!(tried["overruled"][0]["name"], "office");
    json(&redis, &["deny", "try", "--address", "203.0.113.1"], 5);
    assert_eq!(
        json(&redis, &["deny", "list"], 0)["rules"]
            .as_array()
            .unwrap()
            .len(),
        1
    );
    assert_eq!(
        json(&redis, &["allow", "list"], 0)["rules"][0]["note"],
        "ticket 4711"
    );

    let wrong = [&["allow", "remove", &rule][..], &WHY].concat();
    assert!(
        run(&redis, &wrong)
            .ends_with(2)
            .error
            .contains("deny remove")
    );
    run(&redis, &[&["deny", "remove", "none"][..], &WHY].concat()).ends_with(5);
    json(&redis, &[&["deny", "remove", &rule][..], &WHY].concat(), 0);
    eventually(|| limiter.version() == 3).await;
    assert!(is_admitted(&limiter, HOME, "alice").await);
    let forgeable = [
        &["allow", "add", "bot", "--user-agent", "curl", "--yes"][..],
        &WHY,
    ]
    .concat();
    assert!(
        run(&redis, &forgeable)
            .ends_with(2)
            .error
            .contains("--forgeable")
    );
    run(
        &redis,
        &[
            &["deny", "add", "bot", "--user-agent", "sqlmap", "--yes"][..],
            &WHY,
        ]
        .concat(),
    )
    .ends_with(0);
}

#[tokio::test]
async fn a_first_version_does_not_replace_a_policy_that_is_not_known() {
    let redis = redis();
    let limiter = app(&redis).await;
    let mut command = super::program();
    command.env("REDIS_URL", redis.url());
    let words = [&["block", HOME, "--for", "1d"][..], &WHY].concat();
    let ran = super::Ran::of(command.args(words).output().unwrap()).ends_with(1);
    assert!(ran.error.contains("--base-policy"), "{ran:?}");
    assert_eq!(limiter.version(), 0);
}
