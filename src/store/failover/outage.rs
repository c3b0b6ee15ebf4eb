//! What happens to attempts while a store can't be reached.

/// What happens to attempts while Redis does not answer. Set by
/// [`RedisStoreBuilder::with_outage`](crate::store::redis::RedisStoreBuilder::with_outage).
///
/// In every mode no call takes longer than the deadline, and an outage never blocks a client. After a
/// few failed calls in a row a circuit breaker opens: Redis is not asked until a probe in the background
/// succeeds. Outcomes that could not be written meanwhile are replayed then.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
#[non_exhaustive]
pub enum Outage {
    /// This process decides with the same limits, from the blocks it has cached, the failures that went
    /// through it before and those it sees meanwhile. They are replayed when Redis answers again.
    ///
    /// With several processes a client may get the limit from each of them, once.
    #[default]
    Fallback,
    /// Attempts get an error, to which the layer responds with 503 and `Retry-After`. No one logs in.
    Closed,
    /// Attempts are admitted and do not count. Each is logged (feature `tracing`) and counted in
    /// [`StoreStatus::admitted_uncounted`](crate::store::StoreStatus::admitted_uncounted).
    Open,
}
