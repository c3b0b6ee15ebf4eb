//! gRPC, with a real tonic server and a real tonic client.

use std::{net::SocketAddr, time::Duration};

use tokio::net::TcpListener;
use tokio_stream::wrappers::TcpListenerStream;
use tonic::{Code, Request, Response, Status, transport::Server};
use tonic_types::StatusExt;
use tower_login_rate_limit::{
    LoginAttempt, LoginLimiter, LoginRateLimitLayer, Policy, Rule, classify::ByGrpcStatus,
    store::MemoryStore,
};

use crate::support::{ip, server::on_both_stores};

#[allow(unreachable_pub, clippy::all)]
#[path = "../../examples/proto/login.rs"]
mod login;

use login::{
    Credentials, Session,
    login_client::LoginClient,
    login_server::{Login, LoginServer},
};

/// The password says what happens; the user is named if it does not say otherwise.
struct Handler;

#[tonic::async_trait]
impl Login for Handler {
    async fn log_in(&self, request: Request<Credentials>) -> Result<Response<Session>, Status> {
        let attempt = request
            .extensions()
            .get::<LoginAttempt>()
            .cloned()
            .expect("the layer");
        let Credentials { username, password } = request.into_inner();
        if !username.is_empty() {
            attempt.identify(&username).await?;
        }
        let greeting = "welcome".to_owned();
        match &*password {
            "right" => {
                attempt.succeeded();
                Ok(Response::new(Session { greeting }))
            }
            "wrong" => {
                attempt.failed();
                Err(Status::unauthenticated("wrong user or password"))
            }
            "silent" => Ok(Response::new(Session { greeting })),
            "silently wrong" => Err(Status::unauthenticated("wrong user or password")),
            _ => Err(Status::unavailable("the database is away")),
        }
    }
}

async fn serve(layer: LoginRateLimitLayer) -> LoginClient<tonic::transport::Channel> {
    let listener = TcpListener::bind("127.0.0.1:0").await.unwrap();
    let address: SocketAddr = listener.local_addr().unwrap();
    let server = Server::builder()
        .layer(layer)
        .add_service(LoginServer::new(Handler))
        .serve_with_incoming(TcpListenerStream::new(listener));
    tokio::spawn(server);
    LoginClient::connect(format!("http://{address}"))
        .await
        .unwrap()
}

fn credentials(user: &str, password: &str) -> Credentials {
    Credentials {
        username: user.to_owned(),
        password: password.to_owned(),
    }
}

async fn usage(limiter: &LoginLimiter, user: &str) -> (u32, u32) {
    let report = limiter.check((ip("127.0.0.1"), user)).await.unwrap();
    let of = |rule| report.rule(rule).unwrap().usage;
    (of(Rule::ADDRESS), of(Rule::USER_ADDRESS))
}

#[tokio::test]
async fn the_handler_and_the_layer_state_when_the_block_lifts() {
    let (_redis, limiters) = on_both_stores(Policy::default()).await;
    for limiter in limiters {
        let mut client = serve(LoginRateLimitLayer::new(limiter.clone())).await;
        for _ in 0..5 {
            let status = client
                .log_in(credentials("user", "wrong"))
                .await
                .unwrap_err();
            assert_eq!(status.code(), Code::Unauthenticated);
        }
        // By the handler, which named the user.
        let by_handler = client
            .log_in(credentials("user", "right"))
            .await
            .unwrap_err();
        assert_eq!(usage(&limiter, "user").await, (5, 5));
        // By the layer, before anything was read.
        for i in 0..20 {
            client
                .log_in(credentials(&format!("user {i}"), "wrong"))
                .await
                .unwrap_err();
        }
        let by_layer = client
            .log_in(credentials("other", "right"))
            .await
            .unwrap_err();
        for (status, rule, seconds) in
            [(by_handler, "1 day", 86_400), (by_layer, "7 days", 604_800)]
        {
            assert_eq!(status.code(), Code::ResourceExhausted);
            let message = format!("too many failed attempts, try again in {rule}");
            assert_eq!(status.message(), message);
            let details = status.get_error_details();
            let delay = details
                .retry_info()
                .and_then(|info| info.retry_delay)
                .unwrap();
            let expected = Duration::from_secs(seconds);
            assert!(
                delay <= expected && delay > expected - Duration::from_secs(60),
                "{delay:?}"
            );
        }
    }
}

#[tokio::test]
async fn a_block_that_never_lifts_has_no_retry_delay() {
    let limit =
        tower_login_rate_limit::Limit::attempts(1).within(tower_login_rate_limit::Period::Forever);
    let policy = Policy::default().with_address_limit(limit).unwrap();
    let limiter = LoginLimiter::new(policy, MemoryStore::new());
    let mut client = serve(LoginRateLimitLayer::new(limiter)).await;
    client
        .log_in(credentials("user", "wrong"))
        .await
        .unwrap_err();
    let status = client
        .log_in(credentials("user", "right"))
        .await
        .unwrap_err();
    assert_eq!(
        status.message(),
        "too many failed attempts, blocked forever"
    );
    assert!(status.get_details_retry_info().is_none());
}

#[tokio::test]
async fn without_a_recorded_outcome_the_status_decides() {
    let limiter = LoginLimiter::new(Policy::default(), MemoryStore::new());
    let mut client = serve(LoginRateLimitLayer::new(limiter.clone())).await;
    client
        .log_in(credentials("user", "silently wrong"))
        .await
        .unwrap_err();
    assert_eq!(usage(&limiter, "user").await, (1, 1));
    // The server's fault is not an attempt, and an answer that says nothing is no success.
    client
        .log_in(credentials("user", "broken"))
        .await
        .unwrap_err();
    assert_eq!(usage(&limiter, "user").await, (1, 1));
    client.log_in(credentials("user", "silent")).await.unwrap();
    assert_eq!(usage(&limiter, "user").await, (2, 2));

    let layer = LoginRateLimitLayer::new(limiter.clone()).with_classifier(ByGrpcStatus);
    let mut client = serve(layer).await;
    client
        .log_in(credentials("user", "silently wrong"))
        .await
        .unwrap_err();
    client
        .log_in(credentials("user", "broken"))
        .await
        .unwrap_err();
    assert_eq!(usage(&limiter, "user").await, (3, 3));
    client.log_in(credentials("user", "silent")).await.unwrap();
    assert_eq!(usage(&limiter, "user").await, (0, 0));
}
