//! The store that a fleet of servers shares.

mod connection;
mod keys;
mod reply;
mod scripts;

use std::{fmt, sync::Arc, time::Duration};

pub use bb8_redis::bb8;
pub use redis;

use bb8_redis::bb8::{ManageConnection, Pool};
use redis::{Client, Cmd, IntoConnectionInfo, RedisError, Value, aio::ConnectionLike};

use self::{
    connection::{Connections, Failure, FromPool, Link, OneServer},
    keys::KeyScheme,
    scripts::{CLEANUP, KNOWN_ADDRESSES, RESERVE, SETTLE, Script, or_empty},
};
use super::{Key, Slot, Standings, Store, StoreError, StoreErrorKind, StoreFuture};
use crate::{
    Address, KnownAddresses, Limit, Token,
    algorithm::{Block, Millis},
    clock::{Clock, to_millis},
};

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
/// All counters of an address are in one slot. A rule that does not count by address is in another
/// one, and a cluster refuses to decide on both together.
#[derive(Clone)]
pub struct RedisStore {
    link: Arc<dyn Link>,
    shared: Arc<Shared>,
}

struct Shared {
    keys: KeyScheme,
    clock: Option<Box<dyn Clock>>,
}

impl RedisStore {
    /// Connects to the server at a URL, `redis://[user:password@]host[:port][/db]` or
    /// `unix:///path/to/redis.sock`. Fails if the server does not answer.
    pub async fn connect(url: impl IntoConnectionInfo) -> Result<Self, StoreError> {
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

    fn run<T: Send + 'static>(
        &self,
        command: Cmd,
        script: &'static Script,
        read: impl FnOnce(&Value) -> Result<T, StoreError> + Send + 'static,
    ) -> StoreFuture<T> {
        let answer = Arc::clone(&self.link).send(command, Some(script));
        StoreFuture::later(async move {
            let value = answer.await.map_err(|failure| failure.error)?;
            read(&value)
        })
    }

    fn keys<'k>(&self, keys: impl IntoIterator<Item = &'k Key<'k>>) -> Vec<Vec<u8>> {
        let write = |key| self.shared.keys.write(key);
        keys.into_iter().map(write).collect()
    }

    /// The time, if it is not the server's.
    fn now(&self) -> Option<Millis> {
        self.shared.clock.as_ref().map(|clock| clock.now())
    }

    fn reserve_or_check(
        &self,
        token: Option<Token>,
        lease: Duration,
        slots: &[Slot<'_>],
    ) -> StoreFuture<Standings> {
        if slots.is_empty() {
            return StoreFuture::now(Ok(Standings::default()));
        }
        let lease = to_millis(lease);
        let keys = self.keys(slots.iter().map(|slot| &slot.key));
        let limits: Vec<_> = slots.iter().map(|slot| slot.limit).collect();
        let mut command = RESERVE.call(&keys);
        or_empty(&mut command, token.as_ref().map(Token::as_bytes));
        command.arg(lease);
        or_empty(&mut command, self.now());
        for limit in &limits {
            write_limit(&mut command, limit);
            let Limit::SlidingWindow(limit) = limit;
            for may_block in [false, true] {
                let keep = limit.retention(may_block);
                command.arg(keep.map_or(0, |keep| keep.saturating_add(lease)));
            }
        }
        let answer = Arc::clone(&self.link).send(command, Some(&RESERVE));
        let now = self.now();
        StoreFuture::later(async move {
            match answer.await {
                Ok(value) => reply::standings(&value, token, &limits),
                Err(Failure {
                    error,
                    afterthought,
                }) => {
                    // Nobody will check a password for it, so it must not become a failure.
                    if let (Some(token), Some(send)) = (token, afterthought) {
                        send(settle(token, "cancel", now, &keys, &limits), &SETTLE);
                    }
                    Err(error)
                }
            }
        })
    }

    fn settle(&self, token: Token, verb: &str, slots: &[Slot<'_>]) -> StoreFuture<usize> {
        if slots.is_empty() {
            return StoreFuture::now(Ok(0));
        }
        let keys = self.keys(slots.iter().map(|slot| &slot.key));
        let limits: Vec<_> = slots.iter().map(|slot| slot.limit).collect();
        let command = settle(token, verb, self.now(), &keys, &limits);
        self.run(command, &SETTLE, |value| reply::count("settle.lua", value))
    }

    fn known_addresses(
        &self,
        key: &Key<'_>,
        address: Option<Address>,
        keep: KnownAddresses,
    ) -> StoreFuture<Vec<Address>> {
        let mut command = KNOWN_ADDRESSES.call(&self.keys([key]));
        or_empty(&mut command, address.map(|address| address.to_string()));
        command.arg(keep.newest()).arg(to_millis(keep.kept_for()));
        or_empty(&mut command, self.now());
        self.run(command, &KNOWN_ADDRESSES, reply::addresses)
    }
}

/// A call of `settle.lua`.
fn settle(
    token: Token,
    verb: &str,
    now: Option<Millis>,
    keys: &[Vec<u8>],
    limits: &[Limit],
) -> Cmd {
    let mut command = SETTLE.call(keys);
    command.arg(token.as_bytes()).arg(verb);
    or_empty(&mut command, now);
    for limit in limits {
        write_limit(&mut command, limit);
    }
    command
}

/// Limit, window and block, as every script reads them.
fn write_limit(command: &mut Cmd, limit: &Limit) {
    let Limit::SlidingWindow(limit) = limit;
    command.arg(limit.limit());
    command.arg(limit.window().unwrap_or(0));
    match limit.block() {
        Block::Sliding => command.arg(-1),
        Block::For(block) => command.arg(block),
        Block::Forever => command.arg(0),
    };
}

impl Store for RedisStore {
    fn reserve(&self, token: Token, lease: Duration, slots: &[Slot<'_>]) -> StoreFuture<Standings> {
        self.reserve_or_check(Some(token), lease, slots)
    }

    fn check(&self, slots: &[Slot<'_>]) -> StoreFuture<Standings> {
        self.reserve_or_check(None, Duration::ZERO, slots)
    }

    fn fail(&self, token: Token, slots: &[Slot<'_>]) -> StoreFuture<usize> {
        self.settle(token, "fail", slots)
    }

    fn cancel(&self, token: Token, slots: &[Slot<'_>]) -> StoreFuture<usize> {
        self.settle(token, "cancel", slots)
    }

    fn cleanup(
        &self,
        token: Option<Token>,
        main: &Slot<'_>,
        others: &[Slot<'_>],
    ) -> StoreFuture<usize> {
        let slots = || std::iter::once(main).chain(others);
        let mut command = CLEANUP.call(&self.keys(slots().map(|slot| &slot.key)));
        or_empty(&mut command, token.as_ref().map(Token::as_bytes));
        or_empty(&mut command, self.now());
        for slot in slots() {
            write_limit(&mut command, &slot.limit);
        }
        self.run(command, &CLEANUP, |value| {
            reply::count("cleanup.lua", value)
        })
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

    /// Connects to the server at a URL and hands it the scripts. Fails if it does not answer.
    pub async fn connect(self, url: impl IntoConnectionInfo) -> Result<RedisStore, StoreError> {
        let store = self.connect_later(url)?;
        for script in scripts::all() {
            let loaded = Arc::clone(&store.link).send(script.load(), None).await;
            loaded.map_err(|failure| failure.error)?;
        }
        Ok(store)
    }

    /// Like [`connect`](Self::connect), but does not wait for the server: an app may start while
    /// Redis is down. Until it is up, every call gives an error.
    pub fn connect_later(self, url: impl IntoConnectionInfo) -> Result<RedisStore, StoreError> {
        let client = Client::open(url).map_err(|error| {
            StoreError::new(
                StoreErrorKind::Config,
                format!(
                    "not the address of a Redis ({error}): write it like redis://127.0.0.1:6379"
                ),
            )
        })?;
        self.build_with_manager(OneServer(client))
    }

    /// Takes its connections out of a pool that the app has already. See [`RedisStore::from_pool`].
    pub fn build_with_pool<M>(self, pool: Pool<M>) -> Result<RedisStore, StoreError>
    where
        M: ManageConnection<Error = RedisError>,
        M::Connection: ConnectionLike + Clone + Sync,
    {
        self.build_with_manager(FromPool(pool))
    }

    /// Opens connections with a manager of the app's own, of whatever kind they are.
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
        Ok(RedisStore {
            link: Arc::new(link),
            shared: Arc::new(Shared {
                keys,
                clock: self.clock,
            }),
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
            .finish_non_exhaustive()
    }
}
