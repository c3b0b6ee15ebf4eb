//! The observers of a limiter.

use std::{
    fmt,
    ops::BitAnd,
    sync::Arc,
    thread,
    time::{Duration, Instant},
};

use tokio::sync::oneshot;

use super::{Event, Observe, ObserverStatus, queue::Queue};

/// How long a flush waits at most: an observer that hangs must not keep a process from ending.
const FLUSH_TIMEOUT: Duration = Duration::from_secs(5);

/// The observers of a limiter. Clones share them; when the last is dropped, their threads end after what is
/// waiting.
///
/// Threads and not tasks: an observer may block, and a limiter may be used outside of a Tokio runtime.
#[derive(Clone, Default)]
pub struct Observers {
    /// `None` if there are none, so that emitting costs a branch.
    queues: Option<Arc<[Arc<Closing>]>>,
}

/// Closes its queue when dropped.
struct Closing(Arc<Queue>);

impl Drop for Closing {
    fn drop(&mut self) {
        self.0.close();
    }
}

impl Observers {
    /// The same with one more. Its thread starts now; if the system has none, everything is counted as dropped.
    #[must_use]
    pub fn with(self, observer: impl Observe) -> Self {
        let position = self.queues.as_ref().map_or(0, |queues| queues.len());
        let queue = Arc::new(Queue::new(position));
        let consumed = Arc::clone(&queue);
        let thread = thread::Builder::new().name("login-observer".to_owned());
        if thread.spawn(move || consumed.consume(&observer)).is_err() {
            queue.abandon();
        }
        let known = self.queues.iter().flat_map(|queues| queues.iter().cloned());
        let queues = known.chain([Arc::new(Closing(queue))]).collect();
        Self {
            queues: Some(queues),
        }
    }

    /// Whether there are none: then an event need not be made.
    #[inline]
    pub const fn is_empty(&self) -> bool {
        self.queues.is_none()
    }

    /// Hands an event to each observer. Never blocks on them, never fails, and makes the event only if there is
    /// an observer.
    #[inline]
    pub fn emit(&self, make: impl FnOnce() -> Event) {
        if let Some(queues) = &self.queues {
            push(queues, make());
        }
    }

    /// Waits until the observers have received what was emitted so far, at most five seconds. Returns whether
    /// all of them have.
    pub async fn flush(&self) -> bool {
        let Some(queues) = self.queues.clone() else {
            return true;
        };
        // Off the runtime, since it waits; and on no runtime at all, since there may be none.
        let (done, is_done) = oneshot::channel();
        let flush = move || {
            let deadline = Instant::now() + FLUSH_TIMEOUT;
            let flushed = queues.iter().map(|queue| queue.0.flush(deadline));
            // The caller may have stopped waiting.
            let _ = done.send(flushed.fold(true, BitAnd::bitand));
        };
        let thread = thread::Builder::new().name("login-observer-flush".to_owned());
        thread.spawn(flush).is_ok() && is_done.await.unwrap_or(false)
    }

    /// What has become of the events of each observer, in the order in which they were added.
    pub fn status(&self) -> Vec<ObserverStatus> {
        let queues = self.queues.iter().flat_map(|queues| queues.iter());
        queues.map(|queue| queue.0.status()).collect()
    }
}

/// Out of line, so that the request's path stays short without observers.
#[inline(never)]
fn push(queues: &[Arc<Closing>], event: Event) {
    let event = Arc::new(event);
    if let [others @ .., last] = queues {
        for queue in others {
            queue.0.push(Arc::clone(&event));
        }
        last.0.push(event);
    }
}

impl fmt::Debug for Observers {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_list().entries(self.status()).finish()
    }
}

#[cfg(test)]
mod tests {
    use std::sync::{
        Mutex,
        atomic::{AtomicU64, Ordering},
        mpsc,
    };

    use super::*;
    use crate::{
        Outcome,
        event::{EventUser, UserDisplay, What},
    };

    fn event(n: u64) -> Event {
        let what = What::Settled {
            outcome: Outcome::Failure,
            second_factor: false,
        };
        Event::new(what).with_time(n)
    }

    /// Nothing waits, so a future that is ready later is polled on a runtime of its own.
    fn flush(observers: &Observers) -> bool {
        let runtime = tokio::runtime::Builder::new_current_thread().build();
        runtime.unwrap().block_on(observers.flush())
    }

    #[test]
    fn without_observers_no_event_is_made() {
        let observers = Observers::default();
        observers.emit(|| panic!("made"));
        assert!(observers.is_empty() && flush(&observers));
    }

    #[test]
    fn events_arrive_in_order_and_flush_waits_for_them() {
        let seen = Arc::new(Mutex::new(Vec::new()));
        let seeing = Arc::clone(&seen);
        let observers =
            Observers::default().with(move |event: &Event| seeing.lock().unwrap().push(event.at));
        for round in 0..3 {
            for n in 0..1_000 {
                observers.emit(|| event(round * 1_000 + n));
            }
            assert!(flush(&observers));
            let all: Vec<_> = (0..(round + 1) * 1_000).collect();
            assert_eq!(*seen.lock().unwrap(), all);
        }
    }

    #[test]
    fn an_observer_that_hangs_delays_nothing_and_what_is_dropped_is_counted_exactly() {
        let (release, released) = mpsc::channel::<()>();
        let released = Mutex::new(released);
        let seen = Arc::new(AtomicU64::new(0));
        let seeing = Arc::clone(&seen);
        let hanging = move |_: &Event| {
            // Until the sender is gone.
            let _ = released.lock().unwrap().recv();
            seeing.fetch_add(1, Ordering::Relaxed);
        };
        let others = Arc::new(AtomicU64::new(0));
        let other = Arc::clone(&others);
        let observers = Observers::default().with(hanging).with(move |_: &Event| {
            other.fetch_add(1, Ordering::Relaxed);
        });
        let emitted = 20_000;
        for n in 0..emitted {
            observers.emit(|| event(n));
            if n % 4_000 == 0 {
                // The other one keeps up.
                observers.queues.as_ref().unwrap()[1]
                    .0
                    .flush(Instant::now() + FLUSH_TIMEOUT);
            }
        }
        let [hanging, _] = observers.status()[..] else {
            panic!("two observers");
        };
        assert!(hanging.dropped > 0 && hanging.waiting > 0, "{hanging:?}");
        drop(release);
        assert!(flush(&observers));
        let [hanging, other] = observers.status()[..] else {
            panic!("two observers");
        };
        assert_eq!(hanging.observed, seen.load(Ordering::Relaxed));
        assert_eq!(hanging.observed + hanging.dropped, emitted);
        assert_eq!((other.observed, other.dropped), (emitted, 0));
        assert_eq!(others.load(Ordering::Relaxed), emitted);
    }

    #[test]
    fn an_observer_that_panics_goes_on_and_its_panics_are_counted() {
        let seen = Arc::new(AtomicU64::new(0));
        let seeing = Arc::clone(&seen);
        let observers = Observers::default().with(move |event: &Event| {
            assert!(event.at.is_multiple_of(2), "on purpose");
            seeing.fetch_add(1, Ordering::Relaxed);
        });
        for n in 0..100 {
            observers.emit(|| event(n));
        }
        assert!(flush(&observers));
        let status = observers.status()[0];
        assert_eq!(
            (status.observed, status.dropped, status.panics),
            (100, 0, 50)
        );
        assert_eq!(seen.load(Ordering::Relaxed), 50);
    }

    #[test]
    fn parallel_emitters_lose_nothing_uncounted() {
        let seen = Arc::new(AtomicU64::new(0));
        let seeing = Arc::clone(&seen);
        let observers = Observers::default().with(move |_: &Event| {
            seeing.fetch_add(1, Ordering::Relaxed);
        });
        thread::scope(|scope| {
            for _ in 0..4 {
                scope.spawn(|| (0..20_000).for_each(|n| observers.emit(|| event(n))));
            }
        });
        assert!(flush(&observers));
        let status = observers.status()[0];
        assert_eq!(status.observed + status.dropped, 80_000);
        assert_eq!(status.observed, seen.load(Ordering::Relaxed));
    }

    #[test]
    fn dropping_the_last_handle_delivers_what_waits_and_ends_the_thread() {
        struct Last(mpsc::Sender<u64>, AtomicU64);
        impl Observe for Last {
            fn observe(&self, _: &Event) {
                self.1.fetch_add(1, Ordering::Relaxed);
            }
        }
        impl Drop for Last {
            fn drop(&mut self) {
                let _ = self.0.send(self.1.load(Ordering::Relaxed));
            }
        }
        let (sender, receiver) = mpsc::channel();
        let observers = Observers::default().with(Last(sender, AtomicU64::new(0)));
        let clone = observers.clone().with(|_: &Event| ());
        drop(observers);
        for n in 0..10 {
            clone.emit(|| event(n));
        }
        drop(clone);
        // The observer is dropped by its own thread.
        assert_eq!(receiver.recv(), Ok(10));
    }

    #[test]
    fn a_user_is_shown_as_chosen_by_whatever_formats_the_event() {
        let user = EventUser::new("Alice", "alice", &UserDisplay::Masked);
        let text = format!("{:?}", event(0).with_user(user));
        assert!(text.contains("a***") && !text.to_lowercase().contains("alice"));
    }
}
