//! `block`: blocks by hand.

use clap::Args;
use serde::Serialize;
use tower_login_rate_limit::Period;

use crate::{
    change::ChangeArgs,
    failure::{Exit, Failure},
    output::{Output, Style},
    session::{Session, would},
    store::StoreArgs,
    subject::SubjectArgs,
};

const EXAMPLES: &str = "\
Examples:
  login-rate-limit block 192.0.2.1 --for 1d --reason 'incident 17'
  login-rate-limit block 203.0.113.0/24 --for 12h --reason 'credential stuffing' --yes
  login-rate-limit block --user alice --address 192.0.2.1 --for 30m --reason 'ticket 4711'
  login-rate-limit deny remove block-…       ends it early";

/// Block an address, a network or a user by hand, ahead of all limits
#[derive(Debug, Args)]
#[command(after_help = EXAMPLES)]
pub(crate) struct Block {
    #[command(flatten)]
    subject: SubjectArgs,
    /// For how long: 30m, 12h, 1d, forever
    #[arg(long = "for", value_name = "TIME", value_parser = crate::period::period)]
    lasts: Period,
    #[command(flatten)]
    change: ChangeArgs,
}

#[derive(Serialize)]
struct Report<'a> {
    dry_run: bool,
    /// The access rule that blocks.
    rule: Option<&'a str>,
}

impl Block {
    pub(crate) async fn run(self, store: &StoreArgs, output: &Output) -> Result<Exit, Failure> {
        let named = self.subject.named()?;
        let subject = named.subject()?;
        let dry_run = self.change.dry_run;
        let author = self.change.author()?;
        let session = Session::to_change(store)?;
        session.ruleset_to_change().await?;
        let lasts = match self.lasts {
            Period::Forever => "until the rule is removed".to_owned(),
            lasts => format!("for {lasts}"),
        };
        let rule = match &author {
            Some(author) => {
                if named.is_wide() {
                    self.change.confirm(&format!("blocks {named} {lasts}"))?;
                }
                let rule = session.admin.block(subject, self.lasts, author).await?;
                session.finish(output).await;
                Some(rule)
            }
            None => None,
        };
        let report = Report {
            dry_run,
            rule: rule.as_deref(),
        };
        if output.json(&report)? {
            return Ok(Exit::Done);
        }
        let verb = output.paint(Style::Green, would(dry_run, "Blocked", "Would block"));
        output.line(format!("{verb} {named} {lasts}."))?;
        if let Some(rule) = rule {
            output.line(format!("To end it: login-rate-limit deny remove {rule}"))?;
        }
        Ok(Exit::Done)
    }
}
