//! Password, then code, with sessions: `cargo run --example mfa`, then
//!
//! ```sh
//! curl -i http://127.0.0.1:3002/password --json '{"username":"user","password":"correct-horse"}'
//! curl -i http://127.0.0.1:3002/code -H 'session: …' --json '{"code":"123456"}'
//! ```
//!
//! Both steps count on the same counters, and codes also by account over all addresses. A right password takes back nothing but itself, so it never
//! refills the guesses at the code; the last factor's success clears the user's failures. `LISTEN`
//! sets the server's address.

use std::{
    collections::HashMap,
    env,
    error::Error,
    net::SocketAddr,
    sync::{Arc, Mutex},
};

use axum::{
    Json, Router,
    extract::State,
    http::{HeaderMap, StatusCode, request::Parts},
    response::{IntoResponse, Response},
    routing::post,
};
use serde::Deserialize;
use serde_json::json;
use tower_login_rate_limit::{
    LoginAttempt, LoginLimiter, LoginRateLimitLayer, Policy, Token, extract::JsonField,
    store::MemoryStore,
};

/// Who has typed the right password and owes the code.
type Sessions = Arc<Mutex<HashMap<String, String>>>;

#[tokio::main]
async fn main() -> Result<(), Box<dyn Error>> {
    let limiter = LoginLimiter::new(Policy::default(), MemoryStore::new());
    let sessions = Sessions::default();

    let for_password =
        LoginRateLimitLayer::new(limiter.clone()).with_body_user(JsonField::new("username"));
    // The code's request does not name the user; its session does.
    let known = Arc::clone(&sessions);
    let for_code = LoginRateLimitLayer::new(limiter)
        .with_second_factor(true)
        .with_user(move |request: &Parts| {
            let session = request.headers.get("session")?.to_str().ok()?;
            known.lock().ok()?.get(session).cloned()
        });

    let app = Router::new()
        .route("/password", post(password).layer(for_password))
        .route("/code", post(code).layer(for_code))
        .with_state(sessions);
    let listen = env::var("LISTEN").unwrap_or_else(|_| "127.0.0.1:3002".to_owned());
    let listener = tokio::net::TcpListener::bind(listen).await?;
    println!("Listening at http://{}", listener.local_addr()?);
    let service = app.into_make_service_with_connect_info::<SocketAddr>();
    Ok(axum::serve(listener, service).await?)
}

#[derive(Deserialize)]
struct Password {
    username: String,
    password: String,
}

async fn password(
    State(sessions): State<Sessions>,
    attempt: LoginAttempt,
    Json(login): Json<Password>,
) -> Response {
    if (&*login.username, &*login.password) != ("user", "correct-horse") {
        attempt.failed();
        return StatusCode::UNAUTHORIZED.into_response();
    }
    attempt.mfa_pending();
    let session = Token::new().to_string();
    if let Ok(mut sessions) = sessions.lock() {
        sessions.insert(session.clone(), login.username);
    }
    Json(json!({"mfa": "required", "session": session})).into_response()
}

#[derive(Deserialize)]
struct Code {
    code: String,
}

async fn code(
    State(sessions): State<Sessions>,
    attempt: LoginAttempt,
    headers: HeaderMap,
    Json(Code { code }): Json<Code>,
) -> StatusCode {
    let session = headers.get("session").and_then(|value| value.to_str().ok());
    let known = session.is_some_and(|session| {
        let sessions = sessions.lock();
        sessions.is_ok_and(|sessions| sessions.contains_key(session))
    });
    if known && code == "123456" {
        attempt.succeeded();
        // A session that has served its purpose is over.
        if let (Some(session), Ok(mut sessions)) = (session, sessions.lock()) {
            sessions.remove(session);
        }
        StatusCode::OK
    } else {
        attempt.failed();
        StatusCode::UNAUTHORIZED
    }
}
