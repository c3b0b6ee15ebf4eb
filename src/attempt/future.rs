//! Store calls of an attempt that reach their end even if the caller stops waiting.

use std::{
    fmt,
    pin::{Pin, pin},
    sync::{
        Arc,
        atomic::{AtomicBool, AtomicUsize, Ordering},
    },
    task::{Context, Poll, ready},
};

use tokio::{runtime::Handle, sync::Notify};

use super::Counted;
use crate::{
    Attempt, LoginLimiter, MaybeReady, Outcome, Policy, Rule, Token, logging,
    store::{Standings, StoreError, StoreFuture},
};

/// The future of [`LoginLimiter::reserve`] and [`Attempt::settle`].
///
/// If it is dropped before it completes, the call continues in a task, which
/// [`LoginLimiter::all_settled`] waits for. An attempt that is reserved after its future was dropped is
/// taken back, since no password will be checked. Without a Tokio runtime the call ends there, and an
/// attempt that was reserved becomes a failure when its lease ends.
#[must_use = "futures do nothing unless polled"]
pub struct AttemptFuture<T: Send + 'static> {
    /// `None` after completion.
    call: Option<MaybeReady<T>>,
    /// Whether the call has to be completed. One that was not begun need not be.
    is_begun: bool,
    /// For a call that has to be waited for.
    in_flight: Option<InFlight>,
    /// Handles a result that is not returned to a caller.
    abandon: fn(T),
}

impl<E: Send + 'static> AttemptFuture<Result<Attempt, E>> {
    #[inline]
    pub(crate) fn reserve(limiter: &LoginLimiter, call: MaybeReady<Result<Attempt, E>>) -> Self {
        Self::new(limiter, call, false, |result| {
            if let Ok(attempt) = result {
                drop(attempt.settle(Outcome::NotAnAttempt));
            }
        })
    }
}

/// The standings of an attempt whose user was identified, with what takes them back.
pub(crate) struct Identified {
    limiter: LoginLimiter,
    policy: Arc<Policy>,
    token: Token,
    caller: Counted<'static>,
    /// Those under which it was reserved.
    rules: fn(&Rule) -> bool,
    standings: Standings,
}

impl AttemptFuture<Result<Identified, StoreError>> {
    /// Reserves an attempt under these rules, or takes it back if its future is dropped.
    pub(crate) async fn identify(
        limiter: &LoginLimiter,
        policy: Arc<Policy>,
        token: Token,
        caller: Counted<'static>,
        rules: fn(&Rule) -> bool,
        call: StoreFuture<Standings>,
    ) -> Result<Standings, StoreError> {
        let reserved = limiter.clone();
        let call = call.map_ok(move |standings| Identified {
            limiter: reserved,
            policy,
            token,
            caller,
            rules,
            standings,
        });
        let identified = Self::new(limiter, call, false, |result| {
            if let Ok(identified) = result
                && identified.standings.admitted()
            {
                let Identified {
                    limiter,
                    policy,
                    token,
                    caller,
                    rules,
                    ..
                } = &identified;
                limiter.take_back(policy, *token, caller, rules);
            }
        });
        identified.await.map(|identified| identified.standings)
    }
}

impl AttemptFuture<Result<(), StoreError>> {
    #[inline]
    pub(crate) fn settle(limiter: &LoginLimiter, call: StoreFuture<()>) -> Self {
        Self::new(limiter, call, true, |result| {
            if let Err(error) = result {
                logging::not_settled(&error);
            }
        })
    }
}

impl<T: Send + 'static> AttemptFuture<T> {
    #[inline]
    fn new(limiter: &LoginLimiter, call: MaybeReady<T>, is_begun: bool, abandon: fn(T)) -> Self {
        Self {
            in_flight: (!call.is_ready()).then(|| limiter.track()),
            call: Some(call),
            is_begun,
            abandon,
        }
    }
}

impl<T: Send + 'static> Future for AttemptFuture<T> {
    type Output = T;

    #[inline]
    fn poll(mut self: Pin<&mut Self>, cx: &mut Context<'_>) -> Poll<T> {
        self.is_begun = true;
        let Some(call) = &mut self.call else {
            panic!("`AttemptFuture` polled after completion");
        };
        let result = ready!(Pin::new(call).poll(cx));
        self.call = None;
        self.in_flight = None;
        Poll::Ready(result)
    }
}

impl<T: Send + 'static> Drop for AttemptFuture<T> {
    #[inline]
    fn drop(&mut self) {
        if let Some(call) = self.call.take() {
            complete(call, self.is_begun, self.in_flight.take(), self.abandon);
        }
    }
}

#[cold]
fn complete<T: Send + 'static>(
    call: MaybeReady<T>,
    is_begun: bool,
    in_flight: Option<InFlight>,
    abandon: fn(T),
) {
    match call.at_once() {
        Ok(result) => abandon(result),
        Err(call) => {
            if is_begun && let Ok(runtime) = Handle::try_current() {
                runtime.spawn(async move {
                    abandon(call.await);
                    drop(in_flight);
                });
            }
        }
    }
}

impl<T: Send + 'static> fmt::Debug for AttemptFuture<T> {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("AttemptFuture").finish_non_exhaustive()
    }
}

/// Counts what is in flight, for callers that wait until nothing is.
#[derive(Clone, Debug, Default)]
pub(crate) struct Tracker(Arc<Tracked>);

#[derive(Debug, Default)]
struct Tracked {
    in_flight: AtomicUsize,
    /// Whether a caller has ever waited. Notifying takes a lock, and hardly any limiter has waiters.
    is_awaited: AtomicBool,
    idle: Notify,
}

impl Tracker {
    #[inline]
    pub(crate) fn begin(&self) -> InFlight {
        self.add();
        InFlight(self.clone())
    }

    /// Counts one more, until it is [removed](Self::remove).
    #[inline]
    pub(crate) fn add(&self) {
        self.0.in_flight.fetch_add(1, Ordering::SeqCst);
    }

    #[inline]
    pub(crate) fn remove(&self) {
        let was_last = self.0.in_flight.fetch_sub(1, Ordering::SeqCst) == 1;
        if was_last && self.0.is_awaited.load(Ordering::SeqCst) {
            self.0.idle.notify_waiters();
        }
    }

    /// Waits until nothing is in flight.
    pub(crate) async fn idle(&self) {
        loop {
            let mut idle = pin!(self.0.idle.notified());
            idle.as_mut().enable();
            // Ahead of reading the count: either this sees the last one end, or that one sees this.
            self.0.is_awaited.store(true, Ordering::SeqCst);
            if self.0.in_flight.load(Ordering::SeqCst) == 0 {
                return;
            }
            idle.await;
        }
    }
}

/// In flight until it is dropped.
#[derive(Debug)]
pub(crate) struct InFlight(Tracker);

impl Drop for InFlight {
    #[inline]
    fn drop(&mut self) {
        self.0.remove();
    }
}
