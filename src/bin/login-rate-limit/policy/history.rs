//! `policy history`.

use serde::Serialize;
use tower_login_rate_limit::live::Version;

use crate::{
    failure::{Exit, Failure},
    output::{Cell, Output, Style, Table, counted},
    period,
    session::Session,
    store::StoreArgs,
};

#[derive(Serialize)]
struct Report {
    versions: Vec<Version>,
}

pub(super) async fn run(store: &StoreArgs, output: &Output) -> Result<Exit, Failure> {
    let session = Session::to_read(store)?;
    let newest = session.admin.ruleset().await?;
    let mut versions = session.admin.history().await?;
    let is_newest = |version: &Version| version.version == newest.version;
    if newest.version > 0 && !versions.iter().any(is_newest) {
        versions.insert(0, newest.clone());
    }
    let found = Exit::found(!versions.is_empty());
    let report = Report { versions };
    if output.json(&report)? {
        return Ok(found);
    }
    if report.versions.is_empty() {
        return output
            .nothing("No version has been written: the app decides by what it was started with.");
    }
    let mut table = Table::new(["VERSION", "WRITTEN (UTC)", "AUTHOR", "CHANGES", "REASON"]);
    let versions = report.versions.iter();
    let before = report.versions.iter().skip(1).map(Some).chain([None]);
    for (version, before) in versions.zip(before) {
        let changes = before.map(|before| before.ruleset.differences(&version.ruleset));
        let changes = match changes.as_deref() {
            None => "first that is kept".to_owned(),
            Some([one]) => shortened(one),
            Some(several) => counted(several.len(), "change"),
        };
        let style = if is_newest(version) {
            Style::Green
        } else {
            Style::Plain
        };
        table.row([
            Cell::number(version.version).styled(style),
            Cell::new(period::shown(version.at)),
            Cell::new(&version.author),
            Cell::new(changes),
            Cell::new(&version.reason),
        ]);
    }
    output.table(&table)?;
    Ok(found)
}

/// A change of a rule has its name ahead: the rest is for `policy diff`.
fn shortened(line: &str) -> String {
    match line.char_indices().nth(60) {
        Some((end, _)) => format!("{}…", &line[..end]),
        None => line.to_owned(),
    }
}
