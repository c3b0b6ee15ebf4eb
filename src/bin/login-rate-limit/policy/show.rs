//! `policy show`.

use clap::Args;

use super::{version, words};
use crate::{
    access,
    failure::{Exit, Failure},
    output::{Output, Style, safe},
    period,
    session::Session,
    store::StoreArgs,
};

/// Show the limits in force, with the access rules
#[derive(Debug, Args)]
pub(super) struct Show {
    /// An earlier version
    #[arg(long, value_name = "N")]
    version: Option<u64>,
    /// As a file for `policy set`
    #[arg(long, conflicts_with = "json")]
    toml: bool,
}

impl Show {
    pub(super) async fn run(self, store: &StoreArgs, output: &Output) -> Result<Exit, Failure> {
        let session = Session::to_read(store)?;
        let shown = match self.version {
            Some(number) => version(&session, number).await?,
            None => session.ruleset(output).await?,
        };
        if self.toml {
            let text = toml::to_string_pretty(&shown.ruleset);
            let text = text.map_err(|error| Failure::error(error.to_string()))?;
            output.line(text.trim_end())?;
            return Ok(Exit::Done);
        }
        if output.json(&shown)? {
            return Ok(Exit::Done);
        }
        let number = output.paint(Style::Bold, &format!("Version {}", shown.version));
        output.line(match shown.version {
            0 => format!("{number}: nothing is written to the store; this is what the app is assumed to be started with."),
            _ => format!(
                "{number} of {} UTC, by {}: {}",
                period::shown(shown.at),
                safe(&shown.author),
                safe(&shown.reason)
            ),
        })?;
        output.line("")?;
        let ruleset = &shown.ruleset;
        output.table(&words::table(&ruleset.policy))?;
        if let Some(canary) = &ruleset.canary {
            output.line(format!(
                "\nCanary, for {} % of the addresses:",
                canary.percent()
            ))?;
            output.table(&words::table(canary.policy()))?;
        }
        if !ruleset.access.is_empty() {
            output.line("\nAccess rules, ahead of the limits:")?;
            output.table(&access::table(ruleset.access.rules().iter()))?;
        }
        Ok(Exit::Done)
    }
}
