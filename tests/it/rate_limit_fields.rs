//! The fields and the problem type of the IETF rate-limit draft, read back by a parser of structured fields.

use std::{convert::Infallible, time::Duration};

use http::{HeaderMap, Request, Response, StatusCode};
use http_body_util::BodyExt;
use serde_json::{Value, json};
use sfv::{BareItem, Item, List, ListEntry, Parser};
use tower::{Layer, ServiceExt, service_fn};
use tower_login_rate_limit::{
    BackoffBuilder, Limit, LimitBuilder, LoginAttempt, LoginLimiter, LoginRateLimitLayer, Period,
    Policy, PolicyError, extract::PeerAddressExtension, store::MemoryStore,
};

/// A name, and the integers among its parameters.
type Field = (String, Vec<(String, i64)>);

/// A field that must have exactly one item: a string, with integers as parameters.
fn read(headers: &HeaderMap, name: &str) -> Field {
    let mut values = headers.get_all(name).iter();
    let value = values.next().unwrap_or_else(|| panic!("no {name}"));
    assert_eq!(values.next(), None, "{name} twice");
    let list: List = Parser::new(value.as_bytes()).parse().unwrap();
    let [
        ListEntry::Item(Item {
            bare_item: BareItem::String(policy),
            params,
        }),
    ] = &list[..]
    else {
        panic!("{name}: {list:?}");
    };
    let parameter = |(key, value): (&sfv::Key, &BareItem)| match value {
        BareItem::Integer(n) => (key.as_str().to_owned(), i64::from(*n)),
        other => panic!("{key:?}={other:?}"),
    };
    (
        policy.as_str().to_owned(),
        params.iter().map(parameter).collect(),
    )
}

fn field(parameters: &[(&str, i64)]) -> Field {
    let owned = |(key, n): &(&str, i64)| ((*key).to_owned(), *n);
    ("address".to_owned(), parameters.iter().map(owned).collect())
}

/// The head and the body of a response to a wrong password.
async fn fail(limiter: &LoginLimiter) -> (StatusCode, HeaderMap, Value) {
    let layer = LoginRateLimitLayer::new(limiter.clone()).with_rate_limit_fields(true);
    let service = layer.layer(service_fn(async |request: Request<String>| {
        request.extensions().get::<LoginAttempt>().unwrap().failed();
        Ok::<_, Infallible>(Response::new(String::from("{}")))
    }));
    let mut request = Request::post("/").body(String::new()).unwrap();
    let peer = "192.0.2.1:5000".parse().unwrap();
    request.extensions_mut().insert(PeerAddressExtension(peer));
    let (head, body) = service.oneshot(request).await.unwrap().into_parts();
    let body = body.collect().await.unwrap().to_bytes();
    (
        head.status,
        head.headers,
        serde_json::from_slice(&body).unwrap(),
    )
}

fn limiter<L>(limit: L) -> LoginLimiter
where
    L: TryInto<Limit, Error = PolicyError>,
{
    let policy = Policy::default().with_address_limit(limit).unwrap();
    LoginLimiter::new(policy, MemoryStore::new())
}

fn two_an_hour() -> LimitBuilder {
    Limit::attempts(2).within(Period::hours(1))
}

#[tokio::test]
async fn the_fields_are_structured_fields_of_the_draft() {
    let limiter = limiter(two_an_hour().blocked_for(Duration::from_millis(90_500)));
    let policy = field(&[("q", 2), ("w", 3600)]);
    for left in [1, 0] {
        let (status, headers, _) = fail(&limiter).await;
        assert_eq!(status, 200);
        assert_eq!(read(&headers, "ratelimit-policy"), policy);
        assert_eq!(read(&headers, "ratelimit"), field(&[("r", left)]));
    }
    let (status, headers, problem) = fail(&limiter).await;
    assert_eq!(status, 429);
    assert_eq!(read(&headers, "ratelimit-policy"), policy);
    let (name, state) = read(&headers, "ratelimit");
    assert_eq!(
        (name.as_str(), &state[0]),
        ("address", &("r".to_owned(), 0))
    );
    let seconds = state[1].1;
    assert!(
        state[1].0 == "t" && (80..=91).contains(&seconds),
        "{state:?}"
    );
    // Not later than the client is told to come back.
    let retry_after: i64 = headers["retry-after"].to_str().unwrap().parse().unwrap();
    assert!(retry_after >= seconds);

    assert_eq!(
        problem["type"],
        "https://iana.org/assignments/http-problem-types#quota-exceeded"
    );
    assert_eq!(problem["violated-policies"], json!([name]));
}

/// Without an end there is no time, and a back-off has no window.
#[tokio::test]
async fn parameters_that_do_not_apply_are_left_out() {
    let forever = limiter(Limit::attempts(1).within(Period::Forever));
    fail(&forever).await;
    let (status, headers, _) = fail(&forever).await;
    assert_eq!(status, 429);
    assert_eq!(read(&headers, "ratelimit-policy"), field(&[("q", 1)]));
    assert_eq!(read(&headers, "ratelimit"), field(&[("r", 0)]));

    let backoff: BackoffBuilder = Limit::backoff([Duration::from_secs(5)]);
    let (_, headers, _) = fail(&limiter(backoff)).await;
    assert_eq!(read(&headers, "ratelimit-policy"), field(&[("q", 1)]));
}

/// The draft has a type for quotas alone.
#[tokio::test]
async fn other_denials_are_of_no_registered_type() {
    let layer = LoginRateLimitLayer::new(limiter(two_an_hour()));
    let service = layer.layer(service_fn(async |_: Request<String>| {
        Ok::<_, Infallible>(Response::new(String::new()))
    }));
    // Without an address.
    let response = service.oneshot(Request::new(String::new())).await.unwrap();
    let body = response.into_body().collect().await.unwrap().to_bytes();
    let problem: Value = serde_json::from_slice(&body).unwrap();
    assert_eq!(
        (&problem["type"], &problem["status"]),
        (&json!("about:blank"), &json!(500))
    );
    assert_eq!(problem["violated-policies"], Value::Null);
}
