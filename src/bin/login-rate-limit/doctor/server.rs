//! The servers: versions, roles, persistence, memory, clocks, latency.

use std::time::{Duration, Instant};

use redis::Value;
use tower_login_rate_limit::store::RedisStore;

use super::finding::Findings;
use crate::{
    output::{counted, plural},
    period,
};

/// How many round trips are measured.
const PINGS: usize = 20;
/// A median above this takes a good part of the default deadline of 200 ms.
const SLOW: Duration = Duration::from_millis(20);
/// How far clocks may be apart.
const CLOCKS_APART: Duration = Duration::from_secs(2);

pub(super) async fn look(store: &RedisStore, url: &str, findings: &mut Findings) {
    latency(store, findings).await;
    match store.health().await {
        Ok(health) => {
            findings.ok("scripts", "scripts run, and counters can be written");
            for warning in health.warnings {
                // The part behind the semicolon is what to do.
                match warning.rsplit_once("; ") {
                    Some((message, advice)) => findings.warning("settings", message, advice),
                    None => findings.warning("settings", warning, "see docs/production.md"),
                }
            }
        }
        Err(error) => {
            let advice = "no login can be counted like this; see docs/production.md";
            findings.problem("scripts", error.to_string(), advice);
        }
    }
    match store.query(redis::cmd("INFO")).await {
        Ok(reply) => {
            let servers = servers(reply);
            for (name, info) in &servers {
                Server { name, info }
                    .look(store, servers.len() > 1, findings)
                    .await;
            }
            if url.contains("+sentinel") && !servers.iter().any(|(_, info)| has_replicas(info)) {
                let advice = "Sentinel has nothing to fail over to: add a replica";
                findings.warning("sentinel", "the primary has no replica", advice);
            }
        }
        Err(error) => {
            let message = format!("the settings can't be read: {error}");
            findings.warning("settings", message, "permit +info for a full report");
        }
    }
    if url.contains("+cluster") {
        cluster(store, findings).await;
    }
    clock(store, findings).await;
    if !url.contains('@') && !is_local(url) {
        findings.warning(
            "password",
            "Redis is reached over the network, and asks for no password",
            "give the app a user of its own with a password, and rights for its prefix only (ACL SETUSER)",
        );
    }
}

fn is_local(url: &str) -> bool {
    ["127.0.0.1", "localhost", "[::1]", "unix:"]
        .iter()
        .any(|local| url.contains(local))
}

/// The text of `INFO`, by server.
fn servers(reply: Value) -> Vec<(String, String)> {
    let text = |value| redis::from_redis_value::<String>(value).unwrap_or_default();
    match reply {
        Value::Map(servers) => {
            let servers = servers
                .into_iter()
                .map(|(name, info)| (text(name), text(info)));
            servers.collect()
        }
        info => vec![(String::new(), text(info))],
    }
}

fn field<'a>(info: &'a str, name: &str) -> Option<&'a str> {
    let mut lines = info.lines();
    lines.find_map(|line| line.strip_prefix(name)?.strip_prefix(':'))
}

fn number(info: &str, name: &str) -> u64 {
    field(info, name)
        .and_then(|value| value.parse().ok())
        .unwrap_or(0)
}

fn has_replicas(info: &str) -> bool {
    number(info, "connected_slaves") > 0
}

struct Server<'a> {
    name: &'a str,
    info: &'a str,
}

impl Server<'_> {
    async fn look(&self, store: &RedisStore, is_one_of_many: bool, findings: &mut Findings) {
        let Self { name, info } = self;
        let of = if is_one_of_many {
            format!("{name}: ")
        } else {
            String::new()
        };
        let version = match (field(info, "valkey_version"), field(info, "redis_version")) {
            (Some(version), _) => format!("Valkey {version}"),
            (None, version) => format!("Redis {}", version.unwrap_or("of an unknown version")),
        };
        let role = match field(info, "role") {
            Some("slave") => "replica".to_owned(),
            _ => format!(
                "primary with {}",
                counted(number(info, "connected_slaves") as usize, "replica")
            ),
        };
        let up = period::about(Duration::from_secs(number(info, "uptime_in_seconds")));
        findings.ok("server", format!("{of}{version}, {role}, up for {up}"));
        self.memory(&of, findings);
        self.persistence(&of, store, is_one_of_many, findings).await;
    }

    fn memory(&self, of: &str, findings: &mut Findings) {
        let info = self.info;
        let used = field(info, "used_memory_human").unwrap_or("?");
        let (bytes, most) = (number(info, "used_memory"), number(info, "maxmemory"));
        if most == 0 {
            findings.ok("memory", format!("{of}{used} used, without a maxmemory"));
        } else if bytes > most / 10 * 9 {
            let message = format!("{of}{used} used of {}", human(most));
            let advice = "raise maxmemory: a full Redis refuses writes, and each server decides by itself then";
            findings.warning("memory", message, advice);
        } else {
            let policy = field(info, "maxmemory_policy").unwrap_or("?");
            findings.ok(
                "memory",
                format!("{of}{used} used of {}, {policy}", human(most)),
            );
        }
    }

    async fn persistence(
        &self,
        of: &str,
        store: &RedisStore,
        is_one_of_many: bool,
        findings: &mut Findings,
    ) {
        let info = self.info;
        for name in [
            "rdb_last_bgsave_status",
            "aof_last_write_status",
            "aof_last_bgrewrite_status",
        ] {
            if field(info, name) == Some("err") {
                let message = format!("{of}{name} is err: the last write to disk failed");
                findings.problem(
                    "persistence",
                    message,
                    "look at the disk and the log of Redis",
                );
            }
        }
        if field(info, "aof_enabled") == Some("1") {
            findings.ok("persistence", format!("{of}append-only file"));
            return;
        }
        // In a cluster the reply is of any server; they are set up alike.
        let saves = save_points(store).await;
        let nothing = "a restart of Redis lifts every block";
        let advice = "set `appendonly yes` (`appendfsync everysec` loses a second at most)";
        match saves.as_deref() {
            Some("") if has_replicas(info) => {
                let message =
                    format!("{of}nothing is written to disk; only the replicas keep the counters");
                findings.warning("persistence", message, advice);
            }
            Some("") => {
                findings.warning(
                    "persistence",
                    format!("{of}nothing is written to disk: {nothing}"),
                    advice,
                );
            }
            Some(_) => findings.warning(
                "persistence",
                format!(
                    "{of}snapshots only: a crash of Redis loses the failures of the last minutes"
                ),
                advice,
            ),
            None if is_one_of_many => {}
            None => findings.ok(
                "persistence",
                "no append-only file; snapshots are unknown, as CONFIG GET is not permitted",
            ),
        }
    }
}

fn human(bytes: u64) -> String {
    match bytes {
        1_073_741_824.. => format!("{:.1}G", bytes as f64 / 1_073_741_824.0),
        _ => format!("{:.1}M", bytes as f64 / 1_048_576.0),
    }
}

/// When snapshots are written; empty for never, `None` if it is not permitted to ask.
async fn save_points(store: &RedisStore) -> Option<String> {
    let mut command = redis::cmd("CONFIG");
    command.arg("GET").arg("save");
    let reply = store.query(command).await.ok()?;
    let reply = match reply {
        // By server.
        Value::Map(mut servers)
            if servers
                .iter()
                .any(|(_, reply)| matches!(reply, Value::Array(_) | Value::Map(_))) =>
        {
            servers.pop()?.1
        }
        reply => reply,
    };
    let settings: Vec<String> = match reply {
        Value::Map(pairs) => {
            let texts = pairs.into_iter().flat_map(|(name, value)| [name, value]);
            texts
                .filter_map(|value| redis::from_redis_value(value).ok())
                .collect()
        }
        reply => redis::from_redis_value(reply).ok()?,
    };
    settings.into_iter().nth(1)
}

async fn latency(store: &RedisStore, findings: &mut Findings) {
    let mut times = Vec::new();
    for _ in 0..PINGS {
        let started = Instant::now();
        if store.query(redis::cmd("PING")).await.is_ok() {
            times.push(started.elapsed());
        }
    }
    times.sort_unstable();
    let (Some(median), Some(longest)) = (times.get(times.len() / 2), times.last()) else {
        return;
    };
    let message = format!(
        "answers in {:.2} ms, {:.2} ms at worst",
        median.as_secs_f64() * 1e3,
        longest.as_secs_f64() * 1e3
    );
    if *median > SLOW {
        let advice = "each login waits for one round trip, 200 ms at most by default: move Redis closer, or raise the deadline";
        findings.warning("latency", message, advice);
    } else {
        findings.ok("latency", message);
    }
}

async fn clock(store: &RedisStore, findings: &mut Findings) {
    let before = period::now();
    let Ok(reply) = store.query(redis::cmd("TIME")).await else {
        return;
    };
    let after = period::now();
    let Ok((seconds, micros)) = redis::from_redis_value::<(u64, u64)>(reply) else {
        return;
    };
    let theirs = seconds * 1000 + micros / 1000;
    // It was read at some time in between.
    let apart = match theirs {
        theirs if theirs < before => before - theirs,
        theirs => theirs.saturating_sub(after),
    };
    if Duration::from_millis(apart) > CLOCKS_APART {
        let message = format!("the clock of Redis and this machine's are {apart} ms apart");
        findings.warning("clock", message, "synchronize all clocks by NTP");
    } else {
        findings.ok("clock", format!("{apart} ms from this machine's"));
    }
}

async fn cluster(store: &RedisStore, findings: &mut Findings) {
    let mut command = redis::cmd("CLUSTER");
    command.arg("INFO");
    let info = match store.query(command).await {
        Ok(reply) => servers(reply),
        Err(error) => {
            let advice = "permit +cluster|info for a full report";
            findings.warning(
                "cluster",
                format!("its state can't be read: {error}"),
                advice,
            );
            return;
        }
    };
    let Some((_, info)) = info.into_iter().next() else {
        return;
    };
    let slots = number(&info, "cluster_slots_ok");
    let size = number(&info, "cluster_size") as usize;
    let size = plural(size, "primary", "primaries");
    if field(&info, "cluster_state") == Some("ok") {
        findings.ok("cluster", format!("{size}, {slots} slots ok"));
    } else {
        let message = format!("cluster_state is not ok: {slots} of 16384 slots are served");
        findings.problem(
            "cluster",
            message,
            "look at CLUSTER NODES: a primary is down, or slots are not assigned",
        );
    }
}
