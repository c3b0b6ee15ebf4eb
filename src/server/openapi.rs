//! The description of the API.

use std::sync::LazyLock;

use axum::response::{IntoResponse, Response};
use http::header::CONTENT_TYPE;
use utoipa::{
    IntoResponses, Modify, OpenApi,
    openapi::security::{Http, HttpAuthScheme, SecurityScheme},
};

use super::{
    attempts, auth_request,
    operate::{access_rules, blocks, changes, events, known, live, overview, preview, ruleset},
    schema::Problem,
    settle,
};

/// What any request may be answered with.
#[derive(IntoResponses)]
#[allow(dead_code)] // a description
pub(super) enum Problems {
    /// The body, the query or a header can't be read
    #[response(status = 400, content_type = "application/problem+json")]
    BadRequest(Problem<'static>),
    /// No valid authorization
    #[response(status = 401, content_type = "application/problem+json")]
    Unauthorized(Problem<'static>),
    /// The operator has another role
    #[response(status = 403, content_type = "application/problem+json")]
    Forbidden(Problem<'static>),
    /// The body is too long
    #[response(status = 413, content_type = "application/problem+json")]
    TooLong(Problem<'static>),
    /// The body is not declared as JSON
    #[response(status = 415, content_type = "application/problem+json")]
    NotJson(Problem<'static>),
    /// The content of the request is invalid. Nothing has changed.
    #[response(status = 422, content_type = "application/problem+json")]
    Invalid(Problem<'static>),
    /// The store failed: admit nothing, and repeat the request
    #[response(status = 503, content_type = "application/problem+json")]
    Unavailable(Problem<'static>),
}

/// What a request may be answered with that is carried out once.
#[derive(IntoResponses)]
#[allow(dead_code)] // a description
pub(super) enum DoneProblem {
    /// It has been done, or is being done. Nothing has changed.
    #[response(status = 409, content_type = "application/problem+json")]
    Done(Problem<'static>),
}

/// What a request may be answered with that holds something for a while.
#[derive(IntoResponses)]
#[allow(dead_code)] // a description
pub(super) enum ShareProblem {
    /// This operator holds as many as one may
    #[response(status = 429, content_type = "application/problem+json")]
    TooMany(Problem<'static>),
}

/// What a change of the ruleset may be answered with.
#[derive(IntoResponses)]
#[allow(dead_code)] // a description
pub(super) enum ChangeProblem {
    /// Another operator was faster. Nothing has changed.
    #[response(status = 412, content_type = "application/problem+json")]
    Overtaken(Problem<'static>),
}

/// What a change of a certain version may be answered with.
#[derive(IntoResponses)]
#[allow(dead_code)] // a description
pub(super) enum VersionProblem {
    /// `If-Match` is missing
    #[response(status = 428, content_type = "application/problem+json")]
    Unconditional(Problem<'static>),
}

#[derive(OpenApi)]
#[openapi(
    info(title = "Login rate limit", description = "Decisions on logins, and their administration."),
    paths(
        attempts::reserve, settle::settle, attempts::check,
        auth_request::reserve, auth_request::settle,
        auth_request::settle_by_get, auth_request::ext_authz,
        overview::status, overview::instances, overview::busiest, overview::wrong_blocks, overview::activity,
        blocks::list, blocks::counts, blocks::explain,
        changes::unblock, changes::forgive, changes::block, changes::note,
        known::list, known::forget,
        ruleset::read, ruleset::replace, ruleset::check,
        preview::preview, ruleset::history, ruleset::roll_back,
        access_rules::put, access_rules::remove, access_rules::attempt,
        events::list, live::follow,
        document,
    ),
    security(("token" = [])),
    modifiers(&Token),
)]
struct Api;

struct Token;

impl Modify for Token {
    fn modify(&self, api: &mut utoipa::openapi::OpenApi) {
        let bearer = SecurityScheme::Http(Http::new(HttpAuthScheme::Bearer));
        let components = api.components.get_or_insert_default();
        components.add_security_scheme("token", bearer);
    }
}

static TEXT: LazyLock<String> =
    LazyLock::new(|| Api::openapi().to_pretty_json().unwrap_or_default());

/// This document
#[utoipa::path(
    get, path = "/v1/openapi.json", tag = "description", operation_id = "describe", security(()),
    responses((status = 200, description = "This document", body = Object)),
)]
pub(super) async fn document() -> Response {
    ([(CONTENT_TYPE, "application/json")], TEXT.as_str()).into_response()
}
