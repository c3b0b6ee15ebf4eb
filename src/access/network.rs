//! Networks: read in canonical form, and the longest one that contains an address.

use std::net::{IpAddr, Ipv4Addr, Ipv6Addr};

use ipnet::{IpNet, Ipv6Net};
use prefix_trie::PrefixMap;

use super::{
    Action,
    standing::{Candidate, Entries},
};
use crate::{Address, algorithm::Millis};

/// The address as rules compare it: IPv4 inside IPv6 is that IPv4 address.
pub(super) fn canonical(ip: IpAddr) -> IpAddr {
    Address::new(ip, 128).ip()
}

/// Reads a network or an address in canonical form; the error is the reason, and what to write.
pub(crate) fn read(text: &str) -> Result<IpNet, String> {
    let address = text.parse::<IpAddr>().map(IpNet::from).ok();
    let Some(written) = address.or_else(|| text.parse::<IpNet>().ok()) else {
        // A text of any length may come from a form.
        let shown: String = text.chars().take(64).collect();
        return Err(format!(
            "cannot read {shown:?}: write it like \"192.0.2.0/24\", \"2001:db8::/32\" or \"192.0.2.1\""
        ));
    };
    if written.addr() != written.network() {
        return Err(format!(
            "{written} has bits behind its prefix; write \"{}\" for the network, or \"{}\" for the address",
            written.trunc(),
            written.addr()
        ));
    }
    match written {
        IpNet::V4(_) => Ok(written),
        IpNet::V6(v6) => without_translation(v6).ok_or_else(|| {
            format!("{written} has translated addresses only, which are compared as the IPv4 addresses in them; write the IPv4 networks")
        }),
    }
}

/// Reads the network of a rule, which must not be every address.
pub(super) fn parse(action: Action, text: &str) -> Result<IpNet, String> {
    let network = read(text)?;
    match (network.prefix_len(), action) {
        (0, Action::Allow) => Err(format!(
            "{network} is every address, so nothing would be limited; remove the layer in place of that"
        )),
        (0, Action::Deny) => {
            let halves = match network {
                IpNet::V4(_) => "\"0.0.0.0/1\" and \"128.0.0.0/1\"",
                IpNet::V6(_) => "\"::/1\" and \"8000::/1\"",
            };
            Err(format!(
                "{network} is every address, so every login would be refused; if that is meant, write two rules, {halves}"
            ))
        }
        _ => Ok(network),
    }
}

/// A network in the form in which addresses are compared. A network of IPv4 addresses inside IPv6 is that IPv4
/// network: as an IPv6 network it would match no address, since those are compared as IPv4. `None` if the IPv4
/// addresses of such a network are not one network.
fn without_translation(network: Ipv6Net) -> Option<IpNet> {
    let bits = network.addr().to_bits();
    let len = network.prefix_len();
    let v4 = |bits: u128, len: u8| {
        let ip = Ipv4Addr::from_bits(bits as u32);
        IpNet::new(ip.into(), len).ok()
    };
    // The IPv4 address comes last: mapped, NAT64 and stateless translation.
    const LAST: [u128; 3] = [0xffff, 0x64_ff9b << 64, 0xffff_0000];
    if len >= 96 && LAST.contains(&(bits >> 32)) {
        return v4(bits, len - 96);
    }
    // 6to4: a site has 80 bits behind its IPv4 address.
    if len >= 16 && bits >> 112 == 0x2002 {
        return v4(bits >> 80, (len - 16).min(32));
    }
    // Teredo, and NAT64 of a network of its own: the address is not a prefix, so only single ones have a form.
    let is_teredo = len >= 32 && bits >> 96 == 0x2001_0000;
    let is_local_nat64 = len >= 48 && bits >> 80 == 0x64_ff9b_0001;
    if is_teredo || is_local_nat64 {
        return (len == 128).then(|| IpNet::from(canonical(network.addr().into())));
    }
    Some(network.into())
}

/// The networks of all rules. A look-up visits as many nodes as an address has groups of five bits, however
/// many networks there are.
#[derive(Debug, Default)]
pub(super) struct Networks {
    v4: PrefixMap<(u32, u8), Entries>,
    v6: PrefixMap<(u128, u8), Entries>,
}

impl Networks {
    /// The entries of a network, which is in canonical form.
    pub(super) fn entries(&mut self, network: IpNet) -> &mut Entries {
        let len = network.prefix_len();
        match network.addr() {
            IpAddr::V4(ip) => self.v4.entry((ip.to_bits(), len)).or_default(),
            IpAddr::V6(ip) => self.v6.entry((ip.to_bits(), len)).or_default(),
        }
    }

    /// Decides by the longest network around `ip` that has a rule at `now`.
    pub(super) fn decide(&self, ip: IpAddr, now: Millis) -> Option<Candidate> {
        match canonical(ip) {
            IpAddr::V4(ip) => decide(&self.v4, &(ip.to_bits(), Ipv4Addr::BITS as u8), now),
            IpAddr::V6(ip) => decide(&self.v6, &(ip.to_bits(), Ipv6Addr::BITS as u8), now),
        }
    }
}

fn decide<P: prefix_trie::Prefix>(
    networks: &PrefixMap<P, Entries>,
    address: &P,
    now: Millis,
) -> Option<Candidate> {
    let (_, longest) = networks.get_lpm(address)?;
    longest.decide(now).or_else(|| {
        // All rules of the longest network have expired, which is rare: walk all of them.
        let around = networks.cover_values(address);
        around.filter_map(|entries| entries.decide(now)).last()
    })
}

#[cfg(test)]
mod tests {
    use super::*;

    fn read(text: &str) -> String {
        parse(Action::Deny, text).expect(text).to_string()
    }

    #[test]
    fn translated_networks_are_ipv4_networks() {
        for (written, read_as) in [
            ("192.0.2.1", "192.0.2.1/32"),
            ("192.0.2.0/24", "192.0.2.0/24"),
            ("2001:db8::/32", "2001:db8::/32"),
            ("2001:db8::1", "2001:db8::1/128"),
            ("::ffff:192.0.2.0/120", "192.0.2.0/24"),
            ("::ffff:192.0.2.1", "192.0.2.1/32"),
            ("64:ff9b::192.0.2.0/120", "192.0.2.0/24"),
            ("::ffff:0:192.0.2.0/120", "192.0.2.0/24"),
            ("2002:c000:200::/40", "192.0.2.0/24"),
            ("2002:c000:201::/48", "192.0.2.1/32"),
            ("2002:c000:201:5::/64", "192.0.2.1/32"),
            ("2001:0:4136:e378:8000:63bf:3fff:fdfe", "192.0.2.1/32"),
            ("64:ff9b:1:c000:2:100::", "192.0.2.1/32"),
            // Around translated addresses: the native ones in it.
            ("2000::/3", "2000::/3"),
            ("::/8", "::/8"),
            ("64:ff9b::/32", "64:ff9b::/32"),
        ] {
            assert_eq!(read(written), read_as, "{written}");
        }
        for refused in ["2001::/32", "2001:0:4136:e378::/64", "64:ff9b:1::/48"] {
            let reason = parse(Action::Deny, refused).unwrap_err();
            assert!(reason.contains("write the IPv4 networks"), "{reason}");
        }
    }

    /// Each network is compared with what becomes of an address in it, so that no form slips past.
    #[test]
    fn a_network_contains_its_own_addresses_in_canonical_form() {
        for text in [
            "::ffff:192.0.2.0/120",
            "64:ff9b::192.0.2.0/120",
            "::ffff:0:192.0.2.0/120",
            "2002:c000:200::/40",
            "2002:c000:201:5::/64",
            "2001:db8::/32",
        ] {
            let network: IpNet = text.parse().unwrap();
            let canonical_network = parse(Action::Deny, text).unwrap();
            for ip in [network.network(), network.broadcast()] {
                assert!(canonical_network.contains(&canonical(ip)), "{text}");
            }
        }
    }

    #[test]
    fn every_address_is_refused_in_every_form() {
        for text in [
            "0.0.0.0/0",
            "::/0",
            "::ffff:0:0/96",
            "64:ff9b::/96",
            "2002::/16",
        ] {
            let reason = parse(Action::Allow, text).expect_err(text);
            assert!(reason.contains("nothing would be limited"), "{reason}");
            let reason = parse(Action::Deny, text).expect_err(text);
            assert!(reason.contains("write two rules"), "{reason}");
        }
        for half in ["0.0.0.0/1", "128.0.0.0/1", "::/1", "8000::/1"] {
            assert_eq!(read(half), half);
        }
    }

    #[test]
    fn what_is_not_a_network_is_refused() {
        for (text, word) in [
            ("example.org", "192.0.2.0/24"),
            ("192.0.2.0/33", "192.0.2.0/24"),
            ("192.0.2", "192.0.2.0/24"),
            ("010.0.0.1", "192.0.2.0/24"),
            ("fe80::1%eth0", "192.0.2.0/24"),
            ("192.0.2.17/24", "\"192.0.2.0/24\" for the network"),
            ("2001:db8::1/64", "\"2001:db8::1\" for the address"),
        ] {
            let reason = parse(Action::Deny, text).expect_err(text);
            assert!(reason.contains(word), "{reason}");
        }
    }
}
