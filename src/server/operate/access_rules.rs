//! Access rules: added, removed, tried.

use std::net::IpAddr;

use axum::{Extension, extract::State, response::Response};
use serde::{Deserialize, Serialize};
use serde_json::Value;
use utoipa::ToSchema;

use super::{
    super::{
        Operator, Shared,
        decision::{access_query, check_length, without_query},
        extract::{Body, Segment},
        openapi::{ChangeProblem, Problems},
        problem::Problem,
        schema,
    },
    author,
    ruleset::NewVersion,
};
use crate::{
    LoginLimiter, PolicyError,
    access::{AccessRule, AccessRules},
    clock::{Clock, SystemClock},
};

/// An access rule without its name: an action, and one of the conditions, or network and user together.
#[derive(Debug, Serialize, Deserialize, ToSchema)]
#[serde(deny_unknown_fields)]
#[schema(example = json!({"action": "deny", "user_agent": "sqlmap", "reason": "scans"}))]
pub(in super::super) struct AccessRuleRequest {
    /// `allow` or `deny`.
    #[schema(schema_with = schema::action)]
    action: String,
    /// The client's address is in this network.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    #[schema(schema_with = schema::optional_network)]
    network: Option<String>,
    /// The user is this one.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    user: Option<String>,
    /// The name of the user contains this.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    user_keyword: Option<String>,
    /// The `User-Agent` contains this.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    user_agent: Option<String>,
    /// The path is this one.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    path: Option<String>,
    /// The path is this one or below it.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    path_prefix: Option<String>,
    /// That any client can send what is allowed is accepted.
    #[serde(default, skip_serializing_if = "std::ops::Not::not")]
    forgeable: bool,
    /// When the rule ends.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    #[schema(format = DateTime)]
    expires: Option<String>,
    /// Why the rule exists, if that is not the reason of the change.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    note: Option<String>,
    /// Why it is changed.
    #[serde(skip_serializing)]
    #[schema(schema_with = schema::reason, required)]
    reason: String,
}

/// Add or replace an access rule
#[utoipa::path(
    put, path = "/v1/admin/access-rules/{name}", tag = "access rules", operation_id = "put_access_rule",
    params(("name" = String, Path, description = "The name of the rule", pattern = "^[A-Za-z0-9._-]{1,64}$")),
    request_body = AccessRuleRequest,
    responses((status = 200, description = "The new version of the ruleset", body = NewVersion), Problems, ChangeProblem),
)]
pub(in super::super) async fn put(
    State(server): State<Shared>,
    Extension(operator): Extension<Operator>,
    Segment(name): Segment,
    Body(request): Body<AccessRuleRequest>,
) -> Result<Response, Problem> {
    let author = author(&operator, &request.reason)?;
    let rule = named(name, serde_json::to_value(&request))?;
    let version = server.admin.add_access_rule(rule, &author).await?;
    server.answer_version(version)
}

/// The rule of this name, by the reader of files.
fn named(name: String, rule: serde_json::Result<Value>) -> Result<AccessRule, Problem> {
    let rule = rule.and_then(|mut rule| {
        rule["name"] = Value::String(name);
        serde_json::from_value(rule)
    });
    rule.map_err(|error| Problem::invalid(error.to_string()))
}

/// Why something is removed.
#[derive(Debug, Deserialize, ToSchema)]
#[serde(deny_unknown_fields)]
#[schema(example = json!({"reason": "over"}))]
pub(in super::super) struct RemoveRequest {
    /// Why.
    #[schema(schema_with = schema::reason)]
    reason: String,
}

/// Remove an access rule
#[utoipa::path(
    delete, path = "/v1/admin/access-rules/{name}", tag = "access rules", operation_id = "remove_access_rule",
    params(("name" = String, Path, description = "The name of the rule", pattern = "^[A-Za-z0-9._-]{1,64}$")),
    request_body = RemoveRequest,
    responses(
        (status = 200, description = "The new version of the ruleset", body = NewVersion),
        (status = 404, description = "There is no such rule", body = schema::Problem, content_type = "application/problem+json"),
        Problems, ChangeProblem,
    ),
)]
pub(in super::super) async fn remove(
    State(server): State<Shared>,
    Extension(operator): Extension<Operator>,
    Segment(name): Segment,
    Body(request): Body<RemoveRequest>,
) -> Result<Response, Problem> {
    let author = author(&operator, &request.reason)?;
    let current = server.admin.ruleset().await?;
    if current.ruleset.access.rule(&name).is_none() {
        return Err(Problem::not_found("there is no access rule of this name"));
    }
    let version = server.admin.remove_access_rule(&name, &author).await?;
    server.answer_version(version)
}

/// A request to try access rules with.
#[derive(Debug, Deserialize, ToSchema)]
#[serde(deny_unknown_fields)]
pub(in super::super) struct TryRequest {
    #[serde(default)]
    #[schema(schema_with = schema::optional_ip_address)]
    address: Option<IpAddr>,
    #[serde(default)]
    #[schema(max_length = 1_000)]
    user: Option<String>,
    #[serde(default)]
    #[schema(max_length = 1_000)]
    user_agent: Option<String>,
    #[serde(default)]
    #[schema(max_length = 2_000)]
    path: Option<String>,
    /// A rule that is not in force, to be tried with the others.
    #[serde(default)]
    #[schema(value_type = Option<schema::AccessRule>)]
    rule: Option<AccessRule>,
}

/// Which rules match.
#[derive(Serialize, ToSchema)]
#[serde(deny_unknown_fields)]
pub(in super::super) struct Tried {
    /// The rule that decides; `null` if the limits do.
    #[schema(value_type = Option<schema::AccessRule>)]
    decided_by: Option<AccessRule>,
    /// The rules that match and do not decide.
    #[schema(value_type = Vec<schema::AccessRule>)]
    overruled: Vec<AccessRule>,
    /// The rules that would match and have expired.
    #[schema(value_type = Vec<schema::AccessRule>)]
    expired: Vec<AccessRule>,
}

/// Try access rules
#[utoipa::path(
    post, path = "/v1/admin/access-rules/try", tag = "access rules", operation_id = "try_access_rules",
    request_body = TryRequest,
    responses((status = 200, description = "Which rules match", body = Tried), Problems),
)]
pub(in super::super) async fn attempt(
    State(server): State<Shared>,
    Body(request): Body<TryRequest>,
) -> Result<Response, Problem> {
    check_length("user", request.user.as_deref(), 1_000)?;
    check_length("user_agent", request.user_agent.as_deref(), 1_000)?;
    check_length("path", request.path.as_deref(), 2_000)?;
    let ruleset = server.admin.ruleset().await?.ruleset;
    let limiter = server.limiter.clone();
    let tried = server.checking(move || tried(&limiter, ruleset.access, request));
    server.answer(&tried.await??)
}

fn tried(
    limiter: &LoginLimiter,
    mut rules: AccessRules,
    request: TryRequest,
) -> Result<Tried, Problem> {
    let invalid = |error: PolicyError| Problem::invalid(error.to_string());
    if let Some(rule) = request.rule {
        rules = rules.with_rule(rule).map_err(invalid)?;
    }
    let own = limiter.clone();
    let rules = rules.with_normalizer(move |user| own.normalize(user).into_owned());
    let rules = rules.map_err(invalid)?;

    let user = request.user.as_deref().map(|user| limiter.normalize(user));
    let agent = request.user_agent.as_deref();
    let path = request.path.as_deref().map(without_query);
    let query = access_query(request.address, user.as_deref(), agent, path);
    let explanation = rules.explain(&query, SystemClock.now());
    let copies = |rules: &[&AccessRule]| rules.iter().copied().cloned().collect();
    Ok(Tried {
        decided_by: explanation.decides().cloned(),
        overruled: copies(explanation.overruled()),
        expired: copies(explanation.expired()),
    })
}
