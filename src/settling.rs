//! Settling that survives: whatever becomes of a request, its attempt is settled.

use std::{
    pin::{Pin, pin},
    sync::{
        Arc,
        atomic::{AtomicUsize, Ordering},
    },
    task::{Context, Poll, ready},
};

use tokio::{runtime::Handle, sync::Notify};

use crate::{LoginAttempt, Outcome, events, store::StoreFuture};

/// An attempt whose handler is at work. Dropped, because the client went away, a timeout struck or
/// the handler panicked, it settles the attempt all the same: as the handler said, or as a failure.
pub(crate) struct Unsettled {
    attempt: LoginAttempt,
    under_way: Option<UnderWay>,
}

impl Unsettled {
    pub(crate) fn new(attempt: LoginAttempt, under_way: UnderWay) -> Self {
        Self {
            attempt,
            under_way: Some(under_way),
        }
    }

    pub(crate) const fn attempt(&self) -> &LoginAttempt {
        &self.attempt
    }

    /// Settles it.
    pub(crate) fn settle(mut self, outcome: Outcome) -> Settling {
        Settling {
            answer: Some(self.attempt.settle(outcome)),
            under_way: self.under_way.take(),
        }
    }
}

impl Drop for Unsettled {
    fn drop(&mut self) {
        if let Some(under_way) = self.under_way.take() {
            let outcome = self.attempt.said().unwrap_or(Outcome::Failure);
            // Dropped in its turn, which sees to it that it is done.
            drop(Settling {
                answer: Some(self.attempt.settle(outcome)),
                under_way: Some(under_way),
            });
        }
    }
}

/// An outcome that is being written. Dropped before it is, it goes on in a task of its own.
pub(crate) struct Settling {
    answer: Option<StoreFuture<()>>,
    under_way: Option<UnderWay>,
}

impl Future for Settling {
    type Output = ();

    fn poll(mut self: Pin<&mut Self>, cx: &mut Context<'_>) -> Poll<()> {
        if let Some(answer) = &mut self.answer {
            let answer = ready!(Pin::new(answer).poll(cx));
            self.answer = None;
            self.under_way = None;
            if let Err(error) = answer {
                events::not_settled(&error);
            }
        }
        Poll::Ready(())
    }
}

impl Drop for Settling {
    fn drop(&mut self) {
        let (answer, under_way) = (self.answer.take(), self.under_way.take());
        // One that is there at once was written when it was asked for. Without a runtime nothing
        // more can be done, and the lease does it.
        if let (Some(answer), Ok(runtime)) = (answer, Handle::try_current())
            && answer.is_later()
        {
            runtime.spawn(async move {
                if let Err(error) = answer.await {
                    events::not_settled(&error);
                }
                drop(under_way);
            });
        }
    }
}

/// Counts what is under way, for those who wait until nothing is.
#[derive(Clone, Debug, Default)]
pub(crate) struct Tracker(Arc<Tracked>);

#[derive(Debug, Default)]
struct Tracked {
    under_way: AtomicUsize,
    none: Notify,
}

impl Tracker {
    pub(crate) fn begin(&self) -> UnderWay {
        self.0.under_way.fetch_add(1, Ordering::AcqRel);
        UnderWay(Arc::clone(&self.0))
    }

    pub(crate) async fn none_under_way(&self) {
        loop {
            let mut none = pin!(self.0.none.notified());
            none.as_mut().enable();
            if self.0.under_way.load(Ordering::Acquire) == 0 {
                return;
            }
            none.await;
        }
    }
}

/// Something that is under way until this is dropped.
pub(crate) struct UnderWay(Arc<Tracked>);

impl Drop for UnderWay {
    fn drop(&mut self) {
        if self.0.under_way.fetch_sub(1, Ordering::AcqRel) == 1 {
            self.0.none.notify_waiters();
        }
    }
}
