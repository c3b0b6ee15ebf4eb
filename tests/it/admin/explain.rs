//! Explanations, compared with what happens.

use std::time::Duration;

use tower_login_rate_limit::{
    Caller, Limit, Outcome, Part, Period, Policy, ReserveError, Rule,
    access::{AccessRule, AccessRules, Field},
    admin::{ExplainedLimit, Explanation, LimitState, NextFailure, Subject},
};

use super::{HOME, OFFICE, Setup, block, both};
use crate::support::{HOUR, MINUTE, START, attempt, fail, ip};

fn limit<'e>(explanation: &'e Explanation, rule: &str) -> &'e ExplainedLimit {
    let mut limits = explanation.limits.iter();
    let found = limits.find(|limit| &*limit.rule == rule);
    found.unwrap_or_else(|| panic!("no {rule} in {explanation:#?}"))
}

#[tokio::test]
async fn a_pair_is_explained_under_each_rule_with_each_attempt_and_in_words() {
    for setup in both().await {
        let (name, limiter) = (setup.name, setup.limiter(Policy::strict()));
        let admin = limiter.admin().unwrap();
        let explain = async || {
            let subject = Subject::pair(ip(HOME), "Alice");
            admin.explain(&subject).await.unwrap()
        };
        fail(&limiter, ip(HOME), "bob", 1).await;
        setup.advance(MINUTE);
        fail(&limiter, ip(HOME), "alice", 2).await;
        setup.advance(MINUTE);
        let in_flight = limiter.reserve((ip(HOME), "alice")).await.unwrap();
        let explanation = explain().await;
        let rules: Vec<_> = explanation
            .limits
            .iter()
            .map(|limit| &*limit.rule)
            .collect();
        let expected = ["address", "user-address", "second-factor", "account"];
        assert_eq!(rules, expected, "{name}");
        let address = limit(&explanation, Rule::ADDRESS);
        assert_eq!(address.attempts.len(), 4, "{name}");
        let pair = limit(&explanation, Rule::USER_ADDRESS);
        let attempts: Vec<_> = pair.attempts.iter().map(|a| (a.at, a.in_flight)).collect();
        let expected = [
            (START + 2 * MINUTE + 30_000, true),
            (START + MINUTE, false),
            (START + MINUTE, false),
        ];
        assert_eq!(attempts, expected, "{name}");
        assert!(pair.attempts.iter().all(|attempt| attempt.counts));
        let id = tower_login_rate_limit::AttemptId::of(in_flight.token());
        assert_eq!(pair.attempts[0].attempt, id, "{name}");
        assert_eq!(
            pair.words,
            "3 of 5 attempts within 1 day, 1 of them in flight; after another failure 1 attempt would be left",
            "{name}"
        );
        in_flight.settle(Outcome::Failure).await.unwrap();
        fail(&limiter, ip(HOME), "alice", 1).await;
        let explanation = explain().await;
        let pair = limit(&explanation, Rule::USER_ADDRESS);
        assert_eq!(
            pair.words, "4 of 5 failures within 1 day; the next one blocks for 1 day",
            "{name}"
        );
        assert!(!explanation.refuses() && !pair.state.refuses(), "{name}");
        fail(&limiter, ip(HOME), "alice", 1).await;
        setup.advance(HOUR);
        let explanation = explain().await;
        let pair = limit(&explanation, Rule::USER_ADDRESS);
        assert_eq!(
            pair.words, "5 of 5 failures within 1 day; blocked for another 23 hours",
            "{name}"
        );
        assert_eq!(pair.since, Some(START + 2 * MINUTE), "{name}");
        assert_eq!(
            pair.lifts_at,
            Some(START + 2 * MINUTE + 24 * HOUR),
            "{name}"
        );
        assert_eq!(pair.next_failure, NextFailure::Refused, "{name}");
        let account = limit(&explanation, Rule::ACCOUNT);
        assert_eq!((account.usage, account.address), (5, None), "{name}");
        assert!(explanation.refuses(), "{name}");
        serde_json::to_string(&explanation).unwrap();
    }
}

/// What the next failure would do is what it does.
#[tokio::test]
async fn the_next_failure_does_what_was_foretold_under_each_algorithm() {
    let seconds = Duration::from_secs;
    let limits: [(&str, Limit); 9] = [
        (
            "window",
            Limit::attempts(3).within(Period::hours(1)).build().unwrap(),
        ),
        (
            "window without a block",
            Limit::attempts(3)
                .within(Period::hours(1))
                .without_block()
                .build()
                .unwrap(),
        ),
        (
            "one",
            Limit::attempts(1)
                .within(Period::hours(1))
                .without_block()
                .build()
                .unwrap(),
        ),
        (
            "growing",
            Limit::attempts(2)
                .within(Period::hours(1))
                .blocked_for(Period::hours(1))
                .then_for(Period::hours(5))
                .then_for(Period::days(3))
                .build()
                .unwrap(),
        ),
        (
            "one, growing",
            Limit::attempts(1)
                .within(Period::hours(1))
                .blocked_for(Period::hours(1))
                .then_for(Period::hours(5))
                .then_for(Period::days(3))
                .build()
                .unwrap(),
        ),
        (
            "bucket",
            Limit::attempts(3)
                .within(Period::hours(1))
                .as_token_bucket()
                .build()
                .unwrap(),
        ),
        (
            "bucket with a block",
            Limit::attempts(3)
                .within(Period::hours(1))
                .as_token_bucket()
                .blocked_for(Period::hours(2))
                .build()
                .unwrap(),
        ),
        (
            "counter",
            Limit::attempts(3)
                .within(Period::hours(1))
                .as_sliding_counter()
                .build()
                .unwrap(),
        ),
        (
            "back-off",
            Limit::backoff([0, 5, 60, 600].map(seconds))
                .build()
                .unwrap(),
        ),
    ];
    for setup in both().await {
        for (i, (name, limit)) in limits.iter().enumerate() {
            let name = format!("{} {name}", setup.name);
            let policy = Policy::new([]).unwrap();
            let policy = policy.with_user_address_limit(limit.clone()).unwrap();
            let (limiter, user) = (setup.limiter(policy), format!("user {i}"));
            let admin = limiter.admin().unwrap();
            let subject = Subject::pair(ip(HOME), &user);
            let mut blocks = 0;
            for step in 0..16 {
                let explanation = admin.explain(&subject).await.unwrap();
                let foretold = explanation.limits[0].next_failure;
                let happened = attempt(&limiter, ip(HOME), &user, Outcome::Failure).await;
                let after = limiter.check((ip(HOME), &*user)).await.unwrap();
                let refusal = after.refusal();
                match (foretold, happened) {
                    (NextFailure::Refused, Err(refusal)) => {
                        assert_eq!(explanation.limits[0].state, LimitState::Blocked);
                        let lifts = refusal.lifts().as_duration().unwrap();
                        setup.advance(u64::try_from(lifts.as_millis()).unwrap());
                    }
                    (NextFailure::Counts { remaining, .. }, Ok(())) => {
                        assert!(refusal.is_none(), "{name} {step}");
                        assert_eq!(after.remaining(), Some(remaining), "{name} {step}");
                    }
                    (NextFailure::Blocks { lifts, exact, .. }, Ok(())) => {
                        let refusal = refusal.unwrap_or_else(|| panic!("{name} {step}"));
                        blocks += 1;
                        if exact {
                            assert_eq!(refusal.lifts(), lifts, "{name} {step}");
                        } else {
                            assert!(refusal.lifts() >= lifts, "{name} {step}");
                        }
                    }
                    (foretold, happened) => panic!("{name} {step} {foretold:?} {happened:?}"),
                }
                setup.advance(7 * MINUTE);
            }
            assert!(blocks >= 2, "{name}: {blocks} blocks");
        }
    }
}

#[tokio::test]
async fn a_user_is_explained_with_the_blocks_at_addresses_that_are_listed() {
    for setup in both().await {
        let (name, limiter) = (setup.name, setup.limiter(Policy::strict()));
        let admin = limiter.admin().unwrap();
        block(&limiter, ip(HOME), "alice").await;
        block(&limiter, ip(OFFICE), "alice").await;
        block(&limiter, ip(OFFICE), "bob").await;
        attempt(&limiter, ip("203.0.113.1"), "alice", Outcome::Success)
            .await
            .unwrap();
        let of = async |subject| {
            let explanation: Explanation = admin.explain(&subject).await.unwrap();
            let limits = explanation.limits.iter();
            let mut limits: Vec<_> = limits
                .map(|limit| {
                    let address = limit.address.map_or_else(String::new, |a| a.to_string());
                    (limit.rule.to_string(), address, limit.usage)
                })
                .collect();
            limits.sort();
            (explanation, limits)
        };
        let row = |rule: &str, address: &str, usage| (rule.to_owned(), address.to_owned(), usage);
        let (explanation, limits) = of(Subject::user("Alice ")).await;
        let expected = [
            row("account", "", 10),
            row("second-factor", "", 0),
            row("user-address", HOME, 5),
            row("user-address", OFFICE, 5),
        ];
        assert_eq!(limits, expected, "{name}");
        assert!(explanation.known_addresses.is_empty(), "another spelling");
        let (explanation, _) = of(Subject::user("alice")).await;
        let known: Vec<_> = explanation
            .known_addresses
            .iter()
            .map(ToString::to_string)
            .collect();
        assert_eq!(known, ["203.0.113.1"], "{name}");

        let (explanation, limits) = of(Subject::address(ip(OFFICE))).await;
        let expected = [
            row("address", OFFICE, 10),
            row("user-address", OFFICE, 5),
            row("user-address", OFFICE, 5),
        ];
        assert_eq!(limits, expected, "{name}");
        assert!(
            explanation
                .limits
                .iter()
                .filter(|limit| limit.user.is_some())
                .count()
                == 2
        );
        let (_, limits) = of(Subject::network("192.0.2.0/24").unwrap()).await;
        assert_eq!(limits, [row("user-address", HOME, 5)], "{name}");
    }
}

/// A rule by a value of the app: its counters are known by the index alone.
#[tokio::test]
async fn counters_by_values_of_the_app_are_explained_once_they_are_blocked() {
    for setup in both().await {
        let parts = [Part::User, Part::value("tenant")];
        let three = Limit::attempts(3).within(Period::days(1));
        let rule = Rule::new("tenant-user", parts, three).unwrap();
        let limiter = setup.limiter(Policy::default().with_rule(rule));
        for _ in 0..3 {
            let caller = Caller::new(ip(HOME))
                .with_user("alice")
                .with_value("tenant", "acme");
            let attempt = limiter.reserve(caller).await.unwrap();
            attempt.settle(Outcome::Failure).await.unwrap();
        }
        limiter.all_settled().await.unwrap();
        let admin = limiter.admin().unwrap();
        for subject in [Subject::user("alice"), Subject::pair(ip(OFFICE), "alice")] {
            let explanation = admin.explain(&subject).await.unwrap();
            assert_eq!(limit(&explanation, "tenant-user").usage, 3);
        }
        let unblocked = admin
            .unblock(Subject::user("alice"), &super::author())
            .await
            .unwrap();
        assert_eq!(unblocked.count, 1, "{}", setup.name);
    }
}

#[tokio::test]
async fn an_exempt_address_and_the_access_rule_that_decides_are_explained() {
    for setup in both().await {
        let limit = Limit::attempts(4).within(Period::days(1)).build().unwrap();
        let policy = Policy::strict().with_account_limit(limit).unwrap();
        let rules = AccessRules::new([
            AccessRule::deny("botnet", Field::Network, "203.0.113.0/24").unwrap(),
            AccessRule::allow("office", Field::Network, OFFICE).unwrap(),
        ]);
        let limiter = setup
            .limiter(policy)
            .with_access_rules(rules.unwrap())
            .unwrap();
        let admin = limiter.admin().unwrap();
        attempt(&limiter, ip(HOME), "alice", Outcome::Success)
            .await
            .unwrap();
        fail(&limiter, ip("192.0.2.9"), "alice", 4).await;
        let explain = async |address| {
            let subject = Subject::pair(ip(address), "alice");
            admin.explain(&subject).await.unwrap()
        };
        let known = explain(HOME).await;
        let account = limit_of(&known);
        assert_eq!(account.state, LimitState::Exempt, "{}", setup.name);
        assert!(account.words.contains("has logged in"), "{}", account.words);
        assert!(!known.refuses());
        let other = explain("192.0.2.8").await;
        assert_eq!(
            limit_of(&other).state,
            LimitState::Blocked,
            "{}",
            setup.name
        );
        assert!(other.refuses());

        let denied = explain("203.0.113.5").await;
        assert_eq!(
            denied.decided_by.as_ref().map(AccessRule::name),
            Some("botnet")
        );
        assert!(denied.refuses());
        let reserved = limiter.reserve((ip("203.0.113.5"), "alice")).await;
        assert!(matches!(reserved, Err(ReserveError::Denied(_))));
        let allowed = explain(OFFICE).await;
        assert!(!allowed.refuses(), "{}", setup.name);
        limiter
            .reserve((ip(OFFICE), "alice"))
            .await
            .unwrap()
            .settle(Outcome::Failure)
            .await
            .unwrap();
    }
}

fn limit_of(explanation: &Explanation) -> &ExplainedLimit {
    limit(explanation, Rule::ACCOUNT)
}

#[tokio::test]
async fn a_block_that_is_not_listed_is_explained_all_the_same() {
    let setup = Setup::memory();
    let limiter = setup.limiter(Policy::default());
    for _ in 0..5 {
        drop(limiter.reserve((ip(HOME), "alice")).await.unwrap());
    }
    setup.advance(MINUTE);
    let admin = limiter.admin().unwrap();
    let subject = Subject::pair(ip(HOME), "alice");
    let explanation = admin.explain(&subject).await.unwrap();
    assert_eq!(
        limit(&explanation, Rule::USER_ADDRESS).state,
        LimitState::Blocked
    );
    let unblocked = admin.unblock(subject, &super::author()).await.unwrap();
    assert_eq!(unblocked.count, 1);
}
