//! The network of the proxies, where an extractor is needed.
use tower_login_rate_limit::LoginRateLimitLayer;

pub fn mistake(layer: LoginRateLimitLayer) -> LoginRateLimitLayer {
    layer.with_address("10.0.0.0/8")
}
