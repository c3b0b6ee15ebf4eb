//! The addresses that users have logged in from.

use axum::{Extension, extract::State, response::Response};
use serde::{Deserialize, Serialize};
use utoipa::{IntoParams, ToSchema};

use super::{
    super::{
        Operator, Shared,
        decision::check_length,
        extract::{Body, Params},
        openapi::{ChangeProblem, Problems},
        problem::Problem,
        schema,
    },
    author,
};
use crate::Address;

#[derive(Debug, Deserialize, IntoParams)]
#[serde(deny_unknown_fields)]
#[into_params(parameter_in = Query)]
pub(in super::super) struct KnownQuery {
    /// The user, spelled like this.
    #[param(max_length = 1_000)]
    user: String,
}

/// The addresses that a user has logged in from.
#[derive(Serialize, ToSchema)]
#[serde(deny_unknown_fields)]
pub(in super::super) struct KnownAddresses {
    /// The newest first. IPv6 by network.
    addresses: Vec<String>,
}

/// List known addresses
#[utoipa::path(
    get, path = "/v1/admin/known-addresses", tag = "known addresses", operation_id = "known_addresses",
    params(KnownQuery),
    responses((status = 200, description = "Where the user has logged in from", body = KnownAddresses), Problems),
)]
pub(in super::super) async fn list(
    State(server): State<Shared>,
    Params(query): Params<KnownQuery>,
) -> Result<Response, Problem> {
    check_length("user", Some(&query.user), 1_000)?;
    let known = server.admin.known_addresses(&query.user).await?;
    let addresses = known.iter().map(Address::to_string).collect();
    server.answer(&KnownAddresses { addresses })
}

/// Which addresses to forget.
#[derive(Debug, Deserialize, ToSchema)]
#[serde(deny_unknown_fields)]
#[schema(example = json!({"user": "alice", "reason": "taken over"}))]
pub(in super::super) struct ForgetRequest {
    /// The user, spelled like this.
    #[schema(max_length = 1_000)]
    user: String,
    /// One of the addresses as listed; all of them if it is left out.
    #[serde(default)]
    #[schema(schema_with = schema::optional_ip_address)]
    address: Option<String>,
    /// Why.
    #[schema(schema_with = schema::reason)]
    reason: String,
}

/// How many addresses were forgotten.
#[derive(Serialize, ToSchema)]
#[serde(deny_unknown_fields)]
pub(in super::super) struct Forgotten {
    /// How many.
    forgotten: usize,
}

/// Forget known addresses
///
/// Attempts from there count like any others: after an account was taken over.
#[utoipa::path(
    post, path = "/v1/admin/known-addresses/forget", tag = "known addresses", operation_id = "forget",
    request_body = ForgetRequest,
    responses((status = 200, description = "How many were forgotten", body = Forgotten), Problems, ChangeProblem),
)]
pub(in super::super) async fn forget(
    State(server): State<Shared>,
    Extension(operator): Extension<Operator>,
    Body(request): Body<ForgetRequest>,
) -> Result<Response, Problem> {
    let author = author(&operator, &request.reason)?;
    check_length("user", Some(&request.user), 1_000)?;
    let address = match &request.address {
        Some(text) => Some(server.counted(text)?),
        None => None,
    };
    let forgotten = server
        .admin
        .forget_address(&request.user, address, &author)
        .await?;
    server.answer(&Forgotten { forgotten })
}

impl super::super::Inner {
    /// An address as it is counted: written so already, or as a client has it.
    fn counted(&self, text: &str) -> Result<Address, Problem> {
        if let Ok(ip) = text.parse() {
            return Ok(Address::new(ip, self.limiter.policy().ipv6_prefix()));
        }
        (text.parse()).map_err(|error| Problem::invalid(format!("address: {error}")))
    }
}
