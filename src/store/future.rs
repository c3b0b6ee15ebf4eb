use std::{
    fmt,
    future::poll_fn,
    pin::Pin,
    task::{Context, Poll},
};

use super::StoreError;

type Boxed<T> = Pin<Box<dyn Future<Output = Result<T, StoreError>> + Send>>;

/// What a [`Store`](super::Store) answers, now or later.
///
/// A type with a name, so that stores can be trait objects, and without a box for stores that have
/// the answer at once.
#[must_use = "futures do nothing unless polled"]
pub struct StoreFuture<T>(Inner<T>);

enum Inner<T> {
    Ready(Option<Result<T, StoreError>>),
    Later(Boxed<T>),
}

impl<T> StoreFuture<T> {
    /// An answer that is there.
    pub const fn ready(answer: Result<T, StoreError>) -> Self {
        Self(Inner::Ready(Some(answer)))
    }

    /// An answer that takes a round trip.
    pub fn later(answer: impl Future<Output = Result<T, StoreError>> + Send + 'static) -> Self {
        Self(Inner::Later(Box::pin(answer)))
    }
}

impl<T: Send + 'static> StoreFuture<T> {
    /// The answer without its value.
    pub(crate) fn done(self) -> StoreFuture<()> {
        match self.0 {
            Inner::Ready(answer) => StoreFuture(Inner::Ready(answer.map(|a| a.map(drop)))),
            Inner::Later(answer) => StoreFuture::later(async { answer.await.map(drop) }),
        }
    }
}

impl StoreFuture<()> {
    /// Waits for all of them, at the same time. Each runs to its end, also when another fails.
    pub(crate) fn all(futures: Vec<Self>) -> Self {
        let mut first_error = None;
        let mut waiting = Vec::new();
        for future in futures {
            match future.0 {
                Inner::Ready(answer) => {
                    if let Some(Err(error)) = answer {
                        first_error.get_or_insert(error);
                    }
                }
                Inner::Later(answer) => waiting.push(answer),
            }
        }
        let result = |error: Option<StoreError>| error.map_or(Ok(()), Err);
        if waiting.is_empty() {
            return Self::ready(result(first_error));
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
impl<T> Unpin for StoreFuture<T> {}

impl<T> Future for StoreFuture<T> {
    type Output = Result<T, StoreError>;

    fn poll(mut self: Pin<&mut Self>, cx: &mut Context<'_>) -> Poll<Self::Output> {
        match &mut self.0 {
            Inner::Ready(answer) => match answer.take() {
                Some(answer) => Poll::Ready(answer),
                // Polled again after it was done: as with any future, never.
                None => Poll::Pending,
            },
            Inner::Later(answer) => answer.as_mut().poll(cx),
        }
    }
}

impl<T> fmt::Debug for StoreFuture<T> {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("StoreFuture").finish_non_exhaustive()
    }
}
