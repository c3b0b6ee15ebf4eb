//! What a policy would have done with the recorded events.

use std::sync::Arc;

use axum::{extract::State, response::Response};
use serde::Deserialize;
use utoipa::ToSchema;

use super::{
    super::{Shared, extract::Body, openapi::Problems, problem::Problem, schema},
    blocking, unavailable,
};
use crate::{insight::Replay, live::Ruleset};

/// A ruleset to be tried.
#[derive(Debug, Deserialize, ToSchema)]
#[serde(deny_unknown_fields)]
pub(in super::super) struct PreviewRequest {
    /// As in files. Its policy is tried.
    #[schema(value_type = schema::Ruleset)]
    ruleset: Ruleset,
}

/// Preview a ruleset
///
/// Runs the events that this instance keeps through the algorithms, under the policy of this ruleset: who would have
/// been blocked, who freed, and how many honest logins that costs. Changes nothing.
#[utoipa::path(
    post, path = "/v1/admin/ruleset/preview", tag = "ruleset", operation_id = "preview_ruleset",
    request_body = PreviewRequest,
    responses(
        (status = 200, description = "What it would have done", body = schema::ReplayReport),
        (status = 404, description = "This instance keeps no events", body = schema::Problem, content_type = "application/problem+json"),
        Problems,
    ),
)]
pub(in super::super) async fn preview(
    State(server): State<Shared>,
    Body(request): Body<PreviewRequest>,
) -> Result<Response, Problem> {
    let (feed, sealer) = (server.feed()?.clone(), server.users.clone());
    // It takes a processor for as long as there are events. One that waits would hold its ruleset meanwhile.
    let permit = Arc::clone(&server.previews).try_acquire_owned();
    let permit = permit.map_err(|_| unavailable("another preview is being computed"))?;
    let replay = move || {
        let mut replay = Replay::new(request.ruleset.policy);
        if let Some(sealer) = sealer {
            replay = replay.with_sealer(sealer);
        }
        let events = feed.latest(usize::MAX, |_| true);
        events.iter().rev().for_each(|event| replay.record(event));
        replay.finish()
    };
    server.answer(&blocking(permit, replay).await?)
}
