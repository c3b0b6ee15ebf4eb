//! `allow try` and `deny try`: which rule would decide.

use std::net::IpAddr;

use clap::{ArgGroup, Args};
use serde::Serialize;
use tower_login_rate_limit::{
    access::{AccessQuery, AccessRule, Action},
    normalize,
};

use super::table;
use crate::{
    failure::{Exit, Failure},
    output::{Output, Style, safe},
    period,
    session::Session,
    store::StoreArgs,
};

/// Show which rule decides on a request, and which others match
#[derive(Debug, Args)]
#[command(group = ArgGroup::new("request").required(true).multiple(true))]
pub(super) struct Try {
    /// The client's address
    #[arg(short, long, value_name = "ADDRESS", group = "request")]
    address: Option<IpAddr>,
    /// The user
    #[arg(short, long, value_name = "NAME", group = "request")]
    user: Option<String>,
    /// The User-Agent
    #[arg(long, value_name = "TEXT", group = "request")]
    user_agent: Option<String>,
    /// The path
    #[arg(long, value_name = "PATH", group = "request")]
    path: Option<String>,
}

#[derive(Serialize)]
struct Report<'a> {
    decided_by: Option<&'a AccessRule>,
    overruled: &'a [&'a AccessRule],
    expired: &'a [&'a AccessRule],
}

impl Try {
    pub(super) async fn run(self, store: &StoreArgs, output: &Output) -> Result<Exit, Failure> {
        let session = Session::to_read(store)?;
        let current = session.admin.ruleset().await?;
        let user = self.user.as_deref().map(normalize);
        let mut query = AccessQuery::new();
        if let Some(address) = self.address {
            query = query.with_address(address);
        }
        if let Some(user) = &user {
            query = query.with_user(user);
        }
        if let Some(agent) = &self.user_agent {
            query = query.with_user_agent(agent.as_bytes());
        }
        if let Some(path) = &self.path {
            query = query.with_path(path);
        }
        let explanation = current.ruleset.access.explain(&query, period::now());
        let decided_by = explanation.decides();
        let found = Exit::found(decided_by.is_some());
        let report = Report {
            decided_by,
            overruled: explanation.overruled(),
            expired: explanation.expired(),
        };
        if output.json(&report)? {
            return Ok(found);
        }
        match decided_by {
            None => output.line("No rule decides; the limits apply.")?,
            Some(rule) => {
                let verb = match rule.action() {
                    Action::Allow => output.paint(Style::Green, "Allowed"),
                    Action::Deny => output.paint(Style::Red, "Denied"),
                };
                output.line(format!("{verb} by {}:", safe(rule.name())))?;
                output.table(&table(std::iter::once(rule)))?;
            }
        }
        for (title, rules) in [
            ("Matches, and does not decide:", report.overruled),
            ("Has expired:", report.expired),
        ] {
            if !rules.is_empty() {
                output.line(format!("\n{title}"))?;
                output.table(&table(rules.iter().copied()))?;
            }
        }
        Ok(found)
    }
}
