//! The order of layers, complete: `cargo run --example layers`, then
//!
//! ```sh
//! curl -i http://127.0.0.1:3009/login --json '{"username":"user","password":"guess"}'
//! ```
//!
//! In axum the layer that is added last is the outermost. `docs/axum.md` has the reasons. The passwords `slow` and
//! `panic` show what a timeout and a panic count as. `LISTEN` sets the server's address.

use std::{env, error::Error, net::SocketAddr, time::Duration};

use axum::{
    Json, Router,
    extract::Request,
    http::{HeaderValue, Method, StatusCode, header},
    middleware::{Next, from_fn},
    response::Response,
    routing::post,
};
use serde::Deserialize;
use tower::ServiceBuilder;
use tower_http::{
    catch_panic::CatchPanicLayer, cors::CorsLayer, timeout::TimeoutLayer, trace::TraceLayer,
};
use tower_login_rate_limit::{
    LoginAttempt, LoginLimiter, LoginRateLimitLayer, Policy, extract::JsonField, store::MemoryStore,
};

#[tokio::main]
async fn main() -> Result<(), Box<dyn Error>> {
    let limiter = LoginLimiter::new(Policy::default(), MemoryStore::new());
    // Outside: they respond in place of the handler, or add headers that a refusal needs too.
    let cors = CorsLayer::new()
        .allow_origin("https://app.example.com".parse::<HeaderValue>()?)
        .allow_methods([Method::POST])
        .allow_headers([header::CONTENT_TYPE]);
    let outside = ServiceBuilder::new()
        .layer(TraceLayer::new_for_http())
        .layer(CatchPanicLayer::new())
        .layer(cors);
    // Inside: what happens there is part of the attempt. `for_axum`, since a middleware function takes axum's body.
    let timeout =
        TimeoutLayer::with_status_code(StatusCode::REQUEST_TIMEOUT, Duration::from_millis(200));
    let guarded = ServiceBuilder::new()
        .layer(
            LoginRateLimitLayer::new(limiter)
                .with_body_user(JsonField::new("username"))
                .for_axum(),
        )
        .layer(from_fn(no_store))
        .layer(timeout);
    let app = Router::new()
        .route("/login", post(login))
        .route_layer(guarded)
        .layer(outside);

    let listen = env::var("LISTEN").unwrap_or_else(|_| "127.0.0.1:3009".to_owned());
    let listener = tokio::net::TcpListener::bind(listen).await?;
    println!("Listening at http://{}", listener.local_addr()?);
    let service = app.into_make_service_with_connect_info::<SocketAddr>();
    Ok(axum::serve(listener, service).await?)
}

/// A middleware function of the app.
async fn no_store(request: Request, next: Next) -> Response {
    let mut response = next.run(request).await;
    let no_store = HeaderValue::from_static("no-store");
    response
        .headers_mut()
        .insert(header::CACHE_CONTROL, no_store);
    response
}

#[derive(Deserialize)]
struct Login {
    username: String,
    password: String,
}

async fn login(attempt: LoginAttempt, Json(login): Json<Login>) -> StatusCode {
    match (&*login.username, &*login.password) {
        ("user", "correct-horse") => {
            attempt.succeeded();
            return StatusCode::OK;
        }
        (_, "slow") => tokio::time::sleep(Duration::from_secs(3600)).await,
        (_, "panic") => panic!("the database is gone"),
        _ => {}
    }
    attempt.failed();
    StatusCode::UNAUTHORIZED
}
