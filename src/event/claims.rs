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
        self.add(id).await.unwrap_or(true)
    }

    async fn add(&mut self, id: u64) -> Result<bool, RedisError> {
        let now = SystemClock.now();
        let mut connection = self.without_old(now.saturating_sub(KEPT)).await?;
        let mut add = redis::cmd("ZADD");
        add.arg(&self.key).arg("NX").arg(now);
        // Not repeated: it may have been added though the reply is lost.
        let is_first: bool = connection.query(add.arg(format!("{id:016x}"))).await?;
        let mut end = redis::cmd("EXPIRE");
        end.arg(&self.key).arg(KEPT / 1000);
        // Else it ends with the next one.
        let _ = connection.query::<()>(&end).await;
        self.connection = Some(connection);
        Ok(is_first)
    }

    /// A connection that works, over which what was found before a time was forgotten.
    async fn without_old(&mut self, time: u64) -> Result<AnyConnection, RedisError> {
        let mut forget = redis::cmd("ZREMRANGEBYSCORE");
        forget.arg(&self.key).arg("-inf").arg(time);
        // A server that was restarted has closed the connection, which shows when it is used.
        if let Some(mut open) = self.connection.take()
            && open.query::<()>(&forget).await.is_ok()
        {
            return Ok(open);
        }
        let mut open = self.shared.endpoint.connect().await?;
        open.query::<()>(&forget).await?;
        Ok(open)
    }
}
