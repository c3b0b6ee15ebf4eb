//! The limiter, independent of HTTP.

mod began;
mod block_gauge;
mod in_force;
mod lifted;
mod newest;
mod telemetry;

pub(crate) use self::newest::Newest;
use self::{block_gauge::IsDue, lifted::Watched, telemetry::Telemetry};
#[cfg(feature = "admin")]
pub(crate) use in_force::Canary;
pub(crate) use in_force::{Access, Allowed, InForce};

use std::{
    borrow::Cow,
    error::Error,
    fmt,
    net::{IpAddr, Ipv4Addr},
    sync::{
        Arc,
        atomic::{AtomicBool, Ordering},
    },
    time::Duration,
};

use arc_swap::{ArcSwap, Guard};

#[cfg(feature = "admin")]
use crate::live::LiveState;
use crate::{
    Address, Attempt, AttemptFuture, Caller, MaybeReady, Policy, PolicyError, Reason, Refusal,
    Report, Rule, Token,
    access::{AccessDenied, AccessQuery, AccessRules},
    attempt::{Counted, InFlight, Reservation, Slots, Tracker, User, Within, refusal_of},
    event::LiftedBy,
    metrics::{Metrics, StoreCall},
    normalize,
    store::{Settlement, Standings, Store, StoreError, StoreFuture, StoreStatus},
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
        let token = (token, None);
        let reject = |error, _: Counted<'_>| error;
        let decided = self.decide_with(token, &in_force, caller, access, Attempt::new, reject);
        AttemptFuture::reserve(self, decided.map_or_else(|call| call, MaybeReady::ready))
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
        let (policy, caller) = self.resumed(caller.into());
        let standings = Standings::default();
        let reservation = Reservation::new(self, policy, token, caller, standings, None);
        Attempt::new(reservation)
    }

    /// As [`resume`](Self::resume), for an attempt that this access rule has allowed.
    #[cfg(feature = "server")]
    pub(crate) fn resume_allowed(&self, token: Token, caller: Caller<'_>, by: Allowed) -> Attempt {
        let (policy, caller) = self.resumed(caller);
        Attempt::new(Reservation::allowed(self, policy, token, caller, by, None))
    }

    fn resumed<'a>(&self, caller: Caller<'a>) -> (Arc<Policy>, Counted<'a>) {
        let policy = Arc::clone(self.in_force().policy(caller.address));
        let caller = self.count(&policy, caller);
        self.metrics().resumed();
        (policy, caller)
    }

    /// What the access rules make of a caller, as far as it is known without a request.
    #[inline]
    fn access_of(&self, in_force: &InForce, caller: &Caller<'_>) -> Access {
        if in_force.access.is_empty() {
            Access::Limited
        } else {
            self.access(in_force, caller.access_query(), caller.user.as_deref())
        }
    }

    /// What the access rules make of a request, whose user is as it was typed.
    #[inline]
    pub(crate) fn access(
        &self,
        in_force: &InForce,
        query: AccessQuery<'_>,
        user: Option<&str>,
    ) -> Access {
        match user {
            Some(user) if in_force.access.compares_users() => {
                in_force.access(&query.with_user(&self.normalize(user)))
            }
            _ => in_force.access(&query),
        }
    }

    /// Reserves an attempt, with a plain future: dropping that one may leave a failure behind. Within another
    /// attempt of the same request, it has the token of that one, and counters that both have count it once.
    #[inline]
    pub(crate) fn decide<A, E: Send + 'static>(
        &self,
        in_force: &InForce,
        caller: Caller<'_>,
        access: Access,
        within: Option<Box<Within>>,
        admit: impl FnOnce(Reservation) -> A,
        reject: fn(ReserveError, Counted<'_>) -> E,
    ) -> Decided<A, E> {
        let token = (within.as_ref()).map_or_else(Token::new, |outer| outer.token());
        self.decide_with((token, within), in_force, caller, access, admit, reject)
    }

    #[inline]
    fn decide_with<A, E: Send + 'static>(
        &self,
        (token, within): (Token, Option<Box<Within>>),
        in_force: &InForce,
        caller: Caller<'_>,
        access: Access,
        admit: impl FnOnce(Reservation) -> A,
        reject: fn(ReserveError, Counted<'_>) -> E,
    ) -> Decided<A, E> {
        // One login is decided under one policy.
        let policy = match &within {
            Some(outer) => outer.policy(),
            None => in_force.policy(caller.address),
        };
        let caller = self.count(policy, caller);
        // A layer further out has noted it.
        if within.is_none() {
            self.note_access(&caller, token, &access);
        }
        match access {
            Access::Limited => {}
            Access::Allowed(allowed) => {
                if within.is_none() {
                    self.metrics().admitted();
                }
                let policy = Arc::clone(policy);
                let allowed = Reservation::allowed(self, policy, token, caller, allowed, within);
                return Ok(Ok(admit(allowed)));
            }
            Access::Denied(denied) => {
                return Ok(Err(reject(ReserveError::Denied(denied), caller)));
            }
        }
        let mut slots = Slots::new();
        caller.push_slots(policy, |_| true, &mut slots);
        let standings = self.store().reserve(token, policy.lease(), &slots);
        let standings = self.measured(StoreCall::Reserve, standings);
        let count = slots.len();
        drop(slots);
        match standings.at_once() {
            // The refusal comes first: refused callers must not cost a copy of their name.
            Ok(standings) => Ok(
                match self.reserved(policy, token, &caller, standings, count) {
                    Ok(standings) => {
                        if within.is_none() {
                            self.metrics().admitted();
                        }
                        let policy = Arc::clone(policy);
                        let reservation =
                            Reservation::new(self, policy, token, caller, standings, within);
                        Ok(admit(reservation))
                    }
                    Err(error) => Err(reject(error, caller)),
                },
            ),
            Err(standings) => {
                let (limiter, caller) = (self.clone(), caller.into_owned());
                let policy = Arc::clone(policy);
                Err(MaybeReady::pending(async move {
                    let standings = standings.await;
                    match limiter.reserved(&policy, token, &caller, standings, count) {
                        Ok(standings) => {
                            if within.is_none() {
                                limiter.metrics().admitted();
                            }
                            Ok(Attempt::new(Reservation::new(
                                &limiter, policy, token, caller, standings, within,
                            )))
                        }
                        Err(error) => Err(reject(error, caller)),
                    }
                }))
            }
        }
    }

    /// The standings of an attempt that the store has admitted, in `count` counters.
    #[inline]
    fn reserved(
        &self,
        policy: &Policy,
        token: Token,
        caller: &Counted<'_>,
        standings: Result<Standings, StoreError>,
        count: usize,
    ) -> Result<Standings, ReserveError> {
        let error = match standings {
            Ok(standings) if standings.len() == count => {
                match refusal_of(policy, caller.scope(), &standings) {
                    Some(refusal) => ReserveError::Refused(refusal),
                    None => return Ok(standings),
                }
            }
            Ok(standings) => {
                self.take_back(policy, token, caller, |_| true);
                standings.incomplete(count).into()
            }
            Err(error) => error.into(),
        };
        self.note_rejected(caller, &error);
        Err(error)
    }

    /// Whether the rules without a user block this caller, as far as the store knows without I/O.
    pub(crate) fn known_block(&self, caller: Caller<'_>) -> KnownBlock {
        let (in_force, store) = (self.in_force(), self.store());
        let policy = in_force.policy(caller.address);
        let caller = self.count(policy, caller);
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
            Some(refusal) if refusal.reason() == Reason::Blocked => {
                self.note_refused(&caller, &refusal);
                KnownBlock::Blocked(refusal)
            }
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
        self.forgive(user, &addresses, false, Some(LiftedBy::App))
            .await
    }

    /// As [`cleanup`](Self::cleanup), for the failures of every spelling if that is wanted. The blocks that end are
    /// reported, unless the caller does it.
    pub(crate) async fn forgive(
        &self,
        user: &str,
        addresses: &[IpAddr],
        every_spelling: bool,
        by: Option<LiftedBy>,
    ) -> Result<(), StoreError> {
        let settlement = |mains| {
            if every_spelling {
                Settlement::Cleared { mains }
            } else {
                Settlement::Forgiven { mains }
            }
        };
        // In chunks, because the deadline of each call runs from the moment it is sent.
        for addresses in addresses.chunks(64) {
            let calls = addresses.iter().map(|address| {
                let in_force = self.in_force();
                let policy = in_force.policy(*address);
                let caller = self.count(policy, (*address, user).into());
                self.clean_up(policy, &caller, &[], settlement, by.clone())
            });
            StoreFuture::all(calls.collect()).await?;
        }
        Ok(())
    }

    /// Lifts the block of a caller by removing all failures, in every spelling, from exactly the counters that are
    /// the caller's own: for an address the counters by address, for a user at an address the counters by user and
    /// address. No other counter changes, so the user may still be refused at an address that is blocked, and an
    /// address in an IPv6 network that is.
    ///
    /// [`unblock_user`](Self::unblock_user) lifts the block of an account. With the feature `admin`,
    /// `admin` (feature `admin`) lifts those of networks and of a user everywhere, reports what still refuses, and records
    /// who did it.
    ///
    /// # Errors
    ///
    /// The store failed.
    pub fn unblock<'a>(&self, caller: impl Into<Caller<'a>>) -> StoreFuture<()> {
        let (caller, in_force) = (caller.into(), self.in_force());
        let policy = in_force.policy(caller.address);
        let caller = self.count(policy, caller);
        let has_user = caller.user.is_some();
        self.clear(policy, &caller, move |rule| {
            let is_own = rule.counts_by_user() || rule.network().is_none();
            rule.counts_by_address() && rule.counts_by_user() == has_user && is_own
        })
    }

    /// Lifts the block of an account by removing all failures, in every spelling, from the counters by user over all
    /// addresses. What is counted for the user at single addresses remains.
    ///
    /// # Errors
    ///
    /// The store failed.
    pub fn unblock_user(&self, user: &str) -> StoreFuture<()> {
        let in_force = self.in_force();
        // Which address it is makes no difference to rules without one.
        let caller = Caller::new(Ipv4Addr::UNSPECIFIED.into()).with_user(user);
        let caller = caller.with_second_factor(true);
        let canary = in_force.canary.as_ref().map(|canary| &canary.policy);
        let policies = std::iter::once(&in_force.policy).chain(canary);
        let cleared = policies.map(|policy| {
            let caller = self.count(policy, caller.clone());
            self.clear(policy, &caller, |rule| {
                rule.counts_by_user() && !rule.counts_by_address()
            })
        });
        StoreFuture::all(cleared.collect())
    }

    /// Removes all failures from the counters of a caller under these rules.
    fn clear(
        &self,
        policy: &Arc<Policy>,
        caller: &Counted<'_>,
        rules: impl Fn(&Rule) -> bool + Send + 'static,
    ) -> StoreFuture<()> {
        let mut slots = Slots::new();
        caller.push_slots(policy, &rules, &mut slots);
        let all = Settlement::Cleared { mains: slots.len() };
        let cleared = self.store().settle(&[], all, &slots, Duration::ZERO);
        drop(slots);
        let (limiter, policy) = (self.clone(), Arc::clone(policy));
        let caller = caller.clone().into_owned();
        cleared.map_ok(move |settled| {
            let mut slots = Slots::new();
            caller.push_slots(&policy, rules, &mut slots);
            limiter.note_lifted(&policy, &caller, &settled, &slots, LiftedBy::App);
        })
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

    /// Takes an attempt back under these rules, in the background if the store takes time.
    pub(crate) fn take_back(
        &self,
        policy: &Policy,
        token: Token,
        caller: &Counted<'_>,
        rules: impl Fn(&Rule) -> bool,
    ) {
        let mut slots = Slots::new();
        caller.push_slots(policy, rules, &mut slots);
        let canceled = Settlement::Canceled;
        let canceled = (self.store()).settle(&[token], canceled, &slots, Duration::ZERO);
        // Dropping the future has a task complete it.
        drop(AttemptFuture::settle(self, canceled.map_ok(drop)));
    }

    /// Cleans up the counters by user and address of this caller, and removes the failures found there
    /// from all others.
    #[inline]
    pub(crate) fn clean_up(
        &self,
        policy: &Arc<Policy>,
        caller: &Counted<'_>,
        tokens: &[Token],
        settlement: impl Fn(usize) -> Settlement,
        by: Option<LiftedBy>,
    ) -> StoreFuture<()> {
        let mut slots = Slots::new();
        let settlement = settlement(caller.push_mains_and_others(policy, &mut slots));
        let store = self.store();
        let settled = store.settle(tokens, settlement, &slots, Duration::ZERO);
        let settled = self.measured(StoreCall::Settle, settled);
        let is_noted = Metrics::IS_ENABLED || self.is_observed();
        let Some(by) = by.filter(|_| is_noted) else {
            return settled.map_ok(drop);
        };
        match settled.at_once() {
            Ok(settled) => StoreFuture::ready(settled.map(|settled| {
                self.note_lifted(policy, caller, &settled, &slots, by);
            })),
            Err(settled) => {
                drop(slots);
                let (limiter, policy) = (self.clone(), Arc::clone(policy));
                let caller = caller.clone().into_owned();
                settled.map_ok(move |settled| {
                    if !settled.lifted.is_empty() {
                        let mut slots = Slots::new();
                        caller.push_mains_and_others(&policy, &mut slots);
                        limiter.note_lifted(&policy, &caller, &settled, &slots, by);
                    }
                })
            }
        }
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

/// What `admit` made of the attempt, or why there is none; the future of it if the store has to be waited for.
pub(crate) type Decided<A, E> = Result<Result<A, E>, MaybeReady<Result<Attempt, E>>>;

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
    /// An access rule denied the request.
    Denied(AccessDenied),
    /// The attempt was settled before, because its request had ended.
    Settled,
}

impl fmt::Display for ReserveError {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(match self {
            Self::Refused(_) => "the attempt was refused",
            Self::Store(_) => "the store could not decide on the attempt",
            Self::Denied(_) => "an access rule denied the request",
            Self::Settled => "the attempt was settled when its request ended",
        })
    }
}

impl Error for ReserveError {
    fn source(&self) -> Option<&(dyn Error + 'static)> {
        match self {
            Self::Refused(refusal) => Some(refusal),
            Self::Store(error) => Some(error),
            Self::Denied(denied) => Some(denied),
            Self::Settled => None,
        }
    }
}

impl From<StoreError> for ReserveError {
    fn from(error: StoreError) -> Self {
        Self::Store(error)
    }
}
