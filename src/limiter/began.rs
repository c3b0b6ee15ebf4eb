//! Blocks that begin: reported to observers, and entered into the index of the store.

#[cfg(feature = "admin")]
use std::time::{Duration, Instant};
use std::{
    pin::Pin,
    sync::Arc,
    task::{Context, Waker},
};

use tokio::runtime::Handle;

#[cfg(feature = "admin")]
use super::block_note::note_text;
use super::{LoginLimiter, lifted::Lifting};
#[cfg(feature = "admin")]
use crate::{
    Address, Period,
    store::{BlockNote, StoreError, StoreErrorKind},
};
use crate::{
    AttemptId, Limit, Policy, Rule, Token,
    algorithm::{Standing, State},
    attempt::{Counted, Slots},
    event::{CountedAttempt, Event, What},
    logging,
    metrics::Metrics,
    store::{Contents, CounterName, Key, Ledger, Settled},
};

/// How long to wait before an entry of the index is written again. Short in all: a shutdown waits for it.
#[cfg(feature = "admin")]
const PAUSES: [Duration; 3] = [
    Duration::from_millis(100),
    Duration::from_millis(500),
    Duration::from_secs(2),
];

impl LoginLimiter {
    /// Reports the blocks that the failure of this caller began, under all rules that apply but those that were
    /// noted before, by position.
    #[inline]
    pub(crate) fn note_blocks(
        &self,
        policy: &Policy,
        (caller, token): (&Counted<'_>, Token),
        settled: &Settled,
        noted: &[usize],
    ) {
        if !settled.began.is_empty() {
            self.blocks_began(policy, (caller, token), settled, noted);
        }
    }

    #[cold]
    fn blocks_began(
        &self,
        policy: &Policy,
        (caller, token): (&Counted<'_>, Token),
        settled: &Settled,
        noted: &[usize],
    ) {
        let mut slots = Slots::new();
        caller.push_slots(policy, |_| true, &mut slots);
        let counters: Vec<_> = policy.applying(caller.scope()).zip(&slots).collect();
        let began = settled.began.iter();
        for (position, standing) in began.filter(|(position, _)| !noted.contains(position)) {
            if let Some((rule, slot)) = counters.get(*position) {
                self.block_began((caller, token), rule, &slot.key, standing);
            }
        }
    }

    fn block_began(
        &self,
        (caller, token): (&Counted<'_>, Token),
        rule: &Rule,
        key: &Key<'_>,
        standing: &Standing,
    ) {
        let State::Blocked { lifts } = standing.state else {
            return;
        };
        logging::block_began(rule, caller.address, standing);
        let is_shadow = caller.is_shadowed || rule.is_shadow();
        if !is_shadow {
            self.in_force().rule_metrics.block_began(rule.name());
        }
        let ledger = self.store().ledger();
        let counter = ledger.as_ref().map(|ledger| ledger.name(key));
        let event = self.is_observed().then(|| {
            let what = What::BlockBegan {
                rule: rule.shared_name(),
                counter: match &counter {
                    Some(counter) => counter.as_str().into(),
                    None => key
                        .address()
                        .map_or_else(Box::default, |address| address.to_string().into()),
                },
                usage: standing.usage,
                limit: standing.limit,
                lifts,
                attempts: Vec::new(),
                shadow: is_shadow,
            };
            self.event(what, caller)
        });
        let (Some(ledger), Some(counter)) = (ledger, counter) else {
            if let Some(event) = event {
                self.emit(|| event);
            }
            return;
        };
        if !is_shadow
            && (event.is_some() || Metrics::IS_ENABLED)
            && let Some(lasts) = lifts.as_duration()
        {
            let lifting = Lifting {
                last: AttemptId::of(token),
                counter: counter.clone(),
                limit: rule.limit().clone(),
                rule: rule.shared_name(),
                began: event.clone(),
            };
            self.watch(lasts, lifting);
        }
        self.complete(Began {
            #[cfg(feature = "admin")]
            note: self.note_of(caller, rule, key, lifts),
            limiter: self.clone(),
            ledger,
            counter,
            limit: rule.limit().clone(),
            event,
        });
    }

    /// Reports a block, in a task if the store has to be waited for.
    fn complete(&self, began: Began) {
        let mut report: Pin<Box<dyn Future<Output = ()> + Send>> = Box::pin(began.report());
        let mut context = Context::from_waker(Waker::noop());
        if report.as_mut().poll(&mut context).is_pending()
            && let Ok(runtime) = Handle::try_current()
        {
            let in_flight = self.track();
            runtime.spawn(async move {
                report.await;
                drop(in_flight);
            });
        }
    }

    #[cfg(feature = "admin")]
    fn note_of(&self, caller: &Counted<'_>, rule: &Rule, key: &Key<'_>, lifts: Period) -> Note {
        let user = caller.user.as_ref().filter(|_| rule.counts_by_user());
        let user = user.filter(|user| !user.name.is_empty());
        let shown = user.and_then(|user| self.shown_user(user.typed(), &user.name));
        Note {
            rule: rule.shared_name(),
            began: Instant::now(),
            lifts,
            address: key.address(),
            subject: user.map(|user| user.name.as_bytes().into()),
            text: note_text(shown.as_ref(), caller.is_shadowed),
        }
    }
}

/// A block that began.
struct Began {
    limiter: LoginLimiter,
    ledger: Arc<dyn Ledger>,
    counter: CounterName,
    limit: Limit,
    event: Option<Event>,
    #[cfg(feature = "admin")]
    note: Note,
}

impl Began {
    async fn report(self) {
        #[cfg(feature = "admin")]
        let noted = self.note().await;
        self.limiter.count_blocks_soon();
        if let Some(mut event) = self.event.clone() {
            let counters = [(&self.counter, &self.limit)];
            // Without its attempts if they can't be read: that it began is what matters.
            if let Ok(contents) = self.ledger.inspect(&counters).await
                && let What::BlockBegan { attempts, .. } = &mut event.what
                && let Some(contents) = contents.first()
            {
                *attempts = failures(contents);
            }
            self.limiter.emit(|| event);
        }
        #[cfg(feature = "admin")]
        self.note_again(noted).await;
    }

    #[cfg(feature = "admin")]
    async fn note(&self) -> Result<(), StoreError> {
        self.note.write(&self.counter, &*self.ledger).await
    }

    /// Repeats the note a few times. The index is a hint, and logins go on without it.
    #[cfg(feature = "admin")]
    async fn note_again(&self, mut noted: Result<(), StoreError>) {
        for pause in PAUSES {
            if !noted.as_ref().is_err_and(may_pass) {
                break;
            }
            tokio::time::sleep(pause).await;
            noted = self.note().await;
        }
        if let Err(error) = noted {
            logging::block_not_listed(&error);
        }
    }
}

#[cfg(feature = "admin")]
const fn may_pass(error: &StoreError) -> bool {
    matches!(
        error.kind(),
        StoreErrorKind::Timeout | StoreErrorKind::Connection | StoreErrorKind::Server
    )
}

/// The failures that a block consists of.
fn failures(contents: &Contents) -> Vec<CountedAttempt> {
    let failed = contents.attempts.iter().filter(|kept| !kept.is_in_flight);
    failed
        .map(|kept| CountedAttempt {
            attempt: kept.id,
            at: kept.at,
        })
        .collect()
}

/// A note that owns what it consists of.
#[cfg(feature = "admin")]
struct Note {
    rule: Arc<str>,
    began: Instant,
    /// From `began`.
    lifts: Period,
    address: Option<Address>,
    subject: Option<Box<[u8]>>,
    text: String,
}

#[cfg(feature = "admin")]
impl Note {
    async fn write(&self, counter: &CounterName, ledger: &dyn Ledger) -> Result<(), StoreError> {
        let lifts = self.lifts.as_duration();
        let left = lifts.map(|lifts| lifts.saturating_sub(self.began.elapsed()));
        let mut note = BlockNote::new(
            counter,
            &self.rule,
            left.map_or(Period::Forever, Period::Of),
        )
        .with_text(&self.text);
        note.address = self.address;
        note.subject = self.subject.as_deref();
        ledger.note(&note).await
    }
}
