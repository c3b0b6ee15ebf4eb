//! `policy diff`.

use std::path::Path;

use clap::Args;
use serde::Serialize;
use tower_login_rate_limit::live::Ruleset;

use super::{file, print_differences, version};
use crate::{
    failure::{Exit, Failure},
    output::{Output, safe},
    session::{Session, named_policy},
    store::StoreArgs,
};

/// Show what is different in a file or a version
///
/// With one argument, what is in force is compared with it; with two, the first with the second.
#[derive(Debug, Args)]
pub(super) struct Diff {
    /// A file, the number of a version, or default, strict, nist, pci, owasp
    #[arg(value_name = "FILE|VERSION")]
    one: String,
    /// The same
    #[arg(value_name = "FILE|VERSION")]
    other: Option<String>,
}

#[derive(Serialize)]
struct Report {
    from: String,
    to: String,
    differences: Vec<String>,
}

impl Diff {
    pub(super) async fn run(self, store: &StoreArgs, output: &Output) -> Result<Exit, Failure> {
        let session = Session::to_read(store)?;
        let (from, to) = match &self.other {
            Some(other) => (Some(&self.one), other),
            None => (None, &self.one),
        };
        let current = session.ruleset(output).await?;
        let before = match from {
            Some(text) => ruleset(&session, text, &current.ruleset).await?,
            None => current.ruleset.clone(),
        };
        let after = ruleset(&session, to, &before).await?;
        let in_force = || format!("version {}", current.version);
        let report = Report {
            from: from.map_or_else(in_force, |text| shown(text)),
            to: shown(to),
            differences: before.differences(&after),
        };
        let found = Exit::found(!report.differences.is_empty());
        if output.json(&report)? {
            return Ok(found);
        }
        let (from, to) = (safe(&report.from), safe(&report.to));
        if report.differences.is_empty() {
            return output.nothing(&format!("No difference between {from} and {to}."));
        }
        output.line(format!("From {from} to {to}:"))?;
        print_differences(&report.differences, output)?;
        Ok(found)
    }
}

/// What an argument names. A policy is compared with the access rules beside it.
async fn ruleset(session: &Session, text: &str, beside: &Ruleset) -> Result<Ruleset, Failure> {
    if let Some(policy) = named_policy(text) {
        return Ok(file::Contents::Policy(policy).over(beside));
    }
    match text.parse() {
        Ok(number) => Ok(version(session, number).await?.ruleset),
        Err(_) => Ok(file::read(Path::new(text))?.over(beside)),
    }
}

fn shown(text: &str) -> String {
    match text.parse::<u64>() {
        Ok(number) => format!("version {number}"),
        Err(_) => text.to_owned(),
    }
}
