//! Our scripts over a bb8 pool with its defaults: each call has a connection for itself while it waits.
//!
//! It is what our store would be if it used connections as most apps do. It does less besides: no deadline,
//! no breaker, no blocks that are remembered, no digests of users.

use std::{
    fmt,
    hash::{DefaultHasher, Hash, Hasher},
    time::Duration,
};

use bb8_redis::{RedisConnectionManager, bb8::Pool};
use redis::{Cmd, FromRedisValue};
use tokio::runtime::Runtime;
use tower_login_rate_limit::{
    Address, KnownAddresses, LoginLimiter, Outcome, Policy, Token,
    algorithm::{Standing, State},
    store::{
        Key, RedisStore, Settled, Settlement, Slot, Standings, Store, StoreError, StoreErrorKind,
        StoreFuture,
    },
};

use crate::{
    callers::{address, user},
    overheard::Call,
};

#[derive(Clone)]
pub struct HeldPool {
    pool: Pool<RedisConnectionManager>,
    reserve: Call,
    cleanup: Call,
}

impl HeldPool {
    /// For the default policy: it makes the calls that our own store makes for that.
    pub fn connect(runtime: &Runtime, url: &str) -> Self {
        let store = runtime.block_on(RedisStore::connect(url));
        let limiter = LoginLimiter::new(Policy::default(), store.expect("a store"));
        // The first call of each script carries its text.
        runtime.block_on(log_in(&limiter));
        let [reserve, cleanup] = Call::overhear(url, || runtime.block_on(log_in(&limiter)))
            .try_into()
            .expect("a login is two calls");
        let manager = RedisConnectionManager::new(url).expect("a URL");
        let pool = runtime.block_on(Pool::builder().build(manager));
        Self {
            pool: pool.expect("a pool"),
            reserve,
            cleanup,
        }
    }

    fn send<T: FromRedisValue + Send + 'static>(&self, command: Cmd) -> StoreFuture<T> {
        let pool = self.pool.clone();
        StoreFuture::pending(async move {
            let mut connection = pool.get().await.map_err(failed)?;
            command.query_async(&mut *connection).await.map_err(failed)
        })
    }
}

async fn log_in(limiter: &LoginLimiter) {
    let attempt = limiter.reserve((address(0), user(0))).await;
    let attempt = attempt.expect("nobody has been here before");
    let settled = attempt.settle(Outcome::Success).await;
    settled.expect("an answer");
}

impl Store for HeldPool {
    fn reserve(&self, token: Token, _: Duration, slots: &[Slot<'_>]) -> StoreFuture<Standings> {
        let command = self.reserve.command(&names(slots), token.as_bytes());
        let reply = self.send(command);
        let limits = slots.iter().map(|slot| slot.limit.max_attempts());
        let limits: Vec<_> = limits.collect();
        StoreFuture::pending(async move {
            // Everybody is new here, so the script says its token and nothing else.
            let said: Vec<u8> = reply.await?;
            if said != token.as_bytes() {
                return Err(failed("somebody has been here before"));
            }
            let standing = |limit| Standing::new(1, limit, State::Clear);
            Ok(limits.into_iter().map(standing).collect())
        })
    }

    fn settle(
        &self,
        tokens: &[Token],
        settlement: Settlement,
        slots: &[Slot<'_>],
        _: Duration,
    ) -> StoreFuture<Settled> {
        if !matches!(settlement, Settlement::Succeeded { .. }) {
            return StoreFuture::ready(Err(not_measured()));
        }
        let tokens: Vec<_> = tokens.iter().flat_map(Token::as_bytes).copied().collect();
        let reply = self.send::<Vec<Vec<u8>>>(self.cleanup.command(&names(slots), &tokens));
        let counters = slots.len();
        StoreFuture::pending(async move { reply.await.map(|_| Settled::changed(counters)) })
    }

    fn check(&self, _: &[Slot<'_>]) -> StoreFuture<Standings> {
        StoreFuture::ready(Err(not_measured()))
    }

    fn remember(&self, _: &Key<'_>, _: Address, _: KnownAddresses) -> StoreFuture<()> {
        StoreFuture::ready(Err(not_measured()))
    }

    fn known(&self, _: &Key<'_>, _: KnownAddresses) -> StoreFuture<Vec<Address>> {
        StoreFuture::ready(Err(not_measured()))
    }
}

/// Names as long as ours.
fn names(slots: &[Slot<'_>]) -> [String; 2] {
    let name = |slot: &Slot<'_>| {
        let (key, mut hasher) = (&slot.key, DefaultHasher::new());
        key.subject().hash(&mut hasher);
        let address = key.address().expect("both rules count by address");
        match key.subject() {
            [] => format!("held:{{{address}}}:{}", key.kind()),
            _ => format!("held:{{{address}}}:{}:{:032x}", key.kind(), hasher.finish()),
        }
    };
    let names: Vec<_> = slots.iter().map(name).collect();
    names.try_into().expect("the default policy has two rules")
}

fn failed(error: impl fmt::Display) -> StoreError {
    StoreError::new(StoreErrorKind::Connection, error.to_string())
}

fn not_measured() -> StoreError {
    StoreError::new(
        StoreErrorKind::Config,
        "logins go well in what is measured here",
    )
}

impl fmt::Debug for HeldPool {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("HeldPool").finish_non_exhaustive()
    }
}
