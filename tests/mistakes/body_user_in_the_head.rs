//! The user of a form, where the layer reads no body.
use tower_login_rate_limit::{LoginRateLimitLayer, extract::FormField};

pub fn mistake(layer: LoginRateLimitLayer) -> LoginRateLimitLayer {
    layer.with_user(FormField::new("email"))
}
