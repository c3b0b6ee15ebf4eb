//! An answer that is there at once, or comes later.

use std::{
    fmt,
    future::poll_fn,
    pin::Pin,
    task::{Context, Poll},
};

type Boxed<T> = Pin<Box<dyn Future<Output = T> + Send>>;

/// What a store or an extractor answers, now or later.
///
/// A future with a name, so that whoever returns it can be a trait object, and without a box where
/// the answer is there at once: what it stands for is then done already, awaited or not.
///
/// ```
/// use tower_login_rate_limit::Answer;
///
/// # async fn example() {
/// assert_eq!(Answer::now(1).await, 1);
/// assert_eq!(Answer::later(async { 2 }).await, 2);
/// # }
/// # tokio::runtime::Runtime::new().unwrap().block_on(example());
/// ```
#[must_use = "futures do nothing unless polled"]
pub struct Answer<T>(Inner<T>);

enum Inner<T> {
    Now(Option<T>),
    Later(Boxed<T>),
}

impl<T> Answer<T> {
    /// An answer that is there.
    pub const fn now(answer: T) -> Self {
        Self(Inner::Now(Some(answer)))
    }

    /// An answer that takes a round trip.
    pub fn later(answer: impl Future<Output = T> + Send + 'static) -> Self {
        Self(Inner::Later(Box::pin(answer)))
    }

    /// Whether waiting for it would take time.
    pub(crate) const fn is_later(&self) -> bool {
        matches!(self.0, Inner::Later(_))
    }
}

impl<T> Answer<T> {
    /// The answer, if it is there at once.
    pub(crate) fn at_once(self) -> Result<T, Self> {
        match self.0 {
            Inner::Now(Some(answer)) => Ok(answer),
            other => Err(Self(other)),
        }
    }
}

impl<T: Send + 'static, E: Send + 'static> Answer<Result<T, E>> {
    /// The answer without its value.
    pub(crate) fn done(self) -> Answer<Result<(), E>> {
        match self.0 {
            Inner::Now(answer) => Answer(Inner::Now(answer.map(|answer| answer.map(drop)))),
            Inner::Later(answer) => Answer::later(async { answer.await.map(drop) }),
        }
    }
}

impl<E: Send + 'static> Answer<Result<(), E>> {
    /// Waits for all of them, at the same time. Each runs to its end, also when another fails.
    pub(crate) fn all(answers: Vec<Self>) -> Self {
        let mut first_error = None;
        let mut waiting = Vec::new();
        for answer in answers {
            match answer.0 {
                Inner::Now(Some(Err(error))) => {
                    first_error.get_or_insert(error);
                }
                Inner::Now(_) => {}
                Inner::Later(answer) => waiting.push(answer),
            }
        }
        let result = |error: Option<E>| error.map_or(Ok(()), Err);
        if waiting.is_empty() {
            return Self::now(result(first_error));
        }
        Self::later(poll_fn(move |cx| {
            waiting.retain_mut(|answer| match answer.as_mut().poll(cx) {
                Poll::Pending => true,
                Poll::Ready(answer) => {
                    if let Err(error) = answer {
                        first_error.get_or_insert(error);
                    }
                    false
                }
            });
            match waiting.is_empty() {
                true => Poll::Ready(result(first_error.take())),
                false => Poll::Pending,
            }
        }))
    }
}

// The answer is moved out, never pinned.
impl<T> Unpin for Answer<T> {}

impl<T> Future for Answer<T> {
    type Output = T;

    fn poll(mut self: Pin<&mut Self>, cx: &mut Context<'_>) -> Poll<T> {
        match &mut self.0 {
            Inner::Now(answer) => match answer.take() {
                Some(answer) => Poll::Ready(answer),
                None => panic!("an answer was polled after it had been given"),
            },
            Inner::Later(answer) => answer.as_mut().poll(cx),
        }
    }
}

impl<T> fmt::Debug for Answer<T> {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("Answer").finish_non_exhaustive()
    }
}
