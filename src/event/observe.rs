//! What receives events.

use std::sync::Arc;

use super::Event;

/// Receives the events of a limiter. A closure that takes `&Event` is one.
///
/// - **Off the request's path.** Each observer runs on a thread of its own. A slow or failing observer neither
///   delays nor fails a login, nor another observer. It may block, for a file or a mail server.
/// - **In order, once.** Events of one process arrive in the order in which they happened, a few milliseconds
///   later.
/// - **Bounded.** Up to 8,192 events wait for an observer. More are dropped, for this observer only, and
///   [counted](ObserverStatus).
/// - **A panic is caught and counted**, and the observer goes on with the next event.
///
/// ```
/// use tower_login_rate_limit::event::{Event, Observe, What};
///
/// fn mail(_text: String) {}
///
/// let observer = |event: &Event| {
///     if let (What::BlockBegan { rule, .. }, Some(user)) = (&event.what, &event.user) {
///         mail(format!("{} is blocked by {rule}", user.typed().unwrap_or("***")));
///     }
/// };
/// # fn is_observer(_: impl Observe) {}
/// # is_observer(observer);
/// ```
pub trait Observe: Send + Sync + 'static {
    /// Takes notice of an event.
    fn observe(&self, event: &Event);

    /// Called when no more events are waiting, to write what is buffered.
    fn flush(&self) {}
}

impl<F: Fn(&Event) + Send + Sync + 'static> Observe for F {
    fn observe(&self, event: &Event) {
        self(event);
    }
}

/// To keep a handle on an observer that is given to a limiter.
impl<O: Observe + ?Sized> Observe for Arc<O> {
    fn observe(&self, event: &Event) {
        (**self).observe(event);
    }

    fn flush(&self) {
        (**self).flush();
    }
}

/// What has become of the events of one observer.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
#[non_exhaustive]
pub struct ObserverStatus {
    /// Events that the observer has received.
    pub observed: u64,
    /// Events that were dropped, because too many were waiting.
    pub dropped: u64,
    /// Panics of the observer.
    pub panics: u64,
    /// Events that are waiting.
    pub waiting: usize,
}
