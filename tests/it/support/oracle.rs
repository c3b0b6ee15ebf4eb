//! The sliding window once more, word by word as the documentation has it, with no thought of speed.
//! What the crate computes is held against this.

use std::collections::BTreeMap;

/// Milliseconds; `None` is for ever.
pub type Length = Option<u64>;

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Numbers {
    pub limit: u32,
    pub window: Length,
    /// `None`: no block of its own.
    pub block: Option<Length>,
}

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Verdict {
    Clear,
    Busy,
    /// Lifts in so many milliseconds; `None`: never.
    Blocked(Length),
}

/// Attempt and time. A time to come is the end of a lease.
type Counter = Vec<(u128, u64)>;

#[derive(Default)]
pub struct Oracle(BTreeMap<String, Counter>);

impl Oracle {
    fn counter(&self, key: &str) -> Counter {
        self.0.get(key).cloned().unwrap_or_default()
    }

    /// Usage and verdict, and what an admission leaves of the counter.
    fn judge(&self, key: &str, numbers: Numbers, now: u64) -> (u32, Verdict, Counter) {
        let counter = self.counter(key);
        let limit = numbers.limit as usize;
        let failures: Vec<_> = counter
            .iter()
            .copied()
            .filter(|(_, at)| *at <= now)
            .collect();
        let in_flight: Vec<_> = counter
            .iter()
            .copied()
            .filter(|(_, at)| *at > now)
            .collect();
        let within = |end: u64| -> Vec<(u128, u64)> {
            let begins_after = numbers.window.map(|window| end as i128 - window as i128);
            let inside = |at: u64| at <= end && begins_after.is_none_or(|b| at as i128 > b);
            failures
                .iter()
                .copied()
                .filter(|(_, at)| inside(*at))
                .collect()
        };

        match numbers.block {
            Some(block) => {
                if let Some(last) = failures.iter().map(|(_, at)| *at).max() {
                    let recent = within(last).len();
                    if recent >= limit {
                        match block {
                            None => return (recent as u32, Verdict::Blocked(None), counter),
                            Some(block) if now < last + block => {
                                let lifts = Verdict::Blocked(Some(last + block - now));
                                return (recent as u32, lifts, counter);
                            }
                            Some(_) => return Self::busy_or_clear(in_flight, limit),
                        }
                    }
                }
            }
            None => {
                let mut recent = within(now);
                if recent.len() >= limit {
                    recent.sort_by_key(|(_, at)| *at);
                    let lifts = numbers.window.map(|window| {
                        // Wait until so many have left that there is room for one.
                        let leaves_last = recent[recent.len() - limit].1;
                        leaves_last + window - now
                    });
                    return (recent.len() as u32, Verdict::Blocked(lifts), counter);
                }
            }
        }
        let mut counting = within(now);
        counting.extend(in_flight);
        Self::busy_or_clear(counting, limit)
    }

    fn busy_or_clear(counting: Counter, limit: usize) -> (u32, Verdict, Counter) {
        let verdict = match counting.len() >= limit {
            true => Verdict::Busy,
            false => Verdict::Clear,
        };
        (counting.len() as u32, verdict, counting)
    }

    pub fn check(&self, keys: &[(String, Numbers)], now: u64) -> Vec<(u32, Verdict)> {
        keys.iter()
            .map(|(key, numbers)| self.judge(key, *numbers, now))
            .map(|(usage, verdict, _)| (usage, verdict))
            .collect()
    }

    pub fn reserve(
        &mut self,
        token: u128,
        lease: u64,
        keys: &[(String, Numbers)],
        now: u64,
    ) -> Vec<(u32, Verdict)> {
        let holds = |counter: &Counter| counter.iter().any(|(t, _)| *t == token);
        let mut answers = self.check(keys, now);
        for ((key, _), (_, verdict)) in keys.iter().zip(&answers) {
            if *verdict != Verdict::Clear && !holds(&self.counter(key)) {
                return answers;
            }
        }
        for ((key, numbers), (usage, verdict)) in keys.iter().zip(&mut answers) {
            *verdict = Verdict::Clear;
            if !holds(&self.counter(key)) {
                let (_, _, mut left) = self.judge(key, *numbers, now);
                left.push((token, now + lease));
                *usage = left.len() as u32;
                self.0.insert(key.clone(), left);
            }
        }
        answers
    }

    pub fn fail(&mut self, token: u128, keys: &[String], now: u64) -> usize {
        let mut changed = 0;
        for key in keys {
            for (t, at) in self.0.get_mut(key).into_iter().flatten() {
                if *t == token && *at > now {
                    *at = now;
                    changed += 1;
                }
            }
        }
        changed
    }

    pub fn cancel(&mut self, token: u128, keys: &[String]) -> usize {
        let mut changed = 0;
        for key in keys {
            if let Some(counter) = self.0.get_mut(key) {
                let before = counter.len();
                counter.retain(|(t, _)| *t != token);
                changed += before - counter.len();
            }
        }
        changed
    }

    pub fn cleanup(&mut self, token: Option<u128>, keys: &[String], now: u64) -> usize {
        let main = self.counter(&keys[0]);
        let known = token.is_none_or(|token| main.iter().any(|(t, _)| *t == token));
        let goes = |(t, at): &(u128, u64)| known && (*at <= now || Some(*t) == token);
        let mut tokens: Vec<_> = main.iter().filter(|e| goes(e)).map(|(t, _)| *t).collect();
        let left = tokens.len();
        tokens.extend(token);
        for key in keys {
            if let Some(counter) = self.0.get_mut(key) {
                counter.retain(|(t, _)| !tokens.contains(t));
            }
        }
        left
    }

    /// How many attempts a counter holds.
    pub fn held(&self, key: &str) -> usize {
        self.counter(key).len()
    }
}
