//! The client's address.

use std::{
    net::{IpAddr, SocketAddr},
    sync::{Arc, Once},
};

use http::request::Parts;

use super::ExtractError;
use crate::logging;

/// Finds the address of the client that sent a request.
///
/// Implemented for closures: `|parts: &http::request::Parts| Option<IpAddr>`; within
/// [`address_fn`](super::address_fn) they need no types.
///
/// Never return an address that the client can choose, for that would give it a new budget with every
/// request. If the address is uncertain, return an error: the request is denied, never counted under a wrong
/// address and never passed uncounted.
#[diagnostic::on_unimplemented(
    message = "`{Self}` does not find the address of a client",
    label = "not an `ExtractAddress`",
    note = "use `PeerAddress`, or `ForwardedAddress` behind a proxy, or `extract::address_fn(|request| …)`, which \
            returns an `Option<IpAddr>`"
)]
pub trait ExtractAddress: Send + Sync + 'static {
    /// The client's address.
    ///
    /// # Errors
    ///
    /// The address is unknown.
    fn extract_address(&self, request: &Parts) -> Result<IpAddr, ExtractError>;
}

impl<F> ExtractAddress for F
where
    F: Fn(&Parts) -> Option<IpAddr> + Send + Sync + 'static,
{
    fn extract_address(&self, request: &Parts) -> Result<IpAddr, ExtractError> {
        self(request).ok_or_else(|| {
            ExtractError::misconfigured("the app's own address extractor found no address")
        })
    }
}

impl ExtractAddress for Arc<dyn ExtractAddress> {
    fn extract_address(&self, request: &Parts) -> Result<IpAddr, ExtractError> {
        (**self).extract_address(request)
    }
}

/// The default: the peer's address of the connection, for servers that clients reach directly.
///
/// Behind a proxy that is the proxy's address, and all clients would share one budget: use
/// [`ForwardedAddress`](super::ForwardedAddress) there. A request from a private or loopback address with
/// the header of a proxy is logged as a warning, once.
///
/// The address is read from the request's extensions:
///
/// - **axum** (feature `axum`): serve with
///   `app.into_make_service_with_connect_info::<SocketAddr>()`.
/// - **tonic** (feature `tonic`): tonic's own server adds it.
/// - **hyper** and others: insert [`PeerAddressExtension`] into each request of the connection.
#[derive(Clone, Copy, Debug, Default)]
pub struct PeerAddress;

/// The peer's address of the connection, for servers without a request extension of their own.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct PeerAddressExtension(pub SocketAddr);

impl ExtractAddress for PeerAddress {
    fn extract_address(&self, request: &Parts) -> Result<IpAddr, ExtractError> {
        let peer = peer(request)?;
        if !request.headers.is_empty() && is_local(peer) && !FORGOTTEN_PROXY.is_completed() {
            look_for_proxy(request);
        }
        Ok(peer)
    }
}

/// Whether a forgotten proxy has been logged.
static FORGOTTEN_PROXY: Once = Once::new();

/// The headers by which proxies report the client's address.
const PROXY_HEADERS: [&str; 7] = [
    "x-forwarded-for",
    "forwarded",
    "x-real-ip",
    "cf-connecting-ip",
    "true-client-ip",
    "fly-client-ip",
    "x-client-ip",
];

/// Logs if the peer is a proxy. Its address is private: a client on the internet could forge the header.
fn look_for_proxy(request: &Parts) {
    let header = PROXY_HEADERS
        .into_iter()
        .find(|name| request.headers.contains_key(*name));
    if let Some(header) = header {
        FORGOTTEN_PROXY.call_once(|| logging::forgotten_proxy(header));
    }
}

#[inline]
fn is_local(peer: IpAddr) -> bool {
    match peer.to_canonical() {
        IpAddr::V4(peer) => peer.is_private() || peer.is_loopback() || peer.is_link_local(),
        IpAddr::V6(peer) => {
            peer.is_unique_local() || peer.is_loopback() || peer.is_unicast_link_local()
        }
    }
}

/// The peer's address of the connection.
#[inline]
pub(super) fn peer(request: &Parts) -> Result<IpAddr, ExtractError> {
    let extensions = &request.extensions;
    if let Some(PeerAddressExtension(peer)) = extensions.get() {
        return Ok(peer.ip());
    }
    #[cfg(feature = "axum")]
    if let Some(axum::extract::ConnectInfo(peer)) =
        extensions.get::<axum::extract::ConnectInfo<SocketAddr>>()
    {
        return Ok(peer.ip());
    }
    #[cfg(feature = "axum")]
    if let Some(axum::extract::connect_info::MockConnectInfo(peer)) =
        extensions.get::<axum::extract::connect_info::MockConnectInfo<SocketAddr>>()
    {
        return Ok(peer.ip());
    }
    #[cfg(feature = "tonic")]
    if let Some(peer) = extensions
        .get::<tonic::transport::server::TcpConnectInfo>()
        .and_then(|info| info.remote_addr())
    {
        return Ok(peer.ip());
    }
    Err(ExtractError::misconfigured(
        "the requests have no peer address: in axum, enable this crate's feature \
         `axum` and serve with `into_make_service_with_connect_info::<SocketAddr>()`; in tonic, \
         enable its feature `tonic`; elsewhere, insert `PeerAddressExtension` into the request's \
         extensions",
    ))
}
