//! How a store reports that there is a new version of the document.

use tokio::sync::watch;

/// The sending side of [`Announcements`], for a store of the app's own.
#[derive(Debug, Default)]
pub struct Announcer(watch::Sender<()>);

impl Announcer {
    /// An announcer without receivers.
    #[must_use]
    pub fn new() -> Self {
        Self::default()
    }

    /// Wakes every receiver.
    pub fn announce(&self) {
        self.0.send_replace(());
    }

    /// A receiver of what is announced from now on.
    pub fn subscribe(&self) -> Announcements {
        Announcements(self.0.subscribe())
    }
}

/// Reports that the document may have a new version. See
/// [`Ledger::announcements`](super::Ledger::announcements).
///
/// It carries no version: what is received is a reason to ask. Several announcements may be received as one.
#[derive(Clone, Debug)]
pub struct Announcements(watch::Receiver<()>);

impl Announcements {
    /// Waits for an announcement that was not received yet. Returns `false` if there will be none: the store
    /// is gone. May be dropped and called again without missing one.
    pub async fn changed(&mut self) -> bool {
        self.0.changed().await.is_ok()
    }

    /// Whether there is an announcement that was not received yet.
    pub fn has_changed(&self) -> bool {
        self.0.has_changed().unwrap_or(false)
    }
}
