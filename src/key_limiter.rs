//! Limits for anything that is not a login.

use std::{sync::Arc, time::Duration};

use smallvec::SmallVec;

use crate::{
    Limit, PolicyError, Refusal, ReserveError, Token,
    algorithm::Standing,
    attempt::Slots,
    event::{Event, EventUser, Observe, UserDisplay, What, observers::Observers},
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
///
/// Its refusals say `too many requests`, where those of a login say `too many failed attempts`.
///
/// # Several keys
///
/// Mails that reset a password are limited by the mailbox that receives them and by the address that asks for them.
/// [`reserve_all`](Self::reserve_all) counts under both, or under neither:
///
/// ```
/// use tower_login_rate_limit::{Address, KeyLimiter, Limit, Period, ReserveError, store::MemoryStore};
///
/// # async fn example() -> Result<(), Box<dyn std::error::Error>> {
/// let three_an_hour = Limit::attempts(3).within(Period::hours(1)).without_block();
/// let twenty_a_day = Limit::attempts(20).within(Period::days(1)).without_block();
/// let mails = KeyLimiter::new("reset-mail", three_an_hour, MemoryStore::new())?;
/// let clients = mails.sibling("reset-address", twenty_a_day)?;
///
/// // An IPv6 client has a whole network: count by its /64.
/// let client = Address::new("2001:db8::1".parse()?, 64).to_string();
/// let keys = [(&mails, "alice@example.org"), (&clients, &*client)];
/// for _ in 0..3 {
///     KeyLimiter::reserve_all(keys).await?;
/// }
/// match KeyLimiter::reserve_all(keys).await {
///     Err(ReserveError::Refused(refusal)) => {
///         assert_eq!(refusal.rule(), "reset-mail");
///         assert_eq!(refusal.to_string(), "too many requests, try again in 1 hour");
///     }
///     other => panic!("{other:?}"),
/// }
/// assert_eq!(clients.check(&client).await?.usage, 3); // the refused one does not count
/// # Ok(()) }
/// # tokio::runtime::Runtime::new()?.block_on(example())?;
/// # Ok::<(), Box<dyn std::error::Error>>(())
/// ```
///
/// # Events
///
/// An observer is notified when a key reaches its limit, of refusals, and of errors of the store:
///
/// ```
/// use tower_login_rate_limit::{KeyLimiter, Limit, Period, store::MemoryStore};
/// use tower_login_rate_limit::event::{Event, What};
///
/// # fn example() -> Result<KeyLimiter, Box<dyn std::error::Error>> {
/// let three_an_hour = Limit::attempts(3).within(Period::hours(1)).without_block();
/// let mails = KeyLimiter::new("reset-mail", three_an_hour, MemoryStore::new())?.with_observer(|event: &Event| {
///     if let What::LimitReached { rule, limit, .. } = &event.what {
///         println!("{rule}: {limit} for {:?}", event.user);
///     }
/// });
/// # Ok(mails) }
/// # example()?;
/// # Ok::<(), Box<dyn std::error::Error>>(())
/// ```
#[derive(Clone, Debug)]
pub struct KeyLimiter {
    name: Arc<str>,
    /// The kind of keys in the store. Not a valid name of a rule, so the two never share a counter.
    kind: Arc<str>,
    limit: Arc<Limit>,
    store: Arc<dyn Store>,
    observers: Observers,
    display: UserDisplay,
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
        Self::on(Arc::new(store), name, limit)
    }

    /// A limiter of another name on the same store and with the same observers, for
    /// [`reserve_all`](Self::reserve_all).
    ///
    /// # Errors
    ///
    /// If the name or the limit is invalid.
    pub fn sibling(
        &self,
        name: &str,
        limit: impl TryInto<Limit, Error: Into<PolicyError>>,
    ) -> Result<Self, PolicyError> {
        Ok(Self {
            observers: self.observers.clone(),
            display: self.display.clone(),
            ..Self::on(Arc::clone(&self.store), name, limit)?
        })
    }

    /// Adds an observer, which receives an [`Event`] on a thread of its own for each key that reaches its limit, each
    /// refusal and each error of the store. See [`event`](crate::event).
    #[must_use]
    pub fn with_observer(mut self, observer: impl Observe) -> Self {
        self.observers = self.observers.with(observer);
        self
    }

    /// Sets how keys are shown in what leaves the process: they are the user of an event. The default is
    /// [`UserDisplay::Hidden`].
    #[must_use]
    pub fn with_key_display(mut self, display: UserDisplay) -> Self {
        self.display = display;
        self
    }

    /// Waits until the observers have received what has happened so far, at most five seconds. Returns whether all of
    /// them have.
    pub async fn observed(&self) -> bool {
        self.observers.flush().await
    }

    fn on(
        store: Arc<dyn Store>,
        name: &str,
        limit: impl TryInto<Limit, Error: Into<PolicyError>>,
    ) -> Result<Self, PolicyError> {
        check_name(name)?;
        let limit = (limit.try_into()).map_err(|error| error.into().within(name))?;
        Ok(Self {
            name: name.into(),
            kind: format!("key:{name}").into(),
            limit: Arc::new(limit),
            store,
            observers: Observers::default(),
            display: UserDisplay::Hidden,
        })
    }

    /// Counts one for this key, unless the limit is reached.
    ///
    /// # Errors
    ///
    /// [`ReserveError::Refused`] if the limit is reached; otherwise an error of the store.
    pub async fn reserve(&self, key: impl AsRef<[u8]>) -> Result<Token, ReserveError> {
        Self::reserve_all([(self, key)]).await
    }

    /// Counts one for each of these keys, each under its own limiter, unless one of the limits is reached: then it
    /// counts for none of them. A key that is named twice counts once.
    ///
    /// The limiters are [siblings](Self::sibling), or clones of one.
    ///
    /// # On a Redis Cluster
    ///
    /// In memory, and on a single Redis, all keys are decided in one step. On a cluster keys are in different slots:
    /// they are asked one after the other, in this order, with a round trip each. What the first ones have admitted is
    /// taken back when one refuses or fails, before this returns or, if its server does not answer, as soon as it
    /// does. So no limit is ever exceeded, and what is refused counts under no key in the end. Meanwhile it does:
    /// a request at the same moment can be refused by a place that is about to be free again. If the process is
    /// killed in between, the first keys keep the count. Put the key first that refuses most.
    ///
    /// # Errors
    ///
    /// [`ReserveError::Refused`] if a limit is reached, with the [name](Refusal::rule) of the limiter; of several, the
    /// one that lasts longest. Otherwise an error of the store, also if the limiters do not share one or there is
    /// no key.
    pub async fn reserve_all<'a, K: AsRef<[u8]>>(
        keys: impl IntoIterator<Item = (&'a Self, K)>,
    ) -> Result<Token, ReserveError> {
        let keys = Keys::new(keys)?;
        let token = Token::new();
        let slots = keys.slots();
        let count = slots.len();
        let standings = keys.store.reserve(token, Duration::ZERO, &slots);
        drop(slots);
        let standings = match standings
            .await
            .and_then(|standings| standings.complete(count))
        {
            Ok(standings) => standings,
            Err(error) => {
                keys.note_undecided(&error);
                return Err(error.into());
            }
        };
        match keys.refusal(&standings) {
            Some(refusal) => Err(ReserveError::Refused(refusal)),
            None => {
                keys.note_reached(&standings);
                Ok(token)
            }
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
        Self::cancel_all([(self, key)], token).await
    }

    /// Cancels a reservation of [`reserve_all`](Self::reserve_all), under all of these keys. Returns false if it
    /// counts under none of them.
    ///
    /// # Errors
    ///
    /// If the store fails, the limiters do not share one, or there is no key.
    pub async fn cancel_all<'a, K: AsRef<[u8]>>(
        keys: impl IntoIterator<Item = (&'a Self, K)>,
        token: Token,
    ) -> Result<bool, StoreError> {
        let keys = Keys::new(keys)?;
        let canceled = (keys.store).settle(
            &[token],
            Settlement::Canceled,
            &keys.slots(),
            Duration::ZERO,
        );
        Ok(canceled.await?.changed > 0)
    }

    fn slot<'a>(&'a self, key: &'a [u8]) -> Slot<'a> {
        let key = Key::of_subject(&self.kind, key);
        Slot::new(key, &self.limit)
    }

    /// Emits an event of this key, if there is an observer.
    fn emit(&self, key: &[u8], what: impl FnOnce() -> What) {
        self.observers.emit(|| {
            let key = String::from_utf8_lossy(key);
            Event::new(what()).with_user(EventUser::new(&key, &key, &self.display))
        });
    }
}

/// Keys and the limiters that count them, all on one store.
struct Keys<'a, K> {
    store: &'a Arc<dyn Store>,
    keys: SmallVec<[(&'a KeyLimiter, K); 2]>,
}

impl<'a, K: AsRef<[u8]>> Keys<'a, K> {
    fn new(keys: impl IntoIterator<Item = (&'a KeyLimiter, K)>) -> Result<Self, StoreError> {
        let misconfigured = |message| Err(StoreError::new(StoreErrorKind::Config, message));
        let mut all: SmallVec<[(&KeyLimiter, K); 2]> = SmallVec::new();
        for (limiter, key) in keys {
            // No two slots may name one counter.
            let is_same = |(other, known): &(&KeyLimiter, K)| {
                other.kind == limiter.kind && known.as_ref() == key.as_ref()
            };
            if !all.iter().any(is_same) {
                all.push((limiter, key));
            }
        }
        let Some((first, _)) = all.first() else {
            return misconfigured("there is no key to count by");
        };
        let store = &first.store;
        if !(all.iter()).all(|(limiter, _)| Arc::ptr_eq(&limiter.store, store)) {
            return misconfigured(
                "the limiters are on different stores, which can't decide together: make one of them with \
                 `KeyLimiter::sibling` of the other",
            );
        }
        Ok(Self { store, keys: all })
    }

    fn slots(&self) -> Slots<'_> {
        let slots = self.keys.iter();
        slots
            .map(|(limiter, key)| limiter.slot(key.as_ref()))
            .collect()
    }

    /// The refusal that lasts longest, if there is one, which its limiter reports.
    fn refusal(&self, standings: &Standings) -> Option<Refusal> {
        let all = self.keys.iter().zip(&**standings);
        let ((limiter, key), standing) = all.max_by_key(|(_, standing)| standing.state)?;
        let refusal = Refusal::of_key(Arc::clone(&limiter.name), *standing)?;
        limiter.emit(key.as_ref(), || What::Refused {
            rule: refusal.shared_rule(),
            reason: refusal.reason(),
            usage: refusal.usage(),
            limit: refusal.limit(),
            lifts: refusal.lifts(),
            shadow: false,
        });
        Some(refusal)
    }

    /// Reports the keys whose last place was taken.
    fn note_reached(&self, standings: &Standings) {
        for ((limiter, key), standing) in self.keys.iter().zip(&**standings) {
            if standing.remaining() == 0 {
                limiter.emit(key.as_ref(), || What::LimitReached {
                    rule: Arc::clone(&limiter.name),
                    limit: standing.limit,
                });
            }
        }
    }

    /// Reports to the observers of the first limiter that the store could not decide.
    fn note_undecided(&self, error: &StoreError) {
        if let Some((limiter, key)) = self.keys.first() {
            limiter.emit(key.as_ref(), || What::Undecided {
                kind: error.kind(),
                shadow: false,
            });
        }
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
