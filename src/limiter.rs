//! The limiter, independent of HTTP.

use std::{
    borrow::Cow,
    error::Error,
    fmt,
    net::IpAddr,
    sync::{
        Arc,
        atomic::{AtomicBool, Ordering},
    },
    time::Duration,
};

use crate::{
    Address, Attempt, AttemptFuture, Caller, MaybeReady, Policy, Reason, Refusal, Report, Rule,
    Token,
    attempt::{Counted, InFlight, Scope, Slots, Tracker, User, Within, applying, refusal_of},
    events, normalize,
    store::{Settled, Settlement, Standings, Store, StoreError, StoreFuture},
};

/// Limits attempts to log in by their outcome.
///
/// Reserve an attempt before the password is checked and settle it afterwards. Between the two it is in
/// flight: it occupies a place, so that guessing in parallel gains nothing, but it is not a failure, so
/// that many people can log in from one office at the same time.
///
/// Cloning is cheap, and clones share everything.
///
/// ```
/// use std::net::IpAddr;
/// use tower_login_rate_limit::{LoginLimiter, Outcome, Policy, ReserveError, store::MemoryStore};
///
/// # fn is_correct_password() -> bool { false }
/// # async fn example() -> Result<(), Box<dyn std::error::Error>> {
/// let limiter = LoginLimiter::new(Policy::default(), MemoryStore::new());
/// let address: IpAddr = "192.0.2.1".parse()?;
///
/// match limiter.reserve((address, "alice")).await {
///     Ok(attempt) => {
///         let outcome = if is_correct_password() { Outcome::Success } else { Outcome::Failure };
///         attempt.settle(outcome).await?;
///     }
///     Err(ReserveError::Refused(refusal)) => println!("{refusal}"),
///     Err(error) => return Err(error.into()),
/// }
/// # Ok(()) }
/// # tokio::runtime::Runtime::new()?.block_on(example())?;
/// # Ok::<(), Box<dyn std::error::Error>>(())
/// ```
#[derive(Clone)]
pub struct LoginLimiter {
    shared: Arc<Shared>,
}

#[derive(Clone)]
struct Shared {
    policy: Policy,
    store: Arc<dyn Store>,
    normalize: Option<Normalizer>,
    tracker: Tracker,
    /// Whether a layer with this limiter is for second factors, or the policy has no rule for them.
    guards_second_factor: Arc<AtomicBool>,
}

type Normalizer = Arc<dyn Fn(&str) -> String + Send + Sync>;

impl LoginLimiter {
    /// A limiter with this policy and this store.
    ///
    /// Pass an `Arc<dyn Store>` to share a store or to choose it at run time. Limiters that share a store
    /// share its counters: if their policies differ, so must the names of their rules, or one limiter
    /// clears what the other still counts.
    #[must_use]
    pub fn new(policy: Policy, store: impl Store) -> Self {
        let rule = policy.rule(Rule::SECOND_FACTOR);
        let is_unlimited = !rule.is_some_and(Rule::is_enabled);
        Self {
            shared: Arc::new(Shared {
                policy,
                store: Arc::new(store),
                normalize: None,
                tracker: Tracker::default(),
                guards_second_factor: Arc::new(AtomicBool::new(is_unlimited)),
            }),
        }
    }

    /// Normalizes users with this function in place of [`normalize`].
    ///
    /// It should make equal exactly what the app's own lookup treats as equal. If it makes less equal, each
    /// spelling of a user has a budget of its own. If it makes more equal, several accounts share a budget; a
    /// success takes back failures of its own spelling only.
    #[must_use]
    pub fn with_normalizer(
        self,
        normalize: impl Fn(&str) -> String + Send + Sync + 'static,
    ) -> Self {
        let shared = Shared {
            normalize: Some(Arc::new(normalize)),
            ..Shared::clone(&self.shared)
        };
        Self {
            shared: Arc::new(shared),
        }
    }

    /// The policy.
    #[inline]
    pub fn policy(&self) -> &Policy {
        &self.shared.policy
    }

    /// Reserves an attempt under every rule that applies to this caller, or under none.
    ///
    /// Without a user these are the rules without a user; [`Attempt::identify`] adds the others once the
    /// user is known. One attempt stands for one password check.
    ///
    /// # Errors
    ///
    /// [`ReserveError::Refused`] if a rule refuses the attempt, [`ReserveError::Store`] if the store
    /// can't decide. Nothing is counted in either case.
    #[inline]
    pub fn reserve<'a>(
        &self,
        caller: impl Into<Caller<'a>>,
    ) -> AttemptFuture<Result<Attempt, ReserveError>> {
        AttemptFuture::reserve(self, self.decide(caller.into(), None))
    }

    /// Reserves an attempt, with a plain future: dropping that one may leave a failure behind. Within another
    /// attempt of the same request, it has the token of that one, and counters that both have count it once.
    #[inline]
    pub(crate) fn decide(
        &self,
        caller: Caller<'_>,
        within: Option<Box<Within>>,
    ) -> MaybeReady<Result<Attempt, ReserveError>> {
        let caller = self.count(caller);
        let token = (within.as_ref()).map_or_else(Token::new, |outer| outer.token());
        let policy = self.policy();
        let mut slots = Slots::new();
        caller.push_slots(policy, |_| true, &mut slots);
        let standings = self.store().reserve(token, policy.lease(), &slots);
        let count = slots.len();
        drop(slots);
        let complete = |standings: Standings| {
            let complete = standings.complete(count);
            complete.inspect_err(|_| self.take_back(token, &caller, |_| true))
        };
        match standings.at_once().map(|standings| complete(standings?)) {
            // The refusal comes first: refused callers must not cost a copy of their name.
            Ok(Ok(standings)) => {
                MaybeReady::ready(match refusal_of(policy, caller.scope(), &standings) {
                    Some(refusal) => Err(ReserveError::Refused(refusal)),
                    None => Ok(Attempt::new(self, token, caller, standings, within)),
                })
            }
            Ok(Err(error)) => MaybeReady::ready(Err(error.into())),
            Err(standings) => {
                let (limiter, caller) = (self.clone(), caller.into_owned());
                MaybeReady::pending(async move {
                    let standings = standings.await?.complete(count);
                    let standings =
                        standings.inspect_err(|_| limiter.take_back(token, &caller, |_| true))?;
                    let attempt = Attempt::new(&limiter, token, caller, standings, within);
                    match attempt.report().refusal() {
                        Some(refusal) => Err(ReserveError::Refused(refusal)),
                        None => Ok(attempt),
                    }
                })
            }
        }
    }

    /// Whether the rules without a user block this caller, as far as the store knows without I/O.
    pub(crate) fn known_block(&self, caller: Caller<'_>) -> KnownBlock {
        let caller = self.count(caller);
        let (policy, store) = (self.policy(), self.store());
        let mut slots = Slots::new();
        caller.push_slots(policy, |rule| !rule.counts_by_user(), &mut slots);
        if slots.is_empty() {
            return KnownBlock::None;
        }
        if store.recall(&slots).is_some() {
            return KnownBlock::Cached;
        }
        // A store that has to be waited for begins with the first poll, so nothing is sent.
        let Ok(Ok(standings)) = store.check(&slots).at_once() else {
            return KnownBlock::None;
        };
        match refusal_of(policy, caller.scope().without_user(), &standings) {
            Some(refusal) if refusal.reason() == Reason::Blocked => KnownBlock::Blocked(refusal),
            _ => KnownBlock::None,
        }
    }

    /// Whether both are clones of one limiter.
    #[inline]
    pub(crate) fn is_same(&self, other: &Self) -> bool {
        Arc::ptr_eq(&self.shared, &other.shared)
    }

    /// How every rule that applies to this caller stands. Writes nothing and reserves nothing.
    ///
    /// # Errors
    ///
    /// The store failed.
    pub async fn check<'a>(&self, caller: impl Into<Caller<'a>>) -> Result<Report, StoreError> {
        let caller = self.count(caller.into());
        let mut slots = Slots::new();
        caller.push_slots(self.policy(), |_| true, &mut slots);
        let (standings, count) = (self.store().check(&slots), slots.len());
        drop(slots);
        let standings = standings.await?.complete(count)?;
        Ok(Report::new(self.clone(), &caller, standings))
    }

    /// Removes the failures of one user from these addresses, and those same failures from the counters
    /// that the user shares with others: after a password was reset, for example. As with a success, only
    /// failures of this spelling of the name.
    ///
    /// # Errors
    ///
    /// The store failed for one of the addresses. Others may have been cleaned up.
    pub async fn cleanup(
        &self,
        user: &str,
        addresses: impl IntoIterator<Item = IpAddr>,
    ) -> Result<(), StoreError> {
        let addresses: Vec<_> = addresses.into_iter().collect();
        // In chunks, because the deadline of each call runs from the moment it is sent.
        for addresses in addresses.chunks(64) {
            let calls = addresses.iter().map(|address| {
                let caller = self.count((*address, user).into());
                self.clean_up(&caller, None)
            });
            StoreFuture::all(calls.collect()).await?;
        }
        Ok(())
    }

    /// Lifts every block of this caller by removing all failures under the rules that apply. For an
    /// address alone, failures counted per user and address remain; with a user, failures of other
    /// users counted for the address are removed too.
    ///
    /// # Errors
    ///
    /// The store failed.
    pub fn unblock<'a>(&self, caller: impl Into<Caller<'a>>) -> StoreFuture<()> {
        let caller = self.count(caller.into());
        let mut slots = Slots::new();
        caller.push_slots(self.policy(), |_| true, &mut slots);
        let all = Settlement::Cleared { mains: slots.len() };
        (self.store().settle(&[], all, &slots, Duration::ZERO)).map_ok(drop)
    }

    /// Adds an address to those that the user, spelled like this, has logged in from. A success does so by
    /// itself under a policy [with known addresses](Policy::with_known_addresses).
    ///
    /// # Errors
    ///
    /// The store failed.
    pub fn remember(&self, user: &str, address: IpAddr) -> StoreFuture<()> {
        let address = Address::new(address, self.policy().ipv6_prefix());
        let keep = self.policy().known_addresses().unwrap_or_default();
        let user = self.user(user);
        (self.store()).remember(&user.known_addresses(), address, keep)
    }

    /// The addresses that the user, spelled like this, has logged in from, newest first.
    ///
    /// # Errors
    ///
    /// The store failed.
    pub fn known_addresses(&self, user: &str) -> StoreFuture<Vec<Address>> {
        let keep = self.policy().known_addresses().unwrap_or_default();
        self.store().known(&self.user(user).known_addresses(), keep)
    }

    /// Waits until every attempt that came through a
    /// [`LoginRateLimitLayer`](crate::LoginRateLimitLayer) is settled, every [`AttemptFuture`] is
    /// complete, and the store has written the outcomes: the last step of a graceful shutdown, after the
    /// server has stopped accepting requests.
    ///
    /// # Errors
    ///
    /// The store can't write at present. Attempts that it has admitted become failures when their leases
    /// end; failures that it has not received are lost with this process.
    pub async fn all_settled(&self) -> Result<(), StoreError> {
        self.shared.tracker.idle().await;
        self.store().flush().await
    }

    /// Marks something that [`all_settled`](Self::all_settled) waits for.
    #[inline]
    pub(crate) fn track(&self) -> InFlight {
        self.shared.tracker.begin()
    }

    pub(crate) fn set_guards_second_factor(&self) {
        (self.shared.guards_second_factor).store(true, Ordering::Relaxed);
    }

    pub(crate) fn guards_second_factor(&self) -> bool {
        self.shared.guards_second_factor.load(Ordering::Relaxed)
    }

    #[inline]
    pub(crate) fn store(&self) -> &dyn Store {
        &*self.shared.store
    }

    /// Takes an attempt back under these rules, in the background if the store takes time.
    pub(crate) fn take_back(
        &self,
        token: Token,
        caller: &Counted<'_>,
        rules: impl Fn(&Rule) -> bool,
    ) {
        let mut slots = Slots::new();
        caller.push_slots(self.policy(), rules, &mut slots);
        let canceled = Settlement::Canceled;
        let canceled = (self.store()).settle(&[token], canceled, &slots, Duration::ZERO);
        // Dropping the future has a task complete it.
        drop(AttemptFuture::settle(self, canceled.map_ok(drop)));
    }

    /// Logs the blocks that an attempt of this address began, under all rules that apply.
    #[inline]
    pub(crate) fn note_blocks(&self, scope: Scope, address: Address, settled: &Settled) {
        for (position, standing) in &settled.began {
            if let Some(rule) = applying(self.policy(), scope).nth(*position) {
                events::block_began(rule.name(), address, standing);
            }
        }
    }

    /// Cleans up the counters by user and address of this caller, and removes the failures found there
    /// from all others.
    #[inline]
    pub(crate) fn clean_up(&self, caller: &Counted<'_>, token: Option<Token>) -> StoreFuture<()> {
        let is_main = |rule: &Rule| rule.counts_by_user() && rule.counts_by_address();
        let mut slots = Slots::new();
        caller.push_slots(self.policy(), is_main, &mut slots);
        let mains = slots.len();
        let settlement = match token {
            Some(_) => Settlement::Succeeded { mains },
            None => Settlement::Forgiven { mains },
        };
        caller.push_slots(self.policy(), |rule| !is_main(rule), &mut slots);
        let store = self.store();
        (store.settle(token.as_slice(), settlement, &slots, Duration::ZERO)).map_ok(drop)
    }

    #[inline]
    fn count<'a>(&self, caller: Caller<'a>) -> Counted<'a> {
        Counted::new(caller, self.policy(), |user| self.normalize(user))
    }

    pub(crate) fn user<'u>(&self, typed: &'u str) -> User<'u> {
        User::new(Cow::Borrowed(typed), |user| self.normalize(user))
    }

    #[inline]
    pub(crate) fn normalize<'u>(&self, user: &'u str) -> Cow<'u, str> {
        match &self.shared.normalize {
            Some(normalize) => Cow::Owned(normalize(user)),
            None => normalize(user),
        }
    }
}

impl fmt::Debug for LoginLimiter {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("LoginLimiter")
            .field("policy", &self.shared.policy)
            .field("store", &self.shared.store)
            .finish_non_exhaustive()
    }
}

/// What is known of a block without I/O.
pub(crate) enum KnownBlock {
    /// No block is known.
    None,
    /// The caller is blocked.
    Blocked(Refusal),
    /// The caller was blocked according to a cache, which may be stale.
    Cached,
}

/// Why no attempt was reserved.
#[derive(Clone, Debug)]
#[non_exhaustive]
pub enum ReserveError {
    /// A rule refused the attempt.
    Refused(Refusal),
    /// The store could not decide. The attempt is neither refused nor admitted.
    Store(StoreError),
    /// The attempt was settled before, because its request had ended.
    Settled,
}

impl fmt::Display for ReserveError {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(match self {
            Self::Refused(_) => "the attempt was refused",
            Self::Store(_) => "the store could not decide on the attempt",
            Self::Settled => "the attempt was settled when its request ended",
        })
    }
}

impl Error for ReserveError {
    fn source(&self) -> Option<&(dyn Error + 'static)> {
        match self {
            Self::Refused(refusal) => Some(refusal),
            Self::Store(error) => Some(error),
            Self::Settled => None,
        }
    }
}

impl From<StoreError> for ReserveError {
    fn from(error: StoreError) -> Self {
        Self::Store(error)
    }
}
