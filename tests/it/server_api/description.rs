//! The OpenAPI document.

use std::{env, fs, path::Path};

use super::Api;

#[tokio::test]
async fn the_document_in_the_repository_is_the_one_that_is_served() {
    let api = Api::memory().await;
    let request = api.request("GET", "/v1/openapi.json");
    let served = request
        .send()
        .await
        .expect("an answer")
        .text()
        .await
        .expect("a text")
        + "\n";
    let path = Path::new(env!("CARGO_MANIFEST_DIR")).join("docs/openapi.json");
    if env::var_os("UPDATE_OPENAPI").is_some() {
        fs::write(&path, &served).expect("written");
    }
    let kept = fs::read_to_string(&path).unwrap_or_default();
    assert!(
        kept == served,
        "docs/openapi.json is out of date: run `UPDATE_OPENAPI=1 cargo test --test it server_api::description`"
    );
    let document: serde_json::Value = serde_json::from_str(&kept).expect("JSON");
    assert!(
        document["openapi"]
            .as_str()
            .is_some_and(|version| version.starts_with("3.1"))
    );
}
