//! Where counters live.

mod error;
mod key;
#[cfg(feature = "memory")]
mod memory;
#[cfg(feature = "redis")]
pub mod redis;

use std::{fmt::Debug, ops::Deref, sync::Arc, time::Duration};

use smallvec::SmallVec;

use crate::{Address, Answer, KnownAddresses, Limit, Token, algorithm::Standing};

#[cfg(feature = "redis")]
pub use self::redis::RedisStore;
pub use error::{StoreError, StoreErrorKind};
pub use key::Key;
#[cfg(feature = "memory")]
pub use memory::MemoryStore;

/// What a [`Store`] answers.
///
/// ```
/// use tower_login_rate_limit::store::StoreFuture;
///
/// // In a store of one's own that has the answer at once.
/// fn nothing_changed() -> StoreFuture<usize> {
///     StoreFuture::now(Ok(0))
/// }
/// ```
pub type StoreFuture<T> = Answer<Result<T, StoreError>>;

/// Keeps counters and decides attempts, atomically.
///
/// A store knows keys and limits, nothing of users and requests. What it must hold to:
///
/// - **All or nothing.** [`reserve`](Self::reserve) looks at every slot and writes the token to all
///   of them, or, if any refuses, to none. No other call comes in between.
/// - **Refusing leaves no trace.** An attempt that is refused counts nowhere and extends nothing.
/// - **Once is enough.** A token that is reserved, failed or cancelled again changes nothing more, so
///   every call may be repeated after a reply that was lost.
/// - **Exceptions.** A slot with [`unless_known`](Slot::unless_known) and an address that is known
///   stands as [`State::Exempt`](crate::algorithm::State::Exempt): it neither refuses nor is written to.
/// - **Its own time.** Callers' clocks do not matter.
/// - **An error is not a permission.** A store that can't decide says so; it never admits instead.
///
/// The returned futures do not borrow: what a call needs it has taken when it returns. A store that
/// answers at once has done its work when the call returns; others do it when the future is polled.
///
/// ```
/// # use tower_login_rate_limit::store::Store;
/// // The trait is object safe.
/// fn any_store(store: std::sync::Arc<dyn Store>) {}
/// ```
pub trait Store: Debug + Send + Sync + 'static {
    /// Reserves an attempt in all of these counters or in none, and says how each stands.
    ///
    /// The attempt was admitted if no standing [refuses](Standing::refuses); usage then includes it,
    /// where it counts.
    /// It is in flight for `lease`; with a lease of zero it counts at once. No two slots should be of one
    /// counter: with different limits, one of them would decide for how long it is kept.
    fn reserve(&self, token: Token, lease: Duration, slots: &[Slot<'_>]) -> StoreFuture<Standings>;

    /// Says how each of these counters stands, and writes nothing.
    fn check(&self, slots: &[Slot<'_>]) -> StoreFuture<Standings>;

    /// Turns an attempt in flight into a failure, as of now, in each of these counters. Says in how
    /// many it was in flight.
    fn fail(&self, token: Token, slots: &[Slot<'_>]) -> StoreFuture<usize>;

    /// Takes an attempt out of each of these counters. Says in how many it was.
    fn cancel(&self, token: Token, slots: &[Slot<'_>]) -> StoreFuture<usize>;

    /// Takes every failed attempt of the `mains`, and `token` if given, out of those counters and out of
    /// the `others`. Attempts in flight stay, and so do all others of the `others`. What the mains
    /// remember beyond that, of earlier blocks say, is forgotten.
    ///
    /// With a token, only mains that it is in count as such: an attempt cleans up once, also if it is
    /// said twice that it went well.
    fn cleanup(
        &self,
        token: Option<Token>,
        mains: &[Slot<'_>],
        others: &[Slot<'_>],
    ) -> StoreFuture<()>;

    /// Keeps an address under this key, and as many of the newest as `keep` says.
    fn remember(&self, key: &Key<'_>, address: Address, keep: KnownAddresses) -> StoreFuture<()>;

    /// The addresses kept under this key, the newest first.
    fn known(&self, key: &Key<'_>, keep: KnownAddresses) -> StoreFuture<Vec<Address>>;

    /// Waits until everything that was answered is written, for a store that answers before it has
    /// written. An error says that it can't be, at present.
    fn flush(&self) -> StoreFuture<()> {
        StoreFuture::now(Ok(()))
    }
}

impl<S: Store + ?Sized> Store for Arc<S> {
    fn reserve(&self, token: Token, lease: Duration, slots: &[Slot<'_>]) -> StoreFuture<Standings> {
        (**self).reserve(token, lease, slots)
    }

    fn check(&self, slots: &[Slot<'_>]) -> StoreFuture<Standings> {
        (**self).check(slots)
    }

    fn fail(&self, token: Token, slots: &[Slot<'_>]) -> StoreFuture<usize> {
        (**self).fail(token, slots)
    }

    fn cancel(&self, token: Token, slots: &[Slot<'_>]) -> StoreFuture<usize> {
        (**self).cancel(token, slots)
    }

    fn cleanup(
        &self,
        token: Option<Token>,
        mains: &[Slot<'_>],
        others: &[Slot<'_>],
    ) -> StoreFuture<()> {
        (**self).cleanup(token, mains, others)
    }

    fn remember(&self, key: &Key<'_>, address: Address, keep: KnownAddresses) -> StoreFuture<()> {
        (**self).remember(key, address, keep)
    }

    fn known(&self, key: &Key<'_>, keep: KnownAddresses) -> StoreFuture<Vec<Address>> {
        (**self).known(key, keep)
    }

    fn flush(&self) -> StoreFuture<()> {
        (**self).flush()
    }
}

/// One counter and what it allows.
///
/// ```
/// # async fn example() -> Result<(), Box<dyn std::error::Error>> {
/// use tower_login_rate_limit::{Limit, Period, store::{Key, MemoryStore, Slot, Store}};
///
/// let limit = Limit::attempts(3).within(Period::hours(1)).build()?;
/// let key = Key::of_address("192.0.2.1".parse()?, "downloads");
/// let standings = MemoryStore::new().check(&[Slot::new(key, &limit)]).await?;
/// assert_eq!(standings[0].remaining(), 3);
/// # Ok(()) }
/// # tokio::runtime::Runtime::new()?.block_on(example())?;
/// # Ok::<(), Box<dyn std::error::Error>>(())
/// ```
#[derive(Clone, Debug)]
#[non_exhaustive]
pub struct Slot<'a> {
    /// Which counter.
    pub key: Key<'a>,
    /// What it allows.
    pub limit: &'a Limit,
    /// An attempt from this address, if it is known, does not count here and is not refused.
    pub unless_known: Option<KnownAddress<'a>>,
}

impl<'a> Slot<'a> {
    /// A counter in which every attempt counts.
    pub const fn new(key: Key<'a>, limit: &'a Limit) -> Self {
        Self {
            key,
            limit,
            unless_known: None,
        }
    }

    /// The same counter, in which attempts from this address do not count if it is known.
    #[must_use]
    pub const fn unless_known(mut self, known: KnownAddress<'a>) -> Self {
        self.unless_known = Some(known);
        self
    }
}

/// An address that may be among those that are [kept](Store::remember) for the subject of a counter
/// which belongs to no address.
///
/// ```
/// # async fn example() -> Result<(), Box<dyn std::error::Error>> {
/// use tower_login_rate_limit::{KnownAddresses, Limit, Period, algorithm::State};
/// use tower_login_rate_limit::store::{Key, KnownAddress, MemoryStore, Slot, Store};
///
/// let store = MemoryStore::new();
/// let (address, keep) = ("192.0.2.1".parse()?, KnownAddresses::default());
/// let key = Key::of_subject("homes", &b"alice"[..]);
/// store.remember(&key, address, keep).await?;
///
/// let limit = Limit::attempts(100).within(Period::days(1)).build()?;
/// let slot = Slot::new(Key::of_subject("account", &b"alice"[..]), &limit)
///     .unless_known(KnownAddress::new("homes", address, keep));
/// assert_eq!(store.check(&[slot]).await?[0].state, State::Exempt);
/// # Ok(()) }
/// # tokio::runtime::Runtime::new()?.block_on(example())?;
/// # Ok::<(), Box<dyn std::error::Error>>(())
/// ```
#[derive(Clone, Copy, Debug)]
#[non_exhaustive]
pub struct KnownAddress<'a> {
    /// The kind of key that known addresses are kept under, with the counter's subject.
    pub kind: &'a str,
    /// The one that may be among them.
    pub address: Address,
    /// Which of them are known: the newest so many, for so long.
    pub keep: KnownAddresses,
}

impl<'a> KnownAddress<'a> {
    /// This address, if it is among those that are kept under keys of this kind.
    pub const fn new(kind: &'a str, address: Address, keep: KnownAddresses) -> Self {
        Self {
            kind,
            address,
            keep,
        }
    }
}

/// How counters stand, in the order in which they were asked for.
///
/// ```
/// use tower_login_rate_limit::{algorithm::{Standing, State}, store::Standings};
///
/// let busy = Standing::new(5, 5, State::Busy);
/// assert!(!Standings::from_iter([busy]).admitted());
/// ```
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct Standings(SmallVec<[Standing; 3]>);

impl Standings {
    /// Whether none of them refuses.
    pub fn admitted(&self) -> bool {
        !self.iter().any(Standing::refuses)
    }
}

impl Deref for Standings {
    type Target = [Standing];

    fn deref(&self) -> &Self::Target {
        &self.0
    }
}

impl Standings {
    #[cfg(feature = "memory")]
    pub(crate) fn push(&mut self, standing: Standing) {
        self.0.push(standing);
    }

    #[cfg(feature = "memory")]
    pub(crate) fn clear(&mut self) {
        self.0.clear();
    }

    #[cfg(any(feature = "memory", feature = "redis"))]
    pub(crate) fn as_mut(&mut self) -> &mut [Standing] {
        &mut self.0
    }
}

impl FromIterator<Standing> for Standings {
    fn from_iter<I: IntoIterator<Item = Standing>>(standings: I) -> Self {
        Self(standings.into_iter().collect())
    }
}
