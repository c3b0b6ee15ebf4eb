//! The store that a fleet of servers shares.

mod alone;
mod announcements;
mod blocks;
mod breaker;
mod builder;
mod calls;
mod connection;
mod counters;
mod debts;
mod health;
mod keys;
mod outage;
mod recovery;
mod reply;
mod scripts;
mod shared_connection;
mod tls;
mod topology;

use std::{
    fmt,
    sync::{
        Arc,
        atomic::{AtomicBool, Ordering},
    },
    time::Duration,
};

pub use bb8_redis::bb8;
pub use redis;

use bb8_redis::bb8::{ManageConnection, Pool};
use redis::{RedisError, aio::ConnectionLike};

use self::{alone::Alone, blocks::Blocks, connection::Link, debts::Debt, keys::KeyScheme};
pub use self::{
    builder::RedisStoreBuilder,
    health::Health,
    outage::{Outage, Status},
};
use super::{Key, Slot, Standings, Store, StoreError, StoreFuture};
use crate::{Address, KnownAddresses, Token, clock::Clock};

/// Counters in Redis 6.2 or later, or in Valkey.
///
/// Each decision is one Lua script in one round trip, with the server's own time. Calls share a few
/// connections; each is answered within one deadline. The first call after a restart of Redis works.
///
/// While Redis does not answer, each process goes on counting by itself and tells Redis afterwards, unless
/// [another mode](Outage) is chosen. Whoever is blocked is refused from memory; see
/// [`remembered_blocks`](RedisStoreBuilder::remembered_blocks).
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
/// whoever can fill it can lift them. With `noeviction` it refuses to write, and attempts are decided as
/// in any [`Outage`].
///
/// # Redis Cluster
///
/// All counters of an address are in one slot and are decided in one step. A rule that does not count
/// by address, as by account, is in another one. There a cluster is asked for the address first and
/// then, if that admits, for the account; what the one has admitted is taken back if the other refuses.
/// So nothing is admitted beyond a limit, for one more round trip.
///
/// Only primaries are asked, never replicas.
///
/// A store should be used in the Tokio runtime that it was made in: connections end with the runtime in
/// which they were opened.
///
/// Slots may be moved while it is in use. A caller who has no counter yet waits until the slot has moved;
/// if that takes longer than the deadline, it is an error.
#[derive(Clone)]
pub struct RedisStore {
    link: Arc<dyn Link>,
    shared: Arc<Shared>,
}

struct Shared {
    keys: KeyScheme,
    clock: Option<Arc<dyn Clock>>,
    /// Whether a server has refused to decide on counters of different hash tags, as a cluster does.
    is_cluster: AtomicBool,
    blocks: Blocks,
    alone: Alone,
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
    ///
    /// # TLS
    ///
    /// With the feature `tls` there are `rediss://`, `rediss+cluster://` and `rediss+sentinel://`.
    /// Every server is then reached over TLS, the Sentinels too, and must show a certificate for the
    /// name or address that it is reached by: the one in the URL, or the one by which a cluster or
    /// Sentinel names it. That is an address, unless `cluster-announce-hostname` and
    /// `cluster-preferred-endpoint-type`, or Sentinel's `announce-hostnames`, say otherwise.
    ///
    /// The system's authorities are believed, or those of
    /// [`certificates`](RedisStoreBuilder#method.certificates). `#insecure`, by which redis-rs believes
    /// everybody, is refused. redis-rs reads the system's authorities anew for each connection that
    /// it opens, which takes some ten milliseconds of the deadline.
    ///
    /// If the app has not chosen a crypto provider for rustls by then (`install_default`), ring becomes
    /// the one of the process.
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

    /// How it gets on. Asks nobody.
    pub fn status(&self) -> Status {
        let Shared { blocks, alone, .. } = &*self.shared;
        Status {
            is_away: alone.breaker.is_open(),
            owed: alone.debts.len(),
            refused_from_memory: blocks.refused(),
            decided_alone: alone.decided.load(Ordering::Relaxed),
            admitted_uncounted: alone.uncounted.load(Ordering::Relaxed),
            hears_of_unblocks: blocks.are_announced(),
        }
    }

    /// Where it is announced that a block was lifted.
    fn channel(&self) -> &str {
        self.shared.keys.channel()
    }
}

impl Store for RedisStore {
    fn reserve(&self, token: Token, lease: Duration, slots: &[Slot<'_>]) -> StoreFuture<Standings> {
        match slots.is_empty() {
            true => StoreFuture::now(Ok(Standings::default())),
            false => self.decide(token, lease, self.counters(slots)),
        }
    }

    fn check(&self, slots: &[Slot<'_>]) -> StoreFuture<Standings> {
        match slots.is_empty() {
            true => StoreFuture::now(Ok(Standings::default())),
            false => self.stand(self.counters(slots)),
        }
    }

    fn fail(&self, token: Token, slots: &[Slot<'_>]) -> StoreFuture<usize> {
        match slots.is_empty() {
            true => StoreFuture::now(Ok(0)),
            false => {
                let now = self.shared.alone.clock.now();
                self.tell(token, Debt::Fail(token, self.counters(slots), now))
            }
        }
    }

    fn cancel(&self, token: Token, slots: &[Slot<'_>]) -> StoreFuture<usize> {
        match slots.is_empty() {
            true => StoreFuture::now(Ok(0)),
            false => self.tell(token, Debt::cancel(token, self.counters(slots))),
        }
    }

    fn cleanup(
        &self,
        token: Option<Token>,
        mains: &[Slot<'_>],
        others: &[Slot<'_>],
    ) -> StoreFuture<()> {
        let counters = self.counters(mains.iter().chain(others));
        match token {
            _ if counters.len() == 0 => StoreFuture::now(Ok(())),
            Some(token) => {
                let now = self.shared.alone.clock.now();
                let debt = Debt::CleanUp(Some(token), counters, mains.len(), now);
                self.tell(token, debt).done()
            }
            None => self.wipe(counters, mains.len()),
        }
    }

    fn remember(&self, key: &Key<'_>, address: Address, keep: KnownAddresses) -> StoreFuture<()> {
        self.tell_of_address(key, address, keep)
    }

    fn known(&self, key: &Key<'_>, keep: KnownAddresses) -> StoreFuture<Vec<Address>> {
        self.known_from(key, keep)
    }

    fn flush(&self) -> StoreFuture<()> {
        let store = self.clone();
        StoreFuture::later(async move { store.all_told().await })
    }
}

impl fmt::Debug for RedisStore {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("RedisStore").finish_non_exhaustive()
    }
}
