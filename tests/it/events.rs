//! What observers receive, and what leaves the process.

use std::{
    fs,
    net::IpAddr,
    path::Path,
    sync::{Arc, Mutex},
    time::Duration,
};

use tower_login_rate_limit::{
    __private::Observers,
    Address,
    event::{
        Event, EventUser, JsonLines, Observe, RedisStream, Sealer, TracingObserver, UserDisplay,
    },
};

use crate::{
    log::Log,
    support::{RedisCluster, RedisSentinel, RedisServer, eventually, ip},
};

const SECRET: &str = "a secret of at least 16 bytes";

/// One of each event, with an address and this user.
fn all_events(user: &EventUser) -> Vec<Event> {
    let fields = [
        r#""event":"settled","outcome":"failure""#,
        r#""event":"refused","rule":"address","reason":"blocked","usage":25,"limit":25,"lifts_in_ms":604800000"#,
        r#""event":"undecided","kind":"timeout""#,
        r#""event":"block_began","rule":"user-address","counter":"192.0.2.1","usage":5,"limit":5,"lifts_in_ms":null"#,
        r#""event":"block_lifted","rule":"address","counter":"192.0.2.1","by":"operator","author":"bob","reason":"phoned""#,
        r#""event":"limit_reached","rule":"reset-mail","limit":3"#,
        r#""event":"access_rule_hit","rule":"scanner","action":"deny""#,
        r#""event":"store_down","kind":"connection","error":"refused""#,
        r#""event":"store_up","down_for_ms":1500,"pending":3"#,
        r#""event":"journal_replayed","replayed":3,"dropped":0"#,
        r#""event":"document_changed","author":"bob","reason":"attack","from":1,"to":2,"changes":["less"]"#,
        r#""event":"administered","action":"unblock","author":"bob","reason":"phoned""#,
        r#""event":"signal","signal":"many_users","users":100"#,
        r#""event":"signal","signal":"many_addresses","addresses":100"#,
        r#""event":"signal","signal":"failure_rate","per_minute":90.5,"baseline":2.0"#,
        r#""event":"wrong_block","rule":"address","by":"success""#,
    ];
    let event = |fields| {
        let json = format!(r#"{{"at":"2026-11-18T07:00:00.123Z",{fields}}}"#);
        let event: Event = serde_json::from_str(&json).expect(fields);
        let address: IpAddr = ip("192.0.2.1");
        event
            .with_address(Address::new(address, 64))
            .with_user(user.clone())
    };
    fields.into_iter().map(event).collect()
}

fn plain(n: u64) -> Event {
    let user = EventUser::new("alice", "alice", &UserDisplay::Masked);
    all_events(&user).remove(0).with_time(n)
}

/// What an observer leaves behind after these events.
async fn observed(observer: impl Observe, events: &[Event]) {
    let observers = Observers::default().with(observer);
    for event in events {
        observers.emit(|| event.clone());
    }
    assert!(observers.flush().await);
}

fn tracing_observer(log: &Log) -> TracingObserver {
    let writer = log.clone();
    let subscriber = tracing_subscriber::fmt()
        .with_max_level(tracing::Level::TRACE)
        .with_ansi(false)
        .with_writer(move || writer.clone());
    TracingObserver::new().with_dispatch(subscriber.finish().into())
}

fn displays() -> [(&'static str, UserDisplay); 5] {
    [
        ("hidden", UserDisplay::Hidden),
        ("masked", UserDisplay::Masked),
        ("hashed", UserDisplay::hashed(SECRET).unwrap()),
        ("sealed", UserDisplay::sealed(SECRET).unwrap()),
        ("clear", UserDisplay::Clear),
    ]
}

/// All that leaves the process, through every observer.
async fn outputs(redis: &RedisServer, events: &[Event]) -> Vec<(&'static str, String)> {
    let directory = tempfile::tempdir().unwrap();
    let path = directory.path().join("events");
    observed(JsonLines::open(&path).unwrap(), events).await;
    let log = Log::default();
    observed(tracing_observer(&log), events).await;
    redis.flush();
    observed(RedisStream::open(redis.url()).unwrap(), events).await;
    let entries: redis::Value = redis.command(&["XRANGE", "login:events", "-", "+"]);
    vec![
        ("file", fs::read_to_string(&path).unwrap()),
        ("log", log.text()),
        ("stream", format!("{entries:?}")),
        ("debug", format!("{events:?} {events:#?}")),
    ]
}

#[tokio::test]
async fn no_output_names_a_user_unless_chosen() {
    let mut redis = RedisServer::start();
    redis.keys_may_live(Some(Duration::from_secs(30 * 24 * 60 * 60)));
    let (typed, name) = (
        "Zaphod.Beeblebrox@Example.org",
        "zaphod.beeblebrox@example.org",
    );
    for (display_name, display) in displays() {
        let user = EventUser::new(typed, name, &display);
        for (output, text) in outputs(&redis, &all_events(&user)).await {
            let at = format!("{display_name} in {output}:\n{text}");
            assert!(text.contains("192.0.2.1"), "{at}");
            assert!(!text.contains(SECRET), "{at}");
            let lower = text.to_lowercase();
            let is_clear = matches!(display, UserDisplay::Clear);
            assert_eq!(lower.contains(name), is_clear, "{at}");
            for part in ["zaphod", "beeble", "example", "ample.org"] {
                assert_eq!(lower.contains(part), is_clear, "{part}, {at}");
            }
            let shown = match display_name {
                "masked" => "z***@e***".to_owned(),
                "hashed" => user.shown().unwrap().into_owned(),
                "sealed" => "sealed:".to_owned(),
                "clear" => name.to_owned(),
                // That there is one is all that the debug form tells.
                _ if output == "debug" => "***".to_owned(),
                _ => {
                    assert!(!text.contains("***") && !text.contains("user\""), "{at}");
                    continue;
                }
            };
            assert!(text.contains(&shown), "{shown}: {at}");
        }
    }
}

#[tokio::test]
async fn a_console_opens_sealed_names_from_the_stream() {
    let mut redis = RedisServer::start();
    redis.keys_may_live(None);
    let display = UserDisplay::sealed(SECRET).unwrap();
    let user = EventUser::new("Alice", "alice", &display);
    let stream = Arc::new(RedisStream::open(redis.url()).unwrap());
    observed(Arc::clone(&stream), &all_events(&user)).await;
    let events = stream.reader().read(100).await.unwrap();
    let sealer = Sealer::new(SECRET).unwrap();
    for event in events {
        let user = event.user.unwrap();
        assert_eq!(sealer.open(&user.shown().unwrap()).unwrap(), "alice");
    }
}

#[tokio::test]
async fn a_name_injects_nothing_into_any_output() {
    let mut redis = RedisServer::start();
    redis.keys_may_live(None);
    let forged = "x\n2026-11-18T07:00:00Z ERROR login_rate_limit: forged\r\n{\"event\":\"forged\"}\u{1b}[2J\u{9b}2J\u{202e}\u{2028}";
    let user = EventUser::new(forged, forged, &UserDisplay::Clear);
    let events = all_events(&user);
    for (output, text) in outputs(&redis, &events).await {
        let lines = text.lines().filter(|line| !line.trim().is_empty());
        for line in lines.clone() {
            let is_forged = line.starts_with("2026-11-18T07:00:00Z ERROR")
                || line.starts_with("{\"event\":\"forged");
            assert!(!is_forged, "{output}: {line}");
        }
        // Redis keeps bytes; what prints them escapes, as this debug form does.
        for c in ['\u{1b}', '\u{9b}', '\u{202e}', '\u{2028}', '\r'] {
            assert!(!text.contains(c), "{output}: {c:?}\n{text}");
        }
        if matches!(output, "file" | "log") {
            assert_eq!(lines.count(), events.len(), "{output}:\n{text}");
        }
    }
}

#[tokio::test]
async fn the_log_has_stable_names_and_fields() {
    let log = Log::default();
    let user = EventUser::new("alice", "alice", &UserDisplay::Masked);
    observed(tracing_observer(&log), &all_events(&user)).await;
    let text = log.text();
    for line in text.lines() {
        assert!(line.contains(" login_rate_limit: "), "{line}");
        assert!(line.contains(" address=192.0.2.1 user=a***"), "{line}");
    }
    for fields in [
        "DEBUG login_rate_limit: login attempt settled event=\"settled\"",
        "INFO login_rate_limit: login attempt refused event=\"refused\"",
        "rule=address reason=\"blocked\" usage=25 limit=25 lifts=7 days shadow=false count=1",
        "WARN login_rate_limit: login block began event=\"block_began\"",
        "lifts=forever",
        "by=\"operator\" author=bob reason=phoned",
        "ERROR login_rate_limit: the store is unavailable",
        "signal=\"failure_rate\" per_minute=90.5 baseline=2.0",
        "event=\"wrong_block\"",
    ] {
        assert!(text.contains(fields), "{fields}\n{text}");
    }
}

#[tokio::test]
async fn a_log_that_is_full_of_refusals_stays_readable() {
    let log = Log::default();
    let user = EventUser::new("alice", "alice", &UserDisplay::Hidden);
    let refusal = all_events(&user).remove(1);
    observed(tracing_observer(&log), &vec![refusal; 5_000]).await;
    assert_eq!(log.count("login attempt refused"), 4);
    assert_eq!(log.count("count=1000"), 1);
}

fn lines(path: &Path) -> Vec<u64> {
    let text = fs::read_to_string(path).unwrap();
    let events = text
        .lines()
        .map(|line| serde_json::from_str::<Event>(line).expect(line));
    events.map(|event| event.at).collect()
}

#[tokio::test]
async fn the_file_follows_both_kinds_of_rotation() {
    let directory = tempfile::tempdir().unwrap();
    let path = directory.path().join("login.jsonl");
    let rotated = directory.path().join("login.jsonl.1");
    let file = Arc::new(JsonLines::open(&path).unwrap());
    let observers = Observers::default().with(Arc::clone(&file));
    let write = async |from: u64| {
        for n in from..from + 100 {
            observers.emit(|| plain(n));
        }
        assert!(observers.flush().await);
    };
    write(0).await;
    // As logrotate does by default, with a new file or none.
    fs::rename(&path, &rotated).unwrap();
    write(100).await;
    assert_eq!(lines(&rotated), (0..100).collect::<Vec<_>>());
    assert_eq!(lines(&path), (100..200).collect::<Vec<_>>());
    fs::rename(&path, &rotated).unwrap();
    fs::write(&path, "").unwrap();
    write(200).await;
    assert_eq!(lines(&path), (200..300).collect::<Vec<_>>());
    // With `copytruncate`.
    fs::copy(&path, &rotated).unwrap();
    fs::File::options()
        .write(true)
        .open(&path)
        .unwrap()
        .set_len(0)
        .unwrap();
    write(300).await;
    assert_eq!(lines(&rotated), (200..300).collect::<Vec<_>>());
    assert_eq!(lines(&path), (300..400).collect::<Vec<_>>());
    fs::remove_file(&path).unwrap();
    file.reopen().unwrap();
    write(400).await;
    assert_eq!(lines(&path), (400..500).collect::<Vec<_>>());
    assert_eq!((file.written(), file.lost()), (500, 0));
}

#[cfg(unix)]
#[tokio::test]
async fn the_file_is_private_and_a_full_disk_loses_events_and_nothing_else() {
    use std::os::unix::fs::PermissionsExt;

    let directory = tempfile::tempdir().unwrap();
    let path = directory.path().join("login.jsonl");
    drop(JsonLines::open(&path).unwrap());
    assert_eq!(
        fs::metadata(&path).unwrap().permissions().mode() & 0o777,
        0o600
    );
    if !Path::new("/dev/full").exists() {
        return; // only Linux has a device that is always full
    }
    let full = Arc::new(JsonLines::open("/dev/full").unwrap());
    let seen = Arc::new(Mutex::new(0));
    let seeing = Arc::clone(&seen);
    let observers = Observers::default()
        .with(Arc::clone(&full))
        .with(move |_: &Event| *seeing.lock().unwrap() += 1);
    for n in 0..1_000 {
        observers.emit(|| plain(n));
    }
    assert!(observers.flush().await);
    assert_eq!((full.written(), full.lost()), (0, 1_000));
    assert_eq!(*seen.lock().unwrap(), 1_000);
    assert!(observers.status().iter().all(|status| status.panics == 0));
}

/// Reads until the last of these has come.
async fn read_all(stream: &RedisStream, count: usize) -> Vec<u64> {
    let mut reader = stream.reader();
    let mut times = Vec::new();
    while times.len() < count {
        // In pages, as a console does, and each time from where another reader was.
        let position = reader.position();
        reader = stream.reader().at(&position).unwrap();
        times.extend(
            reader
                .follow(97)
                .await
                .unwrap()
                .iter()
                .map(|event| event.at),
        );
    }
    assert!(reader.read(10).await.unwrap().is_empty());
    times
}

#[tokio::test]
async fn the_stream_survives_a_restart_and_is_read_in_pages() {
    let mut redis = RedisServer::start_with(&["--appendonly", "yes"]);
    redis.keys_may_live(Some(Duration::from_secs(30 * 24 * 60 * 60)));
    let stream = Arc::new(RedisStream::open(redis.url()).unwrap());
    let observers = Observers::default().with(Arc::clone(&stream));
    (0..500).for_each(|n| observers.emit(|| plain(n)));
    assert!(observers.flush().await);
    assert_eq!(read_all(&stream, 500).await, (0..500).collect::<Vec<_>>());
    // The connection is dead, and the next events wait until the server is back.
    redis.kill();
    (500..1_000).for_each(|n| observers.emit(|| plain(n)));
    redis.restart();
    eventually(|| stream.written() == 1_000).await;
    assert_eq!(
        read_all(&stream, 1_000).await,
        (0..1_000).collect::<Vec<_>>()
    );
    assert_eq!(stream.lost(), 0);
    let mut late = stream.reader().since(u64::MAX / 2);
    assert!(late.read(10).await.unwrap().is_empty());
    assert!(stream.reader().at("nonsense").is_err());
    assert!(stream.reader().at("1-1,1-1").is_err());
}

#[tokio::test]
async fn the_stream_is_capped_and_skips_what_it_can_not_read() {
    let mut redis = RedisServer::start();
    redis.keys_may_live(None);
    let stream = RedisStream::builder()
        .with_key("shop:events")
        .with_max_len(1_000);
    let stream = Arc::new(stream.open(redis.url()).unwrap());
    let observers = Observers::default().with(Arc::clone(&stream));
    (0..5_000).for_each(|n| observers.emit(|| plain(n)));
    assert!(observers.flush().await);
    let len: usize = redis.command(&["XLEN", "shop:events"]);
    assert!((1_000..1_200).contains(&len), "{len}");
    let newer = r#"{"at":"2026-11-18T07:00:00Z","event":"of a newer version"}"#;
    let _: String = redis.command(&["XADD", "shop:events", "*", "e", newer]);
    let _: String = redis.command(&["XADD", "shop:events", "*", "other", "x"]);
    let not_text = r"return redis.call('XADD', KEYS[1], '*', 'e', '\255', '\254', 'x')";
    let _: String = redis.command(&["EVAL", not_text, "1", "shop:events"]);
    observers.emit(|| plain(5_000));
    assert!(observers.flush().await);
    let len: usize = redis.command(&["XLEN", "shop:events"]);
    let mut reader = stream.reader();
    let mut times = Vec::new();
    while let Some(event) = reader.read(1).await.unwrap().first() {
        times.push(event.at);
    }
    assert_eq!((times.len(), times.last()), (len - 3, Some(&5_000)));
    assert_eq!(reader.unreadable(), 3);
}

#[tokio::test]
async fn a_stream_without_redis_delays_no_other_observer() {
    let mut redis = RedisServer::start();
    let stream = Arc::new(RedisStream::open(redis.url()).unwrap());
    redis.kill();
    let seen = Arc::new(Mutex::new(0));
    let seeing = Arc::clone(&seen);
    let observers = Observers::default()
        .with(Arc::clone(&stream))
        .with(move |_: &Event| *seeing.lock().unwrap() += 1);
    for n in 0..20_000_u64 {
        observers.emit(|| plain(n));
        if n % 4_000 == 0 {
            eventually(|| *seen.lock().unwrap() == n + 1).await;
        }
    }
    eventually(|| *seen.lock().unwrap() == 20_000).await;
    let status = observers.status()[0];
    assert!(
        status.dropped > 10_000 && stream.written() == 0,
        "{status:?}"
    );
    // Dropped where asynchronous code runs, where a runtime must not be dropped.
    drop(observers);
    drop(stream);
    assert!(RedisStream::open("nonsense").is_err());
}

#[tokio::test]
async fn the_stream_follows_sentinel_to_another_primary() {
    let mut sentinel = RedisSentinel::start();
    for server in &mut sentinel.servers {
        server.keys_may_live(None);
    }
    let stream = Arc::new(RedisStream::open(sentinel.url()).unwrap());
    let observers = Observers::default().with(Arc::clone(&stream));
    (0..100).for_each(|n| observers.emit(|| plain(n)));
    assert!(observers.flush().await);
    assert_eq!(read_all(&stream, 100).await, (0..100).collect::<Vec<_>>());
    let primary = sentinel.primary();
    sentinel.servers[primary].kill();
    (100..200).for_each(|n| observers.emit(|| plain(n)));
    eventually(|| stream.written() == 200).await;
    assert_ne!(sentinel.primary(), primary);
    // What was not replicated before the primary died is gone, as ever; the rest is not.
    let mut reader = stream.reader();
    let read = reader.read(1_000).await.unwrap();
    assert!(read.iter().any(|event| event.at == 199));
    assert_eq!(stream.lost(), 0);
}

#[tokio::test]
async fn on_a_cluster_the_stream_is_divided_and_read_as_one() {
    let mut cluster = RedisCluster::start();
    for node in &mut cluster.nodes {
        node.keys_may_live(None);
    }
    let stream = Arc::new(RedisStream::open(cluster.url()).unwrap());
    let observers = Observers::default().with(Arc::clone(&stream));
    for n in 0..2_000 {
        observers.emit(|| plain(n));
        if n % 100 == 99 {
            assert!(observers.flush().await);
        }
    }
    let read = read_all(&stream, 2_000).await;
    let mut sorted = read.clone();
    sorted.sort_unstable();
    assert_eq!(sorted, (0..2_000).collect::<Vec<_>>());
    let keys: Vec<_> = cluster.nodes.iter().map(|node| node.keys().len()).collect();
    assert_eq!(keys.iter().sum::<usize>(), 4, "{keys:?}");
    // One server after the other is replaced by itself, empty: writing goes on.
    cluster.nodes[0].kill();
    cluster.nodes[0].restart();
    (2_000..2_500).for_each(|n| observers.emit(|| plain(n)));
    eventually(|| stream.written() == 2_500).await;
    assert_eq!(stream.lost(), 0);
}
