//! Replies of scripts that reserve attempts, or read how counters stand.

use redis::Value;

use super::{VALUES, standing, unexpected};
use crate::{
    Token,
    algorithm::{Standing, State},
    store::{ServerId, Standings, StoreError},
};

/// Reads the reply of `reserve.lua`. `token` is what was reserved, `None` after a check; `window` is the
/// limit of a counter that is a sliding window, `is_shadow` whether one is in shadow. With a block comes the server
/// that reports it.
pub(in super::super) fn standings(
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
pub(in super::super) fn restored(reply: &Value) -> Result<Option<ServerId>, StoreError> {
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

#[cfg(test)]
mod tests {
    use std::time::Duration;

    use super::*;
    use crate::{Period, store::StoreErrorKind};

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
            counter(1, 5, None, 0), // no counter refuses
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
        }
        // A check whose reply contains a reserved attempt.
        assert!(read(counter(1, 5, OURS, 0), false).is_err());
    }
}
