//! The examples, run as separate processes and tested over HTTP.

use serde_json::json;

use crate::support::{RedisServer, client::client, example::Example};

#[tokio::test]
async fn the_axum_example_behaves_as_its_page_describes() {
    let redis = RedisServer::start();
    let url = redis.url();
    for environment in [vec![], vec![("REDIS_URL", url.as_str())]] {
        let example = Example::start("axum", &environment);
        let login = async |user: &str, password: &str| {
            example
                .post("/login", json!({"username": user, "password": password}))
                .await
        };
        let code = async |user: &str, code: &str| {
            example
                .post("/login/mfa", json!({"username": user, "code": code}))
                .await
        };
        assert_eq!(login("user", "correct-horse").await.0, 200);
        assert_eq!(
            login("mfa-user", "battery-staple").await,
            (200, json!({"mfa": "required"}))
        );
        assert_eq!(code("mfa-user", "123456").await.0, 200);
        let (status, wrong) = login("user", "guess").await;
        let unknown = login("nobody", "guess").await;
        assert_eq!((status, &wrong), (unknown.0, &unknown.1));
        assert_eq!(status, 401);
        for _ in 0..4 {
            assert_eq!(login("USER ", "guess").await.0, 401);
        }
        let (status, problem) = login("user", "correct-horse").await;
        assert_eq!((status, &problem["reason"]), (429, &json!("blocked")));
        for _ in 0..5 {
            assert_eq!(code("mfa-user", "000000").await.0, 401);
        }
        assert_eq!(login("mfa-user", "battery-staple").await.0, 429);
        let page = client()
            .get(&example.url)
            .send()
            .await
            .unwrap()
            .text()
            .await
            .unwrap();
        assert!(page.contains("<span id=\"left\">14</span>"), "{page}");
    }
}

#[tokio::test]
async fn the_axum_example_trusts_the_configured_proxies() {
    let behind = Example::start("axum", &[("TRUSTED_PROXIES", "127.0.0.0/8, 10.0.0.0/8")]);
    let direct = Example::start("axum", &[]);
    for (example, blocked) in [(&behind, false), (&direct, true)] {
        let mut last = 0;
        for i in 0..6 {
            let response = client()
                .post(format!("{}/login", example.url))
                .header("x-forwarded-for", format!("203.0.113.{i}"))
                .json(&json!({"username": "user", "password": "guess"}))
                .send()
                .await
                .unwrap();
            last = response.status().as_u16();
        }
        assert_eq!(last == 429, blocked);
    }
}

#[tokio::test]
async fn the_form_example_refuses_with_a_page() {
    let example = Example::start("form", &[]);
    let post = async |email: &str, password: &str| {
        let form = format!("email={email}&password={password}");
        let request = client()
            .post(&example.url)
            .header("accept", "text/html,*/*;q=0.8")
            .header("content-type", "application/x-www-form-urlencoded");
        let response = request.body(form).send().await.unwrap();
        (response.status().as_u16(), response.text().await.unwrap())
    };
    assert_eq!(post("user@example.com", "correct-horse").await.0, 200);
    for _ in 0..4 {
        assert!(
            post("user@example.com", "guess")
                .await
                .1
                .contains("Attempts left")
        );
    }
    let (status, last) = post("user@example.com", "guess").await;
    assert!(
        status == 401 && last.contains("blocked for 1 day"),
        "{last}"
    );
    // By the layer, and by the handler for an alias: the same page, but for its nonce and its seconds.
    for user in ["user@example.com", "user%2Bx@example.com"] {
        let (status, page) = post(user, "correct-horse").await;
        assert_eq!(status, 429, "{user}");
        for text in [
            "<h1>Too many failed attempts</h1>",
            "<strong>1 day</strong>",
        ] {
            assert!(page.contains(text), "{user}: {page}");
        }
    }
}

#[tokio::test]
async fn the_hyper_example_guards_basic_authentication() {
    let example = Example::start("hyper", &[]);
    let get = async |password: Option<&str>, http2: bool| {
        let mut client = reqwest::Client::builder().no_proxy();
        if http2 {
            client = client.http2_prior_knowledge();
        }
        let mut request = client.build().unwrap().get(&example.url);
        if let Some(password) = password {
            request = request.basic_auth("user", Some(password));
        }
        request.send().await.unwrap().status().as_u16()
    };
    assert_eq!(get(Some("correct-horse"), true).await, 200);
    for i in 0..5 {
        assert_eq!(get(None, false).await, 401);
        assert_eq!(get(Some("guess"), i % 2 == 0).await, 401);
    }
    assert_eq!(get(Some("correct-horse"), false).await, 429);
}

#[tokio::test]
async fn the_mfa_example_gives_five_codes_in_all() {
    let example = Example::start("mfa", &[]);
    let mut codes = 0;
    let mut session = String::new();
    for _ in 0..8 {
        let body = json!({"username": "user", "password": "correct-horse"});
        let (_, answer) = example.post("/password", body).await;
        if let Some(new) = answer["session"].as_str() {
            session = new.to_owned();
        }
        let code = client()
            .post(format!("{}/code", example.url))
            .header("session", &session);
        let response = code.json(&json!({"code": "000000"})).send().await.unwrap();
        codes += u32::from(response.status() == 401);
    }
    assert_eq!(codes, 5);
}

#[tokio::test]
async fn the_custom_extractor_example_believes_the_edge_alone() {
    let example = Example::start("custom_extractor", &[]);
    let post = async |key: &str, user: &str| {
        let request = client().post(format!("{}/login/{user}", example.url));
        let request = request
            .header("x-edge-key", key)
            .header("x-edge-client", "203.0.113.7");
        let response = request.send().await.unwrap();
        (response.status().as_u16(), response.text().await.unwrap())
    };
    assert_eq!(post("wrong", "alice").await.0, 400);
    for user in ["alice", "%61lice", "Alice", "alic%65", "alice"] {
        assert_eq!(post("secret", user).await.0, 401);
    }
    let (status, text) = post("secret", "alice").await;
    assert_eq!(
        (status, text.as_str()),
        (429, "too many failed attempts, try again in 1 day\n")
    );
}

#[test]
fn the_tonic_example_shows_a_client_that_is_refused() {
    let example = Example::start("tonic", &[]);
    let said: Vec<_> = example.said.iter().take(7).collect();
    assert!(
        said[..5]
            .iter()
            .all(|line| line.ends_with("wrong user or password")),
        "{said:?}"
    );
    assert!(said[5].contains("come back in Some(86400s)"), "{said:?}");
    assert!(said[6].contains("Still serving"), "{said:?}");
}

#[tokio::test]
async fn pages_that_do_not_exist_and_other_methods_block_nobody() {
    let example = Example::start("axum", &[]);
    for path in ["/favicon.ico", "/login", "/login/mfa"] {
        for _ in 0..30 {
            let response = client().get(format!("{}{path}", example.url)).send().await;
            assert!(response.unwrap().status().is_client_error());
        }
    }
    // What serde would read into the handler's struct, and the layer can't tell a user from.
    for _ in 0..30 {
        assert_eq!(
            example.post("/login", json!(["user", "guess"])).await.0,
            400
        );
    }
    let login = json!({"username": "user", "password": "correct-horse"});
    assert_eq!(example.post("/login", login).await.0, 200);
}
