//! How the keys of the ledger are named in Redis, and which names are those of counters.
//!
//! The hash tag of an index of blocks is one of [`SHARDS`], of an index by address or subject it is the one of
//! the counters. What follows can't be the name of a counter, which is a kind with its colons doubled and at most
//! one digest or address.

use crate::{
    Address,
    store::{
        CounterName, KNOWN_ADDRESSES, StoreError, StoreErrorKind,
        redis::keys::{KeyScheme, write_address, write_kind},
    },
};

/// Over how many hash tags the index of blocks is spread. Other processes must use the same number.
pub(super) const SHARDS: u8 = 8;

/// The keys of one index: names by time, and their texts. Both have one hash tag.
#[derive(Clone, Debug, PartialEq, Eq, Hash)]
pub(super) struct IndexKeys {
    pub(super) lifts: Vec<u8>,
    pub(super) notes: Vec<u8>,
}

impl IndexKeys {
    fn new(stem: &[u8], behind: &[u8]) -> Self {
        Self {
            lifts: [stem, b":lifts", behind].concat(),
            notes: [stem, b":notes", behind].concat(),
        }
    }
}

impl KeyScheme {
    /// The part of a rule's index that blocks of this counter are in.
    pub(super) fn shard_of(counter: &CounterName) -> u8 {
        let hash = blake3::hash(counter.as_str().as_bytes());
        hash.as_bytes()[0] % SHARDS
    }

    /// A part of the blocks of a rule.
    pub(super) fn blocks_of_rule(&self, rule: &str, shard: u8) -> IndexKeys {
        let mut stem = format!("{}:{{blocks:{shard}}}:", self.prefix()).into_bytes();
        write_kind(&mut stem, rule);
        IndexKeys::new(&stem, b"")
    }

    /// The blocks at an address or network.
    pub(super) fn blocks_at(&self, address: Address) -> IndexKeys {
        let mut stem = format!("{}:{{", self.prefix()).into_bytes();
        write_address(&mut stem, address.tag());
        stem.extend_from_slice(b"}:blocks");
        let mut behind = Vec::new();
        if address != address.tag() {
            behind.push(b':');
            write_address(&mut behind, address);
        }
        IndexKeys::new(&stem, &behind)
    }

    /// The blocks of a subject, by its digest.
    pub(super) fn blocks_of_subject(&self, digest: &str) -> IndexKeys {
        let stem = format!("{}:{{{digest}}}:blocks", self.prefix());
        IndexKeys::new(stem.as_bytes(), b"")
    }

    /// The instances of the fleet.
    pub(super) fn instances(&self) -> IndexKeys {
        let stem = format!("{}:{{instances}}", self.prefix());
        IndexKeys::new(stem.as_bytes(), b"")
    }

    /// The document of the fleet.
    pub(super) fn document(&self) -> Vec<u8> {
        format!("{}:{{document}}", self.prefix()).into_bytes()
    }

    /// Checks that this can be the name of a counter, so that no other key is read or changed by it. Returns
    /// its hash tag.
    pub(super) fn check<'n>(&self, counter: &'n CounterName) -> Result<&'n str, StoreError> {
        let read = || {
            let rest = counter.as_str().strip_prefix(self.prefix())?;
            let (tag, rest) = rest.strip_prefix(":{")?.split_once("}:")?;
            let is_tag = is_digest(tag) || is_address(tag);
            let is_kind = |kind: &str| {
                let known = KNOWN_ADDRESSES.replace(':', "::");
                !kind.is_empty() && !kind.replace("::", "").contains(':') && kind != known
            };
            let is_divided = |at: usize| {
                let last = &rest[at + 1..];
                is_kind(&rest[..at]) && (is_digest(last) || is_address(last))
            };
            let mut colons = rest.match_indices(':');
            let is_name = is_kind(rest) || colons.any(|(at, _)| is_divided(at));
            (is_tag && is_name).then_some(tag)
        };
        read().ok_or_else(|| {
            let message = format!("{counter} is not the name of a counter in this store");
            StoreError::new(StoreErrorKind::InvalidInput, message)
        })
    }
}

pub(super) fn is_digest(text: &str) -> bool {
    let is_digit = |byte: u8| matches!(byte, b'0'..=b'9' | b'a'..=b'f');
    text.len() == 32 && text.bytes().all(is_digit)
}

fn is_address(text: &str) -> bool {
    let address: Result<Address, _> = text.parse();
    address.is_ok_and(|address| address.to_string() == text)
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::store::Key;

    #[test]
    fn names_of_counters_are_recognized_and_no_other_keys() {
        let scheme = KeyScheme::new("login", b"").unwrap();
        let addresses = ["192.0.2.1", "2001:db8:1:2::/64", "2001:db8:1::/48", "::/64"];
        let addresses = addresses.map(|text| text.parse::<Address>().unwrap());
        let name = |key: &Key<'_>| {
            let name = String::from_utf8(scheme.name(key)).unwrap();
            CounterName::new(name)
        };
        for kind in ["address", "a:b", "key:mails", "blocks", "lifts"] {
            let mut keys = vec![Key::of_subject(kind, b"user")];
            for address in addresses {
                keys.push(Key::of_address(address, kind));
                keys.push(Key::of_address(address, kind).and_subject(b"user"));
            }
            for key in keys {
                let name = name(&key);
                assert!(scheme.check(&name).is_ok(), "{name}");
            }
        }
        let known = Key::of_subject(KNOWN_ADDRESSES, b"user");
        let mut others = vec![name(&known), name(&known.spelled(b"User"))];
        let mut own = vec![
            scheme.blocks_of_rule("address", 3),
            scheme.blocks_of_subject(&scheme.subject(b"user")),
            scheme.instances(),
        ];
        own.extend(addresses.map(|address| scheme.blocks_at(address)));
        for keys in own {
            for key in [keys.lifts, keys.notes] {
                others.push(CounterName::new(String::from_utf8(key).unwrap()));
            }
        }
        let document = String::from_utf8(scheme.document()).unwrap();
        others.extend(
            [
                &*document,
                "login:unblocked",
                "session:7",
                "login:{192.0.2.1}:",
            ]
            .map(CounterName::new),
        );
        others.extend(
            ["other:{192.0.2.1}:address", "login2:{192.0.2.1}:address"].map(CounterName::new),
        );
        for name in others {
            assert!(scheme.check(&name).is_err(), "{name}");
        }
    }

    #[test]
    fn parts_of_an_index_are_spread_evenly() {
        let mut parts = [0; SHARDS as usize];
        for i in 0..8_000 {
            let name = CounterName::new(format!("login:{{10.0.{}.{}}}:address", i / 256, i % 256));
            parts[usize::from(KeyScheme::shard_of(&name))] += 1;
        }
        assert!(
            parts.iter().all(|part| (800..1_200).contains(part)),
            "{parts:?}"
        );
    }
}
