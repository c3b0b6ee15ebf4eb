//! What scripts answer, read strictly: a reply that is not exactly what was promised is an error, not
//! a permission.

use std::time::Duration;

use redis::Value;

use crate::{
    Address, Period, Token,
    algorithm::{Standing, State},
    store::{Standings, StoreError, StoreErrorKind},
};

/// Reads the reply of `reserve.lua`. `token` is what was reserved; `None` after a check.
pub(super) fn standings(
    reply: &Value,
    token: Option<Token>,
    limits: &[u32],
) -> Result<Standings, StoreError> {
    let Value::Array(values) = reply else {
        return Err(unexpected("reserve.lua", reply));
    };
    if values.len() != limits.len() * 4 {
        return Err(unexpected("reserve.lua", reply));
    }
    let admitted = token.is_some() && matches!(values.get(2), Some(Value::BulkString(_)));
    let standings: Option<Standings> = values
        .chunks_exact(4)
        .zip(limits)
        .map(|(counter, limit)| standing(counter, *limit, token.filter(|_| admitted)))
        .collect();
    match standings {
        // What was admitted was admitted by all; what was refused was refused by one at least.
        Some(standings) if admitted || token.is_none() || !standings.admitted() => Ok(standings),
        _ => Err(unexpected("reserve.lua", reply)),
    }
}

/// One counter's four values; `token` must be there exactly if the attempt was admitted.
fn standing(values: &[Value], limit: u32, admitted: Option<Token>) -> Option<Standing> {
    let [
        Value::Int(usage),
        Value::Int(said),
        token,
        Value::Int(reset),
    ] = values
    else {
        return None;
    };
    let usage = u32::try_from(*usage).ok()?;
    let state = match (*reset, token, admitted) {
        (0, Value::BulkString(token), Some(ours)) if token == ours.as_bytes() => State::Clear,
        (_, _, Some(_)) => return None,
        (0, Value::Nil, None) if usage < limit => State::Clear,
        (0, Value::Nil, None) => State::Busy,
        (-1, Value::Nil, None) => State::Blocked {
            lifts: Period::Forever,
        },
        (reset, Value::Nil, None) => State::Blocked {
            lifts: Period::Of(Duration::from_millis(u64::try_from(reset).ok()?)),
        },
        _ => return None,
    };
    (i64::from(limit) == *said).then_some(Standing {
        usage,
        limit,
        state,
    })
}

/// Reads a number of counters or attempts.
pub(super) fn count(script: &str, reply: &Value) -> Result<usize, StoreError> {
    match reply {
        Value::Int(n) => usize::try_from(*n).map_err(|_| unexpected(script, reply)),
        _ => Err(unexpected(script, reply)),
    }
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

fn unexpected(script: &str, reply: &Value) -> StoreError {
    let mut shown = format!("{reply:?}");
    if let Some((end, _)) = shown.char_indices().nth(200) {
        shown.truncate(end);
        shown.push('…');
    }
    StoreError::new(
        StoreErrorKind::Protocol,
        format!("redis answered {script} with something else than the script replies: {shown}"),
    )
}
