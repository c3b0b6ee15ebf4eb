//! A million blocks in force, each with its counter, and what it costs Redis to show them.

use std::{collections::BTreeMap, net::IpAddr, sync::Arc, time::Duration};

use benches::{
    callers::{address, user},
    redis_server::RedisServer,
    rounds::{ROUNDS, Ratio},
};
use redis::Value;
use tokio::{
    runtime::{Builder, Runtime},
    task::JoinSet,
};
use tower_login_rate_limit::{
    Address, LoginLimiter, Outcome, Period, Policy, Rule,
    admin::{Admin, BlockFilter, Subject},
    store::{BlockNote, BlockQuery, Key, Ledger, RedisStore, Store},
};

const BLOCKS: u64 = 1_000_000;
/// Each is blocked at ten addresses.
const USERS: u64 = BLOCKS / 10;
/// Tasks that write the list.
const TASKS: u64 = 128;
/// The real block that the others are copies of.
const TEMPLATE: (IpAddr, &str) = (benches::services::HOT, "somebody");

fn pair(n: u64) -> (Address, String) {
    (Address::new(address(n), 64), user(n % USERS))
}

pub fn measure() {
    let redis = RedisServer::start();
    let runtime = Builder::new_multi_thread().enable_all().build();
    let runtime = runtime.expect("a runtime");
    let store = runtime.block_on(
        RedisStore::builder()
            .with_deadline(Duration::from_secs(60))
            .with_connections(4)
            .connect(redis.url()),
    );
    let store = store.expect("a store");
    let limiter = LoginLimiter::new(Policy::default(), store.clone());
    fill(&runtime, &redis, &store, &limiter);
    let admin = limiter.admin().expect("a ledger");
    let counts = runtime.block_on(admin.block_counts()).expect("counts");
    let listed = counts.iter().map(|count| count.blocks).sum::<u64>();
    assert_eq!(listed, BLOCKS + 1);
    println!("blocks {BLOCKS}");
    println!("keys {}", redis.ask::<u64>(&redis::cmd("DBSIZE")));
    println!("memory {}", redis.info("memory", "used_memory") / 1e9);
    look(&runtime, &redis, &admin);
}

/// Copies the counter of a real block to other pairs, and enters each into the list as a limiter does.
fn fill(runtime: &Runtime, redis: &RedisServer, store: &RedisStore, limiter: &LoginLimiter) {
    let ledger = store.ledger().expect("a ledger");
    let block = runtime.block_on(async {
        for _ in 0..5 {
            let attempt = limiter.reserve(TEMPLATE).await.expect("admitted");
            attempt.settle(Outcome::Failure).await.expect("settled");
        }
        limiter.all_settled().await.expect("settled");
        let page = ledger.blocks(&BlockQuery::new(&[Rule::USER_ADDRESS])).await;
        page.expect("a page").blocks.remove(0)
    });
    let copied = redis.pipeline(0..BLOCKS, |n| {
        let (address, user) = pair(n);
        let key = Key::of_address(address, Rule::USER_ADDRESS);
        let name = ledger.name(&key.and_subject(user.as_bytes()));
        let mut copy = redis::cmd("COPY");
        copy.arg(block.counter.as_str()).arg(name.as_str());
        copy
    });
    assert!(copied.iter().all(|reply| *reply == Value::Int(1)));
    let text: Arc<str> = block.text.as_str().into();
    runtime.block_on(async {
        let mut tasks = JoinSet::new();
        for task in 0..TASKS {
            let (ledger, text) = (Arc::clone(&ledger), Arc::clone(&text));
            tasks.spawn(async move {
                for n in (task..BLOCKS).step_by(TASKS as usize) {
                    note(&*ledger, n, &text).await;
                }
            });
        }
        tasks.join_all().await;
    });
}

async fn note(ledger: &dyn Ledger, n: u64, text: &str) {
    let (address, user) = pair(n);
    let key = Key::of_address(address, Rule::USER_ADDRESS);
    let counter = ledger.name(&key.and_subject(user.as_bytes()));
    let note = BlockNote::new(&counter, Rule::USER_ADDRESS, Period::days(1));
    let note = note.at_address(address).of_subject(user.as_bytes());
    ledger.note(&note.with_text(text)).await.expect("noted");
}

/// What Redis did: every script that was called, its keys and the microseconds that it took.
fn scripts<T>(redis: &RedisServer, work: impl FnOnce() -> T) -> (T, Vec<(String, String, f64)>) {
    let set = |name: &str, value: &str| {
        let mut set = redis::cmd("CONFIG");
        redis.ask::<()>(set.arg("SET").arg(name).arg(value));
    };
    set("slowlog-max-len", "1000000");
    set("slowlog-log-slower-than", "0");
    redis.ask::<()>(redis::cmd("SLOWLOG").arg("RESET"));
    let done = work();
    set("slowlog-log-slower-than", "-1");
    let log: Vec<Vec<Value>> = redis.ask(redis::cmd("SLOWLOG").arg("GET").arg(1_000_000));
    let scripts = log.into_iter().filter_map(|entry| {
        let (Value::Int(time), Value::Array(words)) = (&entry[2], &entry[3]) else {
            panic!("{entry:?}");
        };
        let mut words = words
            .iter()
            .map(|word| redis::from_redis_value::<String>(word.clone()).expect("a text"));
        // What a script executes is in the log too, and in its time.
        let command = words.next()?;
        let script = words.next()?;
        let keys = words.collect::<Vec<_>>().join(" ");
        (command == "EVALSHA").then_some((script, keys, *time as f64))
    });
    (done, scripts.collect())
}

/// Everything that an operator looks at, with the time in Redis and the slowest script.
fn look(runtime: &Runtime, redis: &RedisServer, admin: &Admin) {
    let page = |filter: &BlockFilter| runtime.block_on(admin.blocks(filter)).expect("a page");
    let thousand = BlockFilter::new().with_limit(1_000);
    let mut middle = page(&thousand).next.expect("more");
    for _ in 1..BLOCKS / 2_000 {
        middle = page(&thousand.clone().after(middle)).next.expect("more");
    }
    let (some_address, some_user) = pair(12_345);
    // One of the blocks is in it, seldom two.
    let IpAddr::V4(ip) = some_address.ip() else {
        panic!("an address of IPv4");
    };
    let [a, b, c, _] = ip.octets();
    let network = |network| BlockFilter::new().with_network(network).expect("a network");
    let subject = Subject::pair(some_address.ip(), &*some_user);
    let filters = [
        ("first", BlockFilter::new(), 100..=100),
        ("middle", BlockFilter::new().after(middle), 100..=100),
        ("thousand", thousand, 1_000..=1_000),
        (
            "address",
            BlockFilter::new().with_address(some_address.ip()),
            1..=1,
        ),
        ("user", BlockFilter::new().with_user(&*some_user), 10..=10),
        ("network", network(format!("{a}.{b}.{c}.0/24")), 1..=2),
        // A page of a search goes on where the one before has ended, and may be empty.
        ("wide", network(format!("{a}.{b}.0.0/16")), 0..=100),
    ];
    let mut names = Names::learned(redis, &page, some_address.ip());
    let mut measure = |name: &str, work: &dyn Fn()| {
        let (mut times, mut commands) = (Vec::new(), 0);
        // The first round loads what is needed.
        for round in 0..=ROUNDS {
            let ((), scripts) = scripts(redis, work);
            if round > 0 {
                commands = commands.max(scripts.len());
                times.push(scripts.iter().map(|(.., time)| time).sum::<f64>() / 1e3);
                names.add(name, &scripts);
            }
        }
        let Ratio { median, high, .. } = Ratio::of(times);
        println!("{name}-median {median}");
        println!("{name}-high {high}");
        println!("{name}-commands {commands}");
    };
    for (name, filter, expected) in &filters {
        measure(name, &|| {
            let found = page(filter).blocks.len();
            assert!(expected.contains(&found), "{name}: {found}");
        });
    }
    measure("counts", &|| {
        runtime.block_on(admin.block_counts()).expect("counts");
    });
    measure("explain", &|| {
        let explained = runtime.block_on(admin.explain(&subject));
        assert!(explained.expect("an explanation").refuses());
    });
    names.print();
}

/// Which script is which, and the slowest call of each in each round of an operation.
struct Names {
    notes: String,
    inspect: String,
    slowest: BTreeMap<(&'static str, String), Vec<f64>>,
}

impl Names {
    /// The blocks of one address are one look at the list and one at the counter.
    fn learned<T>(redis: &RedisServer, page: &impl Fn(&BlockFilter) -> T, at: IpAddr) -> Self {
        let filter = BlockFilter::new().with_address(at);
        page(&filter);
        let (_, calls) = scripts(redis, || page(&filter));
        let script = |is_list: bool| {
            let mut found = calls
                .iter()
                .filter(|(_, keys, _)| keys.contains(":lifts") == is_list);
            let (script, ..) = found.next().expect("a call");
            script.clone()
        };
        Self {
            notes: script(true),
            inspect: script(false),
            slowest: BTreeMap::new(),
        }
    }

    fn add(&mut self, operation: &str, round: &[(String, String, f64)]) {
        let mut slowest = BTreeMap::<&str, f64>::new();
        for (script, _, time) in round {
            let name = match script {
                script if *script == self.notes => "notes.lua",
                script if *script == self.inspect => "inspect.lua",
                _ => "others",
            };
            let slowest = slowest.entry(name).or_default();
            *slowest = slowest.max(*time);
        }
        for (name, time) in slowest {
            let rounds = self.slowest.entry((name, operation.to_owned()));
            rounds.or_default().push(time / 1e3);
        }
    }

    /// Of each script the operation in which it is slowest.
    fn print(self) {
        let (mut medians, mut highs) = (BTreeMap::new(), BTreeMap::new());
        for ((script, operation), rounds) in self.slowest {
            let Ratio { median, high, .. } = Ratio::of(rounds);
            eprintln!("{script} for {operation}: {median} ms, at most {high} ms");
            let slowest = |of: &mut BTreeMap<_, f64>, time| {
                let slowest = of.entry(script).or_default();
                *slowest = slowest.max(time);
            };
            slowest(&mut medians, median);
            slowest(&mut highs, high);
        }
        for (script, median) in medians {
            println!("slowest-{script}-median {median}");
            println!("slowest-{script}-high {}", highs[script]);
        }
    }
}
