//! Which address, network or user a command is about.

use std::{fmt, net::IpAddr};

use clap::Args;
use tower_login_rate_limit::admin::Subject;

use crate::{failure::Failure, output::safe};

#[derive(Clone, Debug, Default, Args)]
pub(crate) struct SubjectArgs {
    /// An address or a network, such as 192.0.2.1, 192.0.2.0/24 or 2001:db8::/48
    #[arg(value_name = "ADDRESS|NETWORK")]
    place: Option<String>,
    /// A user; with an address, the user there
    #[arg(short, long, value_name = "NAME")]
    user: Option<String>,
    /// The address of a user
    #[arg(short, long, value_name = "ADDRESS", conflicts_with = "place")]
    address: Option<IpAddr>,
}

/// What was named.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(crate) enum Named {
    Address(IpAddr),
    User(String),
    Pair(IpAddr, String),
    Network(String),
}

impl SubjectArgs {
    pub(crate) fn named(&self) -> Result<Named, Failure> {
        let place = match (&self.place, self.address) {
            (_, Some(ip)) => Some(Ok(ip)),
            (Some(text), None) => Some(text.parse::<IpAddr>().map_err(|_| text)),
            (None, None) => None,
        };
        match (place, &self.user) {
            (Some(Ok(ip)), Some(user)) => Ok(Named::Pair(ip, user.clone())),
            (Some(Ok(ip)), None) => Ok(Named::Address(ip)),
            (None, Some(user)) => Ok(Named::User(user.clone())),
            (Some(Err(text)), None) if text.contains('/') => Ok(Named::Network(text.clone())),
            (Some(Err(text)), None) => Err(Failure::usage(format!(
                "{text:?} is neither an address nor a network; for a user write --user {text}"
            ))),
            (Some(Err(text)), Some(_)) => Err(Failure::usage(format!(
                "a user is at an address, and {text:?} is none; leave it out for the user everywhere"
            ))),
            (None, None) => Err(Failure::usage(
                "about whom? Name an address or a network, or a user with --user NAME",
            )),
        }
    }
}

impl Named {
    pub(crate) fn subject(&self) -> Result<Subject, Failure> {
        Ok(match self {
            Self::Address(ip) => Subject::address(*ip),
            Self::User(user) => Subject::user(user),
            Self::Pair(ip, user) => Subject::pair(*ip, user),
            Self::Network(network) => {
                Subject::network(network).map_err(|error| Failure::usage(error.to_string()))?
            }
        })
    }

    /// Whether it stands for more than one client or account.
    pub(crate) const fn is_wide(&self) -> bool {
        matches!(self, Self::Network(_) | Self::User(_))
    }
}

impl fmt::Display for Named {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Self::Address(ip) => write!(f, "{ip}"),
            Self::User(user) => write!(f, "user {}", safe(user)),
            Self::Pair(ip, user) => write!(f, "user {} at {ip}", safe(user)),
            Self::Network(network) => write!(f, "{}", safe(network)),
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn named(place: Option<&str>, user: Option<&str>) -> Result<Named, Failure> {
        let args = SubjectArgs {
            place: place.map(str::to_owned),
            user: user.map(str::to_owned),
            address: None,
        };
        args.named()
    }

    #[test]
    fn what_is_meant_is_never_guessed() {
        let ip = "192.0.2.1".parse().unwrap();
        assert_eq!(named(Some("192.0.2.1"), None).unwrap(), Named::Address(ip));
        let pair = Named::Pair(ip, "192.0.2.7".to_owned());
        assert_eq!(named(Some("192.0.2.1"), Some("192.0.2.7")).unwrap(), pair);
        let network = Named::Network("192.0.2.0/24".to_owned());
        assert_eq!(named(Some("192.0.2.0/24"), None).unwrap(), network);
        for name in ["alice", "alice@192.0.2.1", "192.0.2", ""] {
            let error = named(Some(name), None).unwrap_err();
            assert!(error.message().contains("--user"), "{error:?}");
        }
        assert!(named(None, None).is_err());
        assert!(named(Some("192.0.2.0/24"), Some("alice")).is_err());
    }
}
