//! The stream of events.

use std::{
    sync::{
        Arc,
        atomic::{AtomicBool, Ordering},
    },
    time::Duration,
};

use serde_json::{Value, json};
use tower_login_rate_limit::{
    LoginLimiter, Policy,
    event::{Feed, UserDisplay},
    server::{Operator, Role, Server, Unauthorized, authorize_fn},
    store::MemoryStore,
};

use super::{Api, OPERATOR, READER};

/// The next tick of a stream; `None` at its end.
async fn tick(response: &mut reqwest::Response, buffer: &mut String) -> Option<Value> {
    loop {
        if let Some(end) = buffer.find("\n\n") {
            let event: String = buffer.drain(..end + 2).collect();
            let mut lines = event.lines();
            assert_eq!(lines.next(), Some("event: tick"), "{event}");
            let data = lines.next()?.strip_prefix("data: ")?;
            return Some(serde_json::from_str(data).expect("JSON"));
        }
        let chunk = response.chunk().await.expect("a stream")?;
        buffer.push_str(std::str::from_utf8(&chunk).expect("a text"));
    }
}

#[tokio::test]
async fn each_second_has_a_tick_with_what_happened() {
    let api = Api::memory().await;
    let request = api
        .request("GET", "/v1/admin/events/live")
        .bearer_auth(READER);
    let mut response = request.send().await.expect("an answer");
    assert_eq!(response.headers()["content-type"], "text/event-stream");
    assert_eq!(response.headers()["cache-control"], "no-store");
    let mut buffer = String::new();
    assert_eq!(
        tick(&mut response, &mut buffer).await.expect("a tick")["events"],
        json!([])
    );
    for i in 0..70 {
        let address = format!("192.0.2.{i}");
        api.fail(&address, &format!("<b>{i}</b>\n\n"), 1).await;
    }
    assert!(api.limiter.observed().await);
    let (mut shown, mut omitted) = (0, 0);
    while shown + omitted < 70 {
        let tick = tick(&mut response, &mut buffer).await.expect("a tick");
        let events = tick["events"].as_array().expect("events");
        assert!(events.len() <= 50);
        let settled = events.iter().filter(|event| event["event"] == "settled");
        assert!(settled.clone().all(|event| {
            event["user"]
                .as_str()
                .is_some_and(|user| user.starts_with("<b>"))
        }));
        shown += settled.count() as u64;
        omitted += tick["omitted"].as_u64().expect("a number");
        assert!(tick["minute"]["failures"].is_u64(), "{tick}");
    }
}

#[tokio::test(start_paused = true)]
async fn a_stream_ends_with_its_authorization() {
    let is_valid = Arc::new(AtomicBool::new(true));
    let valid = Arc::clone(&is_valid);
    let authorize = authorize_fn(move |_: &http::request::Parts| {
        let operator = match valid.load(Ordering::SeqCst) {
            true => Ok(Operator::new("rita", [Role::Read])),
            false => Err(Unauthorized::Unknown),
        };
        std::future::ready(operator)
    });
    let limiter = LoginLimiter::new(Policy::default(), MemoryStore::new());
    let limiter = limiter.with_user_display(UserDisplay::Clear);
    let server = Server::new(limiter, authorize).expect("a server");
    let app = server.with_feed(Feed::new(10)).router();
    // Without a socket, so that time passes at once.
    let request = http::Request::get("/v1/admin/events/live").body(axum::body::Body::empty());
    let response = tower::ServiceExt::oneshot(app, request.expect("a request")).await;
    let mut body = response.expect("an answer").into_body();
    let mut ticks = 0;
    let ended = tokio::time::timeout(Duration::from_secs(300), async {
        while let Some(frame) = http_body_util::BodyExt::frame(&mut body).await {
            assert!(frame.expect("a frame").is_data());
            ticks += 1;
            if ticks == 45 {
                is_valid.store(false, Ordering::SeqCst);
            }
        }
    });
    ended.await.expect("the stream ends");
    assert!((45..=61).contains(&ticks), "{ticks}");
}

async fn stream(api: &Api, token: &str) -> reqwest::Response {
    let request = api.request("GET", "/v1/admin/events/live");
    request.bearer_auth(token).send().await.expect("an answer")
}

#[tokio::test]
async fn one_operator_can_not_hold_the_streams_of_all() {
    let api = Api::memory().await;
    let mut held = Vec::new();
    for _ in 0..32 {
        let response = stream(&api, READER).await;
        assert_eq!(response.status(), 200);
        held.push(response);
    }
    let request = api.request("GET", "/v1/admin/events/live");
    let (status, problem) = Api::send(request.bearer_auth(READER)).await;
    assert_eq!(status, 429, "{problem}");
    // Others are not affected.
    held.push(stream(&api, OPERATOR).await);
    assert_eq!(held.pop().expect("a stream").status(), 200);

    held.pop();
    let again = async {
        while stream(&api, READER).await.status() != 200 {
            tokio::time::sleep(Duration::from_millis(20)).await;
        }
    };
    let again = tokio::time::timeout(Duration::from_secs(20), again).await;
    again.expect("a stream that was closed makes way");
}

#[tokio::test(start_paused = true)]
async fn all_operators_together_hold_a_bounded_number_of_streams() {
    let authorize = authorize_fn(|parts: &http::request::Parts| {
        let name = parts.headers["x-name"].to_str().expect("a text");
        std::future::ready(Ok(Operator::new(name, [Role::Read])))
    });
    let limiter = LoginLimiter::new(Policy::default(), MemoryStore::new());
    let server = Server::new(limiter, authorize).expect("a server");
    let app = server.with_feed(Feed::new(10)).router();
    let open = async |name: String| {
        let request = http::Request::get("/v1/admin/events/live").header("x-name", name);
        let request = request.body(axum::body::Body::empty()).expect("a request");
        let response = tower::ServiceExt::oneshot(app.clone(), request).await;
        response.expect("an answer")
    };
    let mut held = Vec::new();
    for i in 0..256 {
        held.push(open(format!("operator-{}", i / 16)).await);
    }
    assert!(held.iter().all(|response| response.status() == 200));
    let refused = open("another".to_owned()).await;
    assert_eq!(refused.status(), 503);
    assert_eq!(
        refused.headers()["content-type"],
        "application/problem+json"
    );
    held.pop();
    assert_eq!(open("another".to_owned()).await.status(), 200);
}
