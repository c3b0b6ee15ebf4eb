//! The stream of events.

use std::{
    io::{BufRead, BufReader},
    process::Stdio,
};

use redis::Value;
use serde_json::json;

use super::{GUESSER, HOME, attacked, program, redis, run};
use crate::support::{RedisServer, fail, ip};

fn add(redis: &RedisServer, event: &serde_json::Value) {
    let _: Value = redis.command(&["XADD", "login:events", "*", "e", &event.to_string()]);
}

#[tokio::test]
async fn events_are_filtered_and_each_line_is_one_json_value() {
    let redis = redis();
    assert_eq!(run(&redis, &["events", "--json"]).ends_with(5).out, "");
    attacked(&redis).await;
    let lines = |words: &[&str]| {
        let words = [&["events", "--json", "--limit", "100000"], words].concat();
        run(&redis, &words).events()
    };
    assert_eq!(lines(&["--event", "block_began"]).len(), 4);
    assert_eq!(
        lines(&["--event", "block_began", "--event", "settled"]).len(),
        44
    );
    assert_eq!(lines(&["--address", HOME, "--event", "settled"]).len(), 10);
    assert_eq!(lines(&["--user", "Alice", "--event", "settled"]).len(), 10);
    assert_eq!(lines(&["--rule", "address", "--address", GUESSER]).len(), 1);
    let newest = ["events", "--since", "2000-01-01T00:00:00Z", "--limit", "3"];
    assert_eq!(run(&redis, &newest).ends_with(0).out.lines().count(), 3);
    run(&redis, &["events", "--event", "store_down"]).ends_with(5);
    run(&redis, &["events", "--since", "yesterday"]).ends_with(2);
    let text = run(&redis, &["events", "--event", "block_began"]).out;
    assert!(text.contains("user-address: 5 of 5, for 1 day"), "{text}");
}

#[tokio::test]
async fn a_name_of_markup_escapes_and_line_breaks_stays_on_its_line() {
    let redis = redis();
    let name = "<b onclick=x>\n\u{1b}[31mroot\u{202e}\r";
    let event = json!({
        "at": "2026-11-18T07:00:00.000Z", "event": "settled", "outcome": "failure", "address": HOME, "user": name,
    });
    add(&redis, &event);
    let reason = json!({
        "at": "2026-11-18T07:00:00.000Z", "event": "administered", "action": "unblock", "author": "a\u{1b}]0;x\u{7}",
        "reason": "r\nforged",
    });
    add(&redis, &reason);
    let ran = run(&redis, &["events"]).ends_with(0);
    assert_eq!(ran.out.lines().count(), 2, "{ran:?}");
    let is_unsafe = |c: char| c.is_control() && c != '\n' || c == '\u{202e}';
    assert!(!ran.out.contains(is_unsafe), "{ran:?}");
    assert!(
        ran.out.contains("<b onclick=x>\\u{a}\\u{1b}[31mroot"),
        "{ran:?}"
    );
    // A parser reads the name as it was.
    let line = run(&redis, &["events", "--event", "settled", "--json"]).out;
    let event: serde_json::Value = serde_json::from_str(&line).unwrap();
    assert_eq!(event["user"], name);
}

#[tokio::test]
async fn following_shows_what_happens_from_now_on_and_ends_with_an_interrupt() {
    let redis = redis();
    let limiter = attacked(&redis).await;
    let mut command = program();
    command.env("REDIS_URL", redis.url());
    let command = command.args(["events", "--follow", "--json"]);
    let mut process = command.stdout(Stdio::piped()).spawn().unwrap();
    let mut lines = BufReader::new(process.stdout.take().unwrap()).lines();
    let writer = tokio::spawn(async move {
        // It has subscribed at some time, and shows what comes after that.
        for i in 0.. {
            fail(
                &limiter,
                ip(&format!("192.0.2.{}", 100 + i % 100)),
                &format!("u{i}"),
                1,
            )
            .await;
            limiter.observed().await;
            tokio::time::sleep(std::time::Duration::from_millis(50)).await;
        }
    });
    let first = tokio::task::spawn_blocking(move || lines.next())
        .await
        .unwrap();
    let first: serde_json::Value = serde_json::from_str(&first.unwrap().unwrap()).unwrap();
    assert!(
        first["user"].as_str().unwrap().starts_with('u'),
        "nothing of before: {first}"
    );
    writer.abort();
    let pid = rustix::process::Pid::from_child(&process);
    rustix::process::kill_process(pid, rustix::process::Signal::INT).unwrap();
    assert_eq!(process.wait().unwrap().code(), Some(0));
}
