//! `allow list` and `deny list`.

use serde::Serialize;
use tower_login_rate_limit::access::{AccessRule, Action};

use super::table;
use crate::{
    failure::{Exit, Failure},
    output::Output,
    session::Session,
    store::StoreArgs,
};

#[derive(Serialize)]
struct Report<'a> {
    version: u64,
    rules: Vec<&'a AccessRule>,
}

pub(super) async fn run(
    store: &StoreArgs,
    output: &Output,
    action: Action,
) -> Result<Exit, Failure> {
    let session = Session::to_read(store)?;
    let current = session.admin.ruleset().await?;
    let rules = current.ruleset.access.rules().iter();
    let rules: Vec<_> = rules.filter(|rule| rule.action() == action).collect();
    let found = Exit::found(!rules.is_empty());
    let report = Report {
        version: current.version,
        rules,
    };
    if output.json(&report)? {
        return Ok(found);
    }
    if report.rules.is_empty() {
        return output.nothing(&format!("No rules that {}.", action.as_str()));
    }
    output.table(&table(report.rules.into_iter()))?;
    Ok(found)
}
