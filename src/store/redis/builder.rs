//! How a Redis store is set up.

use std::{fmt, sync::Arc, time::Duration};

use bb8_redis::bb8::{ManageConnection, Pool};
use redis::{RedisError, aio::ConnectionLike};

use super::{
    RedisStore,
    connection::{Connections, FromPool},
    keys::KeyScheme,
    scripts,
    topology::Topology,
};
use crate::{
    clock::Clock,
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
    clock: Option<Box<dyn Clock>>,
}

impl Default for RedisStoreBuilder {
    fn default() -> Self {
        Self {
            prefix: "login".to_owned(),
            secret: Vec::new(),
            deadline: Duration::from_millis(200),
            connections: 2,
            clock: None,
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
        self.clock = Some(Box::new(clock));
        self
    }

    /// Connects to the Redis at a URL, looks at its [health](RedisStore::health) and hands it the
    /// scripts. Fails if it does not answer or can't be used. See [`RedisStore::connect`] for what URLs
    /// look like.
    pub async fn connect(self, url: impl AsRef<str>) -> Result<RedisStore, StoreError> {
        let store = self.connect_later(url)?;
        for warning in store.health().await?.warnings {
            events::redis_should_change(&warning);
        }
        for script in scripts::all() {
            let deadline = store.link.deadline();
            let loaded = Arc::clone(&store.link).send(script.load(), None, deadline);
            loaded.await.map_err(|failure| failure.error)?;
        }
        Ok(store)
    }

    /// Like [`connect`](Self::connect), but does not wait for the server: an app may start while
    /// Redis is down. Until it is up, every call gives an error.
    pub fn connect_later(self, url: impl AsRef<str>) -> Result<RedisStore, StoreError> {
        match Topology::from_url(url.as_ref(), self.deadline)? {
            Topology::OneServer(manager) => self.build_with_manager(manager),
            Topology::Cluster(manager) => self.build_with_manager(manager),
            Topology::Sentinel(manager) => self.build_with_manager(manager),
        }
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
    /// redis' with its feature `bb8` is one.
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
        if tokio::runtime::Handle::try_current().is_err() {
            return Err(config(
                "a Redis store opens its connections in the background: make it inside a Tokio runtime",
            ));
        }
        let keys = KeyScheme::new(&self.prefix, &self.secret)?;
        let link = Connections::new(manager, self.connections, self.deadline);
        Ok(RedisStore::new(Arc::new(link), keys, self.clock))
    }
}

/// Without the secret.
impl fmt::Debug for RedisStoreBuilder {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("RedisStoreBuilder")
            .field("prefix", &self.prefix)
            .field("deadline", &self.deadline)
            .field("connections", &self.connections)
            .finish_non_exhaustive()
    }
}
