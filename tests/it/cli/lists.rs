//! Commands that change nothing.

use tower_login_rate_limit::{
    LoginLimiter, Outcome, Policy,
    event::{UserDisplay, UserHasher},
    insight::Insight,
};

use super::{ELSEWHERE, GUESSER, HOME, app, attacked, json, redis, run};
use crate::support::{attempt, eventually, fail, ip};

/// An app may have a normalizer that lets such names pass.
#[tokio::test]
async fn a_name_in_json_moves_no_cursor_and_is_read_as_it_was() {
    let redis = redis();
    let name = "\u{9b}2J\u{202e}\u{2028}\u{e0001}\u{1b}]0;title\u{7}";
    let limiter = LoginLimiter::new(Policy::strict(), redis.store().await)
        .with_user_display(UserDisplay::Clear)
        .with_normalizer(str::to_owned);
    fail(&limiter, ip(HOME), name, 5).await;
    limiter.all_settled().await.unwrap();
    let ran = run(&redis, &["blocked", "--json"]).ends_with(0);
    let is_escaped = |c: char| c == '\n' || (' '..='~').contains(&c);
    assert!(ran.out.chars().all(is_escaped), "{ran:?}");
    assert_eq!(ran.json("blocked")["blocks"][0]["user"], name);
}

#[tokio::test]
async fn blocks_are_listed_filtered_counted_and_paged() {
    let redis = redis();
    let empty = run(&redis, &["blocked"]).ends_with(5);
    assert_eq!(empty.out, "No blocks in force.\n");
    assert_eq!(
        json(&redis, &["blocked"], 5)["blocks"],
        serde_json::json!([])
    );

    attacked(&redis).await;
    let all = json(&redis, &["blocked"], 0);
    assert_eq!(all["blocks"].as_array().unwrap().len(), 4);
    assert!(all["next"].is_null() && all["now"].is_string());
    for (words, count) in [
        (&["--rule", "address"][..], 1),
        (&["--address", HOME], 2),
        (&["--network", "192.0.2.0/24"], 2),
        (&["--user", "ALICE"], 2),
        (&["--user", "alice", "--address", ELSEWHERE], 1),
    ] {
        let found = json(&redis, &[&["blocked"], words].concat(), 0);
        assert_eq!(
            found["blocks"].as_array().unwrap().len(),
            count,
            "{words:?}"
        );
    }
    json(&redis, &["blocked", "--user", "carol"], 5);
    let counts = json(&redis, &["blocked", "--count"], 0);
    assert_eq!(counts["total"], 4);
    assert!(
        counts["counts"]
            .as_array()
            .unwrap()
            .iter()
            .any(|count| { count["rule"] == "user-address" && count["blocks"] == 3 })
    );

    let (mut ids, mut after) = (Vec::new(), None::<String>);
    loop {
        let mut words = vec!["blocked", "--limit", "1"];
        words.extend(after.iter().flat_map(|after| ["--after", after]));
        let ran = run(&redis, &[&words[..], &["--json"]].concat());
        let page = ran.json("blocked");
        ids.extend(
            page["blocks"]
                .as_array()
                .unwrap()
                .iter()
                .map(|block| block["id"].clone()),
        );
        match page["next"].as_str() {
            Some(next) => after = Some(next.to_owned()),
            None => break,
        }
    }
    assert_eq!(ids.len(), 4, "{ids:?}");
    let error = run(&redis, &["blocked", "--rule", "none"])
        .ends_with(1)
        .error;
    assert!(error.contains("it has address"), "{error}");
}

#[tokio::test]
async fn a_table_has_a_column_for_each_thing_that_matters() {
    let redis = redis();
    attacked(&redis).await;
    let table = run(&redis, &["blocked"]).ends_with(0).out;
    let lines: Vec<_> = table.lines().collect();
    assert!(lines[0].starts_with("ADDRESS "), "{table}");
    let user = lines[0].find("USER").unwrap();
    assert!(
        lines[1..].iter().all(|line| line.is_char_boundary(user)),
        "{table}"
    );
    assert!(
        table.contains("bob@example.org") && table.contains("5 of 5"),
        "{table}"
    );
    assert!(
        !table.contains('\u{1b}') && !table.contains("login:{"),
        "{table}"
    );
    let long = run(&redis, &["blocked", "--long", "--rule", "address"]).out;
    assert!(
        long.contains("address/login:{203.0.113.77}:address"),
        "{long}"
    );
}

#[tokio::test]
async fn explain_answers_in_words_in_json_and_by_its_exit_code() {
    let redis = redis();
    attacked(&redis).await;
    for (words, code) in [
        (&["--user", "alice", "--address", HOME][..], 0),
        (&[HOME, "--user", "alice"], 0),
        (&["--user", "alice"], 0),
        (&[GUESSER], 0),
        (&["192.0.2.0/24"], 0),
        (&[HOME], 5),
        (&["--user", "carol"], 5),
        (&["198.51.100.9"], 5),
    ] {
        let explained = json(&redis, &[&["explain"], words].concat(), code);
        assert_eq!(explained["refused"], code == 0, "{words:?}");
        assert!(explained["limits"].is_array() && explained["version"] == 0);
    }
    let text = run(&redis, &["explain", HOME]).out;
    assert!(
        text.starts_with("192.0.2.1 is not refused, but 2 users there are."),
        "{text}"
    );
    let text = run(&redis, &["explain", "--user", "alice", "--address", HOME]).out;
    assert!(
        text.contains("5 of 5 failures within 1 day; blocked for another"),
        "{text}"
    );
    assert_eq!(text.matches("  failed").count(), 5, "{text}");
    let error = run(&redis, &["explain", "alice@192.0.2.1"])
        .ends_with(2)
        .error;
    assert!(error.contains("--user alice@192.0.2.1"), "{error}");
}

#[tokio::test]
async fn known_addresses_and_the_busiest_are_shown() {
    let redis = redis();
    json(&redis, &["known", "alice"], 5);
    json(&redis, &["top"], 5);
    let hasher = UserHasher::new("a secret of sixteen bytes").unwrap();
    let limiter = app(&redis).await.with_insight(Insight::new(hasher));
    let limiter = limiter.live().await.unwrap();
    attempt(&limiter, ip(HOME), "alice", Outcome::Success)
        .await
        .unwrap();
    fail(&limiter, ip(GUESSER), "alice", 3).await;
    limiter.all_settled().await.unwrap();
    assert_eq!(
        json(&redis, &["known", "alice"], 0)["addresses"],
        serde_json::json!([HOME])
    );
    assert_eq!(run(&redis, &["known", "alice"]).out, format!("{HOME}\n"));
    // Instances report themselves every few seconds.
    eventually(|| run(&redis, &["top"]).code == 0).await;
    let top = json(&redis, &["top", "--count", "1"], 0);
    assert_eq!(top["addresses"][0]["id"], GUESSER);
    let text = run(&redis, &["top"]).out;
    assert!(
        text.contains("FAILURES") && text.contains("alice"),
        "{text}"
    );
}
