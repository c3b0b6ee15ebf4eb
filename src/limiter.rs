//! The whole engine, for any async code.

use std::{borrow::Cow, error::Error, fmt, net::IpAddr, sync::Arc};

use smallvec::SmallVec;

use crate::{
    Address, Attempt, Caller, Outcome, Policy, Refusal, Report, Rule, Token,
    attempt::{RuleNumbers, refusal},
    caller::{Counted, known_addresses_of},
    normalise,
    reserving::Reserving,
    settling::{Tracker, UnderWay},
    store::{Slot, Standings, Store, StoreError, StoreFuture},
};

/// Limits attempts to log in, by outcome.
///
/// Reserve an attempt before the password is checked, settle it afterwards. Between the two the
/// attempt is in flight: it takes a place, so that guessing in parallel gains nothing, but it is not
/// a failure, so that many people may log in from one office at the same moment.
///
/// Cloning is cheap, and clones share everything.
///
/// ```
/// use std::net::IpAddr;
/// use tower_login_rate_limit::{LoginLimiter, Outcome, Policy, ReserveError, store::MemoryStore};
///
/// # fn password_is_right() -> bool { false }
/// # async fn example() -> Result<(), Box<dyn std::error::Error>> {
/// let limiter = LoginLimiter::new(Policy::default(), MemoryStore::new());
/// let address: IpAddr = "192.0.2.1".parse()?;
///
/// match limiter.reserve((address, "alice")).await {
///     Ok(attempt) => {
///         let outcome = if password_is_right() { Outcome::Success } else { Outcome::Failure };
///         limiter.settle(attempt, outcome).await?;
///     }
///     Err(ReserveError::Refused(refusal)) => println!("{refusal}"),
///     Err(error) => println!("can't tell: {error}"),
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
    normalise: Option<Normaliser>,
    tracker: Tracker,
}

type Normaliser = Arc<dyn Fn(&str) -> String + Send + Sync>;

impl LoginLimiter {
    /// A limiter with this policy and this store.
    ///
    /// A store that others use too, or that was chosen at run time, is an `Arc<dyn Store>`. Limiters
    /// that share a store share its counters: if their policies differ, so must the names of their
    /// rules, or the one clears what the other still counts.
    pub fn new(policy: Policy, store: impl Store) -> Self {
        Self {
            shared: Arc::new(Shared {
                policy,
                store: Arc::new(store),
                normalise: None,
                tracker: Tracker::default(),
            }),
        }
    }

    /// Gives users one spelling with this function in place of [`normalise`].
    ///
    /// It must make equal exactly what the app's own look-up holds to be equal. If it makes less
    /// equal, each spelling of a user has a budget of its own; if it makes more equal, whoever owns
    /// the one account takes back, by logging in, the failures at the other.
    #[must_use]
    pub fn with_normaliser(
        self,
        normalise: impl Fn(&str) -> String + Send + Sync + 'static,
    ) -> Self {
        let shared = Shared {
            normalise: Some(Arc::new(normalise)),
            ..Shared::clone(&self.shared)
        };
        Self {
            shared: Arc::new(shared),
        }
    }

    /// The policy.
    pub fn policy(&self) -> &Policy {
        &self.shared.policy
    }

    /// Reserves an attempt under every rule that applies to this caller, or under none.
    ///
    /// With an address alone, that is the rules without a user; [`identify`](Self::identify) adds
    /// the others when the user is known.
    ///
    /// One attempt is one check of a password. If the future is dropped before it is done, or there is an
    /// error, nobody will check one, and the attempt is taken back if it was written after all.
    pub fn reserve<'a>(&self, caller: impl Into<Caller<'a>>) -> Reserving {
        let caller = self.count(caller.into());
        let token = Token::new();
        let policy = self.policy();
        let mut slots = Slots::new();
        let rules = applying(policy, &caller, |_| true, &mut slots);
        let standings = self.shared.store.reserve(token, policy.lease(), &slots);
        drop(slots);
        let (standings, later) = match standings.at_once() {
            Ok(Ok(standings)) => (standings, None),
            Ok(Err(error)) => return Reserving::now(Err(error.into())),
            Err(later) => (Standings::default(), Some(later)),
        };
        // Whoever is refused at once costs nothing more.
        if let Some(refusal) = refusal(policy, &rules, &standings) {
            return Reserving::now(Err(ReserveError::Refused(refusal)));
        }
        let attempt = Attempt {
            token,
            caller: caller.into_owned(),
            report: self.report(rules, standings),
            withdrawn: None,
        };
        match later {
            Some(later) => Reserving::later(attempt, later),
            None => Reserving::now(Ok(attempt)),
        }
    }

    /// Names the user of an attempt that is under way, and reserves it under the rules with a user
    /// as well. If one of them refuses, the whole attempt is taken back and nothing is left to
    /// settle.
    ///
    /// If the attempt had another user, as when a mail address turns out to belong to an account,
    /// the new one takes its place; it is also the one whose address becomes known at a success. Naming
    /// the same user again changes nothing. Dropping the future may leave a failure behind.
    pub async fn identify(&self, attempt: &mut Attempt, user: &str) -> Result<(), ReserveError> {
        if let Some(refusal) = &attempt.withdrawn {
            return Err(ReserveError::Refused(Refusal::clone(refusal)));
        }
        let user = self.normalise(user);
        if attempt.caller.user.as_ref() == Some(&user) {
            return Ok(());
        }
        let limiter = attempt.report.limiter.clone();
        let policy = limiter.policy();
        let before = attempt.caller.clone();
        let caller = Counted {
            user: Some(Cow::Owned(user.into_owned())),
            ..before.clone()
        };

        let mut slots = Slots::new();
        let rules = applying(policy, &caller, Rule::counts_by_user, &mut slots);
        let lease = policy.lease();
        let standings = self
            .shared
            .store
            .reserve(attempt.token, lease, &slots)
            .await?;
        drop(slots);
        let user_level = limiter.report(rules, standings);
        let refusal = user_level.refusal();

        // Taking back what no longer holds. Should it fail, those places become failures when the
        // lease ends: a count too many, never one too few.
        let mut stale = Slots::new();
        let is_stale = |rule: &Rule| refusal.is_some() || rule.counts_by_user();
        applying(policy, &before, is_stale, &mut stale);
        if !stale.is_empty() {
            let _ = self.shared.store.cancel(attempt.token, &stale).await;
        }
        match refusal {
            Some(refusal) => {
                attempt.withdrawn = Some(Box::new(refusal.clone()));
                Err(ReserveError::Refused(refusal))
            }
            None => {
                attempt.report = attempt.report.with_users(user_level);
                attempt.caller = caller;
                Ok(())
            }
        }
    }

    /// How every rule that applies to this caller stands. Writes nothing and reserves nothing.
    pub async fn check<'a>(&self, caller: impl Into<Caller<'a>>) -> Result<Report, StoreError> {
        let caller = self.count(caller.into());
        let mut slots = Slots::new();
        let rules = applying(&self.shared.policy, &caller, |_| true, &mut slots);
        let standings = self.shared.store.check(&slots);
        drop(slots);
        Ok(self.report(rules, standings.await?))
    }

    /// Says how an attempt went.
    ///
    /// After an error it is not known whether that was written. If it was not, the attempt becomes
    /// a failure when its lease ends.
    pub fn settle(&self, attempt: Attempt, outcome: Outcome) -> StoreFuture<()> {
        if attempt.withdrawn.is_some() {
            return StoreFuture::now(Ok(()));
        }
        let Attempt { token, caller, .. } = &attempt;
        let store = &self.shared.store;
        let mut slots = Slots::new();
        if outcome != Outcome::Success {
            applying(attempt.policy(), caller, |_| true, &mut slots);
        }
        match outcome {
            Outcome::Failure | Outcome::UnknownUser => store.fail(*token, &slots).done(),
            Outcome::MfaPending | Outcome::NotAnAttempt => store.cancel(*token, &slots).done(),
            Outcome::Success => {
                let cleaned_up = self.clean_up(attempt.policy(), caller, Some(*token));
                let (Some(keep), Some(user)) = (attempt.policy().known_addresses(), &caller.user)
                else {
                    return cleaned_up;
                };
                let remembered = store.remember(&known_addresses_of(user), caller.address, keep);
                StoreFuture::all(vec![cleaned_up, remembered])
            }
        }
    }

    /// Takes back the failures of one user from these addresses, and from what the user shares with
    /// others only those same failures. For a password that was reset, say.
    pub async fn cleanup(
        &self,
        user: &str,
        addresses: impl IntoIterator<Item = IpAddr>,
    ) -> Result<(), StoreError> {
        let addresses: Vec<_> = addresses.into_iter().collect();
        // Some at a time: each call has its deadline from when it is sent.
        for addresses in addresses.chunks(64) {
            let work = addresses.iter().map(|address| {
                let caller = self.count((*address, user).into());
                self.clean_up(&self.shared.policy, &caller, None)
            });
            StoreFuture::all(work.collect()).await?;
        }
        Ok(())
    }

    /// Lifts every block of this caller: forgets all failures under the rules that apply. With an
    /// address alone, what users did from there stays; with a user, what others did from the same
    /// address is forgotten too.
    pub fn unblock<'a>(&self, caller: impl Into<Caller<'a>>) -> StoreFuture<()> {
        let caller = self.count(caller.into());
        let mut slots = Slots::new();
        applying(&self.shared.policy, &caller, |_| true, &mut slots);
        self.shared.store.cleanup(None, &slots, &[])
    }

    /// Keeps an address that the user has logged in from. [`settle`](Self::settle) does so by itself
    /// if the [policy says so](Policy::with_known_addresses).
    pub fn remember(&self, user: &str, address: IpAddr) -> StoreFuture<()> {
        let address = Address::new(address, self.shared.policy.ipv6_prefix());
        let user = self.normalise(user);
        let key = known_addresses_of(&user);
        let keep = self.shared.policy.known_addresses().unwrap_or_default();
        self.shared.store.remember(&key, address, keep)
    }

    /// The addresses that the user has logged in from, the newest first.
    pub fn known_addresses(&self, user: &str) -> StoreFuture<Vec<Address>> {
        let user = self.normalise(user);
        let key = known_addresses_of(&user);
        let keep = self.shared.policy.known_addresses().unwrap_or_default();
        self.shared.store.known(&key, keep)
    }

    /// Waits until every attempt that came through a
    /// [`LoginRateLimitLayer`](crate::LoginRateLimitLayer) is settled, and the store has written that:
    /// the last step of a graceful shutdown, after the server has stopped to take requests.
    ///
    /// # Errors
    ///
    /// The store can't write it at present. Attempts that it admitted become failures when their
    /// leases end; what failed while it was away is forgotten with this process.
    pub async fn all_settled(&self) -> Result<(), StoreError> {
        self.shared.tracker.none_under_way().await;
        self.shared.store.flush().await
    }

    pub(crate) fn begin(&self) -> UnderWay {
        self.shared.tracker.begin()
    }

    /// The counters of what the user did from this address are cleaned up, and what failed there leaves
    /// all others too.
    fn clean_up(
        &self,
        policy: &Policy,
        caller: &Counted<'_>,
        token: Option<Token>,
    ) -> StoreFuture<()> {
        let here = |rule: &Rule| rule.counts_by_user() && rule.counts_by_address();
        let (mut mains, mut others) = (Slots::new(), Slots::new());
        applying(policy, caller, here, &mut mains);
        applying(policy, caller, |rule| !here(rule), &mut others);
        self.shared.store.cleanup(token, &mains, &others)
    }

    fn count<'a>(&self, caller: Caller<'a>) -> Counted<'a> {
        Counted::new(caller, &self.shared.policy, |user| self.normalise(user))
    }

    fn normalise<'u>(&self, user: &'u str) -> Cow<'u, str> {
        match &self.shared.normalise {
            Some(normalise) => Cow::Owned(normalise(user)),
            None => normalise(user),
        }
    }

    fn report(&self, rules: RuleNumbers, standings: Standings) -> Report {
        Report {
            limiter: self.clone(),
            rules,
            standings,
        }
    }
}

type Slots<'a> = SmallVec<[Slot<'a>; 3]>;

/// The rules that are on, chosen and apply to this caller, by their place in the policy, and the
/// counters they ask for. Written to where they stay: they are too large to be moved around.
#[inline]
fn applying<'a>(
    policy: &'a Policy,
    caller: &'a Counted<'_>,
    chosen: impl Fn(&Rule) -> bool,
    slots: &mut Slots<'a>,
) -> RuleNumbers {
    let mut rules = RuleNumbers::new();
    for (rule, i) in policy.rules().iter().zip(0..) {
        if rule.is_enabled()
            && chosen(rule)
            && let Some(slot) = caller.slot(policy, rule)
        {
            rules.push(i);
            slots.push(slot);
        }
    }
    rules
}

impl fmt::Debug for LoginLimiter {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("LoginLimiter")
            .field("policy", &self.shared.policy)
            .field("store", &self.shared.store)
            .finish_non_exhaustive()
    }
}

/// An attempt was not admitted.
///
/// ```
/// use tower_login_rate_limit::ReserveError;
///
/// fn status(error: &ReserveError) -> u16 {
///     match error {
///         ReserveError::Refused(_) => 429,
///         ReserveError::Store(_) => 503,
///     }
/// }
/// ```
#[derive(Clone, Debug)]
pub enum ReserveError {
    /// It was refused.
    Refused(Refusal),
    /// The store could not decide. That is neither a refusal nor a permission.
    Store(StoreError),
}

impl fmt::Display for ReserveError {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Self::Refused(refusal) => refusal.fmt(f),
            Self::Store(error) => error.fmt(f),
        }
    }
}

impl Error for ReserveError {}

impl From<StoreError> for ReserveError {
    fn from(error: StoreError) -> Self {
        Self::Store(error)
    }
}
