//! The console in a real browser, on a real server and a real Redis: what operators do with it.

use std::{net::SocketAddr, process::Command, time::Duration};

use axum::{Json, Router, routing::post};
use serde_json::{Value, json};
use tower_login_rate_limit::{
    LoginAttempt, LoginLimiter, LoginRateLimitLayer, Outcome, Policy,
    access::Field,
    console::Console,
    event::{Feed, UserDisplay, UserHasher},
    extract::JsonField,
    insight::Insight,
    server::{Role, Server, Tokens},
};

use crate::{client::client, example::Example, redis_server::RedisServer, webdriver::Browser};

pub const OPERATOR: &str = "token-of-ines-with-32-characters";
pub const READER: &str = "token-of-tom-who-does-only-reads";

/// A site with a login and a console, and a second instance of it on the same Redis.
pub struct Site {
    pub url: String,
    pub limiter: LoginLimiter,
    pub other: LoginLimiter,
    pub feed: Feed,
    pub redis: RedisServer,
}

impl Site {
    pub async fn start() -> Self {
        Self::start_with(Policy::default()).await
    }

    pub async fn start_with(policy: Policy) -> Self {
        let mut redis = RedisServer::start();
        // Rules and a policy that an operator has written stay.
        redis.keys_may_live(None);
        let feed = Feed::new(100_000);
        let hasher = || UserHasher::new("32 random bytes for hashes in tests").unwrap();
        let limiter = async |feed: Feed| {
            let store = redis.builder().connect(redis.url()).await.unwrap();
            LoginLimiter::new(policy.clone(), store)
                .with_user_display(UserDisplay::Clear)
                .with_insight(Insight::new(hasher()))
                .with_observer(feed)
                .live()
                .await
                .unwrap()
        };
        let (this, other) = (limiter(feed.clone()).await, limiter(feed.clone()).await);
        let tokens = Tokens::new()
            .with_token("ines@ops", OPERATOR, [Role::Operate])
            .unwrap()
            .with_token("tom@support", READER, [Role::Read])
            .unwrap();
        let server = Server::new(this.clone(), tokens)
            .unwrap()
            .with_feed(feed.clone());
        let api = server.router();
        let guard = LoginRateLimitLayer::new(this.clone()).with_body_user(JsonField::new("user"));
        let app = Router::new()
            .route("/login", post(log_in).layer(guard.for_axum()))
            .nest("/api", api.clone())
            .nest("/console", Console::for_router(api).router());
        let listener = tokio::net::TcpListener::bind("127.0.0.1:0").await.unwrap();
        let url = format!("http://{}", listener.local_addr().unwrap());
        let service = app.into_make_service_with_connect_info::<SocketAddr>();
        tokio::spawn(async move { axum::serve(listener, service).await });
        Self {
            url,
            limiter: this,
            other,
            feed,
            redis,
        }
    }

    /// The status of a login at this site.
    pub async fn log_in(&self, user: &str, password: &str) -> u16 {
        let body = json!({"user": user, "password": password});
        let request = client().post(format!("{}/login", self.url)).json(&body);
        request.send().await.unwrap().status().as_u16()
    }

    /// Failures of a user at an address.
    pub async fn fail(&self, address: &str, user: &str, times: usize) {
        fail(&self.limiter, address, user, times).await;
    }

    /// A browser that is logged in to the console.
    pub async fn browser(&self, token: &str) -> Browser {
        self.log_in_to_console(Browser::start().await, token).await
    }

    pub async fn log_in_to_console(&self, browser: Browser, token: &str) -> Browser {
        browser.resize(1360, 900, "light").await;
        browser.open(&format!("{}/console", self.url)).await;
        browser.type_into("token", token).await;
        browser.click("submit").await;
        browser.page_reads("Attempts per minute").await;
        browser
    }

    pub async fn page(&self, browser: &Browser, page: &str) {
        browser.open(&format!("{}/console#/{page}", self.url)).await;
    }
}

pub async fn fail(limiter: &LoginLimiter, address: &str, user: &str, times: usize) {
    for _ in 0..times {
        let attempt = limiter.reserve((address.parse().unwrap(), user)).await;
        if let Ok(attempt) = attempt {
            attempt.settle(Outcome::Failure).await.unwrap();
        }
    }
}

async fn log_in(attempt: LoginAttempt, Json(login): Json<Value>) -> axum::http::StatusCode {
    if login["password"] == "correct-horse" {
        attempt.succeeded();
        return axum::http::StatusCode::OK;
    }
    attempt.failed();
    axum::http::StatusCode::UNAUTHORIZED
}

#[tokio::test]
#[ignore = "needs chromedriver: use ./tests/run.sh, or --ignored"]
async fn an_attack_is_seen_live_and_a_block_is_explained_and_lifted() {
    let site = Site::start().await;
    assert_eq!(site.log_in("alice", "correct-horse").await, 200);
    let browser = site.browser(OPERATOR).await;
    browser.page_reads("Live").await;

    // Seen on the chart, without a reload.
    let drawn = "return [...document.querySelectorAll('.chart .bars rect')].length";
    let before = browser.run(drawn).await;
    for _ in 0..5 {
        assert_eq!(site.log_in("alice", "guess").await, 401);
    }
    assert_eq!(site.log_in("alice", "correct-horse").await, 429);
    browser.wait_for(&format!("{drawn} > {before}")).await;
    browser
        .wait_for(
            "return /[1-9] failed · [1-9]/.test(document.querySelector('.stat small').textContent)",
        )
        .await;

    // Found among others, and explained: five failures, and the block, drawn.
    site.fail("203.0.113.7", "bob", 5).await;
    site.page(&browser, "blocks").await;
    browser.page_reads("2 blocks").await;
    browser.fill("#filter", "alice").await;
    browser.page_reads("1 block\n").await;
    browser.press("tr[data-id] .do button").await;
    let sheet = browser.page_reads("5 of 5 failures within 1 day").await;
    assert!(sheet.contains("5 attempts as a list"), "{sheet}");
    let dots = browser.run("return document.querySelectorAll('.drawer .attempt.counts').length");
    assert_eq!(dots.await, 5);
    let band = browser
        .run("return document.querySelector('.drawer .block-band').getAttribute('width') > 100");
    assert_eq!(band.await, true);

    // Lifted with a reason, and the login works again.
    browser.press(".drawer footer .danger").await;
    browser
        .fill("dialog form [name=reason]", "alice phoned, ticket 4711")
        .await;
    browser.press("dialog form footer .danger").await;
    browser.page_reads("1 block lifted.").await;
    assert_eq!(site.log_in("alice", "correct-horse").await, 200);
    let audited = site
        .feed
        .latest(10, |event| event.what.name() == "block_lifted");
    let event: Value = serde_json::from_str(&audited[0].to_json()).unwrap();
    assert_eq!(event["author"], "ines@ops");
    assert_eq!(event["reason"], "alice phoned, ticket 4711");
}

#[tokio::test]
#[ignore = "needs chromedriver: use ./tests/run.sh, or --ignored"]
async fn many_blocks_are_lifted_together_and_a_note_is_kept() {
    let site = Site::start().await;
    for user in ["ann", "ben", "cem"] {
        site.fail("203.0.113.7", user, 5).await;
    }
    let browser = site.browser(OPERATOR).await;
    site.page(&browser, "blocks").await;
    browser.page_reads("3 blocks").await;
    browser.press("thead input[type=checkbox]").await;
    browser.page_reads("3 blocks selected").await;
    browser.press("#unblock-selected").await;
    browser
        .fill("dialog [name=reason]", "it was our own release")
        .await;
    browser.press("dialog footer .danger").await;
    browser.page_reads("No block is in force").await;
    for user in ["ann", "ben", "cem"] {
        let address = "203.0.113.7".parse().unwrap();
        site.other.check((address, user)).await.unwrap();
    }

    site.page(&browser, "subject?address=203.0.113.7&user=ann")
        .await;
    browser.fill("#note input", "ticket 4712").await;
    browser.press("#note button").await;
    let page = browser.page_reads("ticket 4712").await;
    assert!(page.contains("ines@ops"), "{page}");
}

#[tokio::test]
#[ignore = "needs chromedriver: use ./tests/run.sh, or --ignored"]
async fn a_rule_added_in_the_browser_is_enforced_by_a_second_process() {
    let site = Site::start().await;
    let second = SecondProcess::start(&site);
    let (denied, other) = ("198.51.100.9", "203.0.113.7");
    assert!(second.admits(denied).await && second.admits(other).await);

    let browser = site.browser(OPERATOR).await;
    site.page(&browser, "rules").await;
    browser.page_reads("No rules yet").await;
    browser.press("#new-rule").await;
    // Validated as it is typed.
    browser
        .fill("dialog [name=value]", "198.51.100.0/240")
        .await;
    browser
        .wait_for("return document.querySelector('dialog [name=value]').getAttribute('aria-invalid') === 'true'")
        .await;
    browser.fill("dialog [name=value]", "198.51.100.0/24").await;
    browser.fill("dialog [name=name]", "botnet").await;
    // Tried before it is saved.
    browser
        .fill("dialog [name=try_address]", "198.51.100.9")
        .await;
    browser.page_reads("Denied by botnet").await;
    browser
        .fill("dialog [name=reason]", "stuffing since noon")
        .await;
    browser.press("dialog footer .primary").await;
    browser.page_reads("Added botnet.").await;
    browser.page_reads("1 rule, version 1").await;

    second.comes_to(denied, false).await;
    assert!(second.admits(other).await, "the rule denies one network");
    browser.fill(".tester [name=address]", denied).await;
    browser.page_reads("Denied by botnet").await;

    browser.press("[aria-label='Remove botnet']").await;
    browser.fill("dialog [name=reason]", "it is over").await;
    browser.press("dialog footer .danger").await;
    browser.page_reads("Removed botnet.").await;
    second.comes_to(denied, true).await;
}

/// `login-rate-limit serve` on the Redis of a site.
struct SecondProcess(Example);

impl SecondProcess {
    fn start(site: &Site) -> Self {
        let mut program = Command::new(env!("CARGO_BIN_EXE_login-rate-limit"));
        program.arg("serve");
        let redis = site.redis.url();
        let environment = [("REDIS_URL", &*redis), ("API_TOKEN", OPERATOR)];
        Self(Example::run(program, &environment))
    }

    /// Whether an attempt is admitted.
    async fn admits(&self, address: &str) -> bool {
        let attempt = json!({"address": address, "user": "alice"});
        let url = format!("{}/v1/attempts", self.0.url);
        let request = client().post(url).bearer_auth(OPERATOR).json(&attempt);
        let decision: Value = request.send().await.unwrap().json().await.unwrap();
        if let Some(token) = decision["token"].as_str() {
            let url = format!("{}/v1/attempts/{token}/outcome", self.0.url);
            let outcome = json!({"outcome": "success"});
            let request = client().post(url).bearer_auth(OPERATOR).json(&outcome);
            assert!(request.send().await.unwrap().status().is_success());
        }
        let admitted = decision["admitted"].as_bool();
        admitted.unwrap_or_else(|| panic!("no decision: {decision}"))
    }

    /// Waits until it admits attempts, or does not.
    async fn comes_to(&self, address: &str, admitted: bool) {
        for _ in 0..500 {
            if self.admits(address).await == admitted {
                return;
            }
            tokio::time::sleep(Duration::from_millis(20)).await;
        }
        panic!("{address} is never admitted: {admitted}");
    }
}

#[tokio::test]
#[ignore = "needs chromedriver: use ./tests/run.sh, or --ignored"]
async fn a_policy_is_previewed_applied_and_rolled_back() {
    let site = Site::start().await;
    for i in 0..6 {
        site.fail(&format!("203.0.113.{i}"), "alice", 3).await;
    }
    let browser = site.browser(OPERATOR).await;
    site.page(&browser, "policy").await;
    browser.page_reads("As in force: version 0").await;
    let limit = "[data-where='user-address.limit']";
    browser.fill(limit, "none").await;
    browser
        .wait_for(&format!(
            "return document.querySelector(\"{limit}\").getAttribute('aria-invalid') === 'true'"
        ))
        .await;
    browser.fill(limit, "3").await;
    browser.page_reads("5 → 3").await;
    browser.press("#preview").await;
    let page = browser.page_reads("Would have been blocked: 6").await;
    assert!(page.contains("18 recorded attempts"), "{page}");

    browser.press("#apply").await;
    browser
        .fill("dialog [name=reason]", "botnet at alice")
        .await;
    browser.press("dialog footer .primary").await;
    browser.page_reads("Version 1 is written.").await;
    browser
        .page_reads("2 of 2 instances enforce version 1.")
        .await;
    assert_eq!(limit_of(&site.other), 3);

    // As a canary, for a share of the addresses, and back to where it was.
    browser.fill(limit, "2").await;
    browser.page_reads("3 → 2").await;
    browser.press("#apply").await;
    browser.choose("dialog [name=scope]", "canary").await;
    browser.fill("dialog [name=share]", "10").await;
    browser.fill("dialog [name=reason]", "try it first").await;
    browser.press("dialog footer .primary").await;
    browser.page_reads("10 % of the addresses").await;
    assert_eq!(limit_of(&site.other), 3);
    browser.press("[aria-label='Roll back to version 1']").await;
    browser.fill("dialog [name=reason]", "complaints").await;
    browser.press("dialog footer .danger").await;
    browser.page_reads("Version 3 is written.").await;
    browser
        .page_reads("2 of 2 instances enforce version 3.")
        .await;
    let page = browser.page_reads("complaints").await;
    assert!(!page.contains("10 % of the addresses"), "{page}");
}

fn limit_of(limiter: &LoginLimiter) -> u32 {
    let policy = limiter.policy();
    let rule = policy.rule("user-address").unwrap();
    rule.limit().max_attempts()
}

/// Names are what clients have typed.
#[tokio::test]
#[ignore = "needs chromedriver: use ./tests/run.sh, or --ignored"]
async fn a_user_made_of_html_is_shown_as_text() {
    let site = Site::start().await;
    let user = "<img src=x onerror=\"document.title='owned'\"><b>mallory</b>";
    site.fail("203.0.113.7", user, 5).await;
    let browser = site.browser(OPERATOR).await;
    let encoded: String = form_encode(user);
    for page in [
        "overview",
        "blocks",
        "events",
        &format!("subject?address=203.0.113.7&user={encoded}"),
    ] {
        site.page(&browser, page).await;
        browser.page_reads("onerror=").await;
        let elements = "return document.querySelectorAll('main img, main b b, [onerror]').length";
        assert_eq!(browser.run(elements).await, 0, "{page}");
        let title = browser.run("return document.title").await;
        assert!(title.as_str().unwrap().ends_with("Login limits"), "{title}");
    }
}

/// A client chooses its name, and hopes that an operator blocks half of the internet in its place.
#[tokio::test]
#[ignore = "needs chromedriver: use ./tests/run.sh, or --ignored"]
async fn a_user_named_like_a_network_is_blocked_as_a_user() {
    let site = Site::start().await;
    let browser = site.browser(OPERATOR).await;
    site.page(&browser, "subject?user=0.0.0.0%2F1").await;
    browser.page_reads("User 0.0.0.0/1").await;
    browser.press(".page-actions button").await;
    browser
        .fill("dialog [name=reason]", "guesses all night")
        .await;
    browser.press("dialog footer .danger").await;
    browser.page_reads("Blocked by the rule").await;

    let rules = site.limiter.access_rules();
    let [rule] = rules.rules() else {
        panic!("{rules:?}");
    };
    assert_eq!((rule.field(), &*rule.value()), (Field::User, "0.0.0.0/1"));
}

fn form_encode(text: &str) -> String {
    let bytes = text.bytes();
    bytes.map(|byte| format!("%{byte:02X}")).collect()
}

/// What an operator needs most during an outage is to be told of it.
#[tokio::test]
#[ignore = "needs chromedriver: use ./tests/run.sh, or --ignored"]
async fn the_page_says_that_the_store_is_down_and_recovers_by_itself() {
    let mut site = Site::start().await;
    let browser = site.browser(OPERATOR).await;
    site.page(&browser, "blocks").await;
    browser.page_reads("No block is in force").await;
    site.redis.kill();
    site.page(&browser, "rules").await;
    let alert = "return (document.querySelector('main [role=alert]')?.textContent ?? '')";
    browser.wait_for(&format!("{alert} !== ''")).await;
    let text = browser.run(alert).await;
    let text = text.as_str().expect("a text");
    assert!(text.contains("The store does not answer"), "{text}");
    let signs = "return document.getElementById('signs').textContent";
    browser.wait_for(&format!("{signs}.includes('tore')")).await;

    // Loaded anew while it is down: the frame is there, and says why nothing is in it.
    browser.run("location.reload()").await;
    browser.wait_for(&format!("{alert} !== ''")).await;

    // Without a hand on the keyboard, so nothing that is sent keeps the session alive.
    let record = "window.sent = []; const send = window.fetch; window.fetch = (url, options) => { \
                  window.sent.push(options.headers['login-console-background'] ?? `${url}`); \
                  return send(url, options); }";
    browser.run(record).await;
    site.redis.restart();
    browser.page_reads("No rules yet").await;
    browser.wait_for(&format!("{signs} === ''")).await;
    let enabled = "return document.querySelector('#new-rule').disabled === false";
    browser.wait_for(enabled).await;
    let sent = browser.run("return window.sent").await;
    let sent = sent.as_array().expect("a list");
    assert!(
        !sent.is_empty() && sent.iter().all(|sent| sent == "1"),
        "{sent:?}"
    );
}
