//! Blocks: listed, counted, explained.

use std::net::IpAddr;

use axum::{extract::State, response::Response};
use serde::{Deserialize, Serialize};
use utoipa::{IntoParams, ToSchema};

use super::{
    super::{
        Shared, decision::check_length, extract::Params, openapi::Problems, problem::Problem,
        schema,
    },
    subject,
};
use crate::admin::{BlockCount, BlockFilter};

#[derive(Debug, Deserialize, IntoParams)]
#[serde(deny_unknown_fields)]
#[into_params(parameter_in = Query)]
pub(in super::super) struct BlockQuery {
    /// Only those of this rule.
    #[param(nullable = false)]
    rule: Option<String>,
    /// Only those of this address, and of users there.
    #[param(schema_with = schema::ip_address)]
    address: Option<IpAddr>,
    /// Only those of addresses in this network, and of users there.
    #[param(schema_with = schema::network)]
    network: Option<String>,
    /// Only those of this user, in any spelling.
    #[param(max_length = 1_000, nullable = false)]
    user: Option<String>,
    /// The page after the one whose `next` this was.
    #[param(nullable = false)]
    after: Option<String>,
    /// How many blocks a page has at most.
    #[param(minimum = 1, maximum = 1_000, default = 100, nullable = false)]
    limit: Option<usize>,
}

/// List blocks
///
/// Those in force, a page at a time, those that lift first at the beginning. A page may have fewer blocks than asked
/// for, or none, and still be followed by others: go on until `next` is `null`.
#[utoipa::path(
    get, path = "/v1/admin/blocks", tag = "blocks", operation_id = "blocks", params(BlockQuery),
    responses((status = 200, description = "A page", body = schema::Blocks), Problems),
)]
pub(in super::super) async fn list(
    State(server): State<Shared>,
    Params(query): Params<BlockQuery>,
) -> Result<Response, Problem> {
    check_length("user", query.user.as_deref(), 1_000)?;
    let mut filter = BlockFilter::new();
    if let Some(rule) = query.rule {
        filter = filter.with_rule(rule);
    }
    if let Some(address) = query.address {
        filter = filter.with_address(address);
    }
    if let Some(network) = query.network {
        filter = filter.with_network(network)?;
    }
    if let Some(user) = query.user {
        filter = filter.with_user(user);
    }
    if let Some(after) = query.after {
        filter = filter.after(after);
    }
    if let Some(limit) = query.limit {
        filter = filter.with_limit(limit);
    }
    server.answer(&server.admin.blocks(&filter).await?)
}

/// How many blocks each rule has.
#[derive(Serialize, ToSchema)]
#[serde(deny_unknown_fields)]
pub(in super::super) struct BlockCounts {
    /// In the order of the policy. Not verified one by one, so some may have been lifted.
    #[schema(value_type = Vec<schema::BlockCount>)]
    rules: Vec<BlockCount>,
}

/// Count blocks
#[utoipa::path(
    get, path = "/v1/admin/block-counts", tag = "blocks", operation_id = "block_counts",
    responses((status = 200, description = "How many blocks each rule has", body = BlockCounts), Problems),
)]
pub(in super::super) async fn counts(State(server): State<Shared>) -> Result<Response, Problem> {
    let rules = server.admin.block_counts().await?;
    server.answer(&BlockCounts { rules })
}

#[derive(Debug, Deserialize, IntoParams)]
#[serde(deny_unknown_fields)]
#[into_params(parameter_in = Query)]
pub(in super::super) struct SubjectQuery {
    /// An address.
    #[param(schema_with = schema::ip_address)]
    address: Option<IpAddr>,
    /// A user, anywhere or at the address.
    #[param(max_length = 1_000, nullable = false)]
    user: Option<String>,
    /// A network, without an address and a user.
    #[param(schema_with = schema::network)]
    network: Option<String>,
}

/// Explain a subject
///
/// What is counted of an address, a user, a user at an address or a network, what a block consists of, when it lifts,
/// and what the next failure would do.
#[utoipa::path(
    get, path = "/v1/admin/explain", tag = "blocks", operation_id = "explain", params(SubjectQuery),
    responses((status = 200, description = "What is counted, and what follows", body = schema::Explanation), Problems),
)]
pub(in super::super) async fn explain(
    State(server): State<Shared>,
    Params(query): Params<SubjectQuery>,
) -> Result<Response, Problem> {
    let subject = subject(
        query.address,
        query.user.as_deref(),
        query.network.as_deref(),
    )?;
    server.answer(&server.admin.explain(&subject).await?)
}
