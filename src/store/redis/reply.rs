//! What scripts answer, read strictly: a reply that is not exactly what was promised is an error, not
//! a permission.

use std::time::Duration;

use redis::Value;

use crate::{
    Address, Period, Token,
    algorithm::{Standing, State},
    store::{Standings, StoreError, StoreErrorKind},
};

/// Reads the reply of `reserve.lua` on so many counters. `token` is what was reserved; `None` after a
/// check.
pub(super) fn standings(
    reply: &Value,
    token: Option<Token>,
    counters: usize,
    window: impl Fn(usize) -> Option<u32>,
) -> Result<Standings, StoreError> {
    let values = match reply {
        Value::Array(values) => values,
        Value::BulkString(said) => {
            let is_ours = token.is_some_and(|token| said == token.as_bytes());
            let first = |i| Some(Standing::new(1, window(i)?, State::Clear));
            let standings = is_ours.then(|| (0..counters).map(first).collect());
            return standings
                .flatten()
                .ok_or_else(|| unexpected("reserve.lua", reply));
        }
        _ => return Err(unexpected("reserve.lua", reply)),
    };
    if values.len() == counters + 1 {
        return admitted(values, token, window).ok_or_else(|| unexpected("reserve.lua", reply));
    }
    if values.len() != counters * VALUES {
        return Err(unexpected("reserve.lua", reply));
    }
    let said: Option<Vec<_>> = values
        .chunks_exact(VALUES)
        .map(|values| standing(values, token))
        .collect();
    let said = said.ok_or_else(|| unexpected("reserve.lua", reply))?;
    let standings: Standings = said.iter().map(|(standing, _)| *standing).collect();
    // What was admitted is in every counter that it counts in; what was refused, or was not asked to
    // be admitted, is in none.
    let admitted = token.is_some() && standings.admitted();
    let as_it_should = |(standing, is_in): &(Standing, bool)| match standing.state {
        State::Exempt => !is_in,
        _ => *is_in == admitted,
    };
    match said.iter().all(as_it_should) {
        true => Ok(standings),
        false => Err(unexpected("reserve.lua", reply)),
    }
}

/// The short reply, of windows that admitted the attempt. `window` is how many attempts each holds, if it
/// is one.
fn admitted(
    values: &[Value],
    token: Option<Token>,
    window: impl Fn(usize) -> Option<u32>,
) -> Option<Standings> {
    let [Value::BulkString(said), usages @ ..] = values else {
        return None;
    };
    let standing = |(i, usage): (usize, &Value)| {
        let (Value::Int(usage), limit) = (usage, window(i)?) else {
            return None;
        };
        match u32::try_from(*usage) {
            Ok(usage) => (1..=limit)
                .contains(&usage)
                .then(|| Standing::new(usage, limit, State::Clear)),
            // This many, below -1.
            Err(_) => {
                let usage = u32::try_from(usage.checked_add(1)?.checked_neg()?).ok()?;
                (usage < limit).then(|| Standing::new(usage, limit, State::Exempt))
            }
        }
    };
    let is_ours = token.is_some_and(|token| said == token.as_bytes());
    (is_ours.then(|| usages.iter().enumerate().map(standing).collect()))?
}

/// How many values there are for each counter.
const VALUES: usize = 5;

/// How one counter stands, and whether the attempt is in it.
fn standing(values: &[Value], ours: Option<Token>) -> Option<(Standing, bool)> {
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

/// Reads a list of tokens.
pub(super) fn tokens(reply: &Value) -> Result<Vec<Token>, StoreError> {
    let token = |value: &Value| match value {
        Value::BulkString(bytes) => bytes.as_slice().try_into().ok().map(Token::from_bytes),
        _ => None,
    };
    match reply {
        Value::Array(values) => values.iter().map(token).collect::<Option<_>>(),
        _ => None,
    }
    .ok_or_else(|| unexpected("cleanup.lua", reply))
}

/// Reads a number of counters.
pub(super) fn count(reply: &Value) -> Result<usize, StoreError> {
    let count = match reply {
        Value::Int(n) => usize::try_from(*n).ok(),
        _ => None,
    };
    count.ok_or_else(|| unexpected("a script that changes counters", reply))
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
        format!("redis answered {script} with something else than the script replies: {shown}"),
    )
}

#[cfg(test)]
mod tests {
    use super::*;

    const TOKEN: Token = Token::from_bytes([7; 16]);
    const OURS: Option<&[u8]> = Some(&[7; 16]);
    const EXEMPT: Option<&[u8]> = Some(b"");

    fn counter(usage: i64, limit: i64, token: Option<&[u8]>, reset: i64) -> Vec<Value> {
        let token = token.map_or(Value::Nil, |token| Value::BulkString(token.to_vec()));
        vec![
            Value::Int(usage),
            Value::Int(limit),
            token,
            Value::Int(reset),
            Value::Int(usage * 1000),
        ]
    }

    fn read(values: Vec<Value>, reserved: bool) -> Result<Standings, StoreError> {
        let counters = values.len().div_ceil(VALUES).max(1);
        standings(
            &Value::Array(values),
            reserved.then_some(TOKEN),
            counters,
            |_| Some(5),
        )
    }

    #[test]
    fn what_the_script_says_is_understood() {
        assert!(read(counter(5, 5, OURS, 0), true).unwrap().admitted());
        let both = [counter(1, 5, OURS, 0), counter(2, 5, OURS, 0)].concat();
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
        // Blocked, but not for this caller.
        let both = [counter(1, 5, OURS, 0), counter(5, 5, EXEMPT, 7)].concat();
        assert_eq!(read(both, true).unwrap()[1].state, State::Exempt);
        let both = [counter(1, 5, None, 9), counter(5, 5, EXEMPT, -1)].concat();
        assert_eq!(read(both, true).unwrap()[1].state, State::Exempt);
        assert!(read(counter(1, 5, EXEMPT, 0), true).unwrap().admitted());
    }

    fn short(token: &[u8], usages: &[i64]) -> Value {
        let token = Value::BulkString(token.to_vec());
        let usages = usages.iter().map(|usage| Value::Int(*usage));
        Value::Array([token].into_iter().chain(usages).collect())
    }

    #[test]
    fn windows_that_admit_need_few_words() {
        let windows = |i: usize| Some([25, 5][i]);
        let admitted = standings(&short(&[7; 16], &[2, 5]), Some(TOKEN), 2, windows).unwrap();
        assert_eq!(admitted[0], Standing::new(2, 25, State::Clear));
        assert_eq!(admitted[1], Standing::new(5, 5, State::Clear));

        let exempt = standings(&short(&[7; 16], &[2, -1]), Some(TOKEN), 2, windows).unwrap();
        assert_eq!(exempt[1], Standing::new(0, 5, State::Exempt));
        let exempt = standings(&short(&[7; 16], &[-25, 1]), Some(TOKEN), 2, windows).unwrap();
        assert_eq!(exempt[0], Standing::new(24, 25, State::Exempt));

        // The first attempt in all of them.
        let alone = Value::BulkString(vec![7; 16]);
        let admitted = standings(&alone, Some(TOKEN), 2, windows).unwrap();
        assert_eq!(admitted[0], Standing::new(1, 25, State::Clear));
        assert_eq!(admitted[1], Standing::new(1, 5, State::Clear));
        assert_eq!(admitted.len(), 2);

        let is_none = |reply: &Value, token, counters, windows: fn(usize) -> Option<u32>| {
            let error = standings(reply, token, counters, windows).expect_err("no permission");
            assert_eq!(error.kind(), StoreErrorKind::Protocol);
        };
        for reply in [
            short(&[8; 16], &[2, 5]),
            short(b"", &[2, 5]),
            short(&[7; 16], &[2]),
            short(&[7; 16], &[2, 5, 1]),
            short(&[7; 16], &[0, 5]),
            short(&[7; 16], &[2, 6]),
            short(&[7; 16], &[2, -6]),
            short(&[7; 16], &[2, i64::MIN]),
            short(&[7; 16], &[2, i64::MAX]),
            Value::Array(vec![Value::Int(2); 3]),
            Value::Array(vec![Value::BulkString(vec![7; 16]); 3]),
            Value::BulkString(vec![8; 16]),
            Value::BulkString(vec![7; 15]),
            Value::BulkString(vec![]),
            Value::SimpleString("OK".into()),
        ] {
            is_none(&reply, Some(TOKEN), 2, |i| Some([25, 5][i]));
        }
        // A check, and a counter that is no window.
        is_none(&short(&[7; 16], &[2, 5]), None, 2, |_| Some(5));
        is_none(&alone, None, 2, |_| Some(5));
        for reply in [&short(&[7; 16], &[2, 5]), &alone] {
            is_none(reply, Some(TOKEN), 2, |i| [Some(5), None][i]);
        }
    }

    #[test]
    fn everything_else_is_an_error_and_no_permission() {
        let other = Some(&[8; 16][..]);
        let broken: Vec<Vec<Value>> = vec![
            vec![],
            counter(1, 5, OURS, 0)[..4].to_vec(),
            [counter(1, 5, OURS, 0), vec![Value::Nil]].concat(),
            counter(1, 0, OURS, 0),
            counter(1, -5, OURS, 0),
            counter(-1, 5, OURS, 0),
            counter(1 << 40, 5, OURS, 0),
            counter(1, 5, OURS, 12),
            counter(1, 5, OURS, -1),
            counter(1, 5, other, 0),
            counter(1, 5, None, 0), // refused by nobody
            counter(5, 5, None, -2),
            counter(5, 5, EXEMPT, -2),
            [counter(1, 5, OURS, 0), counter(1, 5, None, 0)].concat(),
            [counter(1, 5, None, 0), counter(1, 5, OURS, 0)].concat(),
            [counter(1, 5, EXEMPT, 0), counter(1, 5, None, 0)].concat(),
            [counter(1, 5, OURS, 0), counter(1, 5, other, 0)].concat(),
            [counter(1, 5, OURS, 0), counter(5, 5, None, 7)].concat(),
            vec![Value::Nil; 5],
            vec![Value::Int(1); 5],
            vec![Value::Okay; 5],
            vec![Value::SimpleString("OK".into()); 5],
            vec![Value::Array(counter(1, 5, OURS, 0))],
        ];
        for values in broken {
            let shown = format!("{values:?}");
            let error = read(values, true).expect_err(&shown);
            assert_eq!(error.kind(), StoreErrorKind::Protocol);
        }
        for reply in [Value::Nil, Value::Okay, Value::Int(1), Value::Boolean(true)] {
            assert!(standings(&reply, Some(TOKEN), 1, |_| Some(5)).is_err());
            assert!(addresses(&reply).is_err());
            assert!(tokens(&reply).is_err());
        }
        // A check that says that something was reserved.
        assert!(read(counter(1, 5, OURS, 0), false).is_err());
        assert!(count(&Value::Int(-1)).is_err());
        assert!(count(&Value::Nil).is_err());
        assert!(addresses(&Value::Array(vec![Value::BulkString(b"nowhere".to_vec())])).is_err());
        let short = Value::Array(vec![Value::BulkString(vec![7; 15])]);
        assert!(tokens(&short).is_err());
    }
}
