//! What the processes of a fleet find together, through the stream of events.

use std::{
    sync::{Arc, Mutex},
    time::Duration,
};

use tower_login_rate_limit::{
    __private::Observers,
    Limit, LoginLimiter, Outcome, Period, Policy,
    admin::{Author, Subject},
    clock::{Clock, SystemClock},
    event::{
        Event, EventReader, EventUser, Feed, RedisStream, Signal, UserDisplay, UserHasher, What,
    },
    insight::{Insight, Replay},
};

use crate::support::{CLIENT, RedisCluster, RedisServer, attempt, eventually, fail, ip};

const SECRET: &str = "a secret of at least 16 bytes";
const DAY: Duration = Duration::from_secs(30 * 24 * 60 * 60);

fn displays() -> [UserDisplay; 5] {
    [
        UserDisplay::Hidden,
        UserDisplay::Masked,
        // Another secret than that of the ids.
        UserDisplay::hashed("another secret of 16 bytes").unwrap(),
        UserDisplay::sealed(SECRET).unwrap(),
        UserDisplay::Clear,
    ]
}

/// A process of the fleet.
struct Process {
    limiter: LoginLimiter,
    insight: Insight,
    feed: Feed,
    /// What its own observers have seen.
    emitted: Arc<Mutex<Vec<Event>>>,
}

impl Process {
    async fn start(redis: &RedisServer, display: &UserDisplay) -> Self {
        let store = redis.store().await;
        let limiter = LoginLimiter::new(Policy::default(), store);
        Self::of(limiter.with_user_display(display.clone()), &redis.url())
    }

    fn of(limiter: LoginLimiter, url: &str) -> Self {
        let insight = Insight::new(UserHasher::new(SECRET).unwrap());
        let stream = RedisStream::builder().with_insight(insight.clone());
        let stream = Arc::new(stream.open(url).unwrap());
        let emitted = Arc::<Mutex<Vec<Event>>>::default();
        let seen = Arc::clone(&emitted);
        let limiter = limiter
            .with_observer(Arc::clone(&stream))
            .with_observer(move |event: &Event| seen.lock().unwrap().push(event.clone()))
            .with_insight(insight.clone());
        let feed = Feed::new(1_000).with_insight(insight.clone());
        drop(feed.follow(stream.reader()));
        Self {
            limiter,
            insight,
            feed,
            emitted,
        }
    }

    /// Blocks, and those that were probably wrong.
    fn blocks(&self) -> (u64, u64) {
        let table = self.insight.wrong_blocks();
        let rows = table.rows();
        rows.fold((0, 0), |(blocks, wrong), row| {
            (blocks + row.blocks, wrong + row.wrong)
        })
    }

    fn emitted(&self, name: &str) -> usize {
        let emitted = self.emitted.lock().unwrap();
        emitted
            .iter()
            .filter(|event| event.what.name() == name)
            .count()
    }

    fn shown(&self, matches: impl Fn(&What) -> bool) -> usize {
        self.feed.latest(1_000, |event| matches(&event.what)).len()
    }

    fn shown_as(&self, name: &str) -> usize {
        self.shown(|what| what.name() == name)
    }
}

async fn fleet(redis: &RedisServer, display: &UserDisplay) -> [Process; 2] {
    [
        Process::start(redis, display).await,
        Process::start(redis, display).await,
    ]
}

/// Enough for the stream to be read, and for what is found twice to show.
async fn settle_down() {
    tokio::time::sleep(Duration::from_millis(800)).await;
}

fn raw(redis: &RedisServer) -> String {
    let entries: redis::Value = redis.command(&["XRANGE", "login:events", "-", "+"]);
    format!("{entries:?}")
}

async fn all(mut reader: EventReader) -> Vec<Event> {
    let mut events = Vec::new();
    loop {
        let more = reader.read(1_000).await.unwrap();
        if more.is_empty() {
            return events;
        }
        events.extend(more);
    }
}

/// One process blocks, the other one lets the user in.
#[tokio::test]
async fn a_wrong_block_is_found_by_the_whole_fleet_and_emitted_once_however_users_are_shown() {
    let mut redis = RedisServer::start();
    redis.keys_may_live(Some(DAY));
    for display in displays() {
        redis.flush();
        let [one, other] = fleet(&redis, &display).await;
        fail(&one.limiter, ip(CLIENT), "zaphod", 5).await;
        fail(&one.limiter, ip(CLIENT), "trillian", 5).await;
        eventually(|| other.blocks() == (2, 0)).await;
        for user in ["zaphod", "trillian"] {
            one.limiter.unblock((ip(CLIENT), user)).await.unwrap();
        }
        // Somebody else at the same address makes no block look wrong.
        for user in ["ford", "zaphod"] {
            attempt(&other.limiter, ip(CLIENT), user, Outcome::Success)
                .await
                .unwrap();
        }
        for process in [&one, &other] {
            eventually(|| process.blocks() == (2, 1)).await;
            eventually(|| process.shown_as("wrong_block") == 1).await;
        }
        settle_down().await;
        let emitted = one.emitted("wrong_block") + other.emitted("wrong_block");
        assert_eq!(emitted, 1, "{display:?}");
        for process in [&one, &other] {
            assert_eq!(process.blocks(), (2, 1), "{display:?}");
            assert_eq!(process.shown_as("wrong_block"), 1, "{display:?}");
        }
        let stream = raw(&redis);
        let is_named = ["zaphod", "trillian", "ford"].map(|name| stream.contains(name));
        assert_eq!(
            is_named,
            [matches!(display, UserDisplay::Clear); 3],
            "{stream}"
        );
    }
}

/// What an operator lifts, by a program that is not of the fleet, is found too.
#[tokio::test]
async fn a_block_that_a_command_lifts_is_wrong_and_emitted_once() {
    let mut redis = RedisServer::start();
    redis.keys_may_live(Some(DAY));
    let [one, other] = fleet(&redis, &UserDisplay::Hidden).await;
    fail(&one.limiter, ip(CLIENT), "zaphod", 5).await;
    one.limiter.all_settled().await.unwrap();
    for process in [&one, &other] {
        eventually(|| process.blocks() == (1, 0)).await;
    }
    let command = LoginLimiter::new(Policy::default(), redis.store().await)
        .with_observer(RedisStream::open(redis.url()).unwrap());
    let author = Author::new("bob", "phoned").unwrap();
    let pair = Subject::pair(ip(CLIENT), "zaphod");
    let admin = command.admin().unwrap();
    assert_eq!(admin.unblock(pair, &author).await.unwrap().count, 1);
    for process in [&one, &other] {
        eventually(|| process.blocks() == (1, 1)).await;
        eventually(|| process.shown_as("wrong_block") == 1).await;
    }
    settle_down().await;
    assert_eq!(one.emitted("wrong_block") + other.emitted("wrong_block"), 1);
    assert_eq!(
        (one.shown_as("wrong_block"), other.shown_as("wrong_block")),
        (1, 1)
    );
}

/// No process sees enough of it by itself.
#[tokio::test]
async fn an_attack_over_several_processes_is_one_signal_however_users_are_shown() {
    let mut redis = RedisServer::start();
    redis.keys_may_live(Some(DAY));
    let many_users = |what: &What| matches!(what, What::Signal(Signal::ManyUsers { .. }));
    let many_addresses = |what: &What| matches!(what, What::Signal(Signal::ManyAddresses { .. }));
    for display in displays() {
        redis.flush();
        let processes = fleet(&redis, &display).await;
        for i in 0..44_u8 {
            let process = &processes[usize::from(i) % 2].limiter;
            let user = format!("zaphod-{i}");
            // The address is blocked after 25, which is a guess all the same.
            let _ = attempt(process, ip(CLIENT), &user, Outcome::Failure).await;
            let address = ip(&format!("203.0.113.{i}"));
            fail(process, address, "trillian", 1).await;
        }
        for process in &processes {
            eventually(|| process.shown(many_users) == 1).await;
            eventually(|| process.shown(many_addresses) == 1).await;
        }
        settle_down().await;
        let emitted = processes
            .each_ref()
            .map(|process| process.emitted("signal"));
        assert_eq!(emitted.iter().sum::<usize>(), 2, "{display:?}");
        for process in &processes {
            assert_eq!(process.shown_as("signal"), 2, "{display:?}");
        }
        // Each process reports its own guesses, and reports add up.
        let guesses = |process: &Process| process.insight.busiest(1).addresses[0].guesses();
        assert_eq!(processes.iter().map(guesses).sum::<u64>(), 44);
    }
}

/// Whoever reads the stream without the secret learns what is shown, and not even which events are about one user.
#[tokio::test]
async fn the_stream_links_no_events_of_a_user_that_is_not_shown() {
    let mut redis = RedisServer::start();
    redis.keys_may_live(Some(DAY));
    let process = Process::start(&redis, &UserDisplay::Hidden).await;
    fail(&process.limiter, ip(CLIENT), "zaphod", 3).await;
    assert!(process.limiter.observed().await);
    let ids = |entries: redis::Value| -> Vec<Vec<u8>> {
        let entries: Vec<(String, std::collections::HashMap<String, Vec<u8>>)> =
            redis::from_redis_value(entries).unwrap();
        let ids = entries
            .into_iter()
            .map(|(_, mut fields)| fields.remove("u"));
        ids.map(Option::unwrap).collect()
    };
    let mut ids = ids(redis.command(&["XRANGE", "login:events", "-", "+"]));
    assert_eq!(ids.len(), 3);
    ids.sort();
    ids.dedup();
    assert_eq!(ids.len(), 3, "equal ids");
    let id = UserHasher::new(SECRET).unwrap().hash("zaphod");
    assert!(!raw(&redis).contains(&id["hash:".len()..]));
    // Nor does what is read with the secret show more, to people or to programs.
    let insight = Insight::new(UserHasher::new(SECRET).unwrap());
    let stream = RedisStream::builder().with_insight(insight);
    for event in all(stream.open(redis.url()).unwrap().reader()).await {
        let user = event.user.as_ref().unwrap();
        assert_eq!((user.identified(), user.shown()), (None, None));
        assert!(!event.to_json().contains("user"), "{}", event.to_json());
        assert_eq!(user.to_string(), "***");
    }
    // A policy is replayed on it as if users were shown.
    let insight = Insight::new(UserHasher::new(SECRET).unwrap());
    let stream = RedisStream::builder().with_insight(insight);
    let two = Limit::attempts(2).within(Period::hours(1));
    let two = Policy::default().with_user_address_limit(two).unwrap();
    let mut replay = Replay::new(two);
    for event in all(stream.open(redis.url()).unwrap().reader()).await {
        replay.record(&event);
    }
    let report = replay.finish();
    assert_eq!(report.blocked.count, 1, "{:?}", report.notes);
    // With another secret there is no user at all, rather than a wrong one.
    let other = Insight::new(UserHasher::new("not the same secret").unwrap());
    let stream = RedisStream::builder().with_insight(other);
    let events = all(stream.open(redis.url()).unwrap().reader()).await;
    assert!(events.len() == 3 && events.iter().all(|event| event.user.is_none()));
}

/// A process that is started later knows the blocks of before, and does not emit what others have found then.
#[tokio::test]
async fn a_process_that_starts_later_knows_what_was_before() {
    let mut redis = RedisServer::start();
    redis.keys_may_live(Some(DAY));
    let first = Process::start(&redis, &UserDisplay::Hidden).await;
    for user in ["zaphod", "trillian"] {
        fail(&first.limiter, ip(CLIENT), user, 5).await;
        first.limiter.unblock((ip(CLIENT), user)).await.unwrap();
    }
    attempt(&first.limiter, ip(CLIENT), "zaphod", Outcome::Success)
        .await
        .unwrap();
    eventually(|| first.shown_as("wrong_block") == 1).await;
    assert!(first.limiter.observed().await);
    drop(first);
    let later = Process::start(&redis, &UserDisplay::Hidden).await;
    eventually(|| later.blocks() == (2, 1)).await;
    attempt(&later.limiter, ip(CLIENT), "trillian", Outcome::Success)
        .await
        .unwrap();
    eventually(|| later.shown_as("wrong_block") == 2).await;
    settle_down().await;
    assert_eq!(later.blocks(), (2, 2));
    assert_eq!(
        (later.shown_as("wrong_block"), later.emitted("wrong_block")),
        (2, 1)
    );
}

/// Of a record of yesterday: blocks are counted, and what they show was emitted then.
#[tokio::test]
async fn what_is_long_over_is_counted_and_not_emitted() {
    let mut redis = RedisServer::start();
    redis.keys_may_live(Some(DAY));
    let insight = Insight::new(UserHasher::new(SECRET).unwrap());
    let stream = RedisStream::builder().with_insight(insight);
    let observers = Observers::default().with(stream.open(redis.url()).unwrap());
    let now = SystemClock.now();
    let record = |fields: &str, user: &str, hours: u64| {
        let json = format!(r#"{{"at":"2026-11-18T07:00:00.123Z","address":"192.0.2.1",{fields}}}"#);
        let event: Event = serde_json::from_str(&json).unwrap();
        let user = EventUser::new(user, user, &UserDisplay::Hidden);
        let at = now - hours * 60 * 60 * 1000;
        observers.emit(|| event.with_user(user).with_time(at));
    };
    record(
        r#""event":"block_began","rule":"user-address","counter":"c","usage":5,"limit":5,"lifts_in_ms":60000"#,
        "zaphod",
        3,
    );
    record(r#""event":"settled","outcome":"success""#, "zaphod", 2);
    for i in 0..60 {
        let user = format!("trillian-{i}");
        record(r#""event":"settled","outcome":"failure""#, &user, 1);
    }
    assert!(observers.flush().await);
    let process = Process::start(&redis, &UserDisplay::Hidden).await;
    eventually(|| process.blocks() == (1, 1)).await;
    settle_down().await;
    assert_eq!(process.shown(|_| true), 62);
    let emitted = ["wrong_block", "signal"].map(|name| process.emitted(name));
    assert_eq!(emitted, [0, 0]);
}

/// Without the stream a process finds what it sees itself.
#[tokio::test]
async fn while_the_stream_is_away_a_process_finds_its_own() {
    let mut redis = RedisServer::start();
    redis.keys_may_live(Some(DAY));
    let limiter = LoginLimiter::new(
        Policy::default(),
        tower_login_rate_limit::store::MemoryStore::new(),
    );
    let process = Process::of(limiter, &redis.url());
    redis.kill();
    fail(&process.limiter, ip(CLIENT), "zaphod", 5).await;
    process
        .limiter
        .unblock((ip(CLIENT), "zaphod"))
        .await
        .unwrap();
    attempt(&process.limiter, ip(CLIENT), "zaphod", Outcome::Success)
        .await
        .unwrap();
    eventually(|| process.emitted("wrong_block") == 1).await;
    assert_eq!(process.blocks(), (1, 1));
}

#[tokio::test]
async fn on_a_cluster_it_is_emitted_once_too() {
    let mut cluster = RedisCluster::start();
    for node in &mut cluster.nodes {
        node.keys_may_live(Some(DAY));
    }
    let process = || {
        let limiter = LoginLimiter::new(Policy::default(), cluster.store());
        Process::of(limiter, &cluster.url())
    };
    let (one, other) = (process(), process());
    fail(&one.limiter, ip(CLIENT), "zaphod", 5).await;
    eventually(|| other.blocks() == (1, 0)).await;
    one.limiter.unblock((ip(CLIENT), "zaphod")).await.unwrap();
    attempt(&other.limiter, ip(CLIENT), "zaphod", Outcome::Success)
        .await
        .unwrap();
    for process in [&one, &other] {
        eventually(|| process.shown_as("wrong_block") == 1).await;
        assert_eq!(process.blocks(), (1, 1));
    }
    settle_down().await;
    assert_eq!(one.emitted("wrong_block") + other.emitted("wrong_block"), 1);
}
