//! How the fleet is, and who guesses most.

use axum::{Extension, extract::State, response::Response};
use serde::{Deserialize, Serialize};
use utoipa::{IntoParams, ToSchema};

use super::super::{
    Operator, Role, Shared, extract::Params, openapi::Problems, problem::Problem, schema,
};
use crate::{
    admin::{AdminError, AdminErrorKind},
    insight::{Minute, WrongBlockTable},
    live, timestamp,
};

/// How the service is.
#[derive(Serialize, ToSchema)]
#[serde(deny_unknown_fields)]
pub(in super::super) struct Status {
    /// Who asks.
    operator: WhoAsks,
    /// The version of the ruleset that this instance enforces.
    version: u64,
    /// The store, as this instance sees it.
    store: StoreState,
    /// How many instances have reported themselves within the last seconds; `null` if the store can't be read.
    instances: Option<usize>,
    /// How many of them enforce the newest version; `null` if the store can't be read.
    up_to_date: Option<usize>,
    /// Whether this instance has events to show.
    events: bool,
    /// The version of the software.
    software: &'static str,
}

#[derive(Serialize, ToSchema)]
#[serde(deny_unknown_fields)]
struct WhoAsks {
    name: String,
    #[schema(value_type = Vec<String>)]
    roles: Vec<&'static str>,
}

#[derive(Serialize, ToSchema)]
#[serde(deny_unknown_fields)]
struct StoreState {
    /// Whether attempts are decided without the server, since several calls in a row have failed.
    degraded: bool,
    /// How many writes wait until the server is available again.
    journal: usize,
    /// Attempts that were refused from memory.
    cached_refusals: u64,
    /// Attempts that were decided without the server.
    fallback_decisions: u64,
    /// Attempts that were admitted uncounted in an outage.
    admitted_uncounted: u64,
    /// Whether lifted blocks are announced to this instance at once.
    subscribed: bool,
}

/// Show the state
#[utoipa::path(
    get, path = "/v1/admin/status", tag = "overview", operation_id = "status",
    responses((status = 200, description = "How the service is", body = Status), Problems),
)]
pub(in super::super) async fn status(
    State(server): State<Shared>,
    Extension(operator): Extension<Operator>,
) -> Result<Response, Problem> {
    let newest = reachable(server.admin.newest_version().await)?;
    let instances = match &newest {
        Some(_) => reachable(server.admin.instances().await)?,
        None => None,
    };
    let up_to_date = newest.zip(instances.as_ref()).map(|(newest, instances)| {
        let is_newest = |instance: &&live::Instance| instance.version >= newest;
        instances.iter().filter(is_newest).count()
    });
    let store = server.limiter.store_status();
    server.answer(&Status {
        operator: WhoAsks {
            name: operator.name().to_owned(),
            roles: operator
                .roles()
                .iter()
                .map(|role| Role::as_str(*role))
                .collect(),
        },
        version: server.limiter.version(),
        store: StoreState {
            degraded: store.is_degraded,
            journal: store.pending,
            cached_refusals: store.cached_refusals,
            fallback_decisions: store.fallback_decisions,
            admitted_uncounted: store.admitted_uncounted,
            subscribed: store.is_subscribed,
        },
        instances: instances.map(|instances| instances.len()),
        up_to_date,
        events: server.feed.is_some(),
        software: env!("CARGO_PKG_VERSION"),
    })
}

/// `None` if the store can't be read: what is known without it is shown all the same.
fn reachable<T>(read: Result<T, AdminError>) -> Result<Option<T>, Problem> {
    match read {
        Ok(read) => Ok(Some(read)),
        Err(error) if error.kind() == AdminErrorKind::Store => Ok(None),
        Err(error) => Err(error.into()),
    }
}

/// The instances of the fleet.
#[derive(Serialize, ToSchema)]
#[serde(deny_unknown_fields)]
pub(in super::super) struct Instances {
    instances: Vec<Instance>,
}

/// An instance, as it has reported itself within the last seconds.
#[derive(Serialize, ToSchema)]
#[serde(deny_unknown_fields)]
struct Instance {
    /// Unique in the fleet.
    id: String,
    /// The version of the ruleset that it enforces.
    version: u64,
    /// Why it does not enforce a newer one.
    problem: Option<String>,
    /// When it was started.
    #[schema(format = DateTime)]
    started: String,
    /// The version of the software.
    software: String,
    /// Attempts that were decided without the store.
    fallback_decisions: u64,
    /// Attempts that were refused from memory.
    cached_refusals: u64,
}

impl From<live::Instance> for Instance {
    fn from(instance: live::Instance) -> Self {
        Self {
            id: instance.id,
            version: instance.version,
            problem: instance.problem,
            started: timestamp::to_fixed_text(instance.started),
            software: instance.software,
            fallback_decisions: instance.fallback_decisions,
            cached_refusals: instance.cached_refusals,
        }
    }
}

/// List instances
#[utoipa::path(
    get, path = "/v1/admin/instances", tag = "overview", operation_id = "instances",
    responses((status = 200, description = "The instances of the fleet", body = Instances), Problems),
)]
pub(in super::super) async fn instances(State(server): State<Shared>) -> Result<Response, Problem> {
    let instances = server.admin.instances().await?.into_iter();
    server.answer(&Instances {
        instances: instances.map(Instance::from).collect(),
    })
}

#[derive(Debug, Deserialize, IntoParams)]
#[serde(deny_unknown_fields)]
#[into_params(parameter_in = Query)]
pub(in super::super) struct BusiestQuery {
    /// How many addresses and users at most.
    #[param(minimum = 1, maximum = 256, default = 10, nullable = false)]
    count: Option<usize>,
}

/// List who guesses most
///
/// The addresses and users with most failures and refusals within the last 30 to 60 minutes, by the instances that keep
/// them.
#[utoipa::path(
    get, path = "/v1/admin/busiest", tag = "overview", operation_id = "busiest", params(BusiestQuery),
    responses((status = 200, description = "The busiest first", body = schema::Busiest), Problems),
)]
pub(in super::super) async fn busiest(
    State(server): State<Shared>,
    Params(query): Params<BusiestQuery>,
) -> Result<Response, Problem> {
    let count = query.count.unwrap_or(10);
    if !(1..=256).contains(&count) {
        return Err(Problem::invalid("count: 1 to 256"));
    }
    server.answer(&server.admin.busiest(count).await?)
}

/// Blocks by rule and day.
#[derive(Serialize, ToSchema)]
#[serde(deny_unknown_fields)]
pub(in super::super) struct WrongBlocks {
    /// The oldest day first.
    #[schema(value_type = Vec<schema::WrongBlockRow>)]
    rows: WrongBlockTable,
}

/// Count blocks that were probably wrong
///
/// By rule and day: blocks that were followed by a success of the same user at the same address, or lifted by an
/// operator.
#[utoipa::path(
    get, path = "/v1/admin/wrong-blocks", tag = "overview", operation_id = "wrong_blocks",
    responses((status = 200, description = "Blocks by rule and day", body = WrongBlocks), Problems),
)]
pub(in super::super) async fn wrong_blocks(
    State(server): State<Shared>,
) -> Result<Response, Problem> {
    // That of a feed has seen the whole fleet.
    let insight = server.feed.as_ref().and_then(|feed| feed.insight());
    let rows = match insight {
        Some(insight) => insight.wrong_blocks(),
        None => server.admin.wrong_blocks(),
    };
    server.answer(&WrongBlocks { rows })
}

/// How much happened, minute by minute.
#[derive(Serialize, ToSchema)]
#[serde(deny_unknown_fields)]
pub(in super::super) struct Activity {
    /// Up to 180, the oldest first, without gaps.
    #[schema(value_type = Vec<schema::Minute>)]
    minutes: Vec<Minute>,
}

/// Show the activity
#[utoipa::path(
    get, path = "/v1/admin/activity", tag = "overview", operation_id = "activity",
    responses((status = 200, description = "Minute by minute", body = Activity), Problems),
)]
pub(in super::super) async fn activity(State(server): State<Shared>) -> Result<Response, Problem> {
    let minutes = server.feed()?.activity();
    server.answer(&Activity { minutes })
}
