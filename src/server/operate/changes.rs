//! Blocks lifted and made by hand, failures forgiven, notes.

use std::net::IpAddr;

use axum::{Extension, extract::State, response::Response};
use serde::{Deserialize, Serialize};
use utoipa::ToSchema;

use super::{
    super::{
        Operator, Shared,
        decision::check_length,
        extract::Body,
        openapi::{ChangeProblem, Problems},
        problem::Problem,
        schema,
    },
    author, subject,
};
use crate::{
    Period,
    admin::{Forgive, Unblock},
};

/// How many blocks one request lifts by their ids.
const MAX_IDS: usize = 1_000;

/// Which blocks to lift: by `id`, by `ids`, or by an address, a user, both of them, or a network.
#[derive(Debug, Deserialize, ToSchema)]
#[serde(deny_unknown_fields)]
#[schema(example = json!({"address": "192.0.2.1", "user": "alice", "reason": "ticket 4711"}))]
pub(in super::super) struct UnblockRequest {
    /// The id of a block in a list.
    #[serde(default)]
    id: Option<String>,
    /// The ids of several, 1,000 at most. Those that are not blocked are left out.
    #[serde(default)]
    #[schema(max_items = 1_000)]
    ids: Option<Vec<String>>,
    #[serde(default)]
    #[schema(schema_with = schema::optional_ip_address)]
    address: Option<IpAddr>,
    #[serde(default)]
    #[schema(max_length = 1_000)]
    user: Option<String>,
    #[serde(default)]
    #[schema(schema_with = schema::optional_network)]
    network: Option<String>,
    /// Whether the blocks of users at an address are lifted with those of the address.
    #[serde(default)]
    with_pairs: bool,
    /// Why.
    #[schema(schema_with = schema::reason)]
    reason: String,
}

/// Lift blocks
///
/// Those of the subject and no others, whose failures stay counted. `refused_by` and `denied_by` are what still refuses
/// the subject.
#[utoipa::path(
    post, path = "/v1/admin/unblock", tag = "blocks", operation_id = "unblock", request_body = UnblockRequest,
    responses((status = 200, description = "What was lifted", body = schema::Unblocked), Problems, ChangeProblem),
)]
pub(in super::super) async fn unblock(
    State(server): State<Shared>,
    Extension(operator): Extension<Operator>,
    Body(request): Body<UnblockRequest>,
) -> Result<Response, Problem> {
    let author = author(&operator, &request.reason)?;
    let is_subject = request.address.is_some()
        || request.user.is_some()
        || request.network.is_some()
        || request.with_pairs;
    let unblocked = match (request.id, request.ids, is_subject) {
        (Some(id), None, false) => server.admin.unblock_counter(&id.parse()?, &author).await,
        (None, Some(ids), false) => {
            if !(1..=MAX_IDS).contains(&ids.len()) {
                let detail = format!("ids: there may be 1 to {MAX_IDS}");
                return Err(Problem::invalid(detail));
            }
            let ids: Vec<_> = ids.iter().map(|id| id.parse()).collect::<Result<_, _>>()?;
            server.admin.unblock_counters(&ids, &author).await
        }
        (None, None, _) => {
            let (user, network) = (request.user.as_deref(), request.network.as_deref());
            let target = Unblock::of(subject(request.address, user, network)?);
            let target = target.with_pairs(request.with_pairs);
            server.admin.unblock(target, &author).await
        }
        _ => {
            return Err(Problem::invalid(
                "name blocks by `id`, by `ids`, or by a subject: one of the three",
            ));
        }
    };
    server.answer(&unblocked?)
}

/// Whose failures are forgiven.
#[derive(Debug, Deserialize, ToSchema)]
#[serde(deny_unknown_fields)]
#[schema(example = json!({"user": "alice", "reason": "password reset"}))]
pub(in super::super) struct ForgiveRequest {
    /// The user, spelled like this.
    #[schema(max_length = 1_000)]
    user: String,
    /// At these addresses only, 1,000 at most; otherwise wherever a block of the user is listed.
    #[serde(default)]
    #[schema(schema_with = schema::optional_ip_addresses)]
    addresses: Option<Vec<IpAddr>>,
    /// Whether failures of other spellings are forgiven too.
    #[serde(default)]
    every_spelling: bool,
    /// Why.
    #[schema(schema_with = schema::reason)]
    reason: String,
}

/// Forgive failures
///
/// Removes a user's own failures, as a success would: after a password was reset.
#[utoipa::path(
    post, path = "/v1/admin/forgive", tag = "blocks", operation_id = "forgive", request_body = ForgiveRequest,
    responses((status = 200, description = "What was forgiven", body = schema::Forgiven), Problems, ChangeProblem),
)]
pub(in super::super) async fn forgive(
    State(server): State<Shared>,
    Extension(operator): Extension<Operator>,
    Body(request): Body<ForgiveRequest>,
) -> Result<Response, Problem> {
    let author = author(&operator, &request.reason)?;
    check_length("user", Some(&request.user), 1_000)?;
    let mut forgive = Forgive::user(request.user).with_every_spelling(request.every_spelling);
    if let Some(addresses) = request.addresses {
        if addresses.len() > MAX_IDS {
            return Err(Problem::invalid(format!(
                "addresses: there may be {MAX_IDS}"
            )));
        }
        forgive = forgive.at(addresses);
    }
    server.answer(&server.admin.forgive(&forgive, &author).await?)
}

/// Whom to block by hand: an address, a user, both of them, or a network.
#[derive(Debug, Deserialize, ToSchema)]
#[serde(deny_unknown_fields)]
#[schema(example = json!({"network": "203.0.113.0/24", "for": "1 day", "reason": "scans"}))]
pub(in super::super) struct BlockRequest {
    #[serde(default)]
    #[schema(schema_with = schema::optional_ip_address)]
    address: Option<IpAddr>,
    #[serde(default)]
    #[schema(max_length = 1_000)]
    user: Option<String>,
    #[serde(default)]
    #[schema(schema_with = schema::optional_network)]
    network: Option<String>,
    /// For how long: `1 day`, `12h`, `forever`.
    #[serde(rename = "for")]
    #[schema(schema_with = schema::period)]
    lasts: String,
    /// Why.
    #[schema(schema_with = schema::reason)]
    reason: String,
}

/// The access rule that blocks.
#[derive(Serialize, ToSchema)]
#[serde(deny_unknown_fields)]
pub(in super::super) struct BlockedBy {
    /// Its name, by which it is removed.
    rule: String,
}

/// Block by hand
///
/// By an access rule, which is ahead of all limits and can be removed.
#[utoipa::path(
    post, path = "/v1/admin/block", tag = "blocks", operation_id = "block", request_body = BlockRequest,
    responses((status = 200, description = "The access rule that blocks", body = BlockedBy), Problems, ChangeProblem),
)]
pub(in super::super) async fn block(
    State(server): State<Shared>,
    Extension(operator): Extension<Operator>,
    Body(request): Body<BlockRequest>,
) -> Result<Response, Problem> {
    let author = author(&operator, &request.reason)?;
    let (user, network) = (request.user.as_deref(), request.network.as_deref());
    let subject = subject(request.address, user, network)?;
    let lasts: Period =
        (request.lasts.parse()).map_err(|error| Problem::invalid(format!("for: {error}")))?;
    let rule = server.admin.block(subject, lasts, &author).await?;
    server.answer(&BlockedBy { rule })
}

/// A note on an address, a user, both of them, or a network.
#[derive(Debug, Deserialize, ToSchema)]
#[serde(deny_unknown_fields)]
#[schema(example = json!({"address": "192.0.2.1", "note": "the office"}))]
pub(in super::super) struct NoteRequest {
    #[serde(default)]
    #[schema(schema_with = schema::optional_ip_address)]
    address: Option<IpAddr>,
    #[serde(default)]
    #[schema(max_length = 1_000)]
    user: Option<String>,
    #[serde(default)]
    #[schema(schema_with = schema::optional_network)]
    network: Option<String>,
    /// The note.
    #[schema(schema_with = schema::reason)]
    note: String,
}

/// Write a note
///
/// It is an event, and kept as long as events are.
#[utoipa::path(
    post, path = "/v1/admin/notes", tag = "blocks", operation_id = "note", request_body = NoteRequest,
    responses((status = 200, description = "The note is written", body = schema::Empty), Problems, ChangeProblem),
)]
pub(in super::super) async fn note(
    State(server): State<Shared>,
    Extension(operator): Extension<Operator>,
    Body(request): Body<NoteRequest>,
) -> Result<Response, Problem> {
    let author = author(&operator, &request.note)?;
    let (user, network) = (request.user.as_deref(), request.network.as_deref());
    let subject = subject(request.address, user, network)?;
    server.admin.note(subject, &author)?;
    server.answer(&schema::Empty {})
}
