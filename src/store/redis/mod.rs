//! The store that a fleet of servers shares.
//!
//! [`RedisStore`] is three stores around each other, each with one concern: a plain backend that sends
//! scripts and reads replies, a block cache that refuses blocked callers from memory, and a failover
//! that decides while Redis does not answer.

mod backend;
mod builder;
mod cancel;
mod cluster;
mod connection;
mod counters;
#[cfg(feature = "serde")]
mod endpoint;
mod fault;
mod health;
mod invalidation;
mod keys;
mod ledger;
mod pool;
mod reply;
mod scripts;
mod shared_connection;
mod tls;
mod topology;

use std::{fmt, sync::Arc, time::Duration};

use bb8_redis::bb8::{ManageConnection, Pool};
use redis::{RedisError, aio::ConnectionLike};

#[cfg(feature = "serde")]
pub(crate) use self::endpoint::{AnyConnection, Endpoint};
#[cfg(feature = "serde")]
pub(crate) use self::tls::Certificates;
#[cfg(feature = "tls")]
pub use self::tls::install_crypto_provider;
use self::{backend::Backend, ledger::RedisLedger};
pub use self::{builder::RedisStoreBuilder, health::Health};
pub use super::failover::Outage;
use super::{
    Key, Ledger, Settled, Settlement, Slot, Standings, Store, StoreError, StoreFuture, StoreStatus,
    block_cache::BlockCache, delegate_store, failover::Failover,
};
use crate::{Address, KnownAddresses, Token};

/// The stores that a [`RedisStore`] is made of.
type Stack = Failover<BlockCache<Backend>>;

/// Counters in Redis 6.2 or later, or in Valkey.
///
/// Each decision is one Lua script in one round trip, with the server's own time. Calls share a few
/// connections, and each is answered within one deadline. The first call after a restart of Redis works.
///
/// While Redis does not answer, each process goes on counting by itself and replays to Redis afterwards,
/// unless [another mode](Outage) is chosen. Blocked callers are refused from memory; see
/// [`with_block_cache_capacity`](RedisStoreBuilder::with_block_cache_capacity).
///
/// ```no_run
/// # async fn example() -> Result<(), Box<dyn std::error::Error>> {
/// use tower_login_rate_limit::{LoginLimiter, Policy, store::RedisStore};
///
/// let store = RedisStore::connect("redis://127.0.0.1:6379").await?;
/// let limiter = LoginLimiter::new(Policy::default(), store);
/// # Ok(()) }
/// ```
///
/// # Configure Redis not to evict
///
/// With any `maxmemory-policy` but `noeviction`, a full Redis evicts counters, and blocks with them: a
/// client that can fill it can lift blocks. With `noeviction` it refuses writes, and attempts are decided
/// as in any [`Outage`].
///
/// # Redis Cluster
///
/// All counters of an address are in one slot and are decided in one step. A rule that does not count
/// by address, such as one by account, is in another. A cluster is asked for the address first and then,
/// if that admits, for the account; what the first has admitted is taken back if the second refuses. So
/// nothing is admitted beyond a limit, for one more round trip. Only primaries are asked.
///
/// Slots may be moved while the store is in use. A caller without a counter waits until its slot has
/// moved; if that takes longer than the deadline, the call fails.
///
/// # Runtime
///
/// A store belongs to the Tokio runtime in which it was made: its connections end with that runtime.
#[derive(Clone)]
pub struct RedisStore {
    stack: Stack,
}

impl RedisStore {
    /// Connects to the Redis at a URL.
    ///
    /// | | |
    /// |---|---|
    /// | one server | `redis://[user:password@]host[:port][/database]` |
    /// | a Unix socket | `unix:///path/to/redis.sock` |
    /// | a cluster | `redis+cluster://[user:password@]host[:port],host[:port],…` |
    /// | Sentinel | `redis+sentinel://[user:password@]host[:port],host[:port],…/name[/database]` |
    ///
    /// A few servers of a cluster are enough to discover the others. User and password are those of
    /// Redis, also where the hosts are Sentinels. For anything that a URL can't express there is
    /// [`build_with_manager`](RedisStoreBuilder::build_with_manager).
    ///
    /// # TLS
    ///
    /// With the feature `tls` there are `rediss://`, `rediss+cluster://` and `rediss+sentinel://`.
    /// Every server is then reached over TLS, the Sentinels too, and must present a certificate for the
    /// name or address by which it is reached: the one in the URL, or the one by which a cluster or
    /// Sentinel announces it. That is an address, unless `cluster-announce-hostname` and
    /// `cluster-preferred-endpoint-type`, or Sentinel's `announce-hostnames`, are set.
    ///
    /// The system's certificate authorities are trusted, or those of
    /// [`with_root_certificates`](RedisStoreBuilder#method.with_root_certificates). `#insecure`, by which
    /// redis-rs skips verification, is rejected. redis-rs reads the system's authorities for each new
    /// connection, which takes some ten milliseconds of the deadline.
    ///
    /// redis-rs uses the crypto provider that is installed for the process. An app that has installed
    /// none calls `install_crypto_provider` once at its start.
    ///
    /// # Errors
    ///
    /// The URL is invalid, Redis does not answer, or it is [unfit](Self::health) to keep counters.
    pub async fn connect(url: impl AsRef<str>) -> Result<Self, StoreError> {
        Self::builder().connect(url).await
    }

    /// Takes connections from a pool that the app has already.
    ///
    /// A connection is shared with the pool's other users, not taken away from them. Leave the
    /// pool's `test_on_check_out` on, as it is by default: it is paid once per connection, and
    /// without it a pool hands out dead connections.
    ///
    /// # Errors
    ///
    /// There is no Tokio runtime.
    pub fn from_pool<M>(pool: Pool<M>) -> Result<Self, StoreError>
    where
        M: ManageConnection<Error = RedisError>,
        M::Connection: ConnectionLike + Clone + Sync,
    {
        Self::builder().build_with_pool(pool)
    }

    /// Starts a store with settings of its own.
    pub fn builder() -> RedisStoreBuilder {
        RedisStoreBuilder::default()
    }

    /// Current state and counters of this store. Sends no command.
    pub fn status(&self) -> StoreStatus {
        Store::status(&self.stack)
    }

    /// Checks whether Redis answers and can keep counters, for a readiness probe, and what should be
    /// changed about it. [`connect`](Self::connect) does so too, and logs the warnings (feature
    /// `tracing`).
    ///
    /// It runs a script on a counter of its own.
    ///
    /// # Errors
    ///
    /// Redis does not answer, does not write, is too old, or is a replica. A Redis that does not permit
    /// `INFO` is taken to be fit if it writes, with a warning.
    pub async fn health(&self) -> Result<Health, StoreError> {
        self.stack.inner().inner.health().await
    }

    /// Not part of the API, since it has types of redis-rs: for `login-rate-limit doctor`.
    ///
    /// Sends a command over the store's connections, within its deadline, for diagnosis: `INFO`, `ACL WHOAMI`. On
    /// a cluster redis-rs routes it; the reply of a command for all servers is a map by server.
    ///
    /// # Errors
    ///
    /// Redis does not answer, or returns an error.
    #[doc(hidden)]
    pub async fn query(&self, command: redis::Cmd) -> Result<redis::Value, StoreError> {
        self.stack.inner().inner.send(command).await
    }
}

impl Store for RedisStore {
    delegate_store!(self => self.stack);

    fn ledger(&self) -> Option<Arc<dyn Ledger>> {
        Some(Arc::new(RedisLedger(self.stack.clone())))
    }
}

impl fmt::Debug for RedisStore {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("RedisStore")
            .field("status", &self.status())
            .finish_non_exhaustive()
    }
}
