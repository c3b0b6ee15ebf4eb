//! What operators do, by HTTP.

pub(super) mod access_rules;
pub(super) mod blocks;
pub(super) mod changes;
mod csv;
pub(super) mod events;
pub(super) mod known;
pub(super) mod live;
pub(super) mod overview;
pub(super) mod preview;
pub(super) mod ruleset;

use std::{net::IpAddr, sync::Arc};

use axum::{
    Json,
    response::{IntoResponse, Response},
};
use http::{HeaderValue, StatusCode, header::CONTENT_TYPE};
use serde::Serialize;
use serde_json::Value;
use tokio::sync::OwnedSemaphorePermit;

use super::{Inner, Operator, decision::check_length, problem::Problem};
use crate::{
    admin::{Author, Subject},
    event::Sealer,
};

/// How many rulesets are checked at a time.
pub(super) const MAX_CHECKS: usize = 4;

/// The author of a change: the name that was authenticated, and the reason of the request.
fn author(operator: &Operator, reason: &str) -> Result<Author, Problem> {
    Author::new(operator.name(), "-").map_err(|error| {
        let detail = format!("changes of this operator can't be recorded: {error}");
        Problem::new(StatusCode::FORBIDDEN, detail)
    })?;
    Ok(Author::new(operator.name(), reason)?)
}

/// What a request is about.
fn subject(
    address: Option<IpAddr>,
    user: Option<&str>,
    network: Option<&str>,
) -> Result<Subject, Problem> {
    check_length("user", user, 1_000)?;
    check_length("network", network, 64)?;
    match (address, user, network) {
        (Some(address), None, None) => Ok(Subject::address(address)),
        (None, Some(user), None) => Ok(Subject::user(user)),
        (Some(address), Some(user), None) => Ok(Subject::pair(address, user)),
        (None, None, Some(network)) => Ok(Subject::network(network)?),
        _ => Err(Problem::invalid(
            "name an address, a user, both of them, or a network",
        )),
    }
}

/// Runs what takes a processor for a while on a thread that no login needs. It holds the permit until it ends, also if
/// the client has gone away in between.
async fn blocking<T: Send + 'static>(
    permit: OwnedSemaphorePermit,
    work: impl FnOnce() -> T + Send + 'static,
) -> Result<T, Problem> {
    let work = move || {
        let _permit = permit;
        work()
    };
    let done = tokio::task::spawn_blocking(work).await;
    done.map_err(|_| unavailable("it has ended early"))
}

impl Inner {
    /// Runs what reads a whole ruleset, which may have 16 MiB. One that waits would hold it meanwhile.
    async fn checking<T: Send + 'static>(
        &self,
        work: impl FnOnce() -> T + Send + 'static,
    ) -> Result<T, Problem> {
        let permit = Arc::clone(&self.checks).try_acquire_owned();
        let permit = permit.map_err(|_| unavailable("other rulesets are being checked"))?;
        blocking(permit, work).await
    }
}

/// 503, for this reason.
fn unavailable(why: &str) -> Problem {
    let detail = format!("{why}: repeat the request");
    Problem::new(StatusCode::SERVICE_UNAVAILABLE, detail)
}

impl Inner {
    /// An answer, with users in clear if they are sealed and this server can open them.
    fn answer(&self, answer: &impl Serialize) -> Result<Response, Problem> {
        if self.users.is_some() {
            return Ok(Json(self.open(answer)?).into_response());
        }
        let json = serde_json::to_vec(answer).map_err(|error| unwritten(&error))?;
        let media_type = HeaderValue::from_static("application/json");
        Ok(([(CONTENT_TYPE, media_type)], json).into_response())
    }

    fn open(&self, answer: &impl Serialize) -> Result<Value, Problem> {
        let mut value = serde_json::to_value(answer).map_err(|error| unwritten(&error))?;
        if let Some(sealer) = &self.users {
            open_users(sealer, &mut value);
        }
        Ok(value)
    }
}

/// To repeat the request would not help.
fn unwritten(error: &serde_json::Error) -> Problem {
    let detail = format!("the answer can't be written: {error}");
    Problem::new(StatusCode::INTERNAL_SERVER_ERROR, detail)
}

/// Replaces what is sealed. A text that only looks so stays.
fn open_users(sealer: &Sealer, value: &mut Value) {
    match value {
        Value::String(text) if text.starts_with("sealed:") => {
            if let Ok(user) = sealer.open(text) {
                *text = user;
            }
        }
        Value::Array(values) => values
            .iter_mut()
            .for_each(|value| open_users(sealer, value)),
        Value::Object(members) => {
            (members.values_mut()).for_each(|value| open_users(sealer, value));
        }
        _ => {}
    }
}

#[cfg(test)]
mod tests {
    use std::{future::poll_fn, pin::pin, sync::mpsc, task::Poll};

    use tokio::sync::Semaphore;

    use super::*;

    #[tokio::test]
    async fn a_client_that_goes_away_leaves_no_permit_behind_for_another() {
        let permits = Arc::new(Semaphore::new(1));
        let permit = || Arc::clone(&permits).try_acquire_owned();
        let (end, ended) = mpsc::channel::<()>();
        {
            let mut work = pin!(blocking(permit().unwrap(), move || ended.recv()));
            poll_fn(|context| {
                assert!(work.as_mut().poll(context).is_pending());
                Poll::Ready(())
            })
            .await;
        }
        assert!(permit().is_err(), "the work goes on");
        drop(end);
        assert!(permits.acquire().await.is_ok());
    }
}
