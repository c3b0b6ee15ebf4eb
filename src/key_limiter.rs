//! Limits for anything that is not a login.

use std::{sync::Arc, time::Duration};

use crate::{
    Limit, PolicyError, Refusal, ReserveError, Token,
    algorithm::Standing,
    policy::check_name,
    store::{Key, Settlement, Slot, Standings, Store, StoreError, StoreErrorKind, StoreFuture},
};

/// Limits anything by a key, such as mails to reset a password or codes by text message.
///
/// What is reserved counts at once, and can be cancelled if the work does not count after all. Keys are used
/// as they are: apply [`normalize`](crate::normalize) to names first.
///
/// With a token bucket or a sliding-window counter, only the newest 8 reservations of a key can be cancelled.
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
    /// The kind of keys in the store. Not a valid name of a rule, so the two never share a counter.
    kind: Arc<str>,
    limit: Arc<Limit>,
    store: Arc<dyn Store>,
}

impl KeyLimiter {
    /// A limiter of this name. Limiters with different names that share a store count separately, and so do
    /// the rules of a [`LoginLimiter`](crate::LoginLimiter).
    ///
    /// # Errors
    ///
    /// If the name or the limit is invalid.
    pub fn new(
        name: &str,
        limit: impl TryInto<Limit, Error: Into<PolicyError>>,
        store: impl Store,
    ) -> Result<Self, PolicyError> {
        check_name(name)?;
        let limit = (limit.try_into()).map_err(|error| error.into().within(name))?;
        Ok(Self {
            name: name.into(),
            kind: format!("key:{name}").into(),
            limit: Arc::new(limit),
            store: Arc::new(store),
        })
    }

    /// Counts one for this key, unless the limit is reached.
    ///
    /// # Errors
    ///
    /// [`ReserveError::Refused`] if the limit is reached; otherwise an error of the store.
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
    ///
    /// # Errors
    ///
    /// If the store fails.
    pub async fn check(&self, key: impl AsRef<[u8]>) -> Result<Standing, StoreError> {
        let slot = self.slot(key.as_ref());
        only(self.store.check(&[slot])).await
    }

    /// Cancels a reservation. Returns false if it no longer counts, or has been aggregated with others.
    ///
    /// # Errors
    ///
    /// If the store fails.
    pub async fn cancel(&self, key: impl AsRef<[u8]>, token: Token) -> Result<bool, StoreError> {
        let slot = self.slot(key.as_ref());
        let cancelled =
            (self.store).settle(&[token], Settlement::Canceled, &[slot], Duration::ZERO);
        Ok(cancelled.await?.changed > 0)
    }

    fn slot<'a>(&'a self, key: &'a [u8]) -> Slot<'a> {
        let key = Key::of_subject(&self.kind, key);
        Slot::new(key, &self.limit)
    }
}

/// The standing of the only slot.
async fn only(standings: StoreFuture<Standings>) -> Result<Standing, StoreError> {
    standings.await?.first().copied().ok_or_else(|| {
        StoreError::new(
            StoreErrorKind::Protocol,
            "the store returned no standing for the counter",
        )
    })
}
