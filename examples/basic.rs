//! An API with Basic authentication, checked by an extractor: `cargo run --example basic`, then
//!
//! ```sh
//! curl -i -u user:guess http://127.0.0.1:3005/report
//! ```
//!
//! A handler that takes a `User` is guarded: the extractor checks the password and records the outcome, so no handler
//! can forget it. `LISTEN` sets the server's address.

use std::{env, error::Error, net::SocketAddr};

use axum::{
    Router,
    extract::FromRequestParts,
    http::{StatusCode, header, request::Parts},
    response::{IntoResponse, Response},
    routing::get,
};
use base64::{Engine, prelude::BASE64_STANDARD};
use tower_login_rate_limit::{
    LoginAttempt, LoginLimiter, LoginRateLimitLayer, Policy, extract::BasicAuth, store::MemoryStore,
};

#[tokio::main]
async fn main() -> Result<(), Box<dyn Error>> {
    let limiter = LoginLimiter::new(Policy::default(), MemoryStore::new());
    let app = Router::new()
        .route(
            "/report",
            get(async |User(name)| format!("hello, {name}\n")),
        )
        .route(
            "/orders",
            get(async |User(name)| format!("no orders, {name}\n")),
        )
        // Around all routes that exist; each request carries the password.
        .route_layer(LoginRateLimitLayer::new(limiter).with_user(BasicAuth));

    let listen = env::var("LISTEN").unwrap_or_else(|_| "127.0.0.1:3005".to_owned());
    let listener = tokio::net::TcpListener::bind(listen).await?;
    println!("Listening at http://{}", listener.local_addr()?);
    let service = app.into_make_service_with_connect_info::<SocketAddr>();
    Ok(axum::serve(listener, service).await?)
}

/// A user who has sent the correct password.
struct User(String);

impl<S: Send + Sync> FromRequestParts<S> for User {
    type Rejection = Response;

    async fn from_request_parts(parts: &mut Parts, state: &S) -> Result<Self, Response> {
        // Without the layer there is no attempt, and without an attempt no password is checked.
        let attempt = LoginAttempt::from_request_parts(parts, state)
            .await
            .map_err(IntoResponse::into_response)?;
        let Some((name, password)) = credentials(parts) else {
            attempt.not_an_attempt(); // a browser asks without a password first
            return Err(challenge());
        };
        if (&*name, &*password) == ("user", "correct-horse") {
            attempt.succeeded();
            Ok(Self(name))
        } else {
            attempt.failed();
            Err(challenge())
        }
    }
}

/// The user and the password of a request. The layer has refused a header that occurs twice or can't be decoded.
fn credentials(parts: &Parts) -> Option<(String, String)> {
    let value = parts.headers.get(header::AUTHORIZATION)?.to_str().ok()?;
    let (scheme, encoded) = value.trim().split_once(' ')?;
    if !scheme.eq_ignore_ascii_case("basic") {
        return None;
    }
    let decoded = String::from_utf8(BASE64_STANDARD.decode(encoded.trim()).ok()?).ok()?;
    let (name, password) = decoded.split_once(':')?;
    Some((name.to_owned(), password.to_owned()))
}

fn challenge() -> Response {
    let ask = [(header::WWW_AUTHENTICATE, "Basic realm=\"api\"")];
    (StatusCode::UNAUTHORIZED, ask, "wrong user or password\n").into_response()
}
