//! Keys of the embedded store: 128 bits in place of names of any length.

use std::{hash::Hasher, net::IpAddr};

use siphasher::sip128::{Hasher128, SipHasher13};
use uuid::Uuid;

use crate::store::Key;

/// Stands for a [`Key`]: names may be long, and their owners would rather not have them kept.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) struct Fingerprint {
    pub(super) bits: u128,
    /// The same for all keys of one address; its upper bits are the evenest.
    pub(super) group: u64,
}

/// Makes fingerprints with a secret that is drawn anew in each process, so that nobody outside can
/// look for two names with the same fingerprint.
pub(super) struct Fingerprints {
    hasher: SipHasher13,
    /// Odd.
    multiplier: u128,
}

impl Fingerprints {
    pub(super) fn new() -> Self {
        Self {
            hasher: SipHasher13::new_with_key(Uuid::new_v4().as_bytes()),
            multiplier: Uuid::new_v4().as_u128() | 1,
        }
    }

    pub(super) fn of(&self, key: &Key<'_>) -> Fingerprint {
        // A head of fixed length, the kind behind its length, then the subject to the end: no two
        // keys give the same bytes.
        let mut hasher = self.hasher;
        let mut group = None;
        match key.address {
            Some(address) => {
                let (family, bits) = match address.ip() {
                    IpAddr::V4(ip) => (4, u128::from(ip.to_bits())),
                    IpAddr::V6(ip) => (6, ip.to_bits()),
                };
                hasher.write(&[family, address.prefix()]);
                hasher.write(&bits.to_le_bytes());
                group = Some(self.spread(bits));
            }
            None => hasher.write(&[0; 18]),
        }
        hasher.write(&key.kind.len().to_le_bytes());
        hasher.write(key.kind.as_bytes());
        hasher.write(&key.subject);
        let bits = hasher.finish128().as_u128();
        Fingerprint {
            bits,
            group: group.unwrap_or((bits >> 64) as u64),
        }
    }

    /// Spreads addresses over the shards: the upper bits of a product with a secret depend on all
    /// bits of the address, and nobody outside can choose addresses of one shard.
    const fn spread(&self, bits: u128) -> u64 {
        (bits.wrapping_mul(self.multiplier) >> 64) as u64
    }
}
