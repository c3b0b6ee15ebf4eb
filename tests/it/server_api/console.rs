//! The console, as a client that is no browser sees it.

use std::net::SocketAddr;

use axum::Router;
use http::request::Parts;
use reqwest::{RequestBuilder, Response};
use serde_json::json;
use tower_login_rate_limit::{
    LoginLimiter, Policy,
    console::Console,
    event::Feed,
    extract::ForwardedAddress,
    server::{Authorize, Operator, Role, Server, Unauthorized, authorize_fn},
    store::MemoryStore,
};

use super::{OPERATOR, READER, tokens};

struct Site {
    url: String,
    client: reqwest::Client,
}

impl Site {
    async fn start(authorize: impl Authorize, set: impl FnOnce(Console) -> Console) -> Self {
        let feed = Feed::new(100);
        let limiter = LoginLimiter::new(Policy::default(), MemoryStore::new());
        let limiter = limiter.with_observer(feed.clone());
        let server = Server::new(limiter, authorize).expect("a server");
        let console = set(Console::new(server.with_feed(feed)));
        let app: Router = Router::new().nest("/console", console.router());
        let listener = tokio::net::TcpListener::bind("127.0.0.1:0").await;
        let listener = listener.expect("a port");
        let url = format!("http://{}", listener.local_addr().expect("an address"));
        let service = app.into_make_service_with_connect_info::<SocketAddr>();
        tokio::spawn(async move { axum::serve(listener, service).await });
        let client = reqwest::Client::builder().no_proxy();
        let client = client.redirect(reqwest::redirect::Policy::none());
        Self {
            url,
            client: client.build().expect("a client"),
        }
    }

    fn get(&self, path: &str) -> RequestBuilder {
        self.client.get(format!("{}{path}", self.url))
    }

    fn post(&self, path: &str) -> RequestBuilder {
        self.client.post(format!("{}{path}", self.url))
    }

    fn login(&self, token: &str) -> RequestBuilder {
        let request = self.post("/console/login");
        let request = request.header("content-type", "application/x-www-form-urlencoded");
        request.body(format!("token={token}"))
    }
}

async fn send(request: RequestBuilder) -> Response {
    request.send().await.expect("an answer")
}

/// The administrators of an app, by its own cookie.
fn app_sessions() -> impl Authorize {
    authorize_fn(|request: &Parts| {
        let cookie = request.headers.get("cookie");
        let operator = match cookie.and_then(|cookie| cookie.to_str().ok()) {
            Some("app=ines") => Ok(Operator::new("ines", [Role::Operate])),
            Some("app=tom") => Ok(Operator::new("tom", [Role::Read])),
            Some("app=shop") => Ok(Operator::new("shop", [Role::Decide])),
            _ => Err(Unauthorized::Unknown),
        };
        std::future::ready(operator)
    })
}

#[tokio::test]
async fn without_a_login_the_app_decides_who_is_let_in() {
    let site = Site::start(app_sessions(), Console::without_login).await;
    let page = async |cookie: &str| send(site.get("/console").header("cookie", cookie)).await;
    assert_eq!(page("").await.status(), 401);
    assert_eq!(page("app=shop").await.status(), 403);
    let shell = page("app=tom").await;
    assert_eq!(shell.status(), 200);
    assert!(!shell.headers().contains_key("set-cookie"));
    assert!(shell.headers().contains_key("content-security-policy"));
    let html = shell.text().await.expect("a page");
    assert!(html.contains("data-without-login"), "{html}");

    // There is nothing to log in to, or out of.
    assert_eq!(send(site.get("/console/login")).await.status(), 404);
    for path in ["/console/login", "/console/logout"] {
        let status = send(site.post(path)).await.status().as_u16();
        assert!(matches!(status, 404 | 405), "{path} {status}");
    }

    // The API below it knows the same operators, and roles and origins count.
    let note = |cookie: &str| {
        let body = json!({"address": "192.0.2.1", "note": "the office"});
        let request = site.post("/console/api/v1/admin/notes");
        request.header("cookie", cookie).json(&body)
    };
    assert_eq!(send(note("")).await.status(), 401);
    assert_eq!(send(note("app=tom")).await.status(), 403);
    let forged = note("app=ines").header("origin", "https://evil.example");
    assert_eq!(send(forged).await.status(), 403);
    assert_eq!(send(note("app=ines")).await.status(), 200);
    let status = site.get("/console/api/v1/admin/status");
    let status = send(status.header("cookie", "app=ines")).await;
    let status: serde_json::Value = status.json().await.expect("JSON");
    assert_eq!(status["operator"]["name"], "ines");
    let attempts = site.post("/console/api/v1/attempts");
    let attempts = attempts.header("cookie", "app=shop");
    let attempts = attempts.json(&json!({"address": "192.0.2.1"}));
    assert_eq!(send(attempts).await.status(), 404);
}

async fn cookie(request: RequestBuilder) -> String {
    let response = send(request).await;
    assert_eq!(response.status(), 303);
    let cookie = response.headers()["set-cookie"].to_str();
    cookie.expect("a text").to_owned()
}

/// Behind a proxy that ends TLS, the browser's own origin tells; a header that any client can send does not.
#[tokio::test]
async fn the_cookie_is_secure_by_the_origin_of_the_browser_or_by_a_setting() {
    let site = Site::start(tokens(), |console| console).await;
    let host = site.url.trim_start_matches("http://").to_owned();
    let plain = cookie(site.login(OPERATOR)).await;
    assert!(!plain.contains("Secure"), "{plain}");
    let http = site.login(OPERATOR).header("origin", &site.url);
    assert!(!cookie(http).await.contains("Secure"));
    let https = site
        .login(OPERATOR)
        .header("origin", format!("https://{host}"));
    assert!(cookie(https).await.ends_with("; Secure"));
    for (name, value) in [
        ("x-forwarded-proto", "https"),
        ("forwarded", "proto=https"),
        ("x-forwarded-ssl", "on"),
        ("referer", "https://console.example/"),
    ] {
        let forwarded = cookie(site.login(OPERATOR).header(name, value)).await;
        assert!(!forwarded.contains("Secure"), "{name}: {forwarded}");
    }

    let secure = |console: Console| console.with_secure_cookie(true);
    let site = Site::start(tokens(), secure).await;
    for request in [
        site.login(OPERATOR),
        site.login(OPERATOR).header("x-forwarded-proto", "http"),
        site.login(OPERATOR).header("origin", &site.url),
    ] {
        let set = cookie(request).await;
        assert!(set.ends_with("; Secure"), "{set}");
    }
}

/// An attacker sets the cookie of a session, and waits for an operator to log in with it.
#[tokio::test]
async fn a_session_is_never_one_that_the_browser_had_before() {
    let site = Site::start(tokens(), |console| console).await;
    let status = async |cookie: &str| {
        let request = site.get("/console/api/v1/admin/status");
        send(request.header("cookie", cookie))
            .await
            .status()
            .as_u16()
    };
    let planted = "login-console=AAAAAAAAAAAAAAAAAAAAAAAAAAAAAAAAAAAAAAAAAAA";
    let first = cookie(site.login(OPERATOR).header("cookie", planted)).await;
    let first = first.split(';').next().expect("a pair").to_owned();
    assert_ne!(first, planted);
    assert_eq!((status(planted).await, status(&first).await), (401, 200));
    // A login in the same browser ends the session before it.
    let second = cookie(site.login(OPERATOR).header("cookie", &first)).await;
    let second = second.split(';').next().expect("a pair").to_owned();
    assert_ne!(second, first);
    assert_eq!((status(&first).await, status(&second).await), (401, 200));
}

/// Who has a network of IPv6 has as many addresses as it takes.
#[tokio::test]
async fn a_neighbor_who_guesses_tokens_locks_no_operator_out_for_a_day() {
    let proxy = ForwardedAddress::x_forwarded_for(["127.0.0.0/8"]).expect("a network");
    let site = Site::start(tokens(), |console| console.with_address(proxy)).await;
    let login = async |address: &str, token: &str| {
        let request = site.login(token).header("x-forwarded-for", address);
        send(request).await
    };
    for guess in 0..500 {
        // 10 of each /64, in two /56 of one /48.
        let address = format!("2001:db8:0:{:x}::1", guess / 10 * 8);
        login(&address, "wrong").await;
    }
    for address in ["2001:db8:0:ff::1", "2001:db8:0:ff00::1"] {
        let answer = login(address, OPERATOR).await;
        let waits = answer.headers().get("retry-after");
        let waits = waits.map_or("0", |waits| waits.to_str().expect("a text"));
        let waits: u64 = waits.parse().expect("a number");
        assert!(waits <= 60, "{address} waits for {waits} seconds");
    }
}

/// Each login begins a session, and the number of sessions is bounded.
#[tokio::test]
async fn a_reader_who_logs_in_again_and_again_logs_no_operator_out() {
    let site = Site::start(tokens(), |console| console).await;
    let session = cookie(site.login(OPERATOR)).await;
    let session = session.split(';').next().expect("a pair").to_owned();
    for _ in 0..1_000 {
        assert_eq!(send(site.login(READER)).await.status(), 303);
    }
    let status = site.get("/console/api/v1/admin/status");
    let status = send(status.header("cookie", session)).await;
    assert_eq!(status.status(), 200);
}

/// Whoever reaches the page can send a form.
#[tokio::test]
async fn a_login_of_a_megabyte_is_not_read() {
    let site = Site::start(tokens(), |console| console).await;
    let login = send(site.login(&"x".repeat(1_000_000))).await;
    assert_eq!(login.status(), 413);
    assert_eq!(send(site.login(OPERATOR)).await.status(), 303);
}

/// A form of another site can send these types without being asked for.
#[tokio::test]
async fn a_form_of_another_site_changes_nothing_with_any_content_type() {
    let site = Site::start(tokens(), |console| console).await;
    let session = cookie(site.login(OPERATOR)).await;
    let session = session.split(';').next().expect("a pair").to_owned();
    let send_as = async |kind: &str, header: Option<(&str, &str)>| {
        let request = site.post("/console/api/v1/admin/notes");
        let mut request = request.header("cookie", &session);
        request = request.header("content-type", kind);
        if let Some((name, value)) = header {
            request = request.header(name, value);
        }
        let body = r#"{"address": "192.0.2.1", "note": "forged"}"#;
        send(request.body(body)).await.status().as_u16()
    };
    for kind in [
        "text/plain",
        "application/x-www-form-urlencoded",
        "multipart/form-data; boundary=x",
        "text/plain; application/json",
        "",
    ] {
        // Of an old browser that sends neither header, only the type is left.
        assert_eq!(send_as(kind, None).await, 415, "{kind}");
        for (name, value) in [
            ("origin", "null"),
            ("origin", "https://evil.example"),
            ("sec-fetch-site", "cross-site"),
        ] {
            assert_eq!(send_as(kind, Some((name, value))).await, 403, "{kind}");
        }
    }
    assert_eq!(send_as("application/json", None).await, 200);
}

#[tokio::test]
async fn no_path_leads_out_of_the_files_of_the_page() {
    let site = Site::start(tokens(), |console| console).await;
    let address = site.url.trim_start_matches("http://").to_owned();
    for path in [
        "/console/assets/../mod.rs",
        "/console/assets/..%2fmod.rs",
        "/console/assets/%2e%2e/%2e%2e/Cargo.toml",
        "/console/assets//etc/passwd",
        "/console/assets/....//mod.rs",
        "/console/assets/index.html",
        "/console/assets/login.html",
        "/console/assets/console.css%00.js",
        "/console/assets/..\\mod.rs",
        "/console/api/v1/admin/../attempts",
        "/console/api/v1/admin/%2e%2e/attempts",
    ] {
        // By hand: a client would normalize it.
        let request =
            format!("GET {path} HTTP/1.1\r\nHost: {address}\r\nConnection: close\r\n\r\n");
        let address = address.clone();
        let answer = tokio::task::spawn_blocking(move || {
            use std::io::{Read, Write};
            let mut stream = std::net::TcpStream::connect(address).expect("connected");
            stream.write_all(request.as_bytes()).expect("sent");
            let mut answer = String::new();
            stream.read_to_string(&mut answer).expect("an answer");
            answer
        });
        let answer = answer.await.expect("an answer");
        let status: u16 = answer[9..12].parse().expect("a status");
        assert!(matches!(status, 400 | 401 | 404), "{path} {answer}");
    }
}
