//! Everything the layer asks for, in the app's own way: `cargo run --example custom_extractor`, then
//!
//! ```sh
//! curl -i -X POST -H 'x-edge-key: secret' -H 'x-edge-client: 203.0.113.7' http://127.0.0.1:3003/login/alice
//! ```
//!
//! The address comes from an edge server that proves itself by a key, the user from the path, and a
//! refusal is a line of text. `LISTEN` sets the server's address.

use std::{env, error::Error, net::IpAddr};

use axum::{
    Router,
    extract::Path,
    http::{HeaderValue, Response, StatusCode, header, request::Parts},
    routing::post,
};
use bytes::Bytes;
use tower_login_rate_limit::{
    LoginAttempt, LoginLimiter, LoginRateLimitLayer, Policy,
    extract::{ExtractAddress, ExtractError},
    response::Denial,
    store::MemoryStore,
};

/// The client as the edge server saw it. Believed only with the key: a header that anybody can send
/// is no address.
struct EdgeClient {
    key: HeaderValue,
}

impl ExtractAddress for EdgeClient {
    fn extract_address(&self, request: &Parts) -> Result<IpAddr, ExtractError> {
        if request.headers.get("x-edge-key") != Some(&self.key) {
            return Err(ExtractError::bad_request("come in through the edge server"));
        }
        let client = request.headers.get("x-edge-client");
        client
            .and_then(|client| client.to_str().ok()?.parse().ok())
            .ok_or(ExtractError::misconfigured(
                "the edge server must set x-edge-client",
            ))
    }
}

/// The last part of `/login/{user}`.
fn user_in_path(request: &Parts) -> Option<String> {
    let user = request.uri.path().strip_prefix("/login/")?;
    // Where the handler decodes, so must we: one user, one name.
    let decoded = percent_encoding::percent_decode_str(user).decode_utf8();
    Some(decoded.ok()?.into_owned())
}

fn one_line(denial: &Denial, _: &Parts) -> Response<Bytes> {
    let mut response = Response::new(Bytes::from(format!("{}\n", denial.detail())));
    *response.status_mut() = denial.status();
    if let Some(seconds) = denial.retry_after() {
        response
            .headers_mut()
            .insert(header::RETRY_AFTER, seconds.into());
    }
    response
}

#[tokio::main]
async fn main() -> Result<(), Box<dyn Error>> {
    let limiter = LoginLimiter::new(Policy::default(), MemoryStore::new());
    let layer = LoginRateLimitLayer::new(limiter)
        .with_address(EdgeClient {
            key: HeaderValue::from_static("secret"),
        })
        .with_user(user_in_path)
        .with_responder(one_line);
    let app = Router::new().route("/login/{user}", post(log_in).layer(layer));
    let listen = env::var("LISTEN").unwrap_or_else(|_| "127.0.0.1:3003".to_owned());
    let listener = tokio::net::TcpListener::bind(listen).await?;
    println!("Listening at http://{}", listener.local_addr()?);
    Ok(axum::serve(listener, app).await?)
}

async fn log_in(attempt: LoginAttempt, Path(_user): Path<String>) -> StatusCode {
    attempt.failed(); // nobody has a password here
    StatusCode::UNAUTHORIZED
}
