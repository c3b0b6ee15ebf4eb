//! What is measured, exactly, and what dashboards and alerts make of it.

use std::{
    collections::{BTreeMap, BTreeSet},
    fs,
    path::{Path, PathBuf},
    process::Command,
    sync::mpsc,
};

use metrics_exporter_prometheus::{Matcher, PrometheusBuilder};
use tower_login_rate_limit::{
    __private::{Metrics, Observers, RuleMetrics, StoreCall},
    Outcome, Policy, Reason,
    access::Action,
    event::{Event, LiftedBy, Signal},
    store::{StoreErrorKind, StoreStatus},
};

/// The buckets that docs/operations.md recommends.
const BUCKETS: [f64; 9] = [0.0005, 0.001, 0.0025, 0.005, 0.01, 0.025, 0.05, 0.1, 0.2];

/// The text that Prometheus scrapes after this has run.
fn scraped(run: impl FnOnce()) -> String {
    let calls = Matcher::Full("login_store_call_duration_seconds".to_owned());
    let recorder = PrometheusBuilder::new()
        .set_buckets_for_metric(calls, &BUCKETS)
        .expect("buckets")
        .build_recorder();
    metrics::with_local_recorder(&recorder, run);
    recorder.handle().render()
}

/// Values by name and labels, without comments and durations.
fn values(text: &str) -> BTreeMap<String, f64> {
    let lines = text
        .lines()
        .filter(|line| !line.is_empty() && !line.starts_with('#'));
    let values = lines.map(|line| line.rsplit_once(' ').expect("a value"));
    let counts = values
        .filter(|(name, _)| !name.contains("_seconds_sum") && !name.contains("_seconds_bucket"));
    counts
        .map(|(name, value)| (name.to_owned(), value.parse().expect("a number")))
        .collect()
}

/// A bit of everything, in numbers that can't be confused.
fn script() {
    let (metrics, policy) = (Metrics::default(), Policy::strict());
    let rules = RuleMetrics::new([&policy]);
    let (address, account) = ("address", "account");
    for (outcome, times) in [
        (Some(Outcome::Success), 3),
        (Some(Outcome::Failure), 7),
        (Some(Outcome::UnknownUser), 2),
        (Some(Outcome::MfaPending), 1),
        (None, 4),
    ] {
        for _ in 0..times {
            metrics.admitted();
            metrics.no_longer_in_flight();
            outcome.inspect(|outcome| metrics.settled(*outcome));
        }
    }
    (0..5).for_each(|_| metrics.admitted());
    (0..11).for_each(|_| rules.refused(address, Reason::Blocked, false));
    (0..6).for_each(|_| rules.refused(address, Reason::Busy, false));
    (0..9).for_each(|_| rules.refused(account, Reason::Blocked, true));
    // A policy that replaces this one continues its counts.
    let next = RuleMetrics::new([&policy.with_rule_enabled("account", false).unwrap()]);
    (0..2).for_each(|_| next.refused(address, Reason::Blocked, false));
    (0..4).for_each(|_| next.block_began(address));
    next.block_lifted(address, &LiftedBy::Time);
    next.set_in_force(address, 3);
    next.wrong_block(account);
    // No rule of the policy: no label.
    next.block_began("none");
    for _ in 0..3 {
        metrics.called(metrics.call(StoreCall::Reserve));
    }
    metrics.store_error(StoreErrorKind::Timeout);
    metrics.called(metrics.call(StoreCall::Settle));
    let mut status = StoreStatus::default();
    status.is_degraded = true;
    status.pending = 12;
    status.fallback_decisions = 1;
    status.cached_refusals = 8;
    metrics.set_store_status(status);
    metrics.set_policy_version(41);
    metrics.access_rule_hit(Action::Deny);
    metrics.signal(&Signal::ManyUsers { users: 100 });

    // The first event hangs the observer; then 8,192 wait, and up to 128 are in its hands.
    let (release, released) = mpsc::channel::<()>();
    let released = std::sync::Mutex::new(released);
    let observers = Observers::default().with(move |_: &Event| {
        let _ = released.lock().unwrap().recv();
    });
    let event: Event = serde_json::from_str(
        r#"{"at":"2026-11-18T07:00:00Z","event":"settled","outcome":"success"}"#,
    )
    .unwrap();
    (0..10_000).for_each(|_| observers.emit(|| event.clone()));
    let dropped = observers.status()[0].dropped;
    DROPPED.with(|cell| cell.set(dropped));
    drop(release);
}

thread_local! {
    static DROPPED: std::cell::Cell<u64> = const { std::cell::Cell::new(0) };
}

#[test]
fn the_text_of_a_scripted_run_equals_its_counts() {
    let text = scraped(script);
    let measured = values(&text);
    let expected = [
        ("login_attempts_total{outcome=\"success\"}", 3),
        ("login_attempts_total{outcome=\"failure\"}", 7),
        ("login_attempts_total{outcome=\"unknown_user\"}", 2),
        ("login_attempts_total{outcome=\"mfa_pending\"}", 1),
        ("login_attempts_total{outcome=\"not_an_attempt\"}", 0),
        ("login_admissions_total", 22),
        ("login_attempts_in_flight", 5),
        (
            "login_refusals_total{rule=\"address\",reason=\"blocked\",shadow=\"false\"}",
            13,
        ),
        (
            "login_refusals_total{rule=\"address\",reason=\"busy\",shadow=\"false\"}",
            6,
        ),
        (
            "login_refusals_total{rule=\"account\",reason=\"blocked\",shadow=\"true\"}",
            9,
        ),
        (
            "login_refusals_total{rule=\"account\",reason=\"blocked\",shadow=\"false\"}",
            0,
        ),
        ("login_blocks_begun_total{rule=\"address\"}", 4),
        ("login_blocks_begun_total{rule=\"account\"}", 0),
        ("login_blocks_lifted_total{rule=\"address\",by=\"time\"}", 1),
        (
            "login_blocks_lifted_total{rule=\"address\",by=\"operator\"}",
            0,
        ),
        ("login_blocks_in_force{rule=\"address\"}", 3),
        ("login_wrong_blocks_total{rule=\"account\"}", 1),
        (
            "login_store_call_duration_seconds_count{call=\"reserve\"}",
            3,
        ),
        (
            "login_store_call_duration_seconds_count{call=\"settle\"}",
            1,
        ),
        ("login_store_errors_total{kind=\"timeout\"}", 1),
        ("login_store_errors_total{kind=\"connection\"}", 0),
        ("login_store_degraded", 1),
        ("login_fallback_decisions_total", 1),
        ("login_journal_entries", 12),
        ("login_block_cache_hits_total", 8),
        ("login_policy_version", 41),
        ("login_access_rule_hits_total{action=\"deny\"}", 1),
        ("login_access_rule_hits_total{action=\"allow\"}", 0),
        ("login_attack_signals_total{signal=\"many_users\"}", 1),
        ("login_attack_signals_total{signal=\"failure_rate\"}", 0),
    ];
    for (name, value) in expected {
        assert_eq!(
            measured.get(name),
            Some(&f64::from(value)),
            "{name}\n{text}"
        );
    }
    let dropped = DROPPED.with(std::cell::Cell::get);
    assert!((1_680..=1_808).contains(&dropped), "{dropped}");
    let name = "login_observer_dropped_events_total{observer=\"0\"}";
    assert_eq!(measured[name] as u64, dropped);
    // Whatever else there is was counted zero times.
    let expected: BTreeSet<_> = expected
        .iter()
        .map(|(name, _)| *name)
        .chain([name])
        .collect();
    for (name, value) in measured {
        assert!(value == 0.0 || expected.contains(&*name), "{name} {value}");
    }
}

#[test]
fn every_metric_is_described_and_no_label_is_unbounded() {
    let text = scraped(script);
    let mut names = BTreeSet::new();
    for line in text.lines().filter(|line| line.starts_with("# TYPE ")) {
        let name = line.split(' ').nth(2).unwrap();
        assert!(text.contains(&format!("# HELP {name} ")), "{name}");
        names.insert(name);
    }
    assert_eq!(names.len(), 18, "{names:?}");
    let labels = [
        "outcome", "rule", "reason", "shadow", "by", "call", "le", "kind", "action", "signal",
        "observer",
    ];
    for name in values(&text).keys().filter(|name| name.contains('{')) {
        let (_, found) = name.split_once('{').unwrap();
        for label in found.trim_end_matches('}').split(',') {
            let (label, _) = label.split_once('=').unwrap();
            assert!(labels.contains(&label), "{name}");
        }
    }
}

fn docs(name: &str) -> PathBuf {
    Path::new(env!("CARGO_MANIFEST_DIR"))
        .join("docs")
        .join(name)
}

/// Names of metrics in an expression.
fn metrics_in(expression: &str) -> impl Iterator<Item = &str> {
    let words = expression.split(|c: char| !c.is_ascii_alphanumeric() && c != '_');
    words.filter(|word| word.starts_with("login_"))
}

#[test]
fn the_dashboard_shows_every_metric_and_no_other() {
    let text = fs::read_to_string(docs("grafana-dashboard.json")).unwrap();
    let dashboard: serde_json::Value = serde_json::from_str(&text).unwrap();
    let mut shown = BTreeSet::new();
    let panels = dashboard["panels"].as_array().unwrap();
    for target in panels
        .iter()
        .flat_map(|panel| panel["targets"].as_array().unwrap())
    {
        shown.extend(
            metrics_in(target["expr"].as_str().unwrap())
                .map(|name| name.trim_end_matches("_bucket")),
        );
    }
    let text = scraped(script);
    let types = text.lines().filter_map(|line| line.strip_prefix("# TYPE "));
    let measured: BTreeSet<_> = types.map(|line| line.split(' ').next().unwrap()).collect();
    assert_eq!(shown, measured);
}

#[test]
fn operations_documents_every_metric() {
    let page = fs::read_to_string(docs("operations.md")).unwrap();
    let text = scraped(script);
    for line in text.lines().filter_map(|line| line.strip_prefix("# TYPE ")) {
        let name = line.split(' ').next().unwrap();
        assert!(page.contains(&format!("| `{name}`")), "{name}");
    }
    for bucket in BUCKETS {
        assert!(page.contains(&bucket.to_string()), "{bucket}");
    }
}

fn promtool(arguments: &[&str]) {
    let output = Command::new("promtool").args(arguments).output().unwrap_or_else(|error| {
        panic!("promtool can't be run ({error}): run tests/run.sh, which installs it, or install Prometheus")
    });
    let said = String::from_utf8_lossy(&output.stdout).into_owned()
        + &String::from_utf8_lossy(&output.stderr);
    assert!(output.status.success(), "{said}");
}

#[test]
fn prometheus_accepts_the_alert_rules_and_they_fire_when_they_should() {
    let rules = docs("prometheus-alerts.yml");
    let rules = rules.to_str().unwrap();
    promtool(&["check", "rules", rules]);
    let directory = tempfile::tempdir().unwrap();
    let tests = directory.path().join("alerts.yml");
    fs::write(
        &tests,
        include_str!("metrics/alerts.yml").replace("ALERTS", rules),
    )
    .unwrap();
    promtool(&["test", "rules", tests.to_str().unwrap()]);
    let text = scraped(script);
    for name in metrics_in(&fs::read_to_string(rules).unwrap()) {
        assert!(text.contains(&format!("# TYPE {name} ")), "{name}");
    }
}

#[test]
fn prometheus_can_read_what_is_exported() {
    use std::{io::Write, process::Stdio};
    let text = scraped(script);
    let mut child = Command::new("promtool")
        .args(["check", "metrics"])
        .stdin(Stdio::piped())
        .stdout(Stdio::piped())
        .stderr(Stdio::piped())
        .spawn()
        .expect("promtool: run tests/run.sh, which installs it, or install Prometheus");
    child
        .stdin
        .take()
        .unwrap()
        .write_all(text.as_bytes())
        .unwrap();
    let output = child.wait_with_output().unwrap();
    let said = String::from_utf8_lossy(&output.stderr).into_owned()
        + &String::from_utf8_lossy(&output.stdout);
    assert!(output.status.success() && said.trim().is_empty(), "{said}");
}
