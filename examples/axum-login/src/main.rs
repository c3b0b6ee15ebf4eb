//! A login form with axum-login, tower-sessions, SQLite and argon2:
//!
//! ```sh
//! cargo run --manifest-path examples/axum-login/Cargo.toml
//! ```
//!
//! Then open <http://127.0.0.1:3010> and guess the password of `user@example.com`, which is `correct-horse`.
//! Environment: `LISTEN`, and `DATABASE` (a file; the default is in memory).

mod users;

use std::{env, error::Error, net::SocketAddr};

use axum::{
    Form, Router,
    http::StatusCode,
    response::{Html, IntoResponse, Redirect, Response},
    routing::{get, post},
};
use axum_login::{AuthManagerLayerBuilder, login_required};
use tower_login_rate_limit::{
    LoginAttempt, LoginLimiter, LoginRateLimitLayer, Policy,
    extract::FormField,
    response::{English, Words},
    store::MemoryStore,
};
use tower_sessions::{MemoryStore as SessionStore, SessionManagerLayer};

use users::{Backend, Credentials};

type AuthSession = axum_login::AuthSession<Backend>;

#[tokio::main]
async fn main() -> Result<(), Box<dyn Error>> {
    tracing_subscriber::fmt()
        .with_writer(std::io::stderr)
        .init();
    let users = Backend::open(&env::var("DATABASE").unwrap_or_else(|_| ":memory:".to_owned()))?;
    users.add("user@example.com", "correct-horse")?;

    let limiter = LoginLimiter::new(Policy::default(), MemoryStore::new());
    let guard = LoginRateLimitLayer::new(limiter.clone()).with_body_user(FormField::new("email"));
    // `with_secure(false)` since this server has no TLS; an app behind TLS leaves it out.
    let sessions = SessionManagerLayer::new(SessionStore::default()).with_secure(false);
    let app = Router::new()
        .route("/", get(home))
        .route("/logout", post(log_out))
        .route_layer(login_required!(Backend, login_url = "/login"))
        // The guard is on the one route that takes a password, inside of the sessions.
        .route(
            "/login",
            get(async || form("")).merge(post(log_in).layer(guard)),
        )
        .layer(AuthManagerLayerBuilder::new(users, sessions).build());

    let listen = env::var("LISTEN").unwrap_or_else(|_| "127.0.0.1:3010".to_owned());
    let listener = tokio::net::TcpListener::bind(listen).await?;
    println!("Open http://{}", listener.local_addr()?);
    // The guard needs the address of the client.
    let service = app.into_make_service_with_connect_info::<SocketAddr>();
    axum::serve(listener, service)
        .with_graceful_shutdown(async { drop(tokio::signal::ctrl_c().await) })
        .await?;
    limiter.all_settled().await?;
    Ok(())
}

async fn log_in(
    attempt: LoginAttempt,
    mut session: AuthSession,
    Form(credentials): Form<Credentials>,
) -> Result<Response, StatusCode> {
    let user = match session.authenticate(credentials).await {
        Ok(user) => user,
        Err(_) => {
            attempt.not_an_attempt(); // the database failed, and not the client
            return Err(StatusCode::INTERNAL_SERVER_ERROR);
        }
    };
    let Some(user) = user else {
        attempt.failed();
        return Ok((StatusCode::UNAUTHORIZED, form(&what_is_left(&attempt))).into_response());
    };
    attempt.succeeded();
    let logged_in = session.login(&user).await;
    logged_in.map_err(|_| StatusCode::INTERNAL_SERVER_ERROR)?;
    Ok(Redirect::to("/").into_response())
}

/// What a failure leaves, for the person who logs in.
fn what_is_left(attempt: &LoginAttempt) -> String {
    let wrong = "Wrong address or password.";
    match attempt.block_if_failed() {
        None => format!(
            "{wrong} Attempts left: {}.",
            attempt.remaining().unwrap_or_default()
        ),
        Some(block) => match English.period(block) {
            Some(period) => format!("{wrong} Logging in is blocked for {period}."),
            None => format!("{wrong} Logging in is blocked."),
        },
    }
}

async fn home(session: AuthSession) -> Html<String> {
    let email = session.user.map_or_else(String::new, |user| user.email);
    Html(format!(
        "<!doctype html><html lang=en><meta charset=utf-8><title>Home</title><h1>Welcome, {email}</h1>\
         <form method=post action=/logout><button>Log out</button></form>"
    ))
}

async fn log_out(mut session: AuthSession) -> Result<Redirect, StatusCode> {
    let logged_out = session.logout().await;
    logged_out.map_err(|_| StatusCode::INTERNAL_SERVER_ERROR)?;
    Ok(Redirect::to("/login"))
}

fn form(message: &str) -> Html<String> {
    Html(format!(
        "<!doctype html><html lang=en><meta charset=utf-8><title>Log in</title>\
         <meta name=viewport content='width=device-width, initial-scale=1'>\
         <form method=post><h1>Log in</h1><p role=status>{message}</p>\
         <p><label>Mail address <input name=email autocomplete=username></label>\
         <p><label>Password <input name=password type=password autocomplete=current-password></label>\
         <p><button>Log in</button></form>"
    ))
}
