//! The address that attempts are counted under.

use std::{
    error::Error,
    fmt,
    net::{IpAddr, Ipv6Addr},
    str::FromStr,
};

/// A client address in the one form that is counted: IPv4 as it is, IPv4 inside IPv6 (mapped, or from
/// a translator between the two) as that IPv4 address, other IPv6 cut to a network.
///
/// A single customer's IPv6 line has 2⁶⁴ addresses or more, so counting them one by one would give
/// an attacker as many budgets.
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
    /// The canonical form of `ip`, with IPv6 cut to its first `ipv6_prefix` bits (128 at most).
    pub fn new(ip: IpAddr, ipv6_prefix: u8) -> Self {
        match embedded_ipv4(ip) {
            IpAddr::V4(ip) => Self {
                ip: IpAddr::V4(ip),
                prefix: 32,
            },
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

    /// The address, or the first one of its network.
    pub const fn ip(&self) -> IpAddr {
        self.ip
    }

    /// How many bits of it count.
    pub const fn prefix(&self) -> u8 {
        self.prefix
    }
}

/// The IPv4 address inside an IPv6 address, where there is one. Cut to a network, all clients behind
/// a translator would be one.
fn embedded_ipv4(ip: IpAddr) -> IpAddr {
    let ip = ip.to_canonical();
    let IpAddr::V6(v6) = ip else {
        return ip;
    };
    match v6.segments() {
        // NAT64 (RFC 6052), and the addresses of stateless translators (RFC 7915).
        [0x64, 0xff9b, 0, 0, 0, 0, a, b] | [0, 0, 0, 0, 0xffff, 0, a, b] => {
            IpAddr::V4((u32::from(a) << 16 | u32::from(b)).into())
        }
        _ => ip,
    }
}

/// `192.0.2.1`, `2001:db8:1:2::/64`, and `2001:db8::1` where all bits count.
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
            // A network of IPv4 addresses is not something that is counted.
            match ip {
                IpAddr::V4(_) if text.contains('/') => None,
                ip => Some(Self::new(ip, prefix)),
            }
        };
        parse().ok_or_else(|| ParseAddressError(text.to_owned()))
    }
}

/// The text is not an [`Address`].
///
/// ```
/// use tower_login_rate_limit::Address;
///
/// let error = "example.org".parse::<Address>().unwrap_err();
/// assert!(error.to_string().contains("192.0.2.1"));
/// ```
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct ParseAddressError(String);

impl fmt::Display for ParseAddressError {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(
            f,
            "{:?} is no address: write it like \"192.0.2.1\" or \"2001:db8:1:2::/64\"",
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
            assert!(text.parse::<Address>().is_err(), "{text}");
        }
    }
}
