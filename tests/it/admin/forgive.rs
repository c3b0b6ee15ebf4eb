//! Forgiving a user after a password was reset, and the addresses that are known.

use tower_login_rate_limit::{
    Outcome, Policy, Rule,
    admin::{AdminErrorKind, BlockFilter, Forgive},
};

use super::{HOME, OFFICE, Seen, author, block, both, listed, pair, places};
use crate::support::{attempt, fail, ip};

#[tokio::test]
async fn a_user_is_forgiven_everywhere_and_others_at_the_same_address_are_not() {
    for setup in both().await {
        let (seen, limiter) = Seen::observing(setup.limiter(Policy::strict()));
        let admin = limiter.admin().unwrap();
        block(&limiter, ip(HOME), "alice").await;
        block(&limiter, ip(OFFICE), "alice").await;
        block(&limiter, ip(HOME), "bob").await;
        let forgiven = admin
            .forgive(&Forgive::user("alice"), &author())
            .await
            .unwrap();
        let addresses: Vec<_> = forgiven.addresses.iter().map(ToString::to_string).collect();
        assert_eq!(addresses, [HOME, OFFICE], "{}", setup.name);
        assert_eq!(
            places(&forgiven.lifted),
            [pair(HOME), pair(OFFICE)],
            "{}",
            setup.name
        );
        assert!(forgiven.refused_by.is_empty());
        let report = limiter.check((ip(HOME), "alice")).await.unwrap();
        let usage = |rule| report.rule(rule).unwrap().usage;
        let all = [Rule::ADDRESS, Rule::USER_ADDRESS, Rule::ACCOUNT].map(usage);
        assert_eq!(all, [5, 0, 0], "{}", setup.name);
        let left = listed(&admin, &BlockFilter::new()).await;
        assert_eq!(places(&left), [pair(HOME)], "{}", setup.name);
        let events = seen
            .named(&limiter, &["administered", "block_lifted"])
            .await;
        assert_eq!(events.len(), 3, "{events:?}");
        assert!(events[0].contains(r#""action":"forgive""#), "{events:?}");
        serde_json::to_string(&forgiven).unwrap();
    }
}

#[tokio::test]
async fn only_at_the_given_addresses() {
    for setup in both().await {
        let limiter = setup.limiter(Policy::default());
        let admin = limiter.admin().unwrap();
        fail(&limiter, ip(HOME), "alice", 3).await;
        block(&limiter, ip(OFFICE), "alice").await;
        let forgive = Forgive::user("alice").at([ip(HOME)]);
        let forgiven = admin.forgive(&forgive, &author()).await.unwrap();
        assert!(forgiven.lifted.is_empty());
        assert_eq!(
            places(&forgiven.refused_by),
            [pair(OFFICE)],
            "{}",
            setup.name
        );
        let report = limiter.check((ip(HOME), "alice")).await.unwrap();
        assert_eq!(
            report.rule(Rule::USER_ADDRESS).unwrap().usage,
            0,
            "{}",
            setup.name
        );
    }
}

/// `Victim` may be an account of an attacker, who resets its password.
#[tokio::test]
async fn a_reset_of_another_spelling_takes_back_no_guess_unless_asked_for() {
    for setup in both().await {
        let limiter = setup.limiter(Policy::default());
        let admin = limiter.admin().unwrap();
        block(&limiter, ip(HOME), "victim").await;
        let other = Forgive::user("Victim");
        let forgiven = admin.forgive(&other, &author()).await.unwrap();
        assert!(forgiven.lifted.is_empty(), "{}", setup.name);
        assert_eq!(places(&forgiven.refused_by), [pair(HOME)], "{}", setup.name);
        let every = other.with_every_spelling(true);
        let forgiven = admin.forgive(&every, &author()).await.unwrap();
        assert_eq!(places(&forgiven.lifted), [pair(HOME)], "{}", setup.name);
        let report = limiter.check(ip(HOME)).await.unwrap();
        assert_eq!(
            report.rule(Rule::ADDRESS).unwrap().usage,
            0,
            "{}",
            setup.name
        );
    }
}

#[tokio::test]
async fn known_addresses_are_listed_and_forgotten_by_one_or_all() {
    for setup in both().await {
        let limiter = setup.limiter(Policy::strict());
        let admin = limiter.admin().unwrap();
        for address in [HOME, OFFICE, "2001:db8::1"] {
            attempt(&limiter, ip(address), "alice", Outcome::Success)
                .await
                .unwrap();
            setup.advance(1_000);
        }
        let known = async || {
            let known = admin.known_addresses("alice").await.unwrap();
            known.iter().map(ToString::to_string).collect::<Vec<_>>()
        };
        assert_eq!(
            known().await,
            ["2001:db8::/64", OFFICE, HOME],
            "{}",
            setup.name
        );
        let first = admin.known_addresses("alice").await.unwrap()[0];
        let forgotten = admin.forget_address("alice", Some(first), &author()).await;
        assert_eq!(forgotten.unwrap(), 1, "{}", setup.name);
        assert_eq!(known().await, [OFFICE, HOME], "{}", setup.name);
        let forgotten = admin.forget_address("alice", None, &author()).await;
        assert_eq!(forgotten.unwrap(), 2, "{}", setup.name);
        assert!(known().await.is_empty(), "{}", setup.name);
        let error = admin.forget_address("", None, &author()).await.unwrap_err();
        assert_eq!(error.kind(), AdminErrorKind::InvalidInput);
    }
}
