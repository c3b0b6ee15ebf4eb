//! One connection for many callers.

use std::{
    pin::{Pin, pin},
    sync::{
        Arc,
        atomic::{AtomicBool, AtomicU64, Ordering},
    },
    time::Duration,
};

use redis::{Cmd, ErrorKind, RedisError, ServerErrorKind, Value, aio::ConnectionLike};
use tokio::time::{Instant, timeout};

use super::scripts::Script;

/// Sends another command behind one that may still be carried out, on the same connection, on which
/// commands to one server keep their order. Says whether that was answered.
pub(super) type Afterthought =
    Box<dyn FnOnce(Cmd, &'static Script) -> Pin<Box<dyn Future<Output = bool> + Send>> + Send>;

/// How long an afterthought may take: as long as a server that was away for a while might.
pub(super) const PATIENCE: Duration = Duration::from_secs(60);
/// How often something is tried again that nobody waits for.
pub(super) const RETRY: Duration = Duration::from_millis(100);

/// A connection that many use at once and any of them can declare dead.
#[derive(Clone)]
pub(super) struct SharedConnection<C> {
    pub(super) connection: C,
    known: Arc<Known>,
}

/// What is known of a connection.
#[derive(Default)]
struct Known {
    is_broken: AtomicBool,
    answers: AtomicU64,
    /// Whether a task looks what is the matter with it.
    is_watched: AtomicBool,
}

impl<C: ConnectionLike> SharedConnection<C> {
    pub(super) async fn exchange(
        &mut self,
        command: &Cmd,
        script: Option<&'static Script>,
    ) -> Result<Value, RedisError> {
        let answer = command.query_async(&mut self.connection).await;
        match (answer, script) {
            (Err(error), Some(script))
                if error.kind() == ErrorKind::Server(ServerErrorKind::NoScript) =>
            {
                let by_source = script.call_by_source(command);
                by_source.query_async(&mut self.connection).await
            }
            (answer, _) => answer,
        }
    }
}

impl<C: ConnectionLike + Send + 'static> SharedConnection<C> {
    pub(super) fn afterthought(mut self) -> Afterthought {
        Box::new(move |command, script| {
            Box::pin(async move {
                let (known, until) = (Arc::clone(&self.known), Instant::now() + PATIENCE);
                let mut answer = pin!(self.exchange(&command, Some(script)));
                loop {
                    match timeout(RETRY, answer.as_mut()).await {
                        Ok(answer) => return answer.is_ok(),
                        // Nothing will come back on it.
                        Err(_) if known.is_broken.load(Ordering::Relaxed) => return false,
                        Err(_) if Instant::now() > until => return false,
                        Err(_) => {}
                    }
                }
            })
        })
    }
}

/// Dropped, says that nobody looks what is the matter with a connection.
pub(super) struct Watching(Arc<Known>);

impl Drop for Watching {
    fn drop(&mut self) {
        self.0.is_watched.store(false, Ordering::Relaxed);
    }
}

impl<C> SharedConnection<C> {
    pub(super) fn new(connection: C) -> Self {
        Self {
            connection,
            known: Arc::default(),
        }
    }

    pub(super) fn mark_broken(&self) {
        self.known.is_broken.store(true, Ordering::Relaxed);
    }

    pub(super) fn is_broken(&self) -> bool {
        self.known.is_broken.load(Ordering::Relaxed)
    }

    pub(super) fn has_answered(&self) {
        self.known.answers.fetch_add(1, Ordering::Relaxed);
    }

    /// How often something came back on it.
    pub(super) fn answers(&self) -> u64 {
        self.known.answers.load(Ordering::Relaxed)
    }

    /// For one who looks what is the matter with it; `None` if somebody does.
    pub(super) fn watch(&self) -> Option<Watching> {
        let is_watched = self.known.is_watched.swap(true, Ordering::Relaxed);
        (!is_watched).then(|| Watching(Arc::clone(&self.known)))
    }
}
