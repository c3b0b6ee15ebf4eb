//! Token bucket and sliding-window counter.

use super::{
    Answer, Block, Blocks, BucketPast, Counter, CounterPast, Entry, KEPT, Left, Past, blocked,
    busy_or_clear, mixed,
};

fn rounded_up(dividend: i128, divisor: i128) -> i128 {
    -(-dividend).div_euclid(divisor)
}

/// Failures that go into the past at an admission, and those that are kept one by one.
fn old_and_kept(mut failures: Vec<Entry>) -> (Vec<Entry>, Vec<Entry>) {
    let kept = failures.split_off(failures.len().saturating_sub(KEPT));
    (failures, kept)
}

/// Whether no block began at this time or later.
fn began_before(last: Option<Block>, at: i128) -> bool {
    last.is_none_or(|last| last.began < at)
}

/// How long a block in force goes on, `Some(0)` if none is; `None`: for ever.
fn block_goes_on(blocks: Option<&Blocks>, last: Option<Block>, now: i128) -> Option<i128> {
    match (blocks, last) {
        (Some(blocks), Some(last)) if blocks.in_force(last, now) => {
            blocks.end(last).map(|end| end - now)
        }
        _ => Some(0),
    }
}

/// A token bucket, by what is missing in it. A token is `refill` parts, and `capacity` parts come back
/// in a millisecond.
#[derive(Clone, Copy)]
struct Bucket<'a> {
    capacity: i128,
    refill: i128,
    blocks: Option<&'a Blocks>,
    /// Parts, at the time `at`.
    missing: i128,
    at: i128,
    block: Option<Block>,
}

impl Bucket<'_> {
    fn read(&mut self, past: BucketPast) {
        let missing = past.tokens * self.refill - past.parts.min(self.refill - 1);
        self.missing = missing.max(0).min(self.full());
        self.at = past.at;
        self.block = past.block;
    }

    fn written(&self) -> BucketPast {
        let tokens = rounded_up(self.missing, self.refill);
        BucketPast {
            tokens,
            parts: tokens * self.refill - self.missing,
            at: self.at,
            block: self.block,
        }
    }

    fn full(&self) -> i128 {
        self.capacity * self.refill
    }

    fn missing_at(&self, at: i128) -> i128 {
        let time = (at - self.at).max(0);
        (self.missing - self.capacity * time).max(0)
    }

    fn fail(&mut self, at: i128) {
        self.missing = (self.missing_at(at) + self.refill).min(self.full());
        self.at = self.at.max(at);
        if self.missing + self.refill > self.full()
            && began_before(self.block, at)
            && let Some(blocks) = self.blocks
        {
            self.block = Some(blocks.begin(self.block, at));
        }
    }
}

pub fn bucket(
    counter: &Counter,
    capacity: u32,
    refill: u64,
    blocks: Option<&Blocks>,
    now: i128,
) -> (Answer, Left) {
    let mut bucket = Bucket {
        capacity: i128::from(capacity),
        refill: i128::from(refill),
        blocks,
        missing: 0,
        at: 0,
        block: None,
    };
    let mut known = None;
    if let Past::Bucket(past) = counter.past {
        bucket.read(past);
        known = Some(past);
    }
    let (old, kept) = old_and_kept(counter.failures(now));
    for failure in &old {
        bucket.fail(failure.at);
    }
    // What nothing is added to stays as it was written, also if the numbers have changed since.
    let folded = known
        .filter(|_| old.is_empty())
        .unwrap_or_else(|| bucket.written());
    for failure in &kept {
        bucket.fail(failure.at);
    }
    let in_flight = counter.in_flight(now);
    let answer = bucket_answer(&bucket, in_flight.len(), now);
    let past = match known.is_some() || !old.is_empty() || bucket.block.is_some() {
        true => Past::Bucket(BucketPast {
            block: bucket.block,
            ..folded
        }),
        false => Past::Nothing,
    };
    let folded = (!old.is_empty()).then_some(Past::Bucket(folded));
    let is_mixed = mixed(counter, &[&old[..], &kept].concat());
    (answer, Left::new(kept, in_flight, past, folded, is_mixed))
}

/// How the bucket stands when all failures have been added.
fn bucket_answer(bucket: &Bucket<'_>, in_flight: usize, now: i128) -> Answer {
    let missing = bucket.missing_at(now);
    let tokens = rounded_up(missing, bucket.refill);
    let thousandths = missing * 1000 / bucket.refill;
    let answer = |usage: i128, rate: i128, verdict| Answer {
        usage: usage as u32,
        limit: bucket.capacity as u32,
        rate: rate as u64,
        verdict,
    };

    let lacks = (missing + bucket.refill - bucket.full()).max(0);
    let token_comes = match lacks {
        0 => 0,
        // Refilling begins at `at`, which is still to come if the clock was set back.
        _ => rounded_up(lacks, bucket.capacity) + (bucket.at - now).max(0),
    };
    let block_over = block_goes_on(bucket.blocks, bucket.block, now);
    if block_over != Some(0) || token_comes > 0 {
        let lifts = block_over.map(|over| over.max(token_comes));
        return answer(tokens, thousandths, blocked(lifts));
    }
    let in_flight = in_flight as i128;
    let usage = tokens + in_flight;
    let verdict = busy_or_clear(usage >= bucket.capacity);
    answer(usage, thousandths + in_flight * 1000, verdict)
}

/// A sliding-window counter: failures in the window that began at `start`, and in the one before.
#[derive(Clone, Copy)]
struct Tally<'a> {
    limit: i128,
    window: i128,
    blocks: Option<&'a Blocks>,
    /// `None`: nothing has failed yet.
    start: Option<i128>,
    previous: i128,
    current: i128,
    block: Option<Block>,
}

impl Tally<'_> {
    fn read(&mut self, past: CounterPast) {
        self.start = Some(past.start);
        self.previous = past.previous;
        self.current = past.current;
        self.block = past.block;
    }

    /// Nothing, if nothing has failed.
    fn written(&self) -> Option<CounterPast> {
        Some(CounterPast {
            start: self.start?,
            previous: self.previous,
            current: self.current,
            block: self.block,
        })
    }

    fn begin(&mut self, at: i128) {
        self.start = Some(at / self.window * self.window);
    }

    fn move_on(&mut self, to: i128) {
        let Some(start) = self.start else { return };
        if to >= start + self.window {
            let lengths = (to - start) / self.window;
            self.previous = match lengths {
                1 => self.current,
                _ => 0,
            };
            self.current = 0;
            self.start = Some(start + lengths * self.window);
        }
    }

    /// The rate times the window, so that it is a whole number.
    fn rate_times_window(mut self, at: i128) -> i128 {
        self.move_on(at);
        let Some(start) = self.start else { return 0 };
        let since = (at - start).max(0);
        self.previous * (self.window - since) + self.current * self.window
    }

    fn reaches_limit(&self, at: i128) -> bool {
        self.rate_times_window(at) >= self.limit * self.window
    }

    fn fail(&mut self, at: i128) {
        if self.start.is_none() {
            self.begin(at);
        }
        self.move_on(at);
        self.current += 1;
        if self.reaches_limit(at)
            && began_before(self.block, at)
            && let Some(blocks) = self.blocks
        {
            self.block = Some(blocks.begin(self.block, at));
        }
    }

    /// How long the rate does not fall below the limit. It never rises by itself, so the first moment at
    /// which it is below can be found by halving.
    fn falls_in(&self, now: i128) -> i128 {
        // Two windows on, everything is forgotten.
        let (mut from, mut to) = (now, now.max(self.start.unwrap_or(0)) + 2 * self.window);
        while from < to {
            let middle = (from + to) / 2;
            match self.reaches_limit(middle) {
                true => from = middle + 1,
                false => to = middle,
            }
        }
        from - now
    }
}

pub fn counter(
    counter: &Counter,
    limit: u32,
    window: u64,
    blocks: Option<&Blocks>,
    now: i128,
) -> (Answer, Left) {
    let mut tally = Tally {
        limit: i128::from(limit),
        window: i128::from(window),
        blocks,
        start: None,
        previous: 0,
        current: 0,
        block: None,
    };
    let known = matches!(counter.past, Past::Counter(_));
    if let Past::Counter(past) = counter.past {
        tally.read(past);
    }
    let (old, kept) = old_and_kept(counter.failures(now));
    for failure in &old {
        tally.fail(failure.at);
    }
    if let (None, Some(first)) = (tally.start, kept.first()) {
        tally.begin(first.at);
    }
    let folded = tally.written();
    for failure in &kept {
        tally.fail(failure.at);
    }
    let in_flight = counter.in_flight(now);
    let answer = counter_answer(&tally, in_flight.len(), now);
    let past = match known || !old.is_empty() || tally.block.is_some() {
        true => Past::Counter(CounterPast {
            block: tally.block,
            ..folded.expect("something has failed")
        }),
        false => Past::Nothing,
    };
    let folded = folded.map(Past::Counter).filter(|_| !old.is_empty());
    let is_mixed = mixed(counter, &[&old[..], &kept].concat());
    (answer, Left::new(kept, in_flight, past, folded, is_mixed))
}

/// How the counter stands when all failures have been added.
fn counter_answer(tally: &Tally<'_>, in_flight: usize, now: i128) -> Answer {
    let rate = tally.rate_times_window(now);
    let answer = |rate: i128, verdict| Answer {
        usage: (rate / tally.window) as u32,
        limit: tally.limit as u32,
        rate: (rate * 1000 / tally.window) as u64,
        verdict,
    };

    let block_over = block_goes_on(tally.blocks, tally.block, now);
    if block_over != Some(0) || tally.reaches_limit(now) {
        let lifts = block_over.map(|over| over.max(tally.falls_in(now)));
        return answer(rate, blocked(lifts));
    }
    let rate = rate + in_flight as i128 * tally.window;
    let verdict = busy_or_clear(rate >= tally.limit * tally.window);
    answer(rate, verdict)
}
