//! One model, every implementation: random histories of reserving, settling, checking, cleaning up
//! and time going forward and back are played to the oracle, to the state machine, to the memory
//! store and to a real Redis, and every reply must be the same. Each rule draws any of the four
//! algorithms, and policies change on the way.

mod history;
mod machine;
mod policy;

use std::{
    collections::{HashMap, HashSet},
    sync::Arc,
    time::Duration,
};

use proptest::{prelude::*, sample::Index, test_runner::FileFailurePersistence};
use tokio::runtime::Runtime;
use tower_login_rate_limit::{
    Token,
    clock::{Clock, ManualClock},
    store::{MemoryStore, Settlement, Standings, Store},
};

pub use self::{history::any_rule, policy::limit};

use self::{
    history::{ADDRESSES, History, LEASE, Op, SPELLINGS, Step, USERS, Who, history},
    machine::{Machine, agree, said},
    policy::{
        KNOWN_FOR, Policy, address, block, homes, kept, lengths, most_held, names, pair_first,
    },
};
use crate::support::{
    DAY, HOUR, RedisCluster, RedisServer, SECOND, START,
    oracle::{Answer, Oracle, Verdict},
};

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
    /// Those that may have failed in another spelling than they were reserved in. Redis has them under another
    /// name, and recognizes them in the spelling that they failed in.
    respelled: HashSet<Token>,
    failed: HashSet<Token>,
    /// When a user, spelled in one way, was last known to come from an address.
    known: HashMap<(usize, usize, usize), u64>,
    lifts: u64,
    /// Drops what is said to be of no more use, after so much time.
    forget: Option<&'a dyn Fn(u64)>,
}

impl Play<'_> {
    async fn op(&mut self, op: &Op) -> Result<(), TestCaseError> {
        match op {
            Op::Reserve(who) => self.begin(LEASE, *who).await?,
            Op::Count(who) => self.begin(0, *who).await?,
            Op::ChangePolicy => std::mem::swap(&mut self.policy, &mut self.changed),
            Op::ReserveAgain(index) => {
                if let Some((token, who)) = self.chosen(index)
                    && !self.respelled.contains(&token)
                {
                    self.reserve(token, LEASE, who).await?;
                }
            }
            Op::Fail(index) => {
                if let Some((token, who)) = self.chosen(index) {
                    self.failed.insert(token);
                    self.fail(token, who).await?;
                }
            }
            Op::Cancel(index) => {
                if let Some((token, who)) = self.chosen(index) {
                    self.cancel(token, who).await?;
                }
            }
            Op::Identify(index, spelling) => {
                if !self.attempts.is_empty() {
                    let i = index.index(self.attempts.len());
                    self.identify(i, *spelling).await?;
                }
            }
            Op::Succeed(index) => {
                if let Some((token, who)) = self.chosen(index) {
                    self.cleanup(Some(token), who, 1, false).await?;
                }
            }
            Op::Cleanup(who) => self.cleanup(None, *who, 1, false).await?,
            Op::Unblock(who) => {
                let all = names(*who).len();
                self.cleanup(None, *who, all, true).await?;
            }
            Op::Remember(who) => self.remember(*who).await,
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
        let to = to.saturating_add_signed(by);
        // A millisecond before now is before now.
        match self.forget {
            Some(_) => self.advance_to(to.max(now)),
            None => self.clock.set(to),
        }
    }

    fn advance_to(&self, to: u64) {
        let by = to - self.clock.now();
        self.clock.set(to);
        if let Some(forget) = self.forget {
            forget(by);
        }
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
            self.advance_to(self.clock.now() + apart);
        }
        Ok(())
    }

    async fn reserve(&mut self, token: Token, lease: u64, who: Who) -> Result<(), TestCaseError> {
        let (now, exempt) = (self.clock.now(), self.is_exempt(who));
        let asked = self.policy.asked(who, exempt);
        let expected = self
            .oracle
            .reserve(*token.as_bytes(), lease, who.spelling, &asked, now);
        self.note_lift(&expected);
        let limits = self.policy.limits(who, exempt);
        let machine =
            self.machine
                .reserve(token, lease, who.spelling, &limits, self.policy.shadow, now);
        agree(&machine, &expected)?;
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
        for asked in &asked {
            prop_assert!(Some(self.oracle.held(&asked.key)) <= most);
        }
        Ok(())
    }

    async fn check(&mut self, who: Who) -> Result<(), TestCaseError> {
        let (now, exempt) = (self.clock.now(), self.is_exempt(who));
        let expected = self.oracle.check(&self.policy.asked(who, exempt), now);
        self.note_lift(&expected);
        let limits = self.policy.limits(who, exempt);
        agree(&self.machine.standings(&limits, now), &expected)?;
        for (name, store) in self.stores {
            let slots = self.policy.slots(who);
            let standings: Standings = store.check(&slots).await.expect("checked");
            prop_assert_eq!(&said(&standings), &expected, "{}, checking {:?}", name, who);
        }
        Ok(())
    }

    async fn fail(&mut self, token: Token, who: Who) -> Result<(), TestCaseError> {
        let now = self.clock.now();
        // It may have become exempt since; what is in flight there is settled all the same.
        let asked = self.policy.asked(who, false);
        let expected = self
            .oracle
            .fail(*token.as_bytes(), who.spelling, &asked, now);
        let limits = self.policy.limits(who, false);
        let machine = self.machine.fail(token, who.spelling, &limits, now);
        prop_assert_eq!(&machine, &expected, "machine");
        for (name, store) in self.stores {
            let slots = self.policy.slots(who);
            let settled = store
                .settle(&[token], Settlement::Failed, &slots, Duration::ZERO)
                .await
                .expect("settled");
            self.agree_on_count(name, settled.changed, expected.0)?;
            let began: Vec<_> = settled.began.iter().map(|(i, _)| *i).collect();
            prop_assert_eq!(&began, &expected.1, "{}: blocks that begin", name);
        }
        Ok(())
    }

    /// As an attempt does it: from the normal form to another one, it is reserved once more.
    async fn identify(&mut self, attempt: usize, spelling: usize) -> Result<(), TestCaseError> {
        let (token, who) = &mut self.attempts[attempt];
        if who.user.is_none() || self.failed.contains(token) {
            return Ok(());
        }
        let was_normal = who.spelling == 0;
        who.spelling = spelling;
        let (token, who) = (*token, *who);
        self.respelled.insert(token);
        if was_normal && spelling != 0 {
            self.reserve(token, LEASE, who).await?;
        }
        Ok(())
    }

    async fn cancel(&mut self, token: Token, who: Who) -> Result<(), TestCaseError> {
        let asked = self.policy.asked(who, false);
        let now = self.clock.now();
        let (expected, lifted) = self.oracle.cancel(*token.as_bytes(), &asked, now);
        let machine = self
            .machine
            .each(&names(who), |counter| counter.cancel(token).into());
        prop_assert_eq!(machine, expected, "machine");
        for (name, store) in self.stores {
            let slots = self.policy.slots(who);
            let changed = store
                .settle(&[token], Settlement::Canceled, &slots, Duration::ZERO)
                .await
                .expect("cancelled");
            self.agree_on_count(name, changed.changed, expected)?;
            self.agree_on_lifted(name, &changed.lifted, &lifted)?;
        }
        Ok(())
    }

    fn is_exempt(&self, who: Who) -> bool {
        let last = who
            .user
            .and_then(|user| self.known.get(&(user, who.spelling, who.address)));
        last.is_some_and(|last| self.clock.now() < last + KNOWN_FOR)
    }

    async fn remember(&mut self, who: Who) {
        let Some(user) = who.user else { return };
        let now = self.clock.now();
        self.known.insert((user, who.spelling, who.address), now);
        for (_, store) in self.stores {
            let remembered =
                store.remember(&homes(user, who.spelling), address(who.address), kept());
            remembered.await.expect("remembered");
        }
    }

    /// The counters of `who`, the pair's first; the first so many are the main ones. Nobody says what
    /// left; what is left shows right after.
    async fn cleanup(
        &mut self,
        token: Option<Token>,
        who: Who,
        mains: usize,
        every_spelling: bool,
    ) -> Result<(), TestCaseError> {
        let now = self.clock.now();
        let keys = pair_first(names(who));
        let asked = pair_first(self.policy.asked(who, false));
        let bytes = token.map(|token| *token.as_bytes());
        let spelling = (!every_spelling).then_some(who.spelling);
        let lifted = (self.oracle).cleanup(bytes, spelling, &asked, mains, now);
        self.machine.cleanup(token, spelling, &keys, mains, now);
        let settlement = match token {
            Some(_) => Settlement::Succeeded { mains },
            None if every_spelling => Settlement::Cleared { mains },
            None => Settlement::Forgiven { mains },
        };
        for (name, store) in self.stores {
            let slots = pair_first(self.policy.slots(who));
            let cleaned = store.settle(token.as_slice(), settlement, &slots, Duration::ZERO);
            let cleaned = cleaned.await.expect("cleaned up");
            self.agree_on_lifted(name, &cleaned.lifted, &lifted)?;
        }
        self.check(who).await
    }

    /// What is of no more use is not blocked.
    fn agree_on_lifted(
        &self,
        name: &str,
        said: &[usize],
        expected: &[usize],
    ) -> Result<(), TestCaseError> {
        let mut said = said.to_vec();
        said.sort_unstable();
        prop_assert_eq!(&said, expected, "{}: blocks that end", name);
        Ok(())
    }

    /// What is of no more use may be gone, and then nothing is changed there.
    fn agree_on_count(
        &self,
        name: &str,
        said: usize,
        expected: usize,
    ) -> Result<(), TestCaseError> {
        match self.forget {
            None => prop_assert_eq!(said, expected, "{}", name),
            Some(_) => prop_assert!(said <= expected, "{}", name),
        }
        Ok(())
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
    forget: Option<&dyn Fn(u64)>,
) -> Result<(), TestCaseError> {
    clock.set(START);
    let mut play = Play {
        policy: Policy::new(&history.rules, history.shadow[0]),
        changed: Policy::new(&history.changed, history.shadow[1]),
        clock: Arc::clone(clock),
        oracle: Oracle::default(),
        machine: Machine::default(),
        stores,
        tokens: Tokens {
            seed: history.seed,
            drawn: 0,
        },
        attempts: Vec::new(),
        respelled: HashSet::new(),
        failed: HashSet::new(),
        known: HashMap::new(),
        lifts: START,
        forget,
    };
    for op in &history.ops {
        play.op(op).await?;
    }
    // Whatever is left inside shows in what comes later.
    for later in [0, 5 * SECOND, LEASE, HOUR, 12 * HOUR, DAY, 3 * DAY] {
        play.advance_to(clock.now() + later);
        for address in 0..ADDRESSES {
            for user in 0..USERS {
                for spelling in 0..SPELLINGS {
                    let user = Some(user);
                    play.check(Who {
                        address,
                        user,
                        spelling,
                    })
                    .await?;
                }
            }
        }
    }
    Ok(())
}

fn config(cases: u32) -> ProptestConfig {
    let seeds = FileFailurePersistence::Direct("tests/it/model/model.seeds");
    ProptestConfig {
        cases,
        failure_persistence: Some(Box::new(seeds)),
        max_shrink_iters: 20_000,
        ..ProptestConfig::default()
    }
}

fn runtime() -> Runtime {
    let mut builder = tokio::runtime::Builder::new_current_thread();
    builder.enable_all().build().expect("a runtime")
}

fn redis(runtime: &Runtime, clock: &Arc<ManualClock>) -> (RedisServer, Arc<dyn Store>) {
    let mut redis = RedisServer::start();
    redis.keys_may_live(None);
    let builder = redis.builder().with_clock(Arc::clone(clock));
    let store = runtime.block_on(builder.connect(redis.url()));
    (redis, Arc::new(store.expect("a store")))
}

/// How long a key may live without a block for ever and the like.
fn longest_life(history: &History) -> u64 {
    let rules = history.rules.iter().chain(&history.changed);
    let longest = rules.flat_map(lengths).flatten().max().max(Some(KNOWN_FOR));
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

/// What would show that something of no more use is gone.
fn shows_what_is_gone(op: &Op) -> bool {
    use Op::{ChangePolicy, Cleanup, Identify, ReserveAgain, Succeed, Time};
    let again = matches!(op, ReserveAgain(_) | Identify(..) | ChangePolicy);
    again || matches!(op, Cleanup(_) | Succeed(_) | Time(Step::Back(_)))
}

/// Counters that are said to be of no more use are dropped at once, which must not make a difference.
#[test]
fn what_memory_may_drop_is_of_no_more_use() {
    let (runtime, clock) = (runtime(), Arc::new(ManualClock::at(START)));
    proptest!(config(5_000), |(mut history in history())| {
        history.ops.retain(|op| !shows_what_is_gone(op));
        let store = Arc::new(MemoryStore::new().with_clock(Arc::clone(&clock)));
        let stores = [("memory", Arc::clone(&store) as Arc<dyn Store>)];
        let sweep = |_| store.sweep();
        runtime.block_on(play(&history, &clock, &stores, Some(&sweep)))?;
    });
}

/// The same in Redis: keys are made older by as much as the clock goes on.
#[test]
fn keys_that_run_out_in_redis_are_of_no_more_use() {
    const GROW_OLDER: &str = "
        for _, key in ipairs(redis.call('KEYS', '*')) do
          local left = redis.call('PTTL', key)
          -- Time goes on for the server as well.
          if left >= 0 then redis.call('PEXPIRE', key, left - ARGV[1] + 2000) end
          if left >= 0 and left + 2000 <= tonumber(ARGV[1]) then redis.call('DEL', key) end
        end";
    let (runtime, clock) = (runtime(), Arc::new(ManualClock::at(START)));
    let (redis, store) = redis(&runtime, &clock);
    proptest!(config(300), |(mut history in history())| {
        redis.flush();
        // Without a lease a reserve shortens the life of what is in flight beside it.
        history.ops.retain(|op| !shows_what_is_gone(op) && !matches!(op, Op::Count(_)));
        let stores = [("redis", Arc::clone(&store))];
        let grow_older = |by: u64| redis.command(&["EVAL", GROW_OLDER, "0", &by.to_string()]);
        runtime.block_on(play(&history, &clock, &stores, Some(&grow_older)))?;
    });
}

#[test]
fn ten_thousand_histories_in_memory() {
    let (runtime, clock) = (runtime(), Arc::new(ManualClock::at(START)));
    proptest!(config(10_000), |(history in history())| {
        let store = MemoryStore::new().with_clock(Arc::clone(&clock));
        let stores: [(_, Arc<dyn Store>); 1] = [("memory", Arc::new(store))];
        runtime.block_on(play(&history, &clock, &stores, None))?;
    });
}

/// Where the account is in another place than the address, and what the one has admitted may have to be
/// taken back. An admission also drops what no longer counts, and that is not taken back; it would show
/// when the policy changes, the clock is set back or something is taken out. And where an attempt is
/// reserved once more, the one place may refuse what the other holds.
#[test]
fn two_hundred_histories_on_a_cluster() {
    let (runtime, clock) = (runtime(), Arc::new(ManualClock::at(START)));
    let mut cluster = RedisCluster::start();
    for node in &mut cluster.nodes {
        node.keys_may_live(None);
    }
    let entered = runtime.enter();
    let store: Arc<dyn Store> = Arc::new(cluster.store_with_clock(Arc::clone(&clock)));
    drop(entered);
    proptest!(config(200), |(mut history in history())| {
        cluster.flush();
        history.ops.retain(|op| !shows_what_is_gone(op) && !matches!(op, Op::Cancel(_)));
        let stores = [("cluster", Arc::clone(&store))];
        runtime.block_on(play(&history, &clock, &stores, None))?;
    });
}

#[test]
fn a_thousand_histories_on_redis() {
    let (runtime, clock) = (runtime(), Arc::new(ManualClock::at(START)));
    let (redis, shared) = redis(&runtime, &clock);
    proptest!(config(1_000), |(history in history())| {
        redis.flush();
        let memory = MemoryStore::new().with_clock(Arc::clone(&clock));
        let stores = [("memory", Arc::new(memory) as Arc<dyn Store>), ("redis", Arc::clone(&shared))];
        runtime.block_on(play(&history, &clock, &stores, None))?;

        let longest = longest_life(&history);
        let for_ever = anything_for_ever(&history);
        for (key, ttl) in redis.keys() {
            prop_assert!(ttl <= longest as i64, "{} lives for {}", key, ttl);
            prop_assert!(ttl >= 0 || for_ever, "{} never ends", key);
        }
    });
}
