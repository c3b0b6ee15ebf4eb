//! `allow` and `deny`: access rules, ahead of the limits.

mod add;
mod list;
mod remove;
mod tried;

use clap::{Args, Subcommand};
use serde::Serialize;
use tower_login_rate_limit::access::{AccessRule, Action};

use crate::{
    failure::{Exit, Failure},
    output::{Cell, Output, Style, Table},
    period,
    store::StoreArgs,
};

pub(crate) const ALLOW: Action = Action::Allow;
pub(crate) const DENY: Action = Action::Deny;

pub(crate) const ALLOW_EXAMPLES: &str = "\
Examples:
  login-rate-limit allow list
  login-rate-limit allow try --address 192.0.2.7
  login-rate-limit allow add office --network 192.0.2.0/24 --reason 'one address for 800 people'
  login-rate-limit allow add pentest --network 203.0.113.7 --for 7d --reason 'agreed until Friday'
  login-rate-limit allow remove pentest --reason 'done'

A deny is stronger than any allow, except by a longer network.";

pub(crate) const DENY_EXAMPLES: &str = "\
Examples:
  login-rate-limit deny list
  login-rate-limit deny try --address 192.0.2.7 --user-agent 'sqlmap/1.8'
  login-rate-limit deny add scanner --user-agent sqlmap --reason 'noise'
  login-rate-limit deny add botnet --network 203.0.113.0/24 --for 1d --reason 'incident 17'
  login-rate-limit deny remove botnet --reason 'over'";

#[derive(Debug, Args)]
pub(crate) struct Access {
    #[command(subcommand)]
    command: Command,
}

#[derive(Debug, Subcommand)]
enum Command {
    Add(add::Add),
    Remove(remove::Remove),
    /// List the rules
    List,
    Try(tried::Try),
}

impl Access {
    pub(crate) async fn run(
        self,
        store: &StoreArgs,
        output: &Output,
        action: Action,
    ) -> Result<Exit, Failure> {
        match self.command {
            Command::Add(add) => add.run(store, output, action).await,
            Command::Remove(remove) => remove.run(store, output, action).await,
            Command::List => list::run(store, output, action).await,
            Command::Try(tried) => tried.run(store, output).await,
        }
    }
}

/// A change of one rule.
#[derive(Serialize)]
struct Changed<'a> {
    dry_run: bool,
    /// The version that was written, or would be changed.
    version: u64,
    rule: &'a AccessRule,
}

impl Changed<'_> {
    /// `done` and `would` are what was done, and what would be.
    fn print(&self, output: &Output, done: &str, would: &str) -> Result<Exit, Failure> {
        if output.json(self)? {
            return Ok(Exit::Done);
        }
        output.line(if self.dry_run {
            format!("{}:", output.paint(Style::Green, would))
        } else {
            let version = self.version;
            format!("{} in version {version}:", output.paint(Style::Green, done))
        })?;
        output.table(&table(std::iter::once(self.rule)))?;
        Ok(Exit::Done)
    }
}

/// Rules for people.
pub(crate) fn table<'r>(rules: impl Iterator<Item = &'r AccessRule>) -> Table {
    let header = [
        "NAME",
        "ACTION",
        "MATCHES",
        "EXPIRES (UTC)",
        "AUTHOR",
        "NOTE",
    ];
    let mut table = Table::new(header);
    let now = period::now();
    for rule in rules {
        let style = match rule.action() {
            Action::Allow => Style::Green,
            Action::Deny => Style::Red,
        };
        let expires = match rule.expires_at() {
            None => "never".to_owned(),
            Some(at) if rule.is_expired(now) => format!("{} (over)", period::shown(at)),
            Some(at) => period::shown(at),
        };
        table.row([
            Cell::new(rule.name()),
            Cell::new(rule.action().as_str()).styled(style),
            Cell::new(matches(rule)),
            Cell::new(expires),
            Cell::new(rule.author().unwrap_or_default()),
            Cell::new(rule.note().unwrap_or_default()).styled(Style::Dim),
        ]);
    }
    table
}

/// What a rule matches: `network 192.0.2.0/24, user alice`.
fn matches(rule: &AccessRule) -> String {
    let field = rule.field().as_str().replace('_', " ");
    match rule.only_user() {
        Some(user) => format!("{field} {}, user {user}", rule.value()),
        None => format!("{field} {}", rule.value()),
    }
}
