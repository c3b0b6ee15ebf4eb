//! Connections: a small pool whose connections are shared, not held.
//!
//! A multiplexed connection serves many callers at once, so a caller takes a clone out of the pool
//! and hands the pooled one back before it sends anything. A connection that turns out to be dead is
//! marked in all its clones, and leaves the pool when it is checked out next; so no command is spent on
//! testing connections, and the first call after a restart of the server gets a new one.

use std::{
    future::poll_fn,
    io,
    pin::{Pin, pin},
    sync::{Arc, Mutex, PoisonError},
    task::Poll,
    time::Duration,
};

use bb8_redis::bb8::{ErrorSink, ManageConnection, Pool, RunError};
use redis::{Cmd, ErrorKind, RedisError, Value, aio::ConnectionLike};
use tokio::{
    sync::Notify,
    time::{Instant, sleep, timeout, timeout_at},
};

use super::{
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
                Err(_) => return Err(failed(self.no_connection_in_time())),
            };
            was_sent = true;
            let reply = link.exchange(&command, script.as_deref());
            let Ok(reply) = timeout_at(deadline, reply).await else {
                self.suspect(&link);
                return Err(Failure {
                    was_sent,
                    follow_up: Some(link.follow_up()),
                    ..self.no_reply_in_time().into()
                });
            };
            link.count_reply();
            match reply {
                Ok(value) => return Ok(value),
                // Every command is idempotent, so it may be repeated after a lost reply.
                Err(error) if is_connection_fault(&error) => {
                    link.mark_broken();
                    may_have_run |= !matches!(error.kind(), ErrorKind::Server(_));
                    tries -= 1;
                    if tries == 0 {
                        return Err(Failure {
                            was_sent: may_have_run,
                            ..self.explain(&error).into()
                        });
                    }
                }
                // This try did not run; one before, whose reply was lost, may have.
                Err(error) if is_transient(&error) => {
                    if Instant::now() + TRANSIENT_WAIT >= deadline {
                        return Err(Failure {
                            was_sent: may_have_run,
                            ..self.explain(&error).into()
                        });
                    }
                    sleep(TRANSIENT_WAIT).await;
                }
                // The server rejected it.
                Err(error) => {
                    return Err(Failure {
                        was_sent: may_have_run,
                        is_cross_slot: error_code(&error) == Some("CROSSSLOT"),
                        ..self.explain(&error).into()
                    });
                }
            }
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
            let mut failed = pin!(self.failures.0.failed.notified());
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

    fn no_connection_in_time(&self) -> StoreError {
        let within = Period::Of(self.deadline);
        StoreError::new(
            StoreErrorKind::Timeout,
            format!(
                "{} did not accept a connection within {within}",
                self.server
            ),
        )
    }

    fn no_reply_in_time(&self) -> StoreError {
        let within = Period::Of(self.deadline);
        StoreError::new(
            StoreErrorKind::Timeout,
            format!("{} did not answer within {within}", self.server),
        )
    }

    fn explain(&self, error: &RedisError) -> StoreError {
        let (kind, what) = match error.kind() {
            _ if error.is_timeout() => (StoreErrorKind::Timeout, "did not answer in time"),
            ErrorKind::Io | ErrorKind::ClusterConnectionNotFound => {
                (StoreErrorKind::Connection, "can't be reached")
            }
            ErrorKind::InvalidClientConfig => {
                (StoreErrorKind::Config, "has a misconfigured client")
            }
            ErrorKind::Parse | ErrorKind::UnexpectedReturnType => {
                (StoreErrorKind::Protocol, "sent an unreadable reply")
            }
            _ => (StoreErrorKind::Server, "returned an error"),
        };
        StoreError::new(kind, format!("{} {what}: {error}", self.server)).with_source(error.clone())
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

/// How long a connection may take to open in the background. Callers wait no longer than their deadline;
/// but where several servers are asked, finding out that one is silent takes a part of the time.
fn time_to_connect(deadline: Duration) -> Duration {
    deadline.max(Duration::from_secs(1))
}

/// Whether the connection failed, not the command: it broke, or it leads to a server that no longer
/// accepts commands, so that a new one may lead to another server.
fn is_connection_fault(error: &RedisError) -> bool {
    error.is_connection_dropped()
        || error.is_io_error()
        || error.is_unrecoverable_error()
        || matches!(
            error_code(error),
            Some("READONLY" | "MASTERDOWN" | "LOADING")
        )
}

/// Whether a cluster reports that it is being reconfigured: a slot is moving to another server, or has no
/// server until a replica is promoted.
fn is_transient(error: &RedisError) -> bool {
    matches!(
        error_code(error),
        Some("TRYAGAIN" | "CLUSTERDOWN" | "MOVED" | "ASK")
    )
}

/// The code of a server's error, such as `READONLY`. Before version 7, Redis wraps the error of a command
/// in a script: `ERR Error running script (call to f_…): @user_script:1: @user_script: 1: -READONLY …`.
pub(super) fn error_code(error: &RedisError) -> Option<&str> {
    let wrapped = || {
        let detail = error.detail()?.strip_prefix("Error running script")?;
        let (_, inner) = detail.split_once(" -")?;
        let code = inner.split(' ').next()?;
        let is_code = |code: &str| !code.is_empty() && code.bytes().all(|b| b.is_ascii_uppercase());
        is_code(code).then_some(code)
    };
    match error.code() {
        Some("ERR") => wrapped().or(Some("ERR")),
        code => code,
    }
}

/// Failed attempts to open a connection. The pool reports one after it has given up its place, so a caller
/// that saw the place taken is notified, and any other has a connection of its own opened.
#[derive(Clone, Debug, Default)]
struct Failures(Arc<LastFailure>);

#[derive(Debug, Default)]
struct LastFailure {
    error: Mutex<Option<RedisError>>,
    failed: Notify,
}

impl Failures {
    fn last(&self) -> RedisError {
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
struct Sharing<M> {
    manager: Arc<M>,
    deadline: Duration,
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

#[cfg(test)]
mod tests {
    use super::*;

    /// The error that redis-rs reads from a line of the server's.
    fn error(line: &str) -> RedisError {
        let value = redis::parse_redis_value(format!("-{line}\r\n").as_bytes());
        match value.and_then(|value| value.extract_error()) {
            Err(error) => error,
            Ok(value) => panic!("{line}: {value:?}"),
        }
    }

    #[test]
    fn errors_of_commands_in_scripts_are_recognized_on_redis_6() {
        let codes = "READONLY MASTERDOWN LOADING OOM NOREPLICAS CLUSTERDOWN TRYAGAIN CROSSSLOT MOVED ASK \
                     BUSY NOSCRIPT MISCONF NOPERM";
        let call = "Error running script (call to f_625a7ac6a87b595aaeb01e34df44780cd8f912a1)";
        for code in codes.split(' ') {
            for line in [
                format!("{code} the reason"),
                format!("ERR {call}: @user_script:49: @user_script: 49: -{code} the reason"),
                format!("ERR Error running script -{code} the - REASON"),
            ] {
                let error = error(&line);
                assert_eq!(error_code(&error), Some(code), "{line}");
                let is_fault = matches!(code, "READONLY" | "MASTERDOWN" | "LOADING");
                assert_eq!(is_connection_fault(&error), is_fault, "{line}");
                let is_passing = matches!(code, "CLUSTERDOWN" | "TRYAGAIN" | "MOVED" | "ASK");
                assert_eq!(is_transient(&error), is_passing, "{line}");
            }
        }
        for line in [
            "ERR no -READONLY here".to_owned(),
            format!("ERR {call}: @user_script:1: user_script:1: attempt to index a nil value"),
            format!("ERR {call}: @user_script:1: x - 1"),
            format!("ERR {call}: -"),
            "ERR".to_owned(),
        ] {
            assert_eq!(error_code(&error(&line)), Some("ERR"), "{line}");
        }
    }
}
