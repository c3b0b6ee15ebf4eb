//! A future that may be ready from the start.

use std::{
    fmt,
    future::poll_fn,
    pin::Pin,
    task::{Context, Poll},
};

type Boxed<T> = Pin<Box<dyn Future<Output = T> + Send>>;

/// The future that stores and extractors return: a result that is ready, or a boxed future.
///
/// It has a name, so the traits that return it are object safe, and it allocates nothing if the result is
/// [`ready`](Self::ready). In that case the work is done already, whether the future is polled or not; the
/// work of a [`pending`](Self::pending) one begins with the first poll.
///
/// ```
/// use tower_login_rate_limit::MaybeReady;
///
/// # async fn example() {
/// assert_eq!(MaybeReady::ready(1).await, 1);
/// assert_eq!(MaybeReady::pending(async { 2 }).await, 2);
/// # }
/// # tokio::runtime::Runtime::new().unwrap().block_on(example());
/// ```
#[must_use = "futures do nothing unless polled"]
pub struct MaybeReady<T>(Inner<T>);

enum Inner<T> {
    Ready(T),
    Pending(Boxed<T>),
    /// The result has been returned.
    Done,
}

impl<T> MaybeReady<T> {
    /// A result that is known.
    #[inline]
    pub const fn ready(result: T) -> Self {
        Self(Inner::Ready(result))
    }

    /// A result that has to be waited for.
    pub fn pending(future: impl Future<Output = T> + Send + 'static) -> Self {
        Self(Inner::Pending(Box::pin(future)))
    }

    #[inline]
    pub(crate) const fn is_ready(&self) -> bool {
        matches!(self.0, Inner::Ready(_))
    }

    /// The result if it is known, else the future again.
    #[inline]
    pub(crate) fn at_once(self) -> Result<T, Self> {
        match self.0 {
            Inner::Ready(result) => Ok(result),
            other => Err(Self(other)),
        }
    }
}

impl<T: Send + 'static, E: Send + 'static> MaybeReady<Result<T, E>> {
    /// Maps the value of a success.
    #[inline]
    pub(crate) fn map_ok<U>(
        self,
        map: impl FnOnce(T) -> U + Send + 'static,
    ) -> MaybeReady<Result<U, E>> {
        match self.0 {
            Inner::Ready(result) => MaybeReady::ready(result.map(map)),
            Inner::Pending(future) => MaybeReady::pending(async { future.await.map(map) }),
            Inner::Done => MaybeReady(Inner::Done),
        }
    }
}

impl<E: Send + 'static> MaybeReady<Result<(), E>> {
    /// Runs all of them concurrently and to their end, and returns the first error.
    pub(crate) fn all(futures: Vec<Self>) -> Self {
        let mut first_error = None;
        let mut waiting = Vec::new();
        for future in futures {
            match future.0 {
                Inner::Ready(Err(error)) => {
                    first_error.get_or_insert(error);
                }
                Inner::Ready(Ok(())) | Inner::Done => {}
                Inner::Pending(future) => waiting.push(future),
            }
        }
        let result = |error: Option<E>| error.map_or(Ok(()), Err);
        if waiting.is_empty() {
            return Self::ready(result(first_error));
        }
        Self::pending(poll_fn(move |cx| {
            waiting.retain_mut(|future| match future.as_mut().poll(cx) {
                Poll::Pending => true,
                Poll::Ready(result) => {
                    if let Err(error) = result {
                        first_error.get_or_insert(error);
                    }
                    false
                }
            });
            if waiting.is_empty() {
                Poll::Ready(result(first_error.take()))
            } else {
                Poll::Pending
            }
        }))
    }
}

// The result is moved out, never pinned.
impl<T> Unpin for MaybeReady<T> {}

impl<T> Future for MaybeReady<T> {
    type Output = T;

    #[inline]
    fn poll(mut self: Pin<&mut Self>, cx: &mut Context<'_>) -> Poll<T> {
        if let Inner::Pending(future) = &mut self.0 {
            return future.as_mut().poll(cx);
        }
        match std::mem::replace(&mut self.0, Inner::Done) {
            Inner::Ready(result) => Poll::Ready(result),
            _ => panic!("`MaybeReady` polled after completion"),
        }
    }
}

impl<T> fmt::Debug for MaybeReady<T> {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("MaybeReady").finish_non_exhaustive()
    }
}
