//! One connection for many callers.

use std::{
    pin::{Pin, pin},
    sync::{
        Arc,
        atomic::{AtomicBool, AtomicU64, Ordering},
    },
    time::Duration,
};

use redis::{Cmd, RedisError, Value, aio::ConnectionLike};
use tokio::time::{Instant, timeout};

use super::{counters::Call, scripts::Script};

/// Sends a command behind one that may still run, on the same connection, on which commands to one server
/// keep their order. Returns whether it was answered.
pub(super) type FollowUp =
    Box<dyn FnOnce(Call) -> Pin<Box<dyn Future<Output = bool> + Send>> + Send>;

/// How long a server that hangs may take to wake up and answer what no caller waits for.
pub(super) const PATIENCE: Duration = Duration::from_secs(60);
/// How often background work is retried.
pub(super) const RETRY: Duration = Duration::from_millis(100);

/// A connection that many callers use at once, each of which can mark it dead.
#[derive(Clone)]
pub(super) struct SharedConnection<C> {
    pub(super) connection: C,
    state: Arc<State>,
}

/// The state that all clones of a connection share.
#[derive(Default)]
struct State {
    is_broken: AtomicBool,
    replies: AtomicU64,
    /// Whether a task is checking if it is dead.
    is_watched: AtomicBool,
}

impl<C: ConnectionLike> SharedConnection<C> {
    pub(super) async fn exchange(
        &mut self,
        command: &Cmd,
        script: Option<&Script>,
    ) -> Result<Value, RedisError> {
        match script {
            Some(script) => script.run(command, &mut self.connection).await,
            None => command.query_async(&mut self.connection).await,
        }
    }
}

impl<C: ConnectionLike + Send + 'static> SharedConnection<C> {
    pub(super) fn follow_up(mut self) -> FollowUp {
        Box::new(move |call| {
            Box::pin(async move {
                let (state, until) = (Arc::clone(&self.state), Instant::now() + PATIENCE);
                let mut reply = pin!(self.exchange(&call.command, Some(&call.script)));
                loop {
                    match timeout(RETRY, reply.as_mut()).await {
                        Ok(reply) => return reply.is_ok(),
                        // Nothing will be received on it any more.
                        Err(_) if state.is_broken.load(Ordering::Relaxed) => return false,
                        Err(_) if Instant::now() > until => return false,
                        Err(_) => {}
                    }
                }
            })
        })
    }
}

/// Held by the task that checks if a connection is dead.
pub(super) struct Watching(Arc<State>);

impl Drop for Watching {
    fn drop(&mut self) {
        self.0.is_watched.store(false, Ordering::Relaxed);
    }
}

impl<C> SharedConnection<C> {
    pub(super) fn new(connection: C) -> Self {
        Self {
            connection,
            state: Arc::default(),
        }
    }

    pub(super) fn mark_broken(&self) {
        self.state.is_broken.store(true, Ordering::Relaxed);
    }

    pub(super) fn is_broken(&self) -> bool {
        self.state.is_broken.load(Ordering::Relaxed)
    }

    pub(super) fn count_reply(&self) {
        self.state.replies.fetch_add(1, Ordering::Relaxed);
    }

    /// How many replies were received on it.
    pub(super) fn replies(&self) -> u64 {
        self.state.replies.load(Ordering::Relaxed)
    }

    /// For the task that checks if it is dead; `None` if there is one.
    pub(super) fn watch(&self) -> Option<Watching> {
        let is_watched = self.state.is_watched.swap(true, Ordering::Relaxed);
        (!is_watched).then(|| Watching(Arc::clone(&self.state)))
    }
}
