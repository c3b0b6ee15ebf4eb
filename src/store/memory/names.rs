//! How counters in memory are named outside of the process.
//!
//! A fingerprint is secret: its hash is universal and no more, so that names with one fingerprint could be
//! computed from a few known ones. What leaves the process is therefore encrypted: a Feistel network of four
//! rounds with SipHash as round function, under a key that the process draws, is a pseudorandom permutation
//! of 128 bits (Luby and Rackoff, 1988). 42 of them are zeros, by which a text is recognized
//! that no store of this process has made.

use std::{
    hash::{BuildHasher, RandomState},
    sync::LazyLock,
};

use crate::store::{
    CounterName, StoreError, StoreErrorKind,
    fingerprint::{Fingerprint, Place, SHARDS},
};

const ROUNDS: u8 = 4;

static KEY: LazyLock<RandomState> = LazyLock::new(RandomState::new);

fn round(number: u8, half: u64) -> u64 {
    KEY.hash_one((number, half))
}

pub(super) fn seal(counter: Fingerprint) -> CounterName {
    let Place { shard, network } = counter.place;
    let place = u64::from(network) << 8 | u64::from(shard);
    let (mut left, mut right) = (counter.id, place);
    for number in 0..ROUNDS {
        (left, right) = (right, left ^ round(number, right));
    }
    CounterName::new(format!("{left:016x}{right:016x}"))
}

pub(super) fn open(name: &str) -> Result<Fingerprint, StoreError> {
    let read = || {
        let (left, right) = name.split_at_checked(16)?;
        let is_digit = |byte: u8| matches!(byte, b'0'..=b'9' | b'a'..=b'f');
        if right.len() != 16 || !name.bytes().all(is_digit) {
            return None;
        }
        let mut left = u64::from_str_radix(left, 16).ok()?;
        let mut right = u64::from_str_radix(right, 16).ok()?;
        for number in (0..ROUNDS).rev() {
            (left, right) = (right ^ round(number, left), left);
        }
        let (network, shard) = (u16::try_from(right >> 8).ok()?, right as u8);
        (usize::from(shard) < SHARDS).then_some(Fingerprint {
            id: left,
            place: Place { shard, network },
        })
    };
    read().ok_or_else(|| {
        StoreError::new(
            StoreErrorKind::InvalidInput,
            "this is not the name of a counter in this store: names in memory end with their process",
        )
    })
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::store::Key;

    #[test]
    fn names_are_opened_and_no_others_are() {
        for i in 0..1_000_u32 {
            let subject = i.to_be_bytes();
            let counter = Key::of_subject("account", &subject).fingerprint;
            let name = seal(counter);
            assert!(open(name.as_str()).unwrap() == counter);
            assert!(!name.as_str().contains(&format!("{:016x}", counter.id)));
        }
        let name = seal(Key::of_subject("account", b"user").fingerprint);
        let upper = name.as_str().to_uppercase();
        let (zeros, short) = ("0".repeat(32), &name.as_str()[1..]);
        let others = ["", "login:{192.0.2.1}:address", "ä", &zeros, short, &upper];
        for text in others.into_iter().filter(|text| *text != name.as_str()) {
            assert!(open(text).is_err(), "{text}");
        }
    }
}
