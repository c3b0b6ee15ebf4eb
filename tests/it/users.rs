//! Which user a request means, and bodies on their way through.

use std::{
    convert::Infallible,
    pin::Pin,
    task::{Context, Poll},
};

use bytes::Bytes;
use http::{HeaderMap, Request, Response, StatusCode, header::CONTENT_TYPE};
use http_body::{Body, Frame};
use http_body_util::{BodyExt, Full, StreamBody};
use proptest::prelude::*;
use tower::{Layer, ServiceExt, service_fn};
use tower_login_rate_limit::{
    LoginAttempt, LoginLimiter, LoginRateLimitLayer, Policy, ReplayedBody, Rule,
    extract::{
        BasicAuth, ExtractBodyUser, ExtractError, ExtractUser, FormField, FromAsync, Header,
        JsonField, PeerAddressExtension, QueryField,
    },
    store::MemoryStore,
};

use crate::support::ip;

fn layer() -> LoginRateLimitLayer {
    LoginRateLimitLayer::new(LoginLimiter::new(Policy::default(), MemoryStore::new()))
}

fn request<B>(body: B) -> Request<B> {
    let mut request = Request::new(body);
    let peer = PeerAddressExtension("192.0.2.1:5000".parse().unwrap());
    request.extensions_mut().insert(peer);
    request
}

async fn in_head(user: impl ExtractUser, request: &Request<()>) -> String {
    let (parts, ()) = request.clone().into_parts();
    match user.extract_user(&parts).await {
        Ok(user) => user.unwrap_or_else(|| "nobody".to_owned()),
        Err(_) => "refused".to_owned(),
    }
}

/// A request with a body of this type.
fn typed(content_type: &'static str) -> http::request::Parts {
    let mut request = Request::new(());
    let content_type = http::HeaderValue::from_static(content_type);
    request.headers_mut().insert(CONTENT_TYPE, content_type);
    request.into_parts().0
}

const JSON: &str = "application/json";
const FORM: &str = "application/x-www-form-urlencoded";

/// What an extractor finds that waits for nothing.
fn found(
    user: &impl ExtractBodyUser,
    parts: &http::request::Parts,
    body: &[u8],
) -> Result<Option<String>, ExtractError> {
    let found = user.extract_user(parts, &Bytes::copy_from_slice(body));
    match std::pin::pin!(found).poll(&mut Context::from_waker(std::task::Waker::noop())) {
        Poll::Ready(found) => found,
        Poll::Pending => panic!("it waits"),
    }
}

fn in_body(user: &impl ExtractBodyUser, content_type: &'static str, body: &str) -> String {
    let parts = typed(content_type);
    match found(user, &parts, body.as_bytes()) {
        Ok(user) => user.unwrap_or_else(|| "nobody".to_owned()),
        Err(_) => "refused".to_owned(),
    }
}

#[tokio::test]
async fn users_in_the_head() {
    let with = |name: &'static str, value: &'static str| {
        Request::builder()
            .uri("/")
            .header(name, value)
            .body(())
            .unwrap()
    };
    let header = || Header::new("x-user".parse().unwrap());
    assert_eq!(in_head(header(), &with("x-user", "alice")).await, "alice");
    assert_eq!(in_head(header(), &with("x-other", "alice")).await, "nobody");
    let mut twice = with("x-user", "alice");
    twice.headers_mut().append("x-user", "bob".parse().unwrap());
    assert_eq!(in_head(header(), &twice).await, "refused");

    for (value, user) in [
        ("Basic YWxpY2U6c2VjcmV0", "alice"),
        ("basic  YWxpY2U6c2U6Y3JldA==", "alice"),
        ("Basic YWxpY2U=", "alice"),
        ("Basic\tYWxpY2U6c2VjcmV0", "alice"),
        ("Bearer YWxpY2U6c2VjcmV0", "nobody"),
        ("x", "nobody"),
        // Nobody to us, but perhaps somebody to the handler.
        ("Basic %%%", "refused"),
        ("Basic bfxsbGVyOng=", "refused"), // Latin-1
        ("BasicYWxpY2U", "refused"),
    ] {
        assert_eq!(
            in_head(BasicAuth, &with("authorization", value)).await,
            user,
            "{value}"
        );
    }

    let query = |uri: &str| Request::builder().uri(uri).body(()).unwrap();
    let field = || QueryField::new("user");
    assert_eq!(
        in_head(field(), &query("/?user=al%69ce&x=1")).await,
        "alice"
    );
    assert_eq!(in_head(field(), &query("/?x=1")).await, "nobody");
    assert_eq!(
        in_head(field(), &query("/?user=a&us%65r=b")).await,
        "refused"
    );

    let closure = |parts: &http::request::Parts| Some(parts.uri.path().to_owned());
    assert_eq!(in_head(closure, &query("/alice")).await, "/alice");
    let later = FromAsync::new(|parts: &http::request::Parts| {
        let path = parts.uri.path().to_owned();
        async move {
            tokio::task::yield_now().await;
            Ok(Some(path))
        }
    });
    assert_eq!(in_head(later, &query("/alice")).await, "/alice");
}

#[test]
fn users_in_the_body() {
    let name = JsonField::new("username");
    let deep = JsonField::at("/login/names/1");
    let odd = JsonField::at("/a~1b/~0");
    for (field, body, user) in [
        (&name, r#"{"username":"alice"}"#, "alice"),
        (
            &name,
            r#" {"x":[1,{"username":"no"}],"username":"alice","y":null} "#,
            "alice",
        ),
        (&name, r#"{"username":"\u0061lice"}"#, "alice"),
        (&name, r#"{"user\u006eame":"alice"}"#, "alice"),
        (&name, r#"{"username":42}"#, "42"),
        (&name, r#"{"username":-1}"#, "-1"),
        (&name, r#"{"username":null}"#, "nobody"),
        (&name, r#"{"username":{"a":"b"}}"#, "refused"),
        (&name, r#"{"username":["alice"]}"#, "refused"),
        (&name, r#"{"username":1.5}"#, "refused"),
        (
            &name,
            r#"{"username":340282366920938463463374607431768211455}"#,
            "refused",
        ),
        // serde reads a list into a struct, by position.
        (&name, r#"["alice","secret"]"#, "refused"),
        (&name, r#"{"other":"alice"}"#, "nobody"),
        (&name, r#""alice""#, "refused"),
        (&name, "not json", "refused"),
        (&name, r#"{"username":"alice""#, "refused"),
        (
            &JsonField::at("username"),
            r#"{"username":"alice"}"#,
            "alice",
        ),
        (&name, "", "nobody"),
        // Parsers differ on which of two counts.
        (&name, r#"{"username":"alice","username":"bob"}"#, "refused"),
        (
            &name,
            r#"{"username":"alice","user\u006eame":"bob"}"#,
            "refused",
        ),
        (
            &name,
            r#"{"username":"alice","x":{"username":"bob"}}"#,
            "alice",
        ),
        (&deep, r#"{"login":{"names":["bob","alice"]}}"#, "alice"),
        (&deep, r#"{"login":{"names":["bob"]}}"#, "nobody"),
        (
            &deep,
            r#"{"login":{"names":["b","a"]},"login":{}}"#,
            "refused",
        ),
        (&odd, r#"{"a/b":{"~":"alice"}}"#, "alice"),
    ] {
        assert_eq!(in_body(field, JSON, body), user, "{body}");
    }
    let nested = format!("{}{}", "[".repeat(100_000), "]".repeat(100_000));
    assert_eq!(in_body(&name, JSON, &nested), "refused");

    let field = FormField::new("username");
    assert_eq!(
        in_body(&field, FORM, "password=x&username=al%69ce+b"),
        "alice b"
    );
    assert_eq!(in_body(&field, FORM, "password=x"), "nobody");
    assert_eq!(in_body(&field, FORM, "username=a&user%6eame=b"), "refused");
    let closure = |_: &http::request::Parts, body: &[u8]| Some(body.len().to_string());
    assert_eq!(in_body(&closure, "text/plain", "four"), "4");

    // axum's `Form` reads the query of a GET, whatever is in the body.
    let get = |uri: &str, body: &str| {
        let mut parts = typed(FORM);
        parts.uri = uri.parse().unwrap();
        found(&field, &parts, body.as_bytes()).map_err(drop)
    };
    assert_eq!(get("/?username=attacker", "username=victim"), Err(()));
    assert_eq!(get("/?username=alice", ""), Ok(Some("alice".to_owned())));
}

proptest! {
    #![proptest_config(ProptestConfig { failure_persistence: None, cases: 5_000, ..Default::default() })]
    #[test]
    fn no_body_makes_it_panic(body in proptest::collection::vec(any::<u8>(), 0..200), json in "[\\[\\]{}\",:a-z0-9\\\\u ]{0,80}") {
        for bytes in [&body[..], json.as_bytes()] {
            let _ = found(&JsonField::at("/a/b"), &typed(JSON), bytes);
            let _ = found(&FormField::new("a"), &typed(FORM), bytes);
        }
    }

    /// Where a user is found, it is the one that a handler finds.
    #[test]
    fn json_is_read_as_the_handler_reads_it(user in any::<String>(), other in any::<String>()) {
        let body = serde_json::json!({"a": other, "username": user, "z": [other]}).to_string();
        let found = found(&JsonField::new("username"), &typed(JSON), body.as_bytes()).unwrap();
        prop_assert_eq!(found, Some(user));
    }
}

/// Gives one frame at a time, and lets others go first in between.
struct Frames(Vec<Result<Frame<Bytes>, &'static str>>, bool);

impl Frames {
    fn new(mut frames: Vec<Result<Frame<Bytes>, &'static str>>) -> Self {
        frames.reverse();
        Self(frames, false)
    }
}

impl Body for Frames {
    type Data = Bytes;
    type Error = &'static str;

    fn poll_frame(
        mut self: Pin<&mut Self>,
        cx: &mut Context<'_>,
    ) -> Poll<Option<Result<Frame<Bytes>, &'static str>>> {
        self.1 = !self.1;
        if self.1 {
            cx.waker().wake_by_ref();
            return Poll::Pending;
        }
        Poll::Ready(self.0.pop())
    }
}

fn data(text: &'static str) -> Result<Frame<Bytes>, &'static str> {
    Ok(Frame::data(Bytes::from_static(text.as_bytes())))
}

/// What the handler got: the user's usage, the body, its trailers, or how it broke off.
async fn passed(
    layer: LoginRateLimitLayer<tower_login_rate_limit::WithBody>,
    body: Frames,
) -> (StatusCode, String) {
    let limiter = layer.limiter().clone();
    let service = layer.layer(service_fn(
        async |request: Request<ReplayedBody<Frames>>| {
            let attempt = request.extensions().get::<LoginAttempt>().cloned().unwrap();
            attempt.failed();
            let text = match request.into_body().collect().await {
                Ok(body) => {
                    let trailers = body.trailers().map_or(0, HeaderMap::len);
                    format!("{} {trailers}", String::from_utf8_lossy(&body.to_bytes()))
                }
                Err(error) => error.to_owned(),
            };
            Ok::<_, Infallible>(Response::new(Full::from(text)))
        },
    ));
    let mut request = request(body);
    request
        .headers_mut()
        .insert(CONTENT_TYPE, FORM.parse().unwrap());
    let response = service.oneshot(request).await.unwrap();
    let status = response.status();
    let text = response.into_body().collect().await.unwrap().to_bytes();
    let report = limiter.check((ip("192.0.2.1"), "alice")).await.unwrap();
    let usage = report.rule(Rule::USER_ADDRESS).unwrap().usage;
    (
        status,
        format!("{usage} {}", String::from_utf8_lossy(&text)),
    )
}

#[tokio::test]
async fn the_handler_gets_the_same_body_with_its_trailers() {
    let layer = || layer().with_body_user(FormField::new("user"));
    let mut trailers = HeaderMap::new();
    trailers.insert("x-sum", "1".parse().unwrap());
    let frames = || {
        vec![
            data("user"),
            data("=ali"),
            data("ce&x=1"),
            Ok(Frame::trailers(trailers.clone())),
        ]
    };
    assert_eq!(
        passed(layer(), Frames::new(frames())).await.1,
        "1 user=alice&x=1 1"
    );
    assert_eq!(
        passed(layer(), Frames::new(vec![data("user=alice")]))
            .await
            .1,
        "1 user=alice 0"
    );
    assert_eq!(passed(layer(), Frames::new(vec![])).await.1, "0  0");
    // One that breaks off names nobody, and is nobody's failure.
    let broken = vec![data("user=alice"), Err("broke off")];
    let (status, _) = passed(layer(), Frames::new(broken)).await;
    assert_eq!(status, StatusCode::BAD_REQUEST);
}

#[tokio::test]
async fn a_body_that_is_too_large_is_refused_or_passed() {
    let layer = || {
        layer()
            .with_body_user(FormField::new("user"))
            .with_body_limit(12)
    };
    let long = || Frames::new(vec![data("user=alice"), data("&x=12345"), data("6789")]);
    let (status, text) = passed(layer(), long()).await;
    assert_eq!(status, StatusCode::PAYLOAD_TOO_LARGE);
    assert!(
        text.starts_with("0 ") && text.contains("12 bytes"),
        "{text}"
    );
    let (status, text) = passed(layer().with_large_bodies_passed(true), long()).await;
    assert_eq!(
        (status, text.as_str()),
        (StatusCode::OK, "0 user=alice&x=123456789 0")
    );
    let exactly = Frames::new(vec![data("user=alice"), data("&x")]);
    assert_eq!(passed(layer(), exactly).await.1, "1 user=alice&x 0");

    // One that says how large it is is not read at all.
    let known = Full::<Bytes>::from("x".repeat(100_000));
    let service = layer().layer(service_fn(async |_: Request<ReplayedBody<Full<Bytes>>>| {
        Ok::<_, Infallible>(Response::new(Full::<Bytes>::default()))
    }));
    let response = service.oneshot(request(known)).await.unwrap();
    assert_eq!(response.status(), StatusCode::PAYLOAD_TOO_LARGE);
}

#[tokio::test]
async fn what_the_layer_does_not_need_is_streamed() {
    // The handler answers while the client is still sending.
    let (send, receive) = tokio::sync::mpsc::channel::<Result<Frame<Bytes>, Infallible>>(1);
    let body = StreamBody::new(tokio_stream::wrappers::ReceiverStream::new(receive));
    let service = layer()
        .with_user(|_: &http::request::Parts| Some("alice".to_owned()))
        .layer(service_fn(async |mut request: Request<StreamBody<_>>| {
            let body: &mut StreamBody<
                tokio_stream::wrappers::ReceiverStream<Result<Frame<Bytes>, Infallible>>,
            > = request.body_mut();
            let frame = body.frame().await.unwrap().unwrap();
            Ok::<_, Infallible>(Response::new(Full::from(frame.into_data().unwrap())))
        }));
    send.send(Ok(Frame::data(Bytes::from_static(b"first"))))
        .await
        .unwrap();
    let response = service.oneshot(request(body)).await.unwrap();
    assert_eq!(
        response.into_body().collect().await.unwrap().to_bytes(),
        "first"
    );
    drop(send);
}

#[tokio::test]
async fn an_ambiguous_user_is_refused_before_the_handler() {
    let layer = layer().with_body_user(JsonField::new("username"));
    let service = layer.layer(service_fn(async |_: Request<ReplayedBody<Full<Bytes>>>| {
        panic!("reached");
        #[allow(unreachable_code)]
        Ok::<_, Infallible>(Response::new(Full::<Bytes>::default()))
    }));
    let body = Full::from(r#"{"username":"decoy","username":"victim"}"#);
    let mut request = request(body);
    request
        .headers_mut()
        .insert(CONTENT_TYPE, JSON.parse().unwrap());
    let response = service.oneshot(request).await.unwrap();
    assert_eq!(response.status(), StatusCode::BAD_REQUEST);
}

#[tokio::test]
async fn the_handler_can_name_the_user() {
    let service = layer().layer(service_fn(async |request: Request<Full<Bytes>>| {
        let attempt = request.extensions().get::<LoginAttempt>().cloned().unwrap();
        let mut response = Response::new(Full::<Bytes>::default());
        match attempt.identify("alice").await {
            Ok(()) => attempt.failed(),
            Err(_) => *response.status_mut() = StatusCode::TOO_MANY_REQUESTS,
        }
        Ok::<_, Infallible>(response)
    }));
    let mut statuses = Vec::new();
    for _ in 0..30 {
        let response = service
            .clone()
            .oneshot(request(Full::default()))
            .await
            .unwrap();
        statuses.push(response.status().as_u16());
    }
    // The pair is refused from the sixth on, and the address never comes to 25.
    assert_eq!(statuses[..5], [200; 5]);
    assert_eq!(statuses[5..], [429; 25]);
}

#[tokio::test]
async fn a_compressed_body_is_refused_rather_than_not_counted() {
    let layer = layer().with_body_user(JsonField::new("username"));
    let service = layer.layer(service_fn(async |_: Request<ReplayedBody<Full<Bytes>>>| {
        Ok::<_, Infallible>(Response::new(Full::<Bytes>::default()))
    }));
    for (encoding, status) in [("gzip", 400), ("br", 400), ("Identity", 200)] {
        let mut request = request(Full::from(r#"{"username":"alice"}"#));
        let headers = request.headers_mut();
        headers.insert(CONTENT_TYPE, JSON.parse().unwrap());
        headers.insert("content-encoding", encoding.parse().unwrap());
        let response = service.clone().oneshot(request).await.unwrap();
        assert_eq!(response.status().as_u16(), status, "{encoding}");
    }
}
