//! What the tests share.

mod authority;
pub mod client;
pub mod example;
mod guessing;
mod nginx;
pub mod oracle;
mod proxy;
mod redis_cluster;
mod redis_sentinel;
mod redis_server;
pub mod server;
mod worker;

use std::{
    net::IpAddr,
    sync::Arc,
    thread,
    time::{Duration, Instant},
};

use tower_login_rate_limit::{
    LoginLimiter, LoginRateLimitLayer, Outcome, Policy, Refusal, ReserveError, Token,
    clock::ManualClock,
    extract::PeerAddressExtension,
    store::{
        MemoryStore, RedisStore, Settled, Settlement, Slot, Store, StoreError,
        redis::{Outage, RedisStoreBuilder},
    },
};

pub use authority::Authority;
pub use guessing::Guessing;
pub use nginx::Nginx;
pub use proxy::{Fault, Proxy};
pub use redis_cluster::RedisCluster;
pub use redis_sentinel::RedisSentinel;
pub use redis_server::{RedisServer, free_port};
pub use worker::Worker;

/// When tests that set the clock begin: a real date, so that numbers have their real size.
pub const START: u64 = 1_790_000_000_000;

pub const SECOND: u64 = 1_000;
pub const MINUTE: u64 = 60 * SECOND;
pub const HOUR: u64 = 60 * MINUTE;
pub const DAY: u64 = 24 * HOUR;

pub fn ip(text: &str) -> IpAddr {
    text.parse().expect("an address")
}

/// A limiter on each kind of store, each with the same clock, for tests of what must be alike.
pub struct BothStores {
    pub clock: Arc<ManualClock>,
    pub redis: RedisServer,
    memory: Arc<dyn Store>,
    shared: Arc<dyn Store>,
}

impl BothStores {
    pub async fn start() -> Self {
        let clock = Arc::new(ManualClock::at(START));
        let redis = RedisServer::start();
        let store = redis.builder().with_clock(Arc::clone(&clock));
        let store = store.connect(redis.url()).await.expect("a store");
        Self {
            memory: Arc::new(MemoryStore::new().with_clock(Arc::clone(&clock))),
            shared: Arc::new(store),
            redis,
            clock,
        }
    }

    /// Names and stores, to say which one went wrong.
    pub fn stores(&self) -> [(&'static str, Arc<dyn Store>); 2] {
        [
            ("memory", Arc::clone(&self.memory)),
            ("redis", Arc::clone(&self.shared)),
        ]
    }

    pub fn limiters(&self, policy: &Policy) -> [(&'static str, LoginLimiter); 2] {
        self.stores().map(|(name, store)| {
            let limiter = LoginLimiter::new(policy.clone(), store);
            (name, limiter)
        })
    }
}

/// For a store that has the deadline of everybody, and does not hide what is wrong with Redis.
pub fn closed() -> RedisStoreBuilder {
    RedisStore::builder().with_outage(Outage::Closed)
}

/// Waits until it is so, and gives up on what never will be.
pub async fn eventually(mut is_so: impl FnMut() -> bool) {
    for _ in 0..6_000 {
        if is_so() {
            return;
        }
        tokio::time::sleep(Duration::from_millis(5)).await;
    }
    panic!("it never came to that");
}

/// The same for what can't wait otherwise than by sleeping.
pub fn wait_until(or_else: &str, mut is_so: impl FnMut() -> bool) {
    let started = Instant::now();
    while !is_so() {
        assert!(started.elapsed() < Duration::from_secs(60), "{or_else}");
        thread::sleep(Duration::from_millis(20));
    }
}

/// One attempt with this outcome.
pub async fn attempt(
    limiter: &LoginLimiter,
    address: IpAddr,
    user: &str,
    outcome: Outcome,
) -> Result<(), Refusal> {
    match limiter.reserve((address, user)).await {
        Ok(attempt) => {
            attempt.settle(outcome).await.expect("settled");
            Ok(())
        }
        Err(ReserveError::Refused(refusal)) => Err(refusal),
        Err(error) => panic!("{error:?}"),
    }
}

/// So many wrong passwords; each must be admitted.
pub async fn fail(limiter: &LoginLimiter, address: IpAddr, user: &str, times: u32) {
    for i in 0..times {
        if let Err(refusal) = attempt(limiter, address, user, Outcome::Failure).await {
            panic!("attempt {} was refused: {refusal:?}", i + 1);
        }
    }
}

pub fn refused<T: std::fmt::Debug>(result: Result<T, ReserveError>) -> Refusal {
    match result {
        Err(ReserveError::Refused(refusal)) => refusal,
        other => panic!("not refused: {other:?}"),
    }
}

/// A request from [`CLIENT`] to a layer that is asked without a server.
pub fn request() -> http::Request<http_body_util::Full<bytes::Bytes>> {
    let mut request = http::Request::new(http_body_util::Full::default());
    let peer = PeerAddressExtension((ip(CLIENT), 5000).into());
    request.extensions_mut().insert(peer);
    request
}

pub const CLIENT: &str = "192.0.2.1";

/// A layer for which every request is `user`'s.
pub fn layer(limiter: &LoginLimiter) -> LoginRateLimitLayer {
    LoginRateLimitLayer::new(limiter.clone())
        .with_user(|_: &http::request::Parts| Some("user".to_owned()))
}

/// Takes the failures of the main counters, and an attempt, out of these and of the others.
pub async fn clean_up(
    store: &impl Store,
    tokens: &[Token],
    mains: &[Slot<'_>],
    others: &[Slot<'_>],
) -> Result<Settled, StoreError> {
    let mains_len = mains.len();
    let settlement = match tokens {
        [] => Settlement::Cleared { mains: mains_len },
        _ => Settlement::Succeeded { mains: mains_len },
    };
    let slots = [mains, others].concat();
    store
        .settle(tokens, settlement, &slots, Duration::ZERO)
        .await
}
