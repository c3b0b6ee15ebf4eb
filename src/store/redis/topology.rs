//! Where Redis is: one server, a cluster, or the primary that Sentinel names.

use std::time::Duration;

use bb8_redis::bb8::ManageConnection;
use percent_encoding::percent_decode_str;
use redis::{
    AsyncConnectionConfig, Client, ConnectionAddr, ErrorKind, IntoConnectionInfo,
    RedisConnectionInfo, RedisError,
    aio::MultiplexedConnection,
    cluster::ClusterClient,
    cluster_async::ClusterConnection,
    sentinel::{SentinelClient, SentinelClientBuilder, SentinelServerType},
};
use tokio::task::JoinSet;

use super::{
    connection::TRANSIENT_WAIT,
    invalidation::{Subscribe, Subscribing},
    tls::{self, Certificates, Transport},
};
use crate::store::{StoreError, StoreErrorKind};

/// What a URL denotes.
pub(super) enum Topology {
    OneServer(OneServer),
    Cluster(Cluster),
    Sentinel(Sentinel),
}

impl Topology {
    pub(super) fn from_url(
        url: &str,
        certificates: Certificates,
        deadline: Duration,
    ) -> Result<Self, StoreError> {
        let (scheme, rest) = url.split_once("://").unwrap_or(("", url));
        let transport = |certificates| {
            if scheme.starts_with("rediss") {
                Transport::tls(certificates)
            } else {
                Transport::plain(&certificates)
            }
        };
        match scheme {
            "redis+cluster" | "rediss+cluster" => {
                let servers = Servers::read(rest, transport(certificates)?)?;
                Ok(Self::Cluster(Cluster::new(servers, deadline)?))
            }
            "redis+sentinel" | "rediss+sentinel" => {
                let servers = Servers::read(rest, transport(certificates)?)?;
                Ok(Self::Sentinel(Sentinel::new(servers)?))
            }
            _ => Ok(Self::OneServer(OneServer::new(url, certificates)?)),
        }
    }
}

/// What opens connections, in messages: without user and password.
pub(super) trait Describe {
    fn describe(&self) -> String;
}

/// Servers in messages, by host and port.
fn listed<'a>(servers: impl Iterator<Item = &'a ConnectionAddr>) -> String {
    let servers: Vec<_> = servers.map(ToString::to_string).collect();
    servers.join(", ")
}

impl Describe for OneServer {
    fn describe(&self) -> String {
        format!("Redis at {}", self.0.get_connection_info().addr())
    }
}

impl Describe for Cluster {
    fn describe(&self) -> String {
        let servers = self.servers.iter();
        let addresses = servers.map(|server| server.get_connection_info().addr());
        format!("the Redis cluster at {}", listed(addresses))
    }
}

impl Describe for Sentinel {
    fn describe(&self) -> String {
        let sentinels = listed(self.sentinels.iter());
        format!("Redis {:?} of the Sentinels at {sentinels}", self.name)
    }
}

/// An error that does not quote the URL, which may contain a password.
fn invalid(reason: &str) -> StoreError {
    let message = format!(
        "invalid Redis URL ({reason}): write it like redis://127.0.0.1:6379, \
         redis+cluster://10.0.0.1,10.0.0.2,10.0.0.3 or redis+sentinel://10.0.0.1,10.0.0.2/name"
    );
    StoreError::new(StoreErrorKind::Config, message)
}

/// The parts of a URL with several servers: `[user:password@]host[:port],…[/path]`.
struct Servers {
    user: Option<String>,
    password: Option<String>,
    /// Each as a URL of its own.
    urls: Vec<String>,
    path: Option<String>,
    transport: Transport,
}

impl Servers {
    fn read(rest: &str, transport: Transport) -> Result<Self, StoreError> {
        let (authority, path) = match rest.split_once('/') {
            Some((authority, path)) => (authority, Some(path.to_owned())),
            None => (rest, None),
        };
        let in_path = |c: char| path.as_deref().is_some_and(|path| path.contains(c));
        if in_path('@') {
            return Err(invalid("a / in a user or password must be written as %2F"));
        }
        if rest.contains(['?', '#']) {
            return Err(invalid(
                "? and # have no meaning here; in a password write %3F and %23",
            ));
        }
        let (user, password, hosts) = match authority.rsplit_once('@') {
            Some((credentials, hosts)) => {
                let (user, password) = credentials.split_once(':').unwrap_or((credentials, ""));
                (decoded(user)?, decoded(password)?, hosts)
            }
            None => (None, None, authority),
        };
        let url = |host: &str| match host.trim() {
            "" => Err(invalid("a server's name is empty")),
            host => Ok(format!("{}://{host}", transport.scheme())),
        };
        Ok(Self {
            user,
            password,
            urls: hosts.split(',').map(url).collect::<Result<_, _>>()?,
            path,
            transport,
        })
    }
}

/// Percent-decoded text; `None` if it is empty.
fn decoded(text: &str) -> Result<Option<String>, StoreError> {
    let decoded = percent_decode_str(text).decode_utf8();
    let decoded = decoded.map_err(|_| invalid("user or password is not UTF-8"))?;
    Ok((!decoded.is_empty()).then(|| decoded.into_owned()))
}

/// Timeouts are the caller's: there is one deadline for a whole call.
fn no_timeouts() -> AsyncConnectionConfig {
    AsyncConnectionConfig::new()
        .set_connection_timeout(None)
        .set_response_timeout(None)
}

/// Opens connections to one server.
#[derive(Clone)]
pub(super) struct OneServer(Client);

impl Subscribe for OneServer {
    fn open(&self) -> Subscribing<'_> {
        Box::pin(self.0.get_async_pubsub())
    }
}

impl OneServer {
    fn new(url: &str, certificates: Certificates) -> Result<Self, StoreError> {
        let server = url.into_connection_info().map_err(|error| {
            // The error of redis-rs would ask for a feature of its own.
            if cfg!(not(feature = "tls")) && tls::is_for_tls(url) {
                tls::feature_is_missing()
            } else {
                invalid(&error.to_string())
            }
        })?;
        let transport = match server.addr() {
            ConnectionAddr::TcpTls { insecure: true, .. } => return Err(tls::unverified()),
            ConnectionAddr::TcpTls { .. } => Transport::tls(certificates)?,
            _ => Transport::plain(&certificates)?,
        };
        let client = transport.one_server(server);
        client
            .map(Self)
            .map_err(|error| invalid(&error.to_string()))
    }
}

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
#[derive(Clone)]
pub(super) struct Cluster {
    client: Box<ClusterClient>,
    /// Some of its servers, for subscriptions: a message published on one is received on all.
    servers: Vec<Client>,
}

impl Subscribe for Cluster {
    fn open(&self) -> Subscribing<'_> {
        let servers = self.servers.clone().into_iter();
        let opening = servers.map(|server| async move { server.get_async_pubsub().await });
        Box::pin(first(opening))
    }
}

impl Cluster {
    fn new(servers: Servers, deadline: Duration) -> Result<Self, StoreError> {
        if servers.path.is_some_and(|path| !path.is_empty()) {
            return Err(invalid("a cluster has one database, and no path"));
        }
        let mut settings = RedisConnectionInfo::default();
        // A slot that is moving arrives soon. By default the client waits for more than a second before
        // it retries.
        let wait = TRANSIENT_WAIT.as_millis() as u64;
        let client = ClusterClient::builder(servers.urls.clone())
            .connection_timeout(deadline)
            .min_retry_wait(wait / 2)
            .max_retry_wait(wait * 2);
        let mut client = servers.transport.cluster(client);
        if let Some(user) = servers.user {
            settings = settings.set_username(&user);
            client = client.username(user);
        }
        if let Some(password) = servers.password {
            settings = settings.set_password(&password);
            client = client.password(password);
        }
        let server = |url: String| {
            let server = url.into_connection_info()?;
            let server = server.set_redis_settings(settings.clone());
            servers.transport.one_server(server)
        };
        let urls = servers.urls.into_iter().map(server);
        let both = || Ok::<_, RedisError>((client.build()?, urls.collect::<Result<_, _>>()?));
        let (client, servers) = both().map_err(|error| invalid(&error.to_string()))?;
        Ok(Self {
            client: Box::new(client),
            servers,
        })
    }
}

impl ManageConnection for Cluster {
    type Connection = ClusterConnection;
    type Error = RedisError;

    async fn connect(&self) -> Result<Self::Connection, RedisError> {
        self.client.get_async_connection().await
    }

    async fn is_valid(&self, _: &mut Self::Connection) -> Result<(), RedisError> {
        Ok(())
    }

    fn has_broken(&self, _: &mut Self::Connection) -> bool {
        false
    }
}

/// Opens connections to the primary that Sentinel names.
#[derive(Clone)]
pub(super) struct Sentinel {
    sentinels: Vec<ConnectionAddr>,
    name: String,
    database: u32,
    user: Option<String>,
    password: Option<String>,
    transport: Transport,
}

impl Sentinel {
    fn new(servers: Servers) -> Result<Self, StoreError> {
        let path = servers.path.as_deref().unwrap_or_default();
        let (name, database) = path.split_once('/').unwrap_or((path, "0"));
        let name = decoded(name)?
            .ok_or_else(|| invalid("the name of the primary in Sentinel is missing"))?;
        let database = database
            .parse()
            .map_err(|_| invalid("the part behind the name must be the number of a database"))?;
        // The default port of a Sentinel is not that of a Redis.
        let sentinels = servers.urls.into_iter().map(|url| {
            let has_port = url.rsplit_once(':').is_some_and(|(_, port)| {
                !port.is_empty() && port.bytes().all(|byte| byte.is_ascii_digit())
            });
            let url = if has_port {
                url
            } else {
                format!("{url}:26379")
            };
            let sentinel = url.into_connection_info();
            sentinel.map(|sentinel| sentinel.addr().clone())
        });
        let sentinels: Result<_, _> = sentinels.collect();
        let this = Self {
            sentinels: sentinels.map_err(|error: RedisError| invalid(&error.to_string()))?,
            name,
            database,
            user: servers.user,
            password: servers.password,
            transport: servers.transport,
        };
        for sentinel in &this.sentinels {
            let client = this.client(sentinel);
            client.map_err(|error| invalid(&error.to_string()))?;
        }
        Ok(this)
    }

    /// A client for this Sentinel only.
    fn client(&self, sentinel: &ConnectionAddr) -> Result<SentinelClient, RedisError> {
        let (sentinels, primary) = ([sentinel.clone()], SentinelServerType::Master);
        let mut client = SentinelClientBuilder::new(sentinels, &self.name, primary)?
            .set_client_to_redis_db(self.database.into());
        if let Some(user) = &self.user {
            client = client.set_client_to_redis_username(user);
        }
        if let Some(password) = &self.password {
            client = client.set_client_to_redis_password(password);
        }
        self.transport.sentinel(client).build()
    }

    /// The primary according to each of them.
    fn primaries(
        &self,
    ) -> impl Iterator<Item = impl Future<Output = Result<Client, RedisError>> + Send + use<>> {
        self.sentinels.iter().map(|sentinel| {
            let client = self.client(sentinel);
            async move { client?.async_get_client().await }
        })
    }
}

impl Subscribe for Sentinel {
    fn open(&self) -> Subscribing<'_> {
        let opening = self
            .primaries()
            .map(|primary| async move { primary.await?.get_async_pubsub().await });
        Box::pin(first(opening))
    }
}

impl ManageConnection for Sentinel {
    type Connection = MultiplexedConnection;
    type Error = RedisError;

    async fn connect(&self) -> Result<Self::Connection, RedisError> {
        let connecting = self.primaries().map(|primary| async move {
            let (primary, config) = (primary.await?, no_timeouts());
            primary
                .get_multiplexed_async_connection_with_config(&config)
                .await
        });
        first(connecting).await
    }

    async fn is_valid(&self, _: &mut Self::Connection) -> Result<(), RedisError> {
        Ok(())
    }

    fn has_broken(&self, _: &mut Self::Connection) -> bool {
        false
    }
}

/// Runs all of them at once and takes the first that succeeds: one that is silent, as a Sentinel on the
/// primary's host may be when that fails, must not delay the others.
async fn first<T: Send + 'static>(
    tries: impl Iterator<Item = impl Future<Output = Result<T, RedisError>> + Send + 'static>,
) -> Result<T, RedisError> {
    let mut tries: JoinSet<_> = tries.collect();
    let mut error = RedisError::from((ErrorKind::Io, "no server can be reached"));
    while let Some(result) = tries.join_next().await {
        match result {
            Ok(Ok(connection)) => return Ok(connection),
            Ok(Err(failed)) => error = failed,
            Err(_) => {}
        }
    }
    Err(error)
}
