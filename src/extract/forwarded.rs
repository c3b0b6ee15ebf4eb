//! The client's address behind proxies.

use std::{
    error::Error,
    fmt,
    net::{IpAddr, SocketAddr},
};

use http::{HeaderName, request::Parts};
use ipnet::IpNet;

use super::{AddressError, ExtractAddress, PeerAddress};

/// The client's address as told by proxies that are trusted to tell it.
///
/// A proxy appends the address that it was reached from, so the right end of the header is the
/// proxies' and the left end is whatever the client sent. This walks from the right: as long as who
/// spoke is trusted, what they said is believed. The first address that is not a trusted proxy's is
/// the client's.
///
/// - A request from a peer that is not trusted counts under the peer's own address; whatever it put
///   into the header is not looked at.
/// - A trusted proxy that says nothing, or nothing that can be read, is a request whose client
///   nobody knows: it is refused.
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
/// - List the proxies' own networks and nothing else. A network from which clients come directly must
///   not be among them.
/// - Choose the one header that your proxy sets. A proxy that sets `X-Forwarded-For` passes on a
///   `Forwarded` header that the client made up.
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
    pub fn x_forwarded_for<N: AsRef<str>>(
        trusted: impl IntoIterator<Item = N>,
    ) -> Result<Self, ForwardedError> {
        let header = HeaderName::from_static("x-forwarded-for");
        Self::new(header, Form::List, trusted)
    }

    /// `Forwarded` (RFC 7239), from proxies in these networks.
    pub fn forwarded<N: AsRef<str>>(
        trusted: impl IntoIterator<Item = N>,
    ) -> Result<Self, ForwardedError> {
        Self::new(http::header::FORWARDED, Form::Forwarded, trusted)
    }

    /// A header with the one address, like `X-Real-IP` or `CF-Connecting-IP`, from proxies in these
    /// networks. The proxy must set it itself, not append to what the client sent.
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
        if trusted.is_empty() {
            return Err(ForwardedError(
                "no proxy is trusted, so no header would ever be believed: name their networks, or \
                 use PeerAddress"
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
    fn extract_address(&self, request: &Parts) -> Result<IpAddr, AddressError> {
        let peer = PeerAddress.extract_address(request)?.to_canonical();
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
                _ => Err(AddressError::bad_request(
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
        // A request that one of the proxies' own network made.
        leftmost.ok_or(MISSING)
    }
}

const MISSING: AddressError = AddressError::misconfigured(
    "a trusted proxy did not say where the request comes from: have it set the header that this \
     server reads, or take its network off the trusted ones",
);
const UNREADABLE: AddressError =
    AddressError::bad_request("the header with the client's address can't be read");

type Hop = Result<IpAddr, AddressError>;

impl ForwardedAddress {
    /// The addresses of one line. One that can't be read matters only to who walks as far as that.
    fn hops(&self, line: &str) -> Result<Vec<Hop>, AddressError> {
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

/// An address as proxies write it: with a port or without, IPv6 in brackets or bare.
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
            // Twice in one element: which one would be believed?
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

/// Splits at a separator that is not inside quotes; `None` if a quote is never closed. What a client
/// sent ahead of what the proxies appended can so make the whole unreadable, never swallow a part.
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

/// The set-up of a [`ForwardedAddress`] can't work.
///
/// ```
/// use tower_login_rate_limit::extract::ForwardedAddress;
///
/// let error = ForwardedAddress::x_forwarded_for(["10.0.0.0/40"]).unwrap_err();
/// assert!(error.to_string().contains("10.0.0.0/8"));
/// ```
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct ForwardedError(String);

impl fmt::Display for ForwardedError {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(&self.0)
    }
}

impl Error for ForwardedError {}
