//! A real login server on a real socket, and clients of it.

use std::{
    net::SocketAddr,
    sync::{
        Arc,
        atomic::{AtomicUsize, Ordering},
    },
};

use axum::{
    Json, Router,
    extract::State,
    http::StatusCode,
    response::{IntoResponse, Response},
    routing::post,
};
use serde::{Deserialize, Serialize};
use tower_login_rate_limit::{
    LoginAttempt, LoginLimiter, LoginRateLimitLayer, Outcome, Policy, WithBody,
    extract::JsonField,
    store::{MemoryStore, Store},
};

use super::RedisServer;

pub use super::client::client;

/// A password says what the handler does with it.
#[derive(Clone, Copy)]
pub struct Word(pub &'static str);

pub const RIGHT: Word = Word("right");
pub const WRONG: Word = Word("wrong");
pub const UNKNOWN: Word = Word("unknown");
pub const MFA: Word = Word("mfa");
pub const ODD: Word = Word("odd");
pub const CRASH: Word = Word("crash");
pub const PANIC: Word = Word("panic");
pub const HANG: Word = Word("hang");
pub const SILENT: Word = Word("silent");
pub const IN_RESPONSE: Word = Word("in-response");
pub const TWICE: Word = Word("twice");

#[derive(Serialize, Deserialize)]
pub struct Login {
    pub username: String,
    pub password: String,
}

/// How often a handler was reached.
#[derive(Clone, Default)]
pub struct Handled(Arc<AtomicUsize>);

impl Handled {
    pub fn count(&self) -> usize {
        self.0.load(Ordering::SeqCst)
    }
}

pub async fn handler(
    State(handled): State<Handled>,
    attempt: LoginAttempt,
    Json(login): Json<Login>,
) -> Response {
    handled.0.fetch_add(1, Ordering::SeqCst);
    let wrong = (StatusCode::UNAUTHORIZED, "wrong user or password").into_response();
    match login.password.as_str() {
        "right" => {
            attempt.succeeded();
            "welcome".into_response()
        }
        "wrong" => {
            attempt.failed();
            wrong
        }
        "unknown" => {
            attempt.unknown_user();
            wrong
        }
        "mfa" => {
            attempt.mfa_pending();
            "code?".into_response()
        }
        "odd" => {
            attempt.not_an_attempt();
            StatusCode::BAD_REQUEST.into_response()
        }
        "crash" => StatusCode::INTERNAL_SERVER_ERROR.into_response(),
        "panic" => panic!("as it was told to"),
        "hang" => std::future::pending().await,
        "in-response" => {
            let mut response = "welcome".into_response();
            response.extensions_mut().insert(Outcome::Success);
            response
        }
        "twice" => {
            attempt.failed();
            attempt.succeeded();
            wrong
        }
        // A page that says 200 to a wrong password, and tells nobody.
        _ => "that was not right".into_response(),
    }
}

pub struct LoginServer {
    pub address: SocketAddr,
    pub handled: Handled,
    pub limiter: LoginLimiter,
}

impl LoginServer {
    pub async fn start(limiter: LoginLimiter) -> Self {
        Self::start_with(limiter, |layer| layer).await
    }

    pub async fn start_with(
        limiter: LoginLimiter,
        set: impl FnOnce(LoginRateLimitLayer<WithBody>) -> LoginRateLimitLayer<WithBody>,
    ) -> Self {
        let handled = Handled::default();
        let layer = LoginRateLimitLayer::new(limiter.clone());
        let layer = set(layer.with_body_user(JsonField::new("username")));
        let app = Router::new()
            .route("/login", post(handler))
            .layer(layer)
            .with_state(handled.clone());
        let listener = tokio::net::TcpListener::bind("127.0.0.1:0")
            .await
            .expect("a port");
        let address = listener.local_addr().expect("an address");
        let service = app.into_make_service_with_connect_info::<SocketAddr>();
        tokio::spawn(async move { axum::serve(listener, service).await });
        Self {
            address,
            handled,
            limiter,
        }
    }

    pub fn url(&self) -> String {
        format!("http://{}/login", self.address)
    }

    pub async fn post(&self, user: &str, word: Word) -> reqwest::Response {
        self.post_by(&client(), user, word)
            .await
            .expect("an answer")
    }

    pub async fn post_by(
        &self,
        client: &reqwest::Client,
        user: &str,
        word: Word,
    ) -> reqwest::Result<reqwest::Response> {
        let login = Login {
            username: user.to_owned(),
            password: word.0.to_owned(),
        };
        client.post(self.url()).json(&login).send().await
    }

    pub async fn status(&self, user: &str, word: Word) -> u16 {
        self.post(user, word).await.status().as_u16()
    }

    /// Usage of the address and of the user from there.
    pub async fn usage(&self, user: &str) -> (u32, u32) {
        let address = "127.0.0.1".parse().expect("an address");
        let report = self
            .limiter
            .check(std::net::IpAddr::V4(address))
            .await
            .expect("checked");
        let of_user = self
            .limiter
            .check((address.into(), user))
            .await
            .expect("checked");
        let of = |report: &tower_login_rate_limit::Report, rule| {
            report.rule(rule).map_or(0, |standing| standing.usage)
        };
        (of(&report, "address"), of(&of_user, "user-address"))
    }
}

/// The same limiter on both kinds of store.
pub async fn on_both_stores(policy: Policy) -> (RedisServer, [LoginLimiter; 2]) {
    let redis = RedisServer::start();
    let stores: [Arc<dyn Store>; 2] = [Arc::new(MemoryStore::new()), Arc::new(redis.store().await)];
    let limiters = stores.map(|store| LoginLimiter::new(policy.clone(), store));
    (redis, limiters)
}
