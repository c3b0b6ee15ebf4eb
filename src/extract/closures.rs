//! Closures whose types are inferred.

use std::net::IpAddr;

use http::request::Parts;

/// A closure that finds the client's address. The types of its parameters are inferred.
///
/// The address is one that the client cannot choose; see [`ExtractAddress`](super::ExtractAddress).
#[must_use]
pub const fn address_fn<F>(find: F) -> F
where
    F: Fn(&Parts) -> Option<IpAddr> + Send + Sync + 'static,
{
    find
}

/// A closure that finds the user in the head of a request. The types of its parameters are inferred.
#[must_use]
pub const fn user_fn<F>(find: F) -> F
where
    F: Fn(&Parts) -> Option<String> + Send + Sync + 'static,
{
    find
}

/// A closure that finds the user in the body. The types of its parameters are inferred.
#[must_use]
pub const fn body_user_fn<F>(find: F) -> F
where
    F: Fn(&Parts, &[u8]) -> Option<String> + Send + Sync + 'static,
{
    find
}
