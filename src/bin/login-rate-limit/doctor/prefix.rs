//! Whether the prefix is the one of the app.

use std::collections::BTreeSet;

use tower_login_rate_limit::store::RedisStore;

use super::finding::Findings;
use crate::store::StoreArgs;

/// How many steps of `SCAN` look for other prefixes, and how many keys each looks at.
const STEPS: usize = 50;
const KEYS: usize = 1_000;

/// Looks for other prefixes, as there is nothing under this one.
pub(super) async fn look(store: &RedisStore, args: &StoreArgs, findings: &mut Findings) {
    let message = format!(
        "nothing of an app is under the prefix {}: no rules, instances, blocks or events",
        args.prefix()
    );
    let others = others(store).await;
    let advice = if others.is_empty() {
        "pass the app's with --prefix; right after the first start it is as it should be".to_owned()
    } else {
        let others: Vec<_> = others.into_iter().collect();
        format!(
            "there are keys under {}: pass one with --prefix",
            others.join(", ")
        )
    };
    findings.warning("prefix", message, advice);
}

/// Prefixes that have the keys of a fleet. A cluster is not searched.
async fn others(store: &RedisStore) -> BTreeSet<String> {
    let mut prefixes = BTreeSet::new();
    let mut cursor = "0".to_owned();
    for _ in 0..STEPS {
        let mut command = redis::cmd("SCAN");
        command
            .arg(&cursor)
            .arg("MATCH")
            .arg("*:{*")
            .arg("COUNT")
            .arg(KEYS);
        let Ok(reply) = store.query(command).await else {
            break;
        };
        let Ok((next, keys)) = redis::from_redis_value::<(String, Vec<String>)>(reply) else {
            break;
        };
        let found = keys.iter().filter_map(|key| prefix_of(key));
        prefixes.extend(found.map(str::to_owned));
        cursor = next;
        if cursor == "0" {
            break;
        }
    }
    prefixes
}

/// The prefix of a key that only this crate writes.
fn prefix_of(key: &str) -> Option<&str> {
    let (prefix, rest) = key.split_once(":{")?;
    let is_ours = rest.starts_with("document}")
        || rest.starts_with("instances}:")
        || rest.starts_with("blocks:");
    is_ours.then_some(prefix)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn only_keys_of_a_fleet_name_a_prefix() {
        for (key, prefix) in [
            ("login:{document}", Some("login")),
            ("shop:login:{instances}:lifts", Some("shop:login")),
            ("a:{blocks:3}:address:lifts", Some("a")),
            ("session:{user}", None),
            ("session:7", None),
        ] {
            assert_eq!(prefix_of(key), prefix, "{key}");
        }
    }
}
