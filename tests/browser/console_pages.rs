//! Every page of the console: accessible, usable by keyboard alone, and as it looks.

use std::{path::PathBuf, time::Duration};

use serde_json::{Value, json};
use tower_login_rate_limit::{Outcome, event::Observe};

use crate::{
    console::{OPERATOR, Site, fail},
    webdriver::Browser,
};

/// The pages, and a text by which each is there.
const PAGES: [(&str, &str, &str); 7] = [
    ("overview", "overview", "203.0.113"),
    ("blocks", "blocks", "anna.berg"),
    (
        "subject",
        "subject?address=203.0.113.9&user=anna.berg",
        "What counts",
    ),
    ("rules", "rules", "office"),
    ("policy", "policy", "user-address"),
    ("events", "events", "Attack signal"),
    ("why", "blocks", "anna.berg"),
];

/// A site after a busy hour.
async fn busy_site() -> Site {
    let site = Site::start().await;
    let operate = async |method: &str, path: &str, body: Value| {
        let client = crate::client::client();
        let url = format!("{}/api/v1/admin/{path}", site.url);
        let request = match method {
            "PUT" => client.put(url),
            _ => client.post(url),
        };
        let response = request
            .bearer_auth(OPERATOR)
            .json(&body)
            .send()
            .await
            .unwrap();
        assert!(
            response.status().is_success(),
            "{path}: {}",
            response.text().await.unwrap()
        );
    };
    let rule = json!({"action": "allow", "network": "198.51.100.0/24", "reason": "head office, 400 people behind one address"});
    operate("PUT", "access-rules/office", rule).await;
    let rule =
        json!({"action": "deny", "user_agent": "zgrab", "reason": "a scanner, never a person"});
    operate("PUT", "access-rules/scanner", rule).await;
    let rule = json!({"action": "deny", "network": "192.0.2.0/25", "expires": "2099-01-01T00:00:00Z", "reason": "stuffing since noon, ticket 4711"});
    operate("PUT", "access-rules/botnet", rule).await;

    record_past(&site);
    let users = [
        "anna.berg",
        "j.okafor",
        "maria.silva",
        "tom",
        "l.nguyen",
        "kim.lee",
    ];
    for (i, user) in users.iter().enumerate() {
        fail(&site.limiter, &format!("203.0.113.{}", 9 + 7 * i), user, 5).await;
        fail(
            &site.limiter,
            &format!("203.0.113.{}", 9 + 7 * i),
            user,
            8 * (6 - i),
        )
        .await;
        fail(&site.limiter, "203.0.113.9", user, 2).await;
    }
    for i in 0..30 {
        fail(&site.limiter, "203.0.113.77", &format!("user{i}"), 1).await;
    }
    for i in 0..30 {
        fail(&site.other, &format!("2001:db8:{i:x}00::1"), "admin", 5).await;
    }
    for i in 0..24 {
        let user = users[i % users.len()];
        fail(&site.limiter, &format!("203.0.113.{}", 9 + i), user, 1).await;
        let home = format!("198.51.{}.7", 101 + i).parse().unwrap();
        let attempt = site.limiter.reserve((home, "olga")).await.unwrap();
        attempt.settle(Outcome::Success).await.unwrap();
    }
    let note = json!({"address": "203.0.113.9", "user": "anna.berg", "note": "She phoned: new phone, old password. Ticket 4711."});
    operate("POST", "notes", note).await;
    // Instances report the version that they enforce every few seconds.
    for _ in 0..300 {
        let status = crate::client::client().get(format!("{}/api/v1/admin/status", site.url));
        let status = status.bearer_auth(OPERATOR).send().await.unwrap();
        let status: Value = status.json().await.unwrap();
        if status["up_to_date"] == status["instances"] {
            break;
        }
        tokio::time::sleep(Duration::from_millis(100)).await;
    }
    site
}

/// An hour of attempts with an attack in it, as events have recorded them.
fn record_past(site: &Site) {
    let now = std::time::SystemTime::now();
    let mut seed = 7_u32;
    let mut random = |n: u32| {
        seed = seed.wrapping_mul(1_664_525).wrapping_add(1_013_904_223);
        (seed >> 16) % n
    };
    let names = [
        "sofia",
        "pierre.dubois",
        "ahmed.hassan",
        "y.tanaka",
        "olga",
        "marco",
    ];
    for minute in (1..110_u32).rev() {
        let at = now - Duration::from_secs(60 * u64::from(minute));
        let strength = match minute {
            1..=26 => (27 - minute).min(12) + random(4),
            _ => 0,
        };
        let counts = [
            ("success", 34 + random(9)),
            ("failure", 5 + random(4) + 12 * strength),
            ("refused", random(2) + strength * strength),
            ("block_began", strength + u32::from(random(12) == 0)),
        ];
        for (kind, count) in counts {
            for i in 0..count {
                let mut event = match kind {
                    "refused" => {
                        json!({"event": "refused", "rule": "user-address", "reason": "blocked", "usage": 5, "limit": 5, "lifts_in_ms": 80_000_000})
                    }
                    "block_began" => {
                        json!({"event": "block_began", "rule": "user-address", "counter": format!("{minute}-{i}"), "usage": 5, "limit": 5, "lifts_in_ms": 86_400_000})
                    }
                    outcome => json!({"event": "settled", "outcome": outcome}),
                };
                let millis = at
                    .duration_since(std::time::UNIX_EPOCH)
                    .unwrap()
                    .as_millis() as u64;
                event["at"] = json!(timestamp(millis));
                event["address"] = json!(format!("203.0.113.{}", random(60)));
                event["user"] = json!(names[random(6) as usize]);
                site.feed.observe(&serde_json::from_value(event).unwrap());
            }
        }
    }
}

/// RFC 3339 of milliseconds since 1970.
fn timestamp(millis: u64) -> String {
    let (days, rest) = (millis / 86_400_000, millis % 86_400_000);
    // The days of the civil calendar, after Howard Hinnant.
    let z = days + 719_468;
    let (era, day_of_era) = (z / 146_097, z % 146_097);
    let year_of_era =
        (day_of_era - day_of_era / 1_460 + day_of_era / 36_524 - day_of_era / 146_096) / 365;
    let day_of_year = day_of_era - (365 * year_of_era + year_of_era / 4 - year_of_era / 100);
    let month = (5 * day_of_year + 2) / 153;
    let day = day_of_year - (153 * month + 2) / 5 + 1;
    let month = if month < 10 { month + 3 } else { month - 9 };
    let year = year_of_era + era * 400 + u64::from(month <= 2);
    let (hour, minute, second) = (rest / 3_600_000, rest / 60_000 % 60, rest / 1_000 % 60);
    format!(
        "{year:04}-{month:02}-{day:02}T{hour:02}:{minute:02}:{second:02}.{:03}Z",
        rest % 1_000
    )
}

async fn open(site: &Site, browser: &Browser, (name, page, text): (&str, &str, &str)) {
    // A reload, so that nothing of the page before is seen.
    browser.open("about:blank").await;
    site.page(browser, page).await;
    browser.page_reads(text).await;
    browser.page_reads("Live").await;
    if name == "why" {
        browser.press("tr[data-id] .do button").await;
        browser.page_reads("attempts as a list").await;
        browser
            .wait_for("return document.getAnimations().length === 0")
            .await;
    }
    if name == "overview" {
        browser.wait_for("return document.querySelectorAll('.chart .bars rect').length > 5 && document.querySelectorAll('.ranking').length === 3").await;
    }
    if name == "policy" {
        browser.page_reads("enforce version").await;
    }
}

/// By axe-core, which finds nothing wrong: serious or not.
#[tokio::test]
#[ignore = "needs chromedriver and axe-core: use ./tests/run.sh, or --ignored"]
async fn every_page_is_accessible_light_and_dark() {
    let site = busy_site().await;
    let browser = site.browser(OPERATOR).await;
    for (width, theme) in SIZES {
        browser.resize(width, 860, theme).await;
        for page in PAGES {
            open(&site, &browser, page).await;
            is_accessible(&browser, &format!("{} at {width}, {theme}", page.0)).await;
        }
    }
}

/// A dialog: its name, its page, what opens it from the keyboard, one after the other, and a text in it.
const DIALOGS: [(&str, &str, &[&str], &str); 12] = [
    (
        "why",
        "blocks",
        &["tr[data-id] .do button"],
        "attempts as a list",
    ),
    ("block", "blocks", &["#block"], "Block by hand"),
    (
        "unblock",
        "blocks",
        &["tr[data-id] .do button:last-child"],
        "attempts are admitted again",
    ),
    (
        "unblock-many",
        "blocks",
        &["tr[data-id] input[type=checkbox]", "#unblock-selected"],
        "The failures of this block are cleared",
    ),
    (
        "unblock-subject",
        SUBJECT,
        &["#unblock"],
        "Lifts the blocks of exactly this subject",
    ),
    (
        "block-subject",
        SUBJECT,
        &[".page-actions button"],
        "Block by hand",
    ),
    (
        "new-rule",
        "rules",
        &["#new-rule"],
        "Names the rule in events",
    ),
    (
        "edit-rule",
        "rules",
        &["[aria-label='Edit office']"],
        "Change office",
    ),
    (
        "remove-rule",
        "rules",
        &["[aria-label='Remove office']"],
        "Remove office",
    ),
    (
        "add-limit",
        "policy",
        &[".page-actions button"],
        "Add to the draft",
    ),
    (
        "apply",
        "policy",
        &["[data-where='address.shadow']", "#apply"],
        "Apply the draft",
    ),
    (
        "roll-back",
        "policy",
        &["[aria-label='Roll back to version 1']"],
        "Writes its policy again",
    ),
];

const SUBJECT: &str = "subject?address=203.0.113.9&user=anna.berg";

const SIZES: [(u32, &str); 4] = [
    (1360, "light"),
    (1360, "dark"),
    (390, "light"),
    (390, "dark"),
];

async fn is_accessible(browser: &Browser, what: &str) {
    let is_still = "return [...document.querySelectorAll('dialog, .toast')].every((one) => one.getAnimations().length === 0)";
    browser.wait_for(is_still).await;
    let mut found = browser.accessibility_violations().await;
    // Contrast above a picture, for example.
    found.retain(|line| !line.contains("could not be decided"));
    assert!(found.is_empty(), "{what}: {found:#?}");
}

async fn is_enabled(browser: &Browser, selector: &str) {
    let selector = json!(selector);
    let script = format!("return document.querySelector({selector})?.disabled === false");
    browser.wait_for(&script).await;
}

#[tokio::test]
#[ignore = "needs chromedriver and axe-core: use ./tests/run.sh, or --ignored"]
async fn every_dialog_is_accessible_light_and_dark() {
    let site = busy_site().await;
    let browser = site.browser(OPERATOR).await;
    for (width, theme) in SIZES {
        browser.resize(width, 860, theme).await;
        for (name, page, opened_by, text) in DIALOGS {
            browser.open("about:blank").await;
            site.page(&browser, page).await;
            browser.page_reads("Live").await;
            for control in opened_by {
                is_enabled(&browser, control).await;
                browser.press(control).await;
            }
            browser.page_reads(text).await;
            browser
                .wait_for("return document.querySelectorAll('dialog:modal').length === 1")
                .await;
            is_accessible(&browser, &format!("{name} at {width}, {theme}")).await;
            draw(&browser, &format!("dialog-{name}-{theme}-{width}")).await;
        }
    }
    // The one that opens by itself.
    browser
        .run("return fetch('/console/logout', {method: 'POST'}).then(() => 1)")
        .await;
    site.page(&browser, "events").await;
    browser.page_reads("Your session has ended").await;
    for (width, theme) in SIZES {
        browser.resize(width, 860, theme).await;
        is_accessible(
            &browser,
            &format!("the end of a session at {width}, {theme}"),
        )
        .await;
        draw(&browser, &format!("dialog-ended-{theme}-{width}")).await;
    }
}

#[tokio::test]
#[ignore = "needs chromedriver and axe-core: use ./tests/run.sh, or --ignored"]
async fn the_login_is_accessible_light_and_dark_and_by_keyboard() {
    let site = Site::start().await;
    let browser = Browser::start().await;
    let login = format!("{}/console/login", site.url);
    let everywhere = async |name: &str| {
        for (width, theme) in SIZES {
            browser.resize(width, 860, theme).await;
            is_accessible(&browser, &format!("{name} at {width}, {theme}")).await;
            draw(&browser, &format!("{name}-{theme}-{width}")).await;
        }
    };
    browser.open(&login).await;
    browser.page_reads("Log in with the token").await;
    everywhere("login").await;

    // A guess, which the page says in words that a screen reader reads, with the focus where it is corrected.
    type_text(&browser, "guess").await;
    browser.keys(&[ENTER]).await;
    browser.wait_for("return document.querySelector('#message[role=alert]')?.textContent !== '' && document.activeElement.id === 'token'").await;
    everywhere("login-wrong").await;
    // From the field to the button and back.
    tab_to(&browser, "#submit").await;
    tab_to(&browser, "#token").await;

    // Too many: the page of the layer, without a trap.
    for _ in 1..10 {
        type_text(&browser, "guess").await;
        browser.keys(&[ENTER]).await;
        browser
            .wait_for("return document.readyState === 'complete' && document.getElementById('token')?.value === ''")
            .await;
    }
    type_text(&browser, "guess").await;
    browser.keys(&[ENTER]).await;
    browser.page_reads("Too many").await;
    everywhere("login-refused").await;
}

/// Puts a picture below target/, to be looked at.
async fn draw(browser: &Browser, name: &str) {
    let directory = PathBuf::from(env!("CARGO_TARGET_TMPDIR")).join("console");
    std::fs::create_dir_all(&directory).unwrap();
    let picture = browser.screenshot().await;
    std::fs::write(directory.join(format!("{name}.png")), picture).unwrap();
}

const TAB: &str = "\u{e004}";
const ENTER: &str = "\u{e007}";
const ESCAPE: &str = "\u{e00c}";
const SPACE: &str = " ";
const LEFT: &str = "\u{e012}";

/// Presses Tab until the focus is on what a selector finds, which has to be seen.
async fn tab_to(browser: &Browser, selector: &str) {
    let is_there = format!(
        "return document.activeElement?.matches({})",
        json!(selector)
    );
    // A table has some controls in each of its rows.
    for _ in 0..250 {
        if browser.run(&is_there).await == true {
            let outline = "return getComputedStyle(document.activeElement).outlineStyle !== 'none'";
            assert_eq!(
                browser.run(outline).await,
                true,
                "the focus on {selector} is not seen"
            );
            return;
        }
        browser.keys(&[TAB]).await;
    }
    panic!("Tab does not reach {selector}");
}

async fn type_text(browser: &Browser, text: &str) {
    let keys: Vec<String> = text.chars().map(String::from).collect();
    browser
        .keys(&keys.iter().map(String::as_str).collect::<Vec<_>>())
        .await;
}

#[tokio::test]
#[ignore = "needs chromedriver: use ./tests/run.sh, or --ignored"]
async fn every_page_is_used_by_keyboard_alone() {
    let site = Site::start().await;
    site.fail("203.0.113.7", "alice", 5).await;
    let browser = Browser::start().await;
    browser.resize(1360, 900, "light").await;
    browser.open(&format!("{}/console", site.url)).await;
    // The field of the token has the focus.
    type_text(&browser, OPERATOR).await;
    browser.keys(&[ENTER]).await;
    browser.page_reads("Attempts per minute").await;

    // Overview: past the rail by the skip link, and the minutes of the chart are read.
    tab_to(&browser, "#skip").await;
    browser.keys(&[ENTER]).await;
    tab_to(&browser, ".plot").await;
    browser.keys(&[LEFT]).await;
    browser
        .wait_for("return /Failed 5/.test(document.querySelector('.plot output').textContent)")
        .await;

    // Blocks: found, explained, the drawer closed, lifted.
    tab_to(&browser, "#pages a[href='#/blocks']").await;
    browser.keys(&[ENTER]).await;
    browser.page_reads("1 block\n").await;
    tab_to(&browser, "tr[data-id] .do button").await;
    browser.keys(&[ENTER]).await;
    browser.page_reads("attempts as a list").await;
    let inside = "return document.activeElement.closest('dialog') !== null";
    for _ in 0..12 {
        browser.keys(&[TAB]).await;
        let leaves = "return document.activeElement === document.body";
        assert!(browser.run(inside).await == true || browser.run(leaves).await == true);
    }
    browser.keys(&[ESCAPE]).await;
    browser
        .wait_for("return document.querySelector('dialog') === null")
        .await;
    let back = "return document.activeElement.matches('tr[data-id] .do button')";
    assert_eq!(browser.run(back).await, true);
    browser.keys(&[TAB, ENTER]).await;
    browser.page_reads("attempts are admitted again").await;
    type_text(&browser, "phoned").await;
    browser.keys(&[ENTER]).await;
    browser.page_reads("No block is in force").await;

    // A subject, by the shortcut of the search.
    browser.keys(&["/"]).await;
    type_text(&browser, "203.0.113.7").await;
    browser.keys(&[ENTER]).await;
    browser.page_reads("What counts").await;
    tab_to(&browser, "#note input").await;
    type_text(&browser, "seen").await;
    browser.keys(&[ENTER]).await;
    browser.page_reads("Noted.").await;

    // Rules: one is added.
    tab_to(&browser, "#pages a[href='#/rules']").await;
    browser.keys(&[ENTER]).await;
    browser.page_reads("No rules yet").await;
    tab_to(&browser, "#new-rule").await;
    browser.keys(&[ENTER]).await;
    type_text(&browser, "192.0.2.0/24").await;
    tab_to(&browser, "dialog [name=name]").await;
    type_text(&browser, "lab").await;
    tab_to(&browser, "dialog [name=reason]").await;
    type_text(&browser, "ours").await;
    browser.keys(&[ENTER]).await;
    browser.page_reads("Added lab.").await;

    // Policy: a rule is put in shadow, and applied.
    tab_to(&browser, "#pages a[href='#/policy']").await;
    browser.keys(&[ENTER]).await;
    browser.page_reads("As in force").await;
    tab_to(&browser, "[data-where='address.shadow']").await;
    browser.keys(&[SPACE]).await;
    browser.page_reads("address.shadow").await;
    tab_to(&browser, "#apply").await;
    browser.keys(&[ENTER]).await;
    tab_to(&browser, "dialog [name=reason]").await;
    type_text(&browser, "try").await;
    browser.keys(&[ENTER]).await;
    browser.page_reads("Version 2 is written.").await;

    // Events: paused.
    tab_to(&browser, "#pages a[href='#/events']").await;
    browser.keys(&[ENTER]).await;
    browser.page_reads("Block ended").await;
    tab_to(&browser, "#pause").await;
    browser.keys(&[ENTER]).await;
    browser.page_reads("Continue").await;

    tab_to(&browser, "#logout button").await;
    browser.keys(&[ENTER]).await;
    browser.page_reads("Log in with the token").await;
}

/// Each is opened, passed through, left without a change, and gives the focus back.
#[tokio::test]
#[ignore = "needs chromedriver: use ./tests/run.sh, or --ignored"]
async fn every_dialog_is_used_by_keyboard_alone() {
    let site = busy_site().await;
    let browser = site.browser(OPERATOR).await;
    for (name, page, opened_by, text) in DIALOGS {
        browser.open("about:blank").await;
        site.page(&browser, page).await;
        browser.page_reads("Live").await;
        for control in opened_by {
            is_enabled(&browser, control).await;
            tab_to(&browser, control).await;
            let is_box = "return document.activeElement.type === 'checkbox'";
            let key = if browser.run(is_box).await == true {
                SPACE
            } else {
                ENTER
            };
            browser.keys(&[key]).await;
        }
        browser.page_reads(text).await;
        browser
            .wait_for(
                "return document.querySelector('dialog:modal')?.contains(document.activeElement)",
            )
            .await;
        // Tab reaches every control of it, and nothing behind it.
        let reached = "const active = document.activeElement; window.reached ??= new Set(); \
                       if (active === document.body) return true; window.reached.add(active); \
                       return active.closest('dialog') !== null";
        for _ in 0..24 {
            assert_eq!(browser.run(reached).await, true, "{name}: Tab leaves it");
            browser.keys(&[TAB]).await;
        }
        let missed = "const controls = document.querySelectorAll('dialog :is(button, input, select, a[href], summary)'); \
                      return [...controls].filter((one) => one.checkVisibility() && !one.disabled && !window.reached.has(one)).map((one) => one.outerHTML)";
        let missed = browser.run(missed).await;
        assert_eq!(missed, json!([]), "{name}: Tab misses a control");
        browser.keys(&[ESCAPE]).await;
        let opener = opened_by.last().expect("a control");
        let back = format!(
            "return document.querySelector('dialog') === null && document.activeElement.matches({})",
            json!(opener)
        );
        browser.wait_for(&back).await;
    }
    assert!(
        site.limiter.access_rules().rules().len() == 3,
        "nothing was changed"
    );

    // Blocks by hand.
    site.page(&browser, "blocks").await;
    tab_to(&browser, "#block").await;
    browser.keys(&[ENTER]).await;
    browser.page_reads("Denied ahead of all limits").await;
    type_text(&browser, "192.0.2.200").await;
    tab_to(&browser, "dialog [name=reason]").await;
    type_text(&browser, "by hand").await;
    browser.keys(&[ENTER]).await;
    browser.page_reads("Blocked by the rule").await;

    // The session ends: the one control of its dialog has the focus, and Escape does not close it.
    browser
        .run("return fetch('/console/logout', {method: 'POST'}).then(() => 1)")
        .await;
    site.page(&browser, "events").await;
    browser.page_reads("Your session has ended").await;
    browser.keys(&[ESCAPE, ESCAPE]).await;
    browser
        .wait_for("return document.activeElement.matches('dialog[open] .primary')")
        .await;
    browser.keys(&[ENTER]).await;
    browser.page_reads("Log in with the token").await;
}

/// Writes docs/console/*.png if `UPDATE_SCREENSHOTS` is set, and looks at each page in any case.
#[tokio::test]
#[ignore = "needs chromedriver: use ./tests/run.sh, or --ignored"]
async fn every_page_is_drawn_light_dark_and_on_a_phone() {
    let directory = match std::env::var_os("UPDATE_SCREENSHOTS") {
        Some(_) => PathBuf::from(concat!(env!("CARGO_MANIFEST_DIR"), "/docs/console")),
        None => PathBuf::from(env!("CARGO_TARGET_TMPDIR")).join("console"),
    };
    std::fs::create_dir_all(&directory).unwrap();
    let site = busy_site().await;
    let browser = site.browser(OPERATOR).await;
    for (kind, width, height, theme) in [
        ("light", 1360, 860, "light"),
        ("dark", 1360, 860, "dark"),
        ("phone", 390, 844, "light"),
    ] {
        browser.resize(width, height, theme).await;
        for page in PAGES {
            open(&site, &browser, page).await;
            if page.0 == "policy" {
                browser.fill("[data-where='user-address.limit']", "3").await;
                browser.page_reads("5 → 3").await;
                browser.press("#preview").await;
                browser.page_reads("recorded attempts of").await;
            }
            let wide = browser
                .run("return document.documentElement.scrollWidth")
                .await;
            assert_eq!(wide, width, "{} scrolls sideways, {kind}", page.0);
            let picture = browser.screenshot().await;
            assert!(picture.starts_with(b"\x89PNG\r\n") && picture.len() > 20_000);
            std::fs::write(directory.join(format!("{}-{kind}.png", page.0)), picture).unwrap();
        }
    }
}
