//! A closure without types, outside of `user_fn`.
use tower_login_rate_limit::LoginRateLimitLayer;

pub fn mistake(layer: LoginRateLimitLayer) -> LoginRateLimitLayer {
    layer.with_user(|request| Some(request.headers.get("x-user")?.to_str().ok()?.to_owned()))
}
