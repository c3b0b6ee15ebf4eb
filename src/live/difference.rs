//! What is different between two rulesets, in lines that an operator reads.

use serde::Serialize;
use serde_json::Value;

/// How many lines there are at most: a list of 100,000 networks may be replaced.
const MAX_LINES: usize = 200;

/// Compares two values as they are written in files. Members of lists are matched by their name, so that a rule
/// that moved is not a difference.
pub(super) fn differences(before: &impl Serialize, after: &impl Serialize) -> Vec<String> {
    let value = |of: Result<Value, serde_json::Error>| {
        let mut value = of.unwrap_or(Value::Null);
        drop_secrets(&mut value);
        value
    };
    let mut lines = Lines::default();
    lines.compare(
        "",
        &value(serde_json::to_value(before)),
        &value(serde_json::to_value(after)),
    );
    lines.finish()
}

/// Lines leave the process, and the secret of a canary must not.
fn drop_secrets(value: &mut Value) {
    match value {
        Value::Object(fields) => {
            fields.remove("secret");
            fields.values_mut().for_each(drop_secrets);
        }
        Value::Array(values) => values.iter_mut().for_each(drop_secrets),
        _ => {}
    }
}

#[derive(Default)]
struct Lines {
    lines: Vec<String>,
    omitted: usize,
}

impl Lines {
    fn push(&mut self, line: String) {
        if self.lines.len() < MAX_LINES {
            self.lines.push(line);
        } else {
            self.omitted += 1;
        }
    }

    fn finish(mut self) -> Vec<String> {
        if self.omitted > 0 {
            self.lines.push(format!("… and {} more", self.omitted));
        }
        self.lines
    }

    fn compare(&mut self, path: &str, before: &Value, after: &Value) {
        if before == after {
            return;
        }
        match (before, after) {
            (Value::Object(old), Value::Object(new)) => {
                let mut keys: Vec<_> = old.keys().chain(new.keys()).collect();
                keys.sort();
                keys.dedup();
                for key in keys {
                    let path = join(path, key);
                    let (old, new) = (old.get(key), new.get(key));
                    self.compare(
                        &path,
                        old.unwrap_or(&Value::Null),
                        new.unwrap_or(&Value::Null),
                    );
                }
            }
            (Value::Array(old), Value::Array(new)) if is_named(old) && is_named(new) => {
                let find = |list: &[Value], name: &Value| {
                    list.iter().find(|value| value["name"] == *name).cloned()
                };
                for value in old {
                    let name = &value["name"];
                    let path = join(path, name.as_str().unwrap_or_default());
                    match find(new, name) {
                        Some(other) => self.compare(&path, value, &other),
                        None => self.push(format!("{path}: removed")),
                    }
                }
                for value in new.iter().filter(|new| find(old, &new["name"]).is_none()) {
                    let path = join(path, value["name"].as_str().unwrap_or_default());
                    self.push(format!("{path}: added, {}", without_name(value)));
                }
            }
            // Lines leave the process, and names must not.
            _ if is_user(path) => self.push(format!("{path}: changed")),
            (Value::Null, after) => self.push(format!("{path}: set to {}", short(after))),
            (before, Value::Null) => self.push(format!("{path}: {} removed", short(before))),
            (before, after) => self.push(format!("{path}: {} → {}", short(before), short(after))),
        }
    }
}

fn join(path: &str, key: &str) -> String {
    match path {
        "" => key.to_owned(),
        path => format!("{path}.{key}"),
    }
}

fn is_named(list: &[Value]) -> bool {
    list.iter().all(|value| value["name"].is_string())
}

fn without_name(value: &Value) -> String {
    let fields = value.as_object().into_iter().flatten();
    let fields = fields.filter(|(name, value)| *name != "name" && !value.is_null());
    let fields: Vec<_> = fields
        .map(|(name, value)| {
            if is_user(name) {
                format!("{name} ***")
            } else {
                format!("{name} {}", short(value))
            }
        })
        .collect();
    fields.join(", ")
}

/// Whether this is the field of a user, or of a part of its name.
fn is_user(path: &str) -> bool {
    let field = path.rsplit('.').next();
    matches!(field, Some("user" | "user_keyword"))
}

fn short(value: &Value) -> String {
    let text = match value {
        Value::String(text) => text.clone(),
        other => other.to_string(),
    };
    match text.char_indices().nth(200) {
        Some((end, _)) => format!("{}…", &text[..end]),
        None => text,
    }
}

#[cfg(test)]
mod tests {
    use crate::{
        Limit, Period, Policy,
        access::{AccessRule, AccessRules, Field},
        live::{Canary, Ruleset},
    };

    #[test]
    fn each_line_names_what_changed_and_how() {
        let before = Ruleset::new(Policy::default());
        let three = Limit::attempts(3)
            .within(Period::days(1))
            .blocked_for(Period::days(1));
        let policy = Policy::default().with_user_address_limit(three).unwrap();
        let policy = policy.with_rule_enabled("network-56", false).unwrap();
        let rule = AccessRule::deny("botnet", Field::Network, "192.0.2.0/24").unwrap();
        let access = AccessRules::new([rule]).unwrap();
        let after = before.clone().with_policy(policy).with_access(access);
        assert_eq!(
            before.differences(&after),
            [
                "access.botnet: added, action deny, network 192.0.2.0/24",
                "policy.rules.network-56.enabled: true → false",
                "policy.rules.user-address.limit: 5 → 3",
            ]
        );
        assert_eq!(before.differences(&before), [""; 0]);
        assert_eq!(after.differences(&before)[0], "access.botnet: removed");
    }

    #[test]
    fn the_secret_of_a_canary_is_in_no_line() {
        let before = Ruleset::new(Policy::default());
        // So short that the line is not cut ahead of the secret.
        let policy: Policy = serde_json::from_str(
            r#"{"rules":[{"name":"a","key":["address"],"limit":1,"within":"1 day"}]}"#,
        )
        .unwrap();
        let canary = Canary::new(policy, 5.0).unwrap();
        let secret = serde_json::to_value(&canary).unwrap()["secret"].to_string();
        let after = before.clone().with_canary(canary);
        for lines in [before.differences(&after), after.differences(&before)] {
            assert!(lines[0].starts_with("canary: "), "{lines:?}");
            let lines = lines.join("\n");
            assert!(
                !lines.contains(&secret) && !lines.contains("secret"),
                "{lines}"
            );
        }
        assert!(!format!("{after:?}").contains(&secret));
    }

    #[test]
    fn a_long_list_is_cut() {
        let rules = (0..1_000).map(|i| {
            let network = format!("10.0.{}.{}", i / 250, i % 250);
            AccessRule::deny(format!("rule-{i}"), Field::Network, network).unwrap()
        });
        let before = Ruleset::new(Policy::default());
        let after = before.clone().with_access(AccessRules::new(rules).unwrap());
        let lines = before.differences(&after);
        assert_eq!(lines.len(), 201);
        assert_eq!(lines[200], "… and 800 more");
    }
}
