//! Extractors for the client's address and the user of a request.
//!
//! Closures are extractors too:
//!
//! ```
//! # use tower_login_rate_limit::{LoginLimiter, LoginRateLimitLayer, Policy, store::MemoryStore};
//! # let limiter = LoginLimiter::new(Policy::default(), MemoryStore::new());
//! use std::net::IpAddr;
//!
//! use tower_login_rate_limit::extract::{ExtractError, FromAsync, address_fn, body_user_fn, user_fn};
//!
//! let layer = LoginRateLimitLayer::new(limiter)
//!     // A layer further out has found the address.
//!     .with_address(address_fn(|request| request.extensions.get::<IpAddr>().copied()));
//!
//! // The user is the last segment of the path,
//! let by_path = layer.clone().with_user(user_fn(|request| {
//!     request.uri.path().rsplit('/').next().map(str::to_owned)
//! }));
//! // the first line of the body,
//! let by_body = layer.clone().with_body_user(body_user_fn(|_request, body| {
//!     Some(str::from_utf8(body).ok()?.lines().next()?.to_owned())
//! }));
//! // or in a session store.
//! let by_session = layer.with_user(FromAsync::new(|request| {
//!     let session = request.headers.get("session").cloned();
//!     async {
//!         let user = look_up(session).await;
//!         user.map_err(|_| ExtractError::unavailable("the session store is unavailable"))
//!     }
//! }));
//! # async fn look_up(_: Option<http::HeaderValue>) -> Result<Option<String>, ()> { Ok(None) }
//! ```

mod address;
mod body;
mod closures;
mod error;
mod forwarded;
mod from_async;
#[cfg(feature = "json")]
mod json;
mod read_body;
mod user;
pub(crate) mod value;

pub use address::{ExtractAddress, PeerAddress, PeerAddressExtension};
pub use body::{ExtractBodyUser, FormField};
pub use closures::{address_fn, body_user_fn, user_fn};
pub use error::{ExtractError, ExtractErrorKind};
pub use forwarded::{ForwardedAddress, ForwardedError};
pub use from_async::FromAsync;
#[cfg(feature = "json")]
pub use json::JsonField;
pub use read_body::{BodyField, ReadBody};
pub use user::{BasicAuth, ExtractUser, Header, NoUser, QueryField};

pub(crate) use user::Extracted;
