//! What the Redis user may do.

use redis::Cmd;
use tower_login_rate_limit::store::{RedisStore, StoreError};

use super::finding::Findings;
use crate::store::StoreArgs;

/// Stands for a key of the app.
const KEY: &str = "<key>";
const CHANNEL: &str = "<channel>";
const STREAM: &str = "<stream>";

/// What scripts and the store run, in a form that changes nothing where it is tried.
const READ: &[&[&str]] = &[
    &["EXISTS", KEY],
    &["HGET", KEY, "f"],
    &["HMGET", KEY, "f"],
    &["HSTRLEN", KEY, "f"],
    &["PTTL", KEY],
    &["TIME"],
    &["ZCARD", KEY],
    &["ZCOUNT", KEY, "0", "1"],
    &["ZRANGE", KEY, "0", "0"],
    &["ZRANGEBYSCORE", KEY, "0", "1"],
    &["ZREVRANGE", KEY, "0", "0"],
    &["ZREVRANGEBYSCORE", KEY, "1", "0"],
    &["ZREVRANK", KEY, "m"],
    &["ZSCORE", KEY, "m"],
];

/// The same for what would change something.
const WRITE: &[&[&str]] = &[
    &["EVAL", "return 1", "1", KEY],
    &[
        "EVALSHA",
        "e0e1f9fabfc9d4800c877a703b823ac0578ff8db",
        "1",
        KEY,
    ],
    &["SCRIPT", "LOAD", "return 1"],
    &["HDEL", KEY, "f"],
    &["HSET", KEY, "f", "v"],
    &["PERSIST", KEY],
    &["PEXPIRE", KEY, "1000"],
    &["ZADD", KEY, "1", "m"],
    &["ZREM", KEY, "m"],
    &["ZREMRANGEBYRANK", KEY, "0", "0"],
    &["ZREMRANGEBYSCORE", KEY, "0", "1"],
];

/// Announcements of unblocks.
const ANNOUNCE: &[&[&str]] = &[&["PUBLISH", CHANNEL, "m"], &["SUBSCRIBE", CHANNEL]];

/// The stream of events.
const EVENTS: &[&[&str]] = &[
    &["XADD", STREAM, "*", "f", "v"],
    &["XRANGE", STREAM, "-", "+", "COUNT", "1"],
    &["EXPIRE", STREAM, "1000"],
];

pub(super) async fn look(store: &RedisStore, args: &StoreArgs, findings: &mut Findings) {
    let user = whoami(store).await;
    let Some(user) = user else {
        tried(
            store,
            args,
            findings,
            "its name can't be read, as ACL WHOAMI is not permitted",
        )
        .await;
        return;
    };
    if !can_dry_run(store, &user).await {
        let reason = format!("{user} may not use ACL DRYRUN");
        tried(store, args, findings, &reason).await;
        return;
    }
    let mut is_fine = true;
    for (what, commands, is_needed) in [
        ("logins and administration", [READ, WRITE].concat(), true),
        ("announcements of unblocks", ANNOUNCE.to_vec(), false),
        ("the stream of events", EVENTS.to_vec(), false),
    ] {
        let (mut missing, mut unknown) = (Vec::new(), Vec::new());
        for words in commands {
            let mut command = redis::cmd("ACL");
            command.arg("DRYRUN").arg(&user);
            add(&mut command, words, args);
            let reply = store.query(command).await.ok().map(any_server);
            match reply.and_then(|reply| redis::from_redis_value::<String>(reply).ok()) {
                Some(reply) if reply == "OK" => {}
                Some(_) => missing.push(words[0]),
                None => unknown.push(words[0]),
            }
        }
        is_fine &= missing.is_empty() && unknown.is_empty();
        if !missing.is_empty() {
            report(&user, what, &missing, args, is_needed, findings);
        }
        if !unknown.is_empty() {
            let commands = unknown.join(", ");
            findings.warning(
                "rights",
                format!("Redis does not say whether {user} may use {commands}, for {what}"),
                "run it again; if Redis is slow, with a longer --timeout".to_owned(),
            );
        }
    }
    if is_fine {
        findings.ok("rights", format!("user {user} may do all that is needed"));
    }
}

/// Without `ACL DRYRUN`: commands that change nothing.
async fn tried(store: &RedisStore, args: &StoreArgs, findings: &mut Findings, why: &str) {
    let mut missing = Vec::new();
    for words in READ.iter().copied().chain([EVENTS[1]]) {
        let mut command = Cmd::new();
        add(&mut command, words, args);
        if let Err(error) = store.query(command).await
            && is_not_permitted(&error)
        {
            missing.push(words[0]);
        }
    }
    if missing.is_empty() {
        findings.ok(
            "rights",
            format!(
                "commands that read are permitted; of those that write, the ones of a login ({why})"
            ),
        );
    } else {
        report(
            "the Redis user",
            "logins and administration",
            &missing,
            args,
            true,
            findings,
        );
    }
}

fn is_not_permitted(error: &StoreError) -> bool {
    let text = error.to_string().to_ascii_lowercase();
    text.contains("noperm") || text.contains("no permission")
}

fn report(
    user: &str,
    what: &str,
    missing: &[&str],
    args: &StoreArgs,
    is_needed: bool,
    findings: &mut Findings,
) {
    let message = format!(
        "user {user} lacks rights for {what}: {}",
        missing.join(", ")
    );
    let commands: Vec<_> = missing
        .iter()
        .map(|name| format!("+{}", name.to_lowercase()))
        .collect();
    let prefix = args.prefix();
    let advice = format!(
        "ACL SETUSER {user} ~{prefix}:* &{prefix}:* {}",
        commands.join(" ")
    );
    if is_needed {
        findings.problem("rights", message, advice);
    } else {
        findings.warning("rights", message, advice);
    }
}

fn add(command: &mut Cmd, words: &[&str], args: &StoreArgs) {
    for word in words {
        match *word {
            KEY => command.arg(format!("{}:{{doctor}}", args.prefix())),
            CHANNEL => command.arg(format!("{}:unblocked", args.prefix())),
            STREAM => command.arg(args.stream_key()),
            word => command.arg(word),
        };
    }
}

async fn whoami(store: &RedisStore) -> Option<String> {
    let mut command = redis::cmd("ACL");
    command.arg("WHOAMI");
    let reply = store.query(command).await.ok()?;
    redis::from_redis_value(any_server(reply)).ok()
}

async fn can_dry_run(store: &RedisStore, user: &str) -> bool {
    let mut command = redis::cmd("ACL");
    command.arg("DRYRUN").arg(user).arg("PING");
    store.query(command).await.is_ok()
}

/// The reply of one of several servers.
fn any_server(reply: redis::Value) -> redis::Value {
    match reply {
        redis::Value::Map(mut servers) => {
            servers.pop().map_or(redis::Value::Nil, |(_, reply)| reply)
        }
        reply => reply,
    }
}
