//! The same counters without login words.

use std::{borrow::Cow, sync::Arc, time::Duration};

use crate::{
    Limit, PolicyError, Refusal, ReserveError, Token,
    algorithm::Standing,
    policy::check_name,
    store::{Key, Slot, Standings, Store, StoreError, StoreErrorKind, StoreFuture},
};

/// Limits anything by a key: mails to reset a password, codes sent by text message.
///
/// What is reserved counts at once, and is given back if the work turns out not to count. Keys are
/// taken as they are: give a name its one spelling first, with [`normalise`](crate::normalise) say.
///
/// Any [`Limit`] will do. With a token bucket or a sliding-window counter, what can be given back is
/// one of the newest 8 of a key.
///
/// ```
/// use tower_login_rate_limit::{KeyLimiter, Limit, Period, store::MemoryStore};
///
/// # async fn example() -> Result<(), Box<dyn std::error::Error>> {
/// let three_an_hour = Limit::attempts(3).within(Period::hours(1)).without_block();
/// let mails = KeyLimiter::new("reset-mail", three_an_hour, MemoryStore::new())?;
///
/// let token = mails.reserve("alice@example.org").await?;
/// assert_eq!(mails.check("alice@example.org").await?.remaining(), 2);
/// mails.cancel("alice@example.org", token).await?; // no mail was sent after all
/// assert_eq!(mails.check("alice@example.org").await?.remaining(), 3);
/// # Ok(()) }
/// # tokio::runtime::Runtime::new()?.block_on(example())?;
/// # Ok::<(), Box<dyn std::error::Error>>(())
/// ```
#[derive(Clone, Debug)]
pub struct KeyLimiter {
    name: Arc<str>,
    /// No rule can have this name.
    kind: Arc<str>,
    limit: Arc<Limit>,
    store: Arc<dyn Store>,
}

impl KeyLimiter {
    /// A limiter of this name. Limiters with different names that share a store count apart, and so
    /// do the rules of a [`LoginLimiter`](crate::LoginLimiter).
    pub fn new<L>(name: &str, limit: L, store: impl Store) -> Result<Self, PolicyError>
    where
        L: TryInto<Limit>,
        PolicyError: From<L::Error>,
    {
        check_name(name)?;
        let limit = limit
            .try_into()
            .map_err(|error| PolicyError::from(error).within(name))?;
        Ok(Self {
            name: name.into(),
            kind: format!("key:{name}").into(),
            limit: Arc::new(limit),
            store: Arc::new(store),
        })
    }

    /// Counts one for this key, if there is room.
    pub async fn reserve(&self, key: impl AsRef<[u8]>) -> Result<Token, ReserveError> {
        let token = Token::new();
        let slot = self.slot(key.as_ref());
        let standing = only(self.store.reserve(token, Duration::ZERO, &[slot])).await?;
        match Refusal::new(Arc::clone(&self.name), standing) {
            Some(refusal) => Err(ReserveError::Refused(refusal)),
            None => Ok(token),
        }
    }

    /// How this key stands. Writes nothing.
    pub async fn check(&self, key: impl AsRef<[u8]>) -> Result<Standing, StoreError> {
        let slot = self.slot(key.as_ref());
        only(self.store.check(&[slot])).await
    }

    /// Gives one back. Returns whether it was taken out; not if it no longer counted, or is no longer
    /// kept one by one.
    pub async fn cancel(&self, key: impl AsRef<[u8]>, token: Token) -> Result<bool, StoreError> {
        let slot = self.slot(key.as_ref());
        let cancelled = self.store.cancel(token, &[slot]);
        Ok(cancelled.await? > 0)
    }

    fn slot<'a>(&'a self, key: &'a [u8]) -> Slot<'a> {
        let key = Key::of_subject(&self.kind, Cow::Borrowed(key));
        Slot::new(key, &self.limit)
    }
}

async fn only(standings: StoreFuture<Standings>) -> Result<Standing, StoreError> {
    standings.await?.first().copied().ok_or_else(|| {
        StoreError::new(
            StoreErrorKind::Protocol,
            "the store left out how the counter stands",
        )
    })
}
