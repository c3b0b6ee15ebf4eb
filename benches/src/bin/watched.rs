//! A server with a login and a console, with 10,000 blocks in force.
//!
//! A program of its own, since the features that this needs would be in the figures of the others too. Called with the
//! URL of a Redis, it prints its port, and serves until its parent is gone.

use std::{
    collections::BTreeMap,
    io::{self, Read},
    net::{Ipv4Addr, SocketAddr},
    sync::{Arc, Mutex, PoisonError},
    thread,
};

use axum::{
    Router,
    extract::Request,
    middleware::{self, Next},
    routing::{get, post},
};
use benches::services::USER_HEADER;
use http::request::Parts;
use tokio::task::JoinSet;
use tower_login_rate_limit::{
    LoginAttempt, LoginLimiter, LoginRateLimitLayer, Outcome, Policy,
    console::Console,
    event::{Feed, UserDisplay, UserHasher},
    extract::Header,
    insight::Insight,
    server::{Operator, Role, Server, authorize_fn},
    store::RedisStore,
};

const BLOCKS: u32 = 10_000;
/// Tasks that fail.
const TASKS: u32 = 64;

#[tokio::main]
async fn main() {
    let redis = std::env::args().nth(1).expect("the URL of a Redis");
    let store = RedisStore::connect(redis).await.expect("a store");
    let feed = Feed::new(100_000);
    let secret = UserHasher::new("32 random bytes of this benchmark").expect("a secret");
    let limiter = LoginLimiter::new(Policy::default(), store)
        .with_user_display(UserDisplay::Clear)
        .with_insight(Insight::new(secret))
        .with_observer(feed.clone())
        .live()
        .await
        .expect("a live limiter");
    block(&limiter).await;

    let anybody = authorize_fn(|_: &Parts| async { Ok(Operator::new("anybody", [Role::Operate])) });
    let server = Server::new(limiter.clone(), anybody).expect("a ledger");
    let console = Console::new(server.with_feed(feed)).without_login();
    let asked = Asked::default();
    let console = console.router().layer(middleware::from_fn({
        let asked = asked.clone();
        move |request: Request, next: Next| {
            asked.count(request.uri().path());
            next.run(request)
        }
    }));
    let app = Router::new()
        .route("/login", post(login).layer(layer(limiter)))
        .route("/asked", get(async move || asked.lines()))
        .nest("/console", console);

    thread::spawn(|| {
        // The pipe from the parent ends with it.
        let _ = io::stdin().read(&mut [0]);
        std::process::exit(0);
    });
    let listener = tokio::net::TcpListener::bind(("127.0.0.1", 0)).await;
    let listener = listener.expect("a port");
    println!("{}", listener.local_addr().expect("a port").port());
    let app = app.into_make_service_with_connect_info::<SocketAddr>();
    axum::serve(listener, app)
        .await
        .expect("it ends with its parent");
}

/// Every password is right.
async fn login(attempt: LoginAttempt) {
    attempt.succeeded();
}

fn layer(limiter: LoginLimiter) -> LoginRateLimitLayer {
    LoginRateLimitLayer::new(limiter)
        .with_address(|request: &Parts| {
            let address = request.headers.get("x-forwarded-for")?;
            address.to_str().ok()?.parse().ok()
        })
        .with_user(Header::new(USER_HEADER))
}

/// Blocks users, each at an address of its own.
async fn block(limiter: &LoginLimiter) {
    let mut tasks = JoinSet::new();
    for task in 0..TASKS {
        let limiter = limiter.clone();
        tasks.spawn(async move {
            for n in (task..BLOCKS).step_by(TASKS as usize) {
                let address = Ipv4Addr::from_bits(0x0A00_0000 + n).into();
                let user = format!("blocked{n}");
                while let Ok(attempt) = limiter.reserve((address, user.as_str())).await {
                    attempt.settle(Outcome::Failure).await.expect("settled");
                }
            }
        });
    }
    tasks.join_all().await;
    let counts = limiter.admin().expect("a ledger").block_counts().await;
    let counts = counts.expect("counts");
    let blocks = counts.iter().map(|count| count.blocks).sum::<u64>();
    assert_eq!(blocks, u64::from(BLOCKS));
}

/// How often the console was asked for each path.
#[derive(Clone, Default)]
struct Asked(Arc<Mutex<BTreeMap<String, u64>>>);

impl Asked {
    fn count(&self, path: &str) {
        let mut asked = self.0.lock().unwrap_or_else(PoisonError::into_inner);
        *asked.entry(path.to_owned()).or_default() += 1;
    }

    fn lines(&self) -> String {
        let asked = self.0.lock().unwrap_or_else(PoisonError::into_inner);
        asked
            .iter()
            .map(|(path, count)| format!("{path} {count}\n"))
            .collect()
    }
}
