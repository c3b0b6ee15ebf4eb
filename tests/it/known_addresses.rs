//! The addresses that a user has logged in from.

use std::time::Duration;

use tower_login_rate_limit::{KnownAddresses, LoginLimiter, Outcome, Policy, clock::Clock};

use crate::support::{BothStores, DAY, SECOND, attempt, ip};

async fn known(limiter: &LoginLimiter, user: &str) -> Vec<String> {
    let known = limiter.known_addresses(user).await.expect("listed");
    known.iter().map(ToString::to_string).collect()
}

#[tokio::test]
async fn the_newest_are_kept_for_a_while_after_a_success() {
    let mut both = BothStores::start().await;
    both.redis
        .keys_may_live(Some(Duration::from_millis(30 * DAY)));
    let keep = KnownAddresses::new(3, Duration::from_millis(30 * DAY)).unwrap();
    let policy = Policy::default().with_known_addresses(keep);
    for (name, limiter) in both.limiters(&policy) {
        let start = both.clock.now();
        for (address, outcome) in [
            ("192.0.2.1", Outcome::Success),
            ("192.0.2.2", Outcome::Failure),
            ("192.0.2.3", Outcome::MfaPending),
            ("2001:db8::1", Outcome::Success),
            ("192.0.2.4", Outcome::Success),
            ("192.0.2.1", Outcome::Success),
            ("192.0.2.5", Outcome::Success),
        ] {
            both.clock.set(both.clock.now() + SECOND);
            attempt(&limiter, ip(address), "user", outcome)
                .await
                .unwrap();
        }
        assert_eq!(
            known(&limiter, "user").await,
            ["192.0.2.5", "192.0.2.1", "192.0.2.4"],
            "{name}"
        );
        assert!(known(&limiter, "other").await.is_empty());

        both.clock.set(both.clock.now() + 29 * DAY);
        attempt(&limiter, ip("2001:db8::2"), "user", Outcome::Success)
            .await
            .unwrap();
        both.clock.set(both.clock.now() + DAY);
        assert_eq!(known(&limiter, "user").await, ["2001:db8::/64"], "{name}");
        both.clock.set(start);
    }
}

#[tokio::test]
async fn they_are_kept_by_themselves_only_if_the_policy_requires_it() {
    let mut both = BothStores::start().await;
    both.redis
        .keys_may_live(Some(Duration::from_millis(90 * DAY)));
    for (name, limiter) in both.limiters(&Policy::default()) {
        attempt(&limiter, ip("192.0.2.1"), "user", Outcome::Success)
            .await
            .unwrap();
        assert!(known(&limiter, "user").await.is_empty(), "{name}");
        limiter.remember("user", ip("192.0.2.1")).await.unwrap();
        assert_eq!(known(&limiter, "user").await, ["192.0.2.1"], "{name}");
    }
}
