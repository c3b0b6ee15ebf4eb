//! Connections: a small pool whose connections are shared, not held.
//!
//! A multiplexed connection serves many callers at once, so a caller takes a clone out of the pool
//! and hands the pooled one back before it sends anything. A connection that turns out to be dead is
//! marked, in all its clones, and leaves the pool when it is met there next; so nothing has to be sent
//! to find out, and the first call after a restart of the server finds a new connection.

use std::{
    future::poll_fn,
    io,
    pin::{Pin, pin},
    sync::{Arc, Mutex, PoisonError},
    task::Poll,
    time::Duration,
};

use bb8_redis::bb8::{ManageConnection, Pool, RunError};
use redis::{Cmd, ErrorKind, RedisError, ServerErrorKind, Value, aio::ConnectionLike};
use tokio::{
    sync::Notify,
    time::{Instant, sleep, timeout, timeout_at},
};

use super::{
    scripts::Script,
    shared_connection::{Afterthought, PATIENCE, RETRY, SharedConnection},
};
use crate::{
    Period,
    store::{StoreError, StoreErrorKind},
};

type Answer = Pin<Box<dyn Future<Output = Result<Value, Failure>> + Send>>;

/// A command that was not answered as it should.
pub(super) struct Failure {
    pub(super) error: StoreError,
    /// Whether the command may have been carried out, or may still be.
    pub(super) was_sent: bool,
    /// If it may still be, what can be sent behind it.
    pub(super) afterthought: Option<Afterthought>,
    /// Whether the server keeps the keys of the command in different places.
    pub(super) is_cross_slot: bool,
}

impl From<StoreError> for Failure {
    fn from(error: StoreError) -> Self {
        Self {
            error,
            was_sent: false,
            afterthought: None,
            is_cross_slot: false,
        }
    }
}

/// How long to wait before a cluster that is being changed is asked again.
pub(super) const MOMENT: Duration = Duration::from_millis(20);

/// Sends commands, over whatever kind of connection.
pub(super) trait Link: Send + Sync {
    /// When something that begins now has to be answered.
    fn deadline(&self) -> Instant;

    /// Sends a command, for a script if it is a call of one, and answers by the deadline.
    fn send(
        self: Arc<Self>,
        command: Cmd,
        script: Option<&'static Script>,
        deadline: Instant,
    ) -> Answer;
}

/// A pool of shared connections.
pub(super) struct Connections<M: ManageConnection<Error = RedisError>> {
    pool: Pool<Sharing<M>>,
    manager: Arc<M>,
    failures: Arc<Failures>,
    size: u32,
    deadline: Duration,
}

impl<M> Connections<M>
where
    M: ManageConnection<Error = RedisError>,
    M::Connection: ConnectionLike + Clone + Sync,
{
    /// Needs a Tokio runtime: connections are opened by tasks of their own.
    pub(super) fn new(manager: M, size: u32, deadline: Duration) -> Self {
        let failures = Arc::<Failures>::default();
        let manager = Arc::new(manager);
        let sharing = Sharing {
            manager: Arc::clone(&manager),
            failures: Arc::clone(&failures),
            deadline,
        };
        let pool = Pool::builder()
            .max_size(size)
            .min_idle(size)
            .test_on_check_out(false)
            .max_lifetime(None)
            .idle_timeout(None)
            .retry_connection(false)
            .connection_timeout(deadline.saturating_mul(2)) // ours comes first
            .build_unchecked(sharing);
        Self {
            pool,
            manager,
            failures,
            size,
            deadline,
        }
    }

    async fn exchange(
        &self,
        command: Cmd,
        script: Option<&'static Script>,
        deadline: Instant,
    ) -> Result<Value, Failure> {
        // After a restart all connections of the pool are dead, and one more call finds a new one. As
        // many again may have been opened by others when the server went away.
        let mut tries = self.size * 2 + 1;
        let (mut was_sent, mut may_have_run) = (false, false);
        loop {
            let failed = |error| Failure {
                was_sent,
                ..Failure::from(error)
            };
            let mut link = match timeout_at(deadline, self.checkout()).await {
                Ok(Ok(link)) => link,
                // One broke while it was being opened, as when the server is started again. Another
                // one may not.
                Ok(Err(error)) if error.is_connection_dropped() && tries > 1 => {
                    tries -= 1;
                    continue;
                }
                Ok(Err(error)) => return Err(failed(self.explain(&error))),
                Err(_) => return Err(failed(self.no_connection_in_time())),
            };
            was_sent = true;
            let answer = link.exchange(&command, script);
            let Ok(answer) = timeout_at(deadline, answer).await else {
                self.suspect(&link);
                return Err(Failure {
                    was_sent,
                    afterthought: Some(link.afterthought()),
                    ..self.no_answer_in_time().into()
                });
            };
            link.has_answered();
            match answer {
                Ok(value) => return Ok(value),
                // Every command of ours may be repeated: a reply that was lost counts once.
                Err(error) if is_of_the_connection(&error) => {
                    link.mark_broken();
                    may_have_run |= !matches!(error.kind(), ErrorKind::Server(_));
                    tries -= 1;
                    if tries == 0 {
                        return Err(Failure {
                            was_sent,
                            ..self.explain(&error).into()
                        });
                    }
                }
                // This try was not carried out; one before, whose reply was lost, may have been.
                Err(error) if is_of_a_moment(&error) => {
                    if Instant::now() + MOMENT >= deadline {
                        return Err(Failure {
                            was_sent,
                            ..self.explain(&error).into()
                        });
                    }
                    sleep(MOMENT).await;
                }
                // The server has refused it.
                Err(error) => {
                    let kind = error.kind();
                    return Err(Failure {
                        was_sent: may_have_run,
                        is_cross_slot: kind == ErrorKind::Server(ServerErrorKind::CrossSlot),
                        ..self.explain(&error).into()
                    });
                }
            }
        }
    }

    /// A connection that did not answer in time may be a black hole, or the server is slow, or one of
    /// a cluster's is. It is given up if another one can be opened and nothing at all has come back on
    /// it by then; until then it is better than none.
    fn suspect(&self, link: &SharedConnection<M::Connection>) {
        let Some(watching) = link.watch() else {
            return; // somebody does
        };
        let (link, manager, deadline) = (link.clone(), Arc::clone(&self.manager), self.deadline);
        tokio::spawn(async move {
            let until = Instant::now() + PATIENCE;
            let answers = link.answers();
            let is_silent = || link.answers() == answers;
            while is_silent() && Instant::now() < until {
                match timeout(time_to_connect(deadline), manager.connect()).await {
                    Ok(Ok(_)) if is_silent() => link.mark_broken(),
                    Ok(Ok(_)) => {}
                    _ => {
                        sleep(RETRY).await;
                        continue;
                    }
                }
                break;
            }
            drop(watching);
        });
    }

    /// A clone of a connection that is not known to be dead.
    async fn checkout(&self) -> Result<SharedConnection<M::Connection>, RedisError> {
        loop {
            // Registered before the pool is asked, so that no failure is missed.
            let mut failed = pin!(self.failures.failed.notified());
            failed.as_mut().enable();
            let mut pooled = pin!(self.pool.get());
            // The pool waits for a connection until its time is up, whatever becomes of those that
            // it is opening. We would rather say at once that the server can't be reached.
            let pooled = poll_fn(|cx| match pooled.as_mut().poll(cx) {
                Poll::Ready(pooled) => Poll::Ready(Some(pooled)),
                Poll::Pending => failed.as_mut().poll(cx).map(|()| None),
            });
            match pooled.await {
                Some(Ok(pooled)) if pooled.is_broken() => {} // the pool drops it
                Some(Ok(pooled)) => return Ok(pooled.clone()),
                Some(Err(RunError::User(error))) => return Err(error),
                Some(Err(RunError::TimedOut)) | None => return Err(self.failures.last()),
            }
        }
    }

    fn no_connection_in_time(&self) -> StoreError {
        let within = Period::Of(self.deadline);
        StoreError::new(
            StoreErrorKind::Timeout,
            format!("redis did not accept a connection within {within}"),
        )
    }

    fn no_answer_in_time(&self) -> StoreError {
        let within = Period::Of(self.deadline);
        StoreError::new(
            StoreErrorKind::Timeout,
            format!("redis did not answer within {within}"),
        )
    }

    fn explain(&self, error: &RedisError) -> StoreError {
        let (kind, what) = match error.kind() {
            _ if error.is_timeout() => (StoreErrorKind::Timeout, "redis did not answer in time"),
            ErrorKind::Io | ErrorKind::ClusterConnectionNotFound => {
                (StoreErrorKind::Connection, "redis can't be reached")
            }
            ErrorKind::InvalidClientConfig => (StoreErrorKind::Config, "redis can't be used so"),
            ErrorKind::Parse | ErrorKind::UnexpectedReturnType => {
                (StoreErrorKind::Protocol, "redis sent something unreadable")
            }
            _ => (StoreErrorKind::Server, "redis answered with an error"),
        };
        StoreError::new(kind, format!("{what}: {error}"))
    }
}

impl<M> Link for Connections<M>
where
    M: ManageConnection<Error = RedisError>,
    M::Connection: ConnectionLike + Clone + Sync,
{
    fn deadline(&self) -> Instant {
        Instant::now() + self.deadline
    }

    fn send(
        self: Arc<Self>,
        command: Cmd,
        script: Option<&'static Script>,
        deadline: Instant,
    ) -> Answer {
        Box::pin(async move { self.exchange(command, script, deadline).await })
    }
}

/// How long a connection may take to open. Callers wait for it no longer than for anything else; but
/// where several servers are asked and one is silent, finding that out takes some of the time.
fn time_to_connect(deadline: Duration) -> Duration {
    deadline.max(Duration::from_secs(1))
}

/// Whether the connection, not the command, is what failed: it broke, or it leads to a server that is
/// not the one to ask (any more), so that a new one may lead elsewhere.
fn is_of_the_connection(error: &RedisError) -> bool {
    use ServerErrorKind::{BusyLoading, MasterDown, ReadOnly};
    error.is_connection_dropped()
        || error.is_io_error()
        || error.is_unrecoverable_error()
        || matches!(
            error.kind(),
            ErrorKind::Server(ReadOnly | MasterDown | BusyLoading)
        )
}

/// Whether a cluster says that it is being changed: a slot is on its way from one server to another, or
/// has no server until a replica takes over.
fn is_of_a_moment(error: &RedisError) -> bool {
    use ServerErrorKind::{Ask, ClusterDown, Moved, TryAgain};
    matches!(
        error.kind(),
        ErrorKind::Server(TryAgain | ClusterDown | Moved | Ask)
    )
}

/// What became of the attempts to open a connection.
#[derive(Default)]
struct Failures {
    last: Mutex<Option<RedisError>>,
    failed: Notify,
}

impl Failures {
    fn last(&self) -> RedisError {
        let last = self.last.lock().unwrap_or_else(PoisonError::into_inner);
        last.clone()
            .unwrap_or_else(|| RedisError::from((ErrorKind::Io, "no connection")))
    }
}

/// Makes connections with another manager, and lets go of those that were declared dead.
struct Sharing<M> {
    manager: Arc<M>,
    failures: Arc<Failures>,
    deadline: Duration,
}

impl<M> ManageConnection for Sharing<M>
where
    M: ManageConnection<Error = RedisError>,
{
    type Connection = SharedConnection<M::Connection>;
    type Error = RedisError;

    async fn connect(&self) -> Result<Self::Connection, RedisError> {
        // Whatever the manager does about it: a server that accepts and says nothing must not keep
        // the pool's only place.
        let time = time_to_connect(self.deadline);
        let connected = match timeout(time, self.manager.connect()).await {
            Ok(connected) => connected,
            Err(_) => {
                let within = Period::Of(time);
                let message = format!("no connection within {within}");
                Err(io::Error::new(io::ErrorKind::TimedOut, message).into())
            }
        };
        match connected {
            Ok(connection) => Ok(SharedConnection::new(connection)),
            Err(error) => {
                let mut last = self
                    .failures
                    .last
                    .lock()
                    .unwrap_or_else(PoisonError::into_inner);
                *last = Some(error.clone());
                drop(last);
                self.failures.failed.notify_waiters();
                Err(error)
            }
        }
    }

    async fn is_valid(&self, connection: &mut Self::Connection) -> Result<(), RedisError> {
        self.manager.is_valid(&mut connection.connection).await
    }

    fn has_broken(&self, connection: &mut Self::Connection) -> bool {
        connection.is_broken() || self.manager.has_broken(&mut connection.connection)
    }
}

/// Takes connections out of a pool that belongs to the app.
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
                "the app's pool has no connection to give",
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
