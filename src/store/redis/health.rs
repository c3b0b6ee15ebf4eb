//! Whether a Redis is fit to keep counters, and what to change about it.

use std::{
    sync::Arc,
    time::{Duration, SystemTime, UNIX_EPOCH},
};

use redis::{Cmd, Value};

use super::{RedisStore, connection::Failure, reply, scripts};
use crate::{
    Period,
    store::{StoreError, StoreErrorKind},
};

impl RedisStore {
    /// Whether Redis answers and can keep counters, for a readiness probe, and what should be changed
    /// about it. [`connect`](Self::connect) looks too, and logs the warnings (feature `tracing`).
    ///
    /// It hands Redis the scripts that it does not know, and tries them out on a counter of nobody's.
    ///
    /// # Errors
    ///
    /// It does not answer, does not write, is too old, or is a replica. A Redis that does not let its
    /// user ask for `INFO` is taken to be fit if it writes, with a warning.
    pub async fn health(&self) -> Result<Health, StoreError> {
        // To somebody who has not said a password, this is the first to be refused.
        let ping = self.plainly(redis::cmd("PING")).await;
        ping.map_err(|failure| failure.error)?;
        let health = match self.plainly(redis::cmd("INFO")).await {
            Ok(info) => Health::read(&info, SystemTime::now())
                .ok_or_else(|| reply::unexpected("INFO", &info))?,
            Err(failure) if failure.error.kind() == StoreErrorKind::Server => Health {
                warnings: vec![format!("its settings can't be seen: {}", failure.error)],
                faults: Vec::new(),
            },
            Err(failure) => return Err(failure.error),
        };
        if !health.faults.is_empty() {
            let message = format!("redis can't be used so: {}", health.faults.join("; "));
            return Err(StoreError::new(StoreErrorKind::Config, message));
        }
        let known = self.plainly(scripts::are_known()).await;
        if !matches!(known, Ok(Value::Array(known)) if known.iter().all(|one| *one == Value::Int(1)))
        {
            for script in scripts::all() {
                // One that may not load them gets them with the first calls.
                let _ = self.plainly(script.load()).await;
            }
        }
        self.probe(None).await?;
        Ok(health)
    }

    async fn plainly(&self, command: Cmd) -> Result<Value, Failure> {
        let link = Arc::clone(&self.link);
        let deadline = link.deadline();
        link.send(command, None, deadline).await
    }
}

/// How the servers of a [`RedisStore`](super::RedisStore) are: what
/// [`health`](super::RedisStore::health) found.
///
/// ```no_run
/// # async fn example(store: tower_login_rate_limit::store::RedisStore) {
/// // For a readiness probe.
/// let ready = store.health().await.is_ok();
/// # }
/// ```
#[derive(Clone, Debug, PartialEq, Eq)]
#[non_exhaustive]
pub struct Health {
    /// What should be changed, in words. The store works all the same.
    pub warnings: Vec<String>,
    /// What keeps the store from working.
    pub(super) faults: Vec<String>,
}

/// The oldest version that has all the commands, as major and minor number.
const OLDEST: (u32, u32) = (6, 2);

/// How far clocks may be apart, with some time for the answer to arrive.
const CLOCKS_APART: Duration = Duration::from_secs(2);

impl Health {
    /// Reads what `INFO` answered: one server's, or in a cluster each one's.
    fn read(info: &Value, now: SystemTime) -> Option<Self> {
        let mut health = Self {
            warnings: Vec::new(),
            faults: Vec::new(),
        };
        match info {
            Value::Map(servers) => {
                for (server, info) in servers {
                    let server = format!("{}: ", text(server)?);
                    health.look_at(&server, text(info)?, now);
                }
            }
            info => health.look_at("", text(info)?, now),
        }
        Some(health)
    }

    fn look_at(&mut self, server: &str, info: &str, now: SystemTime) {
        let field = |name: &str| {
            let mut lines = info.lines();
            lines.find_map(|line| line.strip_prefix(name)?.strip_prefix(':'))
        };
        // Valkey says which Redis it is like.
        if let Some(version) = field("redis_version")
            && numbers(version).is_none_or(|version| version < OLDEST)
        {
            let (major, minor) = OLDEST;
            self.faults.push(format!(
                "{server}it is version {version}; {major}.{minor} or later is needed"
            ));
        }
        if let (Some(policy), Some(most)) = (field("maxmemory_policy"), field("maxmemory"))
            && policy != "noeviction"
            && most != "0"
        {
            self.warnings.push(format!(
                "{server}its maxmemory-policy is {policy}: when it is full it forgets counters, and \
                 with them blocks; set it to noeviction"
            ));
        }
        let its_time = field("server_time_usec").and_then(|time| time.parse().ok());
        if let (Some(its_time), Ok(ours)) = (its_time, now.duration_since(UNIX_EPOCH)) {
            let apart = ours.abs_diff(Duration::from_micros(its_time));
            if apart > CLOCKS_APART {
                let apart = Period::Of(Duration::from_secs(apart.as_secs()));
                self.warnings.push(format!(
                    "{server}its clock and this machine's are {apart} apart: blocks go by its clock, \
                     and after a fail-over by another server's; have all clocks set by NTP"
                ));
            }
        }
        // Replicas of a cluster answer too, and are not asked for anything else.
        if field("role") == Some("slave") && field("cluster_enabled") != Some("1") {
            self.faults.push(format!(
                "{server}it is a replica and takes no writes; connect to its primary, or through \
                 Sentinel"
            ));
        }
    }
}

fn text(value: &Value) -> Option<&str> {
    match value {
        Value::BulkString(bytes) => std::str::from_utf8(bytes).ok(),
        Value::SimpleString(text) | Value::VerbatimString { text, .. } => Some(text),
        _ => None,
    }
}

/// The first two numbers of a version.
fn numbers(version: &str) -> Option<(u32, u32)> {
    let mut numbers = version.split('.').map(|number| number.parse().ok());
    Some((numbers.next()??, numbers.next()??))
}

#[cfg(test)]
mod tests {
    use super::*;

    fn read(info: &str) -> Health {
        let info = Value::BulkString(info.as_bytes().to_vec());
        Health::read(&info, UNIX_EPOCH + Duration::from_secs(1_790_000_000)).unwrap()
    }

    #[test]
    fn what_is_wrong_is_said_with_what_to_do() {
        let fine = "redis_version:7.0.15\r\nmaxmemory:0\r\nmaxmemory_policy:allkeys-lru\r\nrole:master\r\n";
        assert_eq!(read(fine), read("redis_version:6.2.0\r\n"));
        assert!(read(fine).warnings.is_empty() && read(fine).faults.is_empty());

        let forgets = "maxmemory:1000\r\nmaxmemory_policy:volatile-ttl\r\n";
        assert!(read(forgets).warnings[0].contains("noeviction"));
        for version in ["6.0.16", "5.0", "7", "x"] {
            let health = read(&format!("redis_version:{version}\r\n"));
            assert!(health.faults[0].contains(version), "{health:?}");
        }
        assert!(read("role:slave\r\n").faults[0].contains("primary"));
        assert!(
            read("role:slave\r\ncluster_enabled:1\r\n")
                .faults
                .is_empty()
        );
        assert!(Health::read(&Value::Nil, UNIX_EPOCH).is_none());
        assert_eq!(read("server_time_usec:1790000001000000\r\n"), read(fine));
        for time in ["1789999990000000", "1790003600000000"] {
            let health = read(&format!("server_time_usec:{time}\r\n"));
            assert!(health.warnings[0].contains("NTP"), "{health:?}");
        }

        let each = Value::Map(vec![(
            Value::BulkString(b"10.0.0.1:6379".to_vec()),
            Value::BulkString(forgets.as_bytes().to_vec()),
        )]);
        let health = Health::read(&each, UNIX_EPOCH).unwrap();
        assert!(health.warnings[0].starts_with("10.0.0.1:6379: "));
    }
}
