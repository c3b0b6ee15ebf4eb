//! The demo page and the console in a real browser.
//!
//! Ignored by default, so that `cargo test` needs no browser; it lists the test as ignored, with the
//! reason. `./tests/run.sh` runs it and fails without a browser. By hand: `cargo test`, which builds the
//! examples, then `cargo test --test browser -- --ignored`.
#![allow(unreachable_pub)] // nothing of a test is reached from outside

#[path = "../it/support/client.rs"]
mod client;
mod console;
mod console_load;
mod console_pages;
mod console_security;
#[path = "../it/support/example.rs"]
#[allow(dead_code)] // tests/it uses the rest
mod example;
#[path = "../it/support/redis_server.rs"]
#[allow(dead_code)] // tests/it uses the rest
mod redis_server;
mod trace;
mod webdriver;

use std::time::Duration;

use example::Example;
use webdriver::Browser;

/// Its own policy lets the browser apply its style, and a form without scripts leads to it.
#[tokio::test]
#[ignore = "needs chromedriver: use ./tests/run.sh, or --ignored"]
async fn a_person_who_is_refused_sees_a_page_with_style() {
    let example = Example::start("form", &[]);
    let browser = Browser::start().await;
    browser.open(&example.url).await;
    for left in (1..5).rev() {
        browser.log_in("user@example.com", "guess").await;
        browser.page_reads(&format!("Attempts left: {left}.")).await;
    }
    browser.log_in("user@example.com", "guess").await;
    browser.page_reads("blocked for 1 day").await;
    // By another name of the same account, so that the handler refuses and not the layer.
    for email in ["user@example.com", "user+other@example.com"] {
        browser.open(&example.url).await;
        browser.log_in(email, "correct-horse").await;
        let page = browser.page_reads("Too many failed attempts").await;
        assert!(page.contains("in 1 day."), "{page}");
        let radius =
            browser.run("return getComputedStyle(document.querySelector('main')).borderRadius");
        assert_eq!(radius.await, "16px");
        let language = browser.run("return document.documentElement.lang").await;
        assert_eq!(language, "en");
    }
    counts_down(&browser).await;
    is_accessible(&browser, "page").await;
}

/// The time that is left runs, by style alone.
async fn counts_down(browser: &Browser) {
    let left = async || {
        // Each counter is a text of its own.
        let drawn = browser.drawn_texts().await.concat();
        let is_clock = |text: &&[u8]| {
            let is_digit = |(i, b): (usize, &u8)| match i % 3 {
                2 => *b == b':',
                _ => b.is_ascii_digit(),
            };
            text.iter().enumerate().all(is_digit)
        };
        let clock = drawn.as_bytes().windows(8).find(is_clock);
        clock.map(|text| String::from_utf8_lossy(text).into_owned())
    };
    let first = left().await.expect("a countdown");
    assert!(
        first == "24:00:00" || first.starts_with("23:59:"),
        "{first}"
    );
    let mut later = first.clone();
    while later == first {
        tokio::time::sleep(Duration::from_millis(100)).await;
        later = left().await.expect("a countdown");
    }
    assert!(
        later.starts_with("23:59:") && later < first,
        "{first} {later}"
    );
    let scripts = browser.run("return document.scripts.length").await;
    assert_eq!(scripts, 0);
    // The moment is one that the browser understands, a day from now.
    let hours = "return (new Date(document.querySelector('time').dateTime) - new Date()) / 3600000";
    let hours = browser.run(hours).await.as_f64().expect("a time");
    assert!((23.9..=24.1).contains(&hours), "{hours}");
}

/// In both schemes, on a desk and on a phone, with a picture of each below target/.
async fn is_accessible(browser: &Browser, name: &str) {
    let directory = std::path::Path::new(env!("CARGO_TARGET_TMPDIR"));
    for scheme in ["light", "dark"] {
        for width in [1024, 360] {
            browser.resize(width, 640, scheme).await;
            let violations = browser.accessibility_violations().await;
            assert_eq!(violations, [""; 0], "{scheme}, {width} pixels");
            let overflow = "return document.documentElement.scrollWidth - innerWidth";
            assert_eq!(browser.run(overflow).await, 0, "{width} pixels");
            let picture = directory.join(format!("{name}-{scheme}-{width}.png"));
            std::fs::write(picture, browser.screenshot().await).unwrap();
        }
    }
}

#[tokio::test]
#[ignore = "needs chromedriver: use ./tests/run.sh, or --ignored"]
async fn a_person_sees_what_is_left_and_how_long_it_takes() {
    let example = Example::start("axum", &[]);
    let browser = Browser::start().await;
    browser.open(&example.url).await;

    browser.type_into("username", "user").await;
    browser.type_into("password", "correct-horse").await;
    browser.click("submit").await;
    browser.reads("Welcome, user.").await;

    browser.type_into("username", "mfa-user").await;
    browser.type_into("password", "battery-staple").await;
    browser.click("submit").await;
    browser.reads("Now the code").await;
    assert!(browser.shows("code").await && !browser.shows("password").await);
    browser.type_into("code", "123456").await;
    browser.click("submit").await;
    browser.reads("Welcome, mfa-user.").await;

    for left in (0..5).rev() {
        browser.type_into("username", "user").await;
        browser.type_into("password", "guess").await;
        browser.click("submit").await;
        browser.reads(&format!("Attempts left: {left}.")).await;
    }
    browser.click("submit").await;
    let first = browser.reads("Time left: ").await;
    assert!(first.contains("Too many failed attempts."), "{first}");
    assert_eq!(browser.text("left").await, "0");
    let before = browser.screenshot().await;

    // The countdown runs.
    let mut later = first.clone();
    while later == first {
        tokio::time::sleep(Duration::from_millis(100)).await;
        later = browser.reads("Time left: ").await;
    }
    let clock = |text: &str| text.split("Time left: ").nth(1).map(str::to_owned);
    assert!(clock(&later).unwrap().starts_with("23:59:"), "{later}");
    let after = browser.screenshot().await;

    // Both screenshots are images, and the countdown makes them differ.
    let directory = std::path::Path::new(env!("CARGO_TARGET_TMPDIR"));
    std::fs::write(directory.join("blocked.png"), &after).unwrap();
    for picture in [&before, &after] {
        assert!(picture.starts_with(b"\x89PNG\r\n") && picture.len() > 5_000);
    }
    assert_ne!(before, after);
}
