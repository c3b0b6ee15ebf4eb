//! Histories: what may happen, drawn at random.

use proptest::{prelude::*, sample::Index};

use crate::support::{
    DAY, HOUR, MINUTE, SECOND,
    oracle::{Blocks, Numbers},
};

pub const LEASE: u64 = 30 * SECOND;
pub const ADDRESSES: usize = 2;
pub const USERS: usize = 3;
pub const SPELLINGS: usize = 3;

/// The address rule, the rule by user and address, and one by user alone, which lives elsewhere.
pub const RULES: [&str; 3] = ["address", "user-address", "account"];

#[derive(Clone, Copy, Debug)]
pub struct Who {
    pub address: usize,
    pub user: Option<usize>,
    /// How the user is spelled; 0 is the normal form.
    pub spelling: usize,
}

#[derive(Clone, Debug)]
pub enum Op {
    Reserve(Who),
    /// With no lease, so that it counts at once.
    Count(Who),
    ChangePolicy,
    /// The same attempt once more, as after a lost reply.
    ReserveAgain(Index),
    Fail(Index),
    Cancel(Index),
    /// The account that the app finds has this spelling of the name.
    Identify(Index, usize),
    Succeed(Index),
    Cleanup(Who),
    Unblock(Who),
    /// The address becomes one that the user is known to come from.
    Remember(Who),
    Check(Who),
    /// So many, and so many milliseconds from each to the next.
    FailMany(Who, u32, u64),
    Time(Step),
}

#[derive(Clone, Copy, Debug)]
pub enum Step {
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

pub fn who() -> impl Strategy<Value = Who> {
    let spelling = prop_oneof![3 => Just(0), 1 => 0..SPELLINGS];
    let user = proptest::option::weighted(0.8, 0..USERS);
    (0..ADDRESSES, user, spelling).prop_map(|(address, user, spelling)| Who {
        address,
        user,
        spelling,
    })
}

pub fn step() -> impl Strategy<Value = Step> {
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

pub fn fail_many() -> impl Strategy<Value = Op> {
    // More than are kept one by one, too.
    let times = prop_oneof![3 => 1..6_u32, 1 => 6..22_u32];
    let apart = prop_oneof![3 => Just(0), 1 => 1..5_u64, 1 => 1..10 * SECOND, 1 => 1..10 * MINUTE];
    (who(), times, apart).prop_map(|(who, times, apart)| Op::FailMany(who, times, apart))
}

pub fn op() -> BoxedStrategy<Op> {
    let op = prop_oneof![
        6 => who().prop_map(Op::Reserve),
        1 => who().prop_map(Op::Count),
        2 => Just(Op::ChangePolicy),
        1 => any::<Index>().prop_map(Op::ReserveAgain),
        4 => any::<Index>().prop_map(Op::Fail),
        1 => any::<Index>().prop_map(Op::Cancel),
        1 => (any::<Index>(), 0..SPELLINGS).prop_map(|(index, to)| Op::Identify(index, to)),
        1 => any::<Index>().prop_map(Op::Succeed),
        1 => who().prop_map(Op::Cleanup),
        1 => who().prop_map(Op::Unblock),
        1 => who().prop_map(Op::Remember),
        2 => who().prop_map(Op::Check),
        3 => fail_many(),
        5 => step().prop_map(Op::Time),
    ];
    op.boxed()
}

/// Mostly few, so that they are reached; some beyond what bucket and counter keep one by one.
pub fn few() -> impl Strategy<Value = u32> {
    prop_oneof![6 => 1..=5_u32, 1 => Just(12), 1 => Just(20)]
}

/// Lengths that grow; only the last may be for ever.
pub fn blocks() -> impl Strategy<Value = Option<Blocks>> {
    let lengths = [10 * SECOND, 10 * MINUTE, HOUR, DAY, 3 * DAY].map(Some);
    let lengths = lengths.into_iter().chain([None]).collect::<Vec<_>>();
    let lengths = proptest::sample::subsequence(lengths, 1..=3);
    let again = prop_oneof![Just(HOUR), Just(DAY), Just(3 * DAY)];
    let blocks = (lengths, again).prop_map(|(lengths, again)| Blocks { lengths, again });
    proptest::option::weighted(0.75, blocks)
}

/// Where blocks grow, bucket and counter want them to be so long at least.
fn no_shorter(mut blocks: Blocks, least: u64) -> Blocks {
    if blocks.lengths.len() > 1 {
        let longest = blocks.lengths.pop();
        blocks.lengths.retain(|length| *length >= Some(least));
        blocks.lengths.extend(longest);
    }
    blocks
}

/// Boxed, like the others: what proptest keeps of a policy would be too much for the stack.
pub fn window(limit: impl Strategy<Value = u32> + 'static) -> BoxedStrategy<Numbers> {
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

pub fn backoff() -> BoxedStrategy<Numbers> {
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
pub fn uneven() -> impl Strategy<Value = u64> {
    prop_oneof![
        // No shorter: in Redis, keys run out in real time.
        3 => Just(77_777),
        3 => Just(100 * SECOND),
        3 => Just(HOUR),
        2 => Just(DAY),
    ]
}

pub fn bucket(capacity: impl Strategy<Value = u32> + 'static) -> BoxedStrategy<Numbers> {
    let drawn = (capacity, uneven(), blocks());
    let numbers = drawn.prop_map(|(capacity, refill, block)| Numbers::Bucket {
        capacity,
        refill,
        block: block.map(|blocks| no_shorter(blocks, refill)),
    });
    numbers.boxed()
}

pub fn counter(limit: impl Strategy<Value = u32> + 'static) -> BoxedStrategy<Numbers> {
    let drawn = (limit, uneven(), blocks());
    let numbers = drawn.prop_map(|(limit, window, block)| Numbers::Counter {
        limit,
        window,
        block: block.map(|blocks| no_shorter(blocks, 2 * window)),
    });
    numbers.boxed()
}

pub type Rules = [Numbers; 3];

#[derive(Clone, Debug)]
pub struct History {
    pub rules: Rules,
    /// Another policy, to change to and back.
    pub changed: Rules,
    /// Which rules of both are in shadow.
    pub shadow: [[bool; 3]; 2],
    pub ops: Vec<Op>,
    /// Which tokens are drawn.
    pub seed: u64,
}

/// A rule, and what it is in the other policy.
pub type Change = (Numbers, Numbers);

pub fn any_rule() -> BoxedStrategy<Numbers> {
    prop_oneof![window(few()), backoff(), bucket(few()), counter(few())].boxed()
}

pub fn changes() -> impl Strategy<Value = [Change; 3]> {
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
pub fn large_changes() -> impl Strategy<Value = [Change; 3]> {
    let limit = || Just(300_u32);
    let rule =
        move || prop_oneof![2 => window(limit()), 1 => bucket(limit()), 1 => counter(limit())];
    let change = move || (rule(), any_rule());
    [change(), change(), change()]
}

pub fn history() -> impl Strategy<Value = History> {
    let small = (changes(), proptest::collection::vec(op(), 1..60));
    // The limit is reached by many at once, or a history would have to be thousands of operations long.
    let few_ops = proptest::collection::vec(op(), 1..12);
    let large = (large_changes(), few_ops, 100..320_u32).prop_map(|(changes, mut ops, many)| {
        let who = Who {
            address: 0,
            user: Some(0),
            spelling: 0,
        };
        ops.insert(0, Op::FailMany(who, many, 0));
        let half = ops.len() / 2;
        ops.insert(half, Op::FailMany(who, 300, 1));
        (changes, ops)
    });
    let played = prop_oneof![30 => small, 1 => large];
    // In half of the histories none is, so that rules stand in each other's way.
    let shadow = prop_oneof![1 => Just([[false; 3]; 2]), 1 => any::<[[bool; 3]; 2]>()];
    (played, shadow, any::<u64>()).prop_map(|((changes, ops), shadow, seed)| History {
        rules: changes.each_ref().map(|(rule, _)| rule.clone()),
        changed: changes.map(|(_, changed)| changed),
        shadow,
        ops,
        seed,
    })
}
