//! What an index holds of a block: `revision address subject length rule text`, readable with `redis-cli`.
//!
//! Each note has a revision of its own, the same in every index, by which an entry is recognized that was renewed.

use crate::{
    Address, Token,
    algorithm::Millis,
    store::{BlockNote, CounterName, ListedBlock},
};

/// In place of an address or a subject that a block does not have.
const NONE: &str = "-";

/// Writes the record of a block. `subject` is the digest of its subject.
pub(super) fn write(note: &BlockNote<'_>, subject: Option<&str>) -> String {
    let address = note.address.map(|address| address.to_string());
    let (rule, text) = (note.rule, note.text);
    let random = u128::from_be_bytes(*Token::new().as_bytes());
    format!(
        "{} {} {} {} {rule} {text}",
        revision((random >> 64) as u64),
        address.as_deref().unwrap_or(NONE),
        subject.unwrap_or(NONE),
        rule.len()
    )
}

/// What the record of this revision begins with.
pub(super) fn revision(revision: u64) -> String {
    format!("{revision:016x}")
}

/// Reads a record; `None` if it is not one.
pub(super) fn read(
    counter: CounterName,
    lifts_at: Option<Millis>,
    record: &str,
) -> Option<ListedBlock> {
    let mut parts = record.splitn(5, ' ');
    let mut part = || parts.next();
    let revision = u64::from_str_radix(part()?, 16).ok()?;
    let (address, subject, length, rest) = (part()?, part()?, part()?, part()?);
    let address = match address {
        NONE => None,
        address => Some(address.parse::<Address>().ok()?),
    };
    let (rule, rest) = rest.split_at_checked(length.parse().ok()?)?;
    let text = rest.strip_prefix(' ')?;
    let block = ListedBlock::new(counter, rule, lifts_at, text).with_address(address);
    let block = block.with_subject((subject != NONE).then(|| subject.to_owned()));
    Some(block.with_revision(revision))
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::Period;

    #[test]
    fn records_are_read_as_they_were_written() {
        let counter = CounterName::new("counter");
        let addresses = [None, Some("192.0.2.1"), Some("2001:db8::/64")];
        for address in addresses.map(|text| text.map(|text| text.parse::<Address>().unwrap())) {
            for subject in [None, Some("0123")] {
                for rule in ["address", "", "a b", "ü 7"] {
                    for text in ["", " ", "{\"user\": \"a\\nb\"}\n", "- - 3"] {
                        let mut note = BlockNote::new(&counter, rule, Period::Forever);
                        (note.address, note.text) = (address, text);
                        let read = read(counter.clone(), Some(7), &write(&note, subject)).unwrap();
                        assert_eq!((read.address, read.subject.as_deref()), (address, subject));
                        assert_eq!((&*read.rule, &*read.text), (rule, text));
                    }
                }
            }
        }
        for record in [
            "",
            "0",
            "0 - - 3 ab",
            "0 - - 9 rule text",
            "0 - - x rule t",
            "0 x - 0  t",
            "0 - - 1 ü t",
            "x - - 1 r t",
        ] {
            assert_eq!(read(counter.clone(), None, record), None, "{record}");
        }
    }
}
