//! An OAuth 2.0 token endpoint: `cargo run --example oauth`, then
//!
//! ```sh
//! curl -i http://127.0.0.1:3004/token -d grant_type=password -d username=user -d password=guess
//! curl -i http://127.0.0.1:3004/token -d grant_type=refresh_token -d refresh_token=…
//! ```
//!
//! Passwords are limited and refresh tokens are not: they can't be guessed, and an office whose address is blocked
//! stays logged in. `LISTEN` sets the server's address.

use std::{
    collections::HashSet,
    env,
    error::Error,
    net::SocketAddr,
    sync::{Arc, Mutex, PoisonError},
};

use axum::{
    Form, Json, Router,
    extract::State,
    http::StatusCode,
    response::{IntoResponse, Response},
    routing::post,
};
use serde::Deserialize;
use serde_json::json;
use tower_login_rate_limit::{
    LoginAttempt, LoginLimiter, LoginRateLimitLayer, Policy, Token, extract::FormField,
    store::MemoryStore,
};

/// The refresh tokens that are valid.
type RefreshTokens = Arc<Mutex<HashSet<String>>>;

#[tokio::main]
async fn main() -> Result<(), Box<dyn Error>> {
    let limiter = LoginLimiter::new(Policy::default(), MemoryStore::new());
    let layer = LoginRateLimitLayer::new(limiter)
        .with_body_user(FormField::new("username"))
        // What is exempt is named, and not what counts: an unknown grant type counts. A body with two grant types
        // is refused.
        .with_body_filter(|body| Ok(body.field("grant_type")?.as_deref() != Some("refresh_token")));
    let app = Router::new()
        .route("/token", post(token).layer(layer))
        .with_state(RefreshTokens::default());

    let listen = env::var("LISTEN").unwrap_or_else(|_| "127.0.0.1:3004".to_owned());
    let listener = tokio::net::TcpListener::bind(listen).await?;
    println!("Listening at http://{}", listener.local_addr()?);
    let service = app.into_make_service_with_connect_info::<SocketAddr>();
    Ok(axum::serve(listener, service).await?)
}

#[derive(Deserialize)]
#[serde(tag = "grant_type", rename_all = "snake_case")]
enum Grant {
    Password { username: String, password: String },
    RefreshToken { refresh_token: String },
}

/// A request that does not count has no attempt.
async fn token(
    attempt: Option<LoginAttempt>,
    State(tokens): State<RefreshTokens>,
    Form(grant): Form<Grant>,
) -> Response {
    let is_granted = match grant {
        Grant::Password { username, password } => {
            let Some(attempt) = attempt else {
                return StatusCode::INTERNAL_SERVER_ERROR.into_response(); // no password without the layer
            };
            if (&*username, &*password) == ("user", "correct-horse") {
                attempt.succeeded();
                true
            } else {
                attempt.failed();
                false
            }
        }
        // Each is used once.
        Grant::RefreshToken { refresh_token } => {
            let mut tokens = tokens.lock().unwrap_or_else(PoisonError::into_inner);
            tokens.remove(&refresh_token)
        }
    };
    if !is_granted {
        let error = json!({"error": "invalid_grant"});
        return (StatusCode::BAD_REQUEST, Json(error)).into_response();
    }
    let [access, refresh] = [random(), random()];
    let mut tokens = tokens.lock().unwrap_or_else(PoisonError::into_inner);
    tokens.insert(refresh.clone());
    Json(json!({"access_token": access, "token_type": "Bearer", "refresh_token": refresh}))
        .into_response()
}

fn random() -> String {
    let bytes = [Token::new(), Token::new()].map(|token| u128::from_be_bytes(*token.as_bytes()));
    format!("{:032x}{:032x}", bytes[0], bytes[1])
}
