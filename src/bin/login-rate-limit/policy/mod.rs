//! `policy`: the limits of a fleet, and their versions.

mod check;
mod diff;
pub(crate) mod file;
mod history;
mod rollback;
mod set;
mod show;
mod words;

use clap::{Args, Subcommand};
use tower_login_rate_limit::live::Version;

use crate::{
    failure::{Exit, Failure},
    output::{Output, Style, safe},
    session::Session,
    store::StoreArgs,
};

const EXAMPLES: &str = "\
Examples:
  login-rate-limit policy show
  login-rate-limit policy check policy.toml --standard pci
  login-rate-limit policy diff policy.toml
  login-rate-limit policy set policy.toml --reason 'botnet at single accounts'
  login-rate-limit policy set strict --canary 5 --reason 'try it for 5 % of the addresses'
  login-rate-limit policy history
  login-rate-limit policy rollback 3 --reason 'complaints'

A file is TOML or JSON: a policy, or a whole ruleset with `policy`, `access` and `canary`. In place of a file,
default, strict, nist, pci and owasp are policies of the crate, and a number is a version in the store.";

/// Show, check, change and roll back the limits
#[derive(Debug, Args)]
#[command(after_help = EXAMPLES)]
pub(crate) struct Policy {
    #[command(subcommand)]
    command: Command,
}

#[derive(Debug, Subcommand)]
enum Command {
    Show(show::Show),
    Check(check::Check),
    Set(set::Set),
    Diff(diff::Diff),
    /// List the versions that are kept, the newest first
    History,
    Rollback(rollback::Rollback),
}

impl Policy {
    pub(crate) async fn run(self, store: &StoreArgs, output: &Output) -> Result<Exit, Failure> {
        match self.command {
            Command::Show(show) => show.run(store, output).await,
            Command::Check(check) => check.run(output),
            Command::Set(set) => set.run(store, output).await,
            Command::Diff(diff) => diff.run(store, output).await,
            Command::History => history::run(store, output).await,
            Command::Rollback(rollback) => rollback.run(store, output).await,
        }
    }
}

/// A version that is kept.
async fn version(session: &Session, number: u64) -> Result<Version, Failure> {
    let current = session.admin.ruleset().await?;
    if current.version == number {
        return Ok(current);
    }
    let history = session.admin.history().await?;
    let found = history
        .into_iter()
        .find(|version| version.version == number);
    found.ok_or_else(|| {
        let message = format!("there is no version {number}, or it is no longer kept; `login-rate-limit policy history` lists them");
        Failure::new(Exit::Nothing, message)
    })
}

/// Prints differences, a line each.
fn print_differences(differences: &[String], output: &Output) -> Result<(), Failure> {
    for line in differences {
        let style = if line.contains(": added") {
            Style::Green
        } else if line.ends_with("removed") {
            Style::Red
        } else {
            Style::Yellow
        };
        output.line(format!("  {}", output.paint(style, &safe(line))))?;
    }
    Ok(())
}
