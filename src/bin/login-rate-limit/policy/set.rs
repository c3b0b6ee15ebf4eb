//! `policy set`.

use std::path::Path;

use clap::Args;
use serde::Serialize;
use tower_login_rate_limit::live::{Canary, Ruleset, Version};

use super::{file, print_differences};
use crate::{
    change::ChangeArgs,
    failure::{Exit, Failure},
    output::{Output, Style},
    session::{Session, named_policy, would},
    store::StoreArgs,
};

/// Put limits in force on every live instance, within a second
///
/// A policy replaces the limits and ends a canary; access rules stay. A whole ruleset replaces those too.
#[derive(Debug, Args)]
pub(super) struct Set {
    /// A policy or a ruleset, TOML or JSON; or default, strict, nist, pci, owasp
    file: String,
    /// For this percentage of the addresses only, beside the limits in force
    #[arg(long, value_name = "PERCENT")]
    canary: Option<f64>,
    /// Only if this is the newest version: another one is a conflict
    #[arg(long, value_name = "VERSION")]
    expect: Option<u64>,
    #[command(flatten)]
    change: ChangeArgs,
}

/// A change of the ruleset.
#[derive(Serialize)]
pub(super) struct Changed {
    pub(super) dry_run: bool,
    /// The version before.
    pub(super) from: u64,
    /// The version that was written.
    pub(super) version: Option<u64>,
    pub(super) differences: Vec<String>,
}

impl Set {
    pub(super) async fn run(self, store: &StoreArgs, output: &Output) -> Result<Exit, Failure> {
        let contents = match named_policy(&self.file) {
            Some(policy) => file::Contents::Policy(policy),
            None => file::read(Path::new(&self.file))?,
        };
        let dry_run = self.change.dry_run;
        let author = self.change.author()?;
        let session = Session::to_change(store)?;
        // A canary is beside what is in force, which must be known then.
        let current = match self.canary {
            Some(_) => session.ruleset_to_change().await?,
            None => session.admin.ruleset().await?,
        };
        let ruleset = match self.canary {
            Some(percent) => canary(&current, &contents, percent)?,
            None => contents.over(&current.ruleset),
        };
        let mut changed = Changed {
            dry_run,
            from: current.version,
            version: None,
            differences: current.ruleset.differences(&ruleset),
        };
        let is_first = current.version == 0;
        if changed.differences.is_empty() && !is_first {
            return unchanged(&changed, output);
        }
        if let Some(author) = &author {
            if !output.json {
                print_differences(&changed.differences, output)?;
            }
            let what = match self.canary {
                Some(percent) => format!("applies to logins from {percent} % of the addresses"),
                None => "applies to every login".to_owned(),
            };
            self.change.confirm(&what)?;
            let expected = self.expect.unwrap_or(current.version);
            let version = session
                .admin
                .replace_ruleset(expected, ruleset, author)
                .await;
            changed.version = Some(version?);
            session.finish(output).await;
        } else if let Some(expected) = self.expect.filter(|expected| *expected != current.version) {
            let message = format!(
                "the newest version is {}, and not {expected}",
                current.version
            );
            return Err(Failure::new(Exit::Conflict, message));
        }
        changed.print(output)
    }
}

/// The ruleset in force with this policy for some of the addresses. One that is tried already keeps its addresses.
fn canary(current: &Version, contents: &file::Contents, percent: f64) -> Result<Ruleset, Failure> {
    let policy = contents.policy().clone();
    let ruleset = current.ruleset.clone();
    let canary = match &ruleset.canary {
        Some(canary) if format!("{:?}", canary.policy()) == format!("{policy:?}") => {
            canary.clone().with_percent(percent)?
        }
        _ => Canary::new(policy, percent)?,
    };
    Ok(ruleset.with_canary(canary))
}

/// What is in force already.
pub(super) fn unchanged(changed: &Changed, output: &Output) -> Result<Exit, Failure> {
    if output.json(changed)? {
        return Ok(Exit::Nothing);
    }
    output.nothing(&format!("Version {} is the same already.", changed.from))
}

impl Changed {
    pub(super) fn print(&self, output: &Output) -> Result<Exit, Failure> {
        if output.json(self)? {
            return Ok(Exit::Done);
        }
        if self.dry_run {
            print_differences(&self.differences, output)?;
        }
        let verb = output.paint(
            Style::Green,
            would(self.dry_run, "In force", "Would change"),
        );
        let from = self.from;
        match self.version {
            Some(version) => {
                output.line(format!("{verb}: version {version}, after version {from}."))?;
                if from > 0 {
                    output.line(format!(
                        "To go back: login-rate-limit policy rollback {from}"
                    ))?;
                }
            }
            None => output.line(format!("{verb} version {from} like this."))?,
        }
        Ok(Exit::Done)
    }
}
