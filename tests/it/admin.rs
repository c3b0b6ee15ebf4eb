//! What operators do: one suite for every kind of store, and what only some of them have to stand.

mod explain;
mod forgive;
mod list;
mod outages;
mod unblock;

use std::{
    any::Any,
    net::IpAddr,
    sync::{Arc, Mutex},
    time::Duration,
};

use tower_login_rate_limit::{
    LoginLimiter, Policy, Rule,
    admin::{Admin, AdminErrorKind, Author, Block, BlockFilter, Subject},
    clock::ManualClock,
    event::{Event, UserDisplay, What},
    store::{MemoryStore, Settled, Settlement, Slot, Standings, Store, StoreFuture},
};

use crate::support::{
    DAY, HOUR, RedisCluster, RedisSentinel, RedisServer, START, closed, fail, ip,
};

const HOME: &str = "192.0.2.1";
const OFFICE: &str = "198.51.100.7";

/// A store whose time the test sets.
struct Setup {
    name: &'static str,
    clock: Arc<ManualClock>,
    store: Arc<dyn Store>,
    _servers: Box<dyn Any>,
}

impl Setup {
    fn memory() -> Self {
        let clock = Arc::new(ManualClock::at(START));
        let store = Arc::new(MemoryStore::new().with_clock(Arc::clone(&clock)));
        Self::new("memory", clock, store, Box::new(()))
    }

    async fn redis() -> Self {
        let mut redis = RedisServer::start();
        redis.keys_may_live(None);
        let clock = Arc::new(ManualClock::at(START));
        let builder = redis.builder().with_clock(Arc::clone(&clock));
        let store = builder.connect(redis.url()).await.expect("a store");
        Self::new("redis", clock, Arc::new(store), Box::new(redis))
    }

    async fn cluster() -> Self {
        let mut cluster = RedisCluster::start();
        (cluster.nodes.iter_mut()).for_each(|node| node.keys_may_live(None));
        let clock = Arc::new(ManualClock::at(START));
        let builder = cluster.nodes[0].builder().with_clock(Arc::clone(&clock));
        let store = builder.connect(cluster.url()).await.expect("a store");
        Self::new("cluster", clock, Arc::new(store), Box::new(cluster))
    }

    async fn sentinel() -> Self {
        let mut sentinel = RedisSentinel::start();
        (sentinel.servers.iter_mut()).for_each(|server| server.keys_may_live(None));
        let clock = Arc::new(ManualClock::at(START));
        let builder = closed().with_deadline(Duration::from_secs(20));
        let builder = builder.with_clock(Arc::clone(&clock));
        let store = builder.connect(sentinel.url()).await.expect("a store");
        Self::new("sentinel", clock, Arc::new(store), Box::new(sentinel))
    }

    fn new(
        name: &'static str,
        clock: Arc<ManualClock>,
        store: Arc<dyn Store>,
        servers: Box<dyn Any>,
    ) -> Self {
        Self {
            name,
            clock,
            store,
            _servers: servers,
        }
    }

    fn limiter(&self, policy: Policy) -> LoginLimiter {
        let limiter = LoginLimiter::new(policy, Arc::clone(&self.store));
        limiter.with_user_display(UserDisplay::Masked)
    }

    fn advance(&self, millis: u64) {
        self.clock.advance(Duration::from_millis(millis));
    }
}

/// For tests of what must be alike.
async fn both() -> [Setup; 2] {
    [Setup::memory(), Setup::redis().await]
}

fn author() -> Author {
    Author::new("bob@ops", "ticket 4711").expect("an author")
}

/// Blocks a user at an address, and waits until that is listed.
async fn block(limiter: &LoginLimiter, address: IpAddr, user: &str) {
    fail(limiter, address, user, 5).await;
    limiter.all_settled().await.expect("settled");
}

async fn listed(admin: &Admin, filter: &BlockFilter) -> Vec<Block> {
    let page = admin.blocks(filter).await.expect("a page");
    assert_eq!(page.next, None);
    page.blocks
}

/// Rules and places of blocks, in order.
fn places(blocks: &[Block]) -> Vec<(String, String)> {
    let place = |block: &Block| {
        let address = block.address.map_or_else(String::new, |a| a.to_string());
        (block.rule.to_string(), address)
    };
    let mut places: Vec<_> = blocks.iter().map(place).collect();
    places.sort();
    places
}

fn pair(address: &str) -> (String, String) {
    (Rule::USER_ADDRESS.to_owned(), address.to_owned())
}

#[derive(Clone, Default)]
struct Seen(Arc<Mutex<Vec<Event>>>);

impl Seen {
    fn observing(limiter: LoginLimiter) -> (Self, LoginLimiter) {
        let seen = Self::default();
        let events = Arc::clone(&seen.0);
        let observer = move |event: &Event| events.lock().expect("events").push(event.clone());
        (seen, limiter.with_observer(observer))
    }

    /// The JSON of all events of these names, in their order.
    async fn named(&self, limiter: &LoginLimiter, names: &[&str]) -> Vec<String> {
        assert!(limiter.observed().await);
        let events = self.0.lock().expect("events");
        let named = events.iter().filter(|e| names.contains(&e.what.name()));
        named.map(Event::to_json).collect()
    }
}

/// The life of a block: it begins, is listed, found, explained and lifted.
async fn story(setup: Setup) {
    let (name, (seen, limiter)) = (setup.name, Seen::observing(setup.limiter(Policy::strict())));
    let admin = limiter.admin().expect("an admin");
    for (address, user) in [(HOME, "alice"), (HOME, "bob"), (OFFICE, "Alice")] {
        block(&limiter, ip(address), user).await;
        setup.advance(HOUR);
    }
    let all = listed(&admin, &BlockFilter::new()).await;
    let lifts: Vec<_> = all.iter().map(|block| block.lifts_at).collect();
    let expected = [0, HOUR, 2 * HOUR].map(|began| Some(START + began + DAY));
    assert_eq!(lifts, expected, "{name}");
    let users: Vec<_> = all.iter().map(|block| block.user.as_ref()).collect();
    let users: Vec<_> = users.iter().flatten().map(ToString::to_string).collect();
    assert_eq!(users, ["a***", "b***", "a***"], "{name}");

    for (filter, expected) in [
        (BlockFilter::new().with_user("ALICE"), vec![HOME, OFFICE]),
        (BlockFilter::new().with_address(ip(HOME)), vec![HOME, HOME]),
        (
            BlockFilter::new().with_network("198.51.100.0/24").unwrap(),
            vec![OFFICE],
        ),
        (BlockFilter::new().with_rule(Rule::ADDRESS), vec![]),
        (
            (BlockFilter::new().with_user("alice")).with_address(ip(OFFICE)),
            vec![OFFICE],
        ),
        (BlockFilter::new().with_user("carol"), vec![]),
    ] {
        let expected: Vec<_> = expected.into_iter().map(pair).collect();
        let found = listed(&admin, &filter).await;
        assert_eq!(places(&found), expected, "{name} {filter:?}");
    }
    let counts = admin.block_counts().await.expect("counts");
    let count = |rule: &str| counts.iter().find(|count| *count.rule == *rule);
    assert_eq!(
        count(Rule::USER_ADDRESS).map(|c| c.blocks),
        Some(3),
        "{name}"
    );

    let explanation = admin.explain(&Subject::pair(ip(HOME), "alice")).await;
    let explanation = explanation.expect("an explanation");
    assert!(explanation.refuses(), "{name}");

    let subject = Subject::pair(ip(HOME), "alice");
    let unblocked = admin.unblock(subject, &author()).await.expect("unblocked");
    assert_eq!(places(&unblocked.lifted), [pair(HOME)], "{name}");
    assert!(unblocked.refused_by.is_empty(), "{name}");
    fail(&limiter, ip(HOME), "alice", 1).await;
    let left = listed(&admin, &BlockFilter::new()).await;
    assert_eq!(places(&left), [pair(HOME), pair(OFFICE)], "{name}");

    let began = seen.named(&limiter, &["block_began"]).await;
    assert_eq!(began.len(), 3, "{name}");
    let audit = seen
        .named(&limiter, &["administered", "block_lifted"])
        .await;
    assert_eq!(audit.len(), 2, "{name} {audit:?}");
    setup.advance(DAY);
    assert!(
        listed(&admin, &BlockFilter::new()).await.is_empty(),
        "{name}"
    );
}

#[tokio::test]
async fn a_block_is_listed_found_explained_and_lifted_in_memory() {
    story(Setup::memory()).await;
}

#[tokio::test]
async fn a_block_is_listed_found_explained_and_lifted_on_one_server() {
    story(Setup::redis().await).await;
}

#[tokio::test]
async fn a_block_is_listed_found_explained_and_lifted_on_a_cluster() {
    story(Setup::cluster().await).await;
}

#[tokio::test]
async fn a_block_is_listed_found_explained_and_lifted_behind_sentinels() {
    story(Setup::sentinel().await).await;
}

/// The event and the counter name the same attempts.
#[tokio::test]
async fn an_event_of_a_block_has_its_counter_and_the_attempts_that_it_consists_of() {
    for setup in both().await {
        let (seen, limiter) = Seen::observing(setup.limiter(Policy::default()));
        block(&limiter, ip(HOME), "alice").await;
        assert!(limiter.observed().await);
        let events = seen.0.lock().expect("events").clone();
        let settled = events.iter().filter(|e| e.what.name() == "settled");
        let mut settled: Vec<_> = settled.filter_map(|e| e.attempt).collect();
        let began = events.iter().find_map(|event| match &event.what {
            What::BlockBegan {
                counter, attempts, ..
            } => Some((counter.clone(), attempts.clone())),
            _ => None,
        });
        let (counter, attempts) = began.expect("a block");
        let mut counted: Vec<_> = attempts.iter().map(|counted| counted.attempt).collect();
        settled.sort();
        counted.sort();
        assert_eq!(counted, settled, "{}", setup.name);
        let admin = limiter.admin().expect("an admin");
        let blocks = listed(&admin, &BlockFilter::new()).await;
        assert_eq!(
            blocks[0].id.to_string(),
            format!("user-address/{counter}"),
            "{}",
            setup.name
        );
    }
}

/// A store of an app that can't be operated.
#[derive(Debug)]
struct Plain(MemoryStore);

impl Store for Plain {
    fn reserve(
        &self,
        token: tower_login_rate_limit::Token,
        lease: Duration,
        slots: &[Slot<'_>],
    ) -> StoreFuture<Standings> {
        self.0.reserve(token, lease, slots)
    }

    fn check(&self, slots: &[Slot<'_>]) -> StoreFuture<Standings> {
        self.0.check(slots)
    }

    fn settle(
        &self,
        tokens: &[tower_login_rate_limit::Token],
        settlement: Settlement,
        slots: &[Slot<'_>],
        ago: Duration,
    ) -> StoreFuture<Settled> {
        self.0.settle(tokens, settlement, slots, ago)
    }

    fn remember(
        &self,
        key: &tower_login_rate_limit::store::Key<'_>,
        address: tower_login_rate_limit::Address,
        keep: tower_login_rate_limit::KnownAddresses,
    ) -> StoreFuture<()> {
        self.0.remember(key, address, keep)
    }

    fn known(
        &self,
        key: &tower_login_rate_limit::store::Key<'_>,
        keep: tower_login_rate_limit::KnownAddresses,
    ) -> StoreFuture<Vec<tower_login_rate_limit::Address>> {
        self.0.known(key, keep)
    }
}

#[tokio::test]
async fn a_store_without_a_ledger_blocks_and_reports_that_it_cannot_be_operated() {
    let limiter = LoginLimiter::new(Policy::default(), Plain(MemoryStore::new()));
    let (seen, limiter) = Seen::observing(limiter);
    block(&limiter, ip(HOME), "alice").await;
    assert_eq!(seen.named(&limiter, &["block_began"]).await.len(), 1);
    let error = limiter.admin().unwrap_err();
    assert_eq!(error.kind(), AdminErrorKind::Unsupported);
    assert!(error.to_string().contains("RedisStore"), "{error}");
}
