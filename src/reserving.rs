//! An attempt on its way to the store.

use std::{
    pin::Pin,
    task::{Context, Poll, ready},
};

use tokio::runtime::Handle;

use crate::{
    Attempt, LoginLimiter, Outcome, ReserveError, events,
    store::{Standings, StoreFuture},
};

/// An attempt that is being reserved: what [`LoginLimiter::reserve`] returns.
///
/// ```
/// use tower_login_rate_limit::{LoginLimiter, Policy, Reserving, store::MemoryStore};
///
/// # async fn example() -> Result<(), Box<dyn std::error::Error>> {
/// let limiter = LoginLimiter::new(Policy::default(), MemoryStore::new());
/// let address: std::net::IpAddr = "192.0.2.1".parse()?;
/// let reserving: Reserving = limiter.reserve(address);
/// let attempt = reserving.await?;
/// # Ok(()) }
/// # tokio::runtime::Runtime::new()?.block_on(example())?;
/// # Ok::<(), Box<dyn std::error::Error>>(())
/// ```
#[derive(Debug)]
#[must_use = "futures do nothing unless polled"]
pub struct Reserving {
    /// Until it is done.
    pending: Option<(Attempt, StoreFuture<Standings>)>,
    /// Whether a store that takes time has been asked.
    is_begun: bool,
    limiter: LoginLimiter,
}

impl Reserving {
    pub(crate) const fn new(
        limiter: LoginLimiter,
        attempt: Attempt,
        standings: StoreFuture<Standings>,
    ) -> Self {
        Self {
            pending: Some((attempt, standings)),
            is_begun: false,
            limiter,
        }
    }
}

impl Future for Reserving {
    type Output = Result<Attempt, ReserveError>;

    fn poll(mut self: Pin<&mut Self>, cx: &mut Context<'_>) -> Poll<Self::Output> {
        self.is_begun = true;
        let Some((_, standings)) = &mut self.pending else {
            done()
        };
        let standings = ready!(Pin::new(standings).poll(cx));
        let Some((mut attempt, _)) = self.pending.take() else {
            done()
        };
        attempt.report.standings = standings?;
        Poll::Ready(match attempt.report.refusal() {
            Some(refusal) => Err(ReserveError::Refused(refusal)),
            None => Ok(attempt),
        })
    }
}

/// As with any future, it is nobody's business to poll one that is done.
fn done() -> ! {
    panic!("an attempt was polled after it had been reserved")
}

/// Nobody will check a password.
impl Drop for Reserving {
    fn drop(&mut self) {
        let Some((mut attempt, standings)) = self.pending.take() else {
            return;
        };
        let limiter = self.limiter.clone();
        let take_back = move |standings: Standings| {
            attempt.report.standings = standings;
            let is_admitted = attempt.report.refusal().is_none();
            is_admitted.then(|| limiter.settle(attempt, Outcome::NotAnAttempt))
        };
        match (standings.is_later(), Handle::try_current()) {
            (false, _) => {
                if let Some(Ok(standings)) = standings.at_once() {
                    drop(take_back(standings));
                }
            }
            // Without a runtime nothing more can be done, and the lease makes it a failure.
            (true, Ok(runtime)) if self.is_begun => {
                let under_way = self.limiter.begin();
                runtime.spawn(async move {
                    if let Ok(standings) = standings.await
                        && let Some(taken_back) = take_back(standings)
                        && let Err(error) = taken_back.await
                    {
                        events::not_settled(&error);
                    }
                    drop(under_way);
                });
            }
            (true, _) => {}
        }
    }
}
