//! Keys of the embedded store: 128 bits in place of names of any length.

use std::{
    hash::{BuildHasher, Hasher},
    net::IpAddr,
};

use ahash::RandomState;
use uuid::Uuid;

use super::locked::SHARDS;
use crate::store::Key;

/// Stands for a [`Key`]: names may be long, and their owners would rather not have them kept. The upper
/// bits are the shard, the same for all keys of one address; the others are a hash.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) struct Fingerprint(u128);

impl Fingerprint {
    pub(super) const fn shard(self) -> usize {
        (self.0 >> HASH_BITS) as usize
    }

    /// For a table of one shard.
    pub(super) const fn hash(self) -> u64 {
        self.0 as u64
    }
}

const HASH_BITS: u32 = u128::BITS - SHARDS.ilog2();

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

    pub(super) fn of(&self, key: &Key<'_>) -> Fingerprint {
        let (family, prefix, address) = match key.address.map(|address| (address.ip(), address)) {
            Some((IpAddr::V4(ip), address)) => (4, address.prefix(), u128::from(ip.to_bits())),
            Some((IpAddr::V6(ip), address)) => (6, address.prefix(), ip.to_bits()),
            None => (0, 0, 0),
        };
        let hash = |hasher: &RandomState| {
            // Each behind its length, so that no two keys are hashed alike.
            let mut hasher = hasher.build_hasher();
            hasher.write_u128(address);
            hasher.write_u16(u16::from_le_bytes([family, prefix]));
            hasher.write_usize(key.kind.len());
            hasher.write(key.kind.as_bytes());
            hasher.write_usize(key.subject.len());
            hasher.write(&key.subject);
            u128::from(hasher.finish())
        };
        let hash = (hash(&self.hashers[0]) << 64) | hash(&self.hashers[1]);
        // Addresses are spread over the shards: the upper bits of a product with a secret depend on all
        // bits of the address, and nobody outside can choose addresses of one shard.
        let shard = match key.address {
            Some(_) => address.wrapping_mul(self.multiplier),
            None => hash.wrapping_mul(self.multiplier),
        };
        Fingerprint((shard >> HASH_BITS << HASH_BITS) | (hash & ((1 << HASH_BITS) - 1)))
    }
}
