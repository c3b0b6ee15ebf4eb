//! Keys of the embedded store: a hash in place of names of any length.

use std::{
    hash::{BuildHasher, Hasher},
    net::IpAddr,
};

use ahash::RandomState;
use uuid::Uuid;

use super::locked::SHARDS;
use crate::store::Key;

/// Stands for a [`Key`]: names may be long, and their owners would rather not have them kept.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) struct Fingerprint {
    /// The same for all keys of one address.
    pub(super) shard: usize,
    /// Two, because the hash is quick and not a cryptographic one: there are names that have the same under
    /// one secret in 10⁸, and an attacker may know them.
    pub(super) hashes: [u64; 2],
}

impl Fingerprint {
    /// For a table.
    pub(super) const fn hash(self) -> u64 {
        self.hashes[0]
    }
}

/// Makes fingerprints with secrets that are drawn anew in each process. Neither they nor the fingerprints
/// are ever shown, so whoever wants two names with the same fingerprint can only guess.
pub(super) struct Fingerprints {
    hashers: [RandomState; 2],
    /// Odd.
    multiplier: u128,
}

impl Fingerprints {
    pub(super) fn new() -> Self {
        let hasher = || {
            let ((a, b), (c, d)) = (Uuid::new_v4().as_u64_pair(), Uuid::new_v4().as_u64_pair());
            RandomState::with_seeds(a, b, c, d)
        };
        Self {
            hashers: [hasher(), hasher()],
            multiplier: Uuid::new_v4().as_u128() | 1,
        }
    }

    #[inline]
    pub(super) fn of(&self, key: &Key<'_>) -> Fingerprint {
        let (family, prefix, address) = match key.address.map(|address| (address.ip(), address)) {
            Some((IpAddr::V4(ip), address)) => (4_u8, address.prefix(), u128::from(ip.to_bits())),
            Some((IpAddr::V6(ip), address)) => (6, address.prefix(), ip.to_bits()),
            None => (0, 0, 0),
        };
        // All lengths first, so that no two keys are hashed alike.
        let [kind, subject] = [key.kind.len(), key.subject.len()].map(|length| length as u128);
        let shape = subject << 64 | kind << 16 | u128::from(family) << 8 | u128::from(prefix);
        let hash = |hasher: &RandomState| {
            let mut hasher = hasher.build_hasher();
            hasher.write_u128(address);
            hasher.write_u128(shape);
            hasher.write(key.kind.as_bytes());
            hasher.write(&key.subject);
            hasher.finish()
        };
        let hashes = [hash(&self.hashers[0]), hash(&self.hashers[1])];
        // Addresses are spread over the shards: the upper bits of a product with a secret depend on all
        // bits of the address, and nobody outside can choose addresses of one shard.
        let spread = match key.address {
            Some(_) => address,
            None => u128::from(hashes[0]),
        };
        Fingerprint {
            shard: (spread.wrapping_mul(self.multiplier) >> SHARD_SHIFT) as usize,
            hashes,
        }
    }
}

const SHARD_SHIFT: u32 = u128::BITS - SHARDS.ilog2();

#[cfg(test)]
mod tests {
    use std::collections::HashMap;

    use super::*;
    use crate::Address;

    #[test]
    fn different_keys_have_different_fingerprints() {
        let addresses = [
            "192.0.2.1",
            "::c000:201",
            "2001:db8::/64",
            "2001:db8::/56",
            "2001:db8::",
        ]
        .map(|text| Some(text.parse::<Address>().unwrap()));
        let parts = [
            "",
            "a",
            "b",
            "ab",
            "ba",
            "a\0",
            "\0a",
            "somebody with a long name",
        ];
        let (fingerprints, mut seen) = (Fingerprints::new(), HashMap::new());
        for address in addresses.into_iter().chain([None]) {
            for kind in parts {
                for subject in parts {
                    let mut key = Key::of_subject(kind, subject.as_bytes());
                    key.address = address;
                    let name = (address, kind, subject);
                    let before = seen.insert(fingerprints.of(&key).hashes, name);
                    assert_eq!(before, None, "the same as {name:?}");
                }
            }
        }
    }
}
