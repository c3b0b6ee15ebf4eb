//! The limiter, independent of HTTP.

mod began;
mod block_gauge;
#[cfg(feature = "admin")]
pub(crate) mod block_note;
mod decide;
mod error;
mod forgive;
mod in_force;
mod lifted;
mod newest;
mod telemetry;

use self::{block_gauge::IsDue, lifted::Watched, telemetry::Telemetry};
pub(crate) use self::{
    decide::{Decided, KnownBlock},
    newest::Newest,
};
pub use error::ReserveError;
#[cfg(feature = "admin")]
pub(crate) use in_force::Canary;
pub(crate) use in_force::{Access, Allowed, InForce};

use std::{
    borrow::Cow,
    fmt,
    net::IpAddr,
    sync::{
        Arc,
        atomic::{AtomicBool, Ordering},
    },
};

use arc_swap::{ArcSwap, Guard};

#[cfg(feature = "admin")]
use crate::live::LiveState;
use crate::{
    Address, Attempt, AttemptFuture, Caller, Policy, PolicyError, Report, Rule, Token,
    access::AccessRules,
    attempt::{Counted, InFlight, Reservation, Slots, Tracker, User},
    metrics::StoreCall,
    normalize,
    store::{Standings, Store, StoreError, StoreFuture, StoreStatus},
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

pub(crate) struct Shared {
    newest: Newest,
    in_force: ArcSwap<InForce>,
    #[cfg(feature = "admin")]
    live: Arc<LiveState>,
    store: Arc<dyn Store>,
    normalize: Option<Normalizer>,
    telemetry: Telemetry,
    watched: Watched,
    is_count_due: IsDue,
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
        let newest = Newest::default();
        let limiter = Self {
            shared: Arc::new(Shared {
                newest: newest.clone(),
                #[cfg(feature = "admin")]
                live: Arc::default(),
                in_force: ArcSwap::from_pointee(InForce::new(
                    0,
                    policy,
                    None,
                    AccessRules::default(),
                )),
                store: Arc::new(store),
                normalize: None,
                telemetry: Telemetry::default(),
                watched: Watched::default(),
                is_count_due: IsDue::default(),
                tracker: Tracker::default(),
                guards_second_factor: Arc::new(AtomicBool::new(is_unlimited)),
            }),
        };
        newest.set(&limiter.shared);
        let listener = newest.clone();
        limiter.store().on_change(Arc::new(move |change| {
            if let Some(limiter) = listener.upgrade() {
                limiter.note_store_change(change);
            }
        }));
        limiter
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
        let normalize: Normalizer = Arc::new(normalize);
        let limiter = self.with(|shared| shared.normalize = Some(normalize));
        // Rules that were set before compare users in the new form too. One whose user has no normal form any more
        // would match none, and an error for that is in `with_access_rules`.
        match limiter.compile(limiter.access_rules()) {
            Ok(access) => limiter.with(|shared| {
                let in_force = InForce {
                    access,
                    ..InForce::clone(&shared.in_force.load())
                };
                shared.in_force = ArcSwap::from_pointee(in_force);
            }),
            Err(_) => limiter,
        }
    }

    /// Decides by these rules ahead of the policy: a request that one allows passes without being counted, and
    /// one that is denied is refused without being counted. See [`access`](crate::access).
    ///
    /// # Errors
    ///
    /// If the normal form of a user in a rule is empty, by the limiter's
    /// [normalizer](Self::with_normalizer).
    pub fn with_access_rules(self, rules: AccessRules) -> Result<Self, PolicyError> {
        let access = self.compile(rules)?;
        Ok(self.with(|shared| {
            let in_force = InForce {
                access,
                ..InForce::clone(&shared.in_force.load())
            };
            shared.in_force = ArcSwap::from_pointee(in_force);
        }))
    }

    /// The rules as they are compared with the users of this limiter.
    pub(crate) fn compile(&self, rules: AccessRules) -> Result<AccessRules, PolicyError> {
        match &self.shared.normalize {
            None => Ok(rules),
            Some(normalize) => {
                let normalize = Arc::clone(normalize);
                rules.with_normalizer(move |user| normalize(user))
            }
        }
    }

    /// The same limiter with another setting. Clones that were made before keep theirs.
    fn with(self, set: impl FnOnce(&mut Shared)) -> Self {
        let mut shared = Shared::clone(&self.shared);
        set(&mut shared);
        let shared = Arc::new(shared);
        shared.newest.set(&shared);
        Self { shared }
    }

    /// The policy in force.
    pub fn policy(&self) -> Arc<Policy> {
        Arc::clone(&self.shared.in_force.load().policy)
    }

    /// The access rules in force.
    pub fn access_rules(&self) -> AccessRules {
        self.shared.in_force.load().access.clone()
    }

    /// The version of the policy and the access rules in force, or 0 for those that the process was started with.
    pub fn version(&self) -> u64 {
        self.in_force().version
    }

    /// Decides by this from now on. Attempts under way finish under the policy that they began with.
    #[cfg(feature = "admin")]
    pub(crate) fn set_in_force(&self, in_force: InForce) {
        self.shared.in_force.store(Arc::new(in_force));
    }

    #[cfg(feature = "admin")]
    pub(crate) fn live_state(&self) -> &LiveState {
        &self.shared.live
    }

    /// A handle that does not keep the limiter in use.
    pub(crate) fn downgrade(&self) -> Newest {
        self.shared.newest.clone()
    }

    /// What is in force, for one decision.
    #[inline]
    pub(crate) fn in_force(&self) -> Guard<Arc<InForce>> {
        self.shared.in_force.load()
    }

    /// Reserves an attempt under every rule that applies to this caller, or under none.
    ///
    /// Without a user these are the rules without a user; [`Attempt::identify`] adds the others once the
    /// user is known. One attempt stands for one password check.
    ///
    /// # Errors
    ///
    /// [`ReserveError::Refused`] if a rule refuses the attempt, [`ReserveError::Denied`] if an access rule
    /// denies it, [`ReserveError::Store`] if the store can't decide. Nothing is counted in any of these cases.
    #[inline]
    pub fn reserve<'a>(
        &self,
        caller: impl Into<Caller<'a>>,
    ) -> AttemptFuture<Result<Attempt, ReserveError>> {
        self.reserve_with_token(Token::new(), caller)
    }

    /// As [`reserve`](Self::reserve), with a token that was chosen before: reserving again with the same token, since
    /// the reply was lost, is the same attempt.
    ///
    /// A token stands for one check of a password. It must be new and unguessable, never a value that clients choose
    /// or that outlives the attempt: a token that is still counted is admitted again, also if its attempt has failed.
    ///
    /// # Errors
    ///
    /// As for [`reserve`](Self::reserve).
    #[inline]
    pub fn reserve_with_token<'a>(
        &self,
        token: Token,
        caller: impl Into<Caller<'a>>,
    ) -> AttemptFuture<Result<Attempt, ReserveError>> {
        let (caller, in_force) = (caller.into(), self.in_force());
        let access = self.access_of(&in_force, &caller);
        let reject = |error, _: Counted<'_>| error;
        let admit = Attempt::new;
        let decided = self.decide_with((token, None), &in_force, caller, access, admit, reject);
        AttemptFuture::reserve(self, decided.into_future())
    }

    /// The attempt that was reserved with this token for this caller, here or by another process with the same store,
    /// and then [detached](Attempt::detach): to settle it.
    ///
    /// It is settled under the policy that is in force now, and its [report](Attempt::report) is empty. Access rules were
    /// asked when it was reserved, and are not asked again: what one of them has [allowed](Attempt::allowed_by) is in no
    /// counter, and need not be resumed. With a token that the store does not hold for this caller, no outcome changes a
    /// counter, and a success still makes the address known. One that has failed before is taken back by every outcome
    /// but a failure: to report an outcome once is up to the caller.
    pub fn resume<'a>(&self, token: Token, caller: impl Into<Caller<'a>>) -> Attempt {
        let caller = caller.into();
        let policy = Arc::clone(self.in_force().policy(caller.address));
        self.resume_under(policy, token, caller)
    }

    /// As [`resume`](Self::resume), under the policy that the attempt was reserved under.
    pub(crate) fn resume_under(
        &self,
        policy: Arc<Policy>,
        token: Token,
        caller: Caller<'_>,
    ) -> Attempt {
        self.metrics().resumed();
        let (caller, standings) = (self.count(&policy, caller), Standings::default());
        Attempt::new(Reservation::new(
            self, policy, token, caller, standings, None,
        ))
    }

    /// As [`resume_under`](Self::resume_under), for an attempt that this access rule has allowed.
    #[cfg(feature = "server")]
    pub(crate) fn resume_allowed(
        &self,
        policy: Arc<Policy>,
        token: Token,
        caller: Caller<'_>,
        by: Allowed,
    ) -> Attempt {
        self.metrics().resumed();
        let caller = self.count(&policy, caller);
        Attempt::new(Reservation::allowed(self, policy, token, caller, by, None))
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
        let caller = caller.into();
        let policy = Arc::clone(self.in_force().policy(caller.address));
        let caller = self.count(&policy, caller);
        let mut slots = Slots::new();
        caller.push_slots(&policy, |_| true, &mut slots);
        let (standings, count) = (self.store().check(&slots), slots.len());
        let standings = self.measured(StoreCall::Check, standings);
        drop(slots);
        let standings = standings.await?.complete(count)?;
        Ok(Report::new(policy, &caller, standings))
    }

    /// Adds an address to those that the user, spelled like this, has logged in from. A success does so by
    /// itself under a policy [with known addresses](Policy::with_known_addresses).
    ///
    /// # Errors
    ///
    /// The store failed.
    pub fn remember(&self, user: &str, address: IpAddr) -> StoreFuture<()> {
        let in_force = self.in_force();
        let policy = in_force.policy(address);
        let address = Address::new(address, policy.ipv6_prefix());
        let keep = policy.known_addresses().unwrap_or_default();
        let user = self.user(user);
        (self.store()).remember(&user.known_addresses(), address, keep)
    }

    /// The addresses that the user, spelled like this, has logged in from, newest first.
    ///
    /// # Errors
    ///
    /// The store failed.
    pub fn known_addresses(&self, user: &str) -> StoreFuture<Vec<Address>> {
        let keep = self.in_force().policy.known_addresses();
        let keep = keep.unwrap_or_default();
        let known = self.store().known(&self.user(user).known_addresses(), keep);
        self.measured(StoreCall::Known, known)
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
        let flushed = self.store().flush().await;
        self.observed().await;
        flushed
    }

    /// Marks something that [`all_settled`](Self::all_settled) waits for.
    #[inline]
    pub(crate) fn track(&self) -> InFlight {
        self.tracker().begin()
    }

    /// What [`all_settled`](Self::all_settled) waits for.
    #[inline]
    pub(crate) fn tracker(&self) -> &Tracker {
        &self.shared.tracker
    }

    pub(crate) fn set_guards_second_factor(&self) {
        (self.shared.guards_second_factor).store(true, Ordering::Relaxed);
    }

    pub(crate) fn guards_second_factor(&self) -> bool {
        self.shared.guards_second_factor.load(Ordering::Relaxed)
    }

    /// State and counters of the store. Sends no command.
    pub fn store_status(&self) -> StoreStatus {
        self.store().status()
    }

    #[inline]
    pub(crate) fn store(&self) -> &dyn Store {
        &*self.shared.store
    }

    #[inline]
    fn count<'a>(&self, policy: &Policy, caller: Caller<'a>) -> Counted<'a> {
        Counted::new(caller, policy, |user| self.normalize(user))
    }

    pub(crate) fn user<'u>(&self, typed: &'u str) -> User<'u> {
        User::new(Cow::Borrowed(typed), |user| self.normalize(user))
    }

    /// The user in the normal form by which this limiter counts, see [`with_normalizer`](Self::with_normalizer).
    #[inline]
    pub fn normalize<'u>(&self, user: &'u str) -> Cow<'u, str> {
        match &self.shared.normalize {
            Some(normalize) => Cow::Owned(normalize(user)),
            None => normalize(user),
        }
    }
}

impl Clone for Shared {
    fn clone(&self) -> Self {
        Self {
            newest: self.newest.clone(),
            in_force: ArcSwap::new(self.in_force.load_full()),
            #[cfg(feature = "admin")]
            live: Arc::clone(&self.live),
            store: Arc::clone(&self.store),
            normalize: self.normalize.clone(),
            telemetry: self.telemetry.clone(),
            watched: Arc::clone(&self.watched),
            is_count_due: Arc::clone(&self.is_count_due),
            tracker: self.tracker.clone(),
            guards_second_factor: Arc::clone(&self.guards_second_factor),
        }
    }
}

impl fmt::Debug for LoginLimiter {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("LoginLimiter")
            .field("policy", &self.policy())
            .field("store", &self.shared.store)
            .finish_non_exhaustive()
    }
}
