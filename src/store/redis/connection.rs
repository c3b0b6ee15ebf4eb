//! Connections: a small pool whose connections are shared, not held.
//!
//! A multiplexed connection serves many callers at once, so a caller takes a clone out of the pool
//! and hands the pooled one back before it sends anything. A connection that turns out to be dead is
//! marked in all its clones, and leaves the pool when it is checked out next; so no command is spent on
//! testing connections, and the first call after a restart of the server gets a new one.

use std::{
    future::poll_fn,
    pin::{Pin, pin},
    sync::Arc,
    task::Poll,
    time::Duration,
};

use bb8_redis::bb8::{ManageConnection, Pool, RunError};
use redis::{Cmd, ErrorKind, RedisError, Value, aio::ConnectionLike};
use tokio::time::{Instant, sleep, timeout, timeout_at};

use super::{
    fault::{self, error_code, is_connection_fault, is_transient},
    pool::{Failures, Sharing, time_to_connect},
    scripts::Script,
    shared_connection::{FollowUp, PATIENCE, RETRY, SharedConnection},
};
use crate::{
    Period,
    store::{StoreError, StoreErrorKind},
};

type Reply = Pin<Box<dyn Future<Output = Result<Value, Failure>> + Send>>;

/// A command without a usable reply.
pub(super) struct Failure {
    pub(super) error: StoreError,
    /// Whether the command may have run, or may still run.
    pub(super) was_sent: bool,
    /// If it may still run, a way to send a command behind it.
    pub(super) follow_up: Option<FollowUp>,
    /// Whether the keys of the command are in different slots of a cluster.
    pub(super) is_cross_slot: bool,
}

impl From<StoreError> for Failure {
    fn from(error: StoreError) -> Self {
        Self {
            error,
            was_sent: false,
            follow_up: None,
            is_cross_slot: false,
        }
    }
}

/// How long to wait before a command is repeated to a cluster that is being reconfigured.
pub(super) const TRANSIENT_WAIT: Duration = Duration::from_millis(20);

/// Sends commands over connections of any kind.
pub(super) trait Link: Send + Sync {
    /// The deadline of a call that begins now.
    fn deadline(&self) -> Instant;

    /// Sends a command, which may be a call of `script`, and completes by the deadline.
    fn send(self: Arc<Self>, command: Cmd, script: Option<Arc<Script>>, deadline: Instant)
    -> Reply;
}

/// A pool of shared connections.
pub(super) struct Connections<M: ManageConnection<Error = RedisError>> {
    pool: Pool<Sharing<M>>,
    manager: Arc<M>,
    failures: Failures,
    /// What it connects to, for errors.
    server: String,
    size: u32,
    deadline: Duration,
}

impl<M> Connections<M>
where
    M: ManageConnection<Error = RedisError>,
    M::Connection: ConnectionLike + Clone + Sync,
{
    /// Needs a Tokio runtime: connections are opened in background tasks. `server` begins the messages of
    /// errors.
    pub(super) fn new(manager: M, server: String, size: u32, deadline: Duration) -> Self {
        let failures = Failures::default();
        let manager = Arc::new(manager);
        let sharing = Sharing {
            manager: Arc::clone(&manager),
            deadline,
        };
        let pool = Pool::builder()
            .max_size(size)
            .min_idle(size)
            .test_on_check_out(false)
            .max_lifetime(None)
            .idle_timeout(None)
            .retry_connection(false)
            .error_sink(Box::new(failures.clone()))
            .connection_timeout(deadline.saturating_mul(2)) // our deadline comes first
            .build_unchecked(sharing);
        Self {
            pool,
            manager,
            failures,
            server,
            size,
            deadline,
        }
    }

    async fn exchange(
        &self,
        command: Cmd,
        script: Option<Arc<Script>>,
        deadline: Instant,
    ) -> Result<Value, Failure> {
        // After a restart all connections of the pool are dead, and one more try gets a new one. As many
        // again may have been opened just before the server went down.
        let mut tries = self.size * 2 + 1;
        let (mut was_sent, mut may_have_run) = (false, false);
        loop {
            let failed = |error| Failure {
                was_sent,
                ..Failure::from(error)
            };
            let mut link = match timeout_at(deadline, self.checkout()).await {
                Ok(Ok(link)) => link,
                // It broke while it was being opened, as during a restart. Another one may not.
                Ok(Err(error)) if error.is_connection_dropped() && tries > 1 => {
                    tries -= 1;
                    continue;
                }
                Ok(Err(error)) => return Err(failed(self.explain(&error))),
                Err(_) => return Err(failed(self.timed_out("accept a connection"))),
            };
            was_sent = true;
            let reply = link.exchange(&command, script.as_deref());
            let Ok(reply) = timeout_at(deadline, reply).await else {
                self.suspect(&link);
                return Err(Failure {
                    was_sent,
                    follow_up: Some(link.follow_up()),
                    ..self.timed_out("answer").into()
                });
            };
            link.count_reply();
            let error = match reply {
                Ok(value) => return Ok(value),
                Err(error) => error,
            };
            // Every command is idempotent, so it may be repeated after a lost reply.
            if is_connection_fault(&error) {
                link.mark_broken();
                may_have_run |= !matches!(error.kind(), ErrorKind::Server(_));
                tries -= 1;
                if tries > 0 {
                    continue;
                }
            } else if is_transient(&error) && Instant::now() + TRANSIENT_WAIT < deadline {
                sleep(TRANSIENT_WAIT).await;
                continue;
            }
            // Rejected by the server, or out of tries. A try whose reply was lost may have run.
            return Err(Failure {
                was_sent: may_have_run,
                is_cross_slot: error_code(&error) == Some("CROSSSLOT"),
                ..self.explain(&error).into()
            });
        }
    }

    /// Finds out whether a connection without a reply in time is dead: it may be a black hole, but the
    /// server may also be slow, or one server of a cluster hangs. It is given up if another one can be
    /// opened and nothing at all has been received on it by then.
    fn suspect(&self, link: &SharedConnection<M::Connection>) {
        let Some(watching) = link.watch() else {
            return; // another task does
        };
        let (link, manager, deadline) = (link.clone(), Arc::clone(&self.manager), self.deadline);
        tokio::spawn(async move {
            let until = Instant::now() + PATIENCE;
            let replies = link.replies();
            let is_silent = || link.replies() == replies;
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
            // Registered before the pool is polled, so that no failure is missed.
            let mut failed = pin!(self.failures.failed());
            failed.as_mut().enable();
            let mut pooled = pin!(self.pool.get());
            // The pool waits until its timeout even if opening connections fails. Fail at once instead,
            // with the reason.
            let pooled = poll_fn(|cx| match pooled.as_mut().poll(cx) {
                Poll::Ready(pooled) => Poll::Ready(Some(pooled)),
                Poll::Pending => failed.as_mut().poll(cx).map(|()| None),
            });
            match pooled.await {
                Some(Ok(pooled)) if pooled.is_broken() => {} // the pool discards it
                Some(Ok(pooled)) => return Ok(pooled.clone()),
                Some(Err(RunError::User(error))) => return Err(error),
                Some(Err(RunError::TimedOut)) | None => return Err(self.failures.last()),
            }
        }
    }

    fn explain(&self, error: &RedisError) -> StoreError {
        fault::explain(error, &self.server)
    }

    /// The server did not do this by the deadline.
    fn timed_out(&self, what: &str) -> StoreError {
        let within = Period::Of(self.deadline);
        let message = format!("{} did not {what} within {within}", self.server);
        StoreError::new(StoreErrorKind::Timeout, message)
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
        script: Option<Arc<Script>>,
        deadline: Instant,
    ) -> Reply {
        Box::pin(async move { self.exchange(command, script, deadline).await })
    }
}
