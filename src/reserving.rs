//! An attempt on its way to the store.

use std::{
    mem,
    pin::Pin,
    task::{Context, Poll, ready},
};

use tokio::runtime::Handle;

use crate::{
    Attempt, Outcome, ReserveError, events,
    store::{Standings, StoreFuture},
};

/// An attempt that is being reserved: what [`LoginLimiter::reserve`](crate::LoginLimiter::reserve) returns.
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
pub struct Reserving(State);

#[derive(Debug)]
#[allow(clippy::large_enum_variant)] // the large one is the common one
enum State {
    /// The store has decided. Nothing is left once that was said.
    Decided(Option<Result<Attempt, ReserveError>>),
    /// The store takes time.
    Deciding(Deciding),
}

impl Reserving {
    #[inline]
    pub(crate) const fn now(reserved: Result<Attempt, ReserveError>) -> Self {
        Self(State::Decided(Some(reserved)))
    }

    /// An attempt that does not know yet how counters stand.
    pub(crate) fn later(attempt: Attempt, standings: StoreFuture<Standings>) -> Self {
        Self(State::Deciding(Deciding(Box::new(Asked {
            attempt: Some(attempt),
            standings,
            is_begun: false,
        }))))
    }

    /// What was decided, if it is decided already.
    #[inline]
    pub(crate) fn at_once(mut self) -> Result<Result<Attempt, ReserveError>, Deciding> {
        match mem::replace(&mut self.0, State::Decided(None)) {
            State::Decided(Some(reserved)) => Ok(reserved),
            State::Decided(None) => done(),
            State::Deciding(deciding) => Err(deciding),
        }
    }
}

impl Future for Reserving {
    type Output = Result<Attempt, ReserveError>;

    #[inline]
    fn poll(mut self: Pin<&mut Self>, cx: &mut Context<'_>) -> Poll<Self::Output> {
        match &mut self.0 {
            State::Decided(reserved) => match reserved.take() {
                Some(reserved) => Poll::Ready(reserved),
                None => done(),
            },
            State::Deciding(deciding) => Pin::new(deciding).poll(cx),
        }
    }
}

/// Nobody will check a password.
impl Drop for Reserving {
    #[inline]
    fn drop(&mut self) {
        // Looked at before it is taken: an attempt is large.
        if let State::Decided(reserved @ Some(Ok(_))) = &mut self.0
            && let Some(Ok(attempt)) = reserved.take()
        {
            drop(take_back(attempt));
        }
    }
}

/// An attempt that the store takes time to decide on.
#[derive(Debug)]
pub(crate) struct Deciding(Box<Asked>);

#[derive(Debug)]
struct Asked {
    /// Until that is done.
    attempt: Option<Attempt>,
    standings: StoreFuture<Standings>,
    /// The store has been asked.
    is_begun: bool,
}

impl Future for Deciding {
    type Output = Result<Attempt, ReserveError>;

    fn poll(mut self: Pin<&mut Self>, cx: &mut Context<'_>) -> Poll<Self::Output> {
        self.0.is_begun = true;
        let standings = ready!(Pin::new(&mut self.0.standings).poll(cx));
        let Some(attempt) = self.0.attempt.take() else {
            done()
        };
        Poll::Ready(decided(attempt, standings?))
    }
}

/// As with [`Reserving`].
impl Drop for Deciding {
    fn drop(&mut self) {
        // Without a runtime nothing more can be done, and the lease makes it a failure.
        let (Some(attempt), true, Ok(runtime)) = (
            self.0.attempt.take(),
            self.0.is_begun,
            Handle::try_current(),
        ) else {
            return;
        };
        let nothing = StoreFuture::now(Ok(Standings::default()));
        let standings = mem::replace(&mut self.0.standings, nothing);
        let under_way = attempt.report.limiter.begin();
        runtime.spawn(async move {
            if let Ok(standings) = standings.await
                && let Ok(attempt) = decided(attempt, standings)
                && let Err(error) = take_back(attempt).await
            {
                events::not_settled(&error);
            }
            drop(under_way);
        });
    }
}

fn take_back(attempt: Attempt) -> StoreFuture<()> {
    let limiter = attempt.report.limiter.clone();
    limiter.settle(attempt, Outcome::NotAnAttempt)
}

/// The attempt, if all counters admit it.
fn decided(mut attempt: Attempt, standings: Standings) -> Result<Attempt, ReserveError> {
    attempt.report.standings = standings;
    match attempt.report.refusal() {
        Some(refusal) => Err(ReserveError::Refused(refusal)),
        None => Ok(attempt),
    }
}

/// As with any future, it is nobody's business to poll one that is done.
fn done() -> ! {
    panic!("an attempt was polled after it had been reserved")
}
