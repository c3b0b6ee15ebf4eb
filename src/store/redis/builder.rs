//! How a Redis store is set up.

use std::{
    fmt, mem,
    sync::{Arc, atomic::AtomicBool},
    time::Duration,
};

use bb8_redis::bb8::{ManageConnection, Pool};
use redis::{RedisError, aio::ConnectionLike};
use tokio::{sync::Notify, time::timeout_at};

use super::{
    Outage, RedisStore, Shared,
    alone::Alone,
    announcements::{Announcers, Listener},
    blocks::Blocks,
    connection::{Connections, FromPool},
    keys::KeyScheme,
    tls::Certificates,
    topology::Topology,
};
use crate::{
    clock::{Clock, MonotonicClock},
    events,
    store::{StoreError, StoreErrorKind},
};

/// A [`RedisStore`] with settings of its own. See [`RedisStore::builder`].
///
/// ```no_run
/// # async fn example() -> Result<(), Box<dyn std::error::Error>> {
/// use std::time::Duration;
/// use tower_login_rate_limit::store::RedisStore;
///
/// let store = RedisStore::builder()
///     .prefix("shop:login")
///     .secret(std::env::var("LOGIN_KEY_SECRET")?)
///     .deadline(Duration::from_millis(100))
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
    remembered_blocks: usize,
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
            remembered_blocks: 100_000,
            certificates: Certificates::default(),
        }
    }
}

impl RedisStoreBuilder {
    /// What every key begins with, `login` unless set. Apps that share a Redis and are not to share
    /// budgets need different ones.
    pub fn prefix(mut self, prefix: impl Into<String>) -> Self {
        self.prefix = prefix.into();
        self
    }

    /// Something that only the app's servers know, the same on each of them. Without it somebody who
    /// can read the database can find out whether a certain user is in it, by trying names.
    pub fn secret(mut self, secret: impl Into<Vec<u8>>) -> Self {
        self.secret = secret.into();
        self
    }

    /// How long a call may take in all, connecting and repeating included. 200 milliseconds unless
    /// set.
    pub const fn deadline(mut self, deadline: Duration) -> Self {
        self.deadline = deadline;
        self
    }

    /// How many connections the calls share, 2 unless set.
    pub const fn connections(mut self, connections: u32) -> Self {
        self.connections = connections;
        self
    }

    /// Takes the time from this clock in place of the server's: for a Redis that does not let scripts
    /// ask for it, and for tests. All servers' clocks must then be right.
    pub fn clock(mut self, clock: impl Clock) -> Self {
        self.clock = Some(Arc::new(clock));
        self
    }

    /// What becomes of attempts while Redis does not answer: [`Outage::Fallback`] unless set.
    pub const fn outage(mut self, outage: Outage) -> Self {
        self.outage = outage;
        self
    }

    /// How much this process keeps to get on without Redis: so many counters at most, and so many
    /// things that Redis has still to be told. 100,000 of each unless set. When there is no room for
    /// more, attempts get an error.
    pub const fn fallback_capacity(mut self, entries: usize) -> Self {
        self.fallback_capacity = entries;
        self
    }

    /// How many blocks this process remembers, to refuse whoever is blocked without asking Redis:
    /// 100,000 unless set, and with 0 none.
    ///
    /// An unblock anywhere is honoured everywhere within a second. It is announced through Redis'
    /// publish and subscribe, for which the store opens one connection more. A Redis user needs to be
    /// allowed the channel (`&login:*` with the prefix `login`, and `+publish +subscribe`). Where it
    /// is not, and with [connections of the app's own](Self::build_with_manager), Redis is asked
    /// again twice a second in place of that.
    pub const fn remembered_blocks(mut self, blocks: usize) -> Self {
        self.remembered_blocks = blocks;
        self
    }

    /// For a URL with TLS: the authority that has signed the server's certificate, if it is none that
    /// the system knows, and the certificate that the app shows, if the server asks for one. All are
    /// in PEM.
    ///
    /// With a `root_cert` only the authorities in it are believed, and not the system's. The same goes
    /// for every server that is reached, the Sentinels too.
    ///
    /// ```no_run
    /// # async fn example() -> Result<(), Box<dyn std::error::Error>> {
    /// use tower_login_rate_limit::store::{
    ///     RedisStore,
    ///     redis::redis::{ClientTlsConfig, TlsCertificates},
    /// };
    ///
    /// let certificates = TlsCertificates {
    ///     root_cert: Some(std::fs::read("/etc/redis/ca.pem")?),
    ///     client_tls: Some(ClientTlsConfig {
    ///         client_cert: std::fs::read("/etc/redis/app.pem")?,
    ///         client_key: std::fs::read("/etc/redis/app.key")?,
    ///     }),
    /// };
    /// let store = RedisStore::builder()
    ///     .certificates(certificates)
    ///     .connect("rediss://redis.example.org")
    ///     .await?;
    /// # Ok(()) }
    /// ```
    #[cfg(feature = "tls")]
    pub fn certificates(mut self, certificates: redis::TlsCertificates) -> Self {
        self.certificates = Certificates(Some(certificates));
        self
    }

    /// Connects to the Redis at a URL, looks at its [health](RedisStore::health) and hands it the
    /// scripts. Fails if it does not answer or can't be used. See [`RedisStore::connect`] for what URLs
    /// look like.
    pub async fn connect(self, url: impl AsRef<str>) -> Result<RedisStore, StoreError> {
        let (store, heard) = self.open(url.as_ref())?;
        // What is wrong with it is said best by looking.
        let health = store.health().await?;
        for warning in health.warnings {
            events::redis_should_change(&warning);
        }
        if store.shared.blocks.are_kept() {
            // If it takes longer, it is waited for by nobody.
            let _ = timeout_at(store.link.deadline(), heard.notified()).await;
        }
        Ok(store)
    }

    /// Like [`connect`](Self::connect), but does not wait for the server: an app may start while
    /// Redis is down. Until it is up, attempts are decided as in any [`Outage`].
    pub fn connect_later(self, url: impl AsRef<str>) -> Result<RedisStore, StoreError> {
        let (store, _) = self.open(url.as_ref())?;
        Ok(store)
    }

    /// The store, and who is told when announcements are heard, or can't be.
    fn open(mut self, url: &str) -> Result<(RedisStore, Arc<Notify>), StoreError> {
        let certificates = mem::take(&mut self.certificates);
        match Topology::from_url(url, certificates, self.deadline)? {
            Topology::OneServer(manager) => self.build_and_listen(manager),
            Topology::Cluster(manager) => self.build_and_listen(manager),
            Topology::Sentinel(manager) => self.build_and_listen(manager),
        }
    }

    fn build_and_listen<M>(self, manager: M) -> Result<(RedisStore, Arc<Notify>), StoreError>
    where
        M: ManageConnection<Error = RedisError> + Announcers + Clone,
        M::Connection: ConnectionLike + Clone + Sync,
    {
        let tried = Arc::<Notify>::default();
        let store = self.build_with_manager(manager.clone())?;
        if store.shared.blocks.are_kept() {
            let listener = Listener {
                announcers: Arc::new(manager),
                link: Arc::clone(&store.link),
                shared: Arc::downgrade(&store.shared),
                tried: Arc::clone(&tried),
            };
            tokio::spawn(listener.listen());
        }
        Ok((store, tried))
    }

    /// Takes its connections out of a pool that the app has already. See [`RedisStore::from_pool`].
    pub fn build_with_pool<M>(self, pool: Pool<M>) -> Result<RedisStore, StoreError>
    where
        M: ManageConnection<Error = RedisError>,
        M::Connection: ConnectionLike + Clone + Sync,
    {
        self.build_with_manager(FromPool(pool))
    }

    /// Opens connections with a manager of the app's own, of whatever kind they are: a client of
    /// redis' with its feature `bb8` is one. A `ClusterClient` should be told to ask again sooner
    /// than it does by default, after more than a second: `.min_retry_wait(10).max_retry_wait(40)`.
    pub fn build_with_manager<M>(self, manager: M) -> Result<RedisStore, StoreError>
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
                "a deadline is more than zero, or Redis has no time to answer, and an hour at most",
            ));
        }
        if self.certificates.are_given() {
            return Err(config(
                "certificates go with a URL; a manager or a pool opens its connections with its own",
            ));
        }
        if tokio::runtime::Handle::try_current().is_err() {
            return Err(config(
                "a Redis store opens its connections in the background: make it inside a Tokio runtime",
            ));
        }
        let keys = KeyScheme::new(&self.prefix, &self.secret)?;
        // What this process keeps by itself goes by the same clock, or by one that nobody can set.
        let clock = self.clock.clone();
        let clock = clock.unwrap_or_else(|| Arc::new(MonotonicClock::new()));
        let shared = Shared {
            keys,
            clock: self.clock,
            is_cluster: AtomicBool::new(false),
            blocks: Blocks::new(self.remembered_blocks, Arc::clone(&clock)),
            alone: Alone::new(self.outage, self.deadline, self.fallback_capacity, clock),
        };
        Ok(RedisStore {
            link: Arc::new(Connections::new(manager, self.connections, self.deadline)),
            shared: Arc::new(shared),
        })
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
