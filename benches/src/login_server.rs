//! An axum server with a login, in a process of its own: this program, called with other arguments.

use std::{
    env,
    future::{Ready, ready},
    io::{self, BufRead, BufReader, Read},
    net::{IpAddr, SocketAddr},
    process::{Child, Command, Stdio},
    thread,
    time::Duration,
};

use axum::{
    Router,
    body::{Body, to_bytes},
    response::IntoResponse,
    routing::post,
};
use benches::services::{USER_HEADER, UserKeyExtractor, roomy, stingy};
use http::{HeaderMap, Request, Response, StatusCode, request::Parts};
use tokio::runtime::{Builder, Runtime};
use tower::{ServiceExt, layer::util::Identity};
use tower_governor::key_extractor::SmartIpKeyExtractor;
use tower_login_rate_limit::{
    LoginAttempt, LoginLimiter, LoginRateLimitLayer, Outcome, Policy,
    event::Event,
    extract::Header,
    store::{MemoryStore, RedisStore},
};

use crate::{held_pool::HeldPool, redis_peers::Shared, redis_server::RedisServer};

/// The first argument of a child.
pub const SERVE: &str = "serve-logins";

/// Who is blocked from the beginning; `login.lua` names the same.
const BLOCKED: (&str, &str) = ("192.0.2.1", "somebody");

/// What stands before the handler.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Guard {
    NoLayer,
    /// A layer that does nothing.
    Identity,
    /// None, and a handler that asks Redis twice, in turn, for nothing; but not for whom ours would refuse.
    TwoPings,
    OursInMemory,
    /// With an observer that takes 100 ms for each event.
    OursWithSleepingObserver,
    /// With an observer that panics at each event.
    OursWithPanickingObserver,
    OursOnRedis,
    /// Our layer over connections that are held.
    OursOnHeldPool,
    /// tower_governor by address, which admits.
    Governor,
    /// Two of them, by address and by user.
    TwoGovernors,
    /// tower_governor by address, with a quota that is used up.
    StingyGovernor,
    /// None, and a handler that answers what our layer answers to a blocked client, without a decision.
    Refusal,
}

impl Guard {
    const ALL: [Self; 12] = [
        Self::NoLayer,
        Self::Identity,
        Self::TwoPings,
        Self::OursInMemory,
        Self::OursWithSleepingObserver,
        Self::OursWithPanickingObserver,
        Self::OursOnRedis,
        Self::OursOnHeldPool,
        Self::Governor,
        Self::TwoGovernors,
        Self::StingyGovernor,
        Self::Refusal,
    ];
}

/// A server that ends with this value.
pub struct LoginServer {
    process: Child,
    port: u16,
}

impl LoginServer {
    pub fn start(guard: Guard, redis: &RedisServer) -> Self {
        let mut process = Command::new(env::current_exe().expect("this program"))
            .args([SERVE, &format!("{guard:?}"), &redis.url()])
            .stdin(Stdio::piped())
            .stdout(Stdio::piped())
            .spawn()
            .expect("a process");
        let mut port = String::new();
        let stdout = process.stdout.take().expect("a pipe");
        let read = BufReader::new(stdout).read_line(&mut port);
        read.expect("the port of a server");
        let port = port.trim().parse();
        Self {
            process,
            port: port.unwrap_or_else(|_| panic!("the server with {guard:?} has no port")),
        }
    }

    pub const fn port(&self) -> u16 {
        self.port
    }
}

impl Drop for LoginServer {
    fn drop(&mut self) {
        let _ = self.process.kill();
        let _ = self.process.wait();
    }
}

/// What the child does: says its port, and serves until its parent is gone.
pub fn serve(mut arguments: impl Iterator<Item = String>) {
    let (guard, redis) = (arguments.next(), arguments.next());
    let guard = guard.and_then(|name| {
        let mut guards = Guard::ALL.into_iter();
        guards.find(|guard| format!("{guard:?}") == name)
    });
    let (guard, redis) = guard.zip(redis).expect("a guard and the URL of a Redis");
    let runtime = Builder::new_multi_thread().enable_all().build();
    let runtime = runtime.expect("a runtime");
    let app = app(&runtime, guard, &redis);
    thread::spawn(|| {
        // The pipe from the parent ends with it.
        let _ = io::stdin().read(&mut [0]);
        std::process::exit(0);
    });
    runtime
        .block_on(async {
            let listener = tokio::net::TcpListener::bind(("127.0.0.1", 0)).await;
            let listener = listener.expect("a port");
            println!("{}", listener.local_addr().expect("a port").port());
            let app = app.into_make_service_with_connect_info::<SocketAddr>();
            axum::serve(listener, app).await
        })
        .expect("it ends with its parent");
}

/// Every password is right.
async fn login(attempt: Option<LoginAttempt>) {
    if let Some(attempt) = attempt {
        attempt.succeeded();
    }
}

fn app(runtime: &Runtime, guard: Guard, redis: &str) -> Router {
    let login = post(login);
    let login = match guard {
        Guard::NoLayer => login,
        Guard::Identity => login.layer(Identity::new()),
        Guard::TwoPings => {
            let redis = runtime.block_on(Shared::connect(redis));
            post(async move |headers: HeaderMap| {
                if headers.get("x-user").is_none_or(|user| user != BLOCKED.1) {
                    redis.pinged().await;
                    redis.pinged().await;
                }
            })
        }
        Guard::OursInMemory => login.layer(ours(runtime, MemoryStore::new())),
        Guard::OursWithSleepingObserver => login.layer(observed(|_| {
            thread::sleep(Duration::from_millis(100));
        })),
        // Without the message that a panic prints.
        Guard::OursWithPanickingObserver => {
            login.layer(observed(|_| std::panic::resume_unwind(Box::new(()))))
        }
        Guard::OursOnRedis => {
            let store = runtime.block_on(RedisStore::connect(redis));
            login.layer(ours(runtime, store.expect("a store")))
        }
        Guard::OursOnHeldPool => {
            let limiter = LoginLimiter::new(Policy::default(), HeldPool::connect(runtime, redis));
            login.layer(layer(limiter))
        }
        Guard::Governor => login.layer(roomy(SmartIpKeyExtractor)),
        Guard::TwoGovernors => login.layer((roomy(SmartIpKeyExtractor), roomy(UserKeyExtractor))),
        Guard::StingyGovernor => login.layer(stingy(SmartIpKeyExtractor)),
        Guard::Refusal => post(refusal(runtime)),
    };
    Router::new().route("/login", login)
}

/// Our layer, with somebody blocked.
fn ours(
    runtime: &Runtime,
    store: impl tower_login_rate_limit::store::Store,
) -> LoginRateLimitLayer {
    let limiter = LoginLimiter::new(Policy::default(), store);
    let (address, user) = BLOCKED;
    let address: IpAddr = address.parse().expect("an address");
    runtime.block_on(async {
        // Another server may have done so in the same Redis.
        while let Ok(attempt) = limiter.reserve((address, user)).await {
            let settled = attempt.settle(Outcome::Failure).await;
            settled.expect("an answer");
        }
    });
    layer(limiter)
}

/// Our layer in memory, with an observer.
fn observed(observer: impl Fn(&Event) + Send + Sync + 'static) -> LoginRateLimitLayer {
    let limiter = LoginLimiter::new(Policy::default(), MemoryStore::new());
    layer(limiter.with_observer(observer))
}

fn layer(limiter: LoginLimiter) -> LoginRateLimitLayer {
    LoginRateLimitLayer::new(limiter)
        .with_address(|request: &Parts| {
            request
                .headers
                .get("x-forwarded-for")?
                .to_str()
                .ok()?
                .parse()
                .ok()
        })
        .with_user(Header::new(USER_HEADER))
}

/// A handler that repeats one refusal of our layer.
fn refusal(runtime: &Runtime) -> impl Fn() -> Ready<Response<Body>> + Clone + use<> {
    let (address, user) = BLOCKED;
    let app = app(runtime, Guard::OursInMemory, "");
    let request = Request::post("/login")
        .header("x-forwarded-for", address)
        .header(USER_HEADER, user)
        .body(Body::empty())
        .expect("a request");
    let (parts, body) = runtime.block_on(async {
        let Ok(refused) = app.oneshot(request).await;
        let (parts, body) = refused.into_parts();
        (parts, to_bytes(body, 4096).await.expect("a body"))
    });
    assert_eq!(parts.status, StatusCode::TOO_MANY_REQUESTS);
    move || {
        let answer = (parts.status, parts.headers.clone(), body.clone());
        ready(answer.into_response())
    }
}
