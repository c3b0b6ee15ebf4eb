//! Who may use which route.

use serde_json::{Value, json};
use tower_login_rate_limit::server::{Operator, Role, Server, Unauthorized, authorize_fn};

use super::{Api, OPERATOR, READER, SHOP};
use crate::log::Log;

/// The routes of the description, by the role that they take.
async fn routes(api: &Api) -> Vec<(String, String, Option<Role>)> {
    let (_, description) = Api::send(api.request("GET", "/v1/openapi.json")).await;
    let mut routes = Vec::new();
    for (path, item) in description["paths"].as_object().expect("paths") {
        for (method, operation) in item.as_object().expect("methods") {
            let is_read = method == "get"
                || path.ends_with("/ruleset/check")
                || path.ends_with("/ruleset/preview")
                || path.ends_with("/try");
            let role = match &**path {
                "/v1/openapi.json" => None,
                path if !path.starts_with("/v1/admin/") => Some(Role::Decide),
                _ if is_read => Some(Role::Read),
                _ => Some(Role::Operate),
            };
            assert_eq!(
                operation.get("security").is_some(),
                role.is_none(),
                "{path}"
            );
            let path = path.replace(['{', '}'], "");
            routes.push((method.to_uppercase(), path, role));
        }
    }
    assert!(routes.len() > 25, "{routes:?}");
    routes
}

#[tokio::test]
async fn each_route_takes_its_role() {
    let api = Api::memory().await;
    let operators = [
        (None, &[][..]),
        (Some("wrong-0123456789abcdef"), &[]),
        (Some(SHOP), &[Role::Decide]),
        (Some(READER), &[Role::Read]),
        (Some(OPERATOR), &[Role::Read, Role::Operate]),
    ];
    for (method, path, role) in routes(&api).await {
        let Some(role) = role else { continue };
        for (token, roles) in operators {
            let mut request = api.request(&method, &path);
            if let Some(token) = token {
                request = request.bearer_auth(token);
            }
            let response = request.send().await.expect("an answer");
            let status = response.status().as_u16();
            match (roles, roles.contains(&role)) {
                ([], _) => {
                    assert_eq!(status, 401, "{method} {path}");
                    assert!(response.headers().contains_key("www-authenticate"));
                }
                (_, false) => assert_eq!(status, 403, "{method} {path} {roles:?}"),
                (_, true) => assert!(![401, 403].contains(&status), "{method} {path} {status}"),
            }
        }
    }
}

#[tokio::test]
async fn a_wrong_and_a_missing_token_are_answered_alike() {
    let api = Api::memory().await;
    let answer = async |authorization: &str| {
        let request = api.request("GET", "/v1/admin/blocks");
        let request = request.header("authorization", authorization);
        Api::send(request).await
    };
    let missing = Api::send(api.request("GET", "/v1/admin/blocks")).await;
    let near = format!("Bearer {}x", &READER[..READER.len() - 1]);
    for authorization in ["Bearer x", "Basic cmVhZDpyZWFk", "Bearer", &near] {
        assert_eq!(answer(authorization).await, missing);
    }
}

#[tokio::test]
async fn an_app_authorizes_in_its_own_way() {
    let authorize = authorize_fn(|request: &http::request::Parts| {
        let name = request.headers.get("x-user").cloned();
        async move {
            match name.as_ref().and_then(|name| name.to_str().ok()) {
                Some("down") => Err(Unauthorized::Unavailable),
                Some(name) => Ok(Operator::new(name, [Role::Operate])),
                None => Err(Unauthorized::Unknown),
            }
        }
    });
    let limiter = Api::memory().await.limiter;
    let app = Server::new(limiter.clone(), authorize)
        .expect("a server")
        .router();
    let api = Api::serve(limiter, app).await;
    let note = async |user: Option<&str>| {
        let body = json!({"user": "alice", "note": "phoned"});
        let mut request = api.request("POST", "/v1/admin/notes").json(&body);
        if let Some(user) = user {
            request = request.header("x-user", user);
        }
        Api::send(request).await.0
    };
    assert_eq!(note(Some("zoe@example.org")).await, 200);
    assert_eq!(note(None).await, 401);
    assert_eq!(note(Some("down")).await, 503);
    // A name that would forge a line of the audit.
    assert_eq!(note(Some(&"n".repeat(201))).await, 403);
    // Without a feed there are no events to show.
    let request = api
        .request("GET", "/v1/admin/events")
        .header("x-user", "zoe");
    let (status, problem): (u16, Value) = Api::send(request).await;
    assert_eq!(status, 404, "{problem}");
}

#[tokio::test]
async fn a_wrong_token_is_logged_and_not_shown() {
    let (log, _guard) = Log::start();
    let api = Api::memory().await;
    for i in 0..100 {
        let wrong = format!("guess-{i}-0123456789abcdef");
        let path = "/v1/attempts/secret-token/outcome";
        assert_eq!(
            api.post(&wrong, path, &json!({"outcome": "success"}))
                .await
                .0,
            401
        );
    }
    assert_eq!(
        log.count("without a valid authorization"),
        3,
        "{}",
        log.text()
    );
    assert_eq!(
        log.count("/v1/attempts/{token}/outcome"),
        3,
        "{}",
        log.text()
    );
    for secret in ["guess-", "secret-token"] {
        assert_eq!(log.count(secret), 0, "{}", log.text());
    }
}
