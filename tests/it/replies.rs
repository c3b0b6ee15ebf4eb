//! Whatever Redis answers: only what a script promises to answer can admit an attempt, and no error
//! writes a block.

use tower_login_rate_limit::{
    LoginLimiter, Outcome, Policy, Reason, ReserveError,
    store::{RedisStore, StoreErrorKind},
};

use crate::support::{Fault, Proxy, RedisServer, closed, eventually, fail, ip, refused};

const HOME: &str = "192.0.2.1";

/// What a server may say that can't, won't or may not.
const ERRORS: &[&str] = &[
    "READONLY You can't write against a read only replica.",
    "NOREPLICAS Not enough good replicas to write.",
    "OOM command not allowed when used memory > 'maxmemory'.",
    "LOADING Redis is loading the dataset in memory",
    "CLUSTERDOWN Hash slot not served",
    "CROSSSLOT Keys in request don't hash to the same slot",
    "TRYAGAIN Multiple keys request during rehashing of slot",
    "MOVED 866 127.0.0.1:1",
    "ASK 866 127.0.0.1:1",
    "MASTERDOWN Link with MASTER is down and replica-serve-stale-data is set to 'no'.",
    "MISCONF Redis is configured to save RDB snapshots, but it's currently unable to persist to disk.",
    "NOAUTH Authentication required.",
    "NOPERM this user has no permissions to run the 'evalsha' command",
    "WRONGPASS invalid username-password pair",
    "BUSY Redis is busy running a script. You can only call SCRIPT KILL or SHUTDOWN NOSAVE.",
    "UNKILLABLE Sorry the script already executed write commands",
    "NOSCRIPT No matching script. Please use EVAL.",
    "WRONGTYPE Operation against a key holding the wrong kind of value",
    "EXECABORT Transaction discarded because of previous errors.",
    "ERR max number of clients reached",
    // As Redis 6.2 reports what a command in a script has met.
    "ERR Error running script (call to f_625a7ac6a87b595aaeb01e34df44780cd8f912a1): @user_script:49: @user_script: 49: -READONLY You can't write against a read only replica. ",
    "ERR Error running script (call to f_625a7ac6a87b595aaeb01e34df44780cd8f912a1): @user_script:49: @user_script: 49: -OOM command not allowed when used memory > 'maxmemory'. ",
    "ERR user_script:1: Script attempted to access nonexistent global variable 'x'",
    "",
];

/// What is not an answer at all.
const GARBAGE: &[&[u8]] = &[
    b"+OK\r\n",
    b"$-1\r\n",
    b"$0\r\n\r\n",
    b"$16\r\n0123456789abcdef\r\n",
    b"*-1\r\n",
    b":-1\r\n",
    b"_\r\n",
    b"#t\r\n",
    b",1.5\r\n",
    b"*1\r\n:1\r\n",
    b"*10\r\n:1\r\n:25\r\n$4\r\nnope\r\n:0\r\n:1000\r\n:1\r\n:5\r\n$4\r\nnope\r\n:0\r\n:1000\r\n",
    b"%1\r\n+usage\r\n:1\r\n",
    b"HTTP/1.1 200 OK\r\nContent-Length: 2\r\n\r\nOK",
    b"\0\0\0\0\r\n",
    b"$9999999999\r\n",
    b"*99999999999999999999\r\n",
];

/// What begins like an answer and breaks off.
const TRUNCATED: &[&[u8]] = &[
    b"",
    b"*10\r\n:1\r\n:25\r\n$16\r\n0123",
    b"*",
    b"-OO",
    b"$5\r\nab",
];

fn faults() -> impl Iterator<Item = (String, Fault)> {
    let errors = ERRORS
        .iter()
        .map(|error| format!("-{error}\r\n").into_bytes());
    let garbage = GARBAGE.iter().map(|garbage| garbage.to_vec());
    let answers = errors.chain(garbage).map(|answer| {
        let shown = answer.escape_ascii().to_string();
        (shown, Fault::Answers(answer))
    });
    let truncated = TRUNCATED.iter().map(|part| {
        let shown = format!("{}, and the end", part.escape_ascii());
        (shown, Fault::BreaksOff(part.to_vec()))
    });
    answers.chain(truncated)
}

async fn proxied(redis: &RedisServer) -> Proxy {
    Proxy::start(format!("127.0.0.1:{}", redis.port())).await
}

#[tokio::test]
async fn nothing_but_an_answer_admits_and_no_error_blocks() {
    let redis = RedisServer::start();
    for (shown, fault) in faults() {
        let proxy = proxied(&redis).await;
        let store = closed().connect(proxy.url()).await.unwrap();
        let limiter = LoginLimiter::new(Policy::default(), store.clone());
        let under_way = limiter.reserve((ip(HOME), "under way")).await.unwrap();
        proxy.fail(fault);
        for _ in 0..2 {
            match limiter.reserve((ip(HOME), "user")).await {
                Err(ReserveError::Store(error)) => {
                    assert_ne!(error.kind(), StoreErrorKind::Config, "{shown}: {error}");
                }
                other => panic!("{shown}: {other:?}"),
            }
        }
        limiter.check((ip(HOME), "user")).await.expect_err(&shown);
        // What can't be said now is said later.
        under_way.settle(Outcome::Success).await.unwrap();
        proxy.fail(Fault::None);
        println!("{shown}");
        eventually(|| store.status().pending == 0 && !store.status().is_degraded).await;
        eventually(|| redis.keys().is_empty()).await;
    }
}

#[tokio::test]
async fn whatever_it_answers_a_process_goes_on_counting() {
    let redis = RedisServer::start();
    for (shown, fault) in faults() {
        let proxy = proxied(&redis).await;
        let store = RedisStore::connect(proxy.url()).await.unwrap();
        let limiter = LoginLimiter::new(Policy::default(), store.clone());
        proxy.fail(fault);
        println!("{shown}");
        fail(&limiter, ip(HOME), "user", 5).await;
        let refusal = refused(limiter.reserve((ip(HOME), "user")).await);
        assert_eq!(refusal.reason(), Reason::Blocked, "{shown}");
        proxy.fail(Fault::None);
        eventually(|| store.status().pending == 0 && !store.status().is_degraded).await;
        let there = LoginLimiter::new(Policy::default(), redis.store().await);
        let refusal = refused(there.reserve((ip(HOME), "user")).await);
        assert_eq!(refusal.usage(), 5, "{shown}");
        redis.flush();
    }
}

/// What is an answer to another question.
const OTHER_ANSWERS: &[&[u8]] = &[
    b"*0\r\n",
    b":0\r\n",
    b":1\r\n",
    b":2\r\n",
    b"*10\r\n:1\r\n:25\r\n$-1\r\n:0\r\n:1000\r\n:1\r\n:5\r\n$-1\r\n:0\r\n:1000\r\n",
];

#[tokio::test]
async fn an_answer_to_something_else_is_no_permission() {
    let redis = RedisServer::start();
    for answer in OTHER_ANSWERS {
        let proxy = proxied(&redis).await;
        let store = closed().connect(proxy.url()).await.unwrap();
        let limiter = LoginLimiter::new(Policy::default(), store);
        proxy.fail(Fault::Answers(answer.to_vec()));
        match limiter.reserve((ip(HOME), "user")).await {
            Err(ReserveError::Store(error)) => assert_eq!(error.kind(), StoreErrorKind::Protocol),
            other => panic!("{other:?}"),
        }
    }
}

/// The script runs, and its reply is lost: of reserving or of settling. Each attempt counts once.
#[tokio::test]
async fn a_reply_that_is_lost_counts_once() {
    let redis = RedisServer::start();
    let proxy = proxied(&redis).await;
    // Without announcements, whose replies could be lost in place of ours.
    let store = redis.builder().connect(proxy.url()).await.unwrap();
    let limiter = LoginLimiter::new(Policy::default(), store.clone());
    let direct = LoginLimiter::new(Policy::default(), redis.store().await);
    for i in 0..1_000_u32 {
        let address = std::net::IpAddr::from((0x0a00_0000 + i).to_be_bytes());
        let lost = usize::try_from(i % 3).unwrap();
        proxy.lose_replies(lost);
        let attempt = limiter.reserve((address, "user")).await.unwrap();
        assert!(proxy.has_lost_them());
        proxy.lose_replies(2 - lost);
        attempt.settle(Outcome::Failure).await.unwrap();
        assert!(proxy.has_lost_them());
        let report = direct.check((address, "user")).await.unwrap();
        assert_eq!(report.remaining(), Some(4), "attempt {i}");
    }
    assert_eq!(store.status().pending, 0);
}

/// The same with real servers, where they can be brought to say it.
#[tokio::test]
async fn real_servers_that_cant_or_wont() {
    let redis = RedisServer::start();
    let set = |name: &str, value: &str| redis.command::<()>(&["CONFIG", "SET", name, value]);
    type Switch<'a> = &'a dyn Fn();
    let faults: [(&str, Switch<'_>, Switch<'_>); 4] = [
        ("NOREPLICAS", &|| set("min-replicas-to-write", "1"), &|| {
            set("min-replicas-to-write", "0")
        }),
        ("OOM", &|| set("maxmemory", "1"), &|| set("maxmemory", "0")),
        (
            "read only",
            &|| redis.command::<()>(&["REPLICAOF", "127.0.0.1", "1"]),
            &|| redis.command::<()>(&["REPLICAOF", "NO", "ONE"]),
        ),
        (
            "no permissions",
            &|| redis.command::<()>(&["ACL", "SETUSER", "default", "-eval", "-evalsha"]),
            &|| redis.command::<()>(&["ACL", "SETUSER", "default", "+eval", "+evalsha"]),
        ),
    ];
    for (name, begin, end) in faults {
        let open = closed().connect(redis.url()).await.unwrap();
        let alone = RedisStore::connect(redis.url()).await.unwrap();
        begin();
        let limiter = LoginLimiter::new(Policy::default(), open);
        match limiter.reserve((ip(HOME), "user")).await {
            Err(ReserveError::Store(error)) => {
                assert!(error.to_string().contains(name), "{name}: {error}");
            }
            other => panic!("{name}: {other:?}"),
        }
        let limiter = LoginLimiter::new(Policy::default(), alone.clone());
        fail(&limiter, ip(HOME), "user", 5).await;
        refused(limiter.reserve((ip(HOME), "user")).await);
        end();
        eventually(|| alone.status().pending == 0 && !alone.status().is_degraded).await;
        let there = LoginLimiter::new(Policy::default(), redis.store().await);
        assert_eq!(
            refused(there.reserve((ip(HOME), "user")).await).usage(),
            5,
            "{name}"
        );
        redis.flush();
    }
}
