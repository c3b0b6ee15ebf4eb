//! What becomes of attempts while Redis does not answer.

/// What becomes of attempts while Redis does not answer. Set by
/// [`RedisStoreBuilder::outage`](super::RedisStoreBuilder::outage).
///
/// Whatever it is, an outage never blocks anybody, and nobody waits longer than the deadline. After a
/// few calls in a row that failed, Redis is not asked any more until it answers a call that nobody
/// waits for. What it should have been told meanwhile it is told then.
///
/// ```no_run
/// # async fn example() -> Result<(), Box<dyn std::error::Error>> {
/// use tower_login_rate_limit::store::{RedisStore, redis::Outage};
///
/// let store = RedisStore::builder()
///     .outage(Outage::Closed)
///     .connect("redis://127.0.0.1:6379")
///     .await?;
/// # Ok(()) }
/// ```
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
#[non_exhaustive]
pub enum Outage {
    /// This process decides by itself, with the same limits: by the blocks that it knows of, the
    /// failures that it has seen before and what it sees meanwhile. When Redis answers again it is
    /// told of those.
    ///
    /// So with several processes somebody may get the limit from each of them, once.
    #[default]
    Fallback,
    /// Attempts get an error, which the layer answers with 503 and `Retry-After`. Nobody logs in.
    Closed,
    /// Attempts are admitted, and do not count. Each is logged (feature `tracing`) and counted in
    /// [`Status::admitted_uncounted`].
    Open,
}

/// How a [`RedisStore`](super::RedisStore) gets on, for dashboards and alerts. See
/// [`RedisStore::status`](super::RedisStore::status).
///
/// ```no_run
/// # fn example(store: tower_login_rate_limit::store::RedisStore) {
/// let status = store.status();
/// println!("login_redis_is_away {}", u8::from(status.is_away));
/// println!("login_refused_from_memory_total {}", status.refused_from_memory);
/// # }
/// ```
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
#[non_exhaustive]
pub struct Status {
    /// Redis is not asked at present, because it failed several times in a row.
    pub is_away: bool,
    /// How many things Redis has still to be told.
    pub owed: usize,
    /// Attempts that were refused without asking Redis, because it had said before that they are
    /// blocked.
    pub refused_from_memory: u64,
    /// Attempts that this process has decided by itself.
    pub decided_alone: u64,
    /// Attempts that were let through uncounted, with [`Outage::Open`].
    pub admitted_uncounted: u64,
    /// Whether this process is told at once when a block is lifted elsewhere. If not, it finds out
    /// within a second by asking again.
    pub hears_of_unblocks: bool,
}
