//! The events that wait for one observer.

use std::{
    collections::VecDeque,
    mem,
    panic::{AssertUnwindSafe, catch_unwind},
    sync::{
        Arc, Condvar, Mutex, MutexGuard, PoisonError,
        atomic::{AtomicU64, Ordering},
    },
    time::{Duration, Instant},
};

use super::{Event, Observe, ObserverStatus, What};
use crate::metrics::ObserverDrops;

/// How many events wait for an observer at most.
const CAPACITY: usize = 8_192;
/// How many the consumer takes at a time.
const BATCH: usize = 128;
/// How long the consumer lets events gather while they keep coming. Waking a thread takes longer than everything
/// else that an event costs the request, so within this time none is woken.
const GATHER: Duration = Duration::from_millis(10);
/// After how many empty looks the consumer sleeps until it is woken.
const IDLE_LOOKS: u32 = 50;

/// A bounded queue with many producers and one consumer, which is a thread.
#[derive(Debug, Default)]
pub(super) struct Queue {
    state: Mutex<State>,
    /// Wakes the consumer.
    filled: Condvar,
    /// Wakes those that flush.
    drained: Condvar,
    dropped: AtomicU64,
    dropped_metric: ObserverDrops,
    panics: AtomicU64,
}

#[derive(Debug, Default)]
struct State {
    events: VecDeque<Arc<Event>>,
    /// Events that were observed.
    finished: u64,
    /// Events that were ever accepted.
    accepted: u64,
    consumer: Consumer,
    /// Threads that wait for the consumer: it must not gather.
    flushing: u32,
    is_closed: bool,
}

/// What the consumer does.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
enum Consumer {
    /// Observing, or about to look again soon.
    #[default]
    Awake,
    /// Waiting until it is woken.
    Asleep,
    /// Ended, or never started.
    Gone,
}

impl Queue {
    /// For the observer at this position.
    pub(super) fn new(position: usize) -> Self {
        Self {
            dropped_metric: ObserverDrops::new(position),
            ..Self::default()
        }
    }

    fn lock(&self) -> MutexGuard<'_, State> {
        self.state.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// Adds an event, or counts it as dropped. Never waits for the observer.
    pub(super) fn push(&self, event: Arc<Event>) {
        self.dropped_metric.register();
        let mut state = self.lock();
        // Clients cause these at will, and must not push out what an operator has to know.
        let is_cheap = matches!(
            event.what,
            What::Refused { .. } | What::AccessRuleHit { .. } | What::LimitReached { .. }
        );
        let capacity = if is_cheap { CAPACITY / 4 * 3 } else { CAPACITY };
        if state.events.len() >= capacity || state.consumer == Consumer::Gone {
            drop(state);
            self.dropped.fetch_add(1, Ordering::Relaxed);
            self.dropped_metric.increment();
            return;
        }
        state.events.push_back(event);
        state.accepted += 1;
        // A consumer that gathers is woken only when events would soon be dropped.
        let is_filling = state.events.len() == CAPACITY / 4;
        let must_wake = is_filling || state.consumer == Consumer::Asleep;
        if must_wake {
            state.consumer = Consumer::Awake;
        }
        drop(state);
        if must_wake {
            self.filled.notify_one();
        }
    }

    /// Hands events to the observer until the queue is closed and empty.
    pub(super) fn consume(&self, observer: &dyn Observe) {
        let mut batch = Vec::with_capacity(BATCH);
        loop {
            let mut state = self.wait();
            if state.events.is_empty() {
                state.consumer = Consumer::Gone;
                drop(state);
                self.drained.notify_all();
                return;
            }
            let len = state.events.len().min(BATCH);
            batch.extend(state.events.drain(..len));
            let must_flush = state.events.is_empty() || state.flushing > 0;
            drop(state);
            for event in batch.drain(..) {
                self.guard(|| observer.observe(&event));
            }
            if must_flush {
                self.guard(|| observer.flush());
            }
            let mut state = self.lock();
            state.finished += len as u64;
            let is_awaited = state.flushing > 0;
            drop(state);
            if is_awaited {
                self.drained.notify_all();
            }
        }
    }

    /// Waits for events. If there are none, the queue is closed.
    fn wait(&self) -> MutexGuard<'_, State> {
        let mut state = self.lock();
        let mut looks = 0;
        // Nothing is gathered while more than a batch waits.
        while state.events.len() < BATCH && !state.is_closed {
            let is_urgent = state.flushing > 0 || looks > 0;
            if is_urgent && !state.events.is_empty() {
                break;
            }
            if looks < IDLE_LOOKS && state.flushing == 0 {
                looks += 1;
                let waited = self.filled.wait_timeout(state, GATHER);
                state = waited.unwrap_or_else(PoisonError::into_inner).0;
            } else {
                state.consumer = Consumer::Asleep;
                let woken = self.filled.wait(state);
                state = woken.unwrap_or_else(PoisonError::into_inner);
                state.consumer = Consumer::Awake;
                looks = 0;
            }
        }
        state
    }

    /// Runs code of the app, whose panic must not end the thread.
    fn guard(&self, run: impl FnOnce()) {
        if let Err(panic) = catch_unwind(AssertUnwindSafe(run)) {
            // The payload's own destructor may panic, and the payload of that again.
            if let Err(again) = catch_unwind(AssertUnwindSafe(|| drop(panic))) {
                mem::forget(again);
            }
            self.panics.fetch_add(1, Ordering::Relaxed);
        }
    }

    /// Has the consumer end after what is waiting.
    pub(super) fn close(&self) {
        self.lock().is_closed = true;
        self.filled.notify_one();
    }

    /// The consumer could not be started: everything is dropped.
    pub(super) fn abandon(&self) {
        self.lock().consumer = Consumer::Gone;
    }

    /// Waits until everything that was pushed so far is observed, but not beyond the deadline. Returns whether
    /// it is.
    pub(super) fn flush(&self, deadline: Instant) -> bool {
        let mut state = self.lock();
        let target = state.accepted;
        state.flushing += 1;
        self.filled.notify_one();
        loop {
            let is_done = state.finished >= target;
            let left = deadline.saturating_duration_since(Instant::now());
            if is_done || state.consumer == Consumer::Gone || left.is_zero() {
                state.flushing -= 1;
                return is_done;
            }
            let waited = self.drained.wait_timeout(state, left);
            state = waited.unwrap_or_else(PoisonError::into_inner).0;
        }
    }

    pub(super) fn status(&self) -> ObserverStatus {
        let state = self.lock();
        ObserverStatus {
            observed: state.finished,
            dropped: self.dropped.load(Ordering::Relaxed),
            panics: self.panics.load(Ordering::Relaxed),
            waiting: state.events.len(),
        }
    }
}
