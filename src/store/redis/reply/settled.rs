//! Replies of scripts that settle attempts.

use redis::Value;

use super::{VALUES, standing, unexpected};
use crate::{
    Token,
    algorithm::Standing,
    store::{Settled, Settlement, StoreError},
};

/// What left this many counters that were cleaned up, and the positions of those whose blocks ended.
pub(in super::super) fn cleaned_up(
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
pub(in super::super) fn settled(
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

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn what_is_not_a_valid_reply_is_an_error() {
        for reply in [Value::Nil, Value::Okay, Value::Int(1), Value::Boolean(true)] {
            assert!(cleaned_up(&reply, 2).is_err());
        }
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
