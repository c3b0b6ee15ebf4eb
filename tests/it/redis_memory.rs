//! What a counter takes in Redis, measured, against what the documentation says.

use std::{fs, sync::Arc, time::Duration};

use tower_login_rate_limit::{
    Limit, Period, Token,
    clock::{Clock, ManualClock},
    store::{Key, Slot, Store},
};

use crate::support::{MINUTE, RedisServer, START};

const FAILURES: [u32; 5] = [1, 5, 25, 100, 10_000];

fn limits() -> [(&'static str, Limit); 4] {
    let words = || Limit::attempts(10_000).within(Period::days(60));
    [
        ("sliding window", words().build().unwrap()),
        ("back-off", Limit::default_backoff().build().unwrap()),
        ("token bucket", words().as_token_bucket().build().unwrap()),
        (
            "sliding-window counter",
            words().as_sliding_counter().build().unwrap(),
        ),
    ]
}

/// The numbers of a line of the table.
fn documented(algorithm: &str) -> Vec<u64> {
    let page = concat!(env!("CARGO_MANIFEST_DIR"), "/docs/algorithms.md");
    let page = fs::read_to_string(page).expect("the page");
    let table = page
        .split("## Memory in Redis")
        .nth(1)
        .expect("the section");
    let line = table
        .lines()
        .find(|line| line.starts_with(&format!("| {algorithm} |")));
    let cells = line.expect("a line").split('|').skip(2);
    let number = |cell: &str| cell.trim().replace(',', "").parse().ok();
    cells.filter_map(number).collect()
}

/// The key of a user at an IPv4 address, each failure at a time of its own.
async fn measured(redis: &RedisServer, limit: &Limit) -> Vec<u64> {
    let clock = Arc::new(ManualClock::at(START));
    let store = redis.builder().with_clock(Arc::clone(&clock));
    let store = store.connect(redis.url()).await.unwrap();
    let address = "192.0.2.1".parse().unwrap();
    let key = Key::of_address(address, "user-address").and_subject(&b"user"[..]);
    let slots = [Slot::new(key, limit)];
    let mut sizes = Vec::new();
    for failures in 1..=10_000 {
        let reserved = store.reserve(Token::new(), Duration::ZERO, &slots);
        assert!(reserved.await.unwrap().admitted());
        clock.set(clock.now() + 5 * MINUTE);
        if FAILURES.contains(&failures) {
            let (key, _) = redis.keys().remove(0);
            sizes.push(redis.command(&["MEMORY", "USAGE", &key, "SAMPLES", "0"]));
        }
    }
    redis.flush();
    sizes
}

#[tokio::test]
async fn counters_take_as_much_memory_as_documented() {
    let mut redis = RedisServer::start();
    redis.keys_may_live(None);
    for (algorithm, limit) in limits() {
        let measured = measured(&redis, &limit).await;
        let documented = documented(algorithm);
        // Servers and allocators differ: Redis 6.2 with the allocator of libc by 15 percent.
        let alike = |(a, b): (&u64, &u64)| a.abs_diff(*b) * 5 <= *b;
        assert!(
            measured.len() == documented.len() && measured.iter().zip(&documented).all(alike),
            "{algorithm}: {measured:?} measured, {documented:?} documented"
        );
    }
}
