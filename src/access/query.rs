//! What is known of a request.

use std::{fmt, net::IpAddr};

/// What is known of a request when rules are looked up. What is unknown matches no rule.
#[derive(Clone, Copy, Default)]
#[must_use = "a query does nothing until rules are looked up"]
pub struct AccessQuery<'a> {
    pub(super) address: Option<IpAddr>,
    pub(super) user: Option<&'a str>,
    pub(super) user_agent: Option<&'a [u8]>,
    pub(super) path: Option<&'a str>,
}

impl<'a> AccessQuery<'a> {
    /// A query of which nothing is known.
    pub const fn new() -> Self {
        Self {
            address: None,
            user: None,
            user_agent: None,
            path: None,
        }
    }

    /// The client's address, whole: not truncated to the network that it is counted by.
    pub const fn with_address(mut self, address: IpAddr) -> Self {
        self.address = Some(address);
        self
    }

    /// The user, in the normal form of the set's
    /// [normalizer](super::AccessRules::with_normalizer).
    pub const fn with_user(mut self, user: &'a str) -> Self {
        self.user = Some(user);
        self
    }

    /// The same without the user.
    pub(crate) const fn without_user(mut self) -> Self {
        self.user = None;
        self
    }

    /// The `User-Agent`, as bytes: a header that is not UTF-8 must not slip past a rule.
    pub const fn with_user_agent(mut self, user_agent: &'a [u8]) -> Self {
        self.user_agent = Some(user_agent);
        self
    }

    /// The path of the request as the client sent it, percent-encoding included, without the query.
    pub const fn with_path(mut self, path: &'a str) -> Self {
        self.path = Some(path);
        self
    }
}

/// Does not show the user: logs must not name people.
impl fmt::Debug for AccessQuery<'_> {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("AccessQuery")
            .field("address", &self.address)
            .field("user", &self.user.map(|_| "***"))
            .field("user_agent", &self.user_agent.map(String::from_utf8_lossy))
            .field("path", &self.path)
            .finish()
    }
}
