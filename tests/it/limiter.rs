//! What the limiter adds to a store: users, identification, operators' calls, custom rules.

use std::{sync::Arc, time::Duration};

use tower_login_rate_limit::{
    Address, Caller, KeyLimiter, KnownAddresses, Limit, LoginLimiter, Outcome, Part, Period,
    Policy, Reason, ReserveError, Rule, Token,
    event::{Event, UserDisplay},
    store::{
        Key, MemoryStore, Settled, Settlement, Slot, Standings, Store, StoreErrorKind, StoreFuture,
    },
};

use crate::support::{BothStores, attempt, fail, ip, refused};

const HOME: &str = "192.0.2.1";

async fn usage(limiter: &LoginLimiter, caller: impl Into<Caller<'_>>, rule: &str) -> u32 {
    let report = limiter.check(caller).await.expect("checked");
    report.rule(rule).expect("the rule applies").usage
}

#[tokio::test]
async fn the_user_may_be_named_later() {
    let both = BothStores::start().await;
    for (name, limiter) in both.limiters(&Policy::default()) {
        let mut attempt = limiter.reserve(ip(HOME)).await.unwrap();
        assert!(attempt.report().rule(Rule::USER_ADDRESS).is_none());
        attempt.identify("User").await.unwrap();
        attempt.identify(" user ").await.unwrap(); // again, in another spelling
        assert_eq!(attempt.report().rule(Rule::USER_ADDRESS).unwrap().usage, 1);
        assert_eq!(attempt.report().remaining(), Some(4));
        assert_eq!(
            usage(&limiter, (ip(HOME), "user"), Rule::ADDRESS).await,
            1,
            "{name}"
        );

        attempt.settle(Outcome::Failure).await.unwrap();
        assert_eq!(
            usage(&limiter, (ip(HOME), "user"), Rule::USER_ADDRESS).await,
            1,
            "{name}"
        );
    }
}

#[tokio::test]
async fn a_user_who_is_refused_when_named_leaves_no_trace() {
    let both = BothStores::start().await;
    for (name, limiter) in both.limiters(&Policy::default()) {
        fail(&limiter, ip(HOME), "user", 5).await;
        for _ in 0..30 {
            let mut attempt = limiter.reserve(ip(HOME)).await.unwrap();
            let refusal = refused(attempt.identify("user").await);
            assert_eq!(
                (refusal.rule(), refusal.reason()),
                (Rule::USER_ADDRESS, Reason::Blocked)
            );
            // Whatever is done with it then.
            assert_eq!(refused(attempt.identify("other").await), refusal);
            attempt.settle(Outcome::Failure).await.unwrap();
        }
        assert_eq!(usage(&limiter, ip(HOME), Rule::ADDRESS).await, 5, "{name}");
        assert_eq!(
            usage(&limiter, (ip(HOME), "other"), Rule::USER_ADDRESS).await,
            0,
            "{name}"
        );
    }
}

#[tokio::test]
async fn names_of_one_account_share_its_budget_once_it_is_known() {
    let both = BothStores::start().await;
    for (name, limiter) in both.limiters(&Policy::default()) {
        let mut admitted = 0;
        for alias in ["a@example.org", "b@example.org", "+1 555 0100"]
            .iter()
            .cycle()
            .take(12)
        {
            let Ok(mut attempt) = limiter.reserve((ip(HOME), *alias)).await else {
                continue;
            };
            if attempt.identify("account 42").await.is_ok() {
                admitted += 1;
                attempt.settle(Outcome::Failure).await.unwrap();
            }
        }
        assert_eq!(admitted, 5, "{name}");
        let of = |user| usage(&limiter, (ip(HOME), user), Rule::USER_ADDRESS);
        assert_eq!(
            (of("account 42").await, of("a@example.org").await),
            (5, 0),
            "{name}"
        );
        assert_eq!(usage(&limiter, ip(HOME), Rule::ADDRESS).await, 5, "{name}");
    }
}

#[tokio::test]
async fn spellings_of_a_user_and_forms_of_an_address_share_a_budget() {
    let both = BothStores::start().await;
    for (name, limiter) in both.limiters(&Policy::default()) {
        for (address, user) in [
            ("192.0.2.1", "user"),
            ("::ffff:192.0.2.1", "User"),
            ("::ffff:c000:201", " user "),
            ("192.0.2.1", "ＵＳＥＲ"),
            ("192.0.2.1", "uſer"),
        ] {
            attempt(&limiter, ip(address), user, Outcome::Failure)
                .await
                .unwrap();
        }
        refused(limiter.reserve((ip(HOME), "USER")).await);

        // A /64 is one caller, and its neighbour is another.
        for i in 0..5 {
            let address = format!("2001:db8:1:2:{i:x}::{i:x}");
            attempt(&limiter, ip(&address), "user", Outcome::Failure)
                .await
                .unwrap();
        }
        refused(limiter.reserve((ip("2001:db8:1:2:ffff::1"), "user")).await);
        assert!(
            limiter
                .reserve((ip("2001:db8:1:3::1"), "user"))
                .await
                .is_ok(),
            "{name}"
        );
    }
}

#[tokio::test]
async fn an_app_can_give_users_its_own_spelling() {
    let limiter = LoginLimiter::new(Policy::default(), MemoryStore::new())
        .with_normalizer(|user| user.replace('.', ""));
    fail(&limiter, ip(HOME), "first.last", 5).await;
    refused(limiter.reserve((ip(HOME), "firstlast")).await);
    assert!(limiter.reserve((ip(HOME), "FIRSTLAST")).await.is_ok());
}

#[tokio::test]
async fn cleanup_for_one_user_over_many_addresses() {
    let both = BothStores::start().await;
    let addresses = ["192.0.2.1", "192.0.2.2", "2001:db8::1"].map(ip);
    for (name, limiter) in both.limiters(&Policy::default()) {
        for address in addresses {
            fail(&limiter, address, "user", 5).await;
            fail(&limiter, address, "other", 2).await;
        }
        limiter.cleanup("user", addresses).await.unwrap();
        for address in addresses {
            let of = |user| usage(&limiter, (address, user), Rule::USER_ADDRESS);
            assert_eq!((of("user").await, of("other").await), (0, 2), "{name}");
            assert_eq!(usage(&limiter, address, Rule::ADDRESS).await, 2, "{name}");
        }
    }
}

#[tokio::test]
async fn an_operator_can_lift_blocks() {
    let both = BothStores::start().await;
    for (name, limiter) in both.limiters(&Policy::default()) {
        for user in ["a", "b", "c", "d", "e"] {
            fail(&limiter, ip(HOME), user, 5).await;
        }
        refused(limiter.reserve(ip(HOME)).await);
        limiter.unblock(ip(HOME)).await.unwrap();
        assert!(
            limiter.check(ip(HOME)).await.unwrap().refusal().is_none(),
            "{name}"
        );
        // What users did from there stays.
        refused(limiter.reserve((ip(HOME), "a")).await);
        limiter.unblock((ip(HOME), "a")).await.unwrap();
        assert!(limiter.reserve((ip(HOME), "a")).await.is_ok(), "{name}");
        refused(limiter.reserve((ip(HOME), "b")).await);
    }
}

#[tokio::test]
async fn of_several_refusals_the_longest_is_reported() {
    let both = BothStores::start().await;
    let short = Limit::attempts(2)
        .within(Period::hours(1))
        .blocked_for(Period::minutes(1));
    let long = Limit::attempts(2)
        .within(Period::hours(1))
        .blocked_for(Period::days(2));
    let policy = Policy::default().with_address_limit(long).unwrap();
    let policy = policy.with_user_address_limit(short).unwrap();
    for (_, limiter) in both.limiters(&policy) {
        fail(&limiter, ip(HOME), "user", 2).await;
        let refusal = refused(limiter.reserve((ip(HOME), "user")).await);
        assert_eq!(
            (refusal.rule(), refusal.lifts()),
            (Rule::ADDRESS, Period::days(2))
        );
    }
}

#[tokio::test]
async fn custom_rules_count_by_any_mix() {
    let both = BothStores::start().await;
    let limit = |n| Limit::attempts(n).within(Period::hours(1));
    let policy = Policy::new([
        Rule::new("tenant", [Part::value("tenant")], limit(4)).unwrap(),
        Rule::new("device", [Part::Address, Part::value("device")], limit(2)).unwrap(),
        Rule::new(
            "both",
            [Part::User, Part::value("tenant"), Part::value("device")],
            limit(3),
        )
        .unwrap(),
    ])
    .unwrap();
    for (name, limiter) in both.limiters(&policy) {
        let caller = |tenant: &'static str, device: &'static str| {
            Caller::new(ip(HOME))
                .with_user("user")
                .with_value("tenant", tenant)
                .with_value("device", device)
        };
        let fail = async |caller: Caller<'static>| {
            let attempt = limiter.reserve(caller).await?;
            attempt.settle(Outcome::Failure).await?;
            Ok::<_, tower_login_rate_limit::ReserveError>(())
        };
        fail(caller("t", "d")).await.unwrap();
        fail(caller("t", "d")).await.unwrap();
        assert_eq!(
            refused(fail(caller("t", "d")).await).rule(),
            "device",
            "{name}"
        );
        fail(caller("t", "e")).await.unwrap();
        fail(caller("t", "f")).await.unwrap();
        assert_eq!(
            refused(fail(caller("t", "g")).await).rule(),
            "tenant",
            "{name}"
        );
        fail(caller("u", "g")).await.unwrap();

        // Moving a border between values gives another key.
        assert_eq!(usage(&limiter, caller("td", ""), "both").await, 0);
        assert_eq!(usage(&limiter, caller("t", "d"), "both").await, 2);

        // Who leaves a value out shares a counter with all others who do, and with nobody else.
        let without = || {
            Caller::new(ip("192.0.2.7"))
                .with_user("user")
                .with_value("tenant", "v")
        };
        assert_eq!(
            usage(&limiter, without().with_value("device", ""), "device").await,
            0
        );
        fail(without()).await.unwrap();
        fail(without()).await.unwrap();
        assert_eq!(refused(fail(without()).await).rule(), "device", "{name}");
        assert_eq!(
            usage(&limiter, without().with_value("device", ""), "device").await,
            0
        );
    }
}

#[tokio::test]
async fn a_rule_that_is_off_counts_nothing_and_refuses_nobody() {
    let both = BothStores::start().await;
    let off = Policy::default()
        .with_rule_enabled(Rule::USER_ADDRESS, false)
        .unwrap();
    for (name, limiter) in both.limiters(&off) {
        fail(&limiter, ip(HOME), "user", 25).await;
        assert_eq!(
            refused(limiter.reserve((ip(HOME), "user")).await).rule(),
            Rule::ADDRESS,
            "{name}"
        );
    }
    assert_eq!(both.redis.counters().len(), 1);
    both.redis.flush();

    let nothing = off.with_rule_enabled(Rule::ADDRESS, false).unwrap();
    for (name, limiter) in both.limiters(&nothing) {
        fail(&limiter, ip("192.0.2.9"), "user", 100).await;
        attempt(&limiter, ip("192.0.2.9"), "user", Outcome::Success)
            .await
            .unwrap();
        assert_eq!(
            limiter.check(ip("192.0.2.9")).await.unwrap().remaining(),
            None,
            "{name}"
        );
    }
    assert_eq!(both.redis.keys(), []);
}

#[tokio::test]
async fn with_the_pair_rule_off_success_takes_back_its_own_attempt_alone() {
    let both = BothStores::start().await;
    let policy = Policy::default()
        .with_rule_enabled(Rule::USER_ADDRESS, false)
        .unwrap();
    for (name, limiter) in both.limiters(&policy) {
        fail(&limiter, ip(HOME), "user", 3).await;
        attempt(&limiter, ip(HOME), "user", Outcome::Success)
            .await
            .unwrap();
        assert_eq!(usage(&limiter, ip(HOME), Rule::ADDRESS).await, 3, "{name}");
    }
}

#[tokio::test]
async fn plain_calls_for_any_key() {
    let both = BothStores::start().await;
    let limit = Limit::attempts(3).within(Period::hours(1)).without_block();
    for (name, store) in both.stores() {
        let mails = KeyLimiter::new("mail", limit.clone(), Arc::clone(&store)).unwrap();
        // Any name will do, also one that a rule has.
        let codes = KeyLimiter::new("account", limit.clone(), store).unwrap();
        let first = mails.reserve("key").await.unwrap();
        mails.reserve("key").await.unwrap();
        mails.reserve("key").await.unwrap();
        let refusal = refused(mails.reserve("key").await);
        assert_eq!(refusal.reason(), Reason::Blocked, "{name}");
        assert_eq!((refusal.rule(), refusal.usage()), ("mail", 3));
        assert_eq!(refusal.lifts(), Period::hours(1));
        assert_eq!(codes.check("key").await.unwrap().remaining(), 3);
        assert_eq!(mails.check("other").await.unwrap().remaining(), 3);

        assert!(mails.cancel("key", first).await.unwrap());
        assert!(!mails.cancel("key", first).await.unwrap());
        assert_eq!(mails.check("key").await.unwrap().remaining(), 1, "{name}");
        mails.reserve("key").await.unwrap();
    }
}

#[tokio::test]
async fn a_key_limiter_reports_keys_at_their_limit_and_refusals_as_they_were() {
    let both = BothStores::start().await;
    let limit = |n| Limit::attempts(n).within(Period::hours(1)).without_block();
    for (name, store) in both.stores() {
        let (sender, seen) = std::sync::mpsc::channel();
        let sender = std::sync::Mutex::new(sender);
        let mails = KeyLimiter::new("mail", limit(3), Arc::clone(&store))
            .unwrap()
            .with_observer(move |event: &Event| {
                let event = serde_json::to_value(event).unwrap();
                let key = event["user"].as_str().unwrap_or("hidden").to_owned();
                let what = format!("{} {}", event["event"].as_str().unwrap(), event["rule"]);
                sender.lock().unwrap().send((what, key)).unwrap();
            })
            .with_key_display(UserDisplay::Masked);
        let clients = mails.sibling("client", limit(4)).unwrap();
        let keys = [(&mails, "alice"), (&clients, "192.0.2.1")];
        for _ in 0..3 {
            KeyLimiter::reserve_all(keys).await.unwrap();
        }
        for _ in 0..2 {
            refused(KeyLimiter::reserve_all(keys).await);
        }
        KeyLimiter::reserve_all([(&mails, "bob"), (&clients, "192.0.2.1")])
            .await
            .unwrap();
        assert!(mails.observed().await && clients.observed().await);
        let event = |what: &str, key: &str| (what.to_owned(), key.to_owned());
        assert_eq!(
            seen.try_iter().collect::<Vec<_>>(),
            [
                event(r#"limit_reached "mail""#, "a***"),
                event(r#"refused "mail""#, "a***"),
                event(r#"refused "mail""#, "a***"),
                event(r#"limit_reached "client""#, "1***"),
            ],
            "{name}"
        );
    }
}

#[tokio::test]
async fn several_keys_count_all_or_nothing() {
    let both = BothStores::start().await;
    let limit = |n| Limit::attempts(n).within(Period::hours(1)).without_block();
    for (name, store) in both.stores() {
        let mails = KeyLimiter::new("mail", limit(3), Arc::clone(&store)).unwrap();
        let clients = mails.sibling("client", limit(4)).unwrap();
        let (alice, bob) = (
            [(&mails, "alice"), (&clients, "192.0.2.1")],
            [(&mails, "bob"), (&clients, "192.0.2.1")],
        );
        let usage = async || {
            let alice = mails.check("alice").await.unwrap().usage;
            let bob = mails.check("bob").await.unwrap().usage;
            (alice, bob, clients.check("192.0.2.1").await.unwrap().usage)
        };
        for _ in 0..3 {
            KeyLimiter::reserve_all(alice).await.unwrap();
        }
        // A client that is refused for one mailbox uses up nothing of its own budget, nor of others.
        for _ in 0..10 {
            let refusal = refused(KeyLimiter::reserve_all(alice).await);
            assert_eq!(
                (refusal.rule(), refusal.is_login()),
                ("mail", false),
                "{name}"
            );
            assert_eq!(
                refusal.to_string(),
                "too many requests, try again in 1 hour"
            );
        }
        assert_eq!(usage().await, (3, 0, 3), "{name}");
        let token = KeyLimiter::reserve_all(bob).await.unwrap();
        assert_eq!(refused(KeyLimiter::reserve_all(bob).await).rule(), "client");
        assert_eq!(usage().await, (3, 1, 4), "{name}");
        assert!(KeyLimiter::cancel_all(bob, token).await.unwrap());
        assert!(!KeyLimiter::cancel_all(bob, token).await.unwrap());
        assert_eq!(usage().await, (3, 0, 3), "{name}");
        // Named twice, it counts once.
        KeyLimiter::reserve_all([(&clients, "192.0.2.1"), (&clients, "192.0.2.1")])
            .await
            .unwrap();
        assert_eq!(usage().await, (3, 0, 4), "{name}");
    }
}

#[tokio::test]
async fn keys_that_can_not_be_decided_together_are_not_admitted() {
    let limit = Limit::attempts(3).within(Period::hours(1)).without_block();
    let mails = KeyLimiter::new("mail", limit.clone(), MemoryStore::new()).unwrap();
    let others = KeyLimiter::new("client", limit, MemoryStore::new()).unwrap();
    let none: [(&KeyLimiter, &str); 0] = [];
    for (keys, expected) in [
        (&[(&mails, "a"), (&others, "b")][..], "KeyLimiter::sibling"),
        (&none[..], "no key"),
    ] {
        match KeyLimiter::reserve_all(keys.iter().copied()).await {
            Err(ReserveError::Store(error)) => {
                assert_eq!(error.kind(), StoreErrorKind::Config);
                assert!(error.to_string().contains(expected), "{error}");
            }
            other => panic!("{other:?}"),
        }
    }
}

#[tokio::test]
async fn the_log_names_no_user() {
    let both = BothStores::start().await;
    for (_, limiter) in both.limiters(&Policy::default()) {
        let caller = Caller::new(ip(HOME))
            .with_user("somebody")
            .with_value("tenant", "somewhere");
        let shown = format!("{caller:?}");
        let attempt = limiter.reserve(caller).await.unwrap();
        let shown = format!("{shown} {attempt:?} {limiter:?} {:?}", attempt.report());
        assert!(!shown.contains("some"), "{shown}");
    }
    for (key, _) in both.redis.keys() {
        assert!(!key.contains("some"), "{key}");
    }
}

/// A store of the app's own that answers for fewer counters than it was asked about.
#[derive(Debug)]
struct Forgetful(MemoryStore);

impl Store for Forgetful {
    fn reserve(&self, token: Token, lease: Duration, slots: &[Slot<'_>]) -> StoreFuture<Standings> {
        self.0.reserve(token, lease, &slots[..slots.len() - 1])
    }

    fn check(&self, slots: &[Slot<'_>]) -> StoreFuture<Standings> {
        self.0.check(&slots[..slots.len() - 1])
    }

    fn settle(
        &self,
        tokens: &[Token],
        settlement: Settlement,
        slots: &[Slot<'_>],
        ago: Duration,
    ) -> StoreFuture<Settled> {
        self.0.settle(tokens, settlement, slots, ago)
    }

    fn remember(&self, key: &Key<'_>, address: Address, keep: KnownAddresses) -> StoreFuture<()> {
        self.0.remember(key, address, keep)
    }

    fn known(&self, key: &Key<'_>, keep: KnownAddresses) -> StoreFuture<Vec<Address>> {
        self.0.known(key, keep)
    }
}

#[tokio::test]
async fn a_store_that_leaves_a_counter_out_admits_nothing_by_it() {
    let limiter = LoginLimiter::new(Policy::default(), Forgetful(MemoryStore::new()));
    let Err(ReserveError::Store(error)) = limiter.reserve((ip(HOME), "user")).await else {
        panic!("admitted, or refused by a rule");
    };
    assert_eq!(error.kind(), StoreErrorKind::Protocol);
    assert!(limiter.check((ip(HOME), "user")).await.is_err());
}

#[tokio::test]
async fn an_attempt_is_reserved_once_and_settled_elsewhere() {
    let both = BothStores::start().await;
    for (name, limiter) in both.limiters(&Policy::default()) {
        let caller = (ip(HOME), "User");
        fail(&limiter, ip(HOME), "User", 2).await;
        let token = Token::new();
        for _ in 0..3 {
            // The reply was lost, twice.
            let attempt = limiter.reserve_with_token(token, caller).await.unwrap();
            assert_eq!(attempt.detach(), token);
        }
        let pair = usage(&limiter, caller, Rule::USER_ADDRESS).await;
        assert_eq!(pair, 3, "{name}");

        let other = limiter.resume(Token::new(), caller);
        other.settle(Outcome::Success).await.unwrap();
        let other = limiter.resume(Token::new(), caller);
        other.settle(Outcome::Failure).await.unwrap();
        let pair = usage(&limiter, caller, Rule::USER_ADDRESS).await;
        assert_eq!(
            pair, 3,
            "{name}: a token that is not in flight changes nothing"
        );

        let resumed = limiter.resume(token, caller);
        assert_eq!((resumed.token(), resumed.user()), (token, Some("User")));
        resumed.settle(Outcome::Success).await.unwrap();
        for rule in [Rule::USER_ADDRESS, Rule::ADDRESS] {
            assert_eq!(usage(&limiter, caller, rule).await, 0, "{name} {rule}");
        }
        limiter.all_settled().await.unwrap();
    }
}
