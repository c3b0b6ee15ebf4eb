//! The HTTP API, on real ports, with real stores.

mod console;
mod decisions;
mod description;
mod live;
mod once;
mod operations;
mod proxies;
mod repeated;
mod roles;
mod second_factor;

use std::{net::SocketAddr, sync::Arc, time::Duration};

use serde_json::{Value, json};
use tower_login_rate_limit::{
    LoginLimiter, Policy,
    event::{Feed, UserDisplay},
    server::{Role, Server, Tokens},
    store::{MemoryStore, Store},
};

use crate::support::{RedisServer, client::client};

pub const SECRET: &str = "the same 32 bytes on each instance";
pub const SHOP: &str = "decide-3f786850e387550fdab836ed7e6dc881";
pub const READER: &str = "read-89e6c98d92887913cadf06b2adb97f26cde4849b";
pub const OPERATOR: &str = "operate-2b66fd261ee5c6cfc8de7fa466bab600bcfe4f69";

pub fn tokens() -> Tokens {
    let tokens = Tokens::new().with_token("shop", SHOP, [Role::Decide]);
    let tokens = tokens.and_then(|tokens| tokens.with_token("rita", READER, [Role::Read]));
    let tokens = tokens.and_then(|tokens| tokens.with_token("oscar", OPERATOR, [Role::Operate]));
    tokens.expect("tokens")
}

/// An instance of the API.
pub struct Api {
    pub address: SocketAddr,
    pub limiter: LoginLimiter,
    client: reqwest::Client,
}

impl Api {
    pub async fn memory() -> Self {
        Self::with_policy(Policy::default()).await
    }

    pub async fn with_policy(policy: Policy) -> Self {
        Self::start(LoginLimiter::new(policy, MemoryStore::new())).await
    }

    pub async fn with_store(store: Arc<dyn Store>) -> Self {
        Self::start(LoginLimiter::new(Policy::default(), store)).await
    }

    pub async fn start(limiter: LoginLimiter) -> Self {
        Self::start_with(limiter, |server| {
            server.with_secret(SECRET).expect("long enough")
        })
        .await
    }

    pub async fn start_with(limiter: LoginLimiter, set: impl FnOnce(Server) -> Server) -> Self {
        Self::start_showing(limiter, UserDisplay::Clear, set).await
    }

    pub async fn start_showing(
        limiter: LoginLimiter,
        display: UserDisplay,
        set: impl FnOnce(Server) -> Server,
    ) -> Self {
        let feed = Feed::new(1_000);
        let limiter = limiter
            .with_user_display(display)
            .with_observer(feed.clone());
        let server = Server::new(limiter.clone(), tokens()).expect("a server");
        let app = set(server.with_feed(feed)).router();
        Self::serve(limiter, app).await
    }

    pub async fn serve(limiter: LoginLimiter, app: axum::Router) -> Self {
        let listener = tokio::net::TcpListener::bind("127.0.0.1:0").await;
        let listener = listener.expect("a port");
        let address = listener.local_addr().expect("an address");
        tokio::spawn(async move { axum::serve(listener, app).await });
        Self {
            address,
            limiter,
            client: client(),
        }
    }

    pub fn request(&self, method: &str, path: &str) -> reqwest::RequestBuilder {
        let method = method.parse().expect("a method");
        let url = format!("http://{}{path}", self.address);
        self.client.request(method, url)
    }

    /// An answer as JSON, by its status.
    pub async fn send(request: reqwest::RequestBuilder) -> (u16, Value) {
        let response = request.send().await.expect("an answer");
        let status = response.status();
        let headers = response.headers().clone();
        assert_eq!(headers["cache-control"], "no-store");
        assert_eq!(headers["x-content-type-options"], "nosniff");
        let text = response.text().await.expect("a body");
        let body = serde_json::from_str(&text).unwrap_or(Value::String(text));
        if status.is_client_error() || status.is_server_error() {
            assert_eq!(
                headers["content-type"], "application/problem+json",
                "{body}"
            );
            assert_eq!(body["status"], status.as_u16(), "{body}");
            assert!(
                body["detail"].as_str().is_some_and(|d| d.len() > 10),
                "{body}"
            );
        }
        (status.as_u16(), body)
    }

    pub async fn post(&self, token: &str, path: &str, body: &Value) -> (u16, Value) {
        Self::send(self.request("POST", path).bearer_auth(token).json(body)).await
    }

    pub async fn get(&self, token: &str, path: &str) -> (u16, Value) {
        Self::send(self.request("GET", path).bearer_auth(token)).await
    }

    /// Reserves an attempt.
    pub async fn reserve(&self, address: &str, user: &str) -> Value {
        let body = json!({"address": address, "user": user});
        let (status, decision) = self.post(SHOP, "/v1/attempts", &body).await;
        assert_eq!(status, 200, "{decision}");
        decision
    }

    pub async fn settle(&self, decision: &Value, outcome: &str) -> (u16, Value) {
        let token = decision["token"].as_str().expect("a token");
        let path = format!("/v1/attempts/{token}/outcome");
        self.post(SHOP, &path, &json!({"outcome": outcome})).await
    }

    pub async fn fail(&self, address: &str, user: &str, times: usize) {
        for _ in 0..times {
            let decision = self.reserve(address, user).await;
            assert_eq!(decision["admitted"], true, "{decision}");
            let (status, settled) = self.settle(&decision, "failure").await;
            assert_eq!(status, 200, "{settled}");
        }
    }
}

/// Instances that share a Redis.
pub async fn fleet<const N: usize>(redis: &RedisServer) -> [Api; N] {
    let mut instances = Vec::new();
    for _ in 0..N {
        let store = redis.builder().with_deadline(Duration::from_secs(5));
        let store = store.connect(redis.url()).await.expect("a store");
        instances.push(Api::with_store(Arc::new(store)).await);
    }
    instances.try_into().unwrap_or_else(|_| unreachable!())
}
