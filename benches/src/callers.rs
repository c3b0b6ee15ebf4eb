//! Callers that have not been here before.

use std::net::{IpAddr, Ipv4Addr};

/// The nth address. They do not come in order, as they would not either.
pub fn address(n: u64) -> IpAddr {
    let scattered = (n as u32).wrapping_mul(0x9E37_79B1);
    Ipv4Addr::from_bits(scattered).into()
}

pub fn user(n: u64) -> String {
    format!("user{n}")
}

/// What our store calls the counters of the nth caller, but for the digest of the user: peers that use
/// these keys need not work one out.
pub fn keys(n: u64) -> [String; 2] {
    let address = address(n);
    [
        format!("login:{{{address}}}:address"),
        format!("login:{{{address}}}:user-address:{n:032x}"),
    ]
}
