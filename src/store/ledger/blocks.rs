//! Entries of the index of blocks, and questions to it.

use std::net::IpAddr;

use super::CounterName;
#[cfg(feature = "memory")]
use super::{MAX_TEXT, check_length};
#[cfg(feature = "memory")]
use crate::store::StoreError;
use crate::{Address, Period, algorithm::Millis};

/// A block to be entered into the index. See [`Ledger::note`](super::Ledger::note).
#[derive(Clone, Copy, Debug)]
#[non_exhaustive]
pub struct BlockNote<'a> {
    /// The counter that is blocked.
    pub counter: &'a CounterName,
    /// The rule that it belongs to.
    pub rule: &'a str,
    /// The time from now until the block lifts. From now, since the store's clock decides.
    pub lifts: Period,
    /// The address or network that the counter belongs to.
    pub address: Option<Address>,
    /// What the counter distinguishes callers by beside the address, as in the subject of a
    /// [key](crate::store::Key) without an address: with it, all blocks of one user are found.
    pub subject: Option<&'a [u8]>,
    /// What the caller wants to be returned with the block, 4 KiB at most. A reader of the store can read it.
    pub text: &'a str,
}

impl<'a> BlockNote<'a> {
    /// A counter of this rule is blocked, and will be for this time.
    #[must_use]
    pub const fn new(counter: &'a CounterName, rule: &'a str, lifts: Period) -> Self {
        Self {
            counter,
            rule,
            lifts,
            address: None,
            subject: None,
            text: "",
        }
    }

    /// The same, to be found by this address or network.
    #[must_use]
    pub const fn at_address(mut self, address: Address) -> Self {
        self.address = Some(address);
        self
    }

    /// The same, to be found by this subject.
    #[must_use]
    pub const fn of_subject(mut self, subject: &'a [u8]) -> Self {
        self.subject = Some(subject);
        self
    }

    /// The same with a text.
    #[must_use]
    pub const fn with_text(mut self, text: &'a str) -> Self {
        self.text = text;
        self
    }

    #[cfg(feature = "memory")]
    pub(crate) fn check(&self) -> Result<(), StoreError> {
        check_length("the text of a block", self.text, MAX_TEXT)
    }
}

/// Which blocks to list. See [`Ledger::blocks`](super::Ledger::blocks).
#[derive(Clone, Copy, Debug)]
#[non_exhaustive]
pub struct BlockQuery<'a> {
    /// Blocks of these rules.
    pub rules: &'a [&'a str],
    /// Only those that were noted with exactly this address or network.
    pub address: Option<Address>,
    /// Only those that were noted with this subject.
    pub subject: Option<&'a [u8]>,
    /// Only those of addresses in this network, given by an address in it and the length of its prefix. In Redis,
    /// an IPv4 network of 24 bits or more is looked up address by address. For any other the index is searched, 5,000
    /// entries at a time, so that a page may be empty and have a next one.
    pub network: Option<(IpAddr, u8)>,
    /// Where to continue: [`BlockPage::next`] of a page of the same query.
    pub after: Option<&'a str>,
    /// How many blocks a page has at most, 1 to 1,000; 100 unless set.
    pub limit: usize,
}

impl<'a> BlockQuery<'a> {
    /// The blocks of these rules.
    #[must_use]
    pub const fn new(rules: &'a [&'a str]) -> Self {
        Self {
            rules,
            address: None,
            subject: None,
            network: None,
            after: None,
            limit: 100,
        }
    }

    /// Only those of this address or network.
    #[must_use]
    pub const fn at_address(mut self, address: Address) -> Self {
        self.address = Some(address);
        self
    }

    /// Only those of this subject.
    #[must_use]
    pub const fn of_subject(mut self, subject: &'a [u8]) -> Self {
        self.subject = Some(subject);
        self
    }

    /// Only those of addresses in the network of this many bits around an address.
    #[must_use]
    pub const fn in_network(mut self, address: IpAddr, prefix: u8) -> Self {
        self.network = Some((address, prefix));
        self
    }

    /// The page after the one that ended with this cursor.
    #[must_use]
    pub const fn after(mut self, cursor: &'a str) -> Self {
        self.after = Some(cursor);
        self
    }

    /// With pages of this many blocks at most.
    #[must_use]
    pub const fn with_limit(mut self, limit: usize) -> Self {
        self.limit = limit;
        self
    }
}

/// A page of the list of blocks.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
#[non_exhaustive]
pub struct BlockPage {
    /// The blocks, those that lift first at the beginning.
    pub blocks: Vec<ListedBlock>,
    /// Where the next page begins; `None` if this is the last one.
    pub next: Option<String>,
    /// When the index was read, in milliseconds since 1970, by the store's clock.
    pub now: Millis,
}

impl BlockPage {
    /// A page of these blocks, which is followed by another one if `next` is given.
    #[must_use]
    pub const fn new(blocks: Vec<ListedBlock>, next: Option<String>, now: Millis) -> Self {
        Self { blocks, next, now }
    }
}

/// A block according to the index: a hint, to be verified.
#[derive(Clone, Debug, PartialEq, Eq)]
#[non_exhaustive]
pub struct ListedBlock {
    /// The counter that was blocked.
    pub counter: CounterName,
    /// The rule that it belongs to.
    pub rule: String,
    /// When the block lifts, in milliseconds since 1970; `None` for never.
    pub lifts_at: Option<Millis>,
    /// The address or network that the counter belongs to.
    pub address: Option<Address>,
    /// What stands for the subject in the store, if the block was noted with one. It contains no user.
    pub subject: Option<String>,
    /// What the block was noted with.
    pub text: String,
    /// Changes when the entry is renewed.
    #[cfg(feature = "memory")]
    pub(crate) revision: u64,
}

impl ListedBlock {
    /// A block that lifts then.
    #[must_use]
    pub fn new(
        counter: CounterName,
        rule: impl Into<String>,
        lifts_at: Option<Millis>,
        text: impl Into<String>,
    ) -> Self {
        Self {
            counter,
            rule: rule.into(),
            lifts_at,
            address: None,
            subject: None,
            text: text.into(),
            #[cfg(feature = "memory")]
            revision: 0,
        }
    }

    #[cfg(feature = "memory")]
    pub(crate) const fn with_revision(mut self, revision: u64) -> Self {
        self.revision = revision;
        self
    }

    /// The same for an address or network, if there is one.
    #[must_use]
    pub const fn with_address(mut self, address: Option<Address>) -> Self {
        self.address = address;
        self
    }

    /// The same with what stands for the subject, if there is one.
    #[must_use]
    pub fn with_subject(mut self, subject: Option<String>) -> Self {
        self.subject = subject;
        self
    }
}

/// What remains to be checked of the entries that an index returns.
#[cfg(feature = "memory")]
#[derive(Clone, Debug)]
pub(crate) struct Filter {
    rules: Vec<Box<str>>,
    address: Option<Address>,
    network: Option<(IpAddr, u8)>,
}

#[cfg(feature = "memory")]
impl Filter {
    pub(crate) fn new(query: &BlockQuery<'_>) -> Self {
        Self {
            rules: query.rules.iter().map(|rule| (*rule).into()).collect(),
            address: query.address,
            network: query.network,
        }
    }

    pub(crate) fn matches(&self, rule: &str, address: Option<Address>) -> bool {
        self.rules.iter().any(|wanted| **wanted == *rule)
            && (self.address.is_none() || self.address == address)
            && (self.network)
                .is_none_or(|network| address.is_some_and(|address| is_within(address, network)))
    }
}

/// Whether an address, or all of a network, is in another network.
#[cfg(feature = "memory")]
fn is_within(address: Address, (network, prefix): (IpAddr, u8)) -> bool {
    let differ = match (address.ip(), network) {
        (IpAddr::V4(ip), IpAddr::V4(of)) => u128::from(ip.to_bits() ^ of.to_bits()) << 96,
        (IpAddr::V6(ip), IpAddr::V6(of)) => ip.to_bits() ^ of.to_bits(),
        _ => return false,
    };
    address.prefix() >= prefix && differ.leading_zeros() >= prefix.into()
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn networks_contain_what_begins_like_them() {
        for (address, network, prefix, expected) in [
            ("192.0.2.1", "192.0.2.0", 24, true),
            ("192.0.2.1", "192.0.3.0", 24, false),
            ("192.0.2.1", "192.0.2.1", 32, true),
            ("192.0.2.1", "0.0.0.0", 0, true),
            ("192.0.2.1", "::", 0, false),
            ("2001:db8:1:2::/64", "2001:db8:1::", 48, true),
            ("2001:db8:1:2::/64", "2001:db8:2::", 48, false),
            // A network is not in one that is smaller.
            ("2001:db8:1::/48", "2001:db8:1::", 64, false),
            ("2001:db8:1::/48", "2001:db8:1::", 48, true),
        ] {
            let network = (network.parse().unwrap(), prefix);
            let is = is_within(address.parse().unwrap(), network);
            assert_eq!(is, expected, "{address} in {network:?}");
        }
    }
}
