//! All findings of one process, kept up to date by its limiter.

use std::{
    fmt,
    sync::{Arc, Mutex, MutexGuard, PoisonError},
};

use tokio::sync::mpsc::{self, error::TrySendError};

use super::{Busiest, BusiestReport, Signals, WrongBlockTable, WrongBlocks, identity::user_id};
use crate::event::{Event, Signal, UserHasher, What};

/// The busiest addresses and users, signals of attacks, and wrong blocks. Give it to a limiter by
/// [`with_insight`](crate::LoginLimiter::with_insight); clones share their findings.
///
/// ```
/// use tower_login_rate_limit::{LoginLimiter, Policy, event::UserHasher, insight::Insight, store::MemoryStore};
///
/// let insight = Insight::new(UserHasher::new("32 random bytes, the same on each server")?);
/// let limiter = LoginLimiter::new(Policy::default(), MemoryStore::new()).with_insight(insight.clone());
/// assert!(insight.busiest(10).addresses.is_empty());
/// # Ok::<(), tower_login_rate_limit::event::SecretError>(())
/// ```
///
/// # In a fleet
///
/// A user is blocked by one process and logs in through another, and an attack is spread over all of them. Give the same
/// insight to the limiter, to the stream of events and to a [`Feed`](crate::event::Feed) that follows the stream: signals
/// and wrong blocks are then those of the whole fleet, however users are shown, and each is emitted once, by one of the
/// processes.
///
/// ```no_run
/// # #[cfg(all(feature = "redis", feature = "serde", feature = "sealed"))]
/// # async fn example() -> Result<(), Box<dyn std::error::Error>> {
/// use std::sync::Arc;
/// use tower_login_rate_limit::{LoginLimiter, Policy, store::RedisStore};
/// use tower_login_rate_limit::event::{Feed, RedisStream, UserHasher};
/// use tower_login_rate_limit::insight::Insight;
///
/// let url = "redis://127.0.0.1:6379";
/// let insight = Insight::new(UserHasher::new("32 random bytes, the same on each server")?);
/// let stream = RedisStream::builder().with_insight(insight.clone()).open(url)?;
/// let stream = Arc::new(stream);
/// let limiter = LoginLimiter::new(Policy::default(), RedisStore::connect(url).await?)
///     .with_observer(Arc::clone(&stream))
///     .with_insight(insight.clone());
/// let feed = Feed::new(10_000).with_insight(insight);
/// feed.follow(stream.reader());
/// # Ok(()) }
/// ```
#[derive(Clone)]
pub struct Insight(Arc<Shared>);

struct Shared {
    hasher: UserHasher,
    findings: Mutex<Findings>,
    /// The limiter that emits what is found.
    limiter: Mutex<Option<Emit>>,
    /// Where it waits until it is agreed on in the fleet who emits it.
    fleet: Mutex<Option<mpsc::Sender<Found>>>,
    /// Different in all processes.
    #[cfg(all(feature = "redis", feature = "serde", feature = "sealed"))]
    mark: crate::Token,
}

type Emit = Arc<dyn Fn(Event) + Send + Sync>;

/// How many findings wait at most.
#[cfg(all(feature = "redis", feature = "serde"))]
const WAITING: usize = 1_024;

struct Findings {
    busiest: Busiest,
    signals: Signals,
    wrong_blocks: WrongBlocks,
}

/// What was found.
#[derive(Debug)]
pub(crate) struct Found {
    pub(crate) event: Event,
    /// The same in all processes that find it, whatever they find it by, and of nothing else for a while.
    #[cfg_attr(not(all(feature = "redis", feature = "serde")), allow(dead_code))]
    // read by fleets
    pub(crate) name: String,
}

impl Insight {
    /// Distinguishes users by this hash, with the same secret on each server.
    #[must_use]
    pub fn new(hasher: UserHasher) -> Self {
        Self(Arc::new(Shared {
            findings: Mutex::new(Findings {
                busiest: Busiest::new(hasher.clone()),
                signals: Signals::new(),
                wrong_blocks: WrongBlocks::new(hasher.clone()),
            }),
            hasher,
            limiter: Mutex::default(),
            fleet: Mutex::default(),
            #[cfg(all(feature = "redis", feature = "serde", feature = "sealed"))]
            mark: crate::Token::new(),
        }))
    }

    /// Sets when attempts look like an attack. To be called before it is given to a limiter.
    #[must_use]
    pub fn with_signals(self, signals: Signals) -> Self {
        self.lock().signals = signals;
        self
    }

    /// The busiest addresses and users that this process has seen. `Admin::busiest` adds those of the others.
    #[must_use]
    pub fn busiest(&self, count: usize) -> BusiestReport {
        self.lock().busiest.report(count)
    }

    /// Blocks by rule and day, and how many were probably wrong, as far as this process has seen it: by its own events,
    /// and by those of the [fleet](Self#in-a-fleet), as far as the stream has them.
    #[must_use]
    pub fn wrong_blocks(&self) -> WrongBlockTable {
        self.lock().wrong_blocks.table().clone()
    }

    /// Takes notice of an event, and returns what is found by it.
    pub(crate) fn record(&self, event: &Event) -> Vec<Found> {
        let user = self.user(event);
        let mut findings = self.lock();
        findings.busiest.record_of(event, user);
        let mut found = self.signals(&mut findings, event, user);
        found.extend(findings.wrong_blocks.record_of(event, user));
        found
    }

    fn user(&self, event: &Event) -> Option<u64> {
        let user = event.user.as_ref();
        user.and_then(|user| user_id(user, &self.0.hasher))
    }

    fn signals(&self, findings: &mut Findings, event: &Event, user: Option<u64>) -> Vec<Found> {
        let signals = findings.signals.record_of(event, user).into_iter();
        let found = signals.map(|event| Found {
            name: match (&event.what, event.address) {
                (What::Signal(Signal::ManyUsers { .. }), Some(address)) => {
                    format!("many_users {address}")
                }
                (What::Signal(Signal::ManyAddresses { .. }), _) => {
                    format!("many_addresses {:016x}", user.unwrap_or_default())
                }
                _ => "failure_rate".to_owned(),
            },
            event,
        });
        found.collect()
    }

    /// Emits what this process has found, unless another process of the fleet does.
    pub(crate) fn emit_or_share(&self, found: Found) {
        let fleet = self.fleet().clone();
        // Nobody is asked while the stream is not followed, or if too much waits.
        let left = match fleet {
            Some(fleet) => fleet.try_send(found).err().map(TrySendError::into_inner),
            None => Some(found),
        };
        left.and_then(|found| self.emit(found.event));
    }

    /// Emits what was found, by the limiter. Returns it if there is none.
    pub(crate) fn emit(&self, event: Event) -> Option<Event> {
        let emit = self.limiter().clone();
        match emit {
            Some(emit) => {
                emit(event);
                None
            }
            None => Some(event),
        }
    }

    /// Has a limiter emit what is found. If clones are given to several, it is the last.
    pub(crate) fn emit_by(&self, emit: impl Fn(Event) + Send + Sync + 'static) {
        *self.limiter() = Some(Arc::new(emit));
    }

    fn limiter(&self) -> MutexGuard<'_, Option<Emit>> {
        (self.0.limiter.lock()).unwrap_or_else(PoisonError::into_inner)
    }

    fn fleet(&self) -> MutexGuard<'_, Option<mpsc::Sender<Found>>> {
        (self.0.fleet.lock()).unwrap_or_else(PoisonError::into_inner)
    }

    fn lock(&self) -> MutexGuard<'_, Findings> {
        // Counts may lack the event that panicked.
        (self.0.findings.lock()).unwrap_or_else(PoisonError::into_inner)
    }
}

/// What only the stream of a fleet needs.
#[cfg(all(feature = "redis", feature = "serde"))]
impl Insight {
    /// Takes notice of an event of another process, and returns what is found by it. Of one that is `late`, nothing is:
    /// it is no sign of an attack now, and others have found it then.
    pub(crate) fn record_of_other(&self, event: &Event, late: bool) -> Vec<Found> {
        let user = self.user(event);
        let mut findings = self.lock();
        // That of others is in their reports.
        if !self.has_limiter() {
            findings.busiest.record_of(event, user);
        }
        let wrong = findings.wrong_blocks.record_of(event, user);
        if late {
            return Vec::new();
        }
        let mut found = self.signals(&mut findings, event, user);
        found.extend(wrong);
        found
    }

    /// Whether a limiter emits what is found.
    pub(crate) fn has_limiter(&self) -> bool {
        self.limiter().is_some()
    }

    /// What this process finds from now on, before it is emitted.
    pub(crate) fn shared(&self) -> mpsc::Receiver<Found> {
        let (sender, receiver) = mpsc::channel(WAITING);
        *self.fleet() = Some(sender);
        receiver
    }

    /// What it is called in the whole fleet, by those who have the secret.
    pub(crate) fn id_of(&self, found: &Found) -> u64 {
        self.0.hasher.id(&found.name)
    }

    /// Beside an event in the stream: that this insight has noticed it.
    #[cfg(feature = "sealed")]
    pub(crate) fn mark(&self) -> &[u8] {
        self.0.mark.as_bytes()
    }

    #[cfg(feature = "sealed")]
    pub(crate) fn hasher(&self) -> &UserHasher {
        &self.0.hasher
    }
}

impl fmt::Debug for Insight {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("Insight").finish_non_exhaustive()
    }
}
