//! Which process of a fleet emits what all of them find.

use redis::RedisError;

use super::redis_stream::Shared;
use crate::{
    clock::{Clock, SystemClock},
    store::redis::AnyConnection,
};

/// For how long, in milliseconds, a finding is nobody else's. The processes find it within a second, and when it begins
/// again later, it is another one.
const KEPT: u64 = 10 * 60 * 1000;

/// A set beside the stream, of what was found lately.
pub(super) struct Claims {
    shared: Shared,
    key: String,
    connection: Option<AnyConnection>,
}

impl Claims {
    pub(super) fn new(shared: Shared) -> Self {
        let key = format!("{}:found", shared.keys[0]);
        Self {
            shared,
            key,
            connection: None,
        }
    }

    /// Whether this process is the first to have found it. Also if that is not known: twice is better than not at all.
    pub(super) async fn is_first(&mut self, id: u64) -> bool {
        let added = self.add(id).await;
        if added.is_err() {
            self.connection = None;
        }
        added.unwrap_or(true)
    }

    async fn add(&mut self, id: u64) -> Result<bool, RedisError> {
        let connection = match &mut self.connection {
            Some(open) => open,
            none => none.insert(self.shared.endpoint.connect().await?),
        };
        let now = SystemClock.now();
        let mut expire = redis::cmd("ZREMRANGEBYSCORE");
        expire
            .arg(&self.key)
            .arg("-inf")
            .arg(now.saturating_sub(KEPT));
        connection.query::<()>(&expire).await?;
        let mut add = redis::cmd("ZADD");
        add.arg(&self.key)
            .arg("NX")
            .arg(now)
            .arg(format!("{id:016x}"));
        let is_first: bool = connection.query(&add).await?;
        let mut end = redis::cmd("EXPIRE");
        end.arg(&self.key).arg(KEPT / 1000);
        // Else it ends with the next one.
        let _ = connection.query::<()>(&end).await;
        Ok(is_first)
    }
}
