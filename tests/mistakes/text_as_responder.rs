//! A text, where a responder is needed.
use tower_login_rate_limit::LoginRateLimitLayer;

pub fn mistake(layer: LoginRateLimitLayer) -> LoginRateLimitLayer {
    layer.with_responder("<h1>Sorry</h1>")
}
