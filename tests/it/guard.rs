//! Logins in another language: a Python login behind nginx, and one that asks the HTTP API itself. All of them real.

use std::{
    io::{BufRead, BufReader, Write},
    net::TcpStream,
    process::{Child, Command, Stdio},
    time::{Duration, Instant},
};

use reqwest::Response;
use tokio::{net::TcpListener, task::JoinHandle, time::sleep};
use tower_login_rate_limit::{
    Limit, LoginLimiter, Period, Policy, Reason, Rule,
    admin::Subject,
    server::{Role, Server, Tokens},
    store::MemoryStore,
};

use crate::support::{Nginx, client::client, ip};

const TOKEN: &str = "change-me-16-bytes-or-more";

/// The HTTP API on a port of its own.
struct Api {
    limiter: LoginLimiter,
    address: String,
    task: JoinHandle<()>,
}

impl Api {
    async fn start() -> Self {
        let limit = Limit::attempts(10).within(Period::days(1));
        let policy = Policy::default().with_address_limit(limit).unwrap();
        let limiter = LoginLimiter::new(policy, MemoryStore::new());
        let tokens = Tokens::new().with_token("guard", TOKEN, [Role::Decide]);
        let app = Server::new(limiter.clone(), tokens.unwrap())
            .unwrap()
            .router();
        let listener = TcpListener::bind("127.0.0.1:0").await.unwrap();
        let address = listener.local_addr().unwrap().to_string();
        let task = tokio::spawn(async { axum::serve(listener, app).await.unwrap() });
        Self {
            limiter,
            address,
            task,
        }
    }

    /// How many attempts of this machine count, failed or in flight.
    async fn usage(&self) -> u32 {
        let report = self.limiter.check(ip("127.0.0.1")).await.unwrap();
        report.rule(Rule::ADDRESS).unwrap().usage
    }

    /// How many of them have failed, once the outcome of each is reported.
    async fn failures(&self) -> u32 {
        let admin = self.limiter.admin().unwrap();
        let started = Instant::now();
        while started.elapsed() < Duration::from_secs(20) {
            let here = Subject::address(ip("127.0.0.1"));
            let explained = admin.explain(&here).await.unwrap();
            let mut attempts = explained.limits.iter().flat_map(|limit| &limit.attempts);
            if !attempts.any(|attempt| attempt.in_flight) {
                return self.usage().await;
            }
            sleep(Duration::from_millis(5)).await;
        }
        panic!("an outcome is not reported");
    }
}

/// A program of `examples/guard`, stopped when dropped.
struct Python {
    process: Child,
    url: String,
}

impl Python {
    fn start(program: &str, api: &Api) -> Self {
        let directory = concat!(env!("CARGO_MANIFEST_DIR"), "/examples/guard/");
        let mut process = Command::new(std::env::var("PYTHON").as_deref().unwrap_or("python3"))
            .arg(format!("{directory}{program}"))
            .env("LISTEN", "127.0.0.1:0")
            .env("API_URL", format!("http://{}", api.address))
            .env("API_TOKEN", TOKEN)
            .env("PYTHONDONTWRITEBYTECODE", "1")
            .stdout(Stdio::piped())
            .spawn()
            .expect("python3 is missing: install it, or set PYTHON to its path");
        let mut line = String::new();
        let output = process.stdout.take().expect("its output");
        BufReader::new(output).read_line(&mut line).expect("a line");
        let url = line.trim().strip_prefix("Listening on ");
        let url = url.unwrap_or_else(|| panic!("{program}: {line:?}"));
        Self {
            url: url.to_owned(),
            process,
        }
    }
}

impl Drop for Python {
    fn drop(&mut self) {
        let _ = self.process.kill();
        let _ = self.process.wait();
    }
}

async fn login(url: &str, user: &str, password: &str) -> Response {
    let request = client()
        .post(format!("{url}/login"))
        .header("content-type", "application/x-www-form-urlencoded")
        // What the API trusts the proxy for.
        .header("x-login-address", "203.0.113.9")
        .header("x-login-method", "GET")
        .header("x-login-outcome", "success")
        .header("x-login-status", "200")
        .header("login-attempt", "forged");
    let form = format!("username={user}&password={password}");
    request.body(form).send().await.unwrap()
}

async fn refused(response: Response) -> String {
    assert_eq!(response.status(), 429);
    let seconds = response.headers()["retry-after"].to_str().unwrap().parse();
    assert!((86_000..=7 * 86_400).contains(&seconds.unwrap_or(0)));
    response.text().await.unwrap()
}

#[tokio::test(flavor = "multi_thread")]
async fn nginx_guards_a_login_that_has_no_code_for_it() {
    let api = Api::start().await;
    let app = Python::start("login.py", &api);
    let nginx = Nginx::with(
        include_str!("../../examples/guard/nginx.conf"),
        &[
            (
                "server 127.0.0.1:8001;",
                &format!("server {};", &app.url["http://".len()..]),
            ),
            (
                "server 127.0.0.1:8090;",
                &format!("server {};", api.address),
            ),
        ],
    );
    let page = client().get(format!("{}/login", nginx.url)).send().await;
    assert_eq!(page.unwrap().status(), 200);
    assert_eq!(
        login(&nginx.url, "user", "correct-horse").await.status(),
        200
    );
    assert_eq!(api.failures().await, 0);
    for i in 1..=9 {
        let response = login(&nginx.url, "user", "guess").await;
        assert_eq!(response.status(), 401);
        assert_eq!(response.text().await.unwrap(), "wrong user or password\n");
        assert_eq!(api.failures().await, i);
    }
    // A client that does not wait for the answer is counted too.
    let mut hasty = TcpStream::connect(&nginx.url["http://".len()..]).unwrap();
    let body = "username=user&password=guess";
    let head = "POST /login HTTP/1.1\r\nHost: localhost\r\nContent-Length";
    write!(hasty, "{head}: {}\r\n\r\n{body}", body.len()).unwrap();
    while api.usage().await < 10 {
        sleep(Duration::from_millis(1)).await;
    }
    drop(hasty);
    assert_eq!(api.failures().await, 10);

    let said = refused(login(&nginx.url, "user", "correct-horse").await).await;
    assert_eq!(said, "too many failed attempts, try again in 1 day\n");
    // Where no password is checked, nothing is guarded.
    for path in ["", "login", "login/", "LOGIN"] {
        let page = client().get(format!("{}/{path}", nginx.url)).send().await;
        assert_eq!(page.unwrap().status(), 200);
    }
    for path in [
        "/",
        "//login",
        "/login/",
        "/%6cogin",
        "/x/../login",
        "/LOGIN",
    ] {
        let mut stream = TcpStream::connect(&nginx.url["http://".len()..]).unwrap();
        let length = body.len();
        write!(
            stream,
            "POST {path} HTTP/1.0\r\nContent-Length: {length}\r\n\r\n{body}"
        )
        .unwrap();
        let mut status = String::new();
        BufReader::new(stream).read_line(&mut status).unwrap();
        assert!(
            status.contains(" 404 ") || status.contains(" 429 "),
            "{path}: {status}"
        );
    }
    let refusal = api.limiter.check(ip("127.0.0.1")).await.unwrap().refusal();
    assert_eq!(refusal.unwrap().reason(), Reason::Blocked);

    // Without an answer of the API no password is checked.
    api.limiter.unblock(ip("127.0.0.1")).await.unwrap();
    assert_eq!(
        login(&nginx.url, "user", "correct-horse").await.status(),
        200
    );
    api.task.abort();
    assert!(api.task.await.unwrap_err().is_cancelled());
    assert_eq!(
        login(&nginx.url, "user", "correct-horse").await.status(),
        500
    );
}

#[tokio::test(flavor = "multi_thread")]
async fn a_login_that_asks_the_api_is_limited_by_user_too() {
    let api = Api::start().await;
    let app = Python::start("login_with_api.py", &api);
    assert_eq!(login(&app.url, "user", "correct-horse").await.status(), 200);
    for _ in 0..5 {
        assert_eq!(login(&app.url, "user", "guess").await.status(), 401);
    }
    let said = refused(login(&app.url, "USER", "correct-horse").await).await;
    assert_eq!(said, "too many failed attempts, try again in 1 day\n");
    // Another user at the same address, who takes back an own failure and no other.
    assert_eq!(login(&app.url, "admin", "guess").await.status(), 401);
    assert_eq!(api.failures().await, 6);
    assert_eq!(
        login(&app.url, "admin", "battery-staple").await.status(),
        200
    );
    assert_eq!(api.failures().await, 5);
    api.task.abort();
    assert!(api.task.await.unwrap_err().is_cancelled());
    assert_eq!(
        login(&app.url, "admin", "battery-staple").await.status(),
        503
    );
}
