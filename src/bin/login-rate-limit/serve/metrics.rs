//! Metrics for Prometheus: on the address of the API for operators, or on an address of their own.

use std::{net::SocketAddr, time::Duration};

use axum::{
    Router,
    extract::{Request, State},
    http::{StatusCode, header},
    middleware::{Next, from_fn_with_state},
    response::{IntoResponse, Response},
    routing::get,
};
use metrics_exporter_prometheus::{Matcher, PrometheusBuilder, PrometheusHandle};
use tower_login_rate_limit::server::{Authorize, Role, Tokens};

use super::config::Config;
use crate::failure::Failure;

/// As `docs/operations.md` has them, for the dashboard.
const BUCKETS: [f64; 9] = [0.0005, 0.001, 0.0025, 0.005, 0.01, 0.025, 0.05, 0.1, 0.2];
/// How often what was recorded is summed up.
const UPKEEP: Duration = Duration::from_secs(5);

/// Metrics on the address of the API, unless they have their own.
pub(super) struct Metrics(Option<PrometheusHandle>);

/// Metrics on an address of their own.
pub(super) type Beside = Option<(SocketAddr, Router)>;

/// Records from now on.
pub(super) fn install(config: &Config) -> Result<(Metrics, Beside), Failure> {
    let duration = Matcher::Full("login_store_call_duration_seconds".to_owned());
    let builder = PrometheusBuilder::new().set_buckets_for_metric(duration, &BUCKETS);
    let handle = builder.and_then(PrometheusBuilder::install_recorder);
    let handle = handle.map_err(|error| Failure::error(error.to_string()))?;
    let upkeep = handle.clone();
    tokio::spawn(async move {
        loop {
            tokio::time::sleep(UPKEEP).await;
            upkeep.run_upkeep();
        }
    });
    Ok(match config.metrics_listen() {
        Some(listen) => (Metrics(None), Some((listen, routes(handle)))),
        None => (Metrics(Some(handle)), None),
    })
}

fn routes(handle: PrometheusHandle) -> Router {
    let render = async move || {
        let format = [(header::CONTENT_TYPE, "text/plain; version=0.0.4")];
        (format, handle.render())
    };
    Router::new().route("/metrics", get(render))
}

impl Metrics {
    /// For operators who may read.
    pub(super) fn router(self, tokens: Tokens) -> Router {
        match self.0 {
            Some(handle) => routes(handle).layer(from_fn_with_state(tokens, only_to_read)),
            None => Router::new(),
        }
    }
}

async fn only_to_read(State(tokens): State<Tokens>, request: Request, next: Next) -> Response {
    let (parts, body) = request.into_parts();
    let operator = tokens.authorize(&parts).await;
    match operator.map(|operator| operator.may(Role::Read)) {
        Ok(true) => next.run(Request::from_parts(parts, body)).await,
        Ok(false) => (StatusCode::FORBIDDEN, "the token needs the role read\n").into_response(),
        Err(_) => {
            let challenge = [(header::WWW_AUTHENTICATE, "Bearer")];
            let text = "send Authorization: Bearer with a token that has the role read\n";
            (StatusCode::UNAUTHORIZED, challenge, text).into_response()
        }
    }
}
