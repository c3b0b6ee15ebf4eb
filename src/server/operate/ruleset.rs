//! The ruleset of the fleet: read, checked, previewed, replaced, rolled back.

use axum::{
    Extension,
    extract::State,
    response::{IntoResponse, Response},
};
use http::{
    HeaderMap, HeaderValue, StatusCode,
    header::{ETAG, IF_MATCH},
};
use serde::{Deserialize, Serialize};
use serde_json::Value;
use utoipa::ToSchema;

use super::{
    super::{
        Operator, Shared,
        extract::Body,
        openapi::{ChangeProblem, Problems, VersionProblem},
        problem::Problem,
        schema,
    },
    author,
};
use crate::{
    PolicyError, Standard,
    live::{Ruleset, Version},
};

/// Show the ruleset
///
/// The newest version, with its number as `ETag`. Version 0 is what the process was started with.
#[utoipa::path(
    get, path = "/v1/admin/ruleset", tag = "ruleset", operation_id = "ruleset",
    responses(
        (status = 200, description = "The newest version", body = schema::Version, headers(("ETag" = String, description = "The number of the version, in quotes"))),
        Problems,
    ),
)]
pub(in super::super) async fn read(State(server): State<Shared>) -> Result<Response, Problem> {
    let version = server.admin.ruleset().await?;
    let tag = tag(version.version);
    Ok((tag, server.answer(&version)?).into_response())
}

/// A new ruleset.
#[derive(Debug, Deserialize, ToSchema)]
#[serde(deny_unknown_fields)]
#[schema(example = json!({"ruleset": {"policy": {}}, "reason": "back to the default"}))]
pub(in super::super) struct ReplaceRequest {
    /// The policy, the access rules and perhaps a canary, as in files.
    #[schema(value_type = schema::Ruleset)]
    ruleset: Ruleset,
    /// Why.
    #[schema(schema_with = schema::reason)]
    reason: String,
}

/// The number of the new version.
#[derive(Serialize, ToSchema)]
#[serde(deny_unknown_fields)]
pub(in super::super) struct NewVersion {
    /// One more than that of the version before.
    version: u64,
}

/// Replace the ruleset
///
/// If the version in `If-Match` is the newest. It is in force on every instance within a second.
#[utoipa::path(
    put, path = "/v1/admin/ruleset", tag = "ruleset", operation_id = "replace_ruleset",
    params(("If-Match" = Option<String>, Header, nullable = false, description = "The `ETag` of the version that is replaced; required", pattern = "^\"[0-9]{1,9}\"$")),
    request_body = ReplaceRequest,
    responses((status = 200, description = "The new version", body = NewVersion), Problems, ChangeProblem, VersionProblem),
)]
pub(in super::super) async fn replace(
    State(server): State<Shared>,
    Extension(operator): Extension<Operator>,
    headers: HeaderMap,
    Body(request): Body<ReplaceRequest>,
) -> Result<Response, Problem> {
    let (expected, author) = (expected(&headers)?, author(&operator, &request.reason)?);
    let replaced = server
        .admin
        .replace_ruleset(expected, request.ruleset, &author);
    server.answer_version(replaced.await?)
}

/// Which version to go back to.
#[derive(Debug, Deserialize, ToSchema)]
#[serde(deny_unknown_fields)]
#[schema(example = json!({"to": 1, "reason": "too strict"}))]
pub(in super::super) struct RollBackRequest {
    /// Its number.
    to: u64,
    /// Why.
    #[schema(schema_with = schema::reason)]
    reason: String,
}

/// Roll back
///
/// Writes the policy and the canary of an earlier version again. Access rules stay as they are.
#[utoipa::path(
    post, path = "/v1/admin/ruleset/rollback", tag = "ruleset", operation_id = "roll_back",
    params(("If-Match" = Option<String>, Header, nullable = false, description = "The `ETag` of the newest version; required", pattern = "^\"[0-9]{1,9}\"$")),
    request_body = RollBackRequest,
    responses((status = 200, description = "The new version", body = NewVersion), Problems, ChangeProblem, VersionProblem),
)]
pub(in super::super) async fn roll_back(
    State(server): State<Shared>,
    Extension(operator): Extension<Operator>,
    headers: HeaderMap,
    Body(request): Body<RollBackRequest>,
) -> Result<Response, Problem> {
    let (expected, author) = (expected(&headers)?, author(&operator, &request.reason)?);
    let version = server
        .admin
        .roll_back(expected, request.to, &author)
        .await?;
    server.answer_version(version)
}

/// The last versions.
#[derive(Serialize, ToSchema)]
#[serde(deny_unknown_fields)]
pub(in super::super) struct History {
    /// The newest first.
    #[schema(value_type = Vec<schema::Version>)]
    versions: Vec<Version>,
}

/// List versions
#[utoipa::path(
    get, path = "/v1/admin/ruleset/history", tag = "ruleset", operation_id = "history",
    responses((status = 200, description = "The last versions", body = History), Problems),
)]
pub(in super::super) async fn history(State(server): State<Shared>) -> Result<Response, Problem> {
    let versions = server.admin.history().await?;
    server.answer(&History { versions })
}

/// A ruleset that may be invalid.
#[derive(Debug, Deserialize, ToSchema)]
#[serde(deny_unknown_fields)]
pub(in super::super) struct CheckRequest {
    /// As in files, perhaps with mistakes.
    #[schema(schema_with = schema::anything)]
    ruleset: Value,
}

/// What is to be said of a ruleset.
#[derive(Default, Serialize, ToSchema)]
#[serde(deny_unknown_fields)]
pub(in super::super) struct Checked {
    /// Whether it could be put in force.
    valid: bool,
    /// What is wrong with it.
    error: Option<Mistake>,
    /// What is different from the newest version, a line each.
    differences: Vec<String>,
    /// Its rules in words.
    words: Vec<RuleWords>,
    /// What does not conform to NIST SP 800-63B, PCI DSS or OWASP.
    findings: Vec<String>,
}

#[derive(Debug, PartialEq, Serialize, ToSchema)]
#[serde(deny_unknown_fields)]
struct Mistake {
    /// The part that is wrong, as in `address.limit`; empty if it is not known.
    #[serde(rename = "where")]
    part: String,
    /// Why, and what to write.
    reason: String,
}

#[derive(Serialize, ToSchema)]
#[serde(deny_unknown_fields)]
struct RuleWords {
    /// The name of the rule.
    rule: String,
    /// What it does, in a sentence.
    words: String,
}

/// Check a ruleset
///
/// As it is typed: whether it is valid, what is different from the newest version, and what it means.
#[utoipa::path(
    post, path = "/v1/admin/ruleset/check", tag = "ruleset", operation_id = "check_ruleset",
    request_body = CheckRequest,
    responses((status = 200, description = "What is to be said of it", body = Checked), Problems),
)]
pub(in super::super) async fn check(
    State(server): State<Shared>,
    Body(request): Body<CheckRequest>,
) -> Result<Response, Problem> {
    let current = server.admin.ruleset().await?.ruleset;
    let checker = Shared::clone(&server);
    let check = move || match checker.parse(request.ruleset) {
        Err(mistake) => Checked {
            error: Some(mistake),
            ..Checked::default()
        },
        Ok(ruleset) => Checked::valid(&current, &ruleset),
    };
    server.answer(&server.checking(check).await?)
}

impl Checked {
    fn valid(current: &Ruleset, ruleset: &Ruleset) -> Self {
        let rules = ruleset.policy.rules().iter();
        let standards = [Standard::Nist, Standard::Pci, Standard::Owasp];
        let findings = standards.into_iter().flat_map(|s| ruleset.policy.check(s));
        Self {
            valid: true,
            error: None,
            differences: current.differences(ruleset),
            words: rules
                .map(|rule| RuleWords {
                    rule: rule.name().to_owned(),
                    words: rule.to_words(),
                })
                .collect(),
            findings: findings.map(|finding| finding.to_string()).collect(),
        }
    }
}

impl super::super::Inner {
    fn parse(&self, ruleset: Value) -> Result<Ruleset, Mistake> {
        let ruleset: Ruleset = serde_json::from_value(ruleset).map_err(|error| {
            // An invalid policy names the part, in a text: errors of serde are no more than that.
            let text = error.to_string();
            let named = text.strip_prefix("invalid policy: ");
            match named.and_then(|named| named.split_once(": ")) {
                Some((part, reason)) => Mistake::new(part, reason),
                None => Mistake::new("", &text),
            }
        })?;
        let checked = self.limiter.check_ruleset(&ruleset);
        checked.map_err(|error: PolicyError| Mistake::new(error.part(), error.reason()))?;
        Ok(ruleset)
    }

    pub(super) fn answer_version(&self, version: u64) -> Result<Response, Problem> {
        Ok((tag(version), self.answer(&NewVersion { version })?).into_response())
    }
}

impl Mistake {
    fn new(part: &str, reason: &str) -> Self {
        Self {
            part: part.to_owned(),
            reason: reason.to_owned(),
        }
    }
}

fn tag(version: u64) -> HeaderMap {
    let mut headers = HeaderMap::new();
    // Digits and quotes are a valid value.
    if let Ok(value) = HeaderValue::try_from(format!("\"{version}\"")) {
        headers.insert(ETAG, value);
    }
    headers
}

/// The version that a change expects.
fn expected(headers: &HeaderMap) -> Result<u64, Problem> {
    let mut values = headers.get_all(IF_MATCH).iter();
    let Some(value) = values.next() else {
        return Err(Problem::new(
            StatusCode::PRECONDITION_REQUIRED,
            "send the ETag of the version that you have read as If-Match, so that no change of another operator is \
             lost",
        ));
    };
    let version = value.to_str().ok().filter(|_| values.next().is_none());
    let version = version.and_then(|text| text.strip_prefix('"')?.strip_suffix('"')?.parse().ok());
    version.ok_or_else(|| {
        Problem::bad_request(
            "If-Match: send the ETag of one version as it is, like \"3\" in quotes",
        )
    })
}
