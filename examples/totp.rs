//! Password and authenticator app (TOTP): `cargo run --example totp`, then
//!
//! ```sh
//! curl -i http://127.0.0.1:3006/password --json '{"username":"user","password":"correct-horse"}'
//! curl -i http://127.0.0.1:3006/code -H 'session: …' --json '{"code":"…"}'
//! ```
//!
//! The secret for the app is printed. A wrong code is a failure on the same counters as a wrong password, and codes
//! are limited per account over all addresses too. A code is good for one login. `LISTEN` sets the server's address.

use std::{
    collections::HashMap,
    env,
    error::Error,
    net::SocketAddr,
    sync::{Arc, Mutex, MutexGuard, PoisonError},
    time::{SystemTime, UNIX_EPOCH},
};

use axum::{
    Json, Router,
    extract::State,
    http::{HeaderMap, StatusCode},
    response::{IntoResponse, Response},
    routing::post,
};
use serde::Deserialize;
use serde_json::json;
use totp_rs::{Algorithm, Secret, TOTP};
use tower_login_rate_limit::{
    LoginAttempt, LoginLimiter, LoginRateLimitLayer, Policy, Token,
    extract::{JsonField, user_fn},
    store::MemoryStore,
};

#[derive(Clone)]
struct App {
    totp: Arc<TOTP>,
    state: Arc<Mutex<Accounts>>,
}

#[derive(Default)]
struct Accounts {
    /// Users who have sent the correct password and no code yet, by session.
    sessions: HashMap<String, String>,
    /// The newest step whose code was accepted: a code that was watched can't be used again.
    last_step: Option<u64>,
}

impl App {
    fn lock(&self) -> MutexGuard<'_, Accounts> {
        self.state.lock().unwrap_or_else(PoisonError::into_inner)
    }
}

const STEP: u64 = 30;

#[tokio::main]
async fn main() -> Result<(), Box<dyn Error>> {
    let secret = Secret::Raw(Token::new().as_bytes().to_vec());
    println!("Secret: {}", secret.to_encoded());
    // Skew 0: `code` compares with the steps around now itself.
    let totp = TOTP::new(Algorithm::SHA1, 6, 0, STEP, secret.to_bytes()?)?;
    let app = App {
        totp: Arc::new(totp),
        state: Arc::default(),
    };

    let limiter = LoginLimiter::new(Policy::default(), MemoryStore::new());
    let for_password =
        LoginRateLimitLayer::new(limiter.clone()).with_body_user(JsonField::new("username"));
    // The session names the user, since only the correct password has made it.
    let known = app.clone();
    let for_code = LoginRateLimitLayer::new(limiter)
        .with_second_factor(true)
        .with_user(user_fn(move |request| {
            let session = request.headers.get("session")?.to_str().ok()?;
            known.lock().sessions.get(session).cloned()
        }));
    let app = Router::new()
        .route("/password", post(password).layer(for_password))
        .route("/code", post(code).layer(for_code))
        .with_state(app);

    let listen = env::var("LISTEN").unwrap_or_else(|_| "127.0.0.1:3006".to_owned());
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
    attempt: LoginAttempt,
    State(app): State<App>,
    Json(login): Json<Password>,
) -> Response {
    if (&*login.username, &*login.password) != ("user", "correct-horse") {
        attempt.failed();
        return StatusCode::UNAUTHORIZED.into_response();
    }
    attempt.mfa_pending(); // takes back this attempt, and none of the wrong codes before
    let session = format!("{:032x}", u128::from_be_bytes(*Token::new().as_bytes()));
    app.lock().sessions.insert(session.clone(), login.username);
    Json(json!({"session": session})).into_response()
}

#[derive(Deserialize)]
struct Code {
    code: String,
}

async fn code(
    attempt: LoginAttempt,
    State(app): State<App>,
    headers: HeaderMap,
    Json(Code { code }): Json<Code>,
) -> StatusCode {
    let session = headers.get("session").and_then(|value| value.to_str().ok());
    let Some(session) = session.filter(|session| app.lock().sessions.contains_key(*session)) else {
        attempt.failed();
        return StatusCode::UNAUTHORIZED;
    };
    let now = SystemTime::now().duration_since(UNIX_EPOCH);
    let step = now.map_or(0, |now| now.as_secs() / STEP);
    // Clocks differ: one step before and after. `check` compares in constant time.
    let matching = [step - 1, step, step + 1]
        .into_iter()
        .find(|step| app.totp.check(&code, step * STEP));
    let mut accounts = app.lock();
    if matching.is_none() || matching <= accounts.last_step {
        attempt.failed();
        return StatusCode::UNAUTHORIZED;
    }
    accounts.last_step = matching;
    accounts.sessions.remove(session);
    attempt.succeeded();
    StatusCode::OK
}
