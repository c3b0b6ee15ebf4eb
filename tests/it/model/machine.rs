//! The state machine alone, and what everybody says in the oracle's terms.

use std::collections::HashMap;

use proptest::prelude::*;
use tower_login_rate_limit::{
    __private::{Counter, Spelling},
    Limit, Token,
    algorithm::{Standing, State},
};

use crate::support::oracle::{Answer, Verdict};

/// Whether the state machine and the oracle say the same, where there is no exception.
pub fn agree(machine: &[Option<Standing>], expected: &[Answer]) -> Result<(), TestCaseError> {
    for (standing, expected) in machine.iter().zip(expected) {
        if let Some(standing) = standing {
            prop_assert_eq!(&said(&[*standing])[0], expected, "machine");
        }
    }
    Ok(())
}

pub fn said(standings: &[Standing]) -> Vec<Answer> {
    let verdict = |state| match state {
        State::Exempt => Verdict::Exempt,
        State::Clear => Verdict::Clear,
        State::Busy => Verdict::Busy,
        State::Blocked { lifts } => {
            Verdict::Blocked(lifts.as_duration().map(|d| d.as_millis() as u64))
        }
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
        keys: &[(String, Option<&Limit>)],
        now: u64,
    ) -> Vec<Option<Standing>> {
        let mut standings = self.standings(keys, now);
        let holds = |key| self.0.get(key).is_some_and(|counter| counter.holds(token));
        let refuses = |standing: &Option<Standing>| standing.is_some_and(|s| s.refuses());
        let mut asked = standings.iter().zip(keys);
        if asked.all(|(standing, (key, _))| !refuses(standing) || holds(key)) {
            for (standing, (key, limit)) in standings.iter_mut().zip(keys) {
                if let Some(limit) = limit {
                    let counter = self.0.entry(key.clone()).or_default();
                    *standing = Some(counter.admit(limit, token, lease, now));
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
        0 => Spelling::default(),
        _ if !key.contains("user") => Spelling::default(),
        hash => Spelling::from_hash(hash << 48),
    }
}
