//! Counters in Redis by name: what they hold, and how they are cleared.

use redis::Value;

use super::{join_all, summary};
use crate::{
    Address, AttemptId, Limit, Token,
    algorithm::Millis,
    store::{
        Contents, CounterName, KeptAttempt, Key, LastBlock, StoreError, StoreErrorKind,
        StoreFuture, Summary,
        ledger::MAX_ATTEMPTS,
        redis::{
            backend::Backend,
            counters::Call,
            reply::{self, unexpected},
            scripts::{Kind, or_empty},
        },
    },
};

/// How many attempts the counters of one script may hold together, by their limits: it must not run for long.
const BATCH: usize = 2_000;
/// No time is later: up to here, a double has half milliseconds.
const MAX_TIME: f64 = (1_u64 << 52) as f64;
/// How many calls are under way at once.
const CONCURRENT: usize = 64;

/// Counters with one hash tag, by their positions in a call.
struct Batch {
    positions: Vec<usize>,
    call: Call,
}

impl Backend {
    /// Divides counters by hash tag, since a cluster keeps only those with one tag together.
    fn batches(
        &self,
        kind: Kind,
        counters: &[(&CounterName, &Limit)],
        argument: Option<usize>,
    ) -> Result<Vec<Batch>, StoreError> {
        let mut by_tag = Vec::new();
        for (position, (name, _)) in counters.iter().enumerate() {
            by_tag.push((self.scheme().check(name)?, position));
        }
        by_tag.sort_unstable();
        let mut weight = 0;
        let groups = by_tag.chunk_by(|(tag, at), (next_tag, _)| {
            let attempts = counters[*at].1.attempts as usize;
            weight += attempts.clamp(20, MAX_ATTEMPTS);
            let is_together = tag == next_tag && weight < BATCH;
            if !is_together {
                weight = 0;
            }
            is_together
        });
        let batch = |batch: &[(&str, usize)]| {
            let positions: Vec<_> = batch.iter().map(|(_, position)| *position).collect();
            let of = |position: &usize| counters[*position];
            let program = self.programs().generic(positions.iter().map(|at| of(at).1));
            let script = program.script(kind);
            let names = positions.iter().map(|at| of(at).0.as_str().as_bytes());
            let mut command = script.call(names);
            or_empty(&mut command, self.now());
            if let Some(argument) = argument {
                command.arg(argument);
            }
            program.finish(&mut command);
            let call = Call { command, script };
            Batch { positions, call }
        };
        Ok(groups.map(batch).collect())
    }

    /// Sends all batches, and puts what `read` makes of each reply in the order of the counters. All are sent,
    /// also if one fails.
    async fn ask_batches<T>(
        &self,
        batches: Vec<Batch>,
        script: &str,
        read: impl Fn(&Value, &[usize]) -> Option<Vec<T>>,
    ) -> Result<Vec<T>, StoreError> {
        let (mut results, mut failed) = (Vec::new(), None);
        let mut batches = batches.into_iter();
        loop {
            let (mut positions, mut asked) = (Vec::new(), Vec::new());
            for batch in batches.by_ref().take(CONCURRENT) {
                positions.push(batch.positions);
                asked.push(Box::pin(self.ask_script(batch.call)) as _);
            }
            if asked.is_empty() {
                break;
            }
            for (reply, positions) in join_all(asked).await.into_iter().zip(positions) {
                let read = reply.and_then(|reply| {
                    let read =
                        read(&reply, &positions).filter(|read| read.len() == positions.len());
                    read.ok_or_else(|| unexpected(script, &reply))
                });
                match read {
                    Ok(read) => results.extend(positions.into_iter().zip(read)),
                    Err(error) => failed = failed.or(Some(error)),
                }
            }
        }
        if let Some(error) = failed {
            return Err(error);
        }
        results.sort_unstable_by_key(|(position, _)| *position);
        Ok(results.into_iter().map(|(_, result)| result).collect())
    }

    pub(super) fn inspect_counters(
        &self,
        counters: &[(&CounterName, &Limit)],
    ) -> StoreFuture<Vec<Contents>> {
        let batches = match self.batches(Kind::Inspect, counters, Some(MAX_ATTEMPTS)) {
            Ok(batches) => batches,
            Err(error) => return StoreFuture::ready(Err(error)),
        };
        let limits: Vec<Limit> = counters.iter().map(|(_, limit)| (*limit).clone()).collect();
        let backend = self.clone();
        StoreFuture::pending(async move {
            let read = |reply: &Value, positions: &[usize]| {
                let Value::Array(values) = reply else {
                    return None;
                };
                let (Value::Int(now), values) = values.split_first()? else {
                    return None;
                };
                let now = Millis::try_from(*now).ok()?;
                let counters = values.iter().zip(positions);
                let counters = counters.map(|(value, at)| contents(value, &limits[*at], now));
                counters.collect()
            };
            backend.ask_batches(batches, "inspect.lua", read).await
        })
    }

    pub(super) fn clear_counters(
        &self,
        counters: &[(&CounterName, &Limit)],
    ) -> StoreFuture<Vec<bool>> {
        let batches = match self.batches(Kind::Clear, counters, None) {
            Ok(batches) => batches,
            Err(error) => return StoreFuture::ready(Err(error)),
        };
        let backend = self.clone();
        StoreFuture::pending(async move {
            let was_blocked = |value: &Value| match value {
                Value::Int(0) => Some(false),
                Value::Int(1) => Some(true),
                _ => None,
            };
            let read = |reply: &Value, _: &[usize]| match reply {
                Value::Array(values) => values.iter().map(was_blocked).collect(),
                _ => None,
            };
            backend.ask_batches(batches, "clear.lua", read).await
        })
    }

    pub(super) fn forget_known(
        &self,
        key: &Key<'_>,
        address: Option<Address>,
    ) -> StoreFuture<usize> {
        let name = self.scheme().name(key);
        let command = match address {
            Some(address) => {
                let mut command = redis::cmd("ZREM");
                command.arg(name).arg(address.to_string());
                command
            }
            None => {
                let mut command = redis::cmd("ZREMRANGEBYRANK");
                command.arg(name).arg(0).arg(-1);
                command
            }
        };
        let backend = self.clone();
        StoreFuture::pending(async move {
            let forgotten = match backend.send(command).await? {
                Value::Int(forgotten) => usize::try_from(forgotten).ok(),
                _ => None,
            };
            let message = "Redis did not reply how many addresses it has forgotten";
            forgotten.ok_or_else(|| StoreError::new(StoreErrorKind::Protocol, message))
        })
    }
}

/// Reads what one counter holds.
fn contents(value: &Value, limit: &Limit, now: Millis) -> Option<Contents> {
    let Value::Array(values) = value else {
        return None;
    };
    let ([usage, allowed, reset, rate, Value::Int(kept), past], attempts) =
        values.split_first_chunk()?
    else {
        return None;
    };
    let standing = [usage, allowed, &Value::Nil, reset, rate].map(Value::clone);
    let (standing, _) = reply::standing(&standing, None)?;
    let past = match past {
        Value::BulkString(text) => std::str::from_utf8(text).ok(),
        _ => None,
    };
    let amount = past.and_then(|text| summary::read(text, limit, now));
    let amount = amount.map(|amount| {
        let block = amount.block.map(|(nth, began)| LastBlock::new(nth, began));
        Summary::new(amount.thousandths, block, !amount.is_mixed)
    });
    let attempts = attempts.chunks(2).map(|values| attempt(values, now));
    let contents = Contents::new(standing, now).with_summary(amount);
    Some(contents.with_attempts(
        attempts.collect::<Option<_>>()?,
        usize::try_from(*kept).ok()?,
    ))
}

/// Reads an attempt: its token, behind which there is a suffix if the user was not spelled in the normal form, and
/// its time, less half a millisecond if the spelling is not known yet.
fn attempt(values: &[Value], now: Millis) -> Option<KeptAttempt> {
    let [Value::BulkString(member), Value::BulkString(at)] = values else {
        return None;
    };
    let (token, spelling) = member.split_first_chunk::<16>()?;
    let score: f64 = std::str::from_utf8(at).ok()?.parse().ok()?;
    if !(0.0..MAX_TIME).contains(&score) {
        return None;
    }
    let (at, is_pending) = (score.ceil() as Millis, score.fract() != 0.0);
    let id = AttemptId::of(Token::from_bytes(*token).origin());
    let is_normal_form = spelling.is_empty() && !is_pending;
    Some(KeptAttempt::new(id, at, now, is_normal_form))
}
