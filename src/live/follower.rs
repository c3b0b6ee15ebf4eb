//! Puts new versions in force, on every instance.

use std::{
    sync::{
        Arc, Mutex, OnceLock, PoisonError,
        atomic::{AtomicU64, Ordering},
    },
    time::Duration,
};

use tokio::time::{Instant, sleep, timeout};

use super::{Instance, Ruleset, Version};
use crate::{
    LoginLimiter, PolicyError, Token,
    admin::AdminError,
    clock::{Clock, SystemClock},
    limiter::Newest,
    logging,
    store::{Announcements, Ledger},
};

/// How often the version is polled. Announcements are faster, and may be lost.
const POLL_EVERY: Duration = Duration::from_millis(500);
/// How often an instance reports itself, and for how long that is believed.
const REPORT_EVERY: Duration = Duration::from_secs(5);
const REPORTED_FOR: Duration = Duration::from_secs(15);
/// How many addresses and users it reports at most, and if those do not fit.
const REPORTED_BUSIEST: [usize; 4] = [8, 4, 2, 0];
/// How long a report may be, in bytes.
const MAX_REPORT: usize = 4 * 1024;
/// How long the store has to be without a version before the one in force is written back: another instance may
/// have a newer one, or an operator may be writing.
const LOST_AFTER: Duration = Duration::from_secs(2);

/// What is known of the ruleset in the store.
#[derive(Debug, Default)]
pub(crate) struct LiveState {
    /// What the process was started with.
    initial: OnceLock<Ruleset>,
    /// The text of the version in force, to write it back. Locked while a version is put in force.
    text: Mutex<Option<Arc<str>>>,
    /// The version that can't be put in force.
    unreadable: AtomicU64,
    /// The id under which this instance reports itself.
    id: OnceLock<String>,
    /// Why a newer version is not in force.
    problem: Mutex<Option<String>>,
}

impl LoginLimiter {
    /// Puts the ruleset of the store in force, if there is one, and follows its changes for as long as the limiter
    /// is used. The policy that the limiter was made with applies until there is one.
    ///
    /// To be called within a Tokio runtime. Every instance that decides on logins needs it; one that only
    /// administers does not: it reads the newest version with each call.
    ///
    /// If the store loses its data, the instances write back what they enforce.
    ///
    /// # Errors
    ///
    /// If the store can't be operated, can't be read, or has a ruleset that this version of the crate can't read.
    pub async fn live(self) -> Result<Self, AdminError> {
        let ledger = (self.store().ledger()).ok_or_else(AdminError::unsupported)?;
        // Subscribed first, so that no change is missed in between.
        let announcements = ledger.announcements();
        if let Some(document) = ledger.document().await? {
            let version = Version::from_text(document.version, &document.text)
                .map_err(|error| AdminError::unreadable(document.version, &error))?;
            (self.put_in_force(version.version, &version.ruleset, Some(&document.text)))
                .map_err(|error| AdminError::unreadable(document.version, &error))?;
        }
        let follower = Follower {
            limiter: self.downgrade(),
            ledger,
            id: (self.live_state().id)
                .get_or_init(|| Token::new().to_string())
                .clone(),
            started: SystemClock.now(),
        };
        tokio::spawn(follower.run(announcements));
        Ok(self)
    }

    /// The id under which this instance reports itself, if it is live.
    pub(crate) fn instance_id(&self) -> Option<String> {
        self.live_state().id.get().cloned()
    }

    /// What the process was started with.
    pub(super) fn initial_ruleset(&self) -> Ruleset {
        let initial = || Ruleset::of(&self.in_force());
        self.live_state().initial.get_or_init(initial).clone()
    }

    /// Whether a ruleset could be put in force by this limiter. Changes nothing.
    ///
    /// # Errors
    ///
    /// If it is invalid as a whole: a canary that can't be tried beside the policy, or a user in an access rule that
    /// has no normal form.
    pub fn check_ruleset(&self, ruleset: &Ruleset) -> Result<(), PolicyError> {
        ruleset.in_force(0, self).map(drop)
    }

    /// Decides by this ruleset from now on.
    pub(crate) fn put_in_force(
        &self,
        version: u64,
        ruleset: &Ruleset,
        text: Option<&str>,
    ) -> Result<(), PolicyError> {
        let in_force = ruleset.in_force(version, self)?;
        let _ = self.initial_ruleset();
        let live = self.live_state();
        let mut in_force_text = lock(&live.text);
        self.set_in_force(in_force);
        *in_force_text = text.map(Arc::from);
        self.metrics().set_policy_version(version);
        *lock(&live.problem) = None;
        Ok(())
    }
}

/// Follows the ruleset for as long as a limiter is used.
struct Follower {
    limiter: Newest,
    ledger: Arc<dyn Ledger>,
    id: String,
    started: u64,
}

impl Follower {
    async fn run(self, mut announcements: Announcements) {
        let (mut reported, mut lost_since) = (None::<(Instant, u64)>, None);
        let mut announces = true;
        loop {
            let Some(limiter) = self.limiter.upgrade() else {
                return;
            };
            if let Ok(version) = self.ledger.document_version().await {
                self.follow(&limiter, version, &mut lost_since).await;
            }
            // A new version at once: an operator watches it arrive.
            let is_known = reported.is_some_and(|(at, version)| {
                at.elapsed() < REPORT_EVERY && version == limiter.version()
            });
            if !is_known {
                reported = Some((Instant::now(), limiter.version()));
                self.report(&limiter).await;
            }
            // Held while it waits, the limiter would never end.
            drop(limiter);
            if !announces {
                sleep(POLL_EVERY).await;
            } else if let Ok(more) = timeout(POLL_EVERY, announcements.changed()).await {
                announces = more;
            }
        }
    }

    /// Compares the version in the store with the one in force.
    async fn follow(&self, limiter: &LoginLimiter, version: u64, lost: &mut Option<Instant>) {
        if version == 0 {
            let live = limiter.live_state();
            let text = lock(&live.text).clone();
            if let Some(text) = text
                && lost.get_or_insert_with(Instant::now).elapsed() >= LOST_AFTER
            {
                // One of several instances succeeds, and the others follow it.
                let _ = self.ledger.replace_document(0, &text).await;
            }
            return;
        }
        *lost = None;
        let unreadable = &limiter.live_state().unreadable;
        if version == limiter.version() || version == unreadable.load(Ordering::Relaxed) {
            return;
        }
        let Ok(Some(document)) = self.ledger.document().await else {
            return;
        };
        if document.version < limiter.version() {
            logging::ruleset_went_back(limiter.version(), document.version);
        }
        let put = match Version::from_text(document.version, &document.text) {
            Ok(version) => limiter
                .put_in_force(version.version, &version.ruleset, Some(&document.text))
                .map_err(|error| error.to_string()),
            Err(error) => Err(error.to_string()),
        };
        if let Err(error) = put {
            logging::unreadable_ruleset(document.version, &error);
            unreadable.store(document.version, Ordering::Relaxed);
            *lock(&limiter.live_state().problem) = Some(error.chars().take(200).collect());
        }
    }

    /// Reports what this instance enforces, and measures what no request does.
    async fn report(&self, limiter: &LoginLimiter) {
        let status = limiter.store().status();
        limiter.metrics().set_store_status(status);
        let mut instance = Instance::new(&self.id, self.started, limiter.version(), status);
        let live = limiter.live_state();
        instance.problem = lock(&live.problem).clone();
        let mut text = String::new();
        // Names may be long: what does not fit is left out.
        for busiest in REPORTED_BUSIEST {
            let report = limiter.insight().map(|insight| insight.busiest(busiest));
            instance.busiest = report.unwrap_or_default();
            text = serde_json::to_string(&instance).unwrap_or_default();
            if text.len() <= MAX_REPORT {
                break;
            }
        }
        // Repeated soon, so a failure makes no difference.
        let _ = self
            .ledger
            .report_instance(&self.id, &text, REPORTED_FOR)
            .await;
        limiter.count_blocks(&*self.ledger).await;
    }
}

fn lock<T>(mutex: &Mutex<T>) -> std::sync::MutexGuard<'_, T> {
    // Values are replaced as a whole, so they are consistent after a panic too.
    mutex.lock().unwrap_or_else(PoisonError::into_inner)
}
