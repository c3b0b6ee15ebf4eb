//! How counters are named in Redis.
//!
//! `prefix:{address}:kind`, or `prefix:{address}:kind:digest` with a digest of the subject; without
//! an address the digest takes its place. What stands in braces decides where a Redis Cluster keeps a
//! key, so all counters of one address are on one server and one script can decide on them; and so are
//! all of one subject that have no address.

use std::{io::Write, net::IpAddr};

use smallvec::SmallVec;

use crate::{
    Address,
    store::{Key, StoreError, StoreErrorKind},
};

/// Writes keys. Subjects are user names and the like: they appear only as a digest, of one length
/// and, given a secret, meaningless to somebody who reads the database.
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
                    "{prefix:?} can't be a key prefix: use 1 to 64 printable ASCII characters without braces or spaces"
                ),
            ));
        }
        Ok(Self {
            prefix: prefix.to_owned(),
            channel: format!("{prefix}:unblocked"),
            digest_key: blake3::derive_key("tower-login-rate-limit redis key subjects v1", secret),
        })
    }

    /// Where it is announced that a block was lifted.
    pub(super) fn channel(&self) -> &str {
        &self.channel
    }

    pub(super) fn write(&self, key: &Key<'_>) -> Vec<u8> {
        let mut name = Vec::with_capacity(self.prefix.len() + key.kind.len() + 80);
        name.extend_from_slice(self.prefix.as_bytes());
        name.extend_from_slice(b":{");
        match key.address {
            Some(address) => write_address(&mut name, address),
            None => self.write_digest(&mut name, key),
        }
        name.extend_from_slice(b"}:");
        for byte in key.kind.bytes() {
            name.push(byte);
            // Doubled, so that no kind can look like another one with a digest behind it.
            if byte == b':' {
                name.push(byte);
            }
        }
        if key.address.is_some() && !key.subject.is_empty() {
            name.push(b':');
            self.write_digest(&mut name, key);
        }
        name
    }

    /// 128 bits of a keyed hash, in hexadecimal: nobody finds two names with the same.
    fn write_digest(&self, name: &mut Vec<u8>, key: &Key<'_>) {
        // Only where it is the hash tag must it be the same for all kinds. Elsewhere that would show
        // which keys are of one user.
        let kind = key.address.map_or("", |_| key.kind);
        // Most are short, and what is in one piece is hashed in one go.
        let mut hashed = SmallVec::<[u8; 128]>::new();
        hashed.extend_from_slice(&(kind.len() as u64).to_le_bytes());
        hashed.extend_from_slice(kind.as_bytes());
        hashed.extend_from_slice(&key.subject);
        let hash = blake3::keyed_hash(&self.digest_key, &hashed);
        name.extend_from_slice(&hash.to_hex().as_bytes()[..32]);
    }
}

/// Writes an address as it is displayed. Each attempt has it in its keys, and formatting four numbers costs
/// more than writing them.
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

/// What stands in braces in a key, and what comes after that.
fn tag_and_kind(key: &[u8]) -> Option<(&[u8], &[u8])> {
    let (_, key) = split_at(key, b'{')?;
    split_at(key, b'}')
}

fn split_at(text: &[u8], byte: u8) -> Option<(&[u8], &[u8])> {
    let at = text.iter().position(|other| *other == byte)?;
    Some((&text[..at], &text[at + 1..]))
}

/// What stands in braces in a key.
pub(super) fn hash_tag(key: &[u8]) -> &[u8] {
    tag_and_kind(key).map_or(key, |(tag, _)| tag)
}

/// What stands for this key in a store of this process: its tag is the subject, so that an account's
/// counters and its known addresses belong together there too.
pub(super) fn local_key(key: &[u8]) -> Key<'_> {
    let (tag, kind) = tag_and_kind(key).unwrap_or((key, key));
    Key::of_subject(std::str::from_utf8(kind).unwrap_or_default(), tag)
}

#[cfg(test)]
mod tests {
    use std::collections::HashMap;

    use super::*;

    fn scheme() -> KeyScheme {
        KeyScheme::new("login", b"").unwrap()
    }

    fn written(key: &Key<'_>) -> String {
        String::from_utf8(scheme().write(key)).unwrap()
    }

    #[test]
    fn keys_of_one_address_share_its_hash_tag() {
        let address: Address = "2001:db8:1:2::/64".parse().unwrap();
        let pair = Key::of_address(address, "user-address").and_subject(&b"user"[..]);
        assert_eq!(
            written(&Key::of_address(address, "address")),
            "login:{2001:db8:1:2::/64}:address"
        );
        assert!(written(&pair).starts_with("login:{2001:db8:1:2::/64}:user-address:"));
    }

    #[test]
    fn names_stay_what_they_are() {
        // With another name for it, a counter that is in Redis is forgotten.
        let pair = |address: &str, kind: &'static str| {
            let key = Key::of_address(address.parse().unwrap(), kind);
            written(&key.and_subject(&b"user1"[..]))
        };
        for (name, expected) in [
            (
                pair("158.55.121.177", "user-address"),
                "login:{158.55.121.177}:user-address:ae5d2643d63f60d7fca23f84af7d40ed",
            ),
            (
                pair("2001:db8:1:2::/64", "user-address"),
                "login:{2001:db8:1:2::/64}:user-address:ae5d2643d63f60d7fca23f84af7d40ed",
            ),
            (
                pair("158.55.121.177", "a:b"),
                "login:{158.55.121.177}:a::b:fa2f07c1786502eb645c4b41974e88ad",
            ),
            (
                written(&Key::of_subject("account", &b"user1"[..])),
                "login:{f3885eff35554b82634ab9ae247503e8}:account",
            ),
        ] {
            assert_eq!(name, expected);
        }
    }

    #[test]
    fn addresses_are_written_as_they_are_displayed() {
        for octet in 0..=255 {
            let ip = std::net::Ipv4Addr::new(octet, 255 - octet, 0, octet);
            let address = Address::new(ip.into(), 64);
            let name = written(&Key::of_address(address, "address"));
            assert_eq!(name, format!("login:{{{address}}}:address"));
            assert_eq!(hash_tag(name.as_bytes()), address.to_string().as_bytes());
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
                    if let Some(other) = seen.insert(name, key.clone()) {
                        let subject = String::from_utf8_lossy(other.subject());
                        panic!("{key:?} of {subject:?} shares the key of {other:?}");
                    }
                }
            }
        }
    }

    #[test]
    fn a_secret_changes_every_digest_and_names_are_not_in_clear() {
        let key = Key::of_subject("account", &b"somebody"[..]);
        let other = KeyScheme::new("login", b"secret").unwrap();
        assert_ne!(scheme().write(&key), other.write(&key));
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
