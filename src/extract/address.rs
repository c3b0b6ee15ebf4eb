//! The client's address.

use std::{
    error::Error,
    fmt,
    net::{IpAddr, SocketAddr},
    sync::Arc,
};

use http::request::Parts;

/// Finds the address that a request comes from.
///
/// Implemented for closures: `|parts: &http::request::Parts| Option<IpAddr>`.
///
/// ```
/// # use tower_login_rate_limit::{LoginLimiter, LoginRateLimitLayer, Policy, store::MemoryStore};
/// # let limiter = LoginLimiter::new(Policy::default(), MemoryStore::new());
/// use std::net::IpAddr;
///
/// // On a private network where each host has a name of its own, say.
/// let address = |parts: &http::request::Parts| -> Option<IpAddr> {
///     parts.extensions.get::<IpAddr>().copied()
/// };
/// let layer = LoginRateLimitLayer::new(limiter).with_address(address);
/// ```
///
/// An address that the client can choose is no address: whoever can set it has a new budget with
/// every request. If none can be told for sure, give an error; the request is then refused, never
/// counted under a wrong address and never let through unchecked.
pub trait ExtractAddress: Send + Sync + 'static {
    /// The client's address.
    fn extract_address(&self, request: &Parts) -> Result<IpAddr, AddressError>;
}

impl<F> ExtractAddress for F
where
    F: Fn(&Parts) -> Option<IpAddr> + Send + Sync + 'static,
{
    fn extract_address(&self, request: &Parts) -> Result<IpAddr, AddressError> {
        self(request).ok_or_else(|| {
            AddressError::misconfigured("the app's own address extractor found no address")
        })
    }
}

impl ExtractAddress for Arc<dyn ExtractAddress> {
    fn extract_address(&self, request: &Parts) -> Result<IpAddr, AddressError> {
        (**self).extract_address(request)
    }
}

/// The address of a request can't be told.
///
/// ```
/// use tower_login_rate_limit::extract::AddressError;
///
/// let error = AddressError::bad_request("come in through the front door");
/// assert!(error.is_bad_request());
/// ```
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct AddressError {
    message: &'static str,
    by_client: bool,
}

impl AddressError {
    /// The server lacks something; the message says what to add and where.
    pub const fn misconfigured(message: &'static str) -> Self {
        Self {
            message,
            by_client: false,
        }
    }

    /// The request is such that nobody could tell.
    pub const fn bad_request(message: &'static str) -> Self {
        Self {
            message,
            by_client: true,
        }
    }

    /// Whether the request is to blame, and not the server's set-up.
    pub const fn is_bad_request(&self) -> bool {
        self.by_client
    }
}

impl fmt::Display for AddressError {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(self.message)
    }
}

impl Error for AddressError {}

/// The address of the connection's other end: right for a server that clients reach directly.
///
/// Behind a proxy it is the proxy's, and all clients would share one budget: use
/// [`ForwardedAddress`](super::ForwardedAddress) there.
///
/// It is found in the request's extensions:
///
/// - **axum** (feature `axum`): serve with
///   `app.into_make_service_with_connect_info::<SocketAddr>()`.
/// - **tonic** (feature `tonic`): tonic's own server puts it there.
/// - **hyper** and others: insert [`PeerAddressExtension`] into each request of the connection.
///
/// ```
/// use tower_login_rate_limit::extract::{ExtractAddress, PeerAddress, PeerAddressExtension};
///
/// let (mut parts, ()) = http::Request::new(()).into_parts();
/// assert!(PeerAddress.extract_address(&parts).is_err());
/// parts.extensions.insert(PeerAddressExtension(([192, 0, 2, 1], 5000).into()));
/// assert!(PeerAddress.extract_address(&parts).is_ok());
/// ```
#[derive(Clone, Copy, Debug, Default)]
pub struct PeerAddress;

/// The other end of the connection, for servers that do not say it in a form of their own.
///
/// ```
/// use std::net::SocketAddr;
/// use tower_login_rate_limit::extract::PeerAddressExtension;
///
/// # let peer: SocketAddr = "192.0.2.1:5000".parse()?;
/// let mut request = http::Request::new(());
/// request.extensions_mut().insert(PeerAddressExtension(peer));
/// # Ok::<(), std::net::AddrParseError>(())
/// ```
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct PeerAddressExtension(pub SocketAddr);

impl ExtractAddress for PeerAddress {
    fn extract_address(&self, request: &Parts) -> Result<IpAddr, AddressError> {
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
        Err(AddressError::misconfigured(
            "the server does not say where requests come from: in axum, enable this crate's feature \
             `axum` and serve with `into_make_service_with_connect_info::<SocketAddr>()`; in tonic, \
             enable its feature `tonic`; elsewhere, insert `PeerAddressExtension` into the request's \
             extensions",
        ))
    }
}
