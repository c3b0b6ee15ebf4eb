//! What happens, as it happens: attempts, refusals, blocks, outages and changes.
//!
//! A limiter emits an [`Event`] for each, to any number of [observers](Observe).
//!
//! Users appear in what leaves the process only as the app chose, see [`UserDisplay`]; by default not at all.
//!
//! # JSON
//!
//! With the feature `serde` an event is one flat object. Names and meanings of fields are stable; fields and
//! events will be added. An event that was recorded is read back; its user is then the text that was shown.
//!
//! ```
//! # #[cfg(feature = "serde")] {
//! use tower_login_rate_limit::event::{Event, What};
//!
//! let json = r#"{"at":"2026-11-18T07:00:00.123Z","event":"refused","address":"192.0.2.1","rule":"address",
//!     "reason":"blocked","usage":25,"limit":25,"lifts_in_ms":604800000}"#;
//! let event: Event = serde_json::from_str(json)?;
//! assert!(matches!(event.what, What::Refused { limit: 25, .. }));
//! # }
//! # Ok::<(), Box<dyn std::error::Error>>(())
//! ```

mod channel;
#[cfg(all(feature = "redis", feature = "serde"))]
mod claims;
mod display;
pub(crate) mod escape;
mod feed;
#[cfg(all(feature = "redis", feature = "serde"))]
mod fleet;
#[cfg(all(feature = "redis", feature = "serde"))]
mod follower;
#[cfg(feature = "serde")]
mod json_lines;
pub(crate) mod names;
mod observe;
pub(crate) mod observers;
mod queue;
#[cfg(all(feature = "redis", feature = "serde"))]
mod reader;
#[cfg(all(feature = "redis", feature = "serde"))]
mod redis_stream;
#[cfg(feature = "sealed")]
mod sealer;
#[cfg(feature = "serde")]
mod serde;
#[cfg(feature = "tracing")]
mod tracing;
mod user;
mod what;

use crate::{
    Address, AttemptId,
    algorithm::Millis,
    clock::{Clock, SystemClock},
};

#[cfg(feature = "tracing")]
pub use self::tracing::TracingObserver;
pub use channel::{ChannelObserver, EventReceiver, channel};
#[cfg(feature = "server")]
pub(crate) use display::derive_key;
pub use display::{SecretError, UserDisplay, UserHasher};
pub use feed::Feed;
#[cfg(feature = "serde")]
pub use json_lines::JsonLines;
pub use observe::{Observe, ObserverStatus};
#[cfg(all(feature = "redis", feature = "serde"))]
pub use reader::EventReader;
#[cfg(all(feature = "redis", feature = "serde"))]
pub use redis_stream::{RedisStream, RedisStreamBuilder};
#[cfg(feature = "sealed")]
pub use sealer::{OpenError, Sealer};
pub use user::EventUser;
pub use what::{AdminAction, CountedAttempt, LiftedBy, Signal, What, WrongBy};

/// Something that happened: what, when, and to whom.
#[derive(Clone, Debug)]
#[cfg_attr(feature = "serde", derive(::serde::Serialize, ::serde::Deserialize))]
#[non_exhaustive]
pub struct Event {
    /// When, in milliseconds since 1970, by the clock of this process.
    #[cfg_attr(feature = "serde", serde(with = "serde::time"))]
    pub at: Millis,
    /// What happened.
    #[cfg_attr(feature = "serde", serde(flatten))]
    pub what: What,
    /// The client's address as it is counted: IPv6 by network.
    #[cfg_attr(
        feature = "serde",
        serde(
            default,
            with = "serde::address",
            skip_serializing_if = "Option::is_none"
        )
    )]
    pub address: Option<Address>,
    /// The user.
    #[cfg_attr(
        feature = "serde",
        serde(default, skip_serializing_if = "serde::is_hidden")
    )]
    pub user: Option<EventUser>,
    /// The attempt.
    #[cfg_attr(
        feature = "serde",
        serde(default, skip_serializing_if = "Option::is_none")
    )]
    pub attempt: Option<AttemptId>,
}

impl Event {
    /// Something that happens now.
    #[must_use]
    pub fn new(what: What) -> Self {
        Self {
            at: SystemClock.now(),
            what,
            address: None,
            user: None,
            attempt: None,
        }
    }

    /// Sets when it happened, in milliseconds since 1970.
    #[must_use]
    pub const fn with_time(mut self, at: Millis) -> Self {
        self.at = at;
        self
    }

    /// Sets the client's address.
    #[must_use]
    pub const fn with_address(mut self, address: Address) -> Self {
        self.address = Some(address);
        self
    }

    /// Sets the user.
    #[must_use]
    pub fn with_user(mut self, user: impl Into<Option<EventUser>>) -> Self {
        self.user = user.into();
        self
    }

    /// Sets the attempt.
    #[must_use]
    pub fn with_attempt(mut self, attempt: impl Into<AttemptId>) -> Self {
        self.attempt = Some(attempt.into());
        self
    }
}
