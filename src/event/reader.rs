//! Events read back from Redis.

use std::{fmt, time::Duration};

use redis::RedisError;
use tokio::time::sleep;

use super::{Event, claims::Claims, fleet::Entry, redis_stream::Shared};
use crate::{
    algorithm::Millis,
    store::{StoreError, StoreErrorKind, redis::AnyConnection},
};

/// How often a reader that follows looks for new events.
const FOLLOW: Duration = Duration::from_millis(250);

/// Entries of a stream, each with its id and its fields.
type RawEntries = Vec<(String, Vec<(Vec<u8>, Vec<u8>)>)>;

/// The time and the number of an entry, from its id.
fn parse_id(id: &str) -> Option<(u64, u64)> {
    let (time, number) = id.split_once('-')?;
    Some((time.parse().ok()?, number.parse().ok()?))
}

/// Reads the events of a [`RedisStream`](super::RedisStream), in the order in which they were added.
///
/// Needs a Tokio runtime.
pub struct EventReader {
    shared: Shared,
    connection: Option<AnyConnection>,
    /// The last entry that was read of each key; the next one is behind it.
    positions: Vec<String>,
    unreadable: u64,
}

impl EventReader {
    pub(super) fn new(shared: Shared) -> Self {
        let positions = vec!["0-0".to_owned(); shared.keys.len()];
        Self {
            shared,
            connection: None,
            positions,
            unreadable: 0,
        }
    }

    /// Skips events that were added before a time, in milliseconds since 1970 by the clock of Redis.
    #[must_use]
    pub fn since(mut self, time: Millis) -> Self {
        // The last entry that the millisecond before can have.
        let before = format!("{}-{}", time.saturating_sub(1), u64::MAX);
        self.positions.fill(before);
        self
    }

    /// Continues at a [position](Self::position).
    ///
    /// # Errors
    ///
    /// The text is not the position of a reader of such a stream.
    pub fn at(mut self, position: &str) -> Result<Self, StoreError> {
        let ids: Vec<_> = position.split(',').map(str::to_owned).collect();
        if ids.len() != self.positions.len() || ids.iter().any(|id| parse_id(id).is_none()) {
            return Err(StoreError::new(
                StoreErrorKind::Config,
                "not a position in this stream: start at its beginning or at a time",
            ));
        }
        self.positions = ids;
        Ok(self)
    }

    /// Behind the event that was read last, for [`at`](Self::at): another process can continue there.
    #[must_use]
    pub fn position(&self) -> String {
        self.positions.join(",")
    }

    /// How many entries were skipped because they are no events that this version knows.
    pub const fn unreadable(&self) -> u64 {
        self.unreadable
    }

    /// The next events, `count` at most; none if there are no more yet.
    ///
    /// # Errors
    ///
    /// Redis can't be read. The reader continues where it was.
    pub async fn read(&mut self, count: usize) -> Result<Vec<Event>, StoreError> {
        Ok(events(self.read_entries(count).await?))
    }

    /// The next events, `count` at most, as soon as there are any.
    ///
    /// # Errors
    ///
    /// Redis can't be read. The reader continues where it was.
    pub async fn follow(&mut self, count: usize) -> Result<Vec<Event>, StoreError> {
        Ok(events(self.follow_entries(count).await?))
    }

    pub(super) async fn follow_entries(&mut self, count: usize) -> Result<Vec<Entry>, StoreError> {
        loop {
            let entries = self.read_entries(count).await?;
            if !entries.is_empty() || count == 0 {
                return Ok(entries);
            }
            sleep(FOLLOW).await;
        }
    }

    async fn read_entries(&mut self, count: usize) -> Result<Vec<Entry>, StoreError> {
        loop {
            let (entries, is_end) = self.read_some(count).await?;
            // All entries may be unreadable, and the next ones not.
            if !entries.is_empty() || is_end {
                return Ok(entries);
            }
        }
    }

    /// The next entries that can be read, and whether there are no more.
    async fn read_some(&mut self, count: usize) -> Result<(Vec<Entry>, bool), StoreError> {
        let mut raw = Vec::new();
        for shard in 0..self.positions.len() {
            let found = self.range(shard, count).await;
            let found = found.map_err(|error| self.shared.endpoint.explain(error))?;
            let found = found.into_iter();
            raw.extend(found.map(|(id, fields)| (shard, id, self.shared.entries.read(&fields))));
        }
        let is_end = raw.is_empty();
        // Ids grow with the time, so entries of one key stay in their order.
        raw.sort_by_key(|(_, id, _)| parse_id(id));
        let mut entries = Vec::new();
        for (shard, id, entry) in raw.into_iter().take(count) {
            self.positions[shard] = id;
            match entry {
                Some(entry) => entries.push(entry),
                None => self.unreadable += 1,
            }
        }
        Ok((entries, is_end))
    }

    /// Agrees with the other processes that read the stream on who emits what all of them find.
    pub(super) fn claims(&self) -> Claims {
        Claims::new(self.shared.clone())
    }

    /// The entries of a key behind its position.
    async fn range(&mut self, shard: usize, count: usize) -> Result<RawEntries, RedisError> {
        let mut command = redis::cmd("XRANGE");
        let start = format!("({}", self.positions[shard]);
        command.arg(&self.shared.keys[shard]).arg(start).arg("+");
        command.arg("COUNT").arg(count);
        if let Some(open) = &mut self.connection
            && let Ok(entries) = open.query(&command).await
        {
            return Ok(entries);
        }
        self.connection = None;
        let mut open = self.shared.endpoint.connect().await?;
        let entries = open.query(&command).await?;
        self.connection = Some(open);
        Ok(entries)
    }
}

fn events(entries: Vec<Entry>) -> Vec<Event> {
    entries.into_iter().map(|entry| entry.event).collect()
}

impl fmt::Debug for EventReader {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("EventReader")
            .field("position", &self.position())
            .field("unreadable", &self.unreadable)
            .finish_non_exhaustive()
    }
}
