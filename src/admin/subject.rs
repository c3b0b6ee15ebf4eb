//! What an operator asks about.

use std::{fmt, net::IpAddr};

use ipnet::IpNet;

use super::AdminError;
use crate::access::read_network;

/// What an operator asks about, or acts on: an address, a user, a user at an address, or a network.
///
/// ```
/// use tower_login_rate_limit::admin::Subject;
///
/// let address = "192.0.2.1".parse()?;
/// let (at_home, pair) = (Subject::address(address), Subject::pair(address, "alice"));
/// let everywhere = Subject::user("alice");
/// let office = Subject::network("192.0.2.0/24")?;
/// # Ok::<(), Box<dyn std::error::Error>>(())
/// ```
#[derive(Clone)]
pub struct Subject(pub(super) Repr);

#[derive(Clone)]
pub(super) enum Repr {
    Address(IpAddr),
    User(String),
    Pair(IpAddr, String),
    Network(IpNet),
}

impl Subject {
    /// A client's address. IPv6 addresses are counted by network, so it stands for its neighbors there.
    #[must_use]
    pub const fn address(address: IpAddr) -> Self {
        Self(Repr::Address(address))
    }

    /// A user, wherever attempts come from, in any spelling of the name.
    #[must_use]
    pub fn user(user: impl Into<String>) -> Self {
        Self(Repr::User(user.into()))
    }

    /// A user at an address.
    #[must_use]
    pub fn pair(address: IpAddr, user: impl Into<String>) -> Self {
        Self(Repr::Pair(address, user.into()))
    }

    /// The addresses of a network, such as `192.0.2.0/24` or `2001:db8::/48`.
    ///
    /// # Errors
    ///
    /// If the text is not a network.
    pub fn network(network: impl AsRef<str>) -> Result<Self, AdminError> {
        Ok(Self(Repr::Network(parse_network(network.as_ref())?)))
    }
}

pub(super) fn parse_network(text: &str) -> Result<IpNet, AdminError> {
    read_network(text).map_err(|reason| AdminError::invalid(format!("network: {reason}")))
}

impl Repr {
    pub(super) const fn ip(&self) -> Option<IpAddr> {
        match self {
            Self::Address(ip) | Self::Pair(ip, _) => Some(*ip),
            Self::User(_) | Self::Network(_) => None,
        }
    }

    pub(super) fn user(&self) -> Option<&str> {
        match self {
            Self::User(user) | Self::Pair(_, user) => Some(user),
            Self::Address(_) | Self::Network(_) => None,
        }
    }

    pub(super) const fn network(&self) -> Option<IpNet> {
        match self {
            Self::Network(network) => Some(*network),
            _ => None,
        }
    }
}

impl From<IpAddr> for Subject {
    fn from(address: IpAddr) -> Self {
        Self::address(address)
    }
}

impl<U: Into<String>> From<(IpAddr, U)> for Subject {
    fn from((address, user): (IpAddr, U)) -> Self {
        Self::pair(address, user)
    }
}

/// Does not show the user: logs must not name people.
impl fmt::Debug for Subject {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let mut shown = f.debug_struct("Subject");
        if let Some(ip) = self.0.ip() {
            shown.field("address", &ip);
        }
        if let Some(network) = self.0.network() {
            shown.field("network", &network);
        }
        shown.finish_non_exhaustive()
    }
}
