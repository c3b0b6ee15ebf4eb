//! A middleware function of axum inside of a layer that reads bodies.
use axum::{Router, extract::Request, middleware::{Next, from_fn}, response::Response};
use tower::ServiceBuilder;
use tower_login_rate_limit::{LoginRateLimitLayer, extract::FormField};

async fn middleware(request: Request, next: Next) -> Response {
    next.run(request).await
}

pub fn mistake(layer: LoginRateLimitLayer) -> Router {
    let layer = layer.with_body_user(FormField::new("email"));
    Router::new().layer(ServiceBuilder::new().layer(layer).layer(from_fn(middleware)))
}
