//! The console with 10,000 blocks, and with 1,000 events a second.

use std::time::Duration;

use serde_json::json;
use tower_login_rate_limit::{Limit, Outcome, Period, Policy};

use crate::{
    console::{OPERATOR, Site},
    trace::Task,
    webdriver::Browser,
};

const BLOCKS: u32 = 10_000;

/// Notes the streams that the page opens, and what they receive, from the next document on.
async fn watch_streams(browser: &Browser) {
    let watch = "window.sources = []; window.received = {ticks: 0, events: 0}; const Real = EventSource; \
                 window.EventSource = class extends Real { constructor(url) { super(url); window.sources.push(this); \
                   this.addEventListener('tick', (message) => { const {events, omitted} = JSON.parse(message.data); \
                     window.received.ticks += 1; window.received.events += events.length + omitted; }); } }";
    let evaluate = "Page.addScriptToEvaluateOnNewDocument";
    browser.devtools(evaluate, json!({"source": watch})).await;
    browser.open("about:blank").await;
}

/// The ticks and the events that the page has received.
async fn received(browser: &Browser) -> (u64, u64) {
    let received = browser.run("return window.received").await;
    let number = |name: &str| received[name].as_u64().expect("a number");
    (number("ticks"), number("events"))
}

/// What the pages have done in each window of the trace. No task of theirs computes for more than 50 ms. A task takes
/// longer while other programs compute: this is printed, and not asserted.
async fn are_responsive(browser: &Browser, site: &Site, windows: &[&str]) {
    let seen = browser.windows(&site.url).await;
    let names: Vec<_> = seen.iter().map(|(name, _)| &**name).collect();
    assert_eq!(names, windows);
    for (name, tasks) in &seen {
        let by = |key: fn(&Task) -> f64| {
            let longest = tasks.iter().max_by(|a, b| key(a).total_cmp(&key(b)));
            longest.unwrap_or_else(|| panic!("{name}: no page is in the trace"))
        };
        let (busiest, longest) = (by(|task| task.cpu), by(|task| task.wall));
        let (n, sum) = (tasks.len(), tasks.iter().map(|task| task.cpu).sum::<f64>());
        eprintln!(
            "{name}: {n} tasks that compute {sum:.0} ms\n  the busiest: {busiest}\n  the longest: {longest}"
        );
        assert!(busiest.cpu <= 50.0, "{name}: {busiest}");
    }
}

/// A tab that was asleep receives the ticks of minutes at once.
#[tokio::test]
#[ignore = "needs chromedriver: use ./tests/run.sh, or --ignored"]
async fn a_burst_of_ticks_is_one_draw_of_bounded_size() {
    let site = Site::start().await;
    let browser = site.browser(OPERATOR).await;
    // The page's own streams, to send what a server would.
    watch_streams(&browser).await;
    site.page(&browser, "events").await;
    browser.page_reads("Live").await;
    let one = "const tick = (n) => window.sources.at(-1).dispatchEvent(new MessageEvent('tick', {data: JSON.stringify({\
               minute: null, omitted: 0, events: Array.from({length: n}, (_, i) => ({at: new Date().toISOString(), \
               event: 'settled', outcome: 'failure', address: '192.0.2.1', user: 'u' + i}))})}));";
    browser.run(&format!("{one} tick(50)")).await;
    browser.page_reads("50 shown").await;

    // What is drawn between two frames: rows that are made, and events that are new.
    let watch = "window.drawn = []; let rows = 0, newest = 50, before = 50; \
        new MutationObserver((records) => { for (const record of records) for (const node of record.addedNodes) \
          if (node.matches?.('tr[data-id]')) { rows += 1; newest = Math.max(newest, Number(node.dataset.id)); } \
        }).observe(document.querySelector('main'), {childList: true, subtree: true}); \
        const frame = () => { window.drawn.push([rows, newest - before]); rows = 0; before = newest; requestAnimationFrame(frame); }; \
        requestAnimationFrame(frame);";
    browser
        .run(&format!(
            "{one} {watch} for (let i = 0; i < 100; i++) tick(50)"
        ))
        .await;
    browser
        .page_reads("100 shown, 4,950 left out in the busiest seconds")
        .await;
    let drawn = browser.run("return window.drawn").await;
    let drawn: Vec<(u64, u64)> = serde_json::from_value(drawn).expect("pairs");
    let most = "return Math.ceil(document.querySelector('.view').clientHeight / 36) + 8";
    let most = browser.run(most).await.as_u64().expect("a number");
    assert!(most < 60, "{most}");
    let rows = drawn.iter().map(|(rows, _)| *rows).max();
    let events = drawn.iter().map(|(_, events)| *events).max();
    assert_eq!((rows, events), (Some(most), Some(50)));
    let held = browser.run("return document.querySelectorAll('tr[data-id]').length");
    assert_eq!(held.await, most);
}

/// A site with 10,000 blocks, of Alice at the addresses [`address`].
async fn site_with_blocks() -> Site {
    let day = Period::days(1);
    let one = Limit::attempts(1).within(day).blocked_for(day);
    let policy = Policy::default().with_user_address_limit(one).unwrap();
    let site = Site::start_with(policy).await;
    let seeding = (0..16).map(|part| {
        let limiter = site.limiter.clone();
        tokio::spawn(async move {
            for i in (part..BLOCKS).step_by(16) {
                let attempt = limiter.reserve((address(i), "alice")).await;
                attempt.unwrap().settle(Outcome::Failure).await.unwrap();
            }
        })
    });
    for seeded in seeding.collect::<Vec<_>>() {
        seeded.await.unwrap();
    }
    site
}

fn address(i: u32) -> std::net::IpAddr {
    std::net::Ipv4Addr::from_bits(0x0A00_0000 + i).into()
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
#[ignore = "needs chromedriver: use ./tests/run.sh, or --ignored"]
async fn ten_thousand_blocks_are_listed() {
    let site = site_with_blocks().await;
    let browser = site
        .log_in_to_console(Browser::start_traced().await, OPERATOR)
        .await;
    let is_painted = "return performance.getEntriesByName('first-contentful-paint').length === 1";
    let paint = "return performance.getEntriesByName('first-contentful-paint')[0].startTime";

    // A page of the same server that shows a form and nothing else, for comparison.
    browser.open(&format!("{}/console/login", site.url)).await;
    browser.page_reads("Log in with the token").await;
    browser.wait_for(is_painted).await;
    let form = browser.run(paint).await;
    browser.mark("loading").await;
    browser.open("about:blank").await;
    site.page(&browser, "blocks").await;
    browser.page_reads("10,000 blocks").await;
    browser.wait_for(is_painted).await;
    let page = browser.run(paint).await;
    eprintln!("first contentful paint: {page} ms, of the login page {form} ms");

    // What the first paint waits for: the page, a style sheet, the theme. Nothing of it grows with the blocks.
    let files = "return performance.getEntriesByType('resource')\
                 .map((one) => [new URL(one.name).pathname, one.renderBlockingStatus === 'blocking', one.decodedBodySize])";
    let files: Vec<(String, bool, u64)> = serde_json::from_value(browser.run(files).await).unwrap();
    let blocking: Vec<_> = files.iter().filter(|(_, blocks, _)| *blocks).collect();
    let names = blocking
        .iter()
        .map(|(name, ..)| &**name)
        .collect::<Vec<_>>();
    assert_eq!(
        names,
        ["/console/assets/theme.js", "/console/assets/console.css"]
    );
    let bytes: u64 = blocking.iter().map(|(.., bytes)| bytes).sum();
    assert!(
        bytes < 40_000,
        "{bytes} bytes are loaded before the first paint"
    );
    // What the first rows wait for: the modules, three small answers, and a page of 200 blocks.
    let list = "/console/api/v1/admin/blocks";
    let first = files
        .iter()
        .position(|(name, ..)| name == list)
        .expect("a list");
    let before: Vec<_> = files[..=first].iter().collect();
    let bytes: u64 = before.iter().map(|(.., bytes)| bytes).sum();
    eprintln!(
        "before the first rows: {} requests, {bytes} bytes",
        before.len()
    );
    assert!(
        before.len() <= 30 && bytes < 250_000,
        "{bytes} bytes: {before:?}"
    );
    let pages = files.iter().filter(|(name, ..)| name == list).count();
    assert_eq!(pages, 11, "200 blocks, and then 1,000 at a time: {files:?}");

    // Only rows in view are in the page, while it is scrolled too.
    let nodes = "return [document.querySelectorAll('tr[data-id]').length, document.querySelectorAll('*').length]";
    let nodes: (u64, u64) = serde_json::from_value(browser.run(nodes).await).unwrap();
    assert!(nodes.0 < 60 && nodes.1 < 1_500, "{nodes:?}");
    let scroll = "const view = document.querySelector('.view'); let at = 0; window.rows = 0; window.steps = 0; \
                  new MutationObserver(() => { window.rows = Math.max(window.rows, document.querySelectorAll('tr[data-id]').length) }) \
                    .observe(view, {childList: true, subtree: true}); \
                  const step = () => { at += 4000; view.scrollTop = at % view.scrollHeight; window.steps += 1; if (window.steps < 200) requestAnimationFrame(step) }; \
                  requestAnimationFrame(step)";
    browser.mark("scrolling").await;
    browser.run(scroll).await;
    browser.wait_for("return window.steps === 200").await;
    let rows = browser.run("return window.rows").await;
    assert!(rows.as_u64().is_some_and(|rows| rows < 60), "{rows}");
    browser.mark("sorting").await;
    for column in 0..3 {
        let sort = format!("document.querySelectorAll('.sort')[{column}].click()");
        browser.run(&sort).await;
        browser.run("return new Promise((done) => requestAnimationFrame(() => requestAnimationFrame(() => done(1))))").await;
    }
    are_responsive(&browser, &site, &["loading", "scrolling", "sorting"]).await;
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
#[ignore = "needs chromedriver: use ./tests/run.sh, or --ignored"]
async fn a_thousand_events_a_second_are_shown() {
    let site = site_with_blocks().await;
    let browser = site
        .log_in_to_console(Browser::start_traced().await, OPERATOR)
        .await;
    watch_streams(&browser).await;
    site.page(&browser, "overview").await;
    browser.page_reads("Live").await;
    browser.wait_for("return window.received.ticks > 0").await;

    let mut events = site.feed.subscribe();
    let before = received(&browser).await;
    let attack = Attack::start(&site);
    browser.wait_for("return window.received.ticks > 2").await;
    let begun = received(&browser).await;
    let pages = ["overview", "events", "blocks"];
    for page in pages {
        browser.mark(page).await;
        site.page(&browser, page).await;
        browser.page_reads("Live").await;
        let (shown, _) = received(&browser).await;
        let later = format!("return window.received.ticks >= {}", shown + 8);
        browser.wait_for(&later).await;
    }
    browser.mark("checking").await;
    let done = received(&browser).await;
    site.page(&browser, "events").await;
    browser.page_reads("left out in the busiest seconds").await;
    let attempts = attack.stop().await;

    // A tick is a second or longer, so that its events are those of a second at most.
    let (ticks, seen) = (done.0 - begun.0, done.1 - begun.1);
    eprintln!("{seen} events in {ticks} ticks");
    assert!(seen >= 1_000 * ticks, "{seen} events in {ticks} ticks");
    // The page has received each event, shown or counted.
    assert!(site.limiter.observed().await);
    let mut sent = 0;
    while let Ok(Some(_)) = tokio::time::timeout(Duration::from_millis(100), events.recv()).await {
        sent += 1;
    }
    sent += events.missed();
    assert!(sent >= attempts, "{sent} events of {attempts} attempts");
    let all = format!("return window.received.events === {}", before.1 + sent);
    browser.wait_for(&all).await;

    // For comparison, a page under the same load that does nothing: its long tasks are the machine's.
    let attack = Attack::start(&site);
    browser.open(&format!("{}/console/login", site.url)).await;
    browser.page_reads("Log in with the token").await;
    browser.mark("control").await;
    browser
        .run("setInterval(() => document.title += '.', 20)")
        .await;
    tokio::time::sleep(Duration::from_secs(5)).await;
    attack.stop().await;
    let windows = [&pages[..], &["checking", "control"]].concat();
    are_responsive(&browser, &site, &windows).await;
}

/// A thousand attempts a second and some more, each of them an event.
struct Attack {
    stop: tokio::sync::oneshot::Sender<()>,
    attempts: tokio::task::JoinHandle<u32>,
}

impl Attack {
    fn start(site: &Site) -> Self {
        let limiter = site.limiter.clone();
        let (stop, mut stopped) = tokio::sync::oneshot::channel();
        let attempts = tokio::spawn(async move {
            // A turn that was late is made up for.
            let mut turns = tokio::time::interval(Duration::from_millis(10));
            let mut attempts = 0;
            while stopped.try_recv().is_err() {
                turns.tick().await;
                for _ in 0..12 {
                    let refused = limiter.reserve((address(attempts % BLOCKS), "alice")).await;
                    assert!(refused.is_err(), "attempt {attempts} is admitted");
                    attempts += 1;
                }
            }
            attempts
        });
        Self { stop, attempts }
    }

    /// How many attempts were made.
    async fn stop(self) -> u64 {
        self.stop.send(()).expect("it attempts");
        self.attempts.await.expect("all are refused").into()
    }
}
