//! Access rules in JSON and TOML.

use proptest::prelude::*;
use serde::{Deserialize, Serialize};
use tower_login_rate_limit::access::{AccessRule, AccessRules, Field};

use super::{allow, deny, oracle::rules};

#[derive(Debug, Serialize, Deserialize)]
struct Config {
    access: AccessRules,
}

fn toml_error(rule: &str) -> String {
    let text = format!("[[access]]\n{rule}\n");
    toml::from_str::<Config>(&text).expect_err(rule).to_string()
}

#[test]
fn a_file_is_written_by_hand() {
    let config: Config = toml::from_str(
        r#"
        [[access]]
        name = "office"
        action = "allow"
        network = "192.0.2.0/24"

        [[access]]
        name = "ticket-4711"
        action = "deny"
        network = "::ffff:203.0.113.7"
        expires = "2026-12-31T19:00:00+01:00"
        author = "alice"
        note = "credential stuffing"

        [[access]]
        name = "monitor"
        action = "allow"
        user_agent = "uptime-monitor"
        forgeable = true

        [[access]]
        name = "admins"
        action = "deny"
        user_keyword = "admin"

        [[access]]
        name = "mallory"
        action = "deny"
        user = "Mallory"

        [[access]]
        name = "status"
        action = "allow"
        path = "/status"

        [[access]]
        name = "old-api"
        action = "deny"
        path_prefix = "/api/v1"
        "#,
    )
    .unwrap();
    let ticket = deny("ticket-4711", Field::Network, "203.0.113.7");
    let ticket = ticket.with_expiry(1_798_740_000_000).unwrap();
    let ticket = ticket.with_author("alice").unwrap();
    let expected = [
        allow("office", Field::Network, "192.0.2.0/24"),
        ticket.with_note("credential stuffing").unwrap(),
        allow("monitor", Field::UserAgent, "uptime-monitor"),
        deny("admins", Field::UserKeyword, "admin"),
        deny("mallory", Field::User, "Mallory"),
        allow("status", Field::Path, "/status"),
        deny("old-api", Field::PathPrefix, "/api/v1"),
    ];
    assert_eq!(config.access.rules(), expected);
    let written = toml::to_string(&config).unwrap();
    assert!(
        written.contains("expires = \"2026-12-31T18:00:00Z\""),
        "{written}"
    );
    let read: Config = toml::from_str(&written).unwrap();
    assert_eq!(read.access.rules(), expected);
}

#[test]
fn errors_name_the_rule_the_field_and_the_remedy() {
    for (rule, parts) in [
        (
            "name = 'x'\naction = 'block'\nnetwork = '192.0.2.1'",
            ["access.x.action", "neither \"allow\" nor \"deny\""],
        ),
        (
            "name = 'x'\naction = 'deny'",
            ["access.x.network", "set one of network, user,"],
        ),
        (
            "name = 'x'\naction = 'deny'\nuser = 'eve'\npath = '/login'",
            ["access.x.path", "a rule for each"],
        ),
        (
            "name = 'x'\naction = 'deny'\nnetwork = '192.0.2.1/24'",
            ["access.x.network", "\"192.0.2.0/24\" for the network"],
        ),
        (
            "name = 'x'\naction = 'allow'\nnetwork = '::/0'",
            ["access.x.network", "nothing would be limited"],
        ),
        (
            "name = 'x'\naction = 'allow'\nuser_agent = 'monitor'",
            ["access.x.user_agent", "forgeable = true"],
        ),
        (
            "name = 'x'\naction = 'deny'\nuser_agent = 'monitor'\nforgeable = true",
            ["access.x.forgeable", "leave it out"],
        ),
        (
            "name = 'x'\naction = 'allow'\nnetwork = '192.0.2.1'\nforgeable = true",
            ["access.x.forgeable", "leave it out"],
        ),
        (
            "name = 'x'\naction = 'deny'\nuser = 'eve'\nexpires = 'tomorrow'",
            ["access.x.expires", "2026-12-31T18:00:00Z"],
        ),
        (
            "name = 'x'\naction = 'deny'\nuser = 'eve'\nexpires = 2026-12-31T18:00:00Z",
            ["expected a time in quotes", "2026-12-31T18:00:00Z"],
        ),
        (
            "name = 'x y'\naction = 'deny'\nuser = 'eve'",
            ["access rule \"x y\"", "1 to 64 letters"],
        ),
        (
            "name = 'x'\naction = 'deny'\nuser = 'eve'\nexpiry = ''",
            ["unknown field", "expires"],
        ),
        ("action = 'deny'\nuser = 'eve'", ["missing field", "name"]),
    ] {
        let error = toml_error(rule);
        for part in parts {
            assert!(error.contains(part), "{rule}\n{error}");
        }
    }
    let twice =
        r#"[{"name":"x","action":"deny","user":"a"},{"name":"x","action":"deny","user":"b"}]"#;
    let error = serde_json::from_str::<AccessRules>(twice)
        .unwrap_err()
        .to_string();
    assert!(error.contains("occurs twice"), "{error}");
}

proptest! {
    #![proptest_config(ProptestConfig { failure_persistence: None, cases: 300, ..Default::default() })]
    #[test]
    fn files_are_read_back(rules in rules(), note in "[^\\p{Cc}]{1,20}", expiry in 0..253_402_300_800_000_u64) {
        let rules: Vec<AccessRule> = rules
            .into_iter()
            .enumerate()
            .map(|(i, rule)| match i % 3 {
                0 if !note.trim().is_empty() => rule.with_note(&note).expect("a note"),
                1 => rule.with_expiry(expiry).expect("an expiry"),
                _ => rule,
            })
            .collect();
        let config = Config { access: AccessRules::new(rules.clone()).expect("a set") };
        let json: Config = serde_json::from_str(&serde_json::to_string(&config).unwrap()).unwrap();
        prop_assert_eq!(json.access.rules(), &rules[..]);
        let toml: Config = toml::from_str(&toml::to_string(&config).unwrap()).unwrap();
        prop_assert_eq!(toml.access.rules(), &rules[..]);
    }
}
