//! Which routes there are, and who may use them.

use std::sync::Arc;

use axum::{
    Extension, Router,
    extract::{DefaultBodyLimit, MatchedPath, Request, State},
    middleware::{Next, from_fn_with_state, map_response},
    response::{IntoResponse, Response},
    routing::{MethodRouter, any, get, post, put},
};
use http::{
    HeaderValue, StatusCode,
    header::{CACHE_CONTROL, X_CONTENT_TYPE_OPTIONS},
};
use http_body::Body as _;

use super::{
    Operator, Role, Shared, Unauthorized, attempts, auth_request, openapi,
    operate::{self, access_rules, blocks, changes, known, live, overview, preview, ruleset},
    problem::Problem,
    settle,
    shares::{Bounds, Shares},
};
use crate::logging;

/// How long a body may be, in bytes.
const MAX_BODY: usize = 64 * 1024;
/// The same for a ruleset, which may have access rules for 100,000 networks.
const MAX_RULESET: usize = 16 * 1024 * 1024;
/// How many bodies longer than [`MAX_BODY`] are read at a time.
const MAX_LARGE: Bounds = Bounds { total: 4, each: 2 };

pub(super) fn router(server: Shared) -> Router {
    let large = Arc::new(Shares::new(MAX_LARGE));
    let takes_ruleset = |route: MethodRouter<Shared>| {
        route
            .layer(DefaultBodyLimit::max(MAX_RULESET))
            .route_layer(from_fn_with_state(Arc::clone(&large), one_of_few))
    };
    let decide = Router::new()
        .route("/v1/attempts", post(attempts::reserve))
        .route("/v1/attempts/{token}/outcome", post(settle::settle))
        .route("/v1/check", post(attempts::check))
        .route("/v1/auth-request", get(auth_request::reserve))
        .route(
            "/v1/auth-request/outcome",
            get(auth_request::settle_by_get).post(auth_request::settle),
        )
        .route("/v1/ext-authz", any(auth_request::ext_authz))
        .route("/v1/ext-authz/", any(auth_request::ext_authz))
        .route("/v1/ext-authz/{*path}", any(auth_request::ext_authz));
    let read = Router::new()
        .route("/v1/admin/status", get(overview::status))
        .route("/v1/admin/instances", get(overview::instances))
        .route("/v1/admin/busiest", get(overview::busiest))
        .route("/v1/admin/wrong-blocks", get(overview::wrong_blocks))
        .route("/v1/admin/activity", get(overview::activity))
        .route("/v1/admin/blocks", get(blocks::list))
        .route("/v1/admin/block-counts", get(blocks::counts))
        .route("/v1/admin/explain", get(blocks::explain))
        .route("/v1/admin/known-addresses", get(known::list))
        .route("/v1/admin/ruleset", get(ruleset::read))
        .route("/v1/admin/ruleset/history", get(ruleset::history))
        .route(
            "/v1/admin/ruleset/check",
            takes_ruleset(post(ruleset::check)),
        )
        .route(
            "/v1/admin/ruleset/preview",
            takes_ruleset(post(preview::preview)),
        )
        .route("/v1/admin/access-rules/try", post(access_rules::attempt))
        .route("/v1/admin/events", get(operate::events::list))
        .route("/v1/admin/events/live", get(live::follow));
    let operate = Router::new()
        .route("/v1/admin/unblock", post(changes::unblock))
        .route("/v1/admin/forgive", post(changes::forgive))
        .route("/v1/admin/block", post(changes::block))
        .route("/v1/admin/notes", post(changes::note))
        .route("/v1/admin/known-addresses/forget", post(known::forget))
        .route("/v1/admin/ruleset", takes_ruleset(put(ruleset::replace)))
        .route("/v1/admin/ruleset/rollback", post(ruleset::roll_back))
        .route(
            "/v1/admin/access-rules/{name}",
            put(access_rules::put).delete(access_rules::remove),
        );
    let open = Router::new().route("/v1/openapi.json", get(openapi::document));
    Router::new()
        .merge(only_for(Role::Decide, decide, &server))
        .merge(only_for(Role::Read, read, &server))
        .merge(only_for(Role::Operate, operate, &server))
        .merge(open)
        .fallback(async || Problem::not_found("there is no such route: see /v1/openapi.json"))
        .method_not_allowed_fallback(async || {
            let detail = "this route has other methods: see /v1/openapi.json";
            Problem::new(StatusCode::METHOD_NOT_ALLOWED, detail)
        })
        .layer(DefaultBodyLimit::max(MAX_BODY))
        .layer(map_response(with_headers))
        .with_state(server)
}

/// Routes that only operators with this role may use.
fn only_for(role: Role, routes: Router<Shared>, server: &Shared) -> Router<Shared> {
    routes.route_layer(from_fn_with_state((server.clone(), role), authorized))
}

async fn authorized(
    State((server, role)): State<(Shared, Role)>,
    path: MatchedPath,
    request: Request,
    next: Next,
) -> Response {
    let (mut parts, body) = request.into_parts();
    let operator = match server.authorize.authorize(&parts).await {
        Ok(operator) => operator,
        Err(Unauthorized::Unavailable) => {
            let detail = "the authorization can't be verified at present: repeat the request";
            return Problem::new(StatusCode::SERVICE_UNAVAILABLE, detail).into_response();
        }
        Err(Unauthorized::Unknown) => {
            logging::unauthorized(path.as_str(), &server.unauthorized);
            let detail = "the request has no valid authorization: send a token of an operator";
            return Problem::new(StatusCode::UNAUTHORIZED, detail).into_response();
        }
    };
    if !operator.may(role) {
        let detail = format!("this takes the role {}", role.as_str());
        return Problem::new(StatusCode::FORBIDDEN, detail).into_response();
    }
    parts.extensions.insert(operator);
    next.run(Request::from_parts(parts, body)).await
}

/// Bounds how many large bodies are in memory, before any of a body is read. The share is in the extensions too, for what
/// goes on after the client has gone away.
async fn one_of_few(
    State(large): State<Arc<Shares>>,
    Extension(operator): Extension<Operator>,
    mut request: Request,
    next: Next,
) -> Response {
    let length = request.body().size_hint().upper();
    if length.is_some_and(|length| length <= MAX_BODY as u64) {
        return next.run(request).await;
    }
    let Ok(share) = large.acquire(&operator, "rulesets are being read") else {
        let detail = "other large rulesets are being read: repeat the request";
        return Problem::new(StatusCode::SERVICE_UNAVAILABLE, detail).into_response();
    };
    let share = Arc::new(share);
    request.extensions_mut().insert(Arc::clone(&share));
    let response = next.run(request).await;
    drop(share);
    response
}

/// Answers are about people, and must not be kept or interpreted.
async fn with_headers(mut response: Response) -> Response {
    let headers = response.headers_mut();
    headers.insert(CACHE_CONTROL, HeaderValue::from_static("no-store"));
    headers.insert(X_CONTENT_TYPE_OPTIONS, HeaderValue::from_static("nosniff"));
    response
}
