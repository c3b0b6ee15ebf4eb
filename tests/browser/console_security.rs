//! Who is let in to the console, and what a browser lets its page do.

use serde_json::{Value, json};

use crate::{
    client::client,
    console::{OPERATOR, READER, Site},
    webdriver::Browser,
};

/// A login by a client that is no browser. Returns the cookie of the session.
async fn session(site: &Site, token: &str) -> String {
    let plain = reqwest::Client::builder()
        .no_proxy()
        .redirect(reqwest::redirect::Policy::none());
    let url = format!("{}/console/login", site.url);
    let body = format!("token={token}");
    let request = plain.build().unwrap().post(url).body(body);
    let request = request.header("content-type", "application/x-www-form-urlencoded");
    let response = request.send().await.unwrap();
    assert_eq!(response.status(), 303);
    let cookie = response.headers()["set-cookie"].to_str().unwrap();
    for attribute in ["HttpOnly", "SameSite=Strict", "Path=/console;"] {
        assert!(cookie.contains(attribute), "{cookie}");
    }
    cookie.split(';').next().unwrap().to_owned()
}

fn unblock(site: &Site, cookie: &str) -> reqwest::RequestBuilder {
    let url = format!("{}/console/api/v1/admin/unblock", site.url);
    let body = json!({"address": "203.0.113.7", "with_pairs": true, "reason": "test"});
    client().post(url).header("cookie", cookie).json(&body)
}

async fn blocks(site: &Site, cookie: &str) -> (u16, Value) {
    let url = format!("{}/console/api/v1/admin/blocks", site.url);
    let request = client().get(url).header("cookie", cookie);
    let response = request.send().await.unwrap();
    let status = response.status().as_u16();
    (status, response.json().await.unwrap_or_default())
}

#[tokio::test]
async fn no_session_the_wrong_role_another_origin_and_a_replay_are_refused() {
    let site = Site::start().await;
    site.fail("203.0.113.7", "alice", 5).await;
    let count = |answer: &Value| answer["blocks"].as_array().map(Vec::len);

    // No session, and one that was made up. The API's own tokens are none here.
    for cookie in ["", "login-console=", "login-console=AAAA"] {
        let (status, problem) = blocks(&site, cookie).await;
        assert_eq!((status, problem["status"].as_u64()), (401, Some(401)));
        assert_eq!(unblock(&site, cookie).send().await.unwrap().status(), 401);
    }
    let bearer = unblock(&site, "").bearer_auth(OPERATOR).send().await;
    assert_eq!(bearer.unwrap().status(), 401);

    // Read-only: by the server, whatever the page shows.
    let reader = session(&site, READER).await;
    assert_eq!(count(&blocks(&site, &reader).await.1), Some(1));
    assert_eq!(unblock(&site, &reader).send().await.unwrap().status(), 403);

    // Another origin, with the session of the operator: nothing is changed.
    let operator = session(&site, OPERATOR).await;
    for (name, value) in [
        ("origin", "https://evil.example"),
        ("sec-fetch-site", "cross-site"),
        ("sec-fetch-site", "same-site"),
    ] {
        let forged = unblock(&site, &operator).header(name, value).send().await;
        assert_eq!(forged.unwrap().status(), 403, "{name}: {value}");
        let logout = client().post(format!("{}/console/logout", site.url));
        let logout = logout.header("cookie", &operator).header(name, value);
        assert_eq!(logout.send().await.unwrap().status(), 403);
    }
    assert_eq!(count(&blocks(&site, &operator).await.1), Some(1));

    // Decisions are not below the console.
    let attempts = format!("{}/console/api/v1/attempts", site.url);
    let request = client().post(attempts).header("cookie", &operator);
    let response = request.json(&json!({"address": "192.0.2.1"})).send().await;
    assert_eq!(response.unwrap().status(), 404);

    // After a logout the same request is refused, and the stream of events ends.
    let url = format!("{}/console/api/v1/admin/events/live", site.url);
    let mut stream = client()
        .get(url)
        .header("cookie", &operator)
        .send()
        .await
        .unwrap();
    assert!(stream.chunk().await.unwrap().is_some());
    let logout = client().post(format!("{}/console/logout", site.url));
    let logout = logout.header("cookie", &operator).send().await.unwrap();
    assert!(logout.url().path().ends_with("/console/login"));
    assert_eq!(
        unblock(&site, &operator).send().await.unwrap().status(),
        401
    );
    while stream.chunk().await.is_ok_and(|chunk| chunk.is_some()) {}

    let again = session(&site, OPERATOR).await;
    assert_ne!(again, operator);
    assert_eq!(unblock(&site, &again).send().await.unwrap().status(), 200);
}

#[tokio::test]
async fn pages_are_for_operators_and_carry_a_strict_policy() {
    let site = Site::start().await;
    let shell = client().get(format!("{}/console", site.url)).send().await;
    let shell = shell.unwrap();
    assert_eq!(shell.url().path(), "/console/login");
    let policy = shell.headers()["content-security-policy"].to_str().unwrap();
    assert!(policy.starts_with("default-src 'none'; script-src 'self'; style-src 'self';"));
    assert!(!policy.contains("unsafe") && policy.contains("frame-ancestors 'none'"));
    assert_eq!(shell.headers()["x-content-type-options"], "nosniff");
    assert_eq!(shell.headers()["referrer-policy"], "same-origin");

    let style = format!("{}/console/assets/console.css", site.url);
    let file = client().get(&style).send().await.unwrap();
    assert_eq!(file.headers()["content-type"], "text/css; charset=utf-8");
    let tag = file.headers()["etag"].to_str().unwrap().to_owned();
    let known = client()
        .get(&style)
        .header("if-none-match", tag)
        .send()
        .await;
    assert_eq!(known.unwrap().status(), 304);
    let missing = client()
        .get(format!("{}/console/assets/../mod.rs", site.url))
        .send()
        .await;
    assert_eq!(missing.unwrap().status(), 404);
}

/// The layer guards its own console.
#[tokio::test]
async fn guessing_tokens_is_refused() {
    let site = Site::start().await;
    let url = format!("{}/console/login", site.url);
    let guess = async || {
        let request = client().post(&url).body("token=guess");
        let request = request.header("content-type", "application/x-www-form-urlencoded");
        request.send().await.unwrap().status().as_u16()
    };
    for _ in 0..10 {
        assert_eq!(guess().await, 401);
    }
    assert_eq!(guess().await, 429);
}

#[tokio::test]
#[ignore = "needs chromedriver: use ./tests/run.sh, or --ignored"]
async fn a_reader_sees_everything_and_is_shown_why_nothing_can_be_changed() {
    let site = Site::start().await;
    site.fail("203.0.113.7", "alice", 5).await;
    let browser = site.browser(READER).await;
    browser.page_reads("read only").await;
    site.page(&browser, "blocks").await;
    browser.page_reads("1 block\n").await;
    let disabled = "return [...document.querySelectorAll('#block, tr[data-id] .do button:last-child')].every((b) => b.disabled && b.title.startsWith('Your role is read'))";
    assert_eq!(browser.run(disabled).await, true);
    site.page(&browser, "policy").await;
    browser.page_reads("Your role is read").await;
    let enabled = "return document.querySelectorAll('.rule input:enabled, #apply:enabled').length";
    browser
        .wait_for("return document.querySelectorAll('.rule').length > 0")
        .await;
    assert_eq!(browser.run(enabled).await, 0);
}

#[tokio::test]
#[ignore = "needs chromedriver: use ./tests/run.sh, or --ignored"]
async fn a_session_that_ends_is_noticed_and_the_page_comes_back() {
    let site = Site::start().await;
    let browser = site.browser(OPERATOR).await;
    site.page(&browser, "rules").await;
    browser.page_reads("No rules yet").await;
    // In another tab the operator logs out.
    browser
        .run("return fetch('/console/logout', {method: 'POST'}).then(() => 1)")
        .await;
    site.page(&browser, "blocks").await;
    browser.page_reads("Your session has ended").await;
    browser.press("dialog .primary").await;
    browser.page_reads("Log in with the token").await;
    browser.type_into("token", OPERATOR).await;
    browser.click("submit").await;
    browser.page_reads("No block is in force").await;
}

/// Over plain HTTP, and not at this machine's own address, browsers send no `Sec-Fetch-Site`: the origin decides.
#[tokio::test]
#[ignore = "needs chromedriver: use ./tests/run.sh, or --ignored"]
async fn an_operator_logs_in_over_plain_http_in_a_local_network() {
    let site = Site::start().await;
    let browser = Browser::start_with("--host-resolver-rules=MAP console.test 127.0.0.1").await;
    let url = site.url.replace("127.0.0.1", "console.test");
    browser.open(&format!("{url}/console")).await;
    browser.type_into("token", OPERATOR).await;
    browser.click("submit").await;
    browser.page_reads("Attempts per minute").await;
    // Changes too.
    browser.open(&format!("{url}/console#/rules")).await;
    browser.page_reads("No rules yet").await;
    browser.press("#new-rule").await;
    browser.fill("dialog [name=value]", "198.51.100.0/24").await;
    browser.fill("dialog [name=name]", "botnet").await;
    browser.fill("dialog [name=reason]", "stuffing").await;
    browser.press("dialog footer .primary").await;
    browser.page_reads("Added botnet.").await;
}
