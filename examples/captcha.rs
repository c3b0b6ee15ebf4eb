//! A captcha after three failures: `CAPTCHA_URL=https://…/siteverify cargo run --example captcha`, then
//!
//! ```sh
//! curl -i http://127.0.0.1:3008/login --json '{"username":"user","password":"guess","captcha":"…"}'
//! ```
//!
//! The first three attempts of a user from an address need none. From then on, the password is compared only for a
//! captcha that the provider confirms (reCAPTCHA, hCaptcha and Turnstile have one protocol). `CAPTCHA_SECRET` is the
//! app's key, and `LISTEN` sets the server's address.

use std::{env, error::Error, net::SocketAddr};

use axum::{
    Json, Router,
    extract::{ConnectInfo, State},
    http::StatusCode,
    response::{IntoResponse, Response},
    routing::post,
};
use serde::Deserialize;
use serde_json::json;
use tower_login_rate_limit::{
    LoginAttempt, LoginLimiter, LoginRateLimitLayer, Policy, extract::JsonField, store::MemoryStore,
};

#[derive(Clone)]
struct Captcha {
    client: reqwest::Client,
    url: String,
    secret: String,
}

impl Captcha {
    /// Whether the provider confirms that a person has solved it. If it can't be asked, no.
    async fn confirms(&self, solution: &str, client: SocketAddr) -> bool {
        #[derive(Deserialize)]
        struct Verdict {
            success: bool,
        }
        let form = form_urlencoded::Serializer::new(String::new())
            .append_pair("secret", &self.secret)
            .append_pair("response", solution)
            .append_pair("remoteip", &client.ip().to_string())
            .finish();
        let request = self.client.post(&self.url).body(form);
        let request = request.header("content-type", "application/x-www-form-urlencoded");
        match request.send().await {
            Ok(response) => response
                .json()
                .await
                .is_ok_and(|verdict: Verdict| verdict.success),
            Err(_) => false,
        }
    }
}

#[tokio::main]
async fn main() -> Result<(), Box<dyn Error>> {
    let captcha = Captcha {
        client: reqwest::Client::new(),
        url: env::var("CAPTCHA_URL").unwrap_or_default(),
        secret: env::var("CAPTCHA_SECRET").unwrap_or_default(),
    };
    let limiter = LoginLimiter::new(Policy::default(), MemoryStore::new());
    let layer = LoginRateLimitLayer::new(limiter).with_body_user(JsonField::new("username"));
    let app = Router::new()
        .route("/login", post(login).layer(layer))
        .with_state(captcha);

    let listen = env::var("LISTEN").unwrap_or_else(|_| "127.0.0.1:3008".to_owned());
    let listener = tokio::net::TcpListener::bind(listen).await?;
    println!("Listening at http://{}", listener.local_addr()?);
    let service = app.into_make_service_with_connect_info::<SocketAddr>();
    Ok(axum::serve(listener, service).await?)
}

#[derive(Deserialize)]
struct Login {
    username: String,
    password: String,
    #[serde(default)]
    captcha: String,
}

async fn login(
    attempt: LoginAttempt,
    State(captcha): State<Captcha>,
    ConnectInfo(peer): ConnectInfo<SocketAddr>,
    Json(login): Json<Login>,
) -> Response {
    // Of five attempts, the fourth would leave one. It is the same for a user who does not exist.
    let is_asked_for = attempt.remaining().is_some_and(|left| left < 2);
    if is_asked_for && !captcha.confirms(&login.captcha, peer).await {
        attempt.not_an_attempt(); // no password was compared
        let body = json!({"captcha": "required"});
        return (StatusCode::UNAUTHORIZED, Json(body)).into_response();
    }
    if (&*login.username, &*login.password) == ("user", "correct-horse") {
        attempt.succeeded();
        StatusCode::OK.into_response()
    } else {
        attempt.failed();
        (StatusCode::UNAUTHORIZED, Json(json!({}))).into_response()
    }
}
