//! Mails that reset a password: `cargo run --example password_reset`, then
//!
//! ```sh
//! curl -i http://127.0.0.1:3007/forgot --json '{"email":"user@example.com"}'
//! curl -i http://127.0.0.1:3007/reset --json '{"token":"…","password":"new"}'
//! ```
//!
//! A mailbox receives three mails an hour, and an address asks for twenty a day: both count, or neither. Mails are
//! printed. The link is a secret too, so guesses at it are attempts. `LISTEN` sets the server's address.

use std::{
    collections::HashMap,
    env,
    error::Error,
    net::SocketAddr,
    sync::{Arc, Mutex, MutexGuard, PoisonError},
};

use axum::{
    Json, Router,
    extract::{ConnectInfo, State},
    http::StatusCode,
    routing::post,
};
use serde::Deserialize;
use tower_login_rate_limit::{
    Address, KeyLimiter, Limit, LoginAttempt, LoginLimiter, LoginRateLimitLayer, Period, Policy,
    ReserveError, Token,
    extract::JsonField,
    normalize,
    store::{MemoryStore, Store},
};

#[derive(Clone)]
struct App {
    limiter: LoginLimiter,
    mails: KeyLimiter,
    clients: KeyLimiter,
    accounts: Arc<Mutex<Accounts>>,
}

struct Accounts {
    /// Passwords by mail address; hashed, in an app.
    passwords: HashMap<String, String>,
    /// Mail addresses by the token of a link; hashed, in an app.
    links: HashMap<String, String>,
}

impl App {
    fn lock(&self) -> MutexGuard<'_, Accounts> {
        self.accounts.lock().unwrap_or_else(PoisonError::into_inner)
    }
}

#[tokio::main]
async fn main() -> Result<(), Box<dyn Error>> {
    let store: Arc<dyn Store> = Arc::new(MemoryStore::new());
    let limiter = LoginLimiter::new(Policy::default(), Arc::clone(&store));
    let three_an_hour = Limit::attempts(3).within(Period::hours(1)).without_block();
    let twenty_a_day = Limit::attempts(20).within(Period::days(1)).without_block();
    let mails = KeyLimiter::new("reset-mail", three_an_hour, store)?;
    let clients = mails.sibling("reset-address", twenty_a_day)?;
    let user = ("user@example.com".to_owned(), "correct-horse".to_owned());
    let accounts = Accounts {
        passwords: HashMap::from([user]),
        links: HashMap::new(),
    };

    let by_mail = LoginRateLimitLayer::new(limiter.clone()).with_body_user(JsonField::new("email"));
    let app = Router::new()
        .route("/login", post(login).layer(by_mail))
        // No user is known before the link is: guesses count by address.
        .route(
            "/reset",
            post(reset).layer(LoginRateLimitLayer::new(limiter.clone())),
        )
        .route("/forgot", post(forgot))
        .with_state(App {
            limiter,
            mails,
            clients,
            accounts: Arc::new(Mutex::new(accounts)),
        });

    let listen = env::var("LISTEN").unwrap_or_else(|_| "127.0.0.1:3007".to_owned());
    let listener = tokio::net::TcpListener::bind(listen).await?;
    println!("Listening at http://{}", listener.local_addr()?);
    let service = app.into_make_service_with_connect_info::<SocketAddr>();
    Ok(axum::serve(listener, service).await?)
}

#[derive(Deserialize)]
struct Forgot {
    email: String,
}

/// The response is the same whether the account exists, and so are the counters.
async fn forgot(
    State(app): State<App>,
    ConnectInfo(peer): ConnectInfo<SocketAddr>,
    Json(Forgot { email }): Json<Forgot>,
) -> Result<StatusCode, ReserveError> {
    let email = normalize(&email).into_owned(); // or each spelling would have mails of its own
    let client = Address::new(peer.ip(), 64).to_string();
    KeyLimiter::reserve_all([(&app.mails, &email), (&app.clients, &client)]).await?;
    let mut accounts = app.lock();
    if accounts.passwords.contains_key(&email) {
        let token = format!("{:032x}", u128::from_be_bytes(*Token::new().as_bytes()));
        println!("Mail to {email}: your link is {token}");
        accounts.links.insert(token, email);
    }
    Ok(StatusCode::ACCEPTED)
}

#[derive(Deserialize)]
struct Reset {
    token: String,
    password: String,
}

async fn reset(
    attempt: LoginAttempt,
    State(app): State<App>,
    ConnectInfo(peer): ConnectInfo<SocketAddr>,
    Json(reset): Json<Reset>,
) -> StatusCode {
    let email = {
        let mut accounts = app.lock();
        let Some(email) = accounts.links.remove(&reset.token) else {
            attempt.failed();
            return StatusCode::UNAUTHORIZED;
        };
        accounts.passwords.insert(email.clone(), reset.password);
        email
    };
    attempt.succeeded();
    // The owner forgot the password here: failures from this address no longer stand in the way.
    match app.limiter.cleanup(&email, [peer.ip()]).await {
        Ok(()) => StatusCode::OK,
        Err(_) => StatusCode::SERVICE_UNAVAILABLE,
    }
}

#[derive(Deserialize)]
struct Login {
    email: String,
    password: String,
}

async fn login(
    attempt: LoginAttempt,
    State(app): State<App>,
    Json(login): Json<Login>,
) -> StatusCode {
    let accounts = app.lock();
    if accounts.passwords.get(&*normalize(&login.email)) == Some(&login.password) {
        attempt.succeeded();
        StatusCode::OK
    } else {
        attempt.failed();
        StatusCode::UNAUTHORIZED
    }
}
