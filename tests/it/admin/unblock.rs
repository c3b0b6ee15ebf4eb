//! Lifting blocks: exactly those that are meant.

use std::collections::BTreeMap;

use tower_login_rate_limit::{
    Limit, LoginLimiter, Period, Policy, Rule,
    access::{AccessRule, AccessRules, Field},
    admin::{AdminErrorKind, BlockFilter, BlockId, Subject, Unblock},
};

use super::{HOME, OFFICE, Seen, Setup, author, block, both, listed, pair, places};
use crate::support::{RedisServer, fail, ip, refused};

/// Every key, as it is in the database.
fn dump(redis: &RedisServer) -> BTreeMap<String, Vec<u8>> {
    let mut connection = redis.connection();
    let keys = redis.keys().into_iter().map(|(key, _)| {
        let value = redis::cmd("DUMP").arg(&key).query(&mut connection);
        (key, value.expect("a value"))
    });
    keys.collect()
}

/// The keys of counters that differ; the index is none.
fn changed(before: &BTreeMap<String, Vec<u8>>, after: &BTreeMap<String, Vec<u8>>) -> Vec<String> {
    let keys = before
        .keys()
        .chain(after.keys().filter(|key| !before.contains_key(*key)));
    let differ = keys.filter(|key| before.get(*key) != after.get(*key));
    let counters = differ.filter(|key| !key.contains("blocks"));
    counters.cloned().collect()
}

/// Users at an address with a block each, and an address with a block of its own.
async fn crowd(limiter: &LoginLimiter) {
    for user in ["alice", "bob", "carol", "dave", "erin"] {
        block(limiter, ip(HOME), user).await;
    }
    block(limiter, ip(OFFICE), "alice").await;
    block(limiter, ip(OFFICE), "bob").await;
    fail(limiter, ip(OFFICE), "carol", 3).await;
}

#[tokio::test]
async fn a_preview_names_what_is_lifted_then_and_changes_no_byte() {
    let redis = RedisServer::start();
    let limiter = LoginLimiter::new(Policy::strict(), redis.store().await);
    crowd(&limiter).await;
    let admin = limiter.admin().unwrap();
    let network = Subject::network("192.0.2.0/24").unwrap();
    for target in [
        Unblock::of(Subject::pair(ip(OFFICE), "alice")),
        Unblock::of(Subject::user("bob")),
        Unblock::of(Subject::address(ip(HOME))),
        Unblock::of(Subject::address(ip(OFFICE))).with_pairs(true),
        Unblock::of(network),
    ] {
        let before = dump(&redis);
        let preview = admin.preview_unblock(target.clone()).await.unwrap();
        assert_eq!(dump(&redis), before, "{target:?}");
        let unblocked = admin.unblock(target.clone(), &author()).await.unwrap();
        assert_eq!(preview.count, unblocked.count, "{target:?}");
        assert_eq!(
            places(&preview.lifted),
            places(&unblocked.lifted),
            "{target:?}"
        );
        assert_eq!(
            places(&preview.refused_by),
            places(&unblocked.refused_by),
            "{target:?}"
        );
    }
}

#[tokio::test]
async fn unblocking_a_pair_leaves_every_other_counter_as_it_is_byte_for_byte() {
    let redis = RedisServer::start();
    let limiter = LoginLimiter::new(Policy::strict(), redis.store().await);
    crowd(&limiter).await;
    let admin = limiter.admin().unwrap();
    let before = dump(&redis);
    let subject = Subject::pair(ip(OFFICE), "ALICE");
    let unblocked = admin.unblock(subject, &author()).await.unwrap();
    assert_eq!(places(&unblocked.lifted), [pair(OFFICE)]);
    let name = unblocked.lifted[0].id.to_string();
    let name = name.strip_prefix("user-address/").unwrap();
    assert_eq!(changed(&before, &dump(&redis)), [name]);

    // And without an operator's list.
    let before = dump(&redis);
    limiter.unblock((ip(OFFICE), "bob")).await.unwrap();
    let differ = changed(&before, &dump(&redis));
    assert_eq!(differ.len(), 1, "{differ:?}");
    assert!(differ[0].contains(":user-address:"), "{differ:?}");
    let before = dump(&redis);
    limiter.unblock(ip(HOME)).await.unwrap();
    let differ = changed(&before, &dump(&redis));
    assert_eq!(differ, ["login:{192.0.2.1}:address"]);
}

#[tokio::test]
async fn an_operator_sees_that_the_pair_is_unblocked_and_its_address_is_not() {
    for setup in both().await {
        let limiter = setup.limiter(Policy::default());
        crowd(&limiter).await;
        let admin = limiter.admin().unwrap();
        let subject = Subject::pair(ip(HOME), "alice");
        let unblocked = admin.unblock(subject, &author()).await.unwrap();
        assert_eq!(unblocked.count, 1, "{}", setup.name);
        let refusing = &unblocked.refused_by;
        assert_eq!(places(refusing), [("address".to_owned(), HOME.to_owned())]);
        let refusal = refused(limiter.reserve((ip(HOME), "alice")).await);
        assert_eq!(refusal.rule(), Rule::ADDRESS, "{}", setup.name);

        let unblocked = admin
            .unblock(Subject::address(ip(HOME)), &author())
            .await
            .unwrap();
        assert_eq!((unblocked.count, unblocked.refused_by.len()), (1, 0));
        // What users did from there stays.
        assert!(
            limiter.reserve((ip(HOME), "alice")).await.is_ok(),
            "{}",
            setup.name
        );
        refused(limiter.reserve((ip(HOME), "bob")).await);
        let pairs = Unblock::of(Subject::address(ip(HOME))).with_pairs(true);
        let unblocked = admin.unblock(pairs, &author()).await.unwrap();
        assert_eq!(unblocked.count, 4, "{}", setup.name);
        let left = listed(&admin, &BlockFilter::new()).await;
        assert_eq!(
            places(&left),
            [pair(OFFICE), pair(OFFICE)],
            "{}",
            setup.name
        );
    }
}

#[tokio::test]
async fn a_user_is_unblocked_from_everywhere_and_others_are_not() {
    for setup in both().await {
        let limit = Limit::attempts(12).within(Period::days(1)).build().unwrap();
        let policy = Policy::strict().with_account_limit(limit).unwrap();
        let limiter = setup.limiter(policy);
        crowd(&limiter).await;
        fail(&limiter, ip("203.0.113.1"), "alice", 2).await;
        limiter.all_settled().await.unwrap();
        let admin = limiter.admin().unwrap();
        let unblocked = admin
            .unblock(Subject::user("Alice"), &author())
            .await
            .unwrap();
        let account = ("account".to_owned(), String::new());
        assert_eq!(
            places(&unblocked.lifted),
            [account, pair(HOME), pair(OFFICE)],
            "{}",
            setup.name
        );
        assert!(unblocked.refused_by.is_empty(), "{}", setup.name);
        assert!(limiter.reserve((ip(OFFICE), "alice")).await.is_ok());
        refused(limiter.reserve((ip(OFFICE), "bob")).await);
        let report = limiter.check(ip(HOME)).await.unwrap();
        assert_eq!(
            report.rule(Rule::ADDRESS).unwrap().usage,
            25,
            "{}",
            setup.name
        );
    }
}

/// The failures that an attacker has made so far stay counted wherever they block nothing.
#[tokio::test]
async fn an_unblock_gives_no_fresh_guesses_where_nothing_is_blocked() {
    for setup in both().await {
        let limiter = setup.limiter(Policy::strict());
        fail(&limiter, ip(HOME), "alice", 4).await;
        let admin = limiter.admin().unwrap();
        for subject in [
            Subject::pair(ip(HOME), "alice"),
            Subject::user("alice"),
            Subject::address(ip(HOME)),
            Subject::network("192.0.0.0/16").unwrap(),
        ] {
            let unblocked = admin.unblock(subject, &author()).await.unwrap();
            assert_eq!(unblocked.count, 0, "{}", setup.name);
        }
        let report = limiter.check((ip(HOME), "alice")).await.unwrap();
        for (rule, standing) in report.iter() {
            let expected = if rule.name() == Rule::SECOND_FACTOR {
                0
            } else {
                4
            };
            assert_eq!(standing.usage, expected, "{} {}", setup.name, rule.name());
        }
    }
}

#[tokio::test]
async fn a_network_is_unblocked_and_those_beside_and_around_it_are_not() {
    for setup in both().await {
        let limit = |max| {
            Limit::attempts(max)
                .within(Period::days(1))
                .build()
                .unwrap()
        };
        let rule = Rule::new(
            Rule::NETWORK_48,
            [tower_login_rate_limit::Part::Network(48)],
            limit(10),
        );
        let limiter = setup.limiter(Policy::default().with_rule(rule.unwrap()));
        for i in 1..=3 {
            block(&limiter, ip(&format!("203.0.113.{i}")), "alice").await;
        }
        block(&limiter, ip("203.0.114.1"), "alice").await;
        block(&limiter, ip("2001:db8:1:1::1"), "alice").await;
        block(&limiter, ip("2001:db8:1:2::1"), "alice").await;
        let admin = limiter.admin().unwrap();
        let network = |text: &str| Subject::network(text).unwrap();
        let unblocked = admin
            .unblock(network("203.0.113.0/24"), &author())
            .await
            .unwrap();
        assert_eq!(unblocked.count, 3, "{}", setup.name);
        refused(limiter.reserve((ip("203.0.114.1"), "alice")).await);

        let unblocked = admin
            .unblock(network("2001:db8:1:1::/64"), &author())
            .await
            .unwrap();
        assert_eq!(places(&unblocked.lifted), [pair("2001:db8:1:1::/64")]);
        let around = [("network-48".to_owned(), "2001:db8:1::/48".to_owned())];
        assert_eq!(places(&unblocked.refused_by), around, "{}", setup.name);
        let address = Subject::address(ip("2001:db8:1:1::1"));
        let unblocked = admin.unblock(address, &author()).await.unwrap();
        assert_eq!(unblocked.count, 0, "{}", setup.name);
        assert_eq!(places(&unblocked.refused_by), around, "{}", setup.name);

        let unblocked = admin
            .unblock(network("2001:db8:1::/48"), &author())
            .await
            .unwrap();
        let [around] = around;
        let expected = [around, pair("2001:db8:1:2::/64")];
        assert_eq!(places(&unblocked.lifted), expected, "{}", setup.name);
        assert!(
            limiter
                .reserve((ip("2001:db8:1:2::1"), "alice"))
                .await
                .is_ok()
        );
    }
}

#[tokio::test]
async fn a_block_of_the_list_is_lifted_by_its_id_and_nothing_else_is_taken_for_one() {
    for setup in both().await {
        let limiter = setup.limiter(Policy::default());
        crowd(&limiter).await;
        let admin = limiter.admin().unwrap();
        let filter = BlockFilter::new().with_user("bob").with_address(ip(OFFICE));
        let found = listed(&admin, &filter).await;
        let id: BlockId = found[0].id.to_string().parse().unwrap();
        let unblocked = admin.unblock_counter(&id, &author()).await.unwrap();
        assert_eq!(unblocked.count, 1, "{}", setup.name);
        assert!(limiter.reserve((ip(OFFICE), "bob")).await.is_ok());
        refused(limiter.reserve((ip(OFFICE), "alice")).await);
        assert!(listed(&admin, &filter).await.is_empty(), "{}", setup.name);
        // Again, as a second operator does.
        let again = admin.unblock_counter(&id, &author()).await.unwrap();
        assert_eq!(again.count, 0, "{}", setup.name);

        for text in ["", "address", "no-rule/x", "address/", "address/session:1"] {
            let error = match text.parse::<BlockId>() {
                Ok(id) => admin.unblock_counter(&id, &author()).await.unwrap_err(),
                Err(error) => error,
            };
            assert_eq!(error.kind(), AdminErrorKind::InvalidInput, "{text}");
        }
    }
}

#[tokio::test]
async fn of_two_operators_at_once_one_lifts_the_block_and_both_are_audited() {
    for setup in both().await {
        let (seen, limiter) = Seen::observing(setup.limiter(Policy::default()));
        block(&limiter, ip(HOME), "alice").await;
        let admin = limiter.admin().unwrap();
        let unblock = || admin.unblock(Subject::pair(ip(HOME), "alice"), &AUTHOR);
        static AUTHOR: std::sync::LazyLock<tower_login_rate_limit::admin::Author> =
            std::sync::LazyLock::new(author);
        let (one, other) = tokio::join!(unblock(), unblock());
        let lifted = one.unwrap().count + other.unwrap().count;
        assert_eq!(lifted, 1, "{}", setup.name);
        let events = seen.named(&limiter, &["administered"]).await;
        assert_eq!(events.len(), 2, "{}", setup.name);
        let events = seen.named(&limiter, &["block_lifted"]).await;
        assert_eq!(events.len(), 1, "{}", setup.name);
    }
}

/// The next block of the same counter begins between the look at the list and the lifting, and after it.
#[tokio::test]
async fn a_block_that_begins_after_it_was_lifted_is_listed_anew() {
    for setup in both().await {
        let limiter = setup.limiter(Policy::default());
        let admin = limiter.admin().unwrap();
        for round in 0..3 {
            block(&limiter, ip(HOME), "alice").await;
            let found = listed(&admin, &BlockFilter::new()).await;
            assert_eq!(places(&found), [pair(HOME)], "{} {round}", setup.name);
            let subject = Subject::pair(ip(HOME), "alice");
            admin.unblock(subject, &author()).await.unwrap();
            assert!(listed(&admin, &BlockFilter::new()).await.is_empty());
        }
        // While one operator lifts, an attacker goes on: whatever ends first, list and counter agree.
        for _ in 0..10 {
            block(&limiter, ip(HOME), "alice").await;
            let lifting = async {
                let subject = Subject::pair(ip(HOME), "alice");
                admin.unblock(subject, &author()).await.unwrap();
            };
            let guessing = async {
                for _ in 0..20 {
                    let guess = limiter.reserve((ip(HOME), "alice")).await;
                    if let Ok(attempt) = guess {
                        let failed = tower_login_rate_limit::Outcome::Failure;
                        attempt.settle(failed).await.unwrap();
                    }
                    tokio::task::yield_now().await;
                }
            };
            tokio::join!(lifting, guessing);
            limiter.all_settled().await.unwrap();
            let report = limiter.check((ip(HOME), "alice")).await.unwrap();
            let is_pair = report.rule(Rule::USER_ADDRESS).unwrap().is_blocked();
            let filter = BlockFilter::new().with_rule(Rule::USER_ADDRESS);
            let found = listed(&admin, &filter).await;
            assert_eq!(found.len(), usize::from(is_pair), "{}", setup.name);
            for subject in [Subject::user("alice"), Subject::address(ip(HOME))] {
                admin.unblock(subject, &author()).await.unwrap();
            }
        }
    }
}

#[tokio::test]
async fn the_audit_has_author_reason_and_subject_and_no_name_that_is_not_shown() {
    for setup in both().await {
        let (seen, limiter) = Seen::observing(setup.limiter(Policy::default()));
        block(&limiter, ip(HOME), "wilhelmina").await;
        let admin = limiter.admin().unwrap();
        admin
            .unblock(Subject::pair(ip(HOME), "Wilhelmina"), &author())
            .await
            .unwrap();
        admin
            .unblock(Subject::network("192.0.2.0/24").unwrap(), &author())
            .await
            .unwrap();
        admin
            .forget_address("wilhelmina", None, &author())
            .await
            .unwrap();
        let events = seen
            .named(&limiter, &["administered", "block_lifted"])
            .await;
        assert_eq!(events.len(), 4, "{events:?}");
        for event in &events {
            assert!(
                event.contains(r#""author":"bob@ops","reason":"ticket 4711""#),
                "{event}"
            );
            assert!(!event.to_lowercase().contains("wilhelmina"), "{event}");
        }
        let pair = r#""address":"192.0.2.1","user":"w***"}"#;
        assert!(events[0].contains(r#""action":"unblock""#) && events[0].ends_with(pair));
        assert!(
            events[1].contains(r#""by":"operator""#) && events[1].ends_with(pair),
            "{events:?}"
        );
        assert!(
            events[2].contains(r#""network":"192.0.2.0/24""#),
            "{events:?}"
        );
        assert!(events[3].contains(r#""action":"forget""#), "{events:?}");
        // What was not done for a reason is not audited.
        admin
            .unblock(Subject::user(" "), &author())
            .await
            .unwrap_err();
        assert_eq!(seen.named(&limiter, &["administered"]).await.len(), 3);
    }
}

#[tokio::test]
async fn what_an_access_rule_denies_is_reported_by_an_unblock() {
    let setup = Setup::memory();
    let rules = [AccessRule::deny("botnet", Field::Network, "192.0.2.0/24").unwrap()];
    let limiter = setup.limiter(Policy::default());
    block(&limiter, ip(HOME), "alice").await;
    let limiter = limiter
        .with_access_rules(AccessRules::new(rules).unwrap())
        .unwrap();
    let admin = limiter.admin().unwrap();
    let subject = Subject::pair(ip(HOME), "alice");
    let unblocked = admin.unblock(subject, &author()).await.unwrap();
    assert_eq!(unblocked.count, 1);
    assert_eq!(
        unblocked.denied_by.as_ref().map(AccessRule::name),
        Some("botnet")
    );
    serde_json::to_string(&unblocked).unwrap();
}

#[tokio::test]
async fn a_rule_in_shadow_is_explained_and_refuses_nobody() {
    for setup in both().await {
        let limit = Limit::attempts(3).within(Period::days(1)).build().unwrap();
        let rule = Rule::new("strict", [tower_login_rate_limit::Part::Address], limit);
        let policy = Policy::default().with_rule(rule.unwrap().with_shadow(true));
        let limiter = setup.limiter(policy);
        block(&limiter, ip(HOME), "alice").await;
        let admin = limiter.admin().unwrap();
        let explanation = admin.explain(&Subject::address(ip(HOME))).await.unwrap();
        let shadowed = explanation
            .limits
            .iter()
            .find(|limit| &*limit.rule == "strict");
        let words = &shadowed.unwrap().words;
        assert!(words.starts_with("in shadow, refuses nothing: "), "{words}");
        let subject = Subject::pair(ip(HOME), "alice");
        let unblocked = admin.unblock(subject, &author()).await.unwrap();
        assert_eq!(
            (unblocked.count, unblocked.refused_by.len()),
            (1, 0),
            "{}",
            setup.name
        );
        let explanation = admin
            .explain(&Subject::pair(ip(HOME), "alice"))
            .await
            .unwrap();
        assert!(!explanation.refuses(), "{}", setup.name);
        assert!(limiter.reserve((ip(HOME), "alice")).await.is_ok());
    }
}
