//! Whether a Redis can keep counters, and what should be changed about it.

use std::time::{Duration, SystemTime, UNIX_EPOCH};

use redis::Value;

use super::{backend::Backend, reply, scripts::SERVER_MAX};
use crate::{
    Period,
    store::{Remote, StoreError, StoreErrorKind},
};

impl Backend {
    /// See [`RedisStore::health`](super::RedisStore::health).
    pub(super) async fn health(&self) -> Result<Health, StoreError> {
        // Fails first when authentication is missing, with the clearest error.
        self.send(redis::cmd("PING")).await?;
        let health = match self.send(redis::cmd("INFO")).await {
            Ok(info) => Health::read(&info, SystemTime::now())
                .ok_or_else(|| reply::unexpected("INFO", &info))?,
            Err(error) if error.kind() == StoreErrorKind::Server => Health {
                warnings: vec![format!("its settings can't be read: {error}")],
                ..Health::default()
            },
            Err(error) => return Err(error),
        };
        if !health.faults.is_empty() {
            let message = format!("Redis is misconfigured: {}", health.faults.join("; "));
            return Err(StoreError::new(StoreErrorKind::Config, message));
        }
        if health.has_many_scripts {
            self.set_scripts_full();
        }
        self.probe(None).await?;
        Ok(health)
    }
}

/// The findings of [`RedisStore::health`](super::RedisStore::health).
#[derive(Clone, Debug, Default, PartialEq, Eq)]
#[non_exhaustive]
pub struct Health {
    /// What should be changed, one sentence each. The store works all the same.
    pub warnings: Vec<String>,
    /// What prevents the store from working.
    pub(super) faults: Vec<String>,
    /// Whether a server holds so many scripts that none should be added.
    pub(super) has_many_scripts: bool,
}

/// The oldest version that has all commands, as major and minor number.
const OLDEST: (u32, u32) = (6, 2);

/// How far clocks may be apart, including the time for the reply to arrive.
const CLOCKS_APART: Duration = Duration::from_secs(2);

impl Health {
    /// Reads the reply of `INFO`: of one server, or of each server of a cluster.
    fn read(info: &Value, now: SystemTime) -> Option<Self> {
        let mut health = Self::default();
        match info {
            Value::Map(servers) => {
                for (server, info) in servers {
                    let server = format!("{}: ", text(server)?);
                    health.inspect(&server, text(info)?, now);
                }
            }
            info => health.inspect("", text(info)?, now),
        }
        Some(health)
    }

    fn inspect(&mut self, server: &str, info: &str, now: SystemTime) {
        let field = |name: &str| {
            let mut lines = info.lines();
            lines.find_map(|line| line.strip_prefix(name)?.strip_prefix(':'))
        };
        // Valkey reports the Redis version that it is compatible with.
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
                "{server}its maxmemory-policy is {policy}: when it is full it evicts counters, and \
                 blocks with them; set it to noeviction"
            ));
        }
        let its_time = field("server_time_usec").and_then(|time| time.parse().ok());
        if let (Some(its_time), Ok(ours)) = (its_time, now.duration_since(UNIX_EPOCH)) {
            let apart = ours.abs_diff(Duration::from_micros(its_time));
            if apart > CLOCKS_APART {
                let apart = Period::Of(Duration::from_secs(apart.as_secs()));
                self.warnings.push(format!(
                    "{server}its clock and this machine's are {apart} apart: blocks go by its clock, \
                     and after a fail-over by another server's; synchronize all clocks by NTP"
                ));
            }
        }
        let scripts = field("number_of_cached_scripts").and_then(|scripts| scripts.parse().ok());
        if let Some(scripts) = scripts.filter(|scripts: &u64| *scripts > SERVER_MAX) {
            self.has_many_scripts = true;
            self.warnings.push(format!(
                "{server}it holds {scripts} scripts, so limits are sent with each call, which is slower; \
                 run SCRIPT FLUSH"
            ));
        }
        // In a cluster replicas answer INFO too; other commands go to primaries only.
        if field("role") == Some("slave") && field("cluster_enabled") != Some("1") {
            self.faults.push(format!(
                "{server}it is a replica and accepts no writes; connect to its primary, or through \
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

/// Major and minor number of a version.
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
    fn findings_name_what_to_do() {
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
