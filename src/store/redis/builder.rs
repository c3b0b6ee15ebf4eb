//! How a Redis store is set up.

use std::{fmt, mem, sync::Arc, time::Duration};

use bb8_redis::bb8::{ManageConnection, Pool};
use redis::{RedisError, aio::ConnectionLike};
use tokio::{sync::Notify, time::timeout_at};

use super::{
    Outage, RedisStore,
    backend::Backend,
    connection::Connections,
    invalidation::{Subscribe, Subscriber},
    keys::KeyScheme,
    pool::FromPool,
    tls::Certificates,
    topology::{Describe, Topology},
};
use crate::{
    clock::{Clock, MonotonicClock},
    logging,
    store::{StoreError, StoreErrorKind, block_cache::BlockCache, failover::Failover},
};

/// Settings of a [`RedisStore`]. See [`RedisStore::builder`].
///
/// ```no_run
/// # async fn example() -> Result<(), Box<dyn std::error::Error>> {
/// use std::time::Duration;
/// use tower_login_rate_limit::store::{RedisStore, redis::Outage};
///
/// let store = RedisStore::builder()
///     .with_prefix("shop:login")
///     .with_secret(std::env::var("LOGIN_KEY_SECRET")?)
///     .with_deadline(Duration::from_millis(100))
///     .with_outage(Outage::Closed)
///     .connect("redis://127.0.0.1:6379")
///     .await?;
/// # Ok(()) }
/// ```
#[must_use = "a builder does nothing until it connects"]
pub struct RedisStoreBuilder {
    prefix: String,
    secret: Vec<u8>,
    deadline: Duration,
    connections: u32,
    clock: Option<Arc<dyn Clock>>,
    outage: Outage,
    fallback_capacity: usize,
    block_cache_capacity: usize,
    certificates: Certificates,
}

impl Default for RedisStoreBuilder {
    fn default() -> Self {
        Self {
            prefix: "login".to_owned(),
            secret: Vec::new(),
            deadline: Duration::from_millis(200),
            connections: 2,
            clock: None,
            outage: Outage::default(),
            fallback_capacity: 100_000,
            block_cache_capacity: 100_000,
            certificates: Certificates::default(),
        }
    }
}

impl RedisStoreBuilder {
    /// Sets what every key starts with; `login` by default. Apps that share a Redis but not their
    /// budgets need different prefixes.
    pub fn with_prefix(mut self, prefix: impl Into<String>) -> Self {
        self.prefix = prefix.into();
        self
    }

    /// Sets a secret of the app, the same on each of its servers, that keys are hashed with. Without
    /// one, a reader of the database can find out by trying names whether a certain user is in it.
    pub fn with_secret(mut self, secret: impl Into<Vec<u8>>) -> Self {
        self.secret = secret.into();
        self
    }

    /// Sets how long a call may take in all, connecting and retries included; 200 milliseconds by
    /// default.
    pub const fn with_deadline(mut self, deadline: Duration) -> Self {
        self.deadline = deadline;
        self
    }

    /// Sets how many connections the calls share; 2 by default.
    pub const fn with_connections(mut self, connections: u32) -> Self {
        self.connections = connections;
        self
    }

    /// Takes the time from this clock in place of the server's: for a Redis that does not permit `TIME`
    /// in scripts, and for tests. The clocks of all app servers must then be right.
    pub fn with_clock(mut self, clock: impl Clock) -> Self {
        self.clock = Some(Arc::new(clock));
        self
    }

    /// Sets what happens to attempts while Redis does not answer; [`Outage::Fallback`] by default.
    pub const fn with_outage(mut self, outage: Outage) -> Self {
        self.outage = outage;
        self
    }

    /// Sets the capacity of what this process keeps for outages: the counters of the fallback, and the
    /// entries of the journal of pending writes; 100,000 of each by default. When either is full,
    /// attempts get an error.
    pub const fn with_fallback_capacity(mut self, entries: usize) -> Self {
        self.fallback_capacity = entries;
        self
    }

    /// Sets how many blocks this process caches, to refuse blocked callers without a command to Redis;
    /// 100,000 by default, and with 0 none.
    ///
    /// An unblock anywhere takes effect everywhere within a second. It is announced through Redis
    /// publish/subscribe, for which the store opens one more connection. A Redis user needs permission
    /// for the channel (`&login:*` with the prefix `login`, and `+publish +subscribe`). Without it, and
    /// with [connections of the app's own](Self::build_with_manager), cached blocks are revalidated
    /// twice a second instead.
    pub const fn with_block_cache_capacity(mut self, blocks: usize) -> Self {
        self.block_cache_capacity = blocks;
        self
    }

    /// For a URL with TLS: trusts the certificate authorities in this PEM, and not the system's. The
    /// same applies to every server that is reached, the Sentinels too.
    ///
    /// ```no_run
    /// # async fn example() -> Result<(), Box<dyn std::error::Error>> {
    /// use tower_login_rate_limit::store::{RedisStore, redis::install_crypto_provider};
    ///
    /// install_crypto_provider();
    /// let store = RedisStore::builder()
    ///     .with_root_certificates(std::fs::read("/etc/redis/ca.pem")?)
    ///     .with_client_certificate(
    ///         std::fs::read("/etc/redis/app.pem")?,
    ///         std::fs::read("/etc/redis/app.key")?,
    ///     )
    ///     .connect("rediss://redis.example.org")
    ///     .await?;
    /// # Ok(()) }
    /// ```
    #[cfg(feature = "tls")]
    pub fn with_root_certificates(mut self, pem: impl Into<Vec<u8>>) -> Self {
        self.certificates.roots = Some(pem.into());
        self
    }

    /// For a URL with TLS: presents this certificate to servers that ask for one. Certificate chain and
    /// private key are in PEM.
    #[cfg(feature = "tls")]
    pub fn with_client_certificate(
        mut self,
        certificate: impl Into<Vec<u8>>,
        key: impl Into<Vec<u8>>,
    ) -> Self {
        self.certificates.client = Some((certificate.into(), key.into()));
        self
    }

    /// Connects to the Redis at a URL and checks its [health](RedisStore::health). See
    /// [`RedisStore::connect`] for the form of URLs.
    ///
    /// # Errors
    ///
    /// A setting or the URL is invalid, Redis does not answer, or it is unfit to keep counters.
    pub async fn connect(self, url: impl AsRef<str>) -> Result<RedisStore, StoreError> {
        let (store, subscribed) = self.open(url.as_ref())?;
        let health = store.health().await?;
        for warning in health.warnings {
            logging::redis_warning(&warning);
        }
        let cache = store.stack.inner();
        if cache.is_enabled() {
            // If it takes longer, it goes on in the background.
            let _ = timeout_at(cache.inner.link.deadline(), subscribed.notified()).await;
        }
        Ok(store)
    }

    /// Like [`connect`](Self::connect), but does not wait for the server: an app may start while Redis
    /// is down. Until it is up, attempts are decided as in any [`Outage`].
    ///
    /// # Errors
    ///
    /// A setting or the URL is invalid.
    pub fn connect_lazy(self, url: impl AsRef<str>) -> Result<RedisStore, StoreError> {
        let (store, _) = self.open(url.as_ref())?;
        Ok(store)
    }

    /// The store, and what is notified when it has subscribed, or can't.
    fn open(mut self, url: &str) -> Result<(RedisStore, Arc<Notify>), StoreError> {
        let certificates = mem::take(&mut self.certificates);
        match Topology::from_url(url, certificates, self.deadline)? {
            Topology::OneServer(manager) => self.build_and_subscribe(manager),
            Topology::Cluster(manager) => self.build_and_subscribe(manager),
            Topology::Sentinel(manager) => self.build_and_subscribe(manager),
        }
    }

    fn build_and_subscribe<M>(self, manager: M) -> Result<(RedisStore, Arc<Notify>), StoreError>
    where
        M: ManageConnection<Error = RedisError> + Subscribe + Describe + Clone,
        M::Connection: ConnectionLike + Clone + Sync,
    {
        let tried = Arc::<Notify>::default();
        let store = self.build(manager.clone(), manager.describe())?;
        let subscriber = Subscriber {
            subscribe: Arc::new(manager),
            store: store.stack.downgrade(),
            tried: Arc::clone(&tried),
        };
        let cache = store.stack.inner();
        if cache.is_enabled() {
            tokio::spawn(subscriber.run());
        } else {
            // Without a cache, only announcements are received.
            let started = cache.inner.subscribe_later();
            tokio::spawn(async move {
                if started.await.is_ok() {
                    subscriber.run().await;
                }
            });
        }
        Ok((store, tried))
    }

    /// Takes connections from a pool that the app has already. See [`RedisStore::from_pool`].
    ///
    /// # Errors
    ///
    /// A setting is invalid, or there is no Tokio runtime.
    pub fn build_with_pool<M>(self, pool: Pool<M>) -> Result<RedisStore, StoreError>
    where
        M: ManageConnection<Error = RedisError>,
        M::Connection: ConnectionLike + Clone + Sync,
    {
        self.build_with_manager(FromPool(pool))
    }

    /// Opens connections with a manager of the app's own, of any kind: a client of redis-rs with its
    /// feature `bb8` is one. A `ClusterClient` should retry sooner than after more than a second, which is
    /// its default: `.min_retry_wait(10).max_retry_wait(40)`.
    ///
    /// # Errors
    ///
    /// A setting is invalid, or there is no Tokio runtime.
    pub fn build_with_manager<M>(self, manager: M) -> Result<RedisStore, StoreError>
    where
        M: ManageConnection<Error = RedisError>,
        M::Connection: ConnectionLike + Clone + Sync,
    {
        self.build(manager, "Redis".to_owned())
    }

    /// `server` names in errors what the manager connects to.
    fn build<M>(self, manager: M, server: String) -> Result<RedisStore, StoreError>
    where
        M: ManageConnection<Error = RedisError>,
        M::Connection: ConnectionLike + Clone + Sync,
    {
        let config = |message: &'static str| StoreError::new(StoreErrorKind::Config, message);
        if !(1..=64).contains(&self.connections) {
            return Err(config("a Redis store needs 1 to 64 connections"));
        }
        if self.deadline.is_zero() || self.deadline > Duration::from_secs(3600) {
            return Err(config(
                "the deadline must be more than zero and at most an hour",
            ));
        }
        if self.certificates.are_given() {
            return Err(config(
                "certificates go with a URL; a manager or a pool opens its connections with its own",
            ));
        }
        if tokio::runtime::Handle::try_current().is_err() {
            return Err(config(
                "a Redis store opens its connections in the background: build it inside a Tokio runtime",
            ));
        }
        let link = Connections::new(manager, server, self.connections, self.deadline);
        let keys = KeyScheme::new(&self.prefix, &self.secret)?;
        // What this process keeps goes by the same clock, or by one that can't be set.
        let clock = self.clock.clone();
        let clock = clock.unwrap_or_else(|| Arc::new(MonotonicClock::new()));

        let backend = Backend::new(Arc::new(link), keys, self.clock);
        let cache = BlockCache::new(backend, self.block_cache_capacity, Arc::clone(&clock));
        let capacity = self.fallback_capacity;
        let stack = Failover::new(cache, self.outage, self.deadline, capacity, clock);
        stack.inner().inner.set_cancel_later(stack.downgrade());
        Ok(RedisStore { stack })
    }
}

/// Without the secret.
impl fmt::Debug for RedisStoreBuilder {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("RedisStoreBuilder")
            .field("prefix", &self.prefix)
            .field("deadline", &self.deadline)
            .field("connections", &self.connections)
            .field("outage", &self.outage)
            .finish_non_exhaustive()
    }
}
