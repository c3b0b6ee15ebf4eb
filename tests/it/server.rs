//! End to end over real sockets: outcomes, refusals, and what attackers try.

use std::time::Duration;

use tokio::task::JoinSet;
use tower_login_rate_limit::{
    LoginLimiter, LoginRateLimitLayer, Outcome, Policy, Rule, classify::ByStatus, response::Denial,
    store::MemoryStore,
};

use crate::log::Log;
use crate::support::{
    RedisServer, closed,
    server::{
        CRASH, HANG, IN_RESPONSE, LoginServer, MFA, ODD, PANIC, RIGHT, SILENT, TWICE, UNKNOWN,
        WRONG, Word, client, on_both_stores,
    },
};

#[tokio::test]
async fn every_outcome_is_settled_before_the_answer_goes_out() {
    let (_redis, limiters) = on_both_stores(Policy::default()).await;
    for limiter in limiters {
        let server = LoginServer::start(limiter).await;
        for (word, status, usage) in [
            (WRONG, 401, (1, 1)),
            (UNKNOWN, 401, (2, 2)),
            (MFA, 200, (2, 2)),
            (ODD, 400, (2, 2)),
            (CRASH, 500, (2, 2)),
            (SILENT, 200, (3, 3)),
            (RIGHT, 200, (0, 0)),
            (TWICE, 401, (1, 1)),
            (IN_RESPONSE, 200, (0, 0)),
        ] {
            assert_eq!(server.status("user", word).await, status, "{}", word.0);
            assert_eq!(server.usage("user").await, usage, "{}", word.0);
        }
    }
}

#[tokio::test]
async fn a_refusal_states_when_the_block_lifts() {
    let (_redis, limiters) = on_both_stores(Policy::default()).await;
    for limiter in limiters {
        let server =
            LoginServer::start_with(limiter, |layer| layer.with_rate_limit_fields(true)).await;
        for left in (20..25).rev() {
            let response = server.post("user", WRONG).await;
            assert_eq!(
                response.headers()["ratelimit-policy"],
                "\"address\";q=25;w=86400"
            );
            assert_eq!(
                response.headers()["ratelimit"],
                format!("\"address\";r={left}").as_str()
            );
        }
        let response = server.post("user", RIGHT).await;
        assert_eq!(response.status(), 429);
        assert_eq!(
            response.headers()["content-type"],
            "application/problem+json"
        );
        assert!(
            !response.headers().contains_key("ratelimit"),
            "that would be about the user"
        );
        let seconds: u64 = response.headers()["retry-after"]
            .to_str()
            .unwrap()
            .parse()
            .unwrap();
        assert!((86_300..=86_400).contains(&seconds), "{seconds}");
        let problem: serde_json::Value = response.json().await.unwrap();
        assert_eq!(problem["status"], 429);
        assert_eq!(problem["reason"], "blocked");
        assert_eq!(problem["rule"], "user-address");
        assert_eq!(problem["usage"], 5);
        assert_eq!(
            (&problem["limit"], &problem["remaining"]),
            (&5.into(), &0.into())
        );
        assert_eq!(problem["retry_after"], seconds);
        assert_eq!(problem["lifts"], "in 1 day");
        assert_eq!(
            problem["detail"],
            "too many failed attempts, try again in 1 day"
        );
        assert_eq!(server.handled.count(), 5);

        for user in ["a", "b", "c", "d"] {
            for _ in 0..5 {
                server.status(user, WRONG).await;
            }
        }
        let response = server.post("e", RIGHT).await;
        assert_eq!(response.status(), 429);
        let fields = response.headers()["ratelimit"].to_str().unwrap();
        let seconds = fields.strip_prefix("\"address\";r=0;t=").unwrap();
        assert!(
            (604_000..=604_800).contains(&seconds.parse().unwrap()),
            "{fields}"
        );
    }
}

#[tokio::test]
async fn a_hundred_streams_of_one_connection_reach_the_handler_exactly_five_times() {
    let (_redis, limiters) = on_both_stores(Policy::default()).await;
    for limiter in limiters {
        let server = std::sync::Arc::new(LoginServer::start(limiter).await);
        for round in 0..50 {
            let before = server.handled.count();
            let client = reqwest::Client::builder()
                .no_proxy()
                .http2_prior_knowledge()
                .build()
                .unwrap();
            let mut streams = JoinSet::new();
            for _ in 0..100 {
                let (server, client) = (server.clone(), client.clone());
                streams.spawn(async move {
                    let user = format!("user {round}");
                    server
                        .post_by(&client, &user, WRONG)
                        .await
                        .unwrap()
                        .status()
                        .as_u16()
                });
            }
            let statuses = streams.join_all().await;
            assert_eq!(statuses.iter().filter(|status| **status == 401).count(), 5);
            assert_eq!(server.handled.count() - before, 5);
            server
                .limiter
                .unblock("127.0.0.1".parse::<std::net::IpAddr>().unwrap())
                .await
                .unwrap();
        }
    }
}

#[tokio::test]
async fn clients_that_go_away_midway_are_counted() {
    let (_redis, limiters) = on_both_stores(Policy::default()).await;
    for limiter in limiters {
        let server = LoginServer::start(limiter).await;
        for i in 1..=5 {
            let client = client();
            let request = server.post_by(&client, "user", HANG);
            // Gone as soon as the handler is at work.
            tokio::select! {
                _ = request => panic!("answered"),
                () = async {
                    while server.handled.count() < i {
                        tokio::time::sleep(Duration::from_millis(1)).await;
                    }
                } => {}
            }
            drop(client);
        }
        server.limiter.all_settled().await.unwrap();
        assert_eq!(server.usage("user").await, (5, 5));
        let problem: serde_json::Value = server.post("user", RIGHT).await.json().await.unwrap();
        assert_eq!(problem["reason"], "blocked", "settled, not in flight");
    }
}

#[tokio::test]
async fn handlers_that_panic_are_counted() {
    let (_redis, limiters) = on_both_stores(Policy::default()).await;
    for limiter in limiters {
        let server = LoginServer::start(limiter).await;
        for _ in 0..5 {
            assert!(server.post_by(&client(), "user", PANIC).await.is_err());
        }
        server.limiter.all_settled().await.unwrap();
        assert_eq!(server.usage("user").await, (5, 5));
        let problem: serde_json::Value = server.post("user", RIGHT).await.json().await.unwrap();
        assert_eq!(problem["reason"], "blocked", "settled, not in flight");
    }
}

#[tokio::test]
async fn success_at_an_own_account_buys_nothing() {
    let (_redis, limiters) = on_both_stores(Policy::default()).await;
    for limiter in limiters {
        let server = LoginServer::start(limiter).await;
        let mut guesses = 0;
        for _ in 0..10 {
            for _ in 0..4 {
                guesses += u32::from(server.status("victim", WRONG).await == 401);
            }
            assert_eq!(server.status("attacker", RIGHT).await, 200);
        }
        assert_eq!(guesses, 5);
        assert_eq!(server.usage("victim").await, (5, 5));
    }
}

#[tokio::test]
async fn a_right_password_again_and_again_gives_five_codes_in_all() {
    let (_redis, limiters) = on_both_stores(Policy::default()).await;
    for limiter in limiters {
        let server = LoginServer::start(limiter).await;
        let mut codes = 0;
        for _ in 0..10 {
            server.status("user", MFA).await;
            codes += u32::from(server.status("user", WRONG).await == 401);
        }
        assert_eq!(codes, 5);
    }
}

#[tokio::test]
async fn known_and_unknown_users_are_answered_alike_in_every_state() {
    let (_redis, limiters) = on_both_stores(Policy::default()).await;
    for limiter in limiters {
        let server = LoginServer::start(limiter).await;
        let answer = async |user: &'static str, word: Word| {
            let response = server.post(user, word).await;
            let mut head = response.headers().clone();
            head.remove("date");
            (response.status(), head, response.bytes().await.unwrap())
        };
        for i in 0..7 {
            let known = answer("somebody", WRONG).await;
            let unknown = answer("nobody", UNKNOWN).await;
            // A second may have passed between the two.
            let alike =
                known == unknown || i >= 5 && without_seconds(&known) == without_seconds(&unknown);
            assert!(alike, "attempt {}: {known:?} {unknown:?}", i + 1);
        }
        // As busy.
        let mut waiting = JoinSet::new();
        for user in ["somebody else", "nobody else"] {
            for _ in 0..5 {
                let url = server.url();
                waiting.spawn(async move {
                    let login = serde_json::json!({"username": user, "password": "hang"});
                    let _ = client().post(url).json(&login).send().await;
                });
            }
        }
        while server.handled.count() < 20 {
            tokio::time::sleep(Duration::from_millis(1)).await;
        }
        let busy = answer("somebody else", WRONG).await;
        assert_eq!(busy.0, 429);
        assert!(String::from_utf8_lossy(&busy.2).contains("\"busy\""));
        assert_eq!(busy, answer("nobody else", UNKNOWN).await);
        waiting.abort_all();
    }
}

fn without_seconds(
    answer: &(
        reqwest::StatusCode,
        reqwest::header::HeaderMap,
        impl AsRef<[u8]>,
    ),
) -> String {
    let shown = format!(
        "{:?} {:?} {:?}",
        answer.0,
        answer.1,
        String::from_utf8_lossy(answer.2.as_ref())
    );
    shown.replace(|c: char| c.is_ascii_digit(), "")
}

#[tokio::test]
async fn spellings_of_a_name_share_one_budget() {
    let server = LoginServer::start(LoginLimiter::new(Policy::default(), MemoryStore::new())).await;
    for spelling in ["User", " user ", "ＵＳＥＲ", "uſer", "USER\u{3000}"] {
        assert_eq!(server.status(spelling, WRONG).await, 401, "{spelling}");
    }
    assert_eq!(server.status("user", RIGHT).await, 429);
}

#[tokio::test]
async fn by_status_is_one_line_to_opt_in() {
    let limiter = LoginLimiter::new(Policy::default(), MemoryStore::new());
    let server = LoginServer::start_with(limiter, |layer| layer.with_classifier(ByStatus)).await;
    server.status("user", WRONG).await;
    assert_eq!(server.usage("user").await, (1, 1));
    server.status("user", CRASH).await;
    assert_eq!(server.usage("user").await, (1, 1));
    server.status("user", SILENT).await;
    assert_eq!(server.usage("user").await, (0, 0));
}

#[tokio::test]
async fn a_closure_may_decide_from_the_response() {
    let limiter = LoginLimiter::new(Policy::default(), MemoryStore::new());
    let nothing = |_: &http::Method, _: &http::response::Parts| Outcome::NotAnAttempt;
    let server = LoginServer::start_with(limiter, |layer| layer.with_classifier(nothing)).await;
    for _ in 0..10 {
        assert_eq!(server.status("user", SILENT).await, 200);
    }
}

#[tokio::test]
async fn in_shadow_mode_every_attempt_is_decided_and_none_is_refused() {
    let (_redis, limiters) = on_both_stores(Policy::default()).await;
    for limiter in limiters {
        let server = LoginServer::start_with(limiter, |layer| layer.with_shadow(true)).await;
        for _ in 0..10 {
            assert_eq!(server.status("user", WRONG).await, 401);
        }
        assert_eq!(server.usage("user").await, (5, 5));
        assert_eq!(server.status("user", RIGHT).await, 200);
    }
}

#[tokio::test]
async fn refusals_can_be_rendered_by_the_app() {
    let limiter = LoginLimiter::new(Policy::default(), MemoryStore::new());
    let respond = |denial: &Denial, request: &http::request::Parts| {
        let text = format!("{} {}", request.uri.path(), denial.detail());
        let mut response = http::Response::new(text.into());
        *response.status_mut() = http::StatusCode::IM_A_TEAPOT;
        response
    };
    let server = LoginServer::start_with(limiter, |layer| layer.with_responder(respond)).await;
    for _ in 0..5 {
        server.status("user", WRONG).await;
    }
    let response = server.post("user", WRONG).await;
    assert_eq!(response.status(), 418);
    assert_eq!(
        response.text().await.unwrap(),
        "/login too many failed attempts, try again in 1 day"
    );
}

#[tokio::test]
async fn a_store_that_fails_is_503_and_never_429_or_200() {
    let mut redis = RedisServer::start();
    let store = closed().connect(redis.url()).await.unwrap();
    let server = LoginServer::start(LoginLimiter::new(Policy::default(), store)).await;
    server.status("user", WRONG).await;
    redis.kill();
    for _ in 0..5 {
        let response = server.post("user", RIGHT).await;
        assert_eq!(response.status(), 503);
        assert_eq!(response.headers()["retry-after"], "1");
        let problem: serde_json::Value = response.json().await.unwrap();
        assert!(!problem.to_string().contains("redis"), "{problem}");
    }
    assert_eq!(server.handled.count(), 1);
    redis.restart();
    while server.status("user", RIGHT).await != 200 {
        tokio::time::sleep(Duration::from_millis(20)).await;
    }
}

#[tokio::test]
async fn without_connect_info_the_log_names_what_to_add() {
    let (log, _guard) = Log::start();
    let limiter = LoginLimiter::new(Policy::default(), MemoryStore::new());
    let app = axum::Router::new()
        .route("/login", axum::routing::post(async || "reached"))
        .layer(LoginRateLimitLayer::new(limiter));
    let listener = tokio::net::TcpListener::bind("127.0.0.1:0").await.unwrap();
    let url = format!("http://{}/login", listener.local_addr().unwrap());
    tokio::spawn(async move { axum::serve(listener, app).await });
    let response = client().post(url).send().await.unwrap();
    assert_eq!(response.status(), 500);
    let text = log.text();
    assert!(
        text.contains("into_make_service_with_connect_info"),
        "{text}"
    );
}

#[tokio::test]
async fn every_way_to_put_a_layer_into_axum() {
    use axum::{Router, routing::post};
    let handler = async |attempt: tower_login_rate_limit::LoginAttempt| {
        attempt.failed();
        "no"
    };
    let limiter = LoginLimiter::new(Policy::default(), MemoryStore::new());
    let layer = LoginRateLimitLayer::new(limiter.clone())
        .with_user(|_: &http::request::Parts| Some("user".to_owned()));
    let app = Router::new()
        .route("/router", post(handler))
        .layer(layer.clone())
        .merge(
            Router::new()
                .route("/route", post(handler))
                .route_layer(layer.clone()),
        )
        .route("/method", post(handler).layer(layer.clone()))
        .merge(
            Router::new()
                .route("/filter", post(handler))
                .route("/free", post(async || "free"))
                .layer(layer.with_routes(http::Method::POST, ["/filter"])),
        );
    let listener = tokio::net::TcpListener::bind("127.0.0.1:0").await.unwrap();
    let address = listener.local_addr().unwrap();
    let service = app.into_make_service_with_connect_info::<std::net::SocketAddr>();
    tokio::spawn(async move { axum::serve(listener, service).await });

    // One limiter behind all of them: together they have five attempts.
    let mut statuses = Vec::new();
    for path in [
        "router", "route", "method", "filter", "router", "route", "method", "filter", "free",
    ] {
        let response = client()
            .post(format!("http://{address}/{path}"))
            .send()
            .await
            .unwrap();
        statuses.push(response.status().as_u16());
    }
    assert_eq!(statuses, [200, 200, 200, 200, 200, 429, 429, 429, 200]);
    let report = limiter
        .check(("127.0.0.1".parse().unwrap(), "user"))
        .await
        .unwrap();
    assert_eq!(report.rule(Rule::USER_ADDRESS).unwrap().usage, 5);
}

#[tokio::test]
async fn a_layer_inside_of_another_passes_on_what_it_hears() {
    use axum::{Router, routing::post};
    let handler =
        async |attempt: tower_login_rate_limit::LoginAttempt, word: String| match word.as_str() {
            "right" => attempt.succeeded(),
            _ => attempt.failed(),
        };
    let limiter = LoginLimiter::new(Policy::default(), MemoryStore::new());
    let layer = LoginRateLimitLayer::new(limiter.clone());
    let inner = layer
        .clone()
        .with_user(|_: &http::request::Parts| Some("user".to_owned()));
    let app = Router::new()
        .route("/", post(handler).layer(inner))
        .layer(layer);
    let address = ([127, 0, 0, 1], 5000).into();
    let app = app.layer(axum::extract::connect_info::MockConnectInfo::<
        std::net::SocketAddr,
    >(address));
    for (word, usage) in [("right", 0), ("wrong", 1), ("right", 0)] {
        let request = http::Request::post("/")
            .body(axum::body::Body::from(word))
            .unwrap();
        let response = tower::ServiceExt::oneshot(app.clone(), request)
            .await
            .unwrap();
        assert_eq!(response.status(), 200);
        let report = limiter.check(address.ip()).await.unwrap();
        // Both layers count the same attempt.
        assert_eq!(report.rule(Rule::ADDRESS).unwrap().usage, usage, "{word}");
    }
}

#[tokio::test]
async fn looking_at_pages_is_no_attempt_and_no_success() {
    use axum::{Router, routing::get};
    let limiter = LoginLimiter::new(Policy::default(), MemoryStore::new());
    let layer = LoginRateLimitLayer::new(limiter.clone())
        .with_user(|_: &http::request::Parts| Some("user".to_owned()))
        .with_classifier(ByStatus);
    let login = async || http::StatusCode::UNAUTHORIZED;
    let app = Router::new().route("/login", get(async || "page").post(login).layer(layer));
    let address: std::net::SocketAddr = ([127, 0, 0, 1], 5000).into();
    let app = app.layer(axum::extract::connect_info::MockConnectInfo(address));
    let send = async |method: &str| {
        let request = http::Request::builder().method(method).uri("/login");
        let request = request.body(axum::body::Body::empty()).unwrap();
        let response = tower::ServiceExt::oneshot(app.clone(), request)
            .await
            .unwrap();
        response.status().as_u16()
    };
    let mut guesses = 0;
    for _ in 0..10 {
        guesses += u32::from(send("POST").await == 401);
        send("GET").await;
        send("DELETE").await;
    }
    assert_eq!(guesses, 5);
    let report = limiter.check(address.ip()).await.unwrap();
    assert_eq!(report.rule(Rule::ADDRESS).unwrap().usage, 5);
}

#[tokio::test]
async fn routes_are_found_inside_of_a_nest() {
    use axum::{Router, routing::post};
    let limiter = LoginLimiter::new(Policy::default(), MemoryStore::new());
    let layer =
        LoginRateLimitLayer::new(limiter.clone()).with_routes(http::Method::POST, ["/api/login"]);
    let login = async || http::StatusCode::UNAUTHORIZED;
    let api = Router::new().route("/login", post(login)).layer(layer);
    let address: std::net::SocketAddr = ([127, 0, 0, 1], 5000).into();
    let app = Router::new().nest("/api", api);
    let app = app.layer(axum::extract::connect_info::MockConnectInfo(address));
    let request = http::Request::post("/api/login")
        .body(axum::body::Body::empty())
        .unwrap();
    tower::ServiceExt::oneshot(app, request).await.unwrap();
    let report = limiter.check(address.ip()).await.unwrap();
    assert_eq!(report.rule(Rule::ADDRESS).unwrap().usage, 1);
}

#[tokio::test]
async fn routes_with_parameters_are_guarded() {
    use axum::{Router, routing::post};
    let (log, _guard) = crate::log::Log::start();
    let address: std::net::SocketAddr = ([127, 0, 0, 1], 5000).into();
    let post_to = |path: &str| {
        let mut request = http::Request::post(path).body(axum::body::Body::empty());
        let extensions = request.as_mut().unwrap().extensions_mut();
        extensions.insert(tower_login_rate_limit::extract::PeerAddressExtension(
            address,
        ));
        request.unwrap()
    };
    let counted = async |routes: &[&str], path: &str| {
        let limiter = LoginLimiter::new(Policy::default(), MemoryStore::new());
        let layer = LoginRateLimitLayer::new(limiter.clone())
            .with_routes(http::Method::POST, routes.iter().copied());
        // In a router, and where there is none to ask for the pattern.
        let handler = async || http::StatusCode::UNAUTHORIZED;
        let router = Router::new()
            .route("/{tenant}/login", post(handler))
            .route("/api/user-{name}/login", post(handler))
            .fallback(handler)
            .layer(layer.clone());
        let plain = tower::service_fn(async |_: http::Request<axum::body::Body>| {
            Ok::<_, std::convert::Infallible>(http::Response::new(axum::body::Body::empty()))
        });
        let plain = tower::Layer::layer(&layer, plain);
        tower::ServiceExt::oneshot(router, post_to(path))
            .await
            .unwrap();
        let routed = limiter.check(address.ip()).await.unwrap();
        tower::ServiceExt::oneshot(plain, post_to(path))
            .await
            .unwrap();
        let both = limiter.check(address.ip()).await.unwrap();
        let usage =
            |report: &tower_login_rate_limit::Report| report.rule(Rule::ADDRESS).unwrap().usage;
        (usage(&routed), usage(&both))
    };
    let tenant = ["/{tenant}/login"];
    assert_eq!(counted(&tenant, "/acme/login").await, (1, 2));
    assert_eq!(counted(&tenant, "/ac%2Dme//login/").await, (1, 2));
    for other in ["/login", "/acme/logout", "/acme/login/page"] {
        assert_eq!(counted(&tenant, other).await, (0, 0), "{other}");
    }
    let rest = ["/auth/{*rest}"];
    assert_eq!(counted(&rest, "/auth/login/mfa").await, (1, 2));
    assert_eq!(counted(&rest, "/auth").await, (0, 0));
    assert_eq!(log.count("looks like a pattern"), 0, "{}", log.text());
    // What only axum can match is found by its pattern, and reported.
    let part = ["/api/user-{name}/login"];
    assert_eq!(counted(&part, "/api/user-alice/login").await, (1, 1));
    assert_eq!(counted(&["/:tenant/login"], "/acme/login").await, (0, 0));
    assert_eq!(log.count("looks like a pattern"), 2, "{}", log.text());
}

#[tokio::test]
async fn only_a_grpc_client_is_answered_in_grpc() {
    let limiter = LoginLimiter::new(Policy::default(), MemoryStore::new());
    // Bodies of other types than JSON have a user too.
    let user = |_: &http::request::Parts, _: &[u8]| Some("user".to_owned());
    let server = LoginServer::start_with(limiter, |layer| layer.with_body_user(user)).await;
    for _ in 0..5 {
        server.status("user", WRONG).await;
    }
    let login = r#"{"username":"user","password":"right"}"#;
    let h2 = || {
        reqwest::Client::builder()
            .no_proxy()
            .http2_prior_knowledge()
            .build()
            .unwrap()
    };
    for (client, content_type, status) in [
        (client(), "application/grpc", 429),
        (h2(), "application/grpcfoo", 429),
        (h2(), "application/json", 429),
        (h2(), "application/grpc+proto", 200),
    ] {
        let request = client
            .post(server.url())
            .header("content-type", content_type);
        let response = request.body(login).send().await.unwrap();
        assert_eq!(response.status(), status, "{content_type}");
        assert_eq!(
            response.headers().contains_key("grpc-status"),
            status == 200
        );
    }
}

#[tokio::test]
async fn the_key_is_any_mix_of_what_identifies_a_caller() {
    use tower_login_rate_limit::{Limit, Part, Period};
    let limit = Limit::attempts(2).within(Period::hours(1));
    // The layer finds these two by itself.
    let parts = [Part::User, Part::path(), Part::user_agent()];
    let rule = Rule::new("mix", parts, limit).unwrap();
    let policy = Policy::default().with_rule(rule);
    let limiter = LoginLimiter::new(policy, MemoryStore::new());
    let server = LoginServer::start_with(limiter, |layer| layer).await;
    let post = async |agent: Option<&str>| {
        let mut request = client().post(server.url());
        if let Some(agent) = agent {
            request = request.header("user-agent", agent);
        }
        let login = serde_json::json!({"username": "user", "password": "wrong"});
        let response = request.json(&login).send().await.unwrap();
        let status = response.status().as_u16();
        let problem: serde_json::Value = response.json().await.unwrap_or_default();
        (status, problem["rule"].as_str().map(str::to_owned))
    };
    for agent in [Some("a"), None] {
        for _ in 0..2 {
            assert_eq!(post(agent).await.0, 401);
        }
        assert_eq!(post(agent).await, (429, Some("mix".to_owned())));
    }
    assert_eq!(post(Some("b")).await.0, 401);
    assert_eq!(
        post(Some("c")).await,
        (429, Some("user-address".to_owned()))
    );
}

/// By path, an attacker must not get a new budget for another spelling of the same door.
#[tokio::test]
async fn a_path_is_counted_however_it_is_spelled() {
    use std::convert::Infallible;
    use tower::{Layer, ServiceExt, service_fn};
    use tower_login_rate_limit::{Limit, Part, Period, extract::PeerAddressExtension};

    let limiter = || {
        let parts = [Part::Address, Part::path()];
        let limit = Limit::attempts(2).within(Period::hours(1));
        let rule = Rule::new("door", parts, limit).unwrap();
        LoginLimiter::new(Policy::new([rule]).unwrap(), MemoryStore::new())
    };
    let request = |path: &str| {
        let mut request = http::Request::builder().uri(path).body(()).unwrap();
        let peer = PeerAddressExtension(([192, 0, 2, 1], 5000).into());
        request.extensions_mut().insert(peer);
        request
    };

    let wrong = service_fn(|_: http::Request<()>| async {
        let mut response = http::Response::new(());
        *response.status_mut() = http::StatusCode::UNAUTHORIZED;
        Ok::<_, Infallible>(response)
    });
    let service = tower_login_rate_limit::LoginRateLimitLayer::new(limiter()).layer(wrong);
    let status = async |path: &str| {
        let response = service.clone().oneshot(request(path)).await.unwrap();
        response.status().as_u16()
    };
    for (path, expected) in [
        ("/login", 401),
        ("//login/", 401),
        ("/%6Cogin?again", 429),
        ("/reset", 401),
    ] {
        assert_eq!(status(path).await, expected, "{path}");
    }

    // In axum it is the route that counts, whatever is variable in it.
    let layer = tower_login_rate_limit::LoginRateLimitLayer::new(limiter());
    let wrong = axum::routing::get(|| async { http::StatusCode::UNAUTHORIZED });
    let app = axum::Router::new()
        .route("/{tenant}/login", wrong.clone())
        .route("/{tenant}/reset", wrong)
        .route_layer(layer);
    let status = async |path: &str| {
        let request = request(path).map(|()| axum::body::Body::empty());
        let response = app.clone().oneshot(request).await.unwrap();
        response.status().as_u16()
    };
    for (path, expected) in [
        ("/a/login", 401),
        ("/b/login", 401),
        ("/c/login", 429),
        ("/c/reset", 401),
    ] {
        assert_eq!(status(path).await, expected, "{path}");
    }
}
