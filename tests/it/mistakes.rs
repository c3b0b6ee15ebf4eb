//! Common mistakes: what the compiler, the log or the error says, and that it says what to do.

use std::{collections::BTreeMap, fs, path::Path, process::Command};

use axum::{
    Form, Router,
    body::Body,
    http::{Request, StatusCode, header::CONTENT_TYPE},
    routing::post,
};
use serde::Deserialize;
use serde_json::Value;
use tower::ServiceExt;
use tower_login_rate_limit::{
    Limit, LoginAttempt, LoginLimiter, LoginRateLimitLayer, Period, Policy,
    extract::{FormField, ForwardedAddress, JsonField},
    store::MemoryStore,
    testing::RequestExt,
};

use crate::log::Log;

/// Each file of `tests/mistakes`, and words of the compiler's error for it.
const MISTAKES: [(&str, &[&str]); 8] = [
    (
        "body_user_in_the_head",
        &["does not find a user in the head", "`.with_body_user(…)`"],
    ),
    (
        "head_user_in_the_body",
        &["does not find a user in a body", "`.with_user(…)`"],
    ),
    (
        "middleware_inside",
        &["hands on a `Request<ReplayedBody<Body>>`", "`.for_axum()`"],
    ),
    // These two are the compiler's own; docs/faq.md has them.
    (
        "two_layers",
        &["cannot infer type of the type parameter `NewError`"],
    ),
    (
        "closure_without_types",
        &["consider giving this closure parameter an explicit type"],
    ),
    (
        "url_as_store",
        &["keeps no counters", "`RedisStore::connect("],
    ),
    (
        "text_as_responder",
        &["does not render denials", "`RespondWith::new("],
    ),
    (
        "network_as_address",
        &[
            "does not find the address of a client",
            "`ForwardedAddress`",
        ],
    ),
];

/// All mistakes in one package, which is checked without a network: its dependencies are those of this one.
#[test]
fn the_compiler_names_the_remedy() {
    let root = Path::new(env!("CARGO_MANIFEST_DIR"));
    let this = std::env::current_exe().unwrap();
    let target = this.ancestors().nth(3).unwrap().join("mistakes");
    let binaries = target.join("package/src/bin");
    fs::create_dir_all(&binaries).unwrap();
    for (name, _) in MISTAKES {
        let source = fs::read_to_string(root.join(format!("tests/mistakes/{name}.rs"))).unwrap();
        fs::write(
            binaries.join(format!("{name}.rs")),
            source + "\nfn main() {}\n",
        )
        .unwrap();
    }
    let manifest = format!(
        "[package]\nname = \"mistakes\"\nedition = \"2024\"\n[workspace]\n[dependencies]\n\
         axum = \"0.8\"\ntower = \"0.5\"\ntower-http = {{ version = \"0.7\", features = [\"trace\"] }}\n\
         tower-login-rate-limit = {{ path = {root:?}, features = [\"axum\"] }}\n"
    );
    let package = target.join("package");
    fs::write(package.join("Cargo.toml"), manifest).unwrap();
    fs::copy(root.join("Cargo.lock"), package.join("Cargo.lock")).unwrap();
    let output = Command::new(env!("CARGO"))
        .args([
            "check",
            "--offline",
            "--bins",
            "--keep-going",
            "--message-format=json",
        ])
        .arg("--target-dir")
        .arg(&target)
        .current_dir(&package)
        .env_remove("RUSTFLAGS")
        .output()
        .unwrap();

    let mut errors: BTreeMap<String, String> = BTreeMap::new();
    for line in String::from_utf8(output.stdout).unwrap().lines() {
        let message: Value = serde_json::from_str(line).unwrap();
        if message["reason"] == "compiler-message" && message["message"]["level"] == "error" {
            let name = message["target"]["name"].as_str().unwrap().to_owned();
            let text = message["message"]["rendered"].as_str().unwrap_or_default();
            errors.entry(name).or_default().push_str(text);
        }
    }
    for (name, expected) in MISTAKES {
        let error = errors.remove(name).unwrap_or_else(|| {
            let stderr = String::from_utf8_lossy(&output.stderr);
            panic!("{name} has no error\n{stderr}")
        });
        for words in expected {
            assert!(error.contains(words), "{name}: no {words:?} in\n{error}");
        }
    }
    assert!(errors.is_empty(), "{errors:?}");
}

fn limiter() -> LoginLimiter {
    LoginLimiter::new(Policy::default(), MemoryStore::new())
}

#[derive(Deserialize)]
struct Login {
    email: String,
}

async fn login(attempt: LoginAttempt, Form(login): Form<Login>) -> StatusCode {
    assert_eq!(login.email, "alice");
    attempt.failed();
    StatusCode::UNAUTHORIZED
}

/// The status of a login from this address, if there is one.
async fn send(app: Router, peer: Option<[u8; 4]>) -> StatusCode {
    let mut request = Request::post("/login")
        .header(CONTENT_TYPE, "application/x-www-form-urlencoded")
        .body(Body::from("email=alice"))
        .unwrap();
    if let Some(peer) = peer {
        request = request.with_peer(peer);
    }
    app.oneshot(request).await.unwrap().status()
}

const CLIENT: Option<[u8; 4]> = Some([192, 0, 2, 1]);

#[tokio::test]
async fn a_server_without_connect_info() {
    let (log, _guard) = Log::start();
    let layer = LoginRateLimitLayer::new(limiter());
    let app = Router::new().route("/login", post(login).layer(layer));
    assert_eq!(send(app, None).await, 500);
    let remedy = "into_make_service_with_connect_info::<SocketAddr>()";
    assert!(log.text().contains(remedy), "{}", log.text());
}

#[tokio::test]
async fn a_handler_without_the_layer() {
    let (log, _guard) = Log::start();
    let app = Router::new().route("/login", post(login));
    let remedy = "add `.layer(LoginRateLimitLayer::new(…))` to the route";
    // Logged at the first, the tenth and the hundredth time in the process, which other tests add to.
    for _ in 0..1_000 {
        assert_eq!(send(app.clone(), CLIENT).await, 500);
        if log.text().contains(remedy) {
            return;
        }
    }
    panic!("{}", log.text());
}

#[tokio::test]
async fn a_field_that_is_spelled_otherwise() {
    let (log, _guard) = Log::start();
    let layer = LoginRateLimitLayer::new(limiter()).with_body_user(FormField::new("e-mail"));
    let app = Router::new().route("/login", post(login).layer(layer));
    assert_eq!(send(app, CLIENT).await, 401);
    let remedy = "is the name of the field or";
    assert!(log.text().contains(remedy), "{}", log.text());
}

#[tokio::test]
async fn json_where_a_form_is_sent() {
    let layer = LoginRateLimitLayer::new(limiter()).with_body_user(JsonField::new("email"));
    let app = Router::new().route("/login", post(login).layer(layer));
    assert_eq!(send(app, CLIENT).await, StatusCode::UNSUPPORTED_MEDIA_TYPE);
}

#[tokio::test]
async fn a_handler_that_reports_nothing() {
    let (log, _guard) = Log::start();
    let layer = LoginRateLimitLayer::new(limiter());
    let silent = async |_: Form<Login>| StatusCode::OK;
    let app = Router::new().route("/login", post(silent).layer(layer));
    assert_eq!(send(app, CLIENT).await, 200);
    assert!(log.text().contains("`succeeded()`"), "{}", log.text());
}

#[test]
fn numbers_and_networks_that_protect_from_nothing() {
    let none = Limit::attempts(0).within(Period::days(1));
    let error = Policy::default().with_address_limit(none).unwrap_err();
    assert!(error.to_string().contains("address"), "{error}");
    let without_window = Limit::attempts(5);
    let error = Policy::default()
        .with_address_limit(without_window)
        .unwrap_err();
    assert!(error.to_string().contains("within"), "{error}");
    let error = ForwardedAddress::x_forwarded_for(["0.0.0.0/0"]).unwrap_err();
    assert!(error.to_string().contains("0.0.0.0/0"), "{error}");
}
