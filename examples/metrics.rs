//! Metrics for Prometheus, and a line for whoever is on call when a block begins: `cargo run --example metrics`, then
//!
//! ```sh
//! curl -i -d 'username=user&password=guess' http://127.0.0.1:3010/login
//! curl -s http://127.0.0.1:3010/metrics | grep '^login_'
//! ```
//!
//! docs/prometheus-alerts.yml and docs/grafana-dashboard.json go with it. `LISTEN` sets the server's address.

use std::{env, error::Error, net::SocketAddr};

use axum::{
    Form, Router,
    http::StatusCode,
    routing::{get, post},
};
use metrics_exporter_prometheus::PrometheusBuilder;
use serde::Deserialize;
use tower_login_rate_limit::{
    LoginAttempt, LoginLimiter, LoginRateLimitLayer, Policy,
    event::{Event, UserDisplay, What},
    extract::FormField,
    store::MemoryStore,
};

#[derive(Deserialize)]
struct Login {
    username: String,
    password: String,
}

async fn login(attempt: LoginAttempt, Form(login): Form<Login>) -> StatusCode {
    if login.username == "user" && login.password == "correct-horse" {
        attempt.succeeded();
        StatusCode::OK
    } else {
        attempt.failed();
        StatusCode::UNAUTHORIZED
    }
}

/// Your pager, chat or mail. Runs on a thread of its own, so it may take its time.
fn alert(event: &Event) {
    if let (What::BlockBegan { rule, lifts, .. }, Some(address)) = (&event.what, event.address) {
        println!("ALERT: {rule} blocks {address} for {lifts}");
    }
}

#[tokio::main]
async fn main() -> Result<(), Box<dyn Error>> {
    // Ahead of the first login, so that no count is missed.
    let prometheus = PrometheusBuilder::new().install_recorder()?;
    let limiter = LoginLimiter::new(Policy::default(), MemoryStore::new())
        .with_user_display(UserDisplay::Masked)
        .with_observer(alert);
    let layer = LoginRateLimitLayer::new(limiter).with_body_user(FormField::new("username"));
    let app = Router::new()
        .route("/login", post(login).layer(layer))
        .route("/metrics", get(async move || prometheus.render()));

    let listen = env::var("LISTEN").unwrap_or_else(|_| "127.0.0.1:3010".to_owned());
    let listener = tokio::net::TcpListener::bind(listen).await?;
    println!("Listening at http://{}", listener.local_addr()?);
    let service = app.into_make_service_with_connect_info::<SocketAddr>();
    Ok(axum::serve(listener, service).await?)
}
