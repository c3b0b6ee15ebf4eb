//! The example with the console: alive, and with something to see.

use std::time::Duration;

use serde_json::Value;
use tokio::time::sleep;

use crate::support::{client::client, example::Example};

const TOKEN: &str = "3f786850e387550fdab836ed7e6dc881";

#[tokio::test]
async fn the_console_example_shows_a_login_under_attack() {
    let example = Example::start("console", &[("CONSOLE_TOKEN", TOKEN)]);
    let get = async |path: &str| {
        let request = client().get(format!("{}{path}", example.url));
        request.bearer_auth(TOKEN).send().await.unwrap()
    };
    let read = async |path: &str| -> Value { get(path).await.json().await.unwrap() };
    let page = get("/").await;
    assert_eq!(page.status(), 200);
    assert!(page.text().await.unwrap().contains("<html"));

    let counts = read("/v1/admin/block-counts").await;
    let blocks = |rule: &str| {
        let rules = counts["rules"].as_array().unwrap();
        let found = rules.iter().find(|count| count["rule"] == rule);
        found
            .and_then(|count| count["blocks"].as_u64())
            .unwrap_or(0)
    };
    for rule in ["address", "user-address", "account"] {
        assert!(blocks(rule) > 0, "{rule}: {counts}");
    }
    let activity = read("/v1/admin/activity").await;
    let minutes = activity["minutes"].as_array().unwrap();
    let lively = |minute: &&Value| minute["successes"].as_u64() > Some(10);
    assert!(minutes.iter().filter(lively).count() >= 55, "{activity}");
    // They report themselves every five seconds, by a clock that was an hour behind until now.
    while read("/v1/admin/instances").await["instances"]
        .as_array()
        .map(Vec::len)
        != Some(3)
    {
        sleep(Duration::from_millis(50)).await;
    }
    let ruleset = read("/v1/admin/ruleset").await;
    assert_eq!(ruleset["version"], 4);
    let wrong = read("/v1/admin/wrong-blocks").await;
    assert!(!wrong["rows"].as_array().unwrap().is_empty(), "{wrong}");
    let busiest = read("/v1/admin/busiest?count=5").await;
    assert_eq!(
        busiest["addresses"].as_array().unwrap().len(),
        5,
        "{busiest}"
    );

    // It goes on.
    let newest = async || -> Value { read("/v1/admin/events?limit=1").await["events"][0].clone() };
    let before = newest().await;
    while newest().await == before {
        sleep(Duration::from_millis(50)).await;
    }
}
