//! Events read back from Redis.

use std::{fmt, time::Duration};

use redis::RedisError;
use tokio::time::sleep;

use super::{
    Event,
    redis_stream::{FIELD, Shared},
};
use crate::{
    algorithm::Millis,
    store::{StoreError, StoreErrorKind, redis::AnyConnection},
};

/// How often a reader that follows looks for new events.
const FOLLOW: Duration = Duration::from_millis(250);

/// Entries of a stream, each with its id and its fields.
type Entries = Vec<(String, Vec<(Vec<u8>, Vec<u8>)>)>;

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
        loop {
            let (events, is_end) = self.read_some(count).await?;
            // All entries may be unreadable, and the next ones not.
            if !events.is_empty() || is_end {
                return Ok(events);
            }
        }
    }

    /// The next events, `count` at most, as soon as there are any.
    ///
    /// # Errors
    ///
    /// Redis can't be read. The reader continues where it was.
    pub async fn follow(&mut self, count: usize) -> Result<Vec<Event>, StoreError> {
        loop {
            let events = self.read(count).await?;
            if !events.is_empty() || count == 0 {
                return Ok(events);
            }
            sleep(FOLLOW).await;
        }
    }

    /// Events, and whether there are no more entries.
    async fn read_some(&mut self, count: usize) -> Result<(Vec<Event>, bool), StoreError> {
        let mut entries = Vec::new();
        for shard in 0..self.positions.len() {
            let found = self.range(shard, count).await;
            let found = found.map_err(|error| self.shared.endpoint.explain(error))?;
            entries.extend(found.into_iter().map(|(id, fields)| {
                let json = fields
                    .into_iter()
                    .find(|(name, _)| name == FIELD.as_bytes());
                let event = json.and_then(|(_, json)| serde_json::from_slice::<Event>(&json).ok());
                (shard, id, event)
            }));
        }
        let is_end = entries.is_empty();
        // Ids grow with the time, so entries of one key stay in their order.
        entries.sort_by_key(|(_, id, _)| parse_id(id));
        let mut events = Vec::new();
        for (shard, id, event) in entries.into_iter().take(count) {
            self.positions[shard] = id;
            match event {
                Some(event) => events.push(event),
                None => self.unreadable += 1,
            }
        }
        Ok((events, is_end))
    }

    /// The entries of a key behind its position.
    async fn range(&mut self, shard: usize, count: usize) -> Result<Entries, RedisError> {
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

impl fmt::Debug for EventReader {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("EventReader")
            .field("position", &self.position())
            .field("unreadable", &self.unreadable)
            .finish_non_exhaustive()
    }
}
