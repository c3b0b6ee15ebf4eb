//! Policies: what can't be built, and how they stand in files.

use std::time::Duration;

use tower_login_rate_limit::{
    BackoffBuilder, KnownAddresses, Limit, LimitBuilder, Part, Period, Policy, PolicyError, Rule,
    algorithm::Algorithm,
};

fn limit(limit: u32, within: impl Into<Period>) -> LimitBuilder {
    Limit::attempts(limit).within(within)
}

fn network(name: &str, bits: u8, attempts: u32) -> Rule {
    let limit = limit(attempts, Period::hours(24)).without_block();
    Rule::new(name, [Part::Network(bits)], limit).unwrap()
}

#[test]
fn networks_are_written_with_their_bits() {
    let file = r#"{"rules":[{"name":"site","key":["user","network/48"],"limit":9,"within":"1h"}]}"#;
    let policy: Policy = serde_json::from_str(file).unwrap();
    let parts = [Part::User, Part::Network(48)];
    assert_eq!(policy.rule("site").unwrap().parts(), parts);
    let again: Policy = serde_json::from_value(serde_json::to_value(&policy).unwrap()).unwrap();
    assert_eq!(again, policy);
    for (key, word) in [
        (r#"["network/0"]"#, "1 to 127"),
        (r#"["network/128"]"#, "1 to 127"),
        (r#"["network/x"]"#, "network/56"),
        (r#"["address","network/48"]"#, "address twice"),
        (r#"["network/56","network/48"]"#, "address twice"),
    ] {
        let file = file.replace(r#"["user","network/48"]"#, key);
        let error = serde_json::from_str::<Policy>(&file)
            .unwrap_err()
            .to_string();
        assert!(
            error.contains("site") && error.contains(word),
            "{key}: {error}"
        );
    }
}

#[test]
fn the_default_policy_has_the_documented_numbers() {
    let in_words = Policy::new([])
        .unwrap()
        .with_address_limit(limit(25, Period::hours(24)).blocked_for(Period::days(7)))
        .unwrap()
        .with_rule(network(Rule::NETWORK_56, 56, 100))
        .with_rule(network(Rule::NETWORK_48, 48, 400))
        .with_user_address_limit(limit(5, Period::hours(24)).blocked_for(Period::hours(24)))
        .unwrap()
        .with_second_factor_limit(limit(20, Period::hours(24)).without_block())
        .unwrap();
    assert_eq!(Policy::default(), in_words);
    assert_eq!(in_words.lease(), Duration::from_secs(30));
    assert_eq!(in_words.ipv6_prefix(), 64);
    assert_eq!(in_words.known_addresses(), None);
}

#[test]
fn the_strict_one_limits_accounts_and_keeps_their_addresses() {
    let hundred_a_day = limit(100, Period::hours(24)).without_block();
    let in_words = Policy::default()
        .with_account_limit(hundred_a_day)
        .unwrap()
        .with_second_factor_limit(limit(20, Period::hours(24)).without_block())
        .unwrap();
    assert_eq!(Policy::strict(), in_words);
    assert_eq!(in_words.known_addresses(), Some(KnownAddresses::default()));
    assert!(Policy::default().rule(Rule::ACCOUNT).is_none());

    // It can be had without exceptions, from a file too.
    let file = r#"{"rules":[{"name":"account","limit":100,"within":"24h","block":"none","exempt_known_addresses":false}]}"#;
    let policy: Policy = serde_json::from_str(file).unwrap();
    let rule = Rule::new(
        Rule::ACCOUNT,
        [Part::User],
        limit(100, Period::days(1)).without_block(),
    );
    assert_eq!(policy.rule(Rule::ACCOUNT), Some(&rule.unwrap()));
    assert_eq!(policy.known_addresses(), None);
    // The order of what a rule counts by does not matter.
    let file =
        r#"{"rules":[{"name":"user-address","key":["address","user"],"limit":5,"within":"24h"}]}"#;
    assert!(serde_json::from_str::<Policy>(file).is_ok());

    // What was said of known addresses before stays.
    let kept = KnownAddresses::new(3, Duration::from_secs(86_400)).unwrap();
    let account = in_words.rule(Rule::ACCOUNT).unwrap().clone();
    let policy = Policy::default()
        .with_known_addresses(kept)
        .with_rule(account);
    assert_eq!(policy.known_addresses(), Some(kept));
}

#[test]
fn a_bucket_and_a_counter_have_no_block_unless_they_say_so() {
    let ten = || limit(10, Period::hours(1));
    for words in [ten().as_token_bucket(), ten().as_sliding_counter()] {
        let without = words.clone().without_block().build();
        assert_eq!(words.clone().build(), without);
        let block = words.blocked_for(Period::hours(2)).build().unwrap();
        assert_eq!(block.block(), Some(Period::hours(2)));
    }
    let usual = [1, 2, 4, 8, 16, 30, 60, 180, 300].map(Duration::from_secs);
    assert_eq!(
        Limit::backoff(usual).build(),
        Limit::default_backoff().build()
    );
}

#[test]
fn the_numbers_of_a_limit_are_read_back() {
    let growing = limit(30, Period::minutes(30)).as_token_bucket();
    let growing = growing
        .blocked_for(Period::hours(1))
        .then_for(Period::Forever);
    let growing = growing.again_within(Period::days(9)).build().unwrap();
    assert_eq!(growing.algorithm(), Algorithm::TokenBucket);
    assert_eq!(growing.max_attempts(), 30);
    assert_eq!(growing.window(), Period::minutes(30));
    assert_eq!(growing.block(), Some(Period::hours(1)));
    assert!(growing.blocks().eq([Period::hours(1), Period::Forever]));
    assert_eq!(growing.again_within(), Some(Period::days(9)));
    assert_eq!(growing.waits().len(), 0);

    let waits = [0, 0, 5].map(Duration::from_secs);
    let backoff = Limit::backoff(waits).with_jitter(20).build().unwrap();
    assert_eq!(backoff.algorithm(), Algorithm::Backoff);
    assert_eq!(backoff.max_attempts(), 3);
    assert_eq!(backoff.window(), Period::hours(24));
    assert_eq!((backoff.block(), backoff.again_within()), (None, None));
    assert!(backoff.waits().eq(waits));
    assert_eq!(backoff.jitter(), 20);
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
fn numbers_that_make_no_sense_cant_be_built_and_the_error_names_them() {
    let address = |limit: LimitBuilder| Policy::default().with_address_limit(limit).map(drop);
    let day = Period::hours(24);
    let years = Period::days(365 * 101);
    let no_time = Duration::from_micros(999);
    let known = |n, kept_for| KnownAddresses::new(n, kept_for).map(drop);
    let rule = |name: &str, parts: Vec<Part>| Rule::new(name, parts, limit(1, day)).map(drop);
    let lease = |lease| Policy::default().with_lease(lease).map(drop);
    let waits = |seconds: &[u64]| {
        let waits = seconds.iter().map(|seconds| Duration::from_secs(*seconds));
        Limit::backoff(waits.collect::<Vec<_>>())
    };
    let user = |limit: BackoffBuilder| Policy::default().with_user_address_limit(limit).map(drop);
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
        (
            address(limit(5, day).blocked_for(day).then_for(Period::hours(1))),
            "address.block",
            "shorter",
        ),
        (
            address(
                limit(5, day)
                    .blocked_for(Period::Forever)
                    .then_for(Period::Forever),
            ),
            "address.block",
            "forever",
        ),
        (
            address(limit(5, day).without_block().then_for(day)),
            "address.block",
            "first",
        ),
        (
            address(limit(5, day).then_for(day).again_within(Period::Forever)),
            "address.again_within",
            "forever",
        ),
        (
            address(limit(5, Period::Forever).as_token_bucket()),
            "address.within",
            "366 days",
        ),
        (
            address(limit(5, Period::days(367)).as_sliding_counter()),
            "address.within",
            "366 days",
        ),
        (
            address(
                limit(5, day)
                    .as_token_bucket()
                    .blocked_for(Period::hours(23))
                    .then_for(day),
            ),
            "address.block",
            "at least as long",
        ),
        (
            address(
                limit(5, day)
                    .as_sliding_counter()
                    .blocked_for(Period::hours(47))
                    .then_for(Period::hours(48)),
            ),
            "address.block",
            "twice as long",
        ),
        (
            address(limit(5, day).again_within(day)),
            "address.again_within",
            "more than one",
        ),
        (
            user(Limit::backoff([no_time, Duration::from_secs(1)])),
            "user-address.waits",
            "millisecond",
        ),
        (user(waits(&[])), "user-address.waits", "1 to 32"),
        (user(waits(&[1; 33])), "user-address.waits", "1 to 32"),
        (user(waits(&[0, 0])), "user-address.waits", "zero"),
        (user(waits(&[2, 1])), "user-address.waits", "shorter"),
        (user(waits(&[40_000_000])), "user-address.waits", "366 days"),
        (
            user(waits(&[1]).with_jitter(101)),
            "user-address.jitter",
            "101",
        ),
        (
            user(
                waits(&[10])
                    .with_jitter(50)
                    .forgotten_after(Period::seconds(14)),
            ),
            "user-address.forgotten_after",
            "longest wait",
        ),
        (
            rule("account", vec![Part::Address]),
            "account.key",
            "another",
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
        assert!(error.reason().contains(why), "{error}");
        assert!(error.to_string().contains(error.reason()), "{error}");
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
            .with_enabled(false),
        )
        .with_rule(
            Rule::new(
                "bucket",
                [Part::Address, Part::path()],
                limit(30, Period::minutes(30))
                    .as_token_bucket()
                    .blocked_for(Period::hours(1))
                    .then_for(Period::days(1))
                    .then_for(Period::Forever)
                    .again_within(Period::days(9)),
            )
            .unwrap(),
        )
        .with_rule(
            Rule::new(
                "counter",
                [Part::user_agent(), Part::Address],
                limit(1000, Period::hours(1)).as_sliding_counter(),
            )
            .unwrap(),
        )
        .with_rule(
            Rule::new(
                "waits",
                [Part::User],
                Limit::backoff([0, 1, 90].map(Duration::from_secs))
                    .with_jitter(25)
                    .forgotten_after(Period::Forever),
            )
            .unwrap()
            .with_known_addresses_exempt()
            .unwrap(),
        )
        .with_lease(Duration::from_secs(75))
        .unwrap()
        .with_ipv6_prefix(56)
        .unwrap()
        .with_known_addresses(KnownAddresses::new(4, Duration::from_secs(86_400)).unwrap())
}

#[test]
fn a_policy_is_read_back_from_what_was_written() {
    for policy in [Policy::default(), Policy::strict(), unusual()] {
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
fn every_algorithm_has_words_in_a_file() {
    let file = r#"
        [[rules]]
        name = "account"
        limit = 100
        within = "24h"
        block = "none"
        [[rules]]
        name = "user-address"
        algorithm = "backoff"
        [[rules]]
        name = "slow"
        key = ["user", "address"]
        algorithm = "backoff"
        waits = ["0s", "1s", "1 minute"]
        jitter = 10
        forgotten_after = "2 days"
        [[rules]]
        name = "address"
        algorithm = "token-bucket"
        limit = 30
        within = "30 minutes"
        block = "30 minutes"
        [[rules]]
        name = "door"
        key = ["address", "path", "user-agent"]
        algorithm = "sliding-counter"
        limit = 10
        within = "1 minute"
        [[rules]]
        name = "again"
        key = ["user"]
        limit = 5
        within = "24h"
        block = ["24h", "7 days", "forever"]
        again_within = "30 days"
        exempt_known_addresses = true
    "#;
    let policy: Policy = toml::from_str(file).unwrap();
    let limits = |name| policy.rule(name).unwrap().limit().clone();
    assert_eq!(policy.rule("account"), Policy::strict().rule("account"));
    assert_eq!(policy.known_addresses(), Some(KnownAddresses::default()));
    let usual = Limit::default_backoff().build().unwrap();
    assert_eq!(limits("user-address"), usual);
    let waits = Limit::backoff([0, 1, 60].map(Duration::from_secs)).with_jitter(10);
    let waits = waits.forgotten_after(Period::days(2)).build().unwrap();
    assert_eq!(limits("slow"), waits);
    let bucket = limit(30, Period::minutes(30)).as_token_bucket();
    let bucket = bucket.blocked_for(Period::minutes(30)).build().unwrap();
    assert_eq!(limits("address"), bucket);
    let counter = limit(10, Period::minutes(1)).as_sliding_counter();
    assert_eq!(limits("door"), counter.build().unwrap());
    let door = policy.rule("door").unwrap();
    let parts = [Part::Address, Part::path(), Part::user_agent()];
    assert_eq!(door.parts(), parts);
    let again = limit(5, Period::hours(24)).blocked_for(Period::hours(24));
    let again = again.then_for(Period::days(7)).then_for(Period::Forever);
    assert_eq!(limits("again"), again.build().unwrap());
    assert!(policy.rule("again").unwrap().exempts_known_addresses());
}

#[test]
fn errors_in_a_file_name_the_rule_and_the_field() {
    let rule = |rest: &str| format!(r#"{{"rules":[{{"name":"address",{rest}}}]}}"#);
    for (json, word) in [
        (rule(r#""limit":0,"within":"24h""#), "address.limit"),
        (rule(r#""limit":5,"within":"soon""#), "soon"),
        (rule(r#""limit":5,"within":"soon""#), "address.within"),
        (rule(r#""limit":5,"within":"soon""#), "7 days"),
        (
            rule(r#""algorithm":"backoff","waits":["1s","soon"]"#),
            "address.waits",
        ),
        (
            rule(r#""limit":5,"within":"24h","block":"0s""#),
            "address.block",
        ),
        (
            rule(r#""limit":5,"within":"24h","block":"later""#),
            "address.block",
        ),
        (rule(r#""limit":5"#), "within"),
        (rule(r#""within":"1h""#), "address.limit"),
        (
            rule(r#""limit":5,"within":"1h","block":[]"#),
            "address.block",
        ),
        (
            rule(r#""limit":5,"within":"1h","block":["1h"],"again_within":"1h""#),
            "address.again_within",
        ),
        (
            rule(r#""limit":5,"within":"1h","waits":["1s"]"#),
            "address.waits",
        ),
        (rule(r#""limit":5,"algorithm":"backoff""#), "address.limit"),
        (rule(r#""algorithm":"leaky-bucket""#), "leaky-bucket"),
        (
            rule(r#""algorithm":"backoff","waits":["forever"]"#),
            "address.waits",
        ),
        (
            rule(r#""limit":5,"within":"1h","exempt_known_addresses":true"#),
            "address.exempt_known_addresses",
        ),
        (rule(r#""limit":5,"within":"1h","block":5"#), "none"),
        (
            r#"{"rules":[{"name":"x","key":["value:"],"limit":5,"within":"1h"}]}"#.to_owned(),
            "value:",
        ),
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
        (r#"{"lease":"soon"}"#.to_owned(), "lease: cannot read"),
        (r#"{"leese":"1s"}"#.to_owned(), "leese"),
    ] {
        let error = serde_json::from_str::<Policy>(&json)
            .expect_err(&json)
            .to_string();
        assert!(error.contains(word), "{json}: {error}");
    }
}
