//! `allow remove` and `deny remove`.

use clap::Args;
use serde::Serialize;
use tower_login_rate_limit::access::{AccessRule, Action};

use super::table;
use crate::{
    change::ChangeArgs,
    failure::{Exit, Failure},
    output::{Output, Style, safe},
    session::{Session, would},
    store::StoreArgs,
};

/// Remove a rule
#[derive(Debug, Args)]
pub(super) struct Remove {
    /// The name of the rule
    name: String,
    #[command(flatten)]
    change: ChangeArgs,
}

#[derive(Serialize)]
struct Report<'a> {
    dry_run: bool,
    version: u64,
    rule: &'a AccessRule,
}

impl Remove {
    pub(super) async fn run(
        self,
        store: &StoreArgs,
        output: &Output,
        action: Action,
    ) -> Result<Exit, Failure> {
        let dry_run = self.change.dry_run;
        let author = (!dry_run).then(|| self.change.author()).transpose()?;
        let session = Session::to_change(store)?;
        let current = session.ruleset_to_change().await?;
        let name = safe(&self.name);
        let Some(rule) = current.ruleset.access.rule(&self.name) else {
            let message = format!(
                "there is no rule {name}; `login-rate-limit {} list` names them",
                action.as_str()
            );
            return Err(Failure::new(Exit::Nothing, message));
        };
        if rule.action() != action {
            let other = rule.action().as_str();
            return Err(Failure::usage(format!(
                "{name} is a rule that will {other}: login-rate-limit {other} remove {name}"
            )));
        }
        let mut version = current.version;
        if let Some(author) = &author {
            version = session.admin.remove_access_rule(&self.name, author).await?;
            session.finish(output).await;
        }
        if output.json(&Report {
            dry_run,
            version,
            rule,
        })? {
            return Ok(Exit::Done);
        }
        let verb = output.paint(Style::Green, would(dry_run, "Removed", "Would remove"));
        let version = if dry_run {
            String::new()
        } else {
            format!(" in version {version}")
        };
        output.line(format!("{verb}{version}:"))?;
        output.table(&table(std::iter::once(rule)))?;
        Ok(Exit::Done)
    }
}
