//! `doctor`: looks at Redis, its settings and rights, and at the fleet, and says what to change.

mod finding;
mod fleet;
mod prefix;
mod rights;
mod secret;
mod server;

use clap::Args;
use serde::Serialize;
use tower_login_rate_limit::store::StoreErrorKind;

use self::finding::{Findings, Level};
use crate::{
    failure::{Exit, Failure},
    output::{Output, counted},
    session::Session,
    store::StoreArgs,
};

const EXAMPLES: &str = "\
Examples:
  login-rate-limit doctor
  login-rate-limit doctor --json | jq '.findings[] | select(.level != \"ok\")'

It changes nothing but a counter of its own, which expires. The exit code is 0 if there is no problem, 1 if there
is one, and 4 if Redis does not answer. Run it with the URL, the prefix and the secret of the app.";

/// Look at Redis, its settings and rights, and at the fleet, and say what to change
#[derive(Debug, Args)]
#[command(after_help = EXAMPLES)]
pub(crate) struct Doctor {}

#[derive(Serialize)]
struct Report<'a> {
    ok: bool,
    findings: &'a Findings,
}

impl Doctor {
    pub(crate) async fn run(self, store: &StoreArgs, output: &Output) -> Result<Exit, Failure> {
        let url = store.url()?;
        let redis = store.open()?;
        let mut findings = Findings::default();
        let exit = match redis.query(redis::cmd("PING")).await {
            Err(error) => {
                let failure = Failure::from(error.clone());
                let exit = match error.kind() {
                    StoreErrorKind::Config => Exit::Error,
                    _ => Exit::Unavailable,
                };
                findings.problem("connection", error.to_string(), advice(&failure, &error));
                Some(exit)
            }
            Ok(_) => None,
        };
        if exit.is_none() {
            server::look(&redis, &url, &mut findings).await;
            rights::look(&redis, store, &mut findings).await;
            let session = Session::to_read(store)?;
            fleet::look(&session, store, &redis, &mut findings).await;
        }
        let ok = findings.worst() != Level::Problem;
        let exit = exit.unwrap_or(if ok { Exit::Done } else { Exit::Error });
        let report = Report {
            ok,
            findings: &findings,
        };
        if output.json(&report)? {
            return Ok(exit);
        }
        findings.print(output)?;
        let (problems, warnings) = (
            findings.count(Level::Problem),
            findings.count(Level::Warning),
        );
        output.line("")?;
        output.line(match (problems, warnings) {
            (0, 0) => "Nothing to change.".to_owned(),
            _ => format!(
                "{}, {}.",
                counted(problems, "problem"),
                counted(warnings, "warning")
            ),
        })?;
        Ok(exit)
    }
}

/// What the message of a failure has behind that of the error.
fn advice(failure: &Failure, error: &impl std::fmt::Display) -> String {
    let advice = failure.message().strip_prefix(&error.to_string());
    let advice = advice.unwrap_or_default().trim_start_matches("; ");
    match advice {
        "" => "is the URL of --store or REDIS_URL right?".to_owned(),
        advice => advice.to_owned(),
    }
}
