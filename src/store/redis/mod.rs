//! The store that a fleet of servers shares.

mod builder;
mod connection;
mod counters;
mod health;
mod keys;
mod reply;
mod scripts;
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
use redis::{Cmd, RedisError, Value, aio::ConnectionLike};
use tokio::time::{Instant, sleep, timeout_at};

pub use self::{builder::RedisStoreBuilder, health::Health};
use self::{
    connection::{Failure, Link, PATIENCE, RETRY},
    counters::{Counters, Group, Settling},
    keys::KeyScheme,
    scripts::{CLEANUP, KNOWN_ADDRESSES, RESERVE, SETTLE, Script, or_empty},
};
use super::{Key, Slot, Standings, Store, StoreError, StoreErrorKind, StoreFuture};
use crate::{
    Address, KnownAddresses, Token,
    algorithm::{Millis, Standing, State},
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

    /// The time, if it is not the server's.
    fn now(&self) -> Option<Millis> {
        self.shared.clock.as_ref().map(|clock| clock.now())
    }

    fn counters<'s>(&self, slots: impl IntoIterator<Item = &'s Slot<'s>>) -> Counters {
        Counters::new(slots, &self.shared.keys)
    }

    async fn send(
        &self,
        command: Cmd,
        script: &'static Script,
        deadline: Instant,
    ) -> Result<Value, Failure> {
        let link = Arc::clone(&self.link);
        link.send(command, Some(script), deadline).await
    }

    /// Does something with counters together; if a cluster keeps them apart, does it `apart`.
    async fn together_or<T>(
        &self,
        counters: Counters,
        together: impl AsyncFnOnce(&Counters) -> Result<T, Failure>,
        apart: impl AsyncFnOnce(Vec<Group>) -> Result<T, StoreError>,
    ) -> Result<T, StoreError> {
        if counters.have_one_tag() || !self.shared.is_cluster.load(Ordering::Relaxed) {
            match together(&counters).await {
                Err(failure) if failure.is_cross_slot && !counters.have_one_tag() => {
                    self.shared.is_cluster.store(true, Ordering::Relaxed);
                }
                answer => return answer.map_err(|failure| failure.error),
            }
        }
        apart(counters.apart()).await
    }

    async fn reserve_or_check(
        &self,
        token: Option<Token>,
        lease: Duration,
        counters: Counters,
    ) -> Result<Standings, StoreError> {
        let deadline = self.link.deadline();
        self.together_or(
            counters,
            async |counters| self.ask(token, lease, counters, deadline).await,
            async |groups| self.ask_apart(token, lease, groups, deadline).await,
        )
        .await
    }

    /// Asks for counters that are kept together.
    async fn ask(
        &self,
        token: Option<Token>,
        lease: Duration,
        counters: &Counters,
        deadline: Instant,
    ) -> Result<Standings, Failure> {
        let command = counters.reserve(token, lease, self.now());
        // After an error nobody will check a password, so the attempt must not become a failure.
        let cancel = || Some(self.cancel(token?, counters));
        match self.send(command, &RESERVE, deadline).await {
            Ok(value) => {
                let standings = reply::standings(&value, token, counters.len());
                if standings.is_err() {
                    drop(self.say_until_heard(cancel().into_iter().collect()));
                }
                Ok(standings?)
            }
            Err(mut failure) => {
                if let Some(cancel) = cancel().filter(|_| failure.was_sent) {
                    let (store, behind) = (self.clone(), failure.afterthought.take());
                    tokio::spawn(async move {
                        let heard = match behind {
                            Some(send) => send(cancel.clone(), &SETTLE).await,
                            None => false,
                        };
                        if !heard {
                            let _ = store.say_until_heard(vec![cancel]).await;
                        }
                    });
                }
                Err(failure)
            }
        }
    }

    fn cancel(&self, token: Token, counters: &Counters) -> Cmd {
        counters.settle(Settling::Cancel(&[token]), self.now())
    }

    /// Asks for one group after the other. One that comes later is only asked to admit if those
    /// before have admitted: whoever is refused by address can't take places away from an account,
    /// not even for a moment.
    async fn ask_apart(
        &self,
        token: Option<Token>,
        lease: Duration,
        groups: Vec<Group>,
        deadline: Instant,
    ) -> Result<Standings, StoreError> {
        let slots = groups.iter().map(|group| group.slots.len()).sum();
        let mut standings = Standings::from_iter(vec![Standing::new(0, 0, State::Clear); slots]);
        let mut asked = token;
        // What takes the attempt out of those that have admitted it, and where those stand.
        let (mut take_back, mut admitted) = (Vec::new(), Vec::new());
        for group in groups {
            let answer = self.ask(asked, lease, &group.counters, deadline).await;
            let answer = answer.map_err(|failure| {
                drop(self.say_until_heard(take_back.clone()));
                failure.error
            })?;
            group.place(&answer, &mut standings);
            match asked {
                Some(token) if answer.admitted() => {
                    take_back.push(self.cancel(token, &group.counters));
                    admitted.extend(group.slots);
                }
                // From here on only to say how things stand.
                _ => asked = None,
            }
        }
        if token != asked && !take_back.is_empty() {
            for i in admitted {
                take_one_back(&mut standings.as_mut()[i]);
            }
            // It goes on if there is no time to wait for it.
            let _ = timeout_at(deadline, self.say_until_heard(take_back)).await;
        }
        Ok(standings)
    }

    /// Settles attempts that had been admitted and were not to be, also if nobody waits for that. It is
    /// said until it is heard, or they would become failures when their leases end: an error must not
    /// lead to a block.
    fn say_until_heard(&self, settling: Vec<Cmd>) -> tokio::task::JoinHandle<()> {
        let store = self.clone();
        tokio::spawn(async move {
            let until = Instant::now() + PATIENCE;
            let mut pause = RETRY;
            for command in settling {
                let say = || store.send(command.clone(), &SETTLE, store.link.deadline());
                while say().await.is_err() && Instant::now() < until {
                    sleep(pause).await;
                    pause = (pause * 2).min(RETRY * 50);
                }
            }
        })
    }

    fn settle(&self, token: Token, fail: bool, slots: &[Slot<'_>]) -> StoreFuture<usize> {
        if slots.is_empty() {
            return StoreFuture::now(Ok(0));
        }
        let (store, counters) = (self.clone(), self.counters(slots));
        StoreFuture::later(async move {
            let deadline = store.link.deadline();
            let settle = async |counters: &Counters| {
                let tokens = &[token][..];
                let settling = match fail {
                    true => Settling::Fail(token),
                    false => Settling::Cancel(tokens),
                };
                let command = counters.settle(settling, store.now());
                let value = store.send(command, &SETTLE, deadline).await?;
                Ok(reply::count("settle.lua", &value)?)
            };
            let apart = async |groups: Vec<Group>| {
                let mut settled = Ok(0);
                for group in groups {
                    let counters = settle(&group.counters).await;
                    let counters = counters.map_err(|failure: Failure| failure.error);
                    settled = settled.and_then(|sum| Ok(sum + counters?));
                }
                settled
            };
            store.together_or(counters, settle, apart).await
        })
    }

    /// Cleans up, the first so many counters being the main ones.
    async fn clean_up(
        &self,
        token: Option<Token>,
        counters: Counters,
        mains: usize,
    ) -> Result<(), StoreError> {
        let deadline = self.link.deadline();
        let clean_up = async |counters: &Counters, mains: usize| {
            let command = counters.clean_up(token, mains, self.now());
            let value = self.send(command, &CLEANUP, deadline).await?;
            Ok(reply::tokens("cleanup.lua", &value)?)
        };
        let apart = async |groups: Vec<Group>| {
            // Main counters come first in their groups as well.
            let mains_in = |group: &Group| group.slots.iter().filter(|slot| **slot < mains).count();
            let mut tokens: Vec<_> = token.into_iter().collect();
            for group in groups.iter().filter(|group| mains_in(group) > 0) {
                let left = clean_up(&group.counters, mains_in(group)).await;
                tokens.extend(left.map_err(|failure: Failure| failure.error)?);
            }
            let mains = groups.iter().filter(|group| mains_in(group) > 0).count();
            for group in &groups {
                // What left the only one with main counters has left it altogether.
                if mains == 1 && mains_in(group) > 0 {
                    continue;
                }
                let cancel = Settling::Cancel(&tokens);
                let command = group.counters.settle(cancel, self.now());
                let value = self.send(command, &SETTLE, deadline).await;
                reply::count("settle.lua", &value.map_err(|failure| failure.error)?)?;
            }
            Ok(tokens)
        };
        let together = async |counters: &Counters| clean_up(counters, mains).await;
        self.together_or(counters, together, apart).await.map(drop)
    }

    fn known_addresses(
        &self,
        key: &Key<'_>,
        address: Option<Address>,
        keep: KnownAddresses,
    ) -> StoreFuture<Vec<Address>> {
        let mut command = KNOWN_ADDRESSES.call(&[self.shared.keys.write(key)]);
        or_empty(&mut command, address.map(|address| address.to_string()));
        command.arg(keep.newest()).arg(to_millis(keep.kept_for()));
        or_empty(&mut command, self.now());
        let store = self.clone();
        StoreFuture::later(async move {
            let deadline = store.link.deadline();
            let answer = store.send(command, &KNOWN_ADDRESSES, deadline).await;
            reply::addresses(&answer.map_err(|failure| failure.error)?)
        })
    }
}

/// How a counter stood before an attempt that was admitted and is taken back.
fn take_one_back(standing: &mut Standing) {
    if standing.state == State::Clear {
        standing.usage = standing.usage.saturating_sub(1);
        standing.thousandths = standing.thousandths.saturating_sub(1000);
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
