//! Whether a Redis is fit to keep counters, and what to change about it.

use redis::Value;

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

impl Health {
    /// Reads what `INFO` answered: one server's, or in a cluster each one's.
    pub(super) fn read(info: &Value) -> Option<Self> {
        let mut health = Self {
            warnings: Vec::new(),
            faults: Vec::new(),
        };
        match info {
            Value::Map(servers) => {
                for (server, info) in servers {
                    let server = format!("{}: ", text(server)?);
                    health.look_at(&server, text(info)?);
                }
            }
            info => health.look_at("", text(info)?),
        }
        Some(health)
    }

    fn look_at(&mut self, server: &str, info: &str) {
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
        Health::read(&Value::BulkString(info.as_bytes().to_vec())).unwrap()
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
        assert!(Health::read(&Value::Nil).is_none());

        let each = Value::Map(vec![(
            Value::BulkString(b"10.0.0.1:6379".to_vec()),
            Value::BulkString(forgets.as_bytes().to_vec()),
        )]);
        let health = Health::read(&each).unwrap();
        assert!(health.warnings[0].starts_with("10.0.0.1:6379: "));
    }
}
