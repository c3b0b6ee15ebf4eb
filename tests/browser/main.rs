//! The demo page in a real browser.
//!
//! Ignored by default, so that `cargo test` needs no browser; it lists the test as ignored, with the
//! reason. `./tests/run.sh` runs it and fails without a browser. By hand: `cargo test`, which builds the
//! examples, then `cargo test --test browser -- --ignored`.
#![allow(unreachable_pub)] // nothing of a test is reached from outside

#[path = "../it/support/client.rs"]
mod client;
#[path = "../it/support/example.rs"]
#[allow(dead_code)] // tests/it uses the rest
mod example;
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
    let directory = std::path::Path::new(env!("CARGO_TARGET_TMPDIR"));
    std::fs::write(directory.join("page.png"), browser.screenshot().await).unwrap();
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
