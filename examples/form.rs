//! A login form without scripts: `cargo run --example form`, then open <http://127.0.0.1:3000>.
//!
//! Refusals are pages, of the layer and of the handler's `?` alike. Environment: `LISTEN` (default
//! `127.0.0.1:3000`).

use std::{env, error::Error, net::SocketAddr};

use axum::{
    Form, Router,
    http::StatusCode,
    response::{Html, IntoResponse, Response},
    routing::get,
};
use serde::Deserialize;
use tower_login_rate_limit::{
    LoginAttempt, LoginLimiter, LoginRateLimitLayer, Policy, ReserveError,
    extract::FormField,
    response::{English, Words},
    store::MemoryStore,
};

#[tokio::main]
async fn main() -> Result<(), Box<dyn Error>> {
    let limiter = LoginLimiter::new(Policy::default(), MemoryStore::new());
    let layer = LoginRateLimitLayer::new(limiter.clone()).with_body_user(FormField::new("email"));
    let app = Router::new().route(
        "/",
        get(page).merge(axum::routing::post(login).layer(layer)),
    );

    let listen = env::var("LISTEN").unwrap_or_else(|_| "127.0.0.1:3000".to_owned());
    let listener = tokio::net::TcpListener::bind(&listen).await?;
    println!(
        "Open http://{}: user@example.com / correct-horse.",
        listener.local_addr()?
    );
    let service = app.into_make_service_with_connect_info::<SocketAddr>();
    axum::serve(listener, service)
        .with_graceful_shutdown(async { drop(tokio::signal::ctrl_c().await) })
        .await?;
    limiter.all_settled().await?;
    Ok(())
}

#[derive(Deserialize)]
struct Login {
    email: String,
    password: String,
}

async fn login(attempt: LoginAttempt, Form(login): Form<Login>) -> Result<Response, ReserveError> {
    // Mail to user+anything@example.com reaches the same account.
    let (name, domain) = login.email.split_once('@').unwrap_or((&login.email, ""));
    let name = name.split('+').next().unwrap_or_default();
    attempt.identify(&format!("{name}@{domain}")).await?;

    if (name, domain, login.password.as_str()) == ("user", "example.com", "correct-horse") {
        attempt.succeeded();
        return Ok(form("Welcome.").into_response());
    }
    attempt.failed();
    let left = attempt.remaining().unwrap_or_default();
    let message = match attempt.block_if_failed() {
        Some(block) => match English.period(block) {
            Some(period) => {
                format!("Wrong address or password. Logging in is blocked for {period}.")
            }
            None => "Wrong address or password. Logging in is blocked.".to_owned(),
        },
        None => format!("Wrong address or password. Attempts left: {left}."),
    };
    Ok((StatusCode::UNAUTHORIZED, form(&message)).into_response())
}

async fn page() -> Html<String> {
    form("")
}

fn form(message: &str) -> Html<String> {
    Html(format!(
        "<!doctype html><html lang=en><meta charset=utf-8><title>Log in</title>\
         <meta name=viewport content='width=device-width, initial-scale=1'>\
         <form method=post><h1>Log in</h1><p id=message role=status>{message}</p>\
         <p><label>Mail address <input id=email name=email autocomplete=username></label>\
         <p><label>Password <input id=password name=password type=password autocomplete=current-password></label>\
         <p><button id=submit>Log in</button></form>"
    ))
}
