//! Where counters live.
//!
//! A [`Store`] keeps counters and decides on attempts atomically. `MemoryStore` is embedded;
//! `RedisStore` is shared by a fleet. A store of the app's own implements the trait.
//!
//! ```
//! # async fn example() -> Result<(), Box<dyn std::error::Error>> {
//! use std::time::Duration;
//! use tower_login_rate_limit::{Limit, Period, Token};
//! use tower_login_rate_limit::store::{Key, MemoryStore, Settlement, Slot, Store};
//!
//! let store = MemoryStore::new();
//! let limit = Limit::attempts(3).within(Period::hours(1)).build()?;
//! let slot = Slot::new(Key::of_address("192.0.2.1".parse()?, "downloads"), &limit);
//!
//! let token = Token::new();
//! let standings = store.reserve(token, Duration::from_secs(30), &[slot]).await?;
//! assert!(standings.admitted());
//! let settled = store.settle(&[token], Settlement::Failed, &[slot], Duration::ZERO).await?;
//! assert_eq!((settled.changed, settled.began.len()), (1, 0));
//! assert_eq!(store.check(&[slot]).await?[0].remaining(), 2);
//! # Ok(()) }
//! # tokio::runtime::Runtime::new()?.block_on(example())?;
//! # Ok::<(), Box<dyn std::error::Error>>(())
//! ```

#[cfg(feature = "redis")]
mod block_cache;
mod error;
#[cfg(feature = "redis")]
mod failover;
pub(crate) mod fingerprint;
mod key;
mod ledger;
#[cfg(feature = "memory")]
mod memory;
#[cfg(feature = "redis")]
mod owned;
#[cfg(feature = "redis")]
pub mod redis;
mod slot;
mod status;

use std::{fmt::Debug, sync::Arc, time::Duration};

#[cfg(feature = "redis")]
use crate::Period;
use crate::{Address, KnownAddresses, MaybeReady, Token, algorithm::Standing};

#[cfg(feature = "redis")]
pub use self::redis::RedisStore;
pub use error::{StoreError, StoreErrorKind};
pub(crate) use key::KNOWN_ADDRESSES;
pub use key::Key;
pub use ledger::{
    Announcements, Announcer, BlockNote, BlockPage, BlockQuery, Contents, CounterName, Document,
    KeptAttempt, LastBlock, Ledger, ListedBlock, Summary,
};
#[cfg(feature = "memory")]
pub use memory::MemoryStore;
pub use slot::{KnownAddress, Slot, Standings};
pub use status::{StoreChange, StoreListener, StoreStatus};

/// The future that a [`Store`] returns; it borrows nothing, and is not boxed when the result is
/// ready at once.
pub type StoreFuture<T> = MaybeReady<Result<T, StoreError>>;

/// Keeps counters and decides on attempts, atomically.
///
/// A store knows keys and limits, nothing of users and requests. Its contract:
///
/// - **All or nothing.** [`reserve`](Self::reserve) looks at every slot and writes the token to all
///   of them, or, if any refuses, to none. No other call comes in between.
/// - **A refusal leaves no trace.** A refused attempt counts nowhere and extends nothing.
/// - **Idempotent.** Every call may be repeated after a lost reply: a token that is reserved or settled
///   again in the same way changes nothing more.
/// - **An error leaves nothing behind.** If `reserve` fails, the store sees to it that the attempt is
///   taken back wherever it was written after all.
/// - **Spellings.** A failure has the [spelling](Slot::spelling) of the slot that it was settled with. A
///   success takes back failures of its own spelling, whoever else they belong to being counted all the same.
/// - **Exemptions.** A slot with [`unless_known`](Slot::unless_known) and a known address stands as
///   [`State::Exempt`](crate::algorithm::State::Exempt): it neither refuses nor is written to.
/// - **Shadows.** A slot in [shadow](Slot::shadow) behaves as one that is not, by itself: where it would refuse it
///   stands as [`State::Shadowed`](crate::algorithm::State::Shadowed), does not refuse and is not written to.
/// - **Its own time.** Clocks of callers do not matter.
/// - **An error is not a permission.** A store that can't decide returns an error; it never admits
///   instead.
///
/// The returned futures do not borrow. A store that answers at once has done its work when the call
/// returns; others do their I/O when the future is polled.
///
/// The trait is object safe: an `Arc<dyn Store>` is a store. See the [module](self) for an example.
#[diagnostic::on_unimplemented(
    message = "`{Self}` keeps no counters",
    label = "not a `Store`",
    note = "use `MemoryStore::new()`, or `RedisStore::connect(\"redis://…\").await?` with the feature `redis`; an \
            `Arc<dyn Store>` is a store too"
)]
pub trait Store: Debug + Send + Sync + 'static {
    /// Reserves an attempt in all of these counters or in none, and returns how each stands.
    ///
    /// The attempt is admitted if no standing [refuses](crate::algorithm::Standing::refuses); usage
    /// then includes it, where it counts. It is in flight for `lease`; with a lease of zero it counts
    /// at once. No two slots should name one counter: with different limits, one of them would decide
    /// how long the counter is kept.
    fn reserve(&self, token: Token, lease: Duration, slots: &[Slot<'_>]) -> StoreFuture<Standings>;

    /// Returns how each of these counters stands, and writes nothing.
    fn check(&self, slots: &[Slot<'_>]) -> StoreFuture<Standings>;

    /// Applies what became of an attempt to each of these counters, as of `ago` before now.
    ///
    /// A failure has one token; a success may have several that denote one attempt; any number may be
    /// canceled.
    fn settle(
        &self,
        tokens: &[Token],
        settlement: Settlement,
        slots: &[Slot<'_>],
        ago: Duration,
    ) -> StoreFuture<Settled>;

    /// Remembers an address under this key, as one of the newest that `keep` allows.
    fn remember(&self, key: &Key<'_>, address: Address, keep: KnownAddresses) -> StoreFuture<()>;

    /// The addresses remembered under this key, the newest first.
    fn known(&self, key: &Key<'_>, keep: KnownAddresses) -> StoreFuture<Vec<Address>>;

    /// A refusal that is in force according to a cache of the store, however stale, without I/O: to refuse
    /// a blocked client before its body is read, and while the store can't be reached. A store without a
    /// cache has none.
    fn recall(&self, _slots: &[Slot<'_>]) -> Option<Standings> {
        None
    }

    /// What an operator reads and changes in this store; `None` if it can't be operated. A handle: it stays
    /// valid, and changes what this store keeps.
    fn ledger(&self) -> Option<Arc<dyn Ledger>> {
        None
    }

    /// Current state and counters of the store, without I/O. A store in memory has nothing to report.
    fn status(&self) -> StoreStatus {
        StoreStatus::default()
    }

    /// Has this function called when the store becomes unavailable or available again. A store in memory never
    /// calls it.
    fn on_change(&self, _listener: StoreListener) {}

    /// Waits until everything that was answered is written, for a store that answers before it
    /// writes. An error reports that this is impossible at present.
    fn flush(&self) -> StoreFuture<()> {
        StoreFuture::ready(Ok(()))
    }
}

/// Implements [`Store`] by another one, except for its ledger.
macro_rules! delegate_store {
    ($self:ident => $inner:expr) => {
        fn reserve(&$self, token: Token, lease: Duration, slots: &[Slot<'_>]) -> StoreFuture<Standings> {
            $inner.reserve(token, lease, slots)
        }

        fn check(&$self, slots: &[Slot<'_>]) -> StoreFuture<Standings> {
            $inner.check(slots)
        }

        fn settle(
            &$self,
            tokens: &[Token],
            settlement: Settlement,
            slots: &[Slot<'_>],
            ago: Duration,
        ) -> StoreFuture<Settled> {
            $inner.settle(tokens, settlement, slots, ago)
        }

        fn remember(&$self, key: &Key<'_>, address: Address, keep: KnownAddresses) -> StoreFuture<()> {
            $inner.remember(key, address, keep)
        }

        fn known(&$self, key: &Key<'_>, keep: KnownAddresses) -> StoreFuture<Vec<Address>> {
            $inner.known(key, keep)
        }

        fn recall(&$self, slots: &[Slot<'_>]) -> Option<Standings> {
            $inner.recall(slots)
        }

        fn status(&$self) -> crate::store::StoreStatus {
            $inner.status()
        }

        fn on_change(&$self, listener: crate::store::StoreListener) {
            $inner.on_change(listener);
        }

        fn flush(&$self) -> StoreFuture<()> {
            $inner.flush()
        }
    };
}
#[cfg(feature = "redis")]
use delegate_store;

impl Settlement {
    /// How many of the slots are main counters, if this cleans up.
    #[must_use]
    pub const fn mains(self) -> Option<usize> {
        match self {
            Self::Succeeded { mains } | Self::Forgiven { mains } | Self::Cleared { mains } => {
                Some(mains)
            }
            Self::Failed | Self::Canceled | Self::Recorded => None,
        }
    }
}

#[cfg(feature = "redis")]
impl Settlement {
    /// The same with this number of main counters, if it cleans up.
    const fn with_mains(self, mains: usize) -> Self {
        match self {
            Self::Succeeded { .. } => Self::Succeeded { mains },
            Self::Forgiven { .. } => Self::Forgiven { mains },
            Self::Cleared { .. } => Self::Cleared { mains },
            other => other,
        }
    }
}

impl<S: Store + ?Sized> Store for Arc<S> {
    delegate_store!(self => (**self));

    fn ledger(&self) -> Option<Arc<dyn Ledger>> {
        (**self).ledger()
    }
}

/// What settling an attempt did. See [`Store::settle`].
#[derive(Clone, Debug, Default, PartialEq, Eq)]
#[non_exhaustive]
pub struct Settled {
    /// How many counters changed, or all of them if the store writes later.
    pub changed: usize,
    /// The blocks that a failure began: the position of the slot, and how its counter stands. A store reports
    /// each block once; a failure that is settled again, since its reply was lost, reports its block again.
    pub began: Vec<(usize, Standing)>,
    /// The blocks that ended because attempts were taken out: the positions of the slots, in any order.
    pub lifted: Vec<usize>,
}

impl Settled {
    /// This many counters changed, and no block began.
    #[must_use]
    pub const fn changed(changed: usize) -> Self {
        Self {
            changed,
            began: Vec::new(),
            lifted: Vec::new(),
        }
    }

    /// The same with blocks that began.
    #[must_use]
    pub fn with_began(mut self, began: Vec<(usize, Standing)>) -> Self {
        self.began = began;
        self
    }

    /// The same with blocks that ended.
    #[must_use]
    pub fn with_lifted(mut self, lifted: Vec<usize>) -> Self {
        self.lifted = lifted;
        self
    }
}

/// What became of an attempt. See [`Store::settle`].
///
/// Exhaustive, so that a store of an app does not compile until it handles a new variant.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Settlement {
    /// The attempt in flight failed. One that has failed by then keeps its time.
    Failed,
    /// The attempts are taken back, in flight or failed.
    Canceled,
    /// Every attempt that had failed by then with the same [spelling](Slot::spelling), and the attempt itself,
    /// are taken out of the main counters, which are the first `mains`, and those same attempts out of the
    /// others. Attempts in flight stay, and so does everything else in the others. What main counters keep
    /// beyond single attempts, such as earlier blocks, is dropped if all of it came of the normal form and this
    /// is the normal form too.
    ///
    /// Only main counters that hold one of the tokens are cleaned up, so an attempt cleans up once even if
    /// its success is reported twice.
    Succeeded {
        /// How many of the slots are main counters.
        mains: usize,
    },
    /// The same for all main counters, whatever they hold and without a token: a password was reset.
    Forgiven {
        /// How many of the slots are main counters.
        mains: usize,
    },
    /// The same for every spelling, and all that the main counters keep is dropped: an operator lifts a block.
    Cleared {
        /// How many of the slots are main counters.
        mains: usize,
    },
    /// A failure that was decided elsewhere is written, whatever the counters allow. A store that can't
    /// backdate may count it as of now.
    Recorded,
}

/// A store on a server, which names its counters there.
#[cfg(feature = "redis")]
pub(crate) trait Remote: Store {
    /// The name of a counter on the server, by which the server reports that its block was lifted.
    fn name(&self, key: &Key<'_>) -> Vec<u8>;

    /// Reserves and cancels an attempt in a counter of its own: whether the server admits, writes and
    /// answers. In a cluster, the server that keeps the counters of `near` is asked.
    fn probe(&self, near: Option<&Key<'_>>) -> StoreFuture<()>;
}

/// A remote store that tells which server reported a block, so that a block which another server has lost can
/// be written back.
#[cfg(feature = "redis")]
pub(crate) trait Restorable: Remote {
    /// Like [`Store::reserve`], and of blocked counters, by position, which server reported that.
    fn reserve_from(
        &self,
        token: Token,
        lease: Duration,
        slots: &[Slot<'_>],
    ) -> StoreFuture<(Standings, Reporters)>;

    /// Writes a block back that `server` reported and the store no longer knows, and returns the server
    /// that keeps it now. `None` if that is the same server, on which the block was lifted.
    fn restore(
        &self,
        slot: &Slot<'_>,
        lifts: Period,
        usage: u32,
        server: ServerId,
    ) -> StoreFuture<Option<ServerId>>;

    /// Takes an attempt back, now or, if the server does not answer, later.
    fn take_back(&self, token: Token, slots: &[Slot<'_>]) -> StoreFuture<()>;
}

/// What tells a server from others, and from itself before a restart.
#[cfg(feature = "redis")]
pub(crate) type ServerId = [u8; 40];

/// Which server reported the block of the counter at a position. Empty if none is blocked.
#[cfg(feature = "redis")]
pub(crate) type Reporters = Vec<(usize, ServerId)>;

/// Takes over cancellations that a store could not complete by itself.
#[cfg(feature = "redis")]
pub(crate) trait CancelLater: Send + Sync {
    /// Repeats the cancellation until the store has answered it; returns `false` if it can't.
    fn cancel_later(&self, tokens: &[Token], slots: &[Slot<'_>]) -> bool;
}
