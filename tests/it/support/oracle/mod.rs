//! The four algorithms once more, word by word as the documentation has them, with no thought of
//! speed. What the crate computes is held against this.
//!
//! All arithmetic is in `i128`, so that nothing overflows and nothing has to be careful about signs.

mod adding_up;

use std::collections::BTreeMap;

use adding_up::{bucket, counter};

/// Milliseconds; `None` is for ever.
pub type Length = Option<u64>;

/// The bytes of an attempt's token.
pub type Token = [u8; 16];

/// Bucket and counter keep so many failures one by one.
const KEPT: usize = 8;

/// The lengths of first, second, … block in a row, and how soon after one the next is "in a row".
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Blocks {
    pub lengths: Vec<Length>,
    pub again: u64,
}

#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Numbers {
    Window {
        limit: u32,
        window: Length,
        /// `None`: no block of its own.
        block: Option<Blocks>,
    },
    Backoff {
        waits: Vec<u64>,
        /// Percent.
        jitter: u32,
        forget: Length,
    },
    Bucket {
        capacity: u32,
        /// From empty to full.
        refill: u64,
        block: Option<Blocks>,
    },
    Counter {
        limit: u32,
        window: u64,
        block: Option<Blocks>,
    },
}

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Verdict {
    /// Not counted and not refused.
    Exempt,
    Clear,
    /// Not counted and not refused: it would be busy, or blocked for so long.
    Shadowed(Option<Length>),
    Busy,
    /// Lifts in so many milliseconds; `None`: never.
    Blocked(Length),
}

#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Answer {
    pub usage: u32,
    pub limit: u32,
    /// In thousandths.
    pub rate: u64,
    pub verdict: Verdict,
}

/// An attempt and a time. A time to come is the end of a lease: the attempt is in flight. A time that
/// has passed is when it failed.
#[derive(Clone, Copy)]
struct Entry {
    token: Token,
    at: i128,
    /// Of the user's name; 0 is the normal form. Until it has failed in another one, [`PENDING`].
    spelling: usize,
}

/// The spelling of an attempt that was reserved in another one than the normal form, and has not failed yet.
const PENDING: usize = usize::MAX;

/// What is no longer kept one by one.
#[derive(Clone, Copy)]
enum Past {
    Nothing,
    Window(Block),
    Bucket(BucketPast),
    Counter(CounterPast),
}

/// The last block: how many came in a row, and when it began.
#[derive(Clone, Copy)]
struct Block {
    number: usize,
    began: i128,
}

/// At the time `at`, so many tokens less so many parts of one were missing.
#[derive(Clone, Copy)]
struct BucketPast {
    tokens: i128,
    parts: i128,
    at: i128,
    block: Option<Block>,
}

/// Failures in the window that began at `start`, and in the one before.
#[derive(Clone, Copy)]
struct CounterPast {
    start: i128,
    previous: i128,
    current: i128,
    block: Option<Block>,
}

#[derive(Clone)]
struct Counter {
    entries: Vec<Entry>,
    past: Past,
    /// Whether the past has failures of another spelling than the normal form in it.
    mixed: bool,
}

/// Whether a past that these failures go into is mixed.
fn mixed(counter: &Counter, failures: &[Entry]) -> bool {
    counter.mixed || failures.iter().any(|entry| entry.spelling != 0)
}

impl Counter {
    /// Oldest first; where times are equal, those whose spelling is pending first, then by the bytes of the token.
    fn failures(&self, now: i128) -> Vec<Entry> {
        let mut failures = self.entries.clone();
        failures.retain(|entry| entry.at <= now);
        failures.sort_by_key(|entry| (entry.at, entry.spelling != PENDING, entry.token));
        failures
    }

    fn in_flight(&self, now: i128) -> Vec<Entry> {
        let mut in_flight = self.entries.clone();
        in_flight.retain(|entry| entry.at > now);
        in_flight
    }

    fn holds(&self, token: Token) -> bool {
        self.entries.iter().any(|entry| entry.token == token)
    }

    /// How it stands, and what is left of it.
    fn judge(&self, numbers: &Numbers, now: i128) -> (Answer, Left) {
        match numbers {
            Numbers::Window {
                limit,
                window,
                block: Some(blocks),
            } => window_with_block(self, *limit, *window, blocks, now),
            Numbers::Window {
                limit,
                window,
                block: None,
            } => window_without_block(self, *limit, *window, now),
            Numbers::Backoff {
                waits,
                jitter,
                forget,
            } => backoff(self, waits, *jitter, *forget, now),
            Numbers::Bucket {
                capacity,
                refill,
                block,
            } => bucket(self, *capacity, *refill, block.as_ref(), now),
            Numbers::Counter {
                limit,
                window,
                block,
            } => counter(self, *limit, *window, block.as_ref(), now),
        }
    }
}

/// What an operation leaves of a counter.
struct Left {
    /// An admission.
    admitted: Counter,
    /// A failure, or an attempt that is refused; `None`: all of it.
    folded: Option<Counter>,
}

impl Left {
    /// Failures that are kept and attempts in flight, with this past after an admission and that after
    /// anything else, if anything is to be folded into it.
    fn new(
        kept: Vec<Entry>,
        in_flight: Vec<Entry>,
        past: Past,
        folded: Option<Past>,
        mixed: bool,
    ) -> Self {
        let entries = [kept, in_flight].concat();
        let counter = |past| Counter {
            entries: entries.clone(),
            past,
            mixed: mixed && !matches!(past, Past::Nothing),
        };
        Self {
            folded: folded.map(counter),
            admitted: counter(past),
        }
    }
}

impl Blocks {
    /// A number beyond the list, which another policy may have left, is that of the last length.
    fn number(&self, block: Block) -> usize {
        block.number.min(self.lengths.len())
    }

    /// `None`: never.
    fn end(&self, block: Block) -> Option<i128> {
        let length = self.lengths[self.number(block) - 1];
        length.map(|length| block.began + i128::from(length))
    }

    fn in_force(&self, block: Block, at: i128) -> bool {
        self.end(block).is_none_or(|end| at < end)
    }

    /// The block that begins at `at`, if `last` was the last one.
    fn begin(&self, last: Option<Block>, at: i128) -> Block {
        let number = match last {
            None => 1,
            Some(last) => match self.end(last) {
                None => self.number(last),
                Some(end) if at < end => self.number(last),
                Some(end) if at < end + i128::from(self.again) => {
                    (self.number(last) + 1).min(self.lengths.len())
                }
                Some(_) => 1,
            },
        };
        Block { number, began: at }
    }
}

/// What is left where nothing can be admitted.
fn unchanged(counter: &Counter) -> Left {
    Left {
        admitted: counter.clone(),
        folded: None,
    }
}

/// An answer of an algorithm whose usage is a whole number.
fn whole(usage: usize, limit: usize, verdict: Verdict) -> Answer {
    Answer {
        usage: usage as u32,
        limit: limit as u32,
        rate: usage as u64 * 1000,
        verdict,
    }
}

fn blocked(lifts: Option<i128>) -> Verdict {
    Verdict::Blocked(lifts.map(|lifts| u64::try_from(lifts).expect("lifts later than now")))
}

fn busy_or_clear(busy: bool) -> Verdict {
    match busy {
        true => Verdict::Busy,
        false => Verdict::Clear,
    }
}

/// Those of the failures that lie in the window that ends with `end`: `(end − window, end]`.
fn within(failures: &[Entry], window: Length, end: i128) -> Vec<Entry> {
    let inside = |at: i128| at <= end && window.is_none_or(|w| at > end - i128::from(w));
    failures.iter().copied().filter(|e| inside(e.at)).collect()
}

fn window_with_block(
    counter: &Counter,
    limit: u32,
    window: Length,
    blocks: &Blocks,
    now: i128,
) -> (Answer, Left) {
    let limit = limit as usize;
    let failures = counter.failures(now);
    let mut last_block = match counter.past {
        Past::Window(block) => Some(block),
        _ => None,
    };
    let mut counting = within(&failures, window, now);
    let mut is_mixed = counter.mixed;
    if let Some(last) = failures.last() {
        let recent = within(&failures, window, last.at).len();
        if recent >= limit {
            let block = blocks.begin(last_block, last.at);
            if blocks.in_force(block, now) {
                let lifts = blocks.end(block).map(|end| end - now);
                return (whole(recent, limit, blocked(lifts)), unchanged(counter));
            }
            // The block is over, and the slate is clean.
            counting.clear();
            last_block = Some(block);
            is_mixed = mixed(counter, &failures);
        }
    }
    counting.extend(counter.in_flight(now));
    let verdict = busy_or_clear(counting.len() >= limit);
    let answer = whole(counting.len(), limit, verdict);
    let past = match last_block {
        Some(block) if blocks.lengths.len() > 1 => Past::Window(block),
        _ => Past::Nothing,
    };
    (
        answer,
        Left::new(counting, Vec::new(), past, None, is_mixed),
    )
}

fn window_without_block(
    counter: &Counter,
    limit: u32,
    window: Length,
    now: i128,
) -> (Answer, Left) {
    let limit = limit as usize;
    let mut counting = within(&counter.failures(now), window, now);
    if counting.len() >= limit {
        // Wait until so many have left that there is room for one.
        let leaves_last = counting[counting.len() - limit].at;
        let lifts = window.map(|window| leaves_last + i128::from(window) - now);
        let answer = whole(counting.len(), limit, blocked(lifts));
        return (answer, unchanged(counter));
    }
    counting.extend(counter.in_flight(now));
    let verdict = busy_or_clear(counting.len() >= limit);
    let answer = whole(counting.len(), limit, verdict);
    let left = Left::new(counting, Vec::new(), Past::Nothing, None, false);
    (answer, left)
}

fn backoff(
    counter: &Counter,
    waits: &[u64],
    jitter: u32,
    forget: Length,
    now: i128,
) -> (Answer, Left) {
    let mut failures = counter.failures(now);
    if let (Some(last), Some(forget)) = (failures.last(), forget)
        && last.at + i128::from(forget) <= now
    {
        failures.clear();
    }
    let beyond = failures.len().saturating_sub(waits.len());
    failures.drain(..beyond);

    let free = waits.iter().filter(|wait| **wait == 0).count();
    let limit = free.max(failures.len()) + 1;
    if let Some(last) = failures.last() {
        let wait = jittered(waits[failures.len() - 1], jitter, last.token);
        if now < last.at + wait {
            let verdict = blocked(Some(last.at + wait - now));
            return (whole(failures.len(), limit, verdict), unchanged(counter));
        }
    }
    failures.extend(counter.in_flight(now));
    let verdict = busy_or_clear(failures.len() >= limit);
    let answer = whole(failures.len(), limit, verdict);
    let left = Left::new(failures, Vec::new(), Past::Nothing, None, false);
    (answer, left)
}

/// The wait after the failure with this token: its first byte makes it longer or shorter.
fn jittered(wait: u64, jitter: u32, token: Token) -> i128 {
    let wait = i128::from(wait);
    let by = wait * i128::from(jitter) * (i128::from(token[0]) - 128);
    // With a divisor above zero this rounds down, below zero too.
    wait + by.div_euclid(12_800)
}

/// A counter that is asked.
pub struct Asked {
    pub key: String,
    pub numbers: Numbers,
    /// Whether this counter makes an exception for who asks.
    pub exempt: bool,
    /// Whether this counter counts and never refuses.
    pub shadow: bool,
}

impl Asked {
    /// What a counter in shadow would refuse, it does not.
    fn shadow(&self, answer: &mut Answer) {
        answer.verdict = match answer.verdict {
            Verdict::Busy if self.shadow => Verdict::Shadowed(None),
            Verdict::Blocked(lifts) if self.shadow => Verdict::Shadowed(Some(lifts)),
            verdict => verdict,
        };
    }
}

#[derive(Default)]
pub struct Oracle(BTreeMap<String, Counter>);

impl Oracle {
    fn counter(&self, key: &str) -> Counter {
        let empty = Counter {
            entries: Vec::new(),
            past: Past::Nothing,
            mixed: false,
        };
        self.0.get(key).cloned().unwrap_or(empty)
    }

    pub fn check(&self, asked: &[Asked], now: u64) -> Vec<Answer> {
        let answer = |asked: &Asked| {
            let counter = self.counter(&asked.key);
            let (mut answer, _) = counter.judge(&asked.numbers, i128::from(now));
            if asked.exempt {
                answer.verdict = Verdict::Exempt;
            }
            asked.shadow(&mut answer);
            answer
        };
        asked.iter().map(answer).collect()
    }

    /// All or nothing. A counter that holds the token already refuses nothing and is not changed, but that its
    /// spelling may become pending, where there is a user.
    pub fn reserve(
        &mut self,
        token: Token,
        lease: u64,
        spelling: usize,
        asked: &[Asked],
        now: u64,
    ) -> Vec<Answer> {
        let mut answers = self.check(asked, now);
        let refuses = |(asked, answer): (&Asked, &Answer)| {
            let refuses = matches!(answer.verdict, Verdict::Busy | Verdict::Blocked(_));
            refuses && !self.counter(&asked.key).holds(token)
        };
        if asked.iter().zip(&answers).any(refuses) {
            self.fold_all(asked, now);
            return answers;
        }
        for (asked, answer) in asked.iter().zip(&mut answers) {
            if asked.exempt {
                continue;
            }
            if matches!(answer.verdict, Verdict::Shadowed(_))
                && !self.counter(&asked.key).holds(token)
            {
                // As one that refused would be left.
                self.fold_all(std::slice::from_ref(asked), now);
                continue;
            }
            answer.verdict = Verdict::Clear;
            let is_pending = spelling != 0 && asked.key.contains("user");
            let mut counter = self.counter(&asked.key);
            if counter.holds(token) {
                for entry in &mut counter.entries {
                    if is_pending && entry.token == token && entry.spelling == 0 {
                        entry.spelling = PENDING;
                    }
                }
                self.0.insert(asked.key.clone(), counter);
            } else {
                answer.usage += 1;
                answer.rate += 1000;
                let (_, left) = counter.judge(&asked.numbers, i128::from(now));
                let mut admitted = left.admitted;
                let at = i128::from(now) + i128::from(lease);
                admitted.entries.push(Entry {
                    token,
                    at,
                    spelling: if is_pending { PENDING } else { 0 },
                });
                self.0.insert(asked.key.clone(), admitted);
            }
        }
        answers
    }

    /// Puts into the past what need not be kept one by one, where no exception is made.
    fn fold_all(&mut self, asked: &[Asked], now: u64) {
        for asked in asked.iter().filter(|asked| !asked.exempt) {
            let (_, left) = self
                .counter(&asked.key)
                .judge(&asked.numbers, i128::from(now));
            if let Some(folded) = left.folded {
                self.0.insert(asked.key.clone(), folded);
            }
        }
    }

    /// In how many counters it became a failure, and in which, by position, a block began with it. Where there is
    /// a user, it gets this spelling, unless it has another one. If its lease had ended and its spelling was
    /// pending, it gets this spelling only if that is not the normal form.
    ///
    /// A block begins with a failure before which there was none. If it is said again, the failure is still the
    /// newest while its block is in force.
    pub fn fail(
        &mut self,
        token: Token,
        spelling: usize,
        asked: &[Asked],
        now: u64,
    ) -> (usize, Vec<usize>) {
        let (mut changed, mut began) = (0, Vec::new());
        for (i, asked) in asked.iter().enumerate() {
            let is_blocked = |counter: &Counter| {
                let (answer, _) = counter.judge(&asked.numbers, now.into());
                matches!(answer.verdict, Verdict::Blocked(_))
            };
            let was_blocked = is_blocked(&self.counter(&asked.key));
            let counter = self.0.get_mut(&asked.key);
            let mut entries = counter.into_iter().flat_map(|counter| &mut counter.entries);
            let Some(entry) = entries.find(|entry| entry.token == token) else {
                continue;
            };
            let was_in_flight = entry.at > now.into();
            let has_none = match entry.spelling {
                PENDING => was_in_flight || spelling != 0,
                own => own == 0,
            };
            if has_none && asked.key.contains("user") {
                entry.spelling = spelling;
            }
            if entry.at > now.into() {
                entry.at = now.into();
                changed += 1;
                let (_, left) = self.counter(&asked.key).judge(&asked.numbers, now.into());
                if let Some(folded) = left.folded {
                    self.0.insert(asked.key.clone(), folded);
                }
            }
            let counter = self.counter(&asked.key);
            let newest = counter.failures(now.into()).last().map(|entry| entry.token);
            let is_new = match was_in_flight {
                true => !was_blocked,
                false => newest == Some(token),
            };
            if is_new && is_blocked(&counter) {
                began.push(i);
            }
        }
        (changed, began)
    }

    /// Which of these are blocked, by position.
    fn blocked(&self, asked: &[Asked], now: u64) -> Vec<usize> {
        let is_blocked = |asked: &Asked| {
            let (answer, _) = self.counter(&asked.key).judge(&asked.numbers, now.into());
            matches!(answer.verdict, Verdict::Blocked(_))
        };
        let positions = 0..asked.len();
        positions.filter(|i| is_blocked(&asked[*i])).collect()
    }

    /// Those that were blocked and are not now.
    fn lifted(&self, were: Vec<usize>, asked: &[Asked], now: u64) -> Vec<usize> {
        let are = self.blocked(asked, now);
        were.into_iter().filter(|i| !are.contains(i)).collect()
    }

    /// Out of how many counters it was taken, and in which, by position, a block ended by that.
    pub fn cancel(&mut self, token: Token, asked: &[Asked], now: u64) -> (usize, Vec<usize>) {
        let (mut changed, blocked) = (0, self.blocked(asked, now));
        for asked in asked {
            if let Some(counter) = self.0.get_mut(&asked.key) {
                let before = counter.entries.len();
                counter.entries.retain(|entry| entry.token != token);
                changed += before - counter.entries.len();
            }
        }
        (changed, self.lifted(blocked, asked, now))
    }

    /// The first so many keys are the main ones. What failed there with this spelling, or with any, leaves all
    /// keys, and so does the token; but a main one that does not hold the token is none. The past goes if all
    /// of it and the success have the normal form. Returns where, by position, a block ended by that.
    pub fn cleanup(
        &mut self,
        token: Option<Token>,
        spelling: Option<usize>,
        asked: &[Asked],
        mains: usize,
        now: u64,
    ) -> Vec<usize> {
        let blocked = self.blocked(asked, now);
        let keys: Vec<_> = asked.iter().map(|asked| asked.key.clone()).collect();
        let mut tokens: Vec<Token> = token.into_iter().collect();
        for key in &keys[..mains] {
            let main = self.counter(key);
            if token.is_none_or(|token| main.holds(token)) {
                let spelling = spelling
                    .filter(|_| key.contains("user"))
                    .or(spelling.map(|_| 0));
                let mut failures = main.failures(i128::from(now));
                failures.retain(|entry| spelling.is_none_or(|of| of == entry.spelling));
                tokens.extend(failures.iter().map(|entry| entry.token));
                let drops_past = spelling.is_none_or(|of| of == 0 && !main.mixed);
                if let Some(main) = self.0.get_mut(key).filter(|_| drops_past) {
                    (main.past, main.mixed) = (Past::Nothing, false);
                }
            }
        }
        for key in &keys {
            if let Some(counter) = self.0.get_mut(key) {
                let goes = |entry: &Entry| tokens.contains(&entry.token);
                counter.entries.retain(|entry| !goes(entry));
            }
        }
        self.lifted(blocked, asked, now)
    }

    /// How many attempts a counter holds one by one.
    pub fn held(&self, key: &str) -> usize {
        self.counter(key).entries.len()
    }
}
