//! One model, every implementation: random histories of reserving, settling, checking, cleaning up
//! and time going forward and back are played to the oracle, to the state machine, to the memory
//! store and to a real Redis, and every reply must be the same. Each rule draws any of the four
//! algorithms, and policies change on the way.

use std::{collections::HashMap, sync::Arc, time::Duration};

use proptest::{prelude::*, sample::Index, test_runner::FileFailurePersistence};
use tower_login_rate_limit::{
    Address, Limit, LimitBuilder, Period, Token,
    algorithm::{Counter, Standing, State},
    clock::{Clock, ManualClock},
    store::{Key, MemoryStore, Slot, Standings, Store},
};

use crate::support::{
    DAY, HOUR, MINUTE, RedisServer, SECOND, START,
    oracle::{Answer, Blocks, Length, Numbers, Oracle, Verdict},
};

const LEASE: u64 = 30 * SECOND;
const ADDRESSES: usize = 2;
const USERS: usize = 3;

/// The address rule, the rule by user and address, and one by user alone, which lives elsewhere.
const RULES: [&str; 3] = ["address", "user-address", "account"];

#[derive(Clone, Copy, Debug)]
struct Who {
    address: usize,
    user: Option<usize>,
}

#[derive(Clone, Debug)]
enum Op {
    Reserve(Who),
    /// With no lease, so that it counts at once.
    Count(Who),
    ChangePolicy,
    /// The same attempt once more, as after a lost reply.
    ReserveAgain(Index),
    Fail(Index),
    Cancel(Index),
    Succeed(Index),
    Cleanup(Who),
    Unblock(Who),
    Check(Who),
    /// So many, and so many milliseconds from each to the next.
    FailMany(Who, u32, u64),
    Time(Step),
}

#[derive(Clone, Copy, Debug)]
enum Step {
    Forward(u64),
    Back(u64),
    /// By a length that means something, give or take a millisecond.
    Lease(i64),
    /// By one of the lengths of a rule.
    Length(usize, Index, i64),
    /// To where the windows of a sliding-window counter begin.
    Boundary(usize, i64),
    /// To when the last block that was reported lifts.
    Lift(i64),
    /// To when a block after that one is the first again.
    Again(usize, i64),
}

fn who() -> impl Strategy<Value = Who> {
    (0..ADDRESSES, proptest::option::weighted(0.8, 0..USERS))
        .prop_map(|(address, user)| Who { address, user })
}

fn step() -> impl Strategy<Value = Step> {
    let about = || -1..=1_i64;
    let rule = || 0..RULES.len();
    let length = (rule(), any::<Index>(), about());
    prop_oneof![
        2 => prop_oneof![0..3_u64, 1..MINUTE, 1..2 * HOUR, 1..30 * HOUR].prop_map(Step::Forward),
        1 => prop_oneof![1..5_u64, 1..MINUTE, 1..2 * HOUR, 1..2 * DAY].prop_map(Step::Back),
        1 => about().prop_map(Step::Lease),
        2 => length.prop_map(|(rule, which, by)| Step::Length(rule, which, by)),
        1 => (rule(), about()).prop_map(|(rule, by)| Step::Boundary(rule, by)),
        3 => about().prop_map(Step::Lift),
        1 => (rule(), about()).prop_map(|(rule, by)| Step::Again(rule, by)),
    ]
}

fn fail_many() -> impl Strategy<Value = Op> {
    // More than are kept one by one, too.
    let times = prop_oneof![3 => 1..6_u32, 1 => 6..22_u32];
    let apart = prop_oneof![3 => Just(0), 1 => 1..5_u64, 1 => 1..10 * SECOND, 1 => 1..10 * MINUTE];
    (who(), times, apart).prop_map(|(who, times, apart)| Op::FailMany(who, times, apart))
}

fn op() -> BoxedStrategy<Op> {
    let op = prop_oneof![
        6 => who().prop_map(Op::Reserve),
        1 => who().prop_map(Op::Count),
        2 => Just(Op::ChangePolicy),
        1 => any::<Index>().prop_map(Op::ReserveAgain),
        4 => any::<Index>().prop_map(Op::Fail),
        1 => any::<Index>().prop_map(Op::Cancel),
        1 => any::<Index>().prop_map(Op::Succeed),
        1 => who().prop_map(Op::Cleanup),
        1 => who().prop_map(Op::Unblock),
        2 => who().prop_map(Op::Check),
        3 => fail_many(),
        5 => step().prop_map(Op::Time),
    ];
    op.boxed()
}

/// Mostly few, so that they are reached; some beyond what bucket and counter keep one by one.
fn few() -> impl Strategy<Value = u32> {
    prop_oneof![6 => 1..=5_u32, 1 => Just(12), 1 => Just(20)]
}

/// Lengths that grow; only the last may be for ever.
fn blocks() -> impl Strategy<Value = Option<Blocks>> {
    let lengths = [10 * SECOND, 10 * MINUTE, HOUR, DAY, 3 * DAY].map(Some);
    let lengths = lengths.into_iter().chain([None]).collect::<Vec<_>>();
    let lengths = proptest::sample::subsequence(lengths, 1..=3);
    let again = prop_oneof![Just(HOUR), Just(DAY), Just(3 * DAY)];
    let blocks = (lengths, again).prop_map(|(lengths, again)| Blocks { lengths, again });
    proptest::option::weighted(0.75, blocks)
}

/// Boxed, like the others: what proptest keeps of a policy would be too much for the stack.
fn window(limit: impl Strategy<Value = u32> + 'static) -> BoxedStrategy<Numbers> {
    let window = prop_oneof![
        1 => Just(Some(MINUTE)),
        3 => Just(Some(HOUR)),
        3 => Just(Some(DAY)),
        1 => Just(None),
    ];
    let numbers = (limit, window, blocks()).prop_map(|(limit, window, block)| Numbers::Window {
        limit,
        window,
        block,
    });
    numbers.boxed()
}

fn backoff() -> BoxedStrategy<Numbers> {
    let seconds = |waits: &[u64]| waits.iter().map(|s| s * SECOND).collect::<Vec<_>>();
    let any_waits = proptest::collection::vec(0..100 * SECOND, 1..6).prop_map(|mut waits| {
        waits.sort_unstable();
        waits.push(100 * SECOND);
        waits
    });
    let waits = prop_oneof![
        1 => Just(seconds(&[0, 0, 1, 2, 4, 60])),
        1 => Just(seconds(&[1, 2, 4, 8, 16, 30, 60, 180, 300])),
        1 => Just(vec![0, 7_777]),
        1 => Just(vec![MINUTE]),
        1 => any_waits,
    ];
    let jitter = prop_oneof![Just(0_u32), Just(10), Just(50), Just(100)];
    let forget = prop_oneof![
        Just(Some(10 * MINUTE)),
        Just(Some(HOUR)),
        Just(Some(DAY)),
        Just(None),
    ];
    let numbers = (waits, jitter, forget).prop_map(|(waits, jitter, forget)| Numbers::Backoff {
        waits,
        jitter,
        forget,
    });
    numbers.boxed()
}

/// Most of them can't be divided by a limit.
fn uneven() -> impl Strategy<Value = u64> {
    prop_oneof![
        // No shorter: in Redis, keys run out in real time.
        3 => Just(77_777),
        3 => Just(100 * SECOND),
        3 => Just(HOUR),
        2 => Just(DAY),
    ]
}

fn bucket(capacity: impl Strategy<Value = u32> + 'static) -> BoxedStrategy<Numbers> {
    let drawn = (capacity, uneven(), blocks());
    let numbers = drawn.prop_map(|(capacity, refill, block)| Numbers::Bucket {
        capacity,
        refill,
        block,
    });
    numbers.boxed()
}

fn counter(limit: impl Strategy<Value = u32> + 'static) -> BoxedStrategy<Numbers> {
    let drawn = (limit, uneven(), blocks());
    let numbers = drawn.prop_map(|(limit, window, block)| Numbers::Counter {
        limit,
        window,
        block,
    });
    numbers.boxed()
}

type Rules = [Numbers; 3];

#[derive(Clone, Debug)]
struct History {
    rules: Rules,
    /// Another policy, to change to and back.
    changed: Rules,
    ops: Vec<Op>,
    /// Which tokens are drawn.
    seed: u64,
}

/// A rule, and what it is in the other policy.
type Change = (Numbers, Numbers);

fn any_rule() -> BoxedStrategy<Numbers> {
    prop_oneof![window(few()), backoff(), bucket(few()), counter(few())].boxed()
}

fn changes() -> impl Strategy<Value = [Change; 3]> {
    let windows = || (window(few()), window(few()));
    let backoffs = || (backoff(), backoff());
    let buckets = || (bucket(few()), bucket(few()));
    let counters = || (counter(few()), counter(few()));
    // What an algorithm keeps as its past outlives a change only if the algorithm stays.
    let any_change = || {
        prop_oneof![
            4 => (any_rule(), any_rule()),
            1 => windows(),
            1 => backoffs(),
            2 => buckets(),
            2 => counters(),
        ]
    };
    // A counter gets no further than the strictest of its rules lets it, so some are of one kind.
    prop_oneof![
        4 => [any_change(), any_change(), any_change()],
        1 => [windows(), windows(), windows()],
        1 => [backoffs(), backoffs(), backoffs()],
        1 => [buckets(), buckets(), buckets()],
        1 => [counters(), counters(), counters()],
    ]
}

/// A limit beyond the size at which Redis changes the form of a sorted set.
fn large_changes() -> impl Strategy<Value = [Change; 3]> {
    let limit = || Just(300_u32);
    let rule =
        move || prop_oneof![2 => window(limit()), 1 => bucket(limit()), 1 => counter(limit())];
    let change = move || (rule(), any_rule());
    [change(), change(), change()]
}

fn history() -> impl Strategy<Value = History> {
    let small = (changes(), proptest::collection::vec(op(), 1..60));
    // The limit is reached by many at once, or a history would have to be thousands of operations long.
    let few_ops = proptest::collection::vec(op(), 1..12);
    let large = (large_changes(), few_ops, 100..320_u32).prop_map(|(changes, mut ops, many)| {
        let who = Who {
            address: 0,
            user: Some(0),
        };
        ops.insert(0, Op::FailMany(who, many, 0));
        let half = ops.len() / 2;
        ops.insert(half, Op::FailMany(who, 300, 1));
        (changes, ops)
    });
    let played = prop_oneof![30 => small, 1 => large];
    (played, any::<u64>()).prop_map(|((changes, ops), seed)| History {
        rules: changes.each_ref().map(|(rule, _)| rule.clone()),
        changed: changes.map(|(_, changed)| changed),
        ops,
        seed,
    })
}

fn period(length: Length) -> Period {
    length.map_or(Period::Forever, |millis| {
        Period::Of(Duration::from_millis(millis))
    })
}

/// The numbers in the crate's words.
fn limit(numbers: &Numbers) -> Limit {
    let limit = match numbers {
        Numbers::Window {
            limit,
            window,
            block,
        } => {
            let words = Limit::attempts(*limit).within(period(*window));
            with_blocks(words, block).build()
        }
        Numbers::Backoff {
            waits,
            jitter,
            forget,
        } => Limit::backoff(waits.iter().copied().map(Duration::from_millis))
            .with_jitter(*jitter)
            .forgotten_after(period(*forget))
            .build(),
        Numbers::Bucket {
            capacity,
            refill,
            block,
        } => {
            let words = Limit::attempts(*capacity).within(period(Some(*refill)));
            with_blocks(words.as_token_bucket(), block).build()
        }
        Numbers::Counter {
            limit,
            window,
            block,
        } => {
            let words = Limit::attempts(*limit).within(period(Some(*window)));
            with_blocks(words.as_sliding_counter(), block).build()
        }
    };
    limit.expect("valid numbers")
}

fn with_blocks(words: LimitBuilder, blocks: &Option<Blocks>) -> LimitBuilder {
    let Some(Blocks { lengths, again }) = blocks else {
        return words.without_block();
    };
    let words = words.blocked_for(period(lengths[0]));
    if lengths.len() == 1 {
        return words;
    }
    let then_for = |words: LimitBuilder, length: &Length| words.then_for(period(*length));
    let words = lengths[1..].iter().fold(words, then_for);
    words.again_within(period(Some(*again)))
}

fn block(numbers: &Numbers) -> Option<&Blocks> {
    match numbers {
        Numbers::Window { block, .. }
        | Numbers::Bucket { block, .. }
        | Numbers::Counter { block, .. } => block.as_ref(),
        Numbers::Backoff { .. } => None,
    }
}

/// Every length that means something to a rule, those of its blocks last.
fn lengths(numbers: &Numbers) -> Vec<Length> {
    let mut lengths = match numbers {
        Numbers::Window { window, .. } => vec![*window],
        Numbers::Backoff { waits, forget, .. } => {
            let waits = waits.iter().copied().map(Some);
            [*forget].into_iter().chain(waits).collect()
        }
        Numbers::Bucket {
            capacity, refill, ..
        } => {
            let one = refill.div_ceil(u64::from(*capacity));
            vec![Some(*refill), Some(one)]
        }
        Numbers::Counter { window, .. } => vec![Some(*window), Some(2 * window)],
    };
    if let Some(blocks) = block(numbers) {
        lengths.extend(&blocks.lengths);
        // Whether a block came again soon matters only if that makes it longer.
        if blocks.lengths.len() > 1 {
            let again = |length: &Length| length.map(|length| length + blocks.again);
            lengths.extend(blocks.lengths.iter().map(again));
        }
    }
    lengths
}

/// How many entries a counter may hold after an admission: no more than the limit, and where there is a
/// past, those in flight and the newest 8.
fn most_held(numbers: &Numbers) -> usize {
    match numbers {
        Numbers::Window { limit, .. } => *limit as usize,
        Numbers::Backoff { waits, .. } => waits.len() + 1,
        Numbers::Bucket { capacity, .. } => *capacity as usize + 8,
        Numbers::Counter { limit, .. } => *limit as usize + 8,
    }
}

/// Three rules: in numbers for the oracle, in the crate's words for everybody else.
struct Policy {
    numbers: Rules,
    limits: [Limit; 3],
}

impl Policy {
    fn new(numbers: &Rules) -> Self {
        Self {
            numbers: numbers.clone(),
            limits: numbers.each_ref().map(limit),
        }
    }

    /// The keys that apply, as text, for the oracle.
    fn keys(&self, who: Who) -> Vec<(String, Numbers)> {
        names(who).into_iter().zip(self.numbers.clone()).collect()
    }

    /// The same for the state machine.
    fn limits(&self, who: Who) -> Vec<(String, &Limit)> {
        names(who).into_iter().zip(&self.limits).collect()
    }

    /// The same for the stores.
    fn slots(&self, who: Who) -> Vec<Slot<'_>> {
        let users: [&[u8]; USERS] = [b"user", b"us:er", b"{user}\0"];
        let of_address = |rule| Key::of_address(address(who.address), rule);
        let mut keys = vec![of_address(RULES[0])];
        if let Some(user) = who.user {
            keys.push(of_address(RULES[1]).and_subject(users[user]));
            keys.push(Key::of_subject(RULES[2], users[user]));
        }
        keys.into_iter()
            .zip(&self.limits)
            .map(|(key, limit)| Slot::new(key, limit))
            .collect()
    }
}

fn address(i: usize) -> Address {
    ["192.0.2.1", "2001:db8:1:2::/64"][i]
        .parse()
        .expect("an address")
}

/// Keys as text, in the order of the rules.
fn names(who: Who) -> Vec<String> {
    let Who { address, user } = who;
    let mut names = vec![format!("address {address}")];
    if let Some(user) = user {
        names.push(format!("address {address} user {user}"));
        names.push(format!("user {user}"));
    }
    names
}

/// The pair's key first, where there is one: what a success cleans up.
fn pair_first<T>(mut keys: Vec<T>) -> Vec<T> {
    if keys.len() > 1 {
        keys.swap(0, 1);
    }
    keys
}

fn said(standings: &[Standing]) -> Vec<Answer> {
    let verdict = |state| match state {
        State::Exempt => unreachable!(),
        State::Clear => Verdict::Clear,
        State::Busy => Verdict::Busy,
        State::Blocked { lifts } => {
            Verdict::Blocked(lifts.as_duration().map(|d| d.as_millis() as u64))
        }
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
struct Machine(HashMap<String, Counter>);

impl Machine {
    fn standings(&self, keys: &[(String, &Limit)], now: u64) -> Vec<Standing> {
        let standing = |(key, limit): &(String, &Limit)| match self.0.get(key) {
            Some(counter) => counter.standing(limit, now),
            None => Counter::default().standing(limit, now),
        };
        keys.iter().map(standing).collect()
    }

    fn reserve(
        &mut self,
        token: Token,
        lease: u64,
        keys: &[(String, &Limit)],
        now: u64,
    ) -> Vec<Answer> {
        let mut standings = self.standings(keys, now);
        let holds = |key| self.0.get(key).is_some_and(|counter| counter.holds(token));
        let mut asked = standings.iter().zip(keys);
        if asked.all(|(standing, (key, _))| !standing.refuses() || holds(key)) {
            for (standing, (key, limit)) in standings.iter_mut().zip(keys) {
                let counter = self.0.entry(key.clone()).or_default();
                *standing = counter.admit(limit, token, lease, now);
            }
        }
        said(&standings)
    }

    fn each(&mut self, keys: &[String], mut change: impl FnMut(&mut Counter) -> usize) -> usize {
        keys.iter()
            .filter_map(|key| self.0.get_mut(key).map(&mut change))
            .sum()
    }

    fn cleanup(&mut self, token: Option<Token>, keys: &[String], now: u64) {
        let main = self.0.entry(keys[0].clone()).or_default();
        let tokens = main.clean_up(token, now);
        self.each(&keys[1..], |counter| counter.cancel_all(&tokens));
    }
}

/// Tokens that are the same whenever a history is played: which is first of those that failed at one
/// time, and how long a wait is with its jitter, depends on them.
struct Tokens {
    seed: u64,
    drawn: u64,
}

impl Tokens {
    fn draw(&mut self) -> Token {
        const GOLDEN: u64 = 0x9E37_79B9_7F4A_7C15;
        self.drawn += 1;
        let scattered = self.seed.wrapping_add(self.drawn.wrapping_mul(GOLDEN));
        let mut bytes = [0; 16];
        bytes[..8].copy_from_slice(&scattered.to_be_bytes());
        bytes[8..].copy_from_slice(&self.drawn.to_be_bytes());
        if scattered.is_multiple_of(4) {
            // The ends and the middle of the jitter would be rare.
            bytes[0] = [0, 127, 128, 255][bytes[0] as usize % 4];
        }
        Token::from_bytes(bytes)
    }
}

/// Plays one history to everybody.
struct Play<'a> {
    policy: Policy,
    changed: Policy,
    clock: Arc<ManualClock>,
    oracle: Oracle,
    machine: Machine,
    stores: &'a [(&'static str, Arc<dyn Store>)],
    tokens: Tokens,
    attempts: Vec<(Token, Who)>,
    lifts: u64,
}

impl Play<'_> {
    async fn op(&mut self, op: &Op) -> Result<(), TestCaseError> {
        match op {
            Op::Reserve(who) => self.begin(LEASE, *who).await?,
            Op::Count(who) => self.begin(0, *who).await?,
            Op::ChangePolicy => std::mem::swap(&mut self.policy, &mut self.changed),
            Op::ReserveAgain(index) => {
                if let Some((token, who)) = self.chosen(index) {
                    self.reserve(token, LEASE, who).await?;
                }
            }
            Op::Fail(index) => {
                if let Some((token, who)) = self.chosen(index) {
                    self.fail(token, who).await?;
                }
            }
            Op::Cancel(index) => {
                if let Some((token, who)) = self.chosen(index) {
                    self.cancel(token, who).await?;
                }
            }
            Op::Succeed(index) => {
                if let Some((token, who)) = self.chosen(index) {
                    self.cleanup(Some(token), who, usize::MAX).await?;
                }
            }
            Op::Cleanup(who) => self.cleanup(None, *who, usize::MAX).await?,
            Op::Unblock(who) => self.cleanup(None, *who, 1).await?,
            Op::Check(who) => self.check(*who).await?,
            Op::FailMany(who, times, apart) => self.fail_many(*who, *times, *apart).await?,
            Op::Time(step) => self.step(*step),
        }
        Ok(())
    }

    fn chosen(&self, index: &Index) -> Option<(Token, Who)> {
        (!self.attempts.is_empty()).then(|| *index.get(&self.attempts))
    }

    fn step(&mut self, step: Step) {
        let now = self.clock.now();
        let rule = |rule: usize| &self.policy.numbers[rule];
        let (to, by) = match step {
            Step::Forward(by) => (now + by, 0),
            Step::Back(by) => (now - by, 0),
            Step::Lease(by) => (now + LEASE, by),
            Step::Length(of, which, by) => {
                let length = which.get(&lengths(rule(of))).unwrap_or(DAY);
                (now + length, by)
            }
            Step::Boundary(of, by) => {
                let window = lengths(rule(of))[0].unwrap_or(DAY);
                ((now / window + 1) * window, by)
            }
            Step::Lift(by) => (self.lifts.max(now), by),
            Step::Again(of, by) => {
                let again = block(rule(of)).map_or(DAY, |blocks| blocks.again);
                (now.max(self.lifts + again), by)
            }
        };
        self.clock.set(to.saturating_add_signed(by));
    }

    /// A new attempt.
    async fn begin(&mut self, lease: u64, who: Who) -> Result<(), TestCaseError> {
        let token = self.tokens.draw();
        self.attempts.push((token, who));
        self.reserve(token, lease, who).await
    }

    async fn fail_many(&mut self, who: Who, times: u32, apart: u64) -> Result<(), TestCaseError> {
        for _ in 0..times {
            let token = self.tokens.draw();
            self.reserve(token, LEASE, who).await?;
            self.fail(token, who).await?;
            self.clock.set(self.clock.now() + apart);
        }
        Ok(())
    }

    async fn reserve(&mut self, token: Token, lease: u64, who: Who) -> Result<(), TestCaseError> {
        let now = self.clock.now();
        let keys = self.policy.keys(who);
        let expected = self.oracle.reserve(*token.as_bytes(), lease, &keys, now);
        self.note_lift(&expected);
        let limits = self.policy.limits(who);
        let machine = self.machine.reserve(token, lease, &limits, now);
        prop_assert_eq!(&machine, &expected, "machine, reserving for {:?}", who);
        for (name, store) in self.stores {
            let slots = self.policy.slots(who);
            let lease = Duration::from_millis(lease);
            let standings = store.reserve(token, lease, &slots).await.expect("decided");
            prop_assert_eq!(
                &said(&standings),
                &expected,
                "{}, reserving for {:?}",
                name,
                who
            );
        }
        // A counter never holds more than its rule needs, or than an earlier one needed.
        let both = self.policy.numbers.iter().chain(&self.changed.numbers);
        let most = both.map(most_held).max();
        for (key, _) in &keys {
            prop_assert!(Some(self.oracle.held(key)) <= most);
        }
        Ok(())
    }

    async fn check(&mut self, who: Who) -> Result<(), TestCaseError> {
        let now = self.clock.now();
        let expected = self.oracle.check(&self.policy.keys(who), now);
        self.note_lift(&expected);
        let machine = said(&self.machine.standings(&self.policy.limits(who), now));
        prop_assert_eq!(&machine, &expected, "machine, checking {:?}", who);
        for (name, store) in self.stores {
            let slots = self.policy.slots(who);
            let standings: Standings = store.check(&slots).await.expect("checked");
            prop_assert_eq!(&said(&standings), &expected, "{}, checking {:?}", name, who);
        }
        Ok(())
    }

    async fn fail(&mut self, token: Token, who: Who) -> Result<(), TestCaseError> {
        let now = self.clock.now();
        let keys = names(who);
        let expected = self.oracle.fail(*token.as_bytes(), &keys, now);
        let machine = self
            .machine
            .each(&keys, |counter| counter.fail(token, now).into());
        prop_assert_eq!(machine, expected, "machine");
        for (name, store) in self.stores {
            let slots = self.policy.slots(who);
            let changed = store.fail(token, &slots).await.expect("settled");
            prop_assert_eq!(changed, expected, "{}", name);
        }
        Ok(())
    }

    async fn cancel(&mut self, token: Token, who: Who) -> Result<(), TestCaseError> {
        let keys = names(who);
        let expected = self.oracle.cancel(*token.as_bytes(), &keys);
        let machine = self
            .machine
            .each(&keys, |counter| counter.cancel(token).into());
        prop_assert_eq!(machine, expected, "machine");
        for (name, store) in self.stores {
            let slots = self.policy.slots(who);
            let changed = store.cancel(token, &slots).await.expect("cancelled");
            prop_assert_eq!(changed, expected, "{}", name);
        }
        Ok(())
    }

    /// The first `counters` of `who`, the pair's being the main one. Nobody says what left; what is left
    /// shows right after.
    async fn cleanup(
        &mut self,
        token: Option<Token>,
        who: Who,
        counters: usize,
    ) -> Result<(), TestCaseError> {
        let now = self.clock.now();
        let keys = pair_first(names(who));
        let keys = &keys[..counters.min(keys.len())];
        let bytes = token.map(|token| *token.as_bytes());
        self.oracle.cleanup(bytes, keys, now);
        self.machine.cleanup(token, keys, now);
        for (_, store) in self.stores {
            let slots = pair_first(self.policy.slots(who));
            let others = &slots[1..keys.len()];
            let cleaned = store.cleanup(token, &slots[0], others).await;
            cleaned.expect("cleaned up");
        }
        self.check(who).await
    }

    fn note_lift(&mut self, answers: &[Answer]) {
        for answer in answers {
            if let Verdict::Blocked(Some(lifts)) = answer.verdict {
                self.lifts = self.clock.now() + lifts;
            }
        }
    }
}

async fn play(
    history: &History,
    clock: &Arc<ManualClock>,
    stores: &[(&'static str, Arc<dyn Store>)],
) -> Result<(), TestCaseError> {
    clock.set(START);
    let mut play = Play {
        policy: Policy::new(&history.rules),
        changed: Policy::new(&history.changed),
        clock: Arc::clone(clock),
        oracle: Oracle::default(),
        machine: Machine::default(),
        stores,
        tokens: Tokens {
            seed: history.seed,
            drawn: 0,
        },
        attempts: Vec::new(),
        lifts: START,
    };
    for op in &history.ops {
        play.op(op).await?;
    }
    // Whatever is left inside shows in what comes later.
    for later in [0, 5 * SECOND, LEASE, HOUR, 12 * HOUR, DAY, 3 * DAY] {
        clock.set(clock.now() + later);
        for address in 0..ADDRESSES {
            for user in 0..USERS {
                let user = Some(user);
                play.check(Who { address, user }).await?;
            }
        }
    }
    Ok(())
}

fn config(cases: u32) -> ProptestConfig {
    let seeds = FileFailurePersistence::Direct("tests/it/model.seeds");
    ProptestConfig {
        cases,
        failure_persistence: Some(Box::new(seeds)),
        max_shrink_iters: 20_000,
        ..ProptestConfig::default()
    }
}

/// How long a key may live without a block for ever and the like.
fn longest_life(history: &History) -> u64 {
    let rules = history.rules.iter().chain(&history.changed);
    let longest = rules.flat_map(lengths).flatten().max();
    // What was in flight when the clock was set back is in flight for longer.
    let set_back = |op: &Op| match op {
        Op::Time(Step::Back(by)) => *by,
        _ => 1,
    };
    let set_back = history.ops.iter().map(set_back).sum::<u64>();
    longest.unwrap_or(0) + LEASE + set_back
}

fn anything_for_ever(history: &History) -> bool {
    let mut rules = history.rules.iter().chain(&history.changed);
    rules.any(|numbers| lengths(numbers).contains(&None))
}

#[test]
fn ten_thousand_histories_in_memory() {
    let runtime = tokio::runtime::Builder::new_current_thread()
        .build()
        .unwrap();
    let clock = Arc::new(ManualClock::at(START));
    proptest!(config(10_000), |(history in history())| {
        let store = MemoryStore::new().with_clock(Arc::clone(&clock));
        let stores: [(_, Arc<dyn Store>); 1] = [("memory", Arc::new(store))];
        runtime.block_on(play(&history, &clock, &stores))?;
    });
}

#[test]
fn a_thousand_histories_on_redis() {
    let runtime = tokio::runtime::Builder::new_current_thread()
        .enable_all()
        .build()
        .unwrap();
    let clock = Arc::new(ManualClock::at(START));
    let mut redis = RedisServer::start();
    redis.keys_may_live(None);
    let builder = redis.builder().clock(Arc::clone(&clock));
    let store = runtime.block_on(builder.connect(redis.url())).unwrap();
    let shared: Arc<dyn Store> = Arc::new(store);
    proptest!(config(1_000), |(history in history())| {
        redis.flush();
        let memory = MemoryStore::new().with_clock(Arc::clone(&clock));
        let stores = [("memory", Arc::new(memory) as Arc<dyn Store>), ("redis", Arc::clone(&shared))];
        runtime.block_on(play(&history, &clock, &stores))?;

        let longest = longest_life(&history);
        let for_ever = anything_for_ever(&history);
        for (key, ttl) in redis.keys() {
            prop_assert!(ttl <= longest as i64, "{} lives for {}", key, ttl);
            prop_assert!(ttl >= 0 || for_ever, "{} never ends", key);
        }
    });
}
