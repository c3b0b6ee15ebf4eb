//! How counters are named in Redis.
//!
//! `prefix:{address}:kind`, or `prefix:{address}:kind:digest` with a digest of address, kind and subject;
//! without an address a digest of the subject takes its place. The part in braces, the hash tag, decides
//! where a Redis Cluster keeps a key: all counters of one address are in one slot, so that one script can
//! decide on them, and so are all counters of one subject that have no address.

use std::{io::Write, net::IpAddr};

use smallvec::SmallVec;

use crate::{
    Address,
    store::{Key, StoreError, StoreErrorKind},
};

/// Names counters. Subjects are user names and the like: they appear only as a digest of fixed length,
/// which, given a secret, reveals nothing to a reader of the database.
pub(super) struct KeyScheme {
    prefix: String,
    channel: String,
    digest_key: [u8; 32],
}

impl KeyScheme {
    pub(super) fn new(prefix: &str, secret: &[u8]) -> Result<Self, StoreError> {
        let allowed = |c: char| c.is_ascii_graphic() && !matches!(c, '{' | '}');
        if !(1..=64).contains(&prefix.len()) || !prefix.chars().all(allowed) {
            return Err(StoreError::new(
                StoreErrorKind::Config,
                format!(
                    "{prefix:?} is not a valid key prefix: use 1 to 64 printable ASCII characters without braces or spaces"
                ),
            ));
        }
        Ok(Self {
            prefix: prefix.to_owned(),
            channel: format!("{prefix}:unblocked"),
            digest_key: blake3::derive_key("tower-login-rate-limit redis key subjects v1", secret),
        })
    }

    /// The channel on which scripts publish the names of counters whose block was lifted.
    pub(super) fn channel(&self) -> &str {
        &self.channel
    }

    pub(super) fn name(&self, key: &Key<'_>) -> Vec<u8> {
        let mut name = Vec::with_capacity(self.prefix.len() + key.kind.len() + 80);
        name.extend_from_slice(self.prefix.as_bytes());
        name.extend_from_slice(b":{");
        match key.address {
            Some(address) => write_address(&mut name, address.tag()),
            None => self.write_digest(&mut name, key),
        }
        name.extend_from_slice(b"}:");
        for byte in key.kind.bytes() {
            name.push(byte);
            // Doubled, so that no kind can look like another one followed by a digest.
            if byte == b':' {
                name.push(byte);
            }
        }
        if let Some(address) = key.address {
            if !key.subject.is_empty() {
                name.push(b':');
                self.write_digest(&mut name, key);
            } else if address != address.tag() {
                name.push(b':');
                write_address(&mut name, address);
            }
        }
        name
    }

    /// 128 bits of a keyed hash, in hexadecimal: collisions can't be found.
    fn write_digest(&self, name: &mut Vec<u8>, key: &Key<'_>) {
        // In one piece, which is hashed in one call; most are short.
        let mut hashed = SmallVec::<[u8; 128]>::new();
        // Only a hash tag must be the same for all kinds. Elsewhere a digest without kind and address would
        // show which keys belong to one user.
        let (kind, ip, prefix) = match key.address {
            Some(address) => (key.kind, Some(address.ip()), address.prefix()),
            None => ("", None, 0),
        };
        hashed.extend_from_slice(&(kind.len() as u64).to_le_bytes());
        hashed.extend_from_slice(kind.as_bytes());
        match ip {
            Some(IpAddr::V4(ip)) => {
                hashed.extend_from_slice(&[4, prefix]);
                hashed.extend_from_slice(&ip.octets());
            }
            Some(IpAddr::V6(ip)) => {
                hashed.extend_from_slice(&[6, prefix]);
                hashed.extend_from_slice(&ip.octets());
            }
            None => hashed.push(0),
        }
        hashed.extend_from_slice(key.subject);
        let hash = blake3::keyed_hash(&self.digest_key, &hashed);
        name.extend_from_slice(&hash.to_hex().as_bytes()[..32]);
    }
}

/// Writes an address as it is displayed. Every attempt has it in its keys, and formatting machinery costs
/// more than the digits.
fn write_address(name: &mut Vec<u8>, address: Address) {
    let IpAddr::V4(ip) = address.ip() else {
        // Writing to a vector can't fail.
        let _ = write!(name, "{address}");
        return;
    };
    let mut between: &[u8] = b"";
    for octet in ip.octets() {
        name.extend_from_slice(between);
        name.extend_from_slice(itoa::Buffer::new().format(octet).as_bytes());
        between = b".";
    }
}

#[cfg(test)]
mod tests {
    use std::collections::HashMap;

    use super::*;

    fn scheme() -> KeyScheme {
        KeyScheme::new("login", b"").unwrap()
    }

    fn written(key: &Key<'_>) -> String {
        String::from_utf8(scheme().name(key)).unwrap()
    }

    #[test]
    fn keys_of_one_address_share_its_hash_tag() {
        let address: Address = "2001:db8:1:2::/64".parse().unwrap();
        let pair = Key::of_address(address, "user-address").and_subject(&b"user"[..]);
        assert_eq!(
            written(&Key::of_address(address, "address")),
            "login:{2001:db8:1::/48}:address:2001:db8:1:2::/64"
        );
        assert!(written(&pair).starts_with("login:{2001:db8:1::/48}:user-address:"));
    }

    #[test]
    fn names_are_stable() {
        // Under another name, a counter that is in Redis would be lost.
        let pair = |address: &str, kind: &'static str| {
            let key = Key::of_address(address.parse().unwrap(), kind);
            written(&key.and_subject(&b"user1"[..]))
        };
        let names = [
            pair("158.55.121.177", "user-address"),
            pair("2001:db8:1:2::/64", "user-address"),
            pair("158.55.121.177", "a:b"),
            written(&Key::of_subject("account", &b"user1"[..])),
        ];
        assert_eq!(
            names,
            [
                "login:{158.55.121.177}:user-address:146836e3206bb1eb625519cb9c8ee1c1",
                "login:{2001:db8:1::/48}:user-address:14841c65e8f55c07859b898eea917670",
                "login:{158.55.121.177}:a::b:c6ec76d20a18f3125b9a576f039c217d",
                "login:{b8a48ba94d59df67ee12decf264190be}:account",
            ]
        );
    }

    #[test]
    fn addresses_are_written_as_they_are_displayed() {
        for octet in 0..=255 {
            let ip = std::net::Ipv4Addr::new(octet, 255 - octet, 0, octet);
            let address = Address::new(ip.into(), 64);
            let name = written(&Key::of_address(address, "address"));
            assert_eq!(name, format!("login:{{{address}}}:address"));
        }
    }

    #[test]
    fn different_inputs_never_share_a_key() {
        let addresses = [
            "192.0.2.1",
            "192.0.2.11",
            "::1",
            "2001:db8::/64",
            "2001:db8::/56",
        ];
        let digest = written(&Key::of_subject("a", &b"b"[..]))[7..39].to_owned();
        let tricky = [format!("a:{digest}"), format!("a::{digest}")];
        let kinds = [
            "address",
            "user-address",
            "a",
            "a:",
            "ab",
            &tricky[0],
            &tricky[1],
        ];
        let million = "x".repeat(1_000_000);
        let million_and_one = "x".repeat(1_000_001);
        let subjects = [
            "",
            "a",
            "b",
            "ab",
            "a:b",
            "a}b",
            "{a}",
            "}",
            "{",
            " ",
            "a b",
            "\0",
            "a\0",
            "ü",
            "u\u{308}",
            "192.0.2.1",
            "192.0.2.1}:user-address:x",
            "\u{202e}",
            &million,
            &million_and_one,
        ];
        let mut seen = HashMap::new();
        for kind in kinds {
            for subject in subjects {
                let mut keys = vec![Key::of_subject(kind, subject.as_bytes())];
                for address in addresses {
                    let address = address.parse().unwrap();
                    keys.push(Key::of_address(address, kind).and_subject(subject.as_bytes()));
                }
                for key in keys {
                    let name = written(&key);
                    assert!(name.len() < 128 && name.is_ascii(), "{name}");
                    assert_eq!(name.matches(['{', '}']).count(), 2, "{name}");
                    if let Some(other) = seen.insert(name, key) {
                        let subject = String::from_utf8_lossy(other.subject());
                        panic!("{key:?} of {subject:?} shares the key of {other:?}");
                    }
                }
            }
        }
    }

    #[test]
    fn keys_of_one_user_at_two_addresses_have_nothing_in_common() {
        let addresses = ["192.0.2.1", "192.0.2.2", "2001:db8::/64", "2001:db8::/56"];
        let digests = addresses.map(|address| {
            let key = Key::of_address(address.parse().unwrap(), "user-address");
            let name = written(&key.and_subject(&b"user"[..]));
            name.rsplit_once(':').unwrap().1.to_owned()
        });
        for (i, digest) in digests.iter().enumerate() {
            assert!(!digests[..i].contains(digest), "{digests:?}");
        }
    }

    #[test]
    fn a_secret_changes_every_digest_and_names_are_not_in_clear() {
        let key = Key::of_subject("account", &b"somebody"[..]);
        let other = KeyScheme::new("login", b"secret").unwrap();
        assert_ne!(scheme().name(&key), other.name(&key));
        assert!(!written(&key).contains("somebody"));
    }

    #[test]
    fn a_prefix_that_would_break_the_hash_tag_is_refused() {
        for prefix in ["", "a{b", "a}b", "a b", "ü", "\0", &"x".repeat(65)] {
            let Err(error) = KeyScheme::new(prefix, b"") else {
                panic!("{prefix:?} was accepted");
            };
            assert_eq!(error.kind(), StoreErrorKind::Config);
        }
    }
}
