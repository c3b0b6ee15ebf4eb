//! The address that attempts are counted under.

use std::{
    error::Error,
    fmt,
    net::{IpAddr, Ipv6Addr},
    str::FromStr,
};

/// A site has an IPv6 network of 48 bits, or a longer one.
const TAG_BITS: u8 = 48;

/// A client address in canonical form: IPv4 unchanged, IPv4 embedded in IPv6 (mapped, or by a translator)
/// as that IPv4 address, other IPv6 addresses truncated to a network.
///
/// A single customer has 2⁶⁴ IPv6 addresses or more, so counting each would give an attacker as many budgets.
///
/// ```
/// use tower_login_rate_limit::Address;
///
/// let one = Address::new("2001:db8:1:2::a".parse()?, 64);
/// let other = Address::new("2001:db8:1:2:ffff::b".parse()?, 64);
/// assert_eq!(one, other);
/// assert_eq!(one.to_string(), "2001:db8:1:2::/64");
///
/// let mapped = Address::new("::ffff:192.0.2.1".parse()?, 64);
/// assert_eq!(mapped.to_string(), "192.0.2.1");
/// # Ok::<(), std::net::AddrParseError>(())
/// ```
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub struct Address {
    ip: IpAddr,
    prefix: u8,
}

impl Address {
    /// The canonical form of `ip`, with IPv6 truncated to its first `ipv6_prefix` bits (128 at most).
    #[must_use]
    pub fn new(ip: IpAddr, ipv6_prefix: u8) -> Self {
        match embedded_ipv4(ip) {
            ip @ IpAddr::V4(_) => Self { ip, prefix: 32 },
            IpAddr::V6(ip) => {
                let prefix = ipv6_prefix.min(128);
                let mask = u128::MAX
                    .checked_shl(128 - u32::from(prefix))
                    .unwrap_or_default();
                Self {
                    ip: IpAddr::V6(Ipv6Addr::from_bits(ip.to_bits() & mask)),
                    prefix,
                }
            }
        }
    }

    /// The network of this many bits that an IPv6 network is part of.
    #[inline]
    pub(crate) fn widened(self, bits: u8) -> Self {
        match self.ip {
            IpAddr::V4(_) => self,
            IpAddr::V6(_) => Self::new(self.ip, bits.min(self.prefix)),
        }
    }

    /// What decides where counters are kept: the same for an address and for the networks around it that
    /// policies count by, so that one script, and one lock, decides on all of them.
    #[inline]
    pub(crate) fn tag(self) -> Self {
        self.widened(TAG_BITS)
    }

    /// The address, or the first one of its network.
    pub const fn ip(&self) -> IpAddr {
        self.ip
    }

    pub(crate) const fn is_ipv6(&self) -> bool {
        self.ip.is_ipv6()
    }

    /// How many bits identify the client: 32 for IPv4.
    pub const fn prefix(&self) -> u8 {
        self.prefix
    }
}

/// The IPv4 address embedded in an IPv6 address, if there is one. Truncated to a network, all clients of a
/// translator would be one.
fn embedded_ipv4(ip: IpAddr) -> IpAddr {
    let ip = ip.to_canonical();
    let IpAddr::V6(v6) = ip else {
        return ip;
    };
    let v4 = |a: u16, b: u16| IpAddr::V4((u32::from(a) << 16 | u32::from(b)).into());
    match v6.segments() {
        // NAT64 (RFC 6052), and the addresses of stateless translators (RFC 7915).
        [0x64, 0xff9b, 0, 0, 0, 0, a, b] | [0, 0, 0, 0, 0xffff, 0, a, b] => v4(a, b),
        // NAT64 of a network of its own (RFC 8215): the prefix is the /48, around an octet of zeros, or a
        // /96 in it.
        [0x64, 0xff9b, 1, a, b, c, 0, 0] if b <= 0xff && c & 0xff == 0 => v4(a, b << 8 | c >> 8),
        [0x64, 0xff9b, 1, _, _, _, a, b] => v4(a, b),
        // 6to4 (RFC 3056): a site has the network of its IPv4 address.
        [0x2002, a, b, ..] => v4(a, b),
        // Teredo (RFC 4380): the client's IPv4 address, inverted. Its /64 is the one of the Teredo server,
        // with all clients of that. Replies to a forged address do not arrive.
        [0x2001, 0, _, _, _, _, a, b] => v4(!a, !b),
        _ => ip,
    }
}

/// `192.0.2.1`, `2001:db8:1:2::/64`, and `2001:db8::1` with a prefix of 128 bits.
impl fmt::Display for Address {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match (self.ip, self.prefix) {
            (IpAddr::V4(ip), _) => ip.fmt(f),
            (IpAddr::V6(ip), 128) => ip.fmt(f),
            (IpAddr::V6(ip), prefix) => write!(f, "{ip}/{prefix}"),
        }
    }
}

impl FromStr for Address {
    type Err = ParseAddressError;

    fn from_str(text: &str) -> Result<Self, Self::Err> {
        let parse = || {
            let (ip, prefix) = match text.split_once('/') {
                Some((ip, prefix)) => (ip, prefix.parse().ok().filter(|p| *p <= 128)?),
                None => (text, 128),
            };
            let ip = ip.parse().ok()?;
            // IPv4 addresses are never counted by network.
            match ip {
                IpAddr::V4(_) if text.contains('/') => None,
                ip => Some(Self::new(ip, prefix)),
            }
        };
        parse().ok_or_else(|| ParseAddressError(text.to_owned()))
    }
}

/// A text that is not an [`Address`].
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct ParseAddressError(String);

impl fmt::Display for ParseAddressError {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(
            f,
            "cannot read {:?} as an address: write it like \"192.0.2.1\" or \"2001:db8:1:2::/64\"",
            self.0
        )
    }
}

impl Error for ParseAddressError {}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn forms_of_one_address_are_one_address() {
        let forms = [
            "192.0.2.1",
            "::ffff:192.0.2.1",
            "::ffff:c000:201",
            "64:ff9b::192.0.2.1",
            "::ffff:0:192.0.2.1",
            "64:ff9b:1:c000:2:100::",
            "64:ff9b:1:abcd::192.0.2.1",
            "2002:c000:201::1",
            "2002:c000:201:ffff:1:2:3:4",
            "2001:0:4136:e378:8000:63bf:3fff:fdfe",
        ];
        for form in forms {
            let address = Address::new(form.parse().unwrap(), 64);
            assert_eq!(address.to_string(), "192.0.2.1");
        }
    }

    #[test]
    fn every_prefix_length_keeps_that_many_bits() {
        let ip = IpAddr::V6(Ipv6Addr::from_bits(u128::MAX));
        for prefix in 0..=128 {
            let IpAddr::V6(cut) = Address::new(ip, prefix).ip() else {
                panic!("became IPv4");
            };
            assert_eq!(cut.to_bits().count_ones(), u32::from(prefix));
        }
        assert_eq!(Address::new(ip, 255), Address::new(ip, 128));
    }

    #[test]
    fn text_is_read_back() {
        for text in ["192.0.2.1", "2001:db8:1:2::/64", "2001:db8::1", "::/0"] {
            assert_eq!(text.parse::<Address>().unwrap().to_string(), text);
        }
        for text in ["", "192.0.2.1/24", "2001:db8::/129", "example.org", "::1/"] {
            let error = text.parse::<Address>().expect_err(text).to_string();
            assert!(error.contains("192.0.2.1"), "{error}");
        }
    }
}
