//! What operators do, by HTTP.

use std::time::Duration;

use serde_json::{Value, json};
use tokio::io::{AsyncReadExt, AsyncWriteExt};
use tower_login_rate_limit::{
    LoginLimiter, Policy,
    event::{Sealer, UserDisplay},
    store::MemoryStore,
};

use super::{Api, OPERATOR, READER, fleet};
use crate::support::RedisServer;

const HOME: &str = "192.0.2.1";

async fn blocks(api: &Api, query: &str) -> Vec<Value> {
    let (status, page) = api.get(READER, &format!("/v1/admin/blocks{query}")).await;
    assert_eq!(status, 200, "{page}");
    assert_eq!(page["next"], Value::Null);
    page["blocks"].as_array().expect("blocks").clone()
}

#[tokio::test]
async fn a_block_is_found_explained_and_lifted() {
    let redis = RedisServer::start();
    let [api, other] = fleet(&redis).await;
    api.fail(HOME, "alice", 5).await;
    api.fail(HOME, "bob", 5).await;
    api.fail(HOME, "carol", 5).await;
    api.limiter.all_settled().await.expect("settled");

    assert_eq!(blocks(&other, "").await.len(), 3);
    assert_eq!(blocks(&other, "?rule=address").await.len(), 0);
    assert_eq!(
        blocks(&other, "?network=192.0.2.0%2F24&limit=10")
            .await
            .len(),
        3
    );
    let found = blocks(&other, "?user=ALICE&address=192.0.2.1").await;
    assert_eq!((found.len(), &found[0]["user"]), (1, &json!("alice")));
    let (_, counts) = api.get(READER, "/v1/admin/block-counts").await;
    let pair = counts["rules"].as_array().expect("rules").iter();
    let pair = pair.clone().find(|count| count["rule"] == "user-address");
    assert_eq!(pair.expect("a rule")["blocks"], 3);

    let (status, why) = api
        .get(READER, "/v1/admin/explain?address=192.0.2.1&user=alice")
        .await;
    assert_eq!(status, 200);
    let limits = why["limits"].as_array().expect("limits");
    let pair = limits
        .iter()
        .find(|limit| limit["rule"] == "user-address")
        .expect("a limit");
    assert_eq!(pair["attempts"].as_array().expect("attempts").len(), 5);
    assert_eq!(
        pair["words"],
        "5 of 5 failures within 1 day; blocked for another 1 day"
    );

    let body = json!({"address": HOME, "user": "alice", "reason": "phoned"});
    let (status, lifted) = api.post(OPERATOR, "/v1/admin/unblock", &body).await;
    assert_eq!((status, &lifted["count"]), (200, &json!(1)), "{lifted}");
    assert_eq!(other.reserve(HOME, "alice").await["admitted"], true);

    let left = blocks(&api, "").await;
    let (bob, carol) = (&left[0]["id"], &left[1]["id"]);
    let ids = json!([bob, "user-address/nothing", "gone/x", carol, bob]);
    let body = json!({"ids": ids, "reason": "ticket 7"});
    let (status, lifted) = api.post(OPERATOR, "/v1/admin/unblock", &body).await;
    assert_eq!((status, &lifted["count"]), (200, &json!(2)), "{lifted}");
    assert!(blocks(&api, "").await.is_empty());

    // Each change has its author: the one who was authenticated.
    assert!(api.limiter.observed().await);
    let (_, listed) = api.get(READER, "/v1/admin/events?event=administered").await;
    let listed = listed["events"].as_array().expect("events").clone();
    let audit = |event: &Value| (event["author"].clone(), event["reason"].clone());
    let audit: Vec<_> = listed.iter().map(audit).collect();
    assert_eq!(
        audit,
        [
            (json!("oscar"), json!("ticket 7")),
            (json!("oscar"), json!("phoned"))
        ]
    );
}

#[tokio::test]
async fn pages_follow_each_other() {
    let api = Api::memory().await;
    for i in 0..5 {
        api.fail(HOME, &format!("user-{i}"), 5).await;
    }
    api.limiter.all_settled().await.expect("settled");
    let (mut seen, mut after) = (Vec::new(), String::new());
    loop {
        let path = format!("/v1/admin/blocks?rule=user-address&limit=2{after}");
        let (status, page) = api.get(READER, &path).await;
        assert_eq!(status, 200, "{page}");
        let page_blocks = page["blocks"].as_array().expect("blocks");
        assert!(page_blocks.len() <= 2);
        seen.extend(page_blocks.iter().map(|block| block["user"].clone()));
        match page["next"].as_str() {
            Some(next) => {
                let next: String = form_urlencoded::byte_serialize(next.as_bytes()).collect();
                after = format!("&after={next}");
            }
            None => break,
        }
    }
    seen.sort_by_key(|user| user.to_string());
    assert_eq!(
        seen,
        (0..5)
            .map(|i| json!(format!("user-{i}")))
            .collect::<Vec<_>>()
    );
}

#[tokio::test]
async fn a_user_is_forgiven_blocked_noted_and_forgotten() {
    let limiter = LoginLimiter::new(Policy::strict(), MemoryStore::new());
    let api = Api::start(limiter).await;
    let decision = api.reserve(HOME, "alice").await;
    assert_eq!(api.settle(&decision, "success").await.0, 200);
    api.fail(HOME, "alice", 5).await;
    api.limiter.all_settled().await.expect("settled");

    let (status, forgiven) = api
        .post(
            OPERATOR,
            "/v1/admin/forgive",
            &json!({"user": "alice", "reason": "reset"}),
        )
        .await;
    assert_eq!(
        (status, &forgiven["addresses"]),
        (200, &json!([HOME])),
        "{forgiven}"
    );
    assert_eq!(api.reserve(HOME, "alice").await["admitted"], true);

    let (_, known) = api
        .get(READER, "/v1/admin/known-addresses?user=alice")
        .await;
    assert_eq!(known, json!({"addresses": [HOME]}));
    let body = json!({"user": "alice", "address": HOME, "reason": "taken over"});
    let (status, forgotten) = api
        .post(OPERATOR, "/v1/admin/known-addresses/forget", &body)
        .await;
    assert_eq!((status, forgotten), (200, json!({"forgotten": 1})));

    let body = json!({"network": "203.0.113.0/24", "for": "1 day", "reason": "scans"});
    let (status, blocked) = api.post(OPERATOR, "/v1/admin/block", &body).await;
    assert_eq!(status, 200, "{blocked}");
    let refused = api.reserve("203.0.113.9", "bob").await;
    assert_eq!(
        (&refused["reason"], &refused["rule"]),
        (&json!("denied"), &blocked["rule"])
    );

    let body = json!({"address": HOME, "note": "the office, see ticket 4"});
    assert_eq!(
        api.post(OPERATOR, "/v1/admin/notes", &body).await,
        (200, json!({}))
    );
    assert!(api.limiter.observed().await);
    let (_, listed) = api
        .get(
            READER,
            "/v1/admin/events?event=administered&address=192.0.2.1",
        )
        .await;
    let note = &listed["events"][0];
    assert_eq!(
        (&note["action"], &note["reason"]),
        (&json!("note"), &json!("the office, see ticket 4"))
    );
}

#[tokio::test]
async fn a_ruleset_is_checked_replaced_and_rolled_back_by_version() {
    let mut redis = RedisServer::start();
    // The ruleset is kept.
    redis.keys_may_live(None);
    let [api, other] = fleet(&redis).await;
    let read = async || {
        let request = api.request("GET", "/v1/admin/ruleset").bearer_auth(READER);
        let response = request.send().await.expect("an answer");
        let tag = response.headers()["etag"]
            .to_str()
            .expect("a text")
            .to_owned();
        (tag, response.json::<Value>().await.expect("JSON"))
    };
    let put = async |api: &Api, tag: Option<&str>, ruleset: &Value, reason: &str| {
        let mut request = api
            .request("PUT", "/v1/admin/ruleset")
            .bearer_auth(OPERATOR);
        if let Some(tag) = tag {
            request = request.header("if-match", tag);
        }
        Api::send(request.json(&json!({"ruleset": ruleset, "reason": reason}))).await
    };
    let (tag, version) = read().await;
    assert_eq!((&*tag, &version["version"]), ("\"0\"", &json!(0)));
    let mut ruleset = version["ruleset"].clone();
    let rules = ruleset["policy"]["rules"].as_array_mut().expect("rules");
    let pair = rules
        .iter_mut()
        .find(|rule| rule["name"] == "user-address")
        .expect("a rule");
    pair["limit"] = json!(3);

    let body = json!({"ruleset": ruleset});
    let (status, checked) = api.post(READER, "/v1/admin/ruleset/check", &body).await;
    assert_eq!(
        (status, &checked["valid"]),
        (200, &json!(true)),
        "{checked}"
    );
    assert_eq!(
        checked["differences"],
        json!(["policy.rules.user-address.limit: 5 → 3"])
    );
    let words = checked["words"].as_array().expect("words").iter();
    let mut words = words.filter(|words| words["rule"] == "user-address");
    assert_eq!(
        words.next().expect("words")["words"],
        "each user at each address: 3 failures within 1 day, then blocked for 1 day"
    );
    let mut wrong = ruleset.clone();
    wrong["policy"]["rules"][0]["limit"] = json!(0);
    let (status, checked) = api
        .post(
            READER,
            "/v1/admin/ruleset/check",
            &json!({"ruleset": wrong}),
        )
        .await;
    assert_eq!((status, &checked["valid"]), (200, &json!(false)));
    let place = checked["error"]["where"].as_str().expect("a place");
    assert!(place.ends_with(".limit"), "{checked}");
    assert_eq!(put(&api, Some(&tag), &wrong, "wrong").await.0, 422);

    assert_eq!(put(&api, None, &ruleset, "stricter").await.0, 428);
    assert_eq!(put(&api, Some("3"), &ruleset, "stricter").await.0, 400);
    assert_eq!(put(&api, Some("*"), &ruleset, "stricter").await.0, 400);
    assert_eq!(
        put(&api, Some(&tag), &ruleset, "stricter").await,
        (200, json!({"version": 1}))
    );
    let (status, conflict) = put(&other, Some(&tag), &ruleset, "me too").await;
    assert_eq!(status, 412);
    let conflict = &conflict["conflict"];
    assert_eq!(
        (&conflict["version"], &conflict["author"]),
        (&json!(1), &json!("oscar"))
    );
    assert_eq!(conflict["reason"], "stricter");
    assert_eq!(
        conflict["differences"],
        json!(["policy.rules.user-address.limit: 5 → 3"])
    );

    let (_, mut softer) = read().await;
    softer["ruleset"]["policy"]["rules"] = version["ruleset"]["policy"]["rules"].clone();
    assert_eq!(
        put(&api, Some("\"1\""), &softer["ruleset"], "softer")
            .await
            .1["version"],
        2
    );
    let roll_back = api
        .request("POST", "/v1/admin/ruleset/rollback")
        .bearer_auth(OPERATOR);
    let roll_back = roll_back.header("if-match", "\"2\"");
    let answer = Api::send(roll_back.json(&json!({"to": 1, "reason": "attacked"}))).await;
    assert_eq!(answer, (200, json!({"version": 3})));
    let (_, history) = api.get(READER, "/v1/admin/ruleset/history").await;
    let reasons = history["versions"].as_array().expect("versions").iter();
    let reasons: Vec<_> = reasons.map(|version| &version["reason"]).collect();
    assert_eq!(reasons, ["attacked", "softer", "stricter"]);
    api.fail(HOME, "alice", 3).await;
    assert_eq!(api.reserve(HOME, "alice").await["admitted"], false);
}

/// Bodies that are not yet complete are in memory too.
#[tokio::test]
async fn few_large_rulesets_are_read_at_a_time() {
    let api = Api::memory().await;
    let begin = async || {
        let mut stream = tokio::net::TcpStream::connect(api.address).await.unwrap();
        let head = format!(
            "POST /v1/admin/ruleset/check HTTP/1.1\r\nHost: a\r\nAuthorization: Bearer {READER}\r\n\
             Content-Type: application/json\r\nContent-Length: 16000000\r\n\r\n{{"
        );
        stream.write_all(head.as_bytes()).await.unwrap();
        let mut status = [0; 12];
        let read = stream.read_exact(&mut status);
        let read = tokio::time::timeout(Duration::from_millis(300), read).await;
        let status = read.is_ok().then(|| status.to_vec());
        (stream, status)
    };
    let (_first, status) = begin().await;
    assert_eq!(status, None, "the rest is waited for");
    let (second, _) = begin().await;
    for _ in 0..3 {
        let (_, status) = begin().await;
        assert_eq!(status.as_deref(), Some(&b"HTTP/1.1 503"[..]));
    }
    let check = "/v1/admin/ruleset/check";
    let small = json!({"ruleset": {}});
    let large = json!({"ruleset": "x".repeat(100_000)});
    assert_eq!(api.post(READER, check, &small).await.0, 200);
    assert_eq!(api.post(OPERATOR, check, &large).await.0, 200);
    drop(second);
    let freed = async {
        while begin().await.1.is_some() {
            tokio::time::sleep(Duration::from_millis(20)).await;
        }
    };
    let freed = tokio::time::timeout(Duration::from_secs(10), freed).await;
    freed.expect("a share is free again");
}

#[tokio::test]
async fn a_ruleset_is_previewed_by_what_happened() {
    let api = Api::memory().await;
    api.fail(HOME, "alice", 4).await;
    assert!(api.limiter.observed().await);
    let (_, current) = api.get(READER, "/v1/admin/ruleset").await;
    let mut ruleset = current["ruleset"].clone();
    let rules = ruleset["policy"]["rules"].as_array_mut();
    let mut rules = rules.expect("rules").iter_mut();
    let pair = rules.find(|rule| rule["name"] == "user-address");
    pair.expect("a rule")["limit"] = json!(3);
    let body = json!({"ruleset": ruleset});
    let (status, report) = api.post(READER, "/v1/admin/ruleset/preview", &body).await;
    assert_eq!((status, &report["attempts"]), (200, &json!(4)), "{report}");
    assert_eq!(report["blocked"]["count"], 1, "{report}");
    assert_eq!(
        report["blocked"]["subjects"][0]["user"], "alice",
        "{report}"
    );
    assert_eq!(
        (&report["refused"], &report["refused_guesses"]),
        (&json!(1), &json!(1))
    );
    // Nothing has changed.
    assert_eq!(api.reserve(HOME, "alice").await["admitted"], true);
}

#[tokio::test]
async fn access_rules_are_tried_added_and_removed() {
    let api = Api::memory().await;
    let rule = json!({"name": "scanner", "action": "deny", "user_agent": "sqlmap"});
    let body = json!({"address": HOME, "user_agent": "sqlmap/1", "rule": rule});
    let (status, tried) = api.post(READER, "/v1/admin/access-rules/try", &body).await;
    assert_eq!(
        (status, &tried["decided_by"]["name"]),
        (200, &json!("scanner"))
    );
    let (_, tried) = api
        .post(
            READER,
            "/v1/admin/access-rules/try",
            &json!({"user_agent": "sqlmap"}),
        )
        .await;
    assert_eq!(tried["decided_by"], Value::Null);

    let put = |name: &str, body: &Value| {
        let path = format!("/v1/admin/access-rules/{name}");
        Api::send(api.request("PUT", &path).bearer_auth(OPERATOR).json(body))
    };
    let rule = json!({"action": "deny", "network": "203.0.113.0/24", "reason": "scans"});
    assert_eq!(put("lab", &rule).await, (200, json!({"version": 1})));
    assert_eq!(api.reserve("203.0.113.1", "x").await["rule"], "lab");
    let (_, ruleset) = api.get(READER, "/v1/admin/ruleset").await;
    let added = &ruleset["ruleset"]["access"][0];
    assert_eq!(
        (&added["author"], &added["note"]),
        (&json!("oscar"), &json!("scans"))
    );

    for wrong in [
        json!({"action": "deny", "network": "0.0.0.0/0", "reason": "x"}),
        json!({"action": "allow", "user_agent": "curl", "reason": "x"}),
        json!({"action": "deny", "reason": "x"}),
        json!({"action": "deny", "path": "/a", "reason": "x", "author": "mallory"}),
        json!({"action": "deny", "path": "/a", "reason": ""}),
        json!({"action": "deny", "path": "/a", "reason": "a\nb"}),
    ] {
        assert_eq!(put("wrong", &wrong).await.0, 422, "{wrong}");
    }
    assert_eq!(put("a%20b", &rule).await.0, 422);
    let remove = |name: &str| {
        let path = format!("/v1/admin/access-rules/{name}");
        let request = api.request("DELETE", &path).bearer_auth(OPERATOR);
        Api::send(request.json(&json!({"reason": "over"})))
    };
    assert_eq!(remove("lab").await, (200, json!({"version": 2})));
    assert_eq!(remove("lab").await.0, 404);
    assert_eq!(api.reserve("203.0.113.1", "x").await["admitted"], true);
}

#[tokio::test]
async fn events_are_exported_and_no_name_is_a_formula() {
    let api = Api::memory().await;
    api.fail(HOME, "=cmd|' /c calc'!a0", 1).await;
    api.fail(HOME, "alice", 1).await;
    assert!(api.limiter.observed().await);
    let (_, listed) = api.get(READER, "/v1/admin/events?user=Alice").await;
    assert_eq!(listed["events"].as_array().expect("events").len(), 1);
    let (_, lines) = api.get(READER, "/v1/admin/events?format=jsonl").await;
    let lines: Vec<Value> = (lines.as_str().expect("lines").lines())
        .map(|line| serde_json::from_str(line).expect("JSON"))
        .collect();
    assert_eq!((lines.len(), &lines[0]["user"]), (2, &json!("alice")));
    let (_, csv) = api
        .get(READER, "/v1/admin/events?format=csv&limit=1000")
        .await;
    let csv = csv.as_str().expect("a text");
    assert!(
        csv.starts_with("at,event,address,user,rule,attempt,details\r\n"),
        "{csv}"
    );
    assert!(csv.contains("\"'=cmd|' /c calc'!a0\""), "{csv}");
    assert!(!csv.contains(",\"=cmd"), "{csv}");
    for query in [
        "?limit=0",
        "?limit=1001",
        "?format=xml",
        "?no=1",
        "?limit=x",
    ] {
        let (status, _) = api.get(READER, &format!("/v1/admin/events{query}")).await;
        assert!(status == 400 || status == 422, "{query}");
    }
}

#[tokio::test]
async fn sealed_users_are_opened_for_operators() {
    let secret = "32 random bytes that only the app has";
    let start = async |opens: bool| {
        let limiter = LoginLimiter::new(Policy::default(), MemoryStore::new());
        Api::start_showing(
            limiter,
            UserDisplay::sealed(secret).expect("a display"),
            |server| match opens {
                true => server.with_sealer(Sealer::new(secret).expect("a sealer")),
                false => server,
            },
        )
        .await
    };
    for opens in [true, false] {
        let api = start(opens).await;
        api.fail(HOME, "alice", 5).await;
        api.limiter.all_settled().await.expect("settled");
        let (_, page) = api.get(READER, "/v1/admin/blocks").await;
        let user = page["blocks"][0]["user"].as_str().expect("a user");
        assert_eq!(user == "alice", opens, "{user}");
        assert_eq!(user.starts_with("sealed:"), !opens, "{user}");
        let (_, listed) = api
            .get(READER, "/v1/admin/events?user=alice&event=settled")
            .await;
        assert_eq!(listed["events"].as_array().expect("events").len(), 5);
    }
}

#[tokio::test]
async fn the_overview_has_who_asks_and_how_the_fleet_is() {
    let redis = RedisServer::start();
    let store = redis.builder().connect(redis.url()).await.expect("a store");
    let limiter = LoginLimiter::new(Policy::default(), store)
        .live()
        .await
        .expect("live");
    let api = Api::start(limiter).await;
    api.fail(HOME, "alice", 2).await;
    assert!(api.limiter.observed().await);
    let status = loop {
        let (code, status) = api.get(READER, "/v1/admin/status").await;
        assert_eq!(code, 200);
        if status["instances"] == 1 {
            break status;
        }
        tokio::time::sleep(std::time::Duration::from_millis(20)).await;
    };
    assert_eq!(
        status["operator"],
        json!({"name": "rita", "roles": ["read"]})
    );
    assert_eq!(
        (&status["up_to_date"], &status["store"]["degraded"]),
        (&json!(1), &json!(false))
    );
    let (_, instances) = api.get(READER, "/v1/admin/instances").await;
    assert_eq!(instances["instances"][0]["version"], 0);
    let (_, activity) = api.get(READER, "/v1/admin/activity").await;
    let minutes = activity["minutes"].as_array().expect("minutes");
    let failures: u64 = minutes
        .iter()
        .filter_map(|minute| minute["failures"].as_u64())
        .sum();
    assert_eq!(failures, 2);
    for path in ["/v1/admin/busiest?count=5", "/v1/admin/wrong-blocks"] {
        assert_eq!(api.get(READER, path).await.0, 200, "{path}");
    }
    assert_eq!(api.get(READER, "/v1/admin/busiest?count=0").await.0, 422);
}

#[tokio::test]
async fn a_store_that_fails_is_a_503_and_admits_nothing() {
    let mut redis = RedisServer::start();
    let [api] = fleet(&redis).await;
    redis.kill();
    let body = json!({"address": HOME, "user": "alice"});
    for (token, path) in [(super::SHOP, "/v1/attempts"), (super::SHOP, "/v1/check")] {
        let (status, problem) = api.post(token, path, &body).await;
        assert_eq!(status, 503, "{problem}");
    }
    assert_eq!(api.get(READER, "/v1/admin/blocks").await.0, 503);
    let body = json!({"address": HOME, "reason": "x"});
    assert_eq!(api.post(OPERATOR, "/v1/admin/unblock", &body).await.0, 503);
    // What is known without the store is shown: a console has to show the outage.
    let (status, state) = api.get(READER, "/v1/admin/status").await;
    assert_eq!(
        (status, &state["instances"]),
        (200, &Value::Null),
        "{state}"
    );
}

/// Reads a text as a spreadsheet does whose list separator is this one, and returns its cells.
fn cells(csv: &str, separator: char) -> Vec<Vec<String>> {
    let script = "import csv, json, sys, io; \
                  text = io.TextIOWrapper(sys.stdin.buffer, 'utf-8', newline=''); \
                  json.dump(list(csv.reader(text, delimiter=sys.argv[1])), sys.stdout)";
    let mut python = std::process::Command::new("python3")
        .args(["-c", script, &separator.to_string()])
        .stdin(std::process::Stdio::piped())
        .stdout(std::process::Stdio::piped())
        .spawn()
        .expect("python3");
    let mut input = python.stdin.take().expect("its input");
    std::io::Write::write_all(&mut input, csv.as_bytes()).expect("written");
    drop(input);
    let output = python.wait_with_output().expect("its output");
    serde_json::from_slice(&output.stdout).expect("JSON")
}

#[tokio::test]
async fn no_list_separator_makes_a_formula_of_a_name() {
    let api = Api::memory().await;
    let names = [
        "=1+1",
        "+1",
        "-1",
        "@sum(a1)",
        "a;=1+1",
        "a\";=2;@x",
        "a\t=3",
        "a\r=4",
        "a\n-5",
        "a; +6",
        "a\",\"=7",
        "\"=8",
        "'=9",
        "a;\"=10",
    ];
    for (i, name) in names.iter().enumerate() {
        api.fail(&format!("192.0.2.{i}"), name, 1).await;
    }
    assert!(api.limiter.observed().await);
    let path = "/v1/admin/events?format=csv&event=settled";
    let (_, csv) = api.get(READER, path).await;
    let csv = csv.as_str().expect("a text");
    for separator in [',', ';', '\t'] {
        for cell in cells(csv, separator).iter().flatten() {
            let start = cell.trim_start_matches(|c: char| c == '"' || c.is_whitespace());
            assert!(
                !start.starts_with(['=', '+', '-', '@']),
                "{separator:?} {cell:?}"
            );
        }
    }
    // Each name is one cell, and is the name once the apostrophes are taken out.
    let rows = cells(csv, ',');
    assert_eq!(rows.len(), 1 + names.len());
    for (row, name) in rows[1..].iter().rev().zip(names) {
        assert_eq!(row.len(), 7, "{row:?}");
        // Control characters are not shown.
        let shown: String = name.chars().filter(|c| !c.is_control()).collect();
        assert_eq!(row[3].replace('\'', ""), shown.replace('\'', ""), "{row:?}");
    }
}
