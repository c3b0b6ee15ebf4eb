//! `policy rollback`.

use clap::Args;

use super::{
    print_differences,
    set::{Changed, unchanged},
    version,
};
use crate::{
    change::ChangeArgs,
    failure::{Exit, Failure},
    output::Output,
    session::Session,
    store::StoreArgs,
};

/// Put the limits of an earlier version in force again
///
/// Access rules stay as they are: what was blocked or allowed by hand since then has other reasons.
#[derive(Debug, Args)]
pub(super) struct Rollback {
    /// The version, see `policy history`
    to: u64,
    /// Only if this is the newest version: another one is a conflict
    #[arg(long, value_name = "VERSION")]
    expect: Option<u64>,
    #[command(flatten)]
    change: ChangeArgs,
}

impl Rollback {
    pub(super) async fn run(self, store: &StoreArgs, output: &Output) -> Result<Exit, Failure> {
        let dry_run = self.change.dry_run;
        let author = self.change.author()?;
        let session = Session::to_change(store)?;
        let current = session.admin.ruleset().await?;
        let past = version(&session, self.to).await?.ruleset;
        let after = past.with_access(current.ruleset.access.clone());
        let mut changed = Changed {
            dry_run,
            from: current.version,
            version: None,
            differences: current.ruleset.differences(&after),
        };
        if changed.differences.is_empty() {
            return unchanged(&changed, output);
        }
        if let Some(author) = &author {
            if !output.json {
                print_differences(&changed.differences, output)?;
            }
            self.change.confirm("applies to every login")?;
            let expected = self.expect.unwrap_or(current.version);
            changed.version = Some(session.admin.roll_back(expected, self.to, author).await?);
            session.finish(output).await;
        }
        changed.print(output)
    }
}
