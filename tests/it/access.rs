//! Access rules: what operators and attackers see of them. `oracle` compares them with a linear scan.

mod files;
mod layer;
mod oracle;

use tower_login_rate_limit::{
    PolicyError,
    access::{AccessQuery, AccessRule, AccessRules, Action, Field},
};

const NOW: u64 = 1_790_000_000_000;

fn allow(name: &str, field: Field, value: &str) -> AccessRule {
    if field.is_forgeable() {
        AccessRule::allow_forgeable(name, field, value).expect(value)
    } else {
        AccessRule::allow(name, field, value).expect(value)
    }
}

fn deny(name: &str, field: Field, value: &str) -> AccessRule {
    AccessRule::deny(name, field, value).expect(value)
}

fn set(rules: impl IntoIterator<Item = AccessRule>) -> AccessRules {
    AccessRules::new(rules).expect("a set")
}

fn from(address: &str) -> AccessQuery<'static> {
    AccessQuery::new().with_address(address.parse().expect(address))
}

/// The name of the rule that decides.
fn decides<'r>(rules: &'r AccessRules, query: &AccessQuery<'_>) -> Option<&'r str> {
    rules.decide(query, NOW).map(AccessRule::name)
}

#[test]
fn the_longest_network_decides() {
    let rules = set([
        deny("all-of-it", Field::Network, "192.0.2.0/24"),
        allow("office", Field::Network, "192.0.2.64/26"),
        deny("kiosk", Field::Network, "192.0.2.70"),
        allow("kiosk-too", Field::Network, "192.0.2.70/32"),
        allow("site", Field::Network, "2001:db8::/32"),
        deny("guests", Field::Network, "2001:db8:0:f::/64"),
    ]);
    for (address, rule) in [
        ("192.0.2.1", Some("all-of-it")),
        ("192.0.2.65", Some("office")),
        ("192.0.2.70", Some("kiosk")),
        ("192.0.3.1", None),
        ("2001:db8::1", Some("site")),
        ("2001:db8:0:f::1", Some("guests")),
        ("2001:db9::1", None),
        ("c000:241::", None),
    ] {
        assert_eq!(decides(&rules, &from(address)), rule, "{address}");
    }
}

#[test]
fn no_form_of_an_address_slips_past_a_rule() {
    let by_ipv4 = set([deny("rule", Field::Network, "192.0.2.1")]);
    let by_mapped = set([deny("rule", Field::Network, "::ffff:192.0.2.0/120")]);
    for address in [
        "192.0.2.1",
        "::ffff:192.0.2.1",
        "64:ff9b::192.0.2.1",
        "::ffff:0:192.0.2.1",
        "64:ff9b:1:c000:2:100::",
        "64:ff9b:1:abcd::192.0.2.1",
        "2002:c000:201::1",
        "2001:0:4136:e378:8000:63bf:3fff:fdfe",
    ] {
        assert_eq!(decides(&by_ipv4, &from(address)), Some("rule"), "{address}");
        assert_eq!(
            decides(&by_mapped, &from(address)),
            Some("rule"),
            "{address}"
        );
    }
}

#[test]
fn an_expired_rule_uncovers_the_next_shorter_network() {
    let rules = set([
        deny("wide", Field::Network, "192.0.0.0/16"),
        allow("middle", Field::Network, "192.0.2.0/24")
            .with_expiry(NOW + 1)
            .unwrap(),
        deny("narrow", Field::Network, "192.0.2.0/30")
            .with_expiry(NOW)
            .unwrap(),
        deny("brief", Field::Network, "192.0.2.0/24")
            .with_expiry(NOW - 1)
            .unwrap(),
    ]);
    let query = from("192.0.2.1");
    let at = |now| rules.decide(&query, now).map(AccessRule::name);
    assert_eq!(at(NOW - 2), Some("narrow"));
    assert_eq!(at(NOW - 1), Some("narrow"));
    assert_eq!(at(NOW), Some("middle"));
    assert_eq!(at(NOW + 1), Some("wide"));
}

#[test]
fn of_rules_of_one_network_the_one_that_lasts_longest_is_reported() {
    let rules = set([
        deny("hour", Field::Network, "192.0.2.0/24")
            .with_expiry(NOW + 3_600_000)
            .unwrap(),
        deny("day", Field::Network, "192.0.2.0/24")
            .with_expiry(NOW + 86_400_000)
            .unwrap(),
        deny("minute", Field::Network, "192.0.2.0/24")
            .with_expiry(NOW + 60_000)
            .unwrap(),
        allow("office", Field::Network, "192.0.2.0/24"),
        deny("agent", Field::UserAgent, "curl")
            .with_expiry(NOW + 86_400_000)
            .unwrap(),
        deny("path", Field::Path, "/login"),
    ]);
    assert_eq!(decides(&rules, &from("192.0.2.1")), Some("day"));
    assert_eq!(
        decides(&rules, &from("192.0.2.1").with_user_agent(b"curl")),
        Some("day")
    );
    assert_eq!(
        decides(&rules, &from("192.0.2.1").with_path("/login")),
        Some("path")
    );
    let later = rules.decide(&from("192.0.2.1"), NOW + 86_400_000);
    assert_eq!(later.map(AccessRule::name), Some("office"));
}

#[test]
fn a_forged_user_agent_lifts_no_deny() {
    let rules = set([
        deny("botnet", Field::Network, "203.0.113.0/24"),
        allow("monitor", Field::UserAgent, "uptime-monitor"),
        deny("scanner", Field::UserAgent, "sqlmap"),
        allow("status", Field::Path, "/status"),
        allow("robot", Field::User, "robot"),
        deny("root", Field::UserKeyword, "root"),
    ]);
    let botnet = from("203.0.113.9").with_path("/status").with_user("robot");
    let botnet = botnet.with_user_agent(b"uptime-monitor");
    assert_eq!(decides(&rules, &botnet), Some("botnet"));
    let scan = from("198.51.100.1").with_user_agent(b"uptime-monitor SQLmap");
    assert_eq!(decides(&rules, &scan), Some("scanner"));
    let root = from("198.51.100.1")
        .with_user("my-root")
        .with_path("/status");
    assert_eq!(decides(&rules, &root), Some("root"));
    let monitor = from("198.51.100.1").with_user_agent(b"Uptime-Monitor/2");
    assert_eq!(
        rules.decide(&monitor, NOW).map(AccessRule::action),
        Some(Action::Allow)
    );
}

#[test]
fn a_user_agent_that_is_not_utf8_slips_past_no_rule() {
    let rules = set([deny("scanner", Field::UserAgent, "sqlmap")]);
    let query = AccessQuery::new().with_user_agent(b"\xff\xfeSQLMap\x80");
    assert_eq!(decides(&rules, &query), Some("scanner"));
}

#[test]
fn users_are_compared_in_the_normal_form_of_the_app() {
    let rules = set([deny("mallory", Field::User, " Mallory ")]);
    let named = |user| AccessQuery::new().with_user(user);
    assert_eq!(decides(&rules, &named("mallory")), Some("mallory"));
    assert_eq!(decides(&rules, &named("mallory2")), None);
    let cases_differ = rules
        .clone()
        .with_normalizer(|user| user.trim().to_owned())
        .unwrap();
    assert_eq!(decides(&cases_differ, &named("mallory")), None);
    assert_eq!(decides(&cases_differ, &named("Mallory")), Some("mallory"));
    // The normalizer stays when the set changes.
    let changed = cases_differ
        .with_rule(deny("eve", Field::User, "Eve"))
        .unwrap();
    assert_eq!(decides(&changed, &named("eve")), None);
    assert_eq!(decides(&changed, &named("Eve")), Some("eve"));
    assert_eq!(decides(&rules, &named("mallory")), Some("mallory"));

    let error = rules.with_normalizer(|_| String::new()).unwrap_err();
    assert_eq!(error.part(), "access.mallory.user");
}

#[test]
fn operators_add_remove_and_list() {
    let rules = AccessRules::default();
    assert!(decides(&rules, &from("192.0.2.1")).is_none());
    let rules = rules
        .with_rule(deny("a", Field::Network, "192.0.2.0/24"))
        .unwrap();
    let old = rules.clone();
    let brief = deny("b", Field::Network, "192.0.2.1")
        .with_expiry(NOW)
        .unwrap();
    let rules = rules.with_rule(brief).unwrap();
    // The same name: replaced, at its position.
    let rules = rules
        .with_rule(allow("a", Field::Network, "192.0.2.0/25"))
        .unwrap();
    let names = |rules: &AccessRules| -> Vec<_> {
        rules
            .rules()
            .iter()
            .map(|rule| rule.name().to_owned())
            .collect()
    };
    assert_eq!(names(&rules), ["a", "b"]);
    assert_eq!(rules.rule("a").map(AccessRule::action), Some(Action::Allow));
    assert_eq!(old.rule("a").map(AccessRule::action), Some(Action::Deny));
    assert_eq!(old.rule("b"), None);

    let expired: Vec<_> = rules.expired(NOW).map(AccessRule::name).collect();
    assert_eq!(expired, ["b"]);
    assert_eq!(rules.expired(NOW - 1).count(), 0);
    assert_eq!(
        names(&rules.clone().without_expired(NOW - 1).unwrap()),
        ["a", "b"]
    );
    assert_eq!(names(&rules.clone().without_expired(NOW).unwrap()), ["a"]);

    let without = rules.clone().without_rule("a").unwrap();
    assert_eq!(names(&without), ["b"]);
    let error = without.without_rule("a").unwrap_err();
    assert_eq!(error.part(), "access rule \"a\"");

    let twice = [deny("a", Field::User, "x"), deny("a", Field::User, "y")];
    let error: PolicyError = AccessRules::new(twice).unwrap_err();
    assert!(error.to_string().contains("occurs twice"), "{error}");
}

#[test]
fn an_operator_sees_which_rules_match() {
    let rules = set([
        allow("office", Field::Network, "192.0.2.0/24"),
        deny("old", Field::Network, "192.0.2.0/28")
            .with_expiry(NOW)
            .unwrap(),
        deny("scanner", Field::UserAgent, "sqlmap"),
        deny("elsewhere", Field::Network, "198.51.100.0/24"),
        deny("admins", Field::UserKeyword, "admin"),
        allow("status", Field::Path, "/status"),
    ]);
    let query = from("::ffff:192.0.2.1")
        .with_user_agent(b"sqlmap")
        .with_path("/status%20");
    let explanation = rules.explain(&query.with_path("/%73tatus").with_user("sysADMIN"), NOW);
    let names = |rules: &[&AccessRule]| -> Vec<_> {
        rules.iter().map(|rule| rule.name().to_owned()).collect()
    };
    assert_eq!(explanation.decides().map(AccessRule::name), Some("scanner"));
    assert_eq!(names(explanation.overruled()), ["office", "admins"]);
    assert_eq!(names(explanation.expired()), ["old"]);
    let nothing = rules.explain(&from("203.0.113.1"), NOW);
    assert!(nothing.decides().is_none());
    assert!(nothing.overruled().is_empty() && nothing.expired().is_empty());
}

#[test]
fn a_set_has_a_bounded_number_of_keywords() {
    let keywords = |count| {
        let rule = |n| {
            deny(
                &format!("rule-{n}"),
                Field::UserAgent,
                &format!("keyword-{n}"),
            )
        };
        AccessRules::new((0..count).map(rule))
    };
    assert!(keywords(10_000).is_ok());
    let error = keywords(10_001).unwrap_err();
    assert_eq!(error.part(), "access");
    assert!(
        error
            .reason()
            .contains("10001 different keywords by user_agent"),
        "{error}"
    );
    // Many rules of one keyword take no more than one.
    let same = (0..10_001).map(|n| deny(&format!("rule-{n}"), Field::UserAgent, "sqlmap"));
    assert!(AccessRules::new(same).is_ok());
}
