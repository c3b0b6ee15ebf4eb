//! The client's address behind proxies.

use std::{
    error::Error,
    fmt,
    net::{IpAddr, SocketAddr},
};

use http::{HeaderName, request::Parts};
use ipnet::IpNet;

use super::{ExtractAddress, ExtractError, address::peer};
use crate::logging;

/// The client's address as reported by trusted proxies.
///
/// A proxy appends the address of its peer to the header, so the right end is written by the proxies and the
/// left end by the client. This walks from the right as long as the addresses are those of trusted proxies;
/// the first other one is the client's.
///
/// - A request from an untrusted peer counts under the peer's address, and its header is ignored.
/// - A request from a trusted proxy without a readable header is denied, since its client is unknown.
///
/// ```
/// use tower_login_rate_limit::extract::ForwardedAddress;
///
/// let address = ForwardedAddress::x_forwarded_for(["10.0.0.0/8", "fd00::/8"])?;
/// # Ok::<(), tower_login_rate_limit::extract::ForwardedError>(())
/// ```
///
/// # Traps
///
/// - List the networks of the proxies only. A network from which clients connect directly must not be among
///   them.
/// - Choose the header that your proxy sets. A proxy that sets `X-Forwarded-For` passes on a `Forwarded`
///   header that the client made up.
#[derive(Clone, Debug)]
pub struct ForwardedAddress {
    header: HeaderName,
    form: Form,
    trusted: Vec<IpNet>,
}

#[derive(Clone, Copy, Debug)]
enum Form {
    /// Addresses, each appended by a proxy.
    List,
    /// `for=…;proto=…` elements, each appended by a proxy.
    Forwarded,
    /// One address, set by the proxy.
    Single,
}

impl ForwardedAddress {
    /// `X-Forwarded-For`, from proxies in these networks.
    ///
    /// # Errors
    ///
    /// One of the networks can't be parsed or is the whole internet (`0.0.0.0/0`, `::/0`), or there is none.
    pub fn x_forwarded_for<N: AsRef<str>>(
        trusted: impl IntoIterator<Item = N>,
    ) -> Result<Self, ForwardedError> {
        let header = HeaderName::from_static("x-forwarded-for");
        Self::new(header, Form::List, trusted)
    }

    /// `Forwarded` (RFC 7239), from proxies in these networks.
    ///
    /// # Errors
    ///
    /// One of the networks can't be parsed or is the whole internet (`0.0.0.0/0`, `::/0`), or there is none.
    pub fn forwarded<N: AsRef<str>>(
        trusted: impl IntoIterator<Item = N>,
    ) -> Result<Self, ForwardedError> {
        Self::new(http::header::FORWARDED, Form::Forwarded, trusted)
    }

    /// A header with a single address, such as `X-Real-IP` or `CF-Connecting-IP`, from proxies in these
    /// networks. The proxy must replace what the client sent, not append to it.
    ///
    /// # Errors
    ///
    /// The name of the header or one of the networks can't be parsed, a network is the whole internet, or there
    /// is none.
    pub fn single<N: AsRef<str>>(
        header: &str,
        trusted: impl IntoIterator<Item = N>,
    ) -> Result<Self, ForwardedError> {
        let name = HeaderName::from_bytes(header.as_bytes())
            .map_err(|_| ForwardedError(format!("{header:?} is not the name of a header")))?;
        Self::new(name, Form::Single, trusted)
    }

    fn new<N: AsRef<str>>(
        header: HeaderName,
        form: Form,
        trusted: impl IntoIterator<Item = N>,
    ) -> Result<Self, ForwardedError> {
        let network = |text: N| {
            let text = text.as_ref().trim();
            let network = text.parse().ok();
            let address = || text.parse::<IpAddr>().ok().map(IpNet::from);
            network.or_else(address).ok_or_else(|| {
                ForwardedError(format!(
                    "{text:?} is not a network: write it like \"10.0.0.0/8\" or \"192.0.2.1\""
                ))
            })
        };
        let trusted: Vec<_> = trusted.into_iter().map(network).collect::<Result<_, _>>()?;
        if let Some(all) = trusted.iter().find(|network| network.prefix_len() == 0) {
            return Err(ForwardedError(format!(
                "\"{all}\" trusts every client to report its own address, so each request could choose one: \
                 list the networks of the proxies only"
            )));
        }
        for network in trusted.iter().filter(|network| is_wide(network)) {
            logging::wide_network(network);
        }
        if trusted.is_empty() {
            return Err(ForwardedError(
                "no proxy is trusted, so the header would always be ignored: list the networks of \
                 the proxies, or use PeerAddress"
                    .to_owned(),
            ));
        }
        Ok(Self {
            header,
            form,
            trusted,
        })
    }

    fn trusts(&self, address: IpAddr) -> bool {
        self.trusted
            .iter()
            .any(|network| network.contains(&address))
    }
}

impl ExtractAddress for ForwardedAddress {
    fn extract_address(&self, request: &Parts) -> Result<IpAddr, ExtractError> {
        let peer = peer(request)?.to_canonical();
        if !self.trusts(peer) {
            return Ok(peer);
        }
        let mut lines = Vec::new();
        for line in request.headers.get_all(&self.header) {
            lines.push(line.to_str().map_err(|_| UNREADABLE)?);
        }
        if let Form::Single = self.form {
            return match lines[..] {
                [] => Err(MISSING),
                [line] => address(line).ok_or(UNREADABLE),
                _ => Err(ExtractError::bad_request(
                    "the header with the client's address is there more than once",
                )),
            };
        }
        let mut leftmost = None;
        for line in lines.into_iter().rev() {
            for hop in self.hops(line)?.into_iter().rev() {
                let hop = hop?;
                if !self.trusts(hop) {
                    return Ok(hop);
                }
                leftmost = Some(hop);
            }
        }
        // The request was made by a host in the proxies' networks.
        leftmost.ok_or(MISSING)
    }
}

const MISSING: ExtractError = ExtractError::misconfigured(
    "a trusted proxy did not send the client's address: have it set the header that this server reads, or \
     remove its network from the trusted ones",
);
const UNREADABLE: ExtractError =
    ExtractError::bad_request("the header with the client's address can't be read");

type Hop = Result<IpAddr, ExtractError>;

impl ForwardedAddress {
    /// The addresses of one line. An unreadable one is an error only if the walk gets that far.
    fn hops(&self, line: &str) -> Result<Vec<Hop>, ExtractError> {
        let hop = |text: &str| address(text).ok_or(UNREADABLE);
        Ok(match self.form {
            Form::List | Form::Single => (line.split(','))
                .map(str::trim)
                .filter(|text| !text.is_empty())
                .map(hop)
                .collect(),
            Form::Forwarded => split_quoted(line, ',')
                .ok_or(UNREADABLE)?
                .into_iter()
                .filter(|element| !element.is_empty())
                .map(|element| hop(&forwarded_for(element).ok_or(UNREADABLE)?))
                .collect(),
        })
    }
}

/// Whether a network is too wide for proxies alone. Private networks may be wide.
fn is_wide(network: &IpNet) -> bool {
    match network {
        IpNet::V4(network) => network.prefix_len() < 8,
        IpNet::V6(network) => {
            let is_private = network.prefix_len() >= 7 && network.addr().is_unique_local();
            network.prefix_len() < 16 && !is_private
        }
    }
}

/// Parses an address as proxies write it: with or without a port, IPv6 with or without brackets.
fn address(text: &str) -> Option<IpAddr> {
    let text = text.trim();
    let bracketed = || text.strip_prefix('[')?.strip_suffix(']')?.parse().ok();
    let with_port = || text.parse::<SocketAddr>().ok().map(|address| address.ip());
    let address: Option<IpAddr> = text.parse().ok();
    let address = address.or_else(with_port).or_else(|| {
        let address: Option<std::net::Ipv6Addr> = bracketed();
        address.map(IpAddr::V6)
    });
    address.map(|address| address.to_canonical())
}

/// The value of `for` in one element of a `Forwarded` header, without quotes.
fn forwarded_for(element: &str) -> Option<String> {
    let mut found = None;
    for pair in split_quoted(element, ';')? {
        let Some((name, value)) = pair.split_once('=') else {
            continue;
        };
        if name.trim().eq_ignore_ascii_case("for") {
            // Two in one element are ambiguous.
            if found.is_some() {
                return None;
            }
            let value = value.trim();
            found = Some(match value.strip_prefix('"') {
                Some(quoted) => quoted.strip_suffix('"')?.replace('\\', ""),
                None => value.to_owned(),
            });
        }
    }
    found
}

/// Splits at separators outside of quotes; `None` if a quote is never closed. So the part that a client sent
/// can make the whole unreadable, but never hide what the proxies appended.
fn split_quoted(text: &str, separator: char) -> Option<Vec<&str>> {
    let mut parts = Vec::new();
    let (mut start, mut quoted, mut escaped) = (0, false, false);
    for (i, c) in text.char_indices() {
        match c {
            _ if escaped => escaped = false,
            '\\' if quoted => escaped = true,
            '"' => quoted = !quoted,
            c if c == separator && !quoted => {
                parts.push(text[start..i].trim());
                start = i + c.len_utf8();
            }
            _ => {}
        }
    }
    parts.push(text[start..].trim());
    (!quoted).then_some(parts)
}

/// The configuration of a [`ForwardedAddress`] is invalid.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct ForwardedError(String);

impl fmt::Display for ForwardedError {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(&self.0)
    }
}

impl Error for ForwardedError {}
