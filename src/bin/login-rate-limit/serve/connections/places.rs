//! The places of connections, of which there is a maximum.

use std::{
    collections::HashMap,
    sync::{
        Arc, Mutex,
        atomic::{AtomicU64, Ordering::Relaxed},
    },
    time::Duration,
};

use tokio::{
    sync::{Notify, OwnedSemaphorePermit, Semaphore},
    time::timeout,
};

use super::activity::{self, Activity};

/// How long to wait until a connection that was replaced has closed. Then another one is replaced.
const FOR_CLOSING: Duration = Duration::from_millis(100);

/// The connections that are open.
pub(super) struct Places {
    permits: Arc<Semaphore>,
    places: Arc<Mutex<HashMap<u64, Waiting>>>,
    next: AtomicU64,
}

struct Waiting {
    activity: Arc<Mutex<Activity>>,
    replaced: Arc<Notify>,
}

/// The place of a connection, free again when it is dropped.
pub(super) struct Place {
    id: u64,
    places: Arc<Mutex<HashMap<u64, Waiting>>>,
    /// Notified when another connection takes it.
    pub(super) replaced: Arc<Notify>,
    _permit: OwnedSemaphorePermit,
}

impl Places {
    pub(super) fn new(maximum: usize) -> Self {
        Self {
            permits: Arc::new(Semaphore::new(maximum)),
            places: Arc::default(),
            next: AtomicU64::new(0),
        }
    }

    /// A permit for one more. At the maximum, the connection is closed that has waited longest for its client; if the
    /// server works on requests of all of them, this waits.
    pub(super) async fn acquire(&self) -> OwnedSemaphorePermit {
        loop {
            if let Ok(permit) = Arc::clone(&self.permits).try_acquire_owned() {
                return permit;
            }
            self.replace_one();
            let permit = Arc::clone(&self.permits).acquire_owned();
            if let Ok(Ok(permit)) = timeout(FOR_CLOSING, permit).await {
                return permit;
            }
        }
    }

    fn replace_one(&self) {
        let mut places = activity::lock(&self.places);
        let waiting = places.iter().filter_map(|(id, waiting)| {
            let activity = activity::lock(&waiting.activity);
            (activity.working == 0).then_some((activity.since, *id))
        });
        let longest = waiting.min().map(|(_, id)| id);
        if let Some(waiting) = longest.and_then(|id| places.remove(&id)) {
            waiting.replaced.notify_one();
        }
    }

    pub(super) fn insert(
        &self,
        activity: &Arc<Mutex<Activity>>,
        permit: OwnedSemaphorePermit,
    ) -> Place {
        let id = self.next.fetch_add(1, Relaxed);
        let replaced = Arc::new(Notify::new());
        let waiting = Waiting {
            activity: Arc::clone(activity),
            replaced: Arc::clone(&replaced),
        };
        activity::lock(&self.places).insert(id, waiting);
        Place {
            id,
            places: Arc::clone(&self.places),
            replaced,
            _permit: permit,
        }
    }
}

impl Drop for Place {
    fn drop(&mut self) {
        activity::lock(&self.places).remove(&self.id);
    }
}
