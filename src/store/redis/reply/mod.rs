//! Reads the replies of scripts strictly: what is not exactly a valid reply is an error, not a permission.

mod reserved;
mod settled;

use std::time::Duration;

use redis::Value;

pub(super) use self::{
    reserved::{restored, standings},
    settled::{cleaned_up, settled},
};
use crate::{
    Address, Period, Token,
    algorithm::{Standing, State},
    store::{StoreError, StoreErrorKind},
};

/// The number of values for each counter.
const VALUES: usize = 5;

/// Reads how one counter stands, and whether the attempt is in it.
pub(super) fn standing(values: &[Value], ours: Option<Token>) -> Option<(Standing, bool)> {
    let [
        Value::Int(usage),
        Value::Int(limit),
        token,
        Value::Int(reset),
        Value::Int(thousandths),
    ] = values
    else {
        return None;
    };
    let usage = u32::try_from(*usage).ok()?;
    let limit = u32::try_from(*limit).ok().filter(|limit| *limit > 0)?;
    let is_in = match (token, ours) {
        (Value::BulkString(token), _) if token.is_empty() => None,
        (Value::BulkString(token), Some(ours)) if token == ours.as_bytes() => Some(true),
        (Value::Nil, _) => Some(false),
        _ => return None,
    };
    let state = match (is_in, *reset) {
        (None, -1..) => State::Exempt,
        (Some(true), 0) => State::Clear,
        (Some(false), 0) if usage < limit => State::Clear,
        (Some(false), 0) => State::Busy,
        (Some(false), -1) => State::Blocked {
            lifts: Period::Forever,
        },
        (Some(false), 1..) => State::Blocked {
            lifts: Period::Of(Duration::from_millis(reset.unsigned_abs())),
        },
        _ => return None,
    };
    let standing = Standing {
        usage,
        limit,
        thousandths: u64::try_from(*thousandths).ok()?,
        state,
    };
    Some((standing, is_in == Some(true)))
}

/// Reads a list of addresses.
pub(super) fn addresses(reply: &Value) -> Result<Vec<Address>, StoreError> {
    let address = |value: &Value| match value {
        Value::BulkString(text) => std::str::from_utf8(text).ok()?.parse().ok(),
        _ => None,
    };
    match reply {
        Value::Array(values) => values.iter().map(address).collect::<Option<_>>(),
        _ => None,
    }
    .ok_or_else(|| unexpected("known_addresses.lua", reply))
}

pub(super) fn unexpected(script: &str, reply: &Value) -> StoreError {
    let mut shown = format!("{reply:?}");
    if let Some((end, _)) = shown.char_indices().nth(200) {
        shown.truncate(end);
        shown.push('…');
    }
    StoreError::new(
        StoreErrorKind::Protocol,
        format!("unexpected reply of {script}: {shown}"),
    )
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn what_is_no_list_of_addresses_is_an_error() {
        let nowhere = Value::Array(vec![Value::BulkString(b"nowhere".to_vec())]);
        for reply in [
            Value::Nil,
            Value::Okay,
            Value::Int(1),
            Value::Boolean(true),
            nowhere,
        ] {
            assert!(addresses(&reply).is_err());
        }
    }
}
