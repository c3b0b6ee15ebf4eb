//! How the pool opens connections, and why it could not.

use std::{
    io,
    sync::{Arc, Mutex, PoisonError},
    time::Duration,
};

use bb8_redis::bb8::{ErrorSink, ManageConnection, Pool, RunError};
use redis::{ErrorKind, RedisError};
use tokio::{
    sync::{Notify, futures::Notified},
    time::timeout,
};

use super::shared_connection::SharedConnection;
use crate::Period;

/// How long a connection may take to open in the background. Callers wait no longer than their deadline;
/// but where several servers are asked, finding out that one is silent takes a part of the time.
pub(super) fn time_to_connect(deadline: Duration) -> Duration {
    deadline.max(Duration::from_secs(1))
}

/// Failed attempts to open a connection. The pool reports one after it has given up its place, so a caller
/// that saw the place taken is notified, and any other has a connection of its own opened.
#[derive(Clone, Debug, Default)]
pub(super) struct Failures(Arc<LastFailure>);

#[derive(Debug, Default)]
struct LastFailure {
    error: Mutex<Option<RedisError>>,
    failed: Notify,
}

impl Failures {
    /// Completes with the next one.
    pub(super) fn failed(&self) -> Notified<'_> {
        self.0.failed.notified()
    }

    pub(super) fn last(&self) -> RedisError {
        let last = self.0.error.lock().unwrap_or_else(PoisonError::into_inner);
        last.clone()
            .unwrap_or_else(|| RedisError::from((ErrorKind::Io, "no connection")))
    }
}

impl ErrorSink<RedisError> for Failures {
    fn sink(&self, error: RedisError) {
        let mut last = self.0.error.lock().unwrap_or_else(PoisonError::into_inner);
        *last = Some(error);
        drop(last);
        self.0.failed.notify_waiters();
    }

    fn boxed_clone(&self) -> Box<dyn ErrorSink<RedisError>> {
        Box::new(self.clone())
    }
}

/// Opens connections with another manager, and discards those that were marked dead.
pub(super) struct Sharing<M> {
    pub(super) manager: Arc<M>,
    pub(super) deadline: Duration,
}

impl<M> ManageConnection for Sharing<M>
where
    M: ManageConnection<Error = RedisError>,
{
    type Connection = SharedConnection<M::Connection>;
    type Error = RedisError;

    async fn connect(&self) -> Result<Self::Connection, RedisError> {
        // A server that accepts and stays silent must not hold the pool's only place, whatever the
        // manager does about it.
        let time = time_to_connect(self.deadline);
        let connected = match timeout(time, self.manager.connect()).await {
            Ok(connected) => connected,
            Err(_) => {
                let within = Period::Of(time);
                let message = format!("no connection within {within}");
                Err(io::Error::new(io::ErrorKind::TimedOut, message).into())
            }
        };
        connected.map(SharedConnection::new)
    }

    async fn is_valid(&self, connection: &mut Self::Connection) -> Result<(), RedisError> {
        self.manager.is_valid(&mut connection.connection).await
    }

    fn has_broken(&self, connection: &mut Self::Connection) -> bool {
        connection.is_broken() || self.manager.has_broken(&mut connection.connection)
    }
}

/// Takes connections from a pool that belongs to the app.
pub(super) struct FromPool<M: ManageConnection>(pub(super) Pool<M>);

impl<M> ManageConnection for FromPool<M>
where
    M: ManageConnection<Error = RedisError>,
    M::Connection: Clone,
{
    type Connection = M::Connection;
    type Error = RedisError;

    async fn connect(&self) -> Result<Self::Connection, RedisError> {
        match self.0.get().await {
            Ok(pooled) => Ok(pooled.clone()),
            Err(RunError::User(error)) => Err(error),
            Err(RunError::TimedOut) => Err(RedisError::from((
                ErrorKind::Io,
                "the app's pool has no connection available",
            ))),
        }
    }

    async fn is_valid(&self, _: &mut Self::Connection) -> Result<(), RedisError> {
        Ok(())
    }

    fn has_broken(&self, _: &mut Self::Connection) -> bool {
        false
    }
}
