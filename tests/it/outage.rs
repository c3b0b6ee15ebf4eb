//! Redis away, silent, restarted, forgetful.
//!
//! Where a deadline matters, Tokio's clock is stopped and jumps from timer to timer; so what is
//! measured is what was waited for, however busy the machine is.

use std::{
    net::TcpListener,
    sync::{
        Arc,
        atomic::{AtomicBool, AtomicUsize, Ordering},
    },
    time::Duration,
};

use bb8_redis::{RedisConnectionManager, bb8::Pool};
use tokio::time::Instant;
use tower_login_rate_limit::{
    LoginLimiter, Outcome, Policy, ReserveError, Rule,
    store::{RedisStore, StoreError, StoreErrorKind},
};

use crate::support::{Proxy, RedisServer, attempt, closed, eventually, fail, ip};

const HOME: &str = "192.0.2.1";
const DEADLINE: Duration = Duration::from_millis(200);

fn store_error<T: std::fmt::Debug>(result: Result<T, ReserveError>) -> StoreError {
    match result {
        Err(ReserveError::Store(error)) => error,
        other => panic!("not a store error: {other:?}"),
    }
}

async fn within_deadline<T>(call: impl Future<Output = T>) -> T {
    tokio::time::pause();
    let started = Instant::now();
    let answer = call.await;
    let waited = started.elapsed();
    tokio::time::resume();
    assert!(
        waited <= DEADLINE + Duration::from_millis(50),
        "waited {waited:?}"
    );
    answer
}

async fn limiter(redis: &RedisServer) -> LoginLimiter {
    let store = closed().connect(redis.url()).await.expect("a store");
    LoginLimiter::new(Policy::default(), store)
}

#[tokio::test]
async fn a_silent_redis_is_an_error_within_the_deadline() {
    let redis = RedisServer::start();
    let limiter = limiter(&redis).await;
    let reserved = limiter.reserve((ip(HOME), "user")).await.unwrap();
    redis.pause();
    // On the open connections, and then on new ones that are never accepted.
    for _ in 0..5 {
        let error =
            within_deadline(async { store_error(limiter.reserve((ip(HOME), "user")).await) }).await;
        assert_eq!(error.kind(), StoreErrorKind::Timeout, "{error}");
        assert!(
            error.to_string().contains("within 200 milliseconds"),
            "{error}"
        );
    }
    // It is told later.
    let settled = within_deadline(reserved.settle(Outcome::Failure)).await;
    settled.unwrap();
    redis.resume();
    limiter_works(&limiter).await;
    limiter.all_settled().await.unwrap();
    let report = limiter.check((ip(HOME), "user")).await.unwrap();
    assert_eq!(report.rule(Rule::USER_ADDRESS).unwrap().usage, 1);
}

async fn limiter_works(limiter: &LoginLimiter) {
    let started = std::time::Instant::now();
    while let Err(error) = limiter.check(ip("192.0.2.250")).await {
        assert!(started.elapsed().as_secs() < 30, "{error}");
        tokio::time::sleep(Duration::from_millis(10)).await;
    }
}

/// As behind a router that has forgotten a connection: nothing comes back, and nobody says so.
#[tokio::test]
async fn connections_that_lead_nowhere_are_replaced() {
    let redis = RedisServer::start();
    let proxy = Proxy::start(format!("127.0.0.1:{}", redis.port())).await;
    let store = closed().connect(format!("redis://{}", proxy.address)).await;
    let limiter = LoginLimiter::new(Policy::default(), store.unwrap());
    fail(&limiter, ip(HOME), "user", 1).await;
    proxy.forget_connections();
    let started = std::time::Instant::now();
    while let Err(error) = limiter.check((ip(HOME), "user")).await {
        assert_eq!(error.kind(), StoreErrorKind::Timeout, "{error}");
        assert!(started.elapsed().as_secs() < 30, "never replaced");
    }
    // What failed on the way left nothing behind.
    fail(&limiter, ip(HOME), "user", 4).await;
}

#[tokio::test]
async fn a_black_hole_is_an_error_within_the_deadline() {
    // Accepts connections by the grace of the system, and never says a word.
    let listener = TcpListener::bind("127.0.0.1:0").unwrap();
    let url = format!("redis://{}", listener.local_addr().unwrap());
    let store = closed().connect_lazy(url.as_str()).unwrap();
    let limiter = LoginLimiter::new(Policy::default(), store);
    for _ in 0..3 {
        let error = within_deadline(async { store_error(limiter.reserve(ip(HOME)).await) }).await;
        assert_eq!(error.kind(), StoreErrorKind::Timeout, "{error}");
    }
    let connected = within_deadline(RedisStore::connect(url)).await;
    assert_eq!(connected.unwrap_err().kind(), StoreErrorKind::Timeout);
}

#[tokio::test]
async fn a_redis_that_is_gone_is_reported_and_found_again_at_the_first_call() {
    let mut redis = RedisServer::start();
    let limiter = limiter(&redis).await;
    for _ in 0..5 {
        fail(&limiter, ip(HOME), "user", 1).await;
        redis.kill();
        for _ in 0..3 {
            let error =
                within_deadline(async { store_error(limiter.reserve((ip(HOME), "user")).await) })
                    .await;
            assert_eq!(error.kind(), StoreErrorKind::Connection, "{error}");
            assert!(error.to_string().contains("can't be reached"), "{error}");
        }
        redis.restart();
        let report = limiter
            .check((ip(HOME), "user"))
            .await
            .expect("found again");
        assert_eq!(report.rule(Rule::ADDRESS).unwrap().usage, 0);

        // And once more with nobody having noticed that it was away.
        redis.kill();
        redis.restart();
        attempt(&limiter, ip(HOME), "user", Outcome::Failure)
            .await
            .expect("found again");
    }
}

#[tokio::test]
async fn an_app_may_start_before_redis_does() {
    let mut redis = RedisServer::start();
    redis.kill();
    let refused = RedisStore::connect(redis.url()).await.unwrap_err();
    assert_eq!(refused.kind(), StoreErrorKind::Connection);
    let store = closed().connect_lazy(redis.url()).unwrap();
    let limiter = LoginLimiter::new(Policy::default(), store);
    store_error(limiter.reserve(ip(HOME)).await);
    redis.restart();
    fail(&limiter, ip(HOME), "user", 1).await;
}

/// As in an app: on several threads a connection may be refused before the first call waits for one.
#[test]
fn a_refused_connection_is_reported_as_refused_with_host_and_port() {
    let closed_port = || {
        let listener = TcpListener::bind("127.0.0.1:0").unwrap();
        listener.local_addr().unwrap().to_string()
    };
    let (first, second) = (closed_port(), closed_port());
    for round in 0..30 {
        let url = match round % 3 {
            0 => format!("redis://ann:secret@{first}"),
            1 => format!("redis+cluster://ann:secret@{first},{second}"),
            _ => format!("redis+sentinel://ann:secret@{first},{second}/name"),
        };
        let runtime = tokio::runtime::Builder::new_multi_thread()
            .worker_threads(2)
            .enable_all()
            .build()
            .unwrap();
        let error = runtime.block_on(RedisStore::connect(url)).unwrap_err();
        let message = error.to_string();
        assert_eq!(error.kind(), StoreErrorKind::Connection, "{message}");
        assert!(message.contains("refused"), "{round}: {message}");
        assert!(message.contains(&first), "{message}");
        let shown = format!("{error:?}");
        assert!(
            !shown.contains("secret") && !shown.contains("ann"),
            "{shown}"
        );
    }
}

#[tokio::test]
async fn the_apps_own_pool_is_used_and_recovers_too() {
    let mut redis = RedisServer::start();
    let manager = RedisConnectionManager::new(redis.url()).unwrap();
    let pool = Pool::builder().max_size(3).build(manager).await.unwrap();
    let store = closed()
        .with_deadline(Duration::from_secs(20))
        .build_with_pool(pool.clone())
        .unwrap();
    let limiter = LoginLimiter::new(Policy::default(), store);
    fail(&limiter, ip(HOME), "user", 2).await;
    // Its connections are shared with the app, which can use all of them.
    let mut held = Vec::new();
    for _ in 0..3 {
        held.push(pool.get().await.unwrap());
    }
    fail(&limiter, ip(HOME), "user", 1).await;
    drop(held);

    redis.kill();
    redis.restart();
    fail(&limiter, ip(HOME), "user", 1).await;
    let report = limiter.check((ip(HOME), "user")).await.unwrap();
    assert_eq!(
        report.rule(Rule::ADDRESS).unwrap().usage,
        1,
        "restarted without its data"
    );
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn scripts_that_are_forgotten_a_hundred_times_cause_no_error() {
    let redis = RedisServer::start();
    let limiter = LoginLimiter::new(Policy::default(), redis.store().await);
    let (done, flushed) = (
        Arc::new(AtomicBool::new(false)),
        Arc::new(AtomicUsize::new(0)),
    );
    let flusher = {
        let (done, flushed) = (Arc::clone(&done), Arc::clone(&flushed));
        let mut connection = redis.connection();
        std::thread::spawn(move || {
            while !done.load(Ordering::Relaxed) {
                redis::cmd("SCRIPT")
                    .arg("FLUSH")
                    .exec(&mut connection)
                    .unwrap();
                flushed.fetch_add(1, Ordering::Relaxed);
            }
        })
    };
    let mut tasks = Vec::new();
    for task in 0..32 {
        let (limiter, flushed) = (limiter.clone(), Arc::clone(&flushed));
        tasks.push(tokio::spawn(async move {
            let address = ip(&format!("192.0.2.{task}"));
            let mut logins = 0;
            while logins < 20 || flushed.load(Ordering::Relaxed) < 100 {
                attempt(&limiter, address, "user", Outcome::Success)
                    .await
                    .unwrap();
                logins += 1;
            }
            fail(&limiter, address, "user", 5).await;
            attempt(&limiter, address, "user", Outcome::Failure)
                .await
                .unwrap_err();
        }));
    }
    for task in tasks {
        task.await.unwrap();
    }
    done.store(true, Ordering::Relaxed);
    flusher.join().unwrap();
    assert!(redis.calls_of("eval") > 0, "no script was ever missing");
}

#[tokio::test]
async fn calls_share_connections() {
    let redis = RedisServer::start();
    let store = redis
        .builder()
        .with_connections(3)
        .connect(redis.url())
        .await
        .unwrap();
    let limiter = LoginLimiter::new(Policy::default(), store);
    let mut tasks = tokio::task::JoinSet::new();
    for i in 0..500_u32 {
        let limiter = limiter.clone();
        tasks.spawn(async move {
            let address = std::net::IpAddr::from(i.to_be_bytes());
            attempt(&limiter, address, "user", Outcome::Failure)
                .await
                .unwrap();
        });
    }
    tasks.join_all().await;
    let clients: String = redis.command(&["CLIENT", "LIST", "TYPE", "normal"]);
    assert_eq!(clients.lines().count(), 3 + 1, "{clients}");
}

#[test]
fn settings_that_cant_work_are_rejected() {
    let runtime = tokio::runtime::Runtime::new().unwrap();
    let _inside = runtime.enter();
    let builder = RedisStore::builder;
    for (store, word) in [
        (builder().connect_lazy("http://example.org"), "redis://"),
        (builder().connect_lazy("not a url"), "redis://"),
        (
            builder()
                .with_prefix("a{b")
                .connect_lazy("redis://127.0.0.1"),
            "prefix",
        ),
        (
            builder()
                .with_connections(0)
                .connect_lazy("redis://127.0.0.1"),
            "connections",
        ),
        (
            builder()
                .with_deadline(Duration::ZERO)
                .connect_lazy("redis://127.0.0.1"),
            "deadline",
        ),
    ] {
        let error = store.unwrap_err();
        assert_eq!(error.kind(), StoreErrorKind::Config);
        assert!(error.to_string().contains(word), "{error}");
    }
}

#[test]
fn outside_of_a_runtime_there_is_an_error_and_no_panic() {
    let error = RedisStore::builder()
        .connect_lazy("redis://127.0.0.1")
        .unwrap_err();
    assert!(error.to_string().contains("Tokio runtime"), "{error}");
}

#[tokio::test]
async fn a_redis_that_was_silent_for_a_while_blocks_nobody() {
    let redis = RedisServer::start();
    let limiter = limiter(&redis).await;
    let office = ip(HOME);
    redis.pause();
    let mut people = tokio::task::JoinSet::new();
    for person in 0..25 {
        let limiter = limiter.clone();
        people.spawn(async move {
            let user = format!("person {}", person % 5);
            store_error(limiter.reserve((office, user)).await);
        });
    }
    people.join_all().await;
    redis.resume();
    // What was sent is carried out after all, and then taken back; when all of it is, nothing comes
    // any more.
    let mut quiet = 0;
    eventually(|| {
        quiet = if redis.keys().is_empty() {
            quiet + 1
        } else {
            0
        };
        quiet >= 20 && redis.calls_of("eval") + redis.calls_of("evalsha") >= 2
    })
    .await;
    for person in 0..5 {
        fail(&limiter, office, &format!("person {person}"), 5).await;
    }
}

#[tokio::test]
async fn a_server_that_became_a_replica_is_left_for_the_primary() {
    let (old, new) = (RedisServer::start(), RedisServer::start());
    // A name that leads to whichever is the primary, as a virtual address does.
    let primary = Arc::new(std::sync::Mutex::new(old.url()));
    let manager = Elected(Arc::clone(&primary));
    let store = closed()
        .with_deadline(Duration::from_secs(20))
        .build_with_manager(manager);
    let limiter = LoginLimiter::new(Policy::default(), store.unwrap());
    fail(&limiter, ip(HOME), "user", 1).await;

    let (host, port) = new
        .url()
        .strip_prefix("redis://")
        .unwrap()
        .split_once(':')
        .map(|(h, p)| (h.to_owned(), p.to_owned()))
        .unwrap();
    old.command::<()>(&["REPLICAOF", &host, &port]);
    *primary.lock().unwrap() = new.url();
    fail(&limiter, ip(HOME), "user", 1).await;
    assert_eq!(new.keys().len(), 2);
    old.command::<()>(&["REPLICAOF", "NO", "ONE"]);
}

struct Elected(Arc<std::sync::Mutex<String>>);

impl bb8_redis::bb8::ManageConnection for Elected {
    type Connection = redis::aio::MultiplexedConnection;
    type Error = redis::RedisError;

    async fn connect(&self) -> Result<Self::Connection, Self::Error> {
        let url = self.0.lock().unwrap().clone();
        redis::Client::open(url)?
            .get_multiplexed_async_connection()
            .await
    }

    async fn is_valid(&self, _: &mut Self::Connection) -> Result<(), Self::Error> {
        Ok(())
    }

    fn has_broken(&self, _: &mut Self::Connection) -> bool {
        false
    }
}
