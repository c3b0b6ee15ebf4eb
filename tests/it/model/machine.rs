//! The state machine alone, and standings in the oracle's terms.

use std::collections::HashMap;

use proptest::prelude::*;
use tower_login_rate_limit::{
    __private::{Counter, Spelling},
    Limit, Period, Token,
    algorithm::{Standing, State},
};

use crate::support::oracle::{Answer, Verdict};

/// Whether the state machine and the oracle agree, where there is no exception. The machine has no
/// shadows: it reports that a counter refuses.
pub fn agree(machine: &[Option<Standing>], expected: &[Answer]) -> Result<(), TestCaseError> {
    for (standing, expected) in machine.iter().zip(expected) {
        if let Some(standing) = standing {
            let mut expected = expected.clone();
            expected.verdict = match expected.verdict {
                Verdict::Shadowed(None) => Verdict::Busy,
                Verdict::Shadowed(Some(lifts)) => Verdict::Blocked(lifts),
                verdict => verdict,
            };
            prop_assert_eq!(&said(&[*standing])[0], &expected, "machine");
        }
    }
    Ok(())
}

pub fn said(standings: &[Standing]) -> Vec<Answer> {
    let millis = |lifts: Period| lifts.as_duration().map(|d| d.as_millis() as u64);
    let verdict = |state| match state {
        State::Exempt => Verdict::Exempt,
        State::Clear => Verdict::Clear,
        State::Shadowed { lifts } => Verdict::Shadowed(lifts.map(millis)),
        State::Busy => Verdict::Busy,
        State::Blocked { lifts } => Verdict::Blocked(millis(lifts)),
        other => panic!("{other:?}"),
    };
    let answer = |standing: &Standing| Answer {
        usage: standing.usage,
        limit: standing.limit,
        rate: standing.thousandths,
        verdict: verdict(standing.state),
    };
    standings.iter().map(answer).collect()
}

/// The state machine alone, one for each key.
#[derive(Default)]
pub struct Machine(HashMap<String, Counter>);

impl Machine {
    pub fn standings(&self, keys: &[(String, Option<&Limit>)], now: u64) -> Vec<Option<Standing>> {
        let nothing = Counter::default();
        let standing = |(key, limit): &(String, Option<&Limit>)| {
            let counter = self.0.get(key).unwrap_or(&nothing);
            Some(counter.standing((*limit)?, now))
        };
        keys.iter().map(standing).collect()
    }

    pub fn reserve(
        &mut self,
        token: Token,
        lease: u64,
        spelling: usize,
        keys: &[(String, Option<&Limit>)],
        shadow: [bool; 3],
        now: u64,
    ) -> Vec<Option<Standing>> {
        let mut standings = self.standings(keys, now);
        let refuses: Vec<_> = standings
            .iter()
            .zip(keys)
            .map(|(standing, (key, _))| {
                let holds = self.0.get(key).is_some_and(|counter| counter.holds(token));
                standing.is_some_and(|standing| standing.refuses()) && !holds
            })
            .collect();
        if refuses
            .iter()
            .zip(shadow)
            .all(|(refuses, shadow)| !refuses || shadow)
        {
            for (i, (standing, (key, limit))) in standings.iter_mut().zip(keys).enumerate() {
                if let Some(limit) = limit {
                    if refuses[i] {
                        let counter = self.0.get_mut(key).expect("it refuses");
                        counter.fold(limit, now);
                        continue;
                    }
                    let counter = self.0.entry(key.clone()).or_default();
                    let spelling = match spelled(key, spelling) {
                        Spelling::NORMAL => Spelling::NORMAL,
                        _ => Spelling::PENDING,
                    };
                    *standing = Some(counter.admit(limit, token, spelling, lease, now));
                }
            }
        } else {
            for (key, limit) in keys {
                if let (Some(counter), Some(limit)) = (self.0.get_mut(key), limit) {
                    counter.fold(limit, now);
                }
            }
        }
        standings
    }

    pub fn each(
        &mut self,
        keys: &[String],
        mut change: impl FnMut(&mut Counter) -> usize,
    ) -> usize {
        keys.iter()
            .filter_map(|key| self.0.get_mut(key).map(&mut change))
            .sum()
    }

    pub fn fail(
        &mut self,
        token: Token,
        spelling: usize,
        keys: &[(String, Option<&Limit>)],
        now: u64,
    ) -> (usize, Vec<usize>) {
        let (mut changed, mut began) = (0, Vec::new());
        for (i, (key, limit)) in keys.iter().enumerate() {
            if let (Some(counter), Some(limit)) = (self.0.get_mut(key), limit) {
                let spelling = spelled(key, spelling);
                let effect = counter.fail(limit, token, spelling, now, now);
                changed += usize::from(effect.changed);
                began.extend(effect.began.map(|_| i));
            }
        }
        (changed, began)
    }

    pub fn cleanup(
        &mut self,
        token: Option<Token>,
        spelling: Option<usize>,
        keys: &[String],
        mains: usize,
        now: u64,
    ) {
        let mut tokens: Vec<_> = token.into_iter().collect();
        for key in &keys[..mains] {
            let main = self.0.entry(key.clone()).or_default();
            let spelling = spelling.map(|spelling| spelled(key, spelling));
            tokens.extend(main.clean_up(token.as_slice(), spelling, now));
        }
        self.each(keys, |counter| counter.cancel_all(&tokens));
    }
}

/// The spelling of failures in a counter, which has one if it counts by user.
fn spelled(key: &str, spelling: usize) -> Spelling {
    match spelling as u64 {
        0 => Spelling::NORMAL,
        _ if !key.contains("user") => Spelling::NORMAL,
        hash => Spelling::from_hash(hash << 48),
    }
}
