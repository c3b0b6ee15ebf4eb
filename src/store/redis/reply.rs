//! Reads the replies of scripts strictly: what is not exactly a valid reply is an error, not a permission.

use std::time::Duration;

use redis::Value;

use crate::{
    Address, Period, Token,
    algorithm::{Standing, State},
    store::{ServerId, Settled, Settlement, Standings, StoreError, StoreErrorKind},
};

/// Reads the reply of `reserve.lua`. `token` is what was reserved, `None` after a check; `window` is the
/// limit of a counter that is a sliding window, `is_shadow` whether one is in shadow. With a block comes the server
/// that reports it.
pub(super) fn standings(
    reply: &Value,
    token: Option<Token>,
    counters: usize,
    window: impl Fn(usize) -> Option<u32>,
    is_shadow: impl Fn(usize) -> bool,
) -> Result<(Standings, Option<ServerId>), StoreError> {
    let values = match reply {
        Value::BulkString(text) => {
            let standings = token.and_then(|token| admitted(text, token, counters, window));
            let standings = standings.map(|standings| (standings, None));
            return standings.ok_or_else(|| unexpected("reserve.lua", reply));
        }
        Value::Array(values) => values,
        _ => return Err(unexpected("reserve.lua", reply)),
    };
    let (each, server) = match values.split_at_checked(counters * VALUES) {
        Some((each, [])) => (each, None),
        Some((each, [value])) => match server_id(value) {
            Some(server) => (each, Some(server)),
            None => return Err(unexpected("reserve.lua", reply)),
        },
        _ => return Err(unexpected("reserve.lua", reply)),
    };
    let read = each.chunks_exact(VALUES).enumerate().map(|(i, values)| {
        let (standing, is_in) = standing(values, token)?;
        let standing = if is_shadow(i) {
            standing.in_shadow()
        } else {
            standing
        };
        Some((standing, is_in))
    });
    let read: Option<Vec<_>> = read.collect();
    let read = read.ok_or_else(|| unexpected("reserve.lua", reply))?;
    let standings: Standings = read.iter().map(|(standing, _)| *standing).collect();
    // An admitted attempt is in every counter in which it counts; any other is in none.
    let admitted = token.is_some() && standings.admitted();
    let is_consistent = |(standing, is_in): &(Standing, bool)| match standing.state {
        State::Exempt | State::Shadowed { .. } => !is_in,
        _ => *is_in == admitted,
    };
    if read.iter().all(is_consistent) && !(admitted && server.is_some()) {
        Ok((standings, server))
    } else {
        Err(unexpected("reserve.lua", reply))
    }
}

/// Reads a server's run id.
fn server_id(value: &Value) -> Option<ServerId> {
    match value {
        Value::BulkString(id) if id.iter().all(u8::is_ascii_hexdigit) => {
            id.as_slice().try_into().ok()
        }
        _ => None,
    }
}

/// Reads the reply of `restore.lua`: the server on which the counter is blocked now.
pub(super) fn restored(reply: &Value) -> Result<Option<ServerId>, StoreError> {
    match reply {
        Value::BulkString(id) if id.is_empty() => Ok(None),
        value => {
            let server = server_id(value).map(Some);
            server.ok_or_else(|| unexpected("restore.lua", reply))
        }
    }
}

/// Reads the short reply, of windows that admitted the attempt.
fn admitted(
    text: &[u8],
    token: Token,
    counters: usize,
    window: impl Fn(usize) -> Option<u32>,
) -> Option<Standings> {
    let usages = text.strip_prefix(token.as_bytes())?;
    if usages.is_empty() {
        let first = |i| Some(Standing::new(1, window(i)?, State::Clear));
        return (0..counters).map(first).collect();
    }
    let usages = std::str::from_utf8(usages.strip_prefix(b" ")?).ok()?;
    let standing = |(i, usage): (usize, &str)| {
        let (usage, limit) = (usage.parse::<i64>().ok()?, window(i)?);
        match u32::try_from(usage) {
            Ok(usage) => (1..=limit)
                .contains(&usage)
                .then(|| Standing::new(usage, limit, State::Clear)),
            // -1 less the usage of an exempt counter.
            Err(_) => {
                let usage = u32::try_from(usage.checked_add(1)?.checked_neg()?).ok()?;
                (usage < limit).then(|| Standing::new(usage, limit, State::Exempt))
            }
        }
    };
    let standings: Option<Standings> = usages.split(' ').enumerate().map(standing).collect();
    standings.filter(|standings| standings.len() == counters)
}

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

/// What left this many counters that were cleaned up, and the positions of those whose blocks ended.
pub(super) fn cleaned_up(
    reply: &Value,
    counters: usize,
) -> Result<(Vec<Token>, Vec<usize>), StoreError> {
    let unexpected = || unexpected("cleanup.lua", reply);
    let Value::Array(values) = reply else {
        return Err(unexpected());
    };
    let (tokens, lifted) = match values.split_last() {
        Some((Value::Array(lifted), tokens)) => (tokens, &**lifted),
        _ => (&**values, &[][..]),
    };
    let token = |value: &Value| match value {
        Value::BulkString(bytes) => bytes.as_slice().try_into().ok().map(Token::from_bytes),
        _ => None,
    };
    let tokens = tokens.iter().map(token).collect::<Option<_>>();
    (tokens.zip(positions(lifted, counters))).ok_or_else(unexpected)
}

/// Reads the reply of a script that settles attempts in this many counters: failures begin blocks, and others end
/// them.
pub(super) fn settled(
    reply: &Value,
    counters: usize,
    settlement: Settlement,
) -> Result<Settled, StoreError> {
    let changed = |n: i64| usize::try_from(n).ok().filter(|n| *n <= counters);
    let settled = match reply {
        Value::Int(n) => changed(*n).map(Settled::changed),
        Value::Array(values) => match values.split_first() {
            Some((_, [])) => None,
            Some((Value::Int(n), blocks)) => {
                changed(*n).map(Settled::changed).and_then(|settled| {
                    Some(match settlement {
                        Settlement::Canceled => settled.with_lifted(positions(blocks, counters)?),
                        _ => settled.with_began(began(blocks, counters)?),
                    })
                })
            }
            _ => None,
        },
        _ => None,
    };
    settled.ok_or_else(|| unexpected("a script that changes counters", reply))
}

/// Reads positions of counters.
fn positions(values: &[Value], counters: usize) -> Option<Vec<usize>> {
    let position = |value: &Value| match value {
        Value::Int(i) => usize::try_from(*i).ok().filter(|i| *i < counters),
        _ => None,
    };
    values.iter().map(position).collect()
}

/// Reads the blocks that a failure began.
fn began(values: &[Value], counters: usize) -> Option<Vec<(usize, Standing)>> {
    let chunks = values.chunks_exact(VALUES);
    if !chunks.remainder().is_empty() {
        return None;
    }
    let block = |values: &[Value]| {
        let [Value::Int(position), usage, limit, reset, rate] = values else {
            return None;
        };
        let position = usize::try_from(*position).ok().filter(|i| *i < counters)?;
        let values = [usage, limit, &Value::Nil, reset, rate].map(Value::clone);
        let (standing, _) = standing(&values, None)?;
        standing.is_blocked().then_some((position, standing))
    };
    chunks.map(block).collect()
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
        let counters = (values.len() / VALUES).max(1);
        let token = reserved.then_some(TOKEN);
        let read = standings(
            &Value::Array(values),
            token,
            counters,
            |_| Some(5),
            |_| false,
        );
        read.map(|(standings, _)| standings)
    }

    #[test]
    fn valid_replies_are_read() {
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

    #[test]
    fn the_server_that_reports_a_block_is_read() {
        let id = |text: &str| Value::BulkString(text.as_bytes().to_vec());
        let blocked = || counter(5, 5, None, 12);
        let read = |last: Value, mut values: Vec<Value>| {
            values.push(last);
            let read = standings(
                &Value::Array(values),
                Some(TOKEN),
                1,
                |_| Some(5),
                |_| false,
            );
            read.map(|(_, server)| server)
        };
        let hex = "0123456789abcdef0123456789abcdef01234567";
        let server = read(id(hex), blocked()).unwrap();
        assert_eq!(server.unwrap(), hex.as_bytes());
        for last in [
            id(""),
            id(&hex[1..]),
            id(&hex.replace('a', "x")),
            Value::Nil,
        ] {
            assert!(read(last.clone(), blocked()).is_err());
            assert_eq!(restored(&last).is_err(), last != id(""));
        }
        assert!(read(id(hex), counter(1, 5, OURS, 0)).is_err());
        assert_eq!(restored(&id(hex)).unwrap(), server);
    }

    fn short(token: &[u8], usages: &str) -> Value {
        Value::BulkString([token, usages.as_bytes()].concat())
    }

    #[test]
    fn short_replies_are_read() {
        let windows = |i: usize| [25, 5].get(i).copied();
        let read = |usages| {
            let reply = short(&[7; 16], usages);
            standings(&reply, Some(TOKEN), 2, windows, |_| false)
                .unwrap()
                .0
        };
        let standing = |usage, limit, state| Standing::new(usage, limit, state);
        for (usages, first, second) in [
            (
                "",
                standing(1, 25, State::Clear),
                standing(1, 5, State::Clear),
            ),
            (
                " 2 5",
                standing(2, 25, State::Clear),
                standing(5, 5, State::Clear),
            ),
            (
                " 2 -1",
                standing(2, 25, State::Clear),
                standing(0, 5, State::Exempt),
            ),
            (
                " -25 1",
                standing(24, 25, State::Exempt),
                standing(1, 5, State::Clear),
            ),
        ] {
            assert_eq!(read(usages)[..], [first, second], "{usages}");
        }

        let fails = |reply: &Value, token, windows: fn(usize) -> Option<u32>| {
            let error = standings(reply, token, 2, windows, |_| false).expect_err("no permission");
            assert_eq!(error.kind(), StoreErrorKind::Protocol);
        };
        let windows = |i: usize| [25, 5].get(i).copied();
        for usages in [
            " ",
            " 2",
            " 2 5 1",
            " 0 5",
            " 2 6",
            " 2 -6",
            " 2 x",
            "2 5",
            " 2 5 ",
            " 2  5",
            " 2 \u{665}",
            " 2 -9223372036854775808",
            " 2 9223372036854775807",
            " 2 9223372036854775808",
        ] {
            fails(&short(&[7; 16], usages), Some(TOKEN), windows);
        }
        for token in [&[8; 16][..], &[7; 15], b""] {
            fails(&short(token, " 2 5"), Some(TOKEN), windows);
            fails(&short(token, ""), Some(TOKEN), windows);
        }
        fails(&Value::SimpleString("OK".into()), Some(TOKEN), windows);
        for usages in ["", " 2 5"] {
            let reply = short(&[7; 16], usages);
            // A check, and a counter that is no window.
            fails(&reply, None, windows);
            fails(&reply, Some(TOKEN), |i| [Some(5), None][i]);
        }
    }

    #[test]
    fn anything_else_is_an_error() {
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
            assert!(standings(&reply, Some(TOKEN), 1, |_| Some(5), |_| false).is_err());
            assert!(addresses(&reply).is_err());
            assert!(cleaned_up(&reply, 2).is_err());
        }
        // A check that says that something was reserved.
        assert!(read(counter(1, 5, OURS, 0), false).is_err());
        let failed = |reply: Value| settled(&reply, 2, Settlement::Failed);
        assert!(failed(Value::Int(-1)).is_err());
        assert!(failed(Value::Int(3)).is_err());
        assert!(failed(Value::Nil).is_err());
        let blocked = [1, 1, 5, 5, 1000, 5000].map(Value::Int);
        assert_eq!(
            failed(Value::Array(blocked.to_vec())).unwrap().began.len(),
            1
        );
        for (i, wrong) in [(0, -1), (1, 2), (2, -1), (3, 0), (4, 0), (4, -2), (5, -1)] {
            let mut values = blocked.to_vec();
            values[i] = Value::Int(wrong);
            assert!(failed(Value::Array(values)).is_err(), "{i}: {wrong}");
        }
        for len in [0, 1, 5] {
            assert!(failed(Value::Array(blocked[..len].to_vec())).is_err());
        }
        assert!(addresses(&Value::Array(vec![Value::BulkString(b"nowhere".to_vec())])).is_err());
        let short = Value::Array(vec![Value::BulkString(vec![7; 15])]);
        assert!(cleaned_up(&short, 2).is_err());
        // Positions of counters that there are not, and what is no position.
        let lifted = |values: &[Value]| {
            let reply = Value::Array(values.to_vec());
            let cleaned_up = cleaned_up(&Value::Array(vec![reply.clone()]), 2);
            let counted = [&[Value::Int(1)], values].concat();
            let canceled = settled(&Value::Array(counted), 2, Settlement::Canceled);
            (
                cleaned_up.ok().map(|(_, lifted)| lifted),
                canceled.ok().map(|settled| settled.lifted),
            )
        };
        assert_eq!(lifted(&[Value::Int(1)]), (Some(vec![1]), Some(vec![1])));
        for wrong in [Value::Int(2), Value::Int(-1), Value::Nil, Value::Okay] {
            assert_eq!(lifted(&[wrong]), (None, None));
        }
    }
}
