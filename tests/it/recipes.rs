//! The recipes among the examples, run as separate processes against real parts.

use std::net::IpAddr;

use reqwest::{Client, Response};
use serde_json::{Value, json};
use totp_rs::{Algorithm, Secret, TOTP};

use crate::support::{Nginx, client::client, example::Example};

async fn post_form(url: &str, form: &str) -> (u16, Value) {
    let request = client()
        .post(url)
        .header("content-type", "application/x-www-form-urlencoded");
    let response = request.body(form.to_owned()).send().await.unwrap();
    let status = response.status().as_u16();
    (status, response.json().await.unwrap_or_default())
}

#[tokio::test]
async fn the_oauth_example_limits_passwords_and_not_refresh_tokens() {
    let example = Example::start("oauth", &[]);
    let url = format!("{}/token", example.url);
    let (status, tokens) = post_form(
        &url,
        "grant_type=password&username=user&password=correct-horse",
    )
    .await;
    assert_eq!((status, &tokens["token_type"]), (200, &json!("Bearer")));
    let mut refresh = tokens["refresh_token"].as_str().unwrap().to_owned();

    // 25 failures block the address, for every user.
    for i in 0..25 {
        let guess = format!("grant_type=password&username=user{i}&password=x");
        let (status, body) = post_form(&url, &guess).await;
        assert_eq!((status, body), (400, json!({"error": "invalid_grant"})));
    }
    let password = "grant_type=password&username=user&password=correct-horse";
    assert_eq!(post_form(&url, password).await.0, 429);
    for _ in 0..3 {
        let form = format!("grant_type=refresh_token&refresh_token={refresh}");
        let (status, tokens) = post_form(&url, &form).await;
        assert_eq!(status, 200);
        // Each is used once.
        assert_eq!(post_form(&url, &form).await.0, 400);
        refresh = tokens["refresh_token"].as_str().unwrap().to_owned();
    }
    let decoy = format!("grant_type=refresh_token&refresh_token={refresh}&{password}");
    let (status, problem) = post_form(&url, &decoy).await;
    let detail = problem["detail"].as_str().unwrap();
    assert!(
        status == 400 && detail.contains("a field occurs twice"),
        "{detail}"
    );
}

#[tokio::test]
async fn the_basic_example_guards_every_handler_that_takes_a_user() {
    let example = Example::start("basic", &[]);
    let get = async |path: &str, password: Option<&str>| {
        let mut request = client().get(format!("{}{path}", example.url));
        if let Some(password) = password {
            request = request.basic_auth("user", Some(password));
        }
        request.send().await.unwrap()
    };
    for _ in 0..30 {
        let response = get("/report", None).await;
        assert_eq!(response.status(), 401);
        assert!(response.headers().contains_key("www-authenticate"));
    }
    let text = get("/report", Some("correct-horse")).await.text().await;
    assert_eq!(text.unwrap(), "hello, user\n");
    for i in 0..5 {
        let path = if i % 2 == 0 { "/report" } else { "/orders" };
        assert_eq!(get(path, Some("guess")).await.status(), 401);
    }
    assert_eq!(get("/orders", Some("correct-horse")).await.status(), 429);
}

#[tokio::test]
async fn the_totp_example_limits_codes_and_accepts_each_once() {
    let example = Example::start("totp", &[]);
    let secret = example.before[0].strip_prefix("Secret: ").unwrap();
    let secret = Secret::Encoded(secret.to_owned()).to_bytes().unwrap();
    let totp = TOTP::new(Algorithm::SHA1, 6, 0, 30, secret).unwrap();
    let password = async || {
        let body = json!({"username": "user", "password": "correct-horse"});
        let (status, body) = example.post("/password", body).await;
        assert_eq!(status, 200);
        body["session"].as_str().unwrap().to_owned()
    };
    let send = async |session: &str, code: &str| {
        let request = client().post(format!("{}/code", example.url));
        let request = request.header("session", session);
        let response = request.json(&json!({"code": code})).send().await.unwrap();
        response.status().as_u16()
    };
    let code = totp.generate_current().unwrap();
    assert_eq!(send(&password().await, &code).await, 200);
    // Watched over a shoulder, it is of no use.
    assert_eq!(send(&password().await, &code).await, 401);
    // A code is six digits: this is none.
    for _ in 0..4 {
        assert_eq!(send(&password().await, "wrong").await, 401);
    }
    let body = json!({"username": "user", "password": "correct-horse"});
    assert_eq!(example.post("/password", body).await.0, 429);
}

#[tokio::test]
async fn the_password_reset_example_floods_no_mailbox() {
    let example = Example::start("password_reset", &[]);
    let forgot = async |email: &str| example.post("/forgot", json!({"email": email})).await;
    let login = async |password: &str| {
        let body = json!({"email": "user@example.com", "password": password});
        example.post("/login", body).await.0
    };
    for _ in 0..5 {
        assert_eq!(login("forgotten").await, 401);
    }
    assert_eq!(login("correct-horse").await, 429);

    // Alike for an account that exists, in any spelling, and for one that does not.
    for emails in [
        [
            "user@example.com",
            "USER@example.com ",
            "user@example.com",
            "User@Example.com",
        ],
        ["nobody@example.com"; 4],
    ] {
        for (i, email) in emails.into_iter().enumerate() {
            let (status, body) = forgot(email).await;
            assert_eq!(status, if i < 3 { 202 } else { 429 }, "{email}");
            if i == 3 {
                let expected = "too many requests, try again in ";
                let detail = body["detail"].as_str().unwrap();
                assert!(detail.starts_with(expected), "{detail}");
            }
        }
    }
    let mails: Vec<_> = example.said.iter().take(3).collect();
    assert!(
        mails
            .iter()
            .all(|mail| mail.starts_with("Mail to user@example.com: "))
    );
    assert_eq!(example.said.try_recv().ok(), None);

    let reset = async |token: &str| {
        let body = json!({"token": token, "password": "new"});
        example.post("/reset", body).await.0
    };
    assert_eq!(reset("guess").await, 401);
    let (_, link) = mails[0].rsplit_once(' ').unwrap();
    assert_eq!(reset(link).await, 200);
    assert_eq!(reset(link).await, 401);
    assert_eq!(login("new").await, 200);
}

#[tokio::test]
async fn the_password_reset_example_limits_an_address_over_all_mailboxes() {
    let example = Example::start("password_reset", &[]);
    for i in 0..21 {
        let body = json!({"email": format!("{i}@example.com")});
        let (status, body) = example.post("/forgot", body).await;
        assert_eq!(status, if i < 20 { 202 } else { 429 });
        if i == 20 {
            assert_eq!(body["rule"], json!("reset-address"));
        }
    }
}

/// A provider of captchas: confirms the solution `solved` for the key `key`.
async fn captcha_provider() -> String {
    async fn verify(body: String) -> axum::Json<Value> {
        let fields: Vec<_> = form_urlencoded::parse(body.as_bytes()).collect();
        let has = |name: &str, value: &str| fields.iter().any(|(n, v)| n == name && v == value);
        let is_solved =
            has("secret", "key") && has("response", "solved") && has("remoteip", "127.0.0.1");
        axum::Json(json!({"success": is_solved}))
    }
    let app = axum::Router::new().route("/siteverify", axum::routing::post(verify));
    let listener = tokio::net::TcpListener::bind("127.0.0.1:0").await.unwrap();
    let url = format!("http://{}/siteverify", listener.local_addr().unwrap());
    tokio::spawn(async move { axum::serve(listener, app).await });
    url
}

#[tokio::test]
async fn the_captcha_example_asks_after_three_failures() {
    let url = captcha_provider().await;
    let environment = [
        ("CAPTCHA_URL", url.as_str()),
        ("CAPTCHA_SECRET", "key"),
        ("NO_PROXY", "127.0.0.1"),
    ];
    let example = Example::start("captcha", &environment);
    let login = async |user: &str, password: &str, captcha: &str| {
        let body = json!({"username": user, "password": password, "captcha": captcha});
        example.post("/login", body).await
    };
    let asked = (401, json!({"captcha": "required"}));
    for user in ["user", "nobody"] {
        for _ in 0..3 {
            assert_eq!(login(user, "guess", "").await, (401, json!({})));
        }
        // No guess is checked, and none is counted.
        for captcha in ["", "bot", "solved\0", ""] {
            assert_eq!(login(user, "correct-horse", captcha).await, asked);
        }
        assert_eq!(login(user, "guess", "solved").await, (401, json!({})));
    }
    assert_eq!(login("user", "correct-horse", "solved").await.0, 200);
    assert_eq!(login("user", "guess", "").await, (401, json!({})));

    let unreachable = [
        ("CAPTCHA_URL", "http://127.0.0.1:1/"),
        ("CAPTCHA_SECRET", "key"),
    ];
    let example = Example::start("captcha", &unreachable);
    let guess = json!({"username": "user", "password": "correct-horse", "captcha": "solved"});
    for _ in 0..3 {
        let wrong = json!({"username": "user", "password": "guess"});
        assert_eq!(example.post("/login", wrong).await.0, 401);
    }
    assert_eq!(example.post("/login", guess).await, asked);
}

#[tokio::test]
async fn behind_nginx_each_client_has_its_own_budget_and_can_forge_no_other() {
    let example = Example::start("axum", &[("TRUSTED_PROXIES", "127.0.0.1")]);
    let nginx = Nginx::start(&example.url);
    let login = async |client: &Client, forged: Option<String>| {
        let mut request = client.post(format!("{}/login", nginx.url));
        if let Some(forged) = forged {
            request = request.header("x-forwarded-for", forged);
        }
        let body = json!({"username": "user", "password": "guess"});
        request.json(&body).send().await.unwrap().status().as_u16()
    };
    let [one, other] = ["127.0.0.2", "127.0.0.3"].map(|address| {
        let address: IpAddr = address.parse().unwrap();
        let builder = Client::builder().no_proxy().local_address(address);
        builder.build().unwrap()
    });
    for i in 0..5 {
        // Another address each time, and the proxy's own.
        let forged = [format!("203.0.113.{i}"), "127.0.0.1".to_owned()];
        assert_eq!(login(&one, Some(forged[i % 2].clone())).await, 401);
    }
    assert_eq!(login(&one, Some("203.0.113.99".to_owned())).await, 429);
    assert_eq!(login(&one, None).await, 429);
    // The neighbor is not blocked, neither by its own address nor by a forged one.
    assert_eq!(login(&other, None).await, 401);
    // Past the proxy, the header is not believed.
    let direct = other
        .post(format!("{}/login", example.url))
        .header("x-forwarded-for", "127.0.0.2")
        .json(&json!({"username": "user", "password": "guess"}));
    assert_eq!(direct.send().await.unwrap().status(), 401);
}

#[tokio::test]
async fn the_layers_example_counts_what_its_order_makes_count() {
    let example = Example::start("layers", &[]);
    let post = async |user: &str, password: &str| -> Response {
        let request = client()
            .post(format!("{}/login", example.url))
            .header("origin", "https://app.example.com")
            .json(&json!({"username": user, "password": password}));
        request.send().await.unwrap()
    };
    // A timeout inside of the layer is no attempt.
    for _ in 0..6 {
        assert_eq!(post("user", "slow").await.status(), 408);
    }
    // A preflight is answered outside of the layer.
    for _ in 0..30 {
        let preflight = client()
            .request(reqwest::Method::OPTIONS, format!("{}/login", example.url))
            .header("origin", "https://app.example.com")
            .header("access-control-request-method", "POST");
        assert_eq!(preflight.send().await.unwrap().status(), 200);
    }
    let response = post("user", "correct-horse").await;
    assert_eq!(response.status(), 200);
    assert_eq!(response.headers()["cache-control"], "no-store");
    // A panic is a failure, since a client that can cause one must not guess for free.
    for _ in 0..5 {
        assert_eq!(post("user", "panic").await.status(), 500);
    }
    let refusal = post("user", "correct-horse").await;
    assert_eq!(refusal.status(), 429);
    // Scripts of the page can read the refusal.
    let origin = &refusal.headers()["access-control-allow-origin"];
    assert_eq!(origin, "https://app.example.com");
}

/// A Prometheus server that scrapes an example, stopped when dropped.
struct Prometheus {
    process: std::process::Child,
    port: u16,
    _directory: tempfile::TempDir,
}

impl Prometheus {
    fn scraping(url: &str) -> Self {
        let directory = tempfile::tempdir().unwrap();
        let config = directory.path().join("prometheus.yml");
        let target = url.trim_start_matches("http://");
        let text = format!(
            "global: {{scrape_interval: 200ms, scrape_timeout: 200ms}}\nscrape_configs: [{{job_name: login, static_configs: [{{targets: [\"{target}\"]}}]}}]\n"
        );
        std::fs::write(&config, text).unwrap();
        let port = crate::support::free_port();
        let process = std::process::Command::new("prometheus")
            .arg(format!("--config.file={}", config.display()))
            .arg(format!(
                "--storage.tsdb.path={}",
                directory.path().join("data").display()
            ))
            .arg(format!("--web.listen-address=127.0.0.1:{port}"))
            .stdout(std::process::Stdio::null())
            .stderr(std::process::Stdio::null())
            .spawn()
            .expect("prometheus is missing: install the package `prometheus`");
        Self {
            process,
            port,
            _directory: directory,
        }
    }

    /// The value of a metric, once Prometheus has one.
    async fn value(&self, metric: &str) -> Option<String> {
        let url = format!("http://127.0.0.1:{}/api/v1/query", self.port);
        let request = client().get(url).query(&[("query", metric)]);
        let reply: Value = request.send().await.ok()?.json().await.ok()?;
        let value = &reply["data"]["result"][0]["value"][1];
        value.as_str().map(str::to_owned)
    }
}

impl Drop for Prometheus {
    fn drop(&mut self) {
        let _ = self.process.kill();
        let _ = self.process.wait();
    }
}

#[tokio::test]
async fn the_metrics_example_is_scraped_by_prometheus_and_alerts() {
    let example = Example::start("metrics", &[]);
    let url = format!("{}/login", example.url);
    for i in 0..8 {
        let (status, _) = post_form(&url, "username=user&password=x").await;
        assert_eq!(status, if i < 5 { 401 } else { 429 });
    }
    let prometheus = Prometheus::scraping(&example.url);
    for (metric, expected) in [
        ("login_attempts_total{outcome=\"failure\"}", "5"),
        (
            "login_refusals_total{rule=\"user-address\",reason=\"blocked\",shadow=\"false\"}",
            "3",
        ),
        ("login_blocks_begun_total{rule=\"user-address\"}", "1"),
    ] {
        let mut value = None;
        for _ in 0..600 {
            value = prometheus.value(metric).await;
            if value.is_some() {
                break;
            }
            tokio::time::sleep(std::time::Duration::from_millis(100)).await;
        }
        assert_eq!(value.as_deref(), Some(expected), "{metric}");
    }
    let alert = example
        .said
        .recv_timeout(std::time::Duration::from_secs(60))
        .unwrap();
    assert_eq!(alert, "ALERT: user-address blocks 127.0.0.1 for 1 day");
}

/// What docs/axum.md shows of axum-login, which is no dependency of the tests, is in the program that is tested.
#[test]
fn the_page_shows_the_axum_login_example_as_it_is() {
    let page = include_str!("../../docs/axum.md");
    let program = include_str!("../../examples/axum-login/src/main.rs");
    let manifest = include_str!("../../examples/axum-login/Cargo.toml");
    let (_, page) = page.split_once("## With axum-login").expect("a section");
    let block = |language: &str| {
        let (_, block) = page
            .split_once(&format!("```{language}\n"))
            .expect(language);
        block.split_once("\n```").expect("an end").0
    };
    let mut rest = program;
    let mut shown = 0;
    for line in block("rust,ignore").lines().map(str::trim) {
        if line.is_empty() || line.starts_with("//") {
            continue;
        }
        // In the order of the program.
        let found = rest.lines().position(|other| other.trim() == line);
        let found = found.unwrap_or_else(|| panic!("not in the example: {line}"));
        let next: usize = rest
            .lines()
            .take(found + 1)
            .map(|line| line.len() + 1)
            .sum();
        rest = &rest[next.min(rest.len())..];
        shown += 1;
    }
    assert!(shown > 60, "{shown} lines");
    for line in block("toml").lines() {
        let line = line.split(" #").next().unwrap_or(line);
        let line = line.replace("version = \"0.1\"", "path = \"../..\"");
        assert!(manifest.contains(&line), "{line}");
    }
}
