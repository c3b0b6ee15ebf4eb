//! Policies: what can't be built, and how they stand in files.

use std::time::Duration;

use tower_login_rate_limit::{
    KnownAddresses, Limit, LimitBuilder, Part, Period, Policy, PolicyError, Rule,
};

fn limit(limit: u32, within: impl Into<Period>) -> LimitBuilder {
    Limit::attempts(limit).within(within)
}

#[test]
fn the_default_is_what_it_says() {
    let in_words = Policy::new([])
        .unwrap()
        .with_address_limit(limit(25, Period::hours(24)).blocked_for(Period::days(7)))
        .unwrap()
        .with_user_address_limit(limit(5, Period::hours(24)).blocked_for(Period::hours(24)))
        .unwrap();
    assert_eq!(Policy::default(), in_words);
    assert_eq!(in_words.lease(), Duration::from_secs(30));
    assert_eq!(in_words.ipv6_prefix(), 64);
    assert_eq!(in_words.known_addresses(), None);
}

#[test]
fn a_block_left_out_is_as_long_as_the_window() {
    let same = limit(3, Period::hours(2))
        .blocked_for(Period::hours(2))
        .build();
    assert_eq!(limit(3, Period::hours(2)).build(), same);
    let for_ever = limit(3, Period::Forever)
        .blocked_for(Period::Forever)
        .build();
    assert_eq!(limit(3, Period::Forever).build(), for_ever);
    assert_ne!(limit(3, Period::hours(2)).without_block().build(), same);
}

#[test]
fn numbers_that_make_no_sense_cant_be_built_and_the_error_says_which_and_why() {
    let address = |limit: LimitBuilder| Policy::default().with_address_limit(limit).map(drop);
    let day = Period::hours(24);
    let years = Period::days(365 * 101);
    let no_time = Duration::from_micros(999);
    let known = |n, kept_for| KnownAddresses::new(n, kept_for).map(drop);
    let rule = |name: &str, parts: Vec<Part>| Rule::new(name, parts, limit(1, day)).map(drop);
    let lease = |lease| Policy::default().with_lease(lease).map(drop);
    let twice = [
        Rule::new("a", [Part::User], limit(1, day)).unwrap(),
        Rule::new("a", [Part::User], limit(2, day)).unwrap(),
    ];
    let cases: Vec<(Result<(), PolicyError>, &str, &str)> = vec![
        (address(limit(0, day)), "address.limit", "from 1"),
        (address(limit(2_000_000, day)), "address.limit", "2000000"),
        (address(Limit::attempts(5)), "address.within", "missing"),
        (
            address(limit(5, Duration::ZERO)),
            "address.within",
            "millisecond",
        ),
        (address(limit(5, no_time)), "address.within", "millisecond"),
        (address(limit(5, years)), "address.within", "forever"),
        (
            address(limit(5, day).blocked_for(Duration::ZERO)),
            "address.block",
            "none",
        ),
        (
            address(limit(5, day).blocked_for(years)),
            "address.block",
            "forever",
        ),
        (rule("", vec![Part::User]), "rule \"\"", "1 to 32"),
        (rule("a b", vec![Part::User]), "rule \"a b\"", "letters"),
        (rule("a:b", vec![Part::User]), "rule \"a:b\"", "letters"),
        (rule("a", vec![]), "a.key", "empty"),
        (rule("a", vec![Part::User, Part::User]), "a.key", "again"),
        (rule("address", vec![Part::User]), "address.key", "another"),
        (Policy::new(twice).map(drop), "rule \"a\"", "twice"),
        (
            Policy::default().with_rule_enabled("b", true).map(drop),
            "rule \"b\"",
            "not in",
        ),
        (lease(Duration::ZERO), "lease", "1 millisecond"),
        (lease(Duration::from_secs(100_000)), "lease", "24 hours"),
        (
            Policy::default().with_ipv6_prefix(0).map(drop),
            "ipv6_prefix",
            "1 to 128",
        ),
        (
            Policy::default().with_ipv6_prefix(129).map(drop),
            "ipv6_prefix",
            "1 to 128",
        ),
        (
            known(0, Duration::from_secs(1)),
            "known_addresses.newest",
            "1 to 1000",
        ),
        (
            known(5, Duration::ZERO),
            "known_addresses.kept_for",
            "1 second",
        ),
    ];
    for (result, part, why) in cases {
        let error = result.expect_err(part);
        assert_eq!(error.part(), part);
        assert!(error.to_string().contains(why), "{error}");
    }
}

fn unusual() -> Policy {
    Policy::default()
        .with_address_limit(
            limit(300, Period::Forever).blocked_for(Duration::from_millis(90_061_001)),
        )
        .unwrap()
        .with_user_address_limit(limit(1, Period::minutes(90)).without_block())
        .unwrap()
        .with_rule(
            Rule::new(
                "tenant",
                [Part::User, Part::value("tenant")],
                limit(7, Period::days(1)).blocked_for(Period::Forever),
            )
            .unwrap()
            .enabled(false),
        )
        .with_lease(Duration::from_secs(75))
        .unwrap()
        .with_ipv6_prefix(56)
        .unwrap()
        .with_known_addresses(KnownAddresses::new(4, Duration::from_secs(86_400)).unwrap())
}

#[test]
fn a_policy_is_read_back_from_what_was_written() {
    for policy in [Policy::default(), unusual()] {
        let json = serde_json::to_string(&policy).unwrap();
        assert_eq!(
            serde_json::from_str::<Policy>(&json).unwrap(),
            policy,
            "{json}"
        );
        let toml = toml::to_string(&policy).unwrap();
        assert_eq!(toml::from_str::<Policy>(&toml).unwrap(), policy, "{toml}");
    }
}

#[test]
fn a_person_can_write_and_read_it() {
    let file = r#"
        ipv6_prefix = 56
        [[rules]]
        name = "address"
        limit = 25
        within = "24h"
        block = "7 days"
        [[rules]]
        name = "user-address"
        limit = 5
        within = "1 day"
        block = "none"
        [[rules]]
        name = "tenant"
        key = ["user", "value:tenant"]
        limit = 10
        within = "forever"
        enabled = false
    "#;
    let policy: Policy = toml::from_str(file).unwrap();
    assert_eq!(policy.rule("address"), Policy::default().rule("address"));
    assert_eq!(
        policy.rule("user-address").unwrap().limit(),
        &limit(5, Period::days(1)).without_block().build().unwrap()
    );
    assert!(!policy.rule("tenant").unwrap().is_enabled());
    assert_eq!(policy.lease(), Policy::default().lease());

    let written = toml::to_string(&policy).unwrap();
    assert!(written.contains("block = \"7 days\""), "{written}");
    assert!(written.contains("within = \"forever\""), "{written}");
    assert_eq!(
        serde_json::from_str::<Policy>("{}").unwrap(),
        Policy::default()
    );
}

#[test]
fn what_is_wrong_in_a_file_is_said() {
    let rule = |rest: &str| format!(r#"{{"rules":[{{"name":"address",{rest}}}]}}"#);
    for (json, word) in [
        (rule(r#""limit":0,"within":"24h""#), "address.limit"),
        (rule(r#""limit":5,"within":"soon""#), "soon"),
        (
            rule(r#""limit":5,"within":"24h","block":"0s""#),
            "address.block",
        ),
        (
            rule(r#""limit":5,"within":"24h","block":"later""#),
            "address.block",
        ),
        (rule(r#""limit":5"#), "within"),
        (rule(r#""limit":5,"within":"24h","blocks":"1h""#), "blocks"),
        (rule(r#""limit":-5,"within":"24h""#), "-5"),
        (
            r#"{"rules":[{"name":"x","limit":5,"within":"24h"}]}"#.to_owned(),
            "x.key",
        ),
        (
            r#"{"rules":[{"name":"x","key":["adress"],"limit":5,"within":"24h"}]}"#.to_owned(),
            "adress",
        ),
        (r#"{"rules":[]}"#.to_owned(), "empty"),
        (
            rule(r#""key":["user"],"limit":5,"within":"24h""#),
            "address.key",
        ),
        (r#"{"lease":"forever"}"#.to_owned(), "lease"),
        (r#"{"leese":"1s"}"#.to_owned(), "leese"),
    ] {
        let error = serde_json::from_str::<Policy>(&json)
            .expect_err(&json)
            .to_string();
        assert!(error.contains(word), "{json}: {error}");
    }
}
