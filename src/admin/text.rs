//! Values in results as text, as events have them.

use serde::{Serialize, Serializer};

use crate::{Address, Period, algorithm::Millis, clock::to_millis, timestamp};

/// RFC 3339, with milliseconds.
pub(crate) fn time<S: Serializer>(time: &Millis, serializer: S) -> Result<S::Ok, S::Error> {
    serializer.serialize_str(&timestamp::to_fixed_text(*time))
}

pub(crate) fn optional_time<S: Serializer>(
    time: &Option<Millis>,
    serializer: S,
) -> Result<S::Ok, S::Error> {
    let text = time.map(timestamp::to_fixed_text);
    text.serialize(serializer)
}

pub(crate) fn optional_address<S: Serializer>(
    address: &Option<Address>,
    serializer: S,
) -> Result<S::Ok, S::Error> {
    address
        .map(|address| address.to_string())
        .serialize(serializer)
}

pub(super) fn addresses<S: Serializer>(
    addresses: &[Address],
    serializer: S,
) -> Result<S::Ok, S::Error> {
    serializer.collect_seq(addresses.iter().map(Address::to_string))
}

/// Milliseconds; forever is `null`.
pub(super) fn period<S: Serializer>(period: &Period, serializer: S) -> Result<S::Ok, S::Error> {
    period.as_duration().map(to_millis).serialize(serializer)
}
