//! What scripts answer, read strictly: a reply that is not exactly what was promised is an error, not
//! a permission.

use std::time::Duration;

use redis::Value;

use crate::{
    Address, Limit, Period, Token,
    algorithm::{Standing, State},
    store::{Standings, StoreError, StoreErrorKind},
};

/// Reads the reply of `reserve.lua`. `token` is what was reserved; `None` after a check.
pub(super) fn standings(
    reply: &Value,
    token: Option<Token>,
    limits: &[Limit],
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
        .map(|(counter, limit)| {
            let Limit::SlidingWindow(limit) = limit;
            standing(counter, limit.limit(), token.filter(|_| admitted))
        })
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

#[cfg(test)]
mod tests {
    use super::*;

    const TOKEN: Token = Token::from_bytes([7; 16]);

    fn limits(n: usize) -> Vec<Limit> {
        let limit = Limit::attempts(5).within(Period::hours(1)).build();
        vec![limit.unwrap(); n]
    }

    fn counter(usage: i64, limit: i64, token: Option<&[u8]>, reset: i64) -> Vec<Value> {
        let token = token.map_or(Value::Nil, |token| Value::BulkString(token.to_vec()));
        vec![
            Value::Int(usage),
            Value::Int(limit),
            token,
            Value::Int(reset),
        ]
    }

    fn read(values: Vec<Value>, reserved: bool) -> Result<Standings, StoreError> {
        let n = values.len().div_ceil(4);
        standings(&Value::Array(values), reserved.then_some(TOKEN), &limits(n))
    }

    #[test]
    fn what_the_script_says_is_understood() {
        let ours = Some(&TOKEN.as_bytes()[..]);
        assert!(read(counter(5, 5, ours, 0), true).unwrap().admitted());
        let both = [counter(1, 5, ours, 0), counter(2, 5, ours, 0)].concat();
        assert!(read(both, true).unwrap().admitted());

        let state = |values| read(values, true).unwrap()[0].state;
        let lifts = |millis| Period::Of(Duration::from_millis(millis));
        assert_eq!(state(counter(5, 5, None, 0)), State::Busy);
        assert_eq!(
            state(counter(5, 5, None, 12)),
            State::Blocked { lifts: lifts(12) }
        );
        let lifts = Period::Forever;
        assert_eq!(state(counter(5, 5, None, -1)), State::Blocked { lifts });
        // One that would have admitted, had the other not refused.
        let both = [counter(1, 5, None, 0), counter(5, 5, None, 0)].concat();
        assert_eq!(read(both, true).unwrap()[0].state, State::Clear);
        assert_eq!(
            read(counter(4, 5, None, 0), false).unwrap()[0].state,
            State::Clear
        );
    }

    #[test]
    fn everything_else_is_an_error_and_no_permission() {
        let ours = Some(&TOKEN.as_bytes()[..]);
        let other = Some(&[8; 16][..]);
        let broken: Vec<Vec<Value>> = vec![
            vec![],
            counter(1, 5, ours, 0)[..3].to_vec(),
            [counter(1, 5, ours, 0), vec![Value::Nil]].concat(),
            counter(1, 6, ours, 0),
            counter(-1, 5, ours, 0),
            counter(1 << 40, 5, ours, 0),
            counter(1, 5, ours, 12),
            counter(1, 5, ours, -1),
            counter(1, 5, other, 0),
            counter(1, 5, Some(b""), 0),
            counter(1, 5, None, 0), // refused by nobody
            counter(5, 5, None, -2),
            [counter(1, 5, ours, 0), counter(1, 5, None, 0)].concat(),
            [counter(1, 5, None, 0), counter(1, 5, ours, 0)].concat(),
            [counter(1, 5, ours, 0), counter(1, 5, other, 0)].concat(),
            [counter(1, 5, ours, 0), counter(5, 5, None, 7)].concat(),
            vec![Value::Nil; 4],
            vec![Value::Int(1); 4],
            vec![Value::Okay; 4],
            vec![Value::SimpleString("OK".into()); 4],
            vec![Value::Array(counter(1, 5, ours, 0))],
        ];
        for values in broken {
            let shown = format!("{values:?}");
            let limits = limits(values.len().div_ceil(4).max(1));
            let read = standings(&Value::Array(values), Some(TOKEN), &limits);
            assert_eq!(read.expect_err(&shown).kind(), StoreErrorKind::Protocol);
        }
        for reply in [Value::Nil, Value::Okay, Value::Int(1), Value::Boolean(true)] {
            assert!(standings(&reply, Some(TOKEN), &limits(1)).is_err());
            assert!(addresses(&reply).is_err());
        }
        // A check that says that something was reserved.
        assert!(read(counter(1, 5, ours, 0), false).is_err());
        assert!(count("settle.lua", &Value::Int(-1)).is_err());
        assert!(count("settle.lua", &Value::Nil).is_err());
        assert!(addresses(&Value::Array(vec![Value::BulkString(b"nowhere".to_vec())])).is_err());
    }
}
