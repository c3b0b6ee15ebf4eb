//! What `--json` prints, compared with docs/cli-schema.json, and that with the table in docs/cli.md.

use std::{collections::BTreeSet, fs, path::Path, sync::LazyLock};

use serde_json::Value;

static SCHEMAS: LazyLock<[Value; 2]> = LazyLock::new(|| {
    ["cli-schema.json", "openapi.json"].map(|name| serde_json::from_str(&page(name)).expect(name))
});

fn page(name: &str) -> String {
    let path = Path::new(env!("CARGO_MANIFEST_DIR"))
        .join("docs")
        .join(name);
    fs::read_to_string(path).expect(name)
}

/// The definition of what a command prints.
pub(super) fn name(words: &[&str]) -> String {
    let has = |options: &[&str]| words.iter().any(|word| options.contains(word));
    match words {
        ["blocked", ..] if has(&["--count"]) => "blocked-count".to_owned(),
        ["forgive", ..] if has(&["--dry-run", "-n"]) => "forgive-dry-run".to_owned(),
        ["known", ..] if has(&["--forget"]) => "known-forget".to_owned(),
        ["allow" | "deny", "add" | "remove", ..] => "access-change".to_owned(),
        ["allow" | "deny", verb, ..] => format!("access-{verb}"),
        ["policy", "rollback", ..] => "policy-set".to_owned(),
        ["policy", verb, ..] => format!("policy-{verb}"),
        [command, ..] => (*command).to_owned(),
        [] => panic!("no command"),
    }
}

/// Panics if the value is not as the definition describes it.
#[track_caller]
pub(super) fn expect(name: &str, value: &Value) {
    let schema = &SCHEMAS[0]["$defs"][name];
    assert!(schema.is_object(), "docs/cli-schema.json has no {name}");
    if let Err(error) = check(schema, value, name) {
        panic!("{error}, in {value}");
    }
}

/// Follows a reference into one of the two documents.
fn resolve(reference: &str) -> &'static Value {
    let pointer = reference.strip_prefix("openapi.json");
    let pointer = pointer.unwrap_or(reference).trim_start_matches('#');
    let found = SCHEMAS[1].pointer(pointer);
    found.unwrap_or_else(|| panic!("there is no {reference}"))
}

/// The part of JSON Schema that the two documents use.
fn check(schema: &Value, value: &Value, at: &str) -> Result<(), String> {
    let Some(keywords) = schema.as_object() else {
        return Ok(());
    };
    for (keyword, of) in keywords {
        let is_right = match &**keyword {
            "$ref" => return check(resolve(of.as_str().expect("a reference")), value, at),
            "type" => match of {
                Value::Array(types) => types.iter().any(|one| is_a(one, value)),
                one => is_a(one, value),
            },
            "enum" => of.as_array().expect("values").contains(value),
            "minimum" => value.as_f64() >= of.as_f64(),
            "maximum" => value.as_f64() <= of.as_f64(),
            "format" if of == "date-time" => {
                let text = value.as_str();
                text.is_none_or(is_rfc_3339)
            }
            "oneOf" | "anyOf" => {
                let fitting = of.as_array().expect("schemas").iter();
                let fitting = fitting.filter(|one| check(one, value, at).is_ok()).count();
                fitting == 1 || keyword == "anyOf" && fitting > 0
            }
            "required" => {
                let names = of.as_array().expect("names").iter();
                let mut names = names.filter_map(Value::as_str);
                names.all(|name| value.get(name).is_some())
            }
            "items" => {
                for (i, item) in value.as_array().into_iter().flatten().enumerate() {
                    check(of, item, &format!("{at}[{i}]"))?;
                }
                true
            }
            "properties" => {
                for (name, schema) in of.as_object().expect("schemas") {
                    if let Some(member) = value.get(name) {
                        check(schema, member, &format!("{at}.{name}"))?;
                    }
                }
                true
            }
            "additionalProperties" => {
                let known = keywords.get("properties");
                for (name, member) in value.as_object().into_iter().flatten() {
                    if known.is_some_and(|known| known.get(name).is_some()) {
                        continue;
                    }
                    if *of == false {
                        return Err(format!("{at}.{name} is not described"));
                    }
                    check(of, member, &format!("{at}.{name}"))?;
                }
                true
            }
            "format" | "description" | "example" | "examples" | "default" | "title" => true,
            "maxLength" | "minLength" | "maxItems" | "maxProperties" | "propertyNames" => true,
            other => panic!("{other} is not known here"),
        };
        if !is_right {
            return Err(format!("{at} is {value}, and not {keyword} {of}"));
        }
    }
    Ok(())
}

fn is_a(kind: &Value, value: &Value) -> bool {
    match kind.as_str().expect("a type") {
        "null" => value.is_null(),
        "boolean" => value.is_boolean(),
        "integer" => value.is_i64() || value.is_u64(),
        "number" => value.is_number(),
        "string" => value.is_string(),
        "array" => value.is_array(),
        "object" => value.is_object(),
        other => panic!("{other} is no type"),
    }
}

/// As in `2026-11-18T15:22:37.123Z`.
fn is_rfc_3339(text: &str) -> bool {
    let digits = text.replace(|c: char| c.is_ascii_digit(), "0");
    digits.starts_with("0000-00-00T00:00:00") && digits.ends_with('Z')
}

/// The names of all members of what a schema describes, and of what it refers to with `is_deep`.
fn members(schema: &'static Value, is_deep: bool, names: &mut BTreeSet<String>) {
    let schema = schema["$ref"].as_str().map_or(schema, resolve);
    for (name, member) in schema["properties"].as_object().into_iter().flatten() {
        names.insert(name.clone());
        if is_deep {
            let values = member["items"]["properties"]["level"]["enum"].as_array();
            let values = values.into_iter().flatten().filter_map(Value::as_str);
            names.extend(values.map(str::to_owned));
            members(&member["items"], false, names);
        }
    }
}

#[test]
fn the_table_in_the_documentation_names_what_the_schema_describes() {
    let page = page("cli.md");
    let (_, table) = page.split_once("| command | JSON |\n|---|---|\n").unwrap();
    let rows = table.lines().take_while(|line| line.starts_with('|'));
    let words = |text: &str| -> BTreeSet<String> {
        let quoted = text.split('`').skip(1).step_by(2);
        quoted.map(str::to_owned).collect()
    };
    let mut left: BTreeSet<_> = SCHEMAS[0]["$defs"].as_object().unwrap().keys().collect();
    for row in rows {
        let (commands, described) = row.trim_matches('|').split_once('|').unwrap();
        let definitions: &[&str] = match commands.trim() {
            "`blocked`" => &["blocked", "blocked-count"],
            "`forgive`" => &["forgive", "forgive-dry-run"],
            "`allow`, `deny`" => &["access-change", "access-list", "access-try"],
            "`known`" => &["known", "known-forget"],
            "`policy show`" => &["policy-show", "policy-history"],
            "`policy check`" => &["policy-check"],
            "`policy set`, `rollback`" => &["policy-set"],
            "`policy diff`" => &["policy-diff"],
            command => &[&*command.trim_matches('`').to_owned().leak()],
        };
        let described = words(described);
        let (mut shallow, mut deep) = (BTreeSet::new(), BTreeSet::new());
        for definition in definitions {
            assert!(
                left.remove(&(*definition).to_owned()),
                "{row}: {definition}"
            );
            let schema = &SCHEMAS[0]["$defs"][definition];
            members(schema, false, &mut shallow);
            members(schema, true, &mut deep);
        }
        // These two are described elsewhere.
        if ["replay", "events"].contains(&definitions[0]) {
            continue;
        }
        assert_eq!(shallow.difference(&described).next(), None, "{row}");
        let others = ["add", "remove", "list", "try", "history"];
        let unknown = described.iter().find(|word| {
            !word.starts_with("--") && !deep.contains(*word) && !others.contains(&&***word)
        });
        assert_eq!(unknown, None, "{row}");
    }
    assert_eq!(left, BTreeSet::new(), "without a row");
}

#[test]
fn what_is_not_described_is_found() {
    let right = serde_json::json!({"dry_run": false, "forgotten": 1});
    let schema = &SCHEMAS[0]["$defs"]["known-forget"];
    assert_eq!(check(schema, &right, "known"), Ok(()));
    for (name, value) in [
        ("forgotten", serde_json::json!(-1)),
        ("forgotten", serde_json::json!("1")),
        ("more", serde_json::json!(1)),
    ] {
        let mut wrong = right.clone();
        wrong[name] = value;
        assert!(check(schema, &wrong, "known").is_err(), "{wrong}");
    }
    let lacking = serde_json::json!({"dry_run": false});
    assert!(check(schema, &lacking, "known").is_err());
}
