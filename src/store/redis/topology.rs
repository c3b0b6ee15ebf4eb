//! Where Redis is: one server, a cluster, or whatever Sentinel says.

use std::time::Duration;

use bb8_redis::bb8::ManageConnection;
use percent_encoding::percent_decode_str;
use redis::{
    AsyncConnectionConfig, Client, IntoConnectionInfo, RedisConnectionInfo, RedisError,
    aio::MultiplexedConnection,
    cluster::ClusterClient,
    cluster_async::ClusterConnection,
    sentinel::{SentinelClient, SentinelNodeConnectionInfo, SentinelServerType},
};
use tokio::sync::Mutex;

use crate::store::{StoreError, StoreErrorKind};

/// What a URL leads to.
pub(super) enum Topology {
    OneServer(OneServer),
    Cluster(Cluster),
    Sentinel(Sentinel),
}

impl Topology {
    pub(super) fn from_url(url: &str, deadline: Duration) -> Result<Self, StoreError> {
        let (scheme, rest) = url.split_once("://").unwrap_or(("", url));
        let topology = match scheme {
            "redis+cluster" => {
                let servers = Servers::read(rest)?;
                Cluster::new(servers, deadline).map(Self::Cluster)
            }
            "redis+sentinel" => {
                let servers = Servers::read(rest)?;
                Sentinel::new(servers)?.map(Self::Sentinel)
            }
            _ => Client::open(url).map(|client| Self::OneServer(OneServer(client))),
        };
        topology.map_err(|error| cant_be(&error.to_string()))
    }
}

/// Without the URL: it may have a password in it.
fn cant_be(reason: &str) -> StoreError {
    let message = format!(
        "not the address of a Redis ({reason}): write it like redis://127.0.0.1:6379, \
         redis+cluster://10.0.0.1,10.0.0.2,10.0.0.3 or redis+sentinel://10.0.0.1,10.0.0.2/name"
    );
    StoreError::new(StoreErrorKind::Config, message)
}

/// What stands in a URL that names several servers: `[user:password@]host[:port],…[/path]`.
struct Servers {
    user: Option<String>,
    password: Option<String>,
    /// Each as a URL of its own.
    urls: Vec<String>,
    path: Option<String>,
}

impl Servers {
    fn read(rest: &str) -> Result<Self, StoreError> {
        let (authority, path) = match rest.split_once('/') {
            Some((authority, path)) => (authority, Some(path.to_owned())),
            None => (rest, None),
        };
        let (user, password, hosts) = match authority.rsplit_once('@') {
            Some((credentials, hosts)) => {
                let (user, password) = credentials.split_once(':').unwrap_or((credentials, ""));
                (decoded(user)?, decoded(password)?, hosts)
            }
            None => (None, None, authority),
        };
        let url = |host: &str| match host.trim() {
            "" => Err(cant_be("a server's name is empty")),
            host => Ok(format!("redis://{host}")),
        };
        Ok(Self {
            user,
            password,
            urls: hosts.split(',').map(url).collect::<Result<_, _>>()?,
            path,
        })
    }
}

/// `None` if there is nothing.
fn decoded(text: &str) -> Result<Option<String>, StoreError> {
    let decoded = percent_decode_str(text).decode_utf8();
    let decoded = decoded.map_err(|_| cant_be("user or password is not UTF-8"))?;
    Ok((!decoded.is_empty()).then(|| decoded.into_owned()))
}

/// The deadline is ours, and there is one.
fn no_timeouts() -> AsyncConnectionConfig {
    AsyncConnectionConfig::new()
        .set_connection_timeout(None)
        .set_response_timeout(None)
}

/// Opens connections to one server.
pub(super) struct OneServer(Client);

impl ManageConnection for OneServer {
    type Connection = MultiplexedConnection;
    type Error = RedisError;

    async fn connect(&self) -> Result<Self::Connection, RedisError> {
        let config = no_timeouts();
        let connecting = self.0.get_multiplexed_async_connection_with_config(&config);
        connecting.await
    }

    async fn is_valid(&self, _: &mut Self::Connection) -> Result<(), RedisError> {
        Ok(())
    }

    fn has_broken(&self, _: &mut Self::Connection) -> bool {
        false
    }
}

/// Opens connections to the primaries of a cluster.
pub(super) struct Cluster(ClusterClient);

impl Cluster {
    fn new(servers: Servers, deadline: Duration) -> Result<Self, RedisError> {
        let mut client = ClusterClient::builder(servers.urls).connection_timeout(deadline);
        if let Some(user) = servers.user {
            client = client.username(user);
        }
        if let Some(password) = servers.password {
            client = client.password(password);
        }
        client.build().map(Self)
    }
}

impl ManageConnection for Cluster {
    type Connection = ClusterConnection;
    type Error = RedisError;

    async fn connect(&self) -> Result<Self::Connection, RedisError> {
        self.0.get_async_connection().await
    }

    async fn is_valid(&self, _: &mut Self::Connection) -> Result<(), RedisError> {
        Ok(())
    }

    fn has_broken(&self, _: &mut Self::Connection) -> bool {
        false
    }
}

/// Opens connections to the server that is the primary by Sentinel's word.
pub(super) struct Sentinel(Mutex<SentinelClient>);

impl Sentinel {
    fn new(servers: Servers) -> Result<Result<Self, RedisError>, StoreError> {
        let path = servers.path.as_deref().unwrap_or_default();
        let (name, database) = path.split_once('/').unwrap_or((path, "0"));
        if name.is_empty() {
            return Err(cant_be(
                "the name that Sentinel knows the primary by is missing",
            ));
        }
        let database = database
            .parse()
            .map_err(|_| cant_be("what stands behind the name must be a database's number"))?;
        let mut redis = RedisConnectionInfo::default().set_db(database);
        if let Some(user) = servers.user {
            redis = redis.set_username(user);
        }
        if let Some(password) = servers.password {
            redis = redis.set_password(password);
        }
        let node = SentinelNodeConnectionInfo::default().set_redis_connection_info(redis);
        // A Sentinel listens elsewhere than a Redis.
        let sentinels = servers.urls.into_iter().map(|url| {
            let has_port = url.rsplit_once(':').is_some_and(|(_, port)| {
                !port.is_empty() && port.bytes().all(|byte| byte.is_ascii_digit())
            });
            if has_port {
                url
            } else {
                format!("{url}:26379")
            }
        });
        let sentinels: Vec<_> = sentinels.collect();
        for sentinel in &sentinels {
            if let Err(error) = sentinel.as_str().into_connection_info() {
                return Ok(Err(error));
            }
        }
        let primary = SentinelServerType::Master;
        let client = SentinelClient::build(sentinels, name.to_owned(), Some(node), primary);
        Ok(client.map(|client| Self(Mutex::new(client))))
    }
}

impl ManageConnection for Sentinel {
    type Connection = MultiplexedConnection;
    type Error = RedisError;

    async fn connect(&self) -> Result<Self::Connection, RedisError> {
        let client = self.0.lock().await.async_get_client().await?;
        let config = no_timeouts();
        let connecting = client.get_multiplexed_async_connection_with_config(&config);
        connecting.await
    }

    async fn is_valid(&self, _: &mut Self::Connection) -> Result<(), RedisError> {
        Ok(())
    }

    fn has_broken(&self, _: &mut Self::Connection) -> bool {
        false
    }
}
