//! What a login costs with everything switched on but the stream of events: as much as without.

use std::{
    collections::BTreeMap,
    net::IpAddr,
    sync::{
        Arc,
        atomic::{AtomicU64, Ordering},
    },
    time::Duration,
};

use metrics_exporter_prometheus::PrometheusBuilder;
use redis::Value;
use tower_login_rate_limit::{
    Limit, LoginLimiter, Outcome, Period, Policy, ReserveError, Rule,
    access::{AccessRule, AccessRules, Field},
    admin::Author,
    event::{Event, Feed, JsonLines, TracingObserver, UserDisplay, UserHasher},
    insight::Insight,
    live::{Canary, Ruleset},
    store::RedisStore,
};

use crate::support::{RedisServer, attempt, eventually, fail, ip, refused};

/// How often a client comes again that knows it is blocked.
const REFUSED: u64 = 20;

/// What is sent to a server, and what its scripts execute.
struct Wire<'a> {
    redis: &'a RedisServer,
    monitor: redis::Connection,
}

impl<'a> Wire<'a> {
    fn of(redis: &'a RedisServer) -> Self {
        let client = redis::Client::open(redis.url()).expect("a client");
        let mut monitor = client.get_connection().expect("a connection");
        let command = b"*1\r\n$7\r\nMONITOR\r\n";
        monitor.send_packed_command(command).expect("sent");
        monitor.recv_response().expect("monitoring");
        Self { redis, monitor }
    }

    /// What came meanwhile, for these addresses: commands, and commands of scripts by their number. What else
    /// came must be what an instance sends without any login.
    async fn meanwhile<T>(&mut self, work: impl Future<Output = T>) -> (T, String, String) {
        const END: &str = "the-end";
        let done = work.await;
        let _: String = self.redis.command(&["ECHO", END]);
        let (mut sent, mut executed) = (Vec::new(), BTreeMap::<String, u32>::new());
        loop {
            let line = match self.monitor.recv_response().expect("a line") {
                Value::SimpleString(line) => line,
                other => panic!("{other:?}"),
            };
            // The time, the client in brackets, and the words in quotes.
            let (client, words) = line.split_once("] ").expect("a client");
            let command = words.split(' ').next().unwrap_or_default();
            let command = command.trim_matches('"').to_lowercase();
            if words.contains(END) {
                break;
            }
            // Counters have the address of the client in braces.
            let is_login = words.contains("{192.0.2.");
            match (client.ends_with(" lua"), is_login) {
                (false, true) => sent.push(command),
                (true, true) => *executed.entry(command).or_default() += 1,
                (true, false) => {}
                (false, false) => {
                    let names = ["{document}", "{instances}", "{blocks:", "PUBLISH"];
                    let is_background = names.iter().any(|name| words.contains(name))
                        || matches!(&*command, "hello" | "client" | "subscribe" | "select");
                    assert!(is_background, "{line}");
                }
            }
        }
        let executed = executed
            .iter()
            .map(|(name, times)| format!("{times} {name}"));
        (
            done,
            sent.join(", "),
            executed.collect::<Vec<_>>().join(", "),
        )
    }
}

/// 1,000 networks and a keyword, none of which is of a client below but the two that are named.
fn access() -> AccessRules {
    let network = |i: u32| format!("10.{}.{}.0/24", i / 256, i % 256);
    let rules = (0..1_000).map(|i| {
        let name = format!("network-{i}");
        AccessRule::deny(name, Field::Network, network(i)).unwrap()
    });
    let named = [
        AccessRule::allow("office", Field::Network, "192.0.2.200").unwrap(),
        AccessRule::deny("botnet", Field::Network, "192.0.2.201").unwrap(),
        AccessRule::deny("bot", Field::UserAgent, "sqlmap").unwrap(),
    ];
    AccessRules::new(rules.chain(named)).unwrap()
}

struct Everything {
    limiter: LoginLimiter,
    seen: Arc<AtomicU64>,
    file: Arc<JsonLines>,
    feed: Feed,
}

impl Everything {
    async fn on(redis: &RedisServer, path: &std::path::Path) -> Self {
        let builder = RedisStore::builder().with_deadline(Duration::from_secs(20));
        let store = builder.connect(redis.url()).await.unwrap();
        let seen = Arc::new(AtomicU64::new(0));
        let seeing = Arc::clone(&seen);
        let file = Arc::new(JsonLines::open(path).unwrap());
        let log = tracing_subscriber::fmt()
            .with_max_level(tracing::Level::TRACE)
            .with_writer(std::io::sink)
            .finish();
        let feed = Feed::new(1_000);
        let limiter = LoginLimiter::new(Policy::default(), store)
            .with_user_display(UserDisplay::sealed("a secret of sixteen bytes or more").unwrap())
            .with_observer(move |_: &Event| {
                seeing.fetch_add(1, Ordering::Relaxed);
            })
            .with_observer(TracingObserver::new().with_dispatch(log.into()))
            .with_observer(Arc::clone(&file))
            .with_observer(feed.clone())
            .with_insight(Insight::new(
                UserHasher::new("a secret of sixteen bytes or more").unwrap(),
            ))
            .live()
            .await
            .unwrap();
        let four = Limit::attempts(4)
            .within(Period::days(1))
            .blocked_for(Period::days(1));
        let canary = Policy::default().with_user_address_limit(four).unwrap();
        let ruleset = Ruleset::new(Policy::default())
            .with_access(access())
            .with_canary(Canary::new(canary, 50.0).unwrap());
        let author = Author::new("alice", "everything").unwrap();
        let admin = limiter.admin().unwrap();
        admin.replace_ruleset(0, ruleset, &author).await.unwrap();
        Self {
            limiter,
            seen,
            file,
            feed,
        }
    }

    /// One client under the policy, and one under the canary.
    async fn clients(&self) -> [IpAddr; 2] {
        let mut clients = [None; 2];
        for i in 1..200 {
            let address = ip(&format!("192.0.2.{i}"));
            let report = self.limiter.check((address, "alice")).await.unwrap();
            let limit = report.rule(Rule::USER_ADDRESS).unwrap().limit;
            clients[usize::from(limit == 4)] = Some(address);
        }
        clients.map(|client| client.expect("a client under each"))
    }
}

async fn reserve_and_settle(
    wire: &mut Wire<'_>,
    limiter: &LoginLimiter,
    address: IpAddr,
    outcome: Outcome,
) -> [String; 4] {
    let reserve = limiter.reserve((address, "alice"));
    let (attempt, sent, executed) = wire.meanwhile(reserve).await;
    let settle = attempt.unwrap().settle(outcome);
    let (settled, sent_later, executed_later) = wire.meanwhile(settle).await;
    settled.unwrap();
    [sent, executed, sent_later, executed_later]
}

async fn logins(redis: &RedisServer, directory: &std::path::Path) {
    let path = directory.join("login.jsonl");
    let everything = Everything::on(redis, &path).await;
    let limiter = &everything.limiter;
    let clients = everything.clients().await;
    // The first call of each script carries its text, which has the limits of the policy or of the canary.
    for client in clients {
        for outcome in [Outcome::Failure, Outcome::NotAnAttempt, Outcome::Success] {
            attempt(limiter, client, "alice", outcome).await.unwrap();
        }
    }
    let mut wire = Wire::of(redis);
    for client in clients {
        let first = "1 exists, 2 pexpire, 2 zadd";
        let again = "1 exists, 2 pexpire, 2 zadd, 2 zcard, 2 zremrangebyscore";
        let failed = "2 zadd, 2 zcard";
        let taken_back = "2 zcard, 2 zrem";
        for (outcome, reserved, settled) in [
            (Outcome::Success, first, taken_back),
            (Outcome::Failure, first, failed),
            (Outcome::Failure, again, failed),
        ] {
            let executed = reserve_and_settle(&mut wire, limiter, client, outcome).await;
            let expected = ["evalsha", reserved, "evalsha", settled];
            assert_eq!(executed, expected, "{outcome:?} of {client}");
        }
        // The failure that begins a block costs the login no more. The list and the event are written afterwards.
        let missing = limiter.check((client, "alice")).await.unwrap().remaining();
        fail(limiter, client, "alice", missing.unwrap()).await;
        limiter.all_settled().await.unwrap();
        wire.meanwhile(async {}).await;
        // The first refusal learns of the block, and those after it need no Redis.
        let blocked = limiter.reserve((client, "alice"));
        let (blocked, sent, _) = wire.meanwhile(blocked).await;
        refused(blocked);
        assert_eq!(sent, "evalsha", "the first that is refused to {client}");
        for _ in 0..REFUSED {
            let blocked = limiter.reserve((client, "alice"));
            let (blocked, sent, _) = wire.meanwhile(blocked).await;
            refused(blocked);
            assert_eq!(sent, "", "a blocked attempt of {client}");
        }
    }
    // What an access rule decides costs nothing either.
    let (allowed, sent, _) = wire
        .meanwhile(async {
            let allowed = limiter.reserve((ip("192.0.2.200"), "alice")).await;
            allowed.unwrap().settle(Outcome::Failure).await
        })
        .await;
    allowed.unwrap();
    assert_eq!(sent, "", "allowed");
    let denied = limiter.reserve((ip("192.0.2.201"), "alice"));
    let (denied, sent, _) = wire.meanwhile(denied).await;
    assert!(matches!(denied, Err(ReserveError::Denied(_))), "{denied:?}");
    assert_eq!(sent, "", "denied");
    everything.was_on().await;
}

impl Everything {
    /// All of it has seen the logins.
    async fn was_on(&self) {
        assert!(self.limiter.observed().await);
        assert_eq!(self.limiter.version(), 1);
        let seen = self.seen.load(Ordering::Relaxed);
        assert!(seen >= 18, "{seen} events");
        eventually(|| self.file.written() == seen).await;
        assert!(self.feed.latest(1_000, |_| true).len() as u64 >= seen.min(1_000));
        let busiest = self.limiter.insight().unwrap().busiest(10);
        assert_eq!(busiest.addresses.len(), 3, "{busiest:?}");
        let observers = self.limiter.observers();
        assert_eq!(
            observers.len(),
            5,
            "a closure, a log, a file, a feed, insight"
        );
        for observer in observers {
            assert_eq!((observer.observed, observer.dropped), (seen, 0));
        }
    }
}

#[test]
fn with_everything_on_a_login_is_one_and_one_round_trip_and_a_blocked_one_none() {
    let mut redis = RedisServer::start();
    redis.keys_may_live(None);
    let directory = tempfile::tempdir().unwrap();
    let recorder = PrometheusBuilder::new().build_recorder();
    let runtime = tokio::runtime::Builder::new_current_thread()
        .enable_all()
        .build()
        .unwrap();
    metrics::with_local_recorder(&recorder, || {
        runtime.block_on(logins(&redis, directory.path()));
    });
    let metrics = recorder.handle().render();
    let refusals = 2 * (1 + REFUSED);
    for line in [
        "login_policy_version 1".to_owned(),
        format!(
            "login_refusals_total{{rule=\"user-address\",reason=\"blocked\",shadow=\"false\"}} {refusals}"
        ),
    ] {
        assert!(metrics.contains(&line), "{line}: {metrics}");
    }
}
