//! The user of Basic authentication, looked for in the body.
use tower_login_rate_limit::{LoginRateLimitLayer, WithBody, extract::BasicAuth};

pub fn mistake(layer: LoginRateLimitLayer) -> LoginRateLimitLayer<WithBody> {
    layer.with_body_user(BasicAuth)
}
