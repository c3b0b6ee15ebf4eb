//! A login server: `cargo run --example axum`, then open <http://127.0.0.1:3000>.
//!
//! Environment: `LISTEN` (default `127.0.0.1:3000`); `REDIS_URL`, to keep the counters in Redis;
//! `TRUSTED_PROXIES`, networks of proxies whose `X-Forwarded-For` is believed, separated by commas.

use std::{env, error::Error, net::SocketAddr, sync::Arc};

use axum::{
    Json, Router,
    extract::{Request, State},
    http::StatusCode,
    response::{Html, IntoResponse, Response},
    routing::{get, post},
};
use serde::Deserialize;
use serde_json::json;
use tower_login_rate_limit::{
    LoginAttempt, LoginLimiter, LoginRateLimitLayer, Policy,
    extract::{ExtractAddress, ForwardedAddress, JsonField, PeerAddress},
    store::{MemoryStore, RedisStore, Store},
};

#[tokio::main]
async fn main() -> Result<(), Box<dyn Error>> {
    tracing_subscriber::fmt().init();
    let limiter = LoginLimiter::new(Policy::default(), store().await?);

    // One layer for both doors: the password and the code.
    let proxies = env::var("TRUSTED_PROXIES").unwrap_or_default();
    let address: Arc<dyn ExtractAddress> = match proxies.as_str() {
        "" => Arc::new(PeerAddress),
        proxies => Arc::new(ForwardedAddress::x_forwarded_for(proxies.split(','))?),
    };
    let layer = LoginRateLimitLayer::new(limiter.clone())
        .with_body_user(JsonField::new("username"))
        .with_address(Arc::clone(&address));

    let app = Router::new()
        .route("/login", post(password))
        .route("/login/mfa", post(code))
        .route_layer(layer) // not around pages that do not exist
        .route("/", get(page))
        .with_state(App {
            limiter: limiter.clone(),
            address,
        });

    let listen = env::var("LISTEN").unwrap_or_else(|_| "127.0.0.1:3000".to_owned());
    let listener = tokio::net::TcpListener::bind(&listen).await?;
    let address = listener.local_addr()?;
    println!(
        "Guarding POST http://{address}/login and /login/mfa: 5 wrong passwords for a user block it for 24 hours."
    );
    println!("Accounts: user / correct-horse, and mfa-user / battery-staple with the code 123456.");
    println!("Open http://{address}, or try:");
    println!(
        "  curl -i http://{address}/login --json '{{\"username\":\"user\",\"password\":\"guess\"}}'"
    );

    // The layer needs to know where requests come from.
    let service = app.into_make_service_with_connect_info::<SocketAddr>();
    axum::serve(listener, service)
        .with_graceful_shutdown(async { drop(tokio::signal::ctrl_c().await) })
        .await?;
    limiter.all_settled().await?;
    Ok(())
}

#[derive(Deserialize)]
struct Password {
    username: String,
    password: String,
}

async fn password(attempt: LoginAttempt, Json(login): Json<Password>) -> Response {
    match (login.username.as_str(), login.password.as_str()) {
        ("user", "correct-horse") => {
            attempt.succeeded();
            Json(json!({"welcome": "user"})).into_response()
        }
        ("mfa-user", "battery-staple") => {
            attempt.mfa_pending();
            Json(json!({"mfa": "required"})).into_response()
        }
        ("user" | "mfa-user", _) => {
            attempt.failed();
            wrong(&attempt)
        }
        _ => {
            attempt.unknown_user();
            wrong(&attempt)
        }
    }
}

#[derive(Deserialize)]
struct Code {
    username: String,
    code: String,
}

async fn code(attempt: LoginAttempt, Json(login): Json<Code>) -> Response {
    // A real server also knows from a session that the password was right.
    match (login.username.as_str(), login.code.as_str()) {
        ("mfa-user", "123456") => {
            attempt.succeeded();
            Json(json!({"welcome": "mfa-user"})).into_response()
        }
        _ => {
            attempt.failed();
            wrong(&attempt)
        }
    }
}

/// The same for a wrong password and for a user who does not exist.
fn wrong(attempt: &LoginAttempt) -> Response {
    let body = json!({"error": "wrong user or password", "remaining": attempt.remaining()});
    (StatusCode::UNAUTHORIZED, Json(body)).into_response()
}

#[derive(Clone)]
struct App {
    limiter: LoginLimiter,
    address: Arc<dyn ExtractAddress>,
}

async fn page(State(app): State<App>, request: Request) -> Html<String> {
    // The page asks how the address stands, which counts nothing.
    let (request, _) = request.into_parts();
    let left = match app.address.extract_address(&request) {
        Ok(address) => app.limiter.check(address).await.ok(),
        Err(_) => None,
    };
    let left = left.and_then(|report| report.remaining());
    let left = left.map_or("?".to_owned(), |left| left.to_string());
    Html(include_str!("page.html").replace("{{left}}", &left))
}

/// In memory, or in Redis if there is a URL.
async fn store() -> Result<Arc<dyn Store>, Box<dyn Error>> {
    match env::var("REDIS_URL") {
        Ok(url) => Ok(Arc::new(RedisStore::connect(url).await?)),
        Err(_) => Ok(Arc::new(MemoryStore::new())),
    }
}
