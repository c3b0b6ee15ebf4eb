//! Two layers on one method router.
use axum::{Router, routing::post};
use tower_http::trace::TraceLayer;
use tower_login_rate_limit::LoginRateLimitLayer;

async fn login() {}

pub fn mistake(layer: LoginRateLimitLayer) -> Router {
    Router::new().route("/", post(login).layer(TraceLayer::new_for_http()).layer(layer))
}
