//! The store that a fleet of servers shares.

mod builder;
mod calls;
mod connection;
mod counters;
mod health;
mod keys;
mod reply;
mod scripts;
mod topology;

use std::{
    fmt,
    sync::{Arc, atomic::AtomicBool},
    time::Duration,
};

pub use bb8_redis::bb8;
pub use redis;

use bb8_redis::bb8::{ManageConnection, Pool};
use redis::{RedisError, aio::ConnectionLike};

pub use self::{builder::RedisStoreBuilder, health::Health};
use self::{connection::Link, keys::KeyScheme};
use super::{Key, Slot, Standings, Store, StoreError, StoreErrorKind, StoreFuture};
use crate::{Address, KnownAddresses, Token, clock::Clock};

/// Counters in Redis 6.2 or later, or in Valkey.
///
/// Each decision is one Lua script in one round trip, with the server's own time. Calls share a few
/// connections; each is answered within one deadline, and with an error if Redis does not answer. The
/// first call after a restart of Redis works.
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
/// # Set Redis up so that it does not forget
///
/// With any `maxmemory-policy` but `noeviction`, a full Redis drops counters, and with them blocks:
/// whoever can fill it can lift them. With `noeviction` it refuses to write, and attempts get an error.
///
/// # Redis Cluster
///
/// All counters of an address are in one slot and are decided in one step. A rule that does not count
/// by address, as by account, is in another one. There a cluster is asked for the address first and
/// then, if that admits, for the account; what the one has admitted is taken back if the other refuses.
/// So nothing is admitted beyond a limit, for one more round trip.
///
/// Only primaries are asked, never replicas.
#[derive(Clone)]
pub struct RedisStore {
    link: Arc<dyn Link>,
    shared: Arc<Shared>,
}

struct Shared {
    keys: KeyScheme,
    clock: Option<Box<dyn Clock>>,
    /// Whether a server has refused to decide on counters of different hash tags, as a cluster does.
    is_cluster: AtomicBool,
}

impl RedisStore {
    /// Connects to the Redis at a URL. Fails if it does not answer.
    ///
    /// | | |
    /// |---|---|
    /// | one server | `redis://[user:password@]host[:port][/database]` |
    /// | through a socket | `unix:///path/to/redis.sock` |
    /// | a cluster | `redis+cluster://[user:password@]host[:port],host[:port],…` |
    /// | what Sentinel says | `redis+sentinel://[user:password@]host[:port],host[:port],…/name[/database]` |
    ///
    /// A few servers of a cluster are enough, it tells of the others. User and password are those of
    /// Redis, also where the hosts are Sentinels. For anything that a URL can't say there is
    /// [`build_with_manager`](RedisStoreBuilder::build_with_manager).
    pub async fn connect(url: impl AsRef<str>) -> Result<Self, StoreError> {
        Self::builder().connect(url).await
    }

    /// Takes its connections out of a pool that the app has already.
    ///
    /// A connection is shared with the pool's other users, not taken away from them. Leave the
    /// pool's `test_on_check_out` on, as it is by default: it is paid once for a connection, and
    /// without it a pool hands out connections that are dead.
    pub fn from_pool<M>(pool: Pool<M>) -> Result<Self, StoreError>
    where
        M: ManageConnection<Error = RedisError>,
        M::Connection: ConnectionLike + Clone + Sync,
    {
        Self::builder().build_with_pool(pool)
    }

    /// Begins a store with settings of its own.
    pub fn builder() -> RedisStoreBuilder {
        RedisStoreBuilder::default()
    }

    /// Whether Redis answers and can keep counters, for a readiness probe, and what should be changed
    /// about it. [`connect`](Self::connect) looks too, and logs the warnings (feature `tracing`).
    ///
    /// # Errors
    ///
    /// It does not answer, it is too old, or it is a replica. A Redis that does not let its user ask for
    /// `INFO` is taken to be fit, with a warning.
    pub async fn health(&self) -> Result<Health, StoreError> {
        let deadline = self.link.deadline();
        // To somebody who has not said a password, this is the first to be refused.
        let ping = Arc::clone(&self.link).send(redis::cmd("PING"), None, deadline);
        ping.await.map_err(|failure| failure.error)?;
        let info = Arc::clone(&self.link).send(redis::cmd("INFO"), None, deadline);
        let health = match info.await {
            Ok(info) => Health::read(&info).ok_or_else(|| reply::unexpected("INFO", &info))?,
            Err(failure) if failure.error.kind() == StoreErrorKind::Server => Health {
                warnings: vec![format!("its settings can't be seen: {}", failure.error)],
                faults: Vec::new(),
            },
            Err(failure) => return Err(failure.error),
        };
        match health.faults.is_empty() {
            true => Ok(health),
            false => Err(StoreError::new(
                StoreErrorKind::Config,
                format!("redis can't be used so: {}", health.faults.join("; ")),
            )),
        }
    }

    fn new(link: Arc<dyn Link>, keys: KeyScheme, clock: Option<Box<dyn Clock>>) -> Self {
        let shared = Shared {
            keys,
            clock,
            is_cluster: AtomicBool::new(false),
        };
        Self {
            link,
            shared: Arc::new(shared),
        }
    }
}

impl Store for RedisStore {
    fn reserve(&self, token: Token, lease: Duration, slots: &[Slot<'_>]) -> StoreFuture<Standings> {
        if slots.is_empty() {
            return StoreFuture::now(Ok(Standings::default()));
        }
        let (store, counters) = (self.clone(), self.counters(slots));
        StoreFuture::later(
            async move { store.reserve_or_check(Some(token), lease, counters).await },
        )
    }

    fn check(&self, slots: &[Slot<'_>]) -> StoreFuture<Standings> {
        if slots.is_empty() {
            return StoreFuture::now(Ok(Standings::default()));
        }
        let (store, counters) = (self.clone(), self.counters(slots));
        StoreFuture::later(async move {
            let no_lease = Duration::ZERO;
            store.reserve_or_check(None, no_lease, counters).await
        })
    }

    fn fail(&self, token: Token, slots: &[Slot<'_>]) -> StoreFuture<usize> {
        self.settle(token, true, slots)
    }

    fn cancel(&self, token: Token, slots: &[Slot<'_>]) -> StoreFuture<usize> {
        self.settle(token, false, slots)
    }

    fn cleanup(
        &self,
        token: Option<Token>,
        mains: &[Slot<'_>],
        others: &[Slot<'_>],
    ) -> StoreFuture<()> {
        let counters = self.counters(mains.iter().chain(others));
        if counters.len() == 0 {
            return StoreFuture::now(Ok(()));
        }
        let (store, mains) = (self.clone(), mains.len());
        StoreFuture::later(async move { store.clean_up(token, counters, mains).await })
    }

    fn remember(&self, key: &Key<'_>, address: Address, keep: KnownAddresses) -> StoreFuture<()> {
        self.known_addresses(key, Some(address), keep).done()
    }

    fn known(&self, key: &Key<'_>, keep: KnownAddresses) -> StoreFuture<Vec<Address>> {
        self.known_addresses(key, None, keep)
    }
}

impl fmt::Debug for RedisStore {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("RedisStore").finish_non_exhaustive()
    }
}
