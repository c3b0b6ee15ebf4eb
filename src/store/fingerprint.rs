//! What stands for the name of a counter in this process: a keyed hash, whatever the length of the name.
//!
//! A name has three parts: an address, a kind and a subject. A part is a sequence of pairs of 64-bit words,
//! the first of which is its shape and 0. The shape determines how many pairs follow; it is the length of a
//! text, and the family and prefix of an address. Each position has a secret `k`, and a name becomes the sum
//! of `(a + k mod 2⁶⁴) · (b + k′ mod 2⁶⁴)` over all of its pairs `(a, b)`, modulo 2¹²⁸.
//!
//! - If two names differ in a shape, with the shapes `a ≠ a′` their sums are equal only if `x · k′ − x′ · k′`
//!   has one certain value, where `x ≠ x′` are `a + k` and `a′ + k`. Its values are distinct for all 2⁶⁴
//!   values of `k′`, so the probability is at most 2⁻⁶⁴.
//! - Otherwise they have pairs in the same positions, and the sum is the hash NH of UMAC, for which the same
//!   bound is proven (Black et al., CRYPTO 1999).
//!
//! The id is the upper half of `k + k′ · high + k″ · low` modulo 2¹²⁸, of the halves of the sum. This is
//! strongly universal: two sums have one id with the probability 2⁻⁶⁴, and all bits of an id are uniform.
//! Together, **two given names have the same id with a probability of at most 2⁻⁶³**. A text with more words
//! than there are secrets is first replaced by 128 bits of SipHash.
//!
//! Up to here ids of names that form a progression, such as neighboring addresses, form one too. Under some
//! secrets they would be close to each other in a table, and long searches the result. The id is therefore
//! scrambled by a bijection, which changes no probability.
//!
//! Secrets are drawn by each process and never leave it, nor do ids, so names with one id can't be searched
//! for. A sum of names is a sum over their parts, so a part that several counters share is hashed once.

use std::{
    fmt,
    hash::{BuildHasher, RandomState},
    net::IpAddr,
    sync::LazyLock,
};

use crate::Address;

/// How many shards tables are divided into, each with a lock of its own.
#[cfg(feature = "memory")]
pub(super) const SHARDS: usize = 1 << SHARD_BITS;
const SHARD_BITS: u32 = 6;
/// The longest text that is hashed without SipHash, in pairs of words.
const PAIRS: usize = 8;

/// Stands for a [`Key`](super::Key).
#[derive(Clone, Copy, PartialEq, Eq, Hash)]
pub(crate) struct Fingerprint {
    /// Unique to the key. A hash: every bit is uniform.
    pub(crate) id: u64,
    pub(crate) place: Place,
}

/// Where the entry of a key is kept.
#[derive(Clone, Copy, PartialEq, Eq, Hash)]
pub(crate) struct Place {
    /// The same for all keys of one address.
    pub(crate) shard: u8,
    /// The same for all keys of one network that may be a single client: an IPv4 /24 or an IPv6 /48.
    pub(crate) network: u16,
}

/// The sum over some parts of a name: its lower and its upper half, since attempts contain digests, and are smaller
/// without a `u128`.
#[derive(Clone, Copy, PartialEq, Eq)]
pub(crate) struct Digest([u64; 2]);

struct Secrets {
    address: [u64; 4],
    kind: [u64; 2 + 2 * PAIRS],
    subject: [u64; 2 + 2 * PAIRS],
    id: [u128; 3],
    shard: [u128; 3],
    sip: RandomState,
}

static SECRETS: LazyLock<Secrets> = LazyLock::new(|| {
    let (sip, mut drawn) = (RandomState::new(), 0_u64);
    let mut word = || {
        drawn += 1;
        sip.hash_one(drawn)
    };
    Secrets {
        address: std::array::from_fn(|_| word()),
        kind: std::array::from_fn(|_| word()),
        subject: std::array::from_fn(|_| word()),
        id: std::array::from_fn(|_| u128::from(word()) << 64 | u128::from(word())),
        shard: std::array::from_fn(|_| u128::from(word()) << 64 | u128::from(word())),
        sip,
    }
});

impl Digest {
    #[inline]
    pub(crate) fn of_address(address: Option<Address>) -> Self {
        let secrets = &*SECRETS;
        let (family, prefix, bits) = match address.map(|address| (address.ip(), address.prefix())) {
            Some((IpAddr::V4(ip), prefix)) => (4, prefix, u128::from(ip.to_bits())),
            Some((IpAddr::V6(ip), prefix)) => (6, prefix, ip.to_bits()),
            None => (0, 0, 0),
        };
        let [k0, k1, k2, k3] = secrets.address;
        let shape = family << 8 | u64::from(prefix);
        Self::new(product([k0, k1], shape.into()).wrapping_add(product([k2, k3], bits)))
    }

    /// In place of an address, where a subject in this spelling has a key of its own.
    pub(crate) fn of_spelling(spelling: &[u8]) -> Self {
        let [k0, k1, k2, k3] = SECRETS.address;
        let id = Self::of_subject(spelling).id();
        // No address has the shape 1.
        Self::new(product([k0, k1], 1).wrapping_add(product([k2, k3], id.into())))
    }

    pub(crate) fn of_kind(kind: &str) -> Self {
        Self::of_text(&SECRETS.kind, kind.as_bytes())
    }

    #[inline]
    pub(crate) fn of_subject(subject: &[u8]) -> Self {
        Self::of_text(&SECRETS.subject, subject)
    }

    #[inline]
    fn of_text(secrets: &[u64; 2 + 2 * PAIRS], text: &[u8]) -> Self {
        let mut pairs = secrets.chunks_exact(2).map(|pair| [pair[0], pair[1]]);
        let mut add = |sum: u128, pair| {
            let product = pairs.next().map_or(0, |secrets| product(secrets, pair));
            sum.wrapping_add(product)
        };
        let mut sum = add(0, text.len() as u128);
        if text.len() > 16 * PAIRS {
            let [low, high] = [0_u8, 1].map(|half| SECRETS.sip.hash_one((half, text)));
            sum = add(sum, u128::from(high) << 64 | u128::from(low));
        } else {
            for chunk in text.chunks(16) {
                // Zeros are no part of any text of this length.
                let mut pair = [0; 16];
                pair[..chunk.len()].copy_from_slice(chunk);
                sum = add(sum, u128::from_le_bytes(pair));
            }
        }
        Self::new(sum)
    }

    #[inline]
    const fn new(sum: u128) -> Self {
        Self([sum as u64, (sum >> 64) as u64])
    }

    #[inline]
    const fn sum(self) -> u128 {
        (self.0[1] as u128) << 64 | self.0[0] as u128
    }

    /// The digest of the parts of both.
    #[inline]
    pub(crate) const fn and(self, other: Self) -> Self {
        Self::new(self.sum().wrapping_add(other.sum()))
    }

    /// The id of a key with these parts, which are an address or none, a kind and a subject.
    #[inline]
    pub(crate) fn id(self) -> u64 {
        scramble(mix(&SECRETS.id, self.sum()))
    }

    /// The fingerprint of a key with these parts and the place of its address, if it has one.
    #[inline]
    pub(crate) fn finish(self, place: Option<Place>) -> Fingerprint {
        let id = self.id();
        let place = place.unwrap_or_else(|| Place::of_hash(id));
        Fingerprint { id, place }
    }
}

impl Place {
    /// The only function that decides which shard an address is in. It depends on a secret, so an attacker can't choose
    /// addresses of one shard.
    #[inline]
    pub(crate) fn of(address: Address) -> Self {
        let secrets = &SECRETS.shard;
        match address.tag().ip() {
            // Addresses of one /24 are in different shards, so that they do not wait for each other.
            IpAddr::V4(ip) => Self {
                shard: Self::of_hash(mix(secrets, ip.to_bits().into())).shard,
                network: Self::of_hash(mix(secrets, u128::from(ip.to_bits() | 0xff))).network,
            },
            IpAddr::V6(ip) => Self::of_hash(mix(secrets, ip.to_bits())),
        }
    }

    /// From different bits of a hash.
    #[inline]
    const fn of_hash(hash: u64) -> Self {
        Self {
            shard: (hash >> (u64::BITS - SHARD_BITS)) as u8,
            network: (hash >> (u64::BITS - SHARD_BITS - 16)) as u16,
        }
    }
}

/// The product of a pair of words, each with a secret added.
#[inline]
fn product(secrets: [u64; 2], pair: u128) -> u128 {
    let low = (pair as u64).wrapping_add(secrets[0]);
    let high = ((pair >> 64) as u64).wrapping_add(secrets[1]);
    u128::from(low) * u128::from(high)
}

/// A bijection without structure: the finalizer of MurmurHash3.
#[inline]
const fn scramble(mut word: u64) -> u64 {
    word = (word ^ word >> 33).wrapping_mul(0xff51_afd7_ed55_8ccd);
    word = (word ^ word >> 33).wrapping_mul(0xc4ce_b9fe_1a85_ec53);
    word ^ word >> 33
}

/// A strongly universal hash of two words.
#[inline]
fn mix(secrets: &[u128; 3], words: u128) -> u64 {
    let [first, low, high] = secrets;
    let sum = first
        .wrapping_add(low.wrapping_mul(words & u128::from(u64::MAX)))
        .wrapping_add(high.wrapping_mul(words >> 64));
    (sum >> 64) as u64
}

/// Shows nothing: ids are secret.
impl fmt::Debug for Digest {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str("Digest(..)")
    }
}

/// Shows nothing: ids are secret.
impl fmt::Debug for Fingerprint {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str("Fingerprint(..)")
    }
}

#[cfg(test)]
mod tests {
    use std::collections::HashMap;

    use super::*;
    use crate::store::Key;

    #[test]
    fn different_keys_have_different_fingerprints() {
        let addresses = "192.0.2.1 ::c000:201 2001:db8::/64 2001:db8::/56 2001:db8::".split(' ');
        let addresses = addresses.map(|text| Some(text.parse::<Address>().unwrap()));
        let long = [15, 16, 17, 128, 129, 200].map(|length| "x".repeat(length));
        let short = ["", "a", "b", "ab", "ba", "a\0", "\0a"].into_iter();
        let parts: Vec<_> = short.chain(long.iter().map(String::as_str)).collect();
        let mut seen = HashMap::new();
        for address in addresses.chain([None]) {
            for kind in &parts {
                for subject in &parts {
                    let key = Key::new(address, kind, subject.as_bytes());
                    let name = (address, kind, subject);
                    let before = seen.insert(key.fingerprint.id, name);
                    assert_eq!(before, None, "the same as {name:?}");
                }
            }
        }
    }
}
