//! One model, every implementation: random histories of reserving, settling, checking, cleaning up
//! and time going forward and back are played to the oracle, to the state machine, to the memory
//! store and to a real Redis, and every reply must be the same.

use std::{collections::HashMap, sync::Arc, time::Duration};

use proptest::{prelude::*, sample::Index, test_runner::FileFailurePersistence};
use tower_login_rate_limit::{
    Address, Limit, Period, Token,
    algorithm::{SlidingWindow, Standing, State, Window},
    clock::{Clock, ManualClock},
    store::{Key, MemoryStore, Slot, Standings, Store},
};

use crate::support::{
    DAY, HOUR, MINUTE, RedisServer, SECOND, START,
    oracle::{Numbers, Oracle, Verdict},
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
    FailMany(Who, u32),
    Time(Step),
}

#[derive(Clone, Copy, Debug)]
enum Step {
    Forward(u64),
    Back(u64),
    /// By a length that means something to a rule, give or take a millisecond.
    Lease(i64),
    Window(usize, i64),
    Block(usize, i64),
    /// To when the last block that was reported lifts.
    Lift(i64),
}

fn who() -> impl Strategy<Value = Who> {
    (0..ADDRESSES, proptest::option::weighted(0.8, 0..USERS))
        .prop_map(|(address, user)| Who { address, user })
}

fn step() -> impl Strategy<Value = Step> {
    let about = -1..=1_i64;
    prop_oneof![
        2 => prop_oneof![0..3_u64, 1..MINUTE, 1..2 * HOUR, 1..30 * HOUR].prop_map(Step::Forward),
        1 => prop_oneof![1..5_u64, 1..MINUTE, 1..2 * HOUR, 1..2 * DAY].prop_map(Step::Back),
        1 => about.clone().prop_map(Step::Lease),
        1 => (0..RULES.len(), about.clone()).prop_map(|(rule, by)| Step::Window(rule, by)),
        1 => (0..RULES.len(), about.clone()).prop_map(|(rule, by)| Step::Block(rule, by)),
        2 => about.prop_map(Step::Lift),
    ]
}

fn op() -> impl Strategy<Value = Op> {
    prop_oneof![
        6 => who().prop_map(Op::Reserve),
        1 => who().prop_map(Op::Count),
        1 => Just(Op::ChangePolicy),
        1 => any::<Index>().prop_map(Op::ReserveAgain),
        4 => any::<Index>().prop_map(Op::Fail),
        1 => any::<Index>().prop_map(Op::Cancel),
        1 => any::<Index>().prop_map(Op::Succeed),
        1 => who().prop_map(Op::Cleanup),
        1 => who().prop_map(Op::Unblock),
        2 => who().prop_map(Op::Check),
        2 => (who(), 1..6_u32).prop_map(|(who, n)| Op::FailMany(who, n)),
        4 => step().prop_map(Op::Time),
    ]
}

fn numbers() -> impl Strategy<Value = Numbers> {
    let window = prop_oneof![
        3 => Just(Some(HOUR)),
        3 => Just(Some(DAY)),
        1 => Just(None),
    ];
    let block = prop_oneof![
        2 => Just(None),
        1 => Just(Some(None)),
        6 => prop_oneof![Just(10 * MINUTE), Just(HOUR), Just(DAY), Just(3 * DAY)]
            .prop_map(|block| Some(Some(block))),
    ];
    (
        prop_oneof![Just(1_u32), Just(2), Just(3), Just(5)],
        window,
        block,
    )
        .prop_map(|(limit, window, block)| Numbers {
            limit,
            window,
            block,
        })
}

#[derive(Clone, Debug)]
struct History {
    rules: [Numbers; 3],
    /// Another policy, to change to and back.
    changed: [Numbers; 3],
    ops: Vec<Op>,
}

fn history() -> impl Strategy<Value = History> {
    let small = (
        [numbers(), numbers(), numbers()],
        proptest::collection::vec(op(), 1..60),
    );
    // A limit beyond the size at which Redis changes the form of a sorted set; reached by many at
    // once, or a history would have to be thousands of operations long.
    let large = (
        [numbers(), numbers(), numbers()],
        proptest::collection::vec(op(), 1..12),
        100..320_u32,
    )
        .prop_map(|(mut rules, mut ops, many)| {
            let who = Who {
                address: 0,
                user: Some(0),
            };
            for numbers in &mut rules {
                numbers.limit = 300;
            }
            ops.insert(0, Op::FailMany(who, many));
            let half = ops.len() / 2;
            ops.insert(half, Op::FailMany(who, 300));
            (rules, ops)
        });
    let histories = (
        prop_oneof![30 => small, 1 => large],
        [numbers(), numbers(), numbers()],
    );
    histories.prop_map(|((rules, ops), changed)| History {
        rules,
        changed,
        ops,
    })
}

fn limit(numbers: Numbers) -> Limit {
    let period = |length: Option<u64>| {
        length.map_or(Period::Forever, |millis| {
            Period::Of(Duration::from_millis(millis))
        })
    };
    let words = Limit::attempts(numbers.limit).within(period(numbers.window));
    let words = match numbers.block {
        Some(block) => words.blocked_for(period(block)),
        None => words.without_block(),
    };
    words.build().expect("valid numbers")
}

fn address(i: usize) -> Address {
    ["192.0.2.1", "2001:db8:1:2::/64"][i]
        .parse()
        .expect("an address")
}

/// The rules that apply, each with its key as text, for the oracle.
fn keys(who: Who, rules: &[Numbers; 3]) -> Vec<(String, Numbers)> {
    let Who { address, user } = who;
    let mut keys = vec![(format!("address {address}"), rules[0])];
    if let Some(user) = user {
        keys.push((format!("address {address} user {user}"), rules[1]));
        keys.push((format!("user {user}"), rules[2]));
    }
    keys
}

/// The same for the stores.
fn slots(who: Who, rules: &[Numbers; 3]) -> Vec<Slot<'static>> {
    let users: [&[u8]; USERS] = [b"user", b"us:er", b"{user}\0"];
    let of_address = |rule| Key::of_address(address(who.address), rule);
    let mut keys = vec![of_address(RULES[0])];
    if let Some(user) = who.user {
        keys.push(of_address(RULES[1]).and_subject(users[user]));
        keys.push(Key::of_subject(RULES[2], users[user]));
    }
    keys.into_iter()
        .zip(rules)
        .map(|(key, numbers)| Slot {
            key,
            limit: limit(*numbers),
        })
        .collect()
}

fn names(keys: &[(String, Numbers)]) -> Vec<String> {
    keys.iter().map(|(key, _)| key.clone()).collect()
}

/// The pair's key first, where there is one: what a success cleans up.
fn pair_first<T>(mut keys: Vec<T>) -> Vec<T> {
    if keys.len() > 1 {
        keys.swap(0, 1);
    }
    keys
}

fn said(standings: &[Standing]) -> Vec<(u32, Verdict)> {
    let verdict = |state| match state {
        State::Clear => Verdict::Clear,
        State::Busy => Verdict::Busy,
        State::Blocked { lifts } => {
            Verdict::Blocked(lifts.as_duration().map(|d| d.as_millis() as u64))
        }
    };
    standings
        .iter()
        .map(|standing| (standing.usage, verdict(standing.state)))
        .collect()
}

/// The state machine alone, one window for each key.
#[derive(Default)]
struct Machine(HashMap<String, Window>);

impl Machine {
    fn standings(&self, keys: &[(String, Numbers)], now: u64) -> Vec<Standing> {
        let standing = |(key, numbers): &(String, Numbers)| match self.0.get(key) {
            Some(window) => window.standing(&sliding(*numbers), now),
            None => Window::default().standing(&sliding(*numbers), now),
        };
        keys.iter().map(standing).collect()
    }

    fn reserve(
        &mut self,
        token: Token,
        lease: u64,
        keys: &[(String, Numbers)],
        now: u64,
    ) -> Vec<(u32, Verdict)> {
        let mut standings = self.standings(keys, now);
        let holds = |key| self.0.get(key).is_some_and(|window| window.holds(token));
        let mut asked = standings.iter().zip(keys);
        if asked.all(|(standing, (key, _))| !standing.refuses() || holds(key)) {
            for (standing, (key, numbers)) in standings.iter_mut().zip(keys) {
                let window = self.0.entry(key.clone()).or_default();
                *standing = window.admit(&sliding(*numbers), token, lease, now);
            }
        }
        said(&standings)
    }

    fn each(&mut self, keys: &[String], mut change: impl FnMut(&mut Window) -> usize) -> usize {
        keys.iter()
            .filter_map(|key| self.0.get_mut(key).map(&mut change))
            .sum()
    }

    fn cleanup(&mut self, token: Option<Token>, keys: &[String], now: u64) -> usize {
        let mut tokens: Vec<_> = token.into_iter().collect();
        if let Some(main) = self.0.get(&keys[0])
            && token.is_none_or(|token| main.holds(token))
        {
            tokens.extend(main.failed(now));
        }
        let left = self.each(&keys[..1], |window| window.cancel_all(&tokens));
        self.each(&keys[1..], |window| window.cancel_all(&tokens));
        left
    }
}

fn sliding(numbers: Numbers) -> SlidingWindow {
    match limit(numbers) {
        Limit::SlidingWindow(limit) => limit,
        other => panic!("{other:?}"),
    }
}

fn number(token: Token) -> u128 {
    u128::from_be_bytes(*token.as_bytes())
}

/// Plays one history to everybody.
struct Play<'a> {
    rules: [Numbers; 3],
    changed: [Numbers; 3],
    clock: Arc<ManualClock>,
    oracle: Oracle,
    machine: Machine,
    stores: &'a [(&'static str, Arc<dyn Store>)],
    attempts: Vec<(Token, Who)>,
    lifts: u64,
}

impl Play<'_> {
    async fn op(&mut self, op: &Op) -> Result<(), TestCaseError> {
        let chosen =
            |index: &Index| (!self.attempts.is_empty()).then(|| *index.get(&self.attempts));
        match op {
            Op::Reserve(who) => {
                let token = Token::new();
                self.attempts.push((token, *who));
                self.reserve(token, LEASE, *who).await?;
            }
            Op::Count(who) => {
                let token = Token::new();
                self.attempts.push((token, *who));
                self.reserve(token, 0, *who).await?;
            }
            Op::ChangePolicy => std::mem::swap(&mut self.rules, &mut self.changed),
            Op::ReserveAgain(index) => {
                if let Some((token, who)) = chosen(index) {
                    self.reserve(token, LEASE, who).await?;
                }
            }
            Op::Fail(index) => {
                if let Some((token, who)) = chosen(index) {
                    self.fail(token, who).await?;
                }
            }
            Op::FailMany(who, times) => {
                for _ in 0..*times {
                    let token = Token::new();
                    self.reserve(token, LEASE, *who).await?;
                    self.fail(token, *who).await?;
                }
            }
            Op::Cancel(index) => {
                if let Some((token, who)) = chosen(index) {
                    let keys = names(&keys(who, &self.rules));
                    let expected = self.oracle.cancel(number(token), &keys);
                    let machine = self.machine.each(&keys, |w| w.cancel(token).into());
                    prop_assert_eq!(machine, expected, "machine");
                    for (name, store) in self.stores {
                        let slots = slots(who, &self.rules);
                        let changed = store.cancel(token, &slots).await.expect("cancelled");
                        prop_assert_eq!(changed, expected, "{}", name);
                    }
                }
            }
            Op::Succeed(index) => {
                if let Some((token, who)) = chosen(index) {
                    self.cleanup(Some(token), who, usize::MAX).await?;
                }
            }
            Op::Cleanup(who) => self.cleanup(None, *who, usize::MAX).await?,
            Op::Unblock(who) => self.cleanup(None, *who, 1).await?,
            Op::Check(who) => self.check(*who).await?,
            Op::Time(step) => self.step(*step),
        }
        Ok(())
    }

    fn step(&mut self, step: Step) {
        let now = self.clock.now();
        let length = |length: Option<u64>| length.unwrap_or(DAY);
        let to = match step {
            Step::Forward(by) => now + by,
            Step::Back(by) => now - by,
            Step::Lease(by) => (now + LEASE).saturating_add_signed(by),
            Step::Window(rule, by) => {
                (now + length(self.rules[rule].window)).saturating_add_signed(by)
            }
            Step::Block(rule, by) => {
                let block = self.rules[rule].block.unwrap_or(None);
                (now + length(block)).saturating_add_signed(by)
            }
            Step::Lift(by) => self.lifts.max(now).saturating_add_signed(by),
        };
        self.clock.set(to);
    }

    async fn reserve(&mut self, token: Token, lease: u64, who: Who) -> Result<(), TestCaseError> {
        let now = self.clock.now();
        let keys = keys(who, &self.rules);
        let expected = self.oracle.reserve(number(token), lease, &keys, now);
        self.note_lift(&expected);
        let machine = self.machine.reserve(token, lease, &keys, now);
        prop_assert_eq!(&machine, &expected, "machine, reserving for {:?}", who);
        for (name, store) in self.stores {
            let slots = slots(who, &self.rules);
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
        // A counter never holds more than its limit, or than an earlier one that was higher.
        for (key, _) in &keys {
            let rules = self.rules.iter().chain(&self.changed);
            let highest = rules.map(|numbers| numbers.limit as usize).max();
            prop_assert!(Some(self.oracle.held(key)) <= highest);
        }
        Ok(())
    }

    async fn check(&mut self, who: Who) -> Result<(), TestCaseError> {
        let now = self.clock.now();
        let keys = keys(who, &self.rules);
        let expected = self.oracle.check(&keys, now);
        self.note_lift(&expected);
        let machine = said(&self.machine.standings(&keys, now));
        prop_assert_eq!(&machine, &expected, "machine, checking {:?}", who);
        for (name, store) in self.stores {
            let standings: Standings = store
                .check(&slots(who, &self.rules))
                .await
                .expect("checked");
            prop_assert_eq!(&said(&standings), &expected, "{}, checking {:?}", name, who);
        }
        Ok(())
    }

    async fn fail(&mut self, token: Token, who: Who) -> Result<(), TestCaseError> {
        let now = self.clock.now();
        let keys = names(&keys(who, &self.rules));
        let expected = self.oracle.fail(number(token), &keys, now);
        let machine = self
            .machine
            .each(&keys, |window| window.fail(token, now).into());
        prop_assert_eq!(machine, expected, "machine");
        for (name, store) in self.stores {
            let slots = slots(who, &self.rules);
            let changed = store.fail(token, &slots).await.expect("settled");
            prop_assert_eq!(changed, expected, "{}", name);
        }
        Ok(())
    }

    /// The first counter of `who` and this many others with it.
    async fn cleanup(
        &mut self,
        token: Option<Token>,
        who: Who,
        counters: usize,
    ) -> Result<(), TestCaseError> {
        let now = self.clock.now();
        let keys = pair_first(names(&keys(who, &self.rules)));
        let keys = &keys[..counters.min(keys.len())];
        let expected = self.oracle.cleanup(token.map(number), keys, now);
        let machine = self.machine.cleanup(token, keys, now);
        prop_assert_eq!(machine, expected, "machine");
        for (name, store) in self.stores {
            let slots = pair_first(slots(who, &self.rules));
            let others = &slots[1..keys.len()];
            let left = store
                .cleanup(token, &slots[0], others)
                .await
                .expect("cleaned up");
            prop_assert_eq!(left, expected, "{}", name);
        }
        Ok(())
    }

    fn note_lift(&mut self, answers: &[(u32, Verdict)]) {
        for (_, verdict) in answers {
            if let Verdict::Blocked(Some(lifts)) = verdict {
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
        rules: history.rules,
        changed: history.changed,
        clock: Arc::clone(clock),
        oracle: Oracle::default(),
        machine: Machine::default(),
        stores,
        attempts: Vec::new(),
        lifts: 0,
    };
    for op in &history.ops {
        play.op(op).await?;
    }
    // Whatever is left inside shows in what comes later.
    for later in [0, LEASE, HOUR, 12 * HOUR, DAY, 3 * DAY] {
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

        let longest = |numbers: &Numbers| numbers.window.max(numbers.block.flatten());
        let rules = || history.rules.iter().chain(&history.changed);
        let longest = rules().filter_map(longest).max().unwrap_or(0) + LEASE;
        // What was in flight when the clock was set back is in flight for longer.
        let set_back = |op: &Op| match op {
            Op::Time(Step::Back(by)) => *by,
            _ => 1,
        };
        let longest = longest + history.ops.iter().map(set_back).sum::<u64>();
        let for_ever = |n: &Numbers| n.window.is_none() || n.block == Some(None);
        let for_ever = rules().any(for_ever);
        for (key, ttl) in redis.keys() {
            prop_assert!(ttl <= longest as i64, "{} lives for {}", key, ttl);
            prop_assert!(ttl >= 0 || for_ever, "{} never ends", key);
        }
    });
}
