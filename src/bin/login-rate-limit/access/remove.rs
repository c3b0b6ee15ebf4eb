//! `allow remove` and `deny remove`.

use clap::Args;
use tower_login_rate_limit::access::Action;

use super::Changed;
use crate::{
    change::ChangeArgs,
    failure::{Exit, Failure},
    output::{Output, safe},
    session::Session,
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

impl Remove {
    pub(super) async fn run(
        self,
        store: &StoreArgs,
        output: &Output,
        action: Action,
    ) -> Result<Exit, Failure> {
        let dry_run = self.change.dry_run;
        let author = self.change.author()?;
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
        let changed = Changed {
            dry_run,
            version,
            rule,
        };
        changed.print(output, "Removed", "Would remove")
    }
}
