//! The list of blocks.

use std::{collections::HashSet, convert::Infallible};

use http::{HeaderName, Request, Response};
use tower::{Layer, ServiceExt, service_fn};
use tower_login_rate_limit::{
    Address, Limit, LoginAttempt, LoginLimiter, LoginRateLimitLayer, Period, Policy, Rule,
    admin::{AdminErrorKind, Block, BlockFilter},
    event::UserDisplay,
    extract::{Header, PeerAddressExtension},
    store::{BlockNote, CounterName, Key, MemoryStore, Store},
};

use super::{HOME, OFFICE, Setup, block, both, listed, pair, places};
use crate::support::{DAY, RedisServer, fail, ip};

#[tokio::test]
async fn a_block_has_all_there_is_to_know_in_json() {
    let setup = Setup::memory();
    let limiter = setup.limiter(Policy::default());
    block(&limiter, ip("2001:db8:1:2::3"), "Alice").await;
    let admin = limiter.admin().unwrap();
    let page = admin.blocks(&BlockFilter::new()).await.unwrap();
    let mut json = serde_json::to_value(&page).unwrap();
    let id = json["blocks"][0]["id"].take();
    assert!(id.as_str().unwrap().starts_with("user-address/"), "{id}");
    let expected = serde_json::json!({
        "blocks": [{
            "id": null,
            "rule": "user-address",
            "address": "2001:db8:1:2::/64",
            "by_user": true,
            "user": "a***",
            "since": "2026-09-21T14:13:20.000Z",
            "lifts_at": "2026-09-22T14:13:20.000Z",
            "usage": 5,
            "limit": 5,
            "shadow": false,
        }],
        "next": null,
        "now": "2026-09-21T14:13:20.000Z",
    });
    assert_eq!(json, expected);
}

#[tokio::test]
async fn pages_have_each_block_once_though_stale_entries_lie_between() {
    for setup in both().await {
        let limiter = setup.limiter(Policy::default());
        let admin = limiter.admin().unwrap();
        for i in 0..30 {
            let address = ip(&format!("203.0.113.{i}"));
            block(&limiter, address, "alice").await;
            setup.advance(1_000);
            // Does not know of the index.
            if i % 3 == 0 {
                limiter.unblock((address, "alice")).await.unwrap();
            }
        }
        let counted = |counts: Vec<tower_login_rate_limit::admin::BlockCount>| {
            let count = counts
                .iter()
                .find(|count| &*count.rule == Rule::USER_ADDRESS);
            count.unwrap().blocks
        };
        assert_eq!(counted(admin.block_counts().await.unwrap()), 30);
        let (mut seen, mut pages, mut after) = (Vec::new(), 0, None);
        loop {
            let mut filter = BlockFilter::new().with_limit(7);
            if let Some(after) = after {
                filter = filter.after(after);
            }
            let page = admin.blocks(&filter).await.unwrap();
            assert!(page.blocks.len() <= 7);
            seen.extend(page.blocks.into_iter().map(|block| block.address.unwrap()));
            pages += 1;
            match page.next {
                Some(next) => after = Some(next),
                None => break,
            }
        }
        let distinct: HashSet<_> = seen.iter().collect();
        assert_eq!((seen.len(), distinct.len()), (20, 20), "{}", setup.name);
        assert!(pages <= 4, "{} {pages} pages", setup.name);
        // What was stale is no longer counted.
        let count = counted(admin.block_counts().await.unwrap());
        assert_eq!(count, 20, "{}", setup.name);
    }
}

/// Whatever can write to the database can forge entries. They make no counter look like another, and hide none.
#[tokio::test]
async fn forged_entries_are_not_shown_and_hide_no_others() {
    for setup in both().await {
        // Five failures are a block under both rules.
        let five = Limit::attempts(5).within(Period::days(1));
        let limiter = setup.limiter(Policy::default().with_address_limit(five).unwrap());
        let admin = limiter.admin().unwrap();
        block(&limiter, ip(HOME), "alice").await;
        let ledger = setup.store.ledger().unwrap();
        let (home, office): (Address, Address) = (HOME.parse().unwrap(), OFFICE.parse().unwrap());
        let victim = ledger.name(&Key::of_address(home, "user-address").and_subject(b"alice"));
        let deep = "[".repeat(4_000);
        for (rule, address, text) in [
            // The pair's counter as that of an address, of another address, and of no address.
            (Rule::ADDRESS, Some(home), "{}"),
            (Rule::ADDRESS, Some(office), "{}"),
            (Rule::SECOND_FACTOR, Some(home), "{}"),
            (Rule::USER_ADDRESS, None, "{}"),
            (Rule::NETWORK_48, Some(home), &deep),
        ] {
            let mut note = BlockNote::new(&victim, rule, Period::days(1)).with_text(text);
            note.address = address;
            ledger.note(&note).await.unwrap();
            let found = listed(&admin, &BlockFilter::new()).await;
            let is_true = |block: &Block| {
                let name = ledger.name(&Key::of_address(home, Rule::ADDRESS));
                let own = format!("address/{name}");
                *block.rule == *Rule::USER_ADDRESS || block.id.to_string() == own
            };
            let others: Vec<_> = found.iter().filter(|block| !is_true(block)).collect();
            assert!(others.is_empty(), "{} {rule} {others:?}", setup.name);
        }
        // With a text of nonsense, it is a block like any other.
        let note = BlockNote::new(&victim, Rule::USER_ADDRESS, Period::days(1));
        let note = note.at_address(home).with_text("\u{0}{\"user\":<script>");
        ledger.note(&note).await.unwrap();
        let filter = BlockFilter::new().with_rule(Rule::USER_ADDRESS);
        let found = listed(&admin, &filter).await;
        assert_eq!(places(&found), [pair(HOME)], "{}", setup.name);
        assert!(found[0].user.is_none());
    }
}

/// Names that belong to other keys of the database.
#[tokio::test]
async fn an_entry_with_the_name_of_another_key_fails_no_list() {
    let setup = Setup::redis().await;
    let limiter = setup.limiter(Policy::default());
    block(&limiter, ip(HOME), "alice").await;
    let ledger = setup.store.ledger().unwrap();
    for name in [
        "session:1",
        "login:{document}",
        "login:{192.0.2.1}:known::addresses",
    ] {
        let name: CounterName = name.parse().unwrap();
        let home = HOME.parse().unwrap();
        let note = BlockNote::new(&name, Rule::USER_ADDRESS, Period::days(1)).at_address(home);
        // A ledger may refuse it; what can write to Redis would not ask.
        let _ = ledger.note(&note).await;
    }
    let found = listed(&limiter.admin().unwrap(), &BlockFilter::new()).await;
    assert_eq!(places(&found), [pair(HOME)]);
}

#[tokio::test]
async fn a_name_in_clear_harms_neither_a_terminal_nor_a_parser() {
    let setup = Setup::memory();
    let limiter = (setup.limiter(Policy::default())).with_user_display(UserDisplay::Clear);
    // The limiter strips controls, unless an app normalizes in another way.
    let limiter = limiter.with_normalizer(str::to_owned);
    let name = "<img src=x>\"\n\u{1b}[2J\u{202e}";
    block(&limiter, ip(HOME), name).await;
    let admin = limiter.admin().unwrap();
    let found = listed(&admin, &BlockFilter::new().with_user(name)).await;
    let user = found[0].user.as_ref().unwrap();
    assert_eq!(user.to_string(), "<img src=x>\"\\u{a}\\u{1b}[2J\\u{202e}");
    assert_eq!(serde_json::to_value(&found[0]).unwrap()["user"], name);
}

/// A reader of the database learns no name from the index, unless the app shows names.
#[tokio::test]
async fn a_filter_by_user_needs_no_name_in_redis() {
    let redis = RedisServer::start();
    let store = redis.store().await;
    let limiter = LoginLimiter::new(Policy::strict(), store);
    block(&limiter, ip(HOME), "wilhelmina").await;
    let admin = limiter.admin().unwrap();
    let found = listed(&admin, &BlockFilter::new().with_user("Wilhelmina")).await;
    assert_eq!(places(&found), [pair(HOME)]);
    assert!(found[0].user.is_none());
    let mut connection = redis.connection();
    for (key, _) in redis.keys() {
        let value: Vec<u8> = redis::cmd("DUMP").arg(&key).query(&mut connection).unwrap();
        let text = format!("{key} {}", String::from_utf8_lossy(&value)).to_lowercase();
        assert!(!text.contains("wilhelmina"), "{key}");
    }
}

#[tokio::test]
async fn what_cannot_be_asked_is_reported_and_what_to_pass() {
    for setup in both().await {
        let limiter = setup.limiter(Policy::default());
        let admin = limiter.admin().unwrap();
        for (filter, word) in [
            (BlockFilter::new().with_rule("adress"), "user-address"),
            (BlockFilter::new().with_user(" \u{200b}"), "blank"),
            (BlockFilter::new().after("nonsense"), "cursor"),
            (BlockFilter::new().with_limit(0), "1 to 1000"),
            (BlockFilter::new().with_limit(1_001), "1 to 1000"),
        ] {
            let error = admin.blocks(&filter).await.unwrap_err();
            assert_eq!(error.kind(), AdminErrorKind::InvalidInput, "{filter:?}");
            assert!(error.to_string().contains(word), "{error}");
        }
        let error = BlockFilter::new().with_network("192.0.2.1/24").unwrap_err();
        assert!(error.to_string().contains("192.0.2.0/24"), "{error}");
    }
}

/// A block that no longer is one under the policy in force, or of addresses that are counted otherwise now.
#[tokio::test]
async fn blocks_of_an_earlier_policy_are_not_listed() {
    for setup in both().await {
        let limiter = setup.limiter(Policy::default());
        block(&limiter, ip(HOME), "alice").await;
        block(&limiter, ip("2001:db8::1"), "alice").await;
        let filter = BlockFilter::new();
        assert_eq!(listed(&limiter.admin().unwrap(), &filter).await.len(), 2);
        let wider = setup.limiter(Policy::default().with_ipv6_prefix(56).unwrap());
        let found = listed(&wider.admin().unwrap(), &filter).await;
        assert_eq!(places(&found), [pair(HOME)], "{}", setup.name);
        let limit = Limit::attempts(10).within(Period::hours(24));
        let later = Policy::default().with_user_address_limit(limit).unwrap();
        let later = setup.limiter(later);
        let found = listed(&later.admin().unwrap(), &filter).await;
        assert!(found.is_empty(), "{} {found:?}", setup.name);
        let report = later.check((ip(HOME), "alice")).await.unwrap();
        assert!(report.refusal().is_none(), "{}", setup.name);
    }
}

#[tokio::test]
async fn a_block_of_a_layer_in_shadow_mode_is_marked() {
    let limiter = LoginLimiter::new(Policy::default(), MemoryStore::new());
    let user = Header::new(HeaderName::from_static("x-user"));
    let layer = LoginRateLimitLayer::new(limiter.clone()).with_user(user);
    let service = layer
        .with_shadow(true)
        .layer(service_fn(async |request: Request<()>| {
            let attempt = request.extensions().get::<LoginAttempt>().unwrap();
            attempt.failed();
            Ok::<_, Infallible>(Response::new(String::new()))
        }));
    for _ in 0..5 {
        let request = Request::builder().header("x-user", "alice");
        let mut request = request.body(()).unwrap();
        let peer = PeerAddressExtension((ip(HOME), 5000).into());
        request.extensions_mut().insert(peer);
        service.clone().oneshot(request).await.unwrap();
    }
    let found = listed(&limiter.admin().unwrap(), &BlockFilter::new()).await;
    assert_eq!(places(&found), [pair(HOME)]);
    assert!(found[0].shadow);
}

#[tokio::test]
async fn each_rule_is_listed_with_what_it_counts_by() {
    for setup in both().await {
        let limit = |max| {
            Limit::attempts(max)
                .within(Period::days(1))
                .build()
                .unwrap()
        };
        let policy = Policy::strict().with_account_limit(limit(12)).unwrap();
        let policy = policy.with_address_limit(limit(8)).unwrap();
        let limiter = setup.limiter(policy);
        fail(&limiter, ip("2001:db8::1"), "alice", 5).await;
        fail(&limiter, ip("2001:db8::1"), "bob", 3).await;
        fail(&limiter, ip(OFFICE), "alice", 5).await;
        fail(&limiter, ip(HOME), "alice", 2).await;
        limiter.all_settled().await.unwrap();
        let admin = limiter.admin().unwrap();
        let found = listed(&admin, &BlockFilter::new()).await;
        let text = |rule: &str, address: &str| (rule.to_owned(), address.to_owned());
        let expected = [
            text("account", ""),
            text("address", "2001:db8::/64"),
            text("user-address", OFFICE),
            text("user-address", "2001:db8::/64"),
        ];
        assert_eq!(places(&found), expected, "{}", setup.name);
        let of_user = listed(&admin, &BlockFilter::new().with_user("alice")).await;
        assert_eq!(of_user.len(), 3, "{}", setup.name);
        assert!(of_user.iter().all(|block| block.by_user));
        setup.advance(DAY);
        assert!(listed(&admin, &BlockFilter::new()).await.is_empty());
    }
}
