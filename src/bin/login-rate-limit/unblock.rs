//! `unblock`: lifts blocks, exactly those that are meant.

use clap::Args;
use serde::Serialize;
use tower_login_rate_limit::{
    access::AccessRule,
    admin::{self, Block, BlockFilter, BlockId, Unblocked},
};

use crate::{
    blocked::{self, blocks},
    change::ChangeArgs,
    failure::{Exit, Failure},
    output::{Output, Style, counted, safe},
    period,
    session::{Session, would},
    store::StoreArgs,
    subject::{Named, SubjectArgs},
};

const EXAMPLES: &str = "\
Examples:
  login-rate-limit unblock --user alice --address 192.0.2.1 --reason 'ticket 4711'
  login-rate-limit unblock 192.0.2.1 --with-users --reason 'office of a customer'
  login-rate-limit unblock 192.0.2.0/24 --dry-run
  login-rate-limit unblock --id 'address/login:{192.0.2.1}:address' --reason 'ticket 4711'";

/// Lift the blocks of an address, a network or a user, or one of a list
///
/// Only what is blocked is cleared: where failures count that block nothing, an attacker gets no fresh guesses.
#[derive(Debug, Args)]
#[command(after_help = EXAMPLES)]
pub(crate) struct Unblock {
    #[command(flatten)]
    subject: SubjectArgs,
    /// A block of the list, by its id (`blocked --long`); may be repeated
    #[arg(long, value_name = "ID", conflicts_with_all = ["place", "user", "address"])]
    id: Vec<String>,
    /// For an address: lift the blocks of users there too
    #[arg(long)]
    with_users: bool,
    #[command(flatten)]
    change: ChangeArgs,
}

#[derive(Serialize)]
struct Report<'a> {
    dry_run: bool,
    #[serde(flatten)]
    unblocked: &'a Unblocked,
}

impl Unblock {
    pub(crate) async fn run(self, store: &StoreArgs, output: &Output) -> Result<Exit, Failure> {
        let named = match &self.id[..] {
            [] => Some(self.subject.named()?),
            _ => None,
        };
        let author = self.change.author()?;
        let session = match author {
            Some(_) => Session::to_change(store)?,
            None => Session::to_read(store)?,
        };
        session.ruleset(output).await?;
        let (what, is_wide, mut unblocked) = match &named {
            Some(named) => {
                let preview = session.admin.preview_unblock(self.target(named)?).await?;
                let is_wide = named.is_wide() || self.with_users;
                (named.to_string(), is_wide, preview)
            }
            None => {
                let what = counted(self.id.len(), "id");
                (what, self.id.len() > 1, self.preview_ids(&session).await?)
            }
        };
        if let Some(author) = author.filter(|_| unblocked.count > 0) {
            if is_wide {
                let n = blocks(unblocked.count);
                self.change.confirm(&format!("lifts {n} of {what}"))?;
            }
            unblocked = match &named {
                Some(named) => session.admin.unblock(self.target(named)?, &author).await?,
                None => self.unblock_ids(&session, &author).await?,
            };
            session.finish(output).await;
        }
        self.print(&what, &unblocked, &session, output)
    }

    fn target(&self, named: &Named) -> Result<admin::Unblock, Failure> {
        let target = admin::Unblock::of(named.subject()?);
        Ok(target.with_pairs(self.with_users))
    }

    fn ids(&self) -> Result<Vec<BlockId>, Failure> {
        let ids = self.id.iter().map(|id| id.parse::<BlockId>());
        let ids = ids.collect::<Result<_, _>>();
        ids.map_err(|error| Failure::usage(error.to_string()))
    }

    /// The blocks that the ids name, by the lists of their rules.
    async fn preview_ids(&self, session: &Session) -> Result<Unblocked, Failure> {
        let mut unblocked = Unblocked::default();
        for id in self.ids()? {
            let text = id.to_string();
            let rule = text.split_once('/').map_or("", |(rule, _)| rule);
            let mut filter = BlockFilter::new().with_rule(rule).with_limit(1_000);
            loop {
                let page = session.admin.blocks(&filter).await?;
                let mut found = page.blocks.into_iter();
                if let Some(block) = found.find(|block| block.id == id) {
                    unblocked.count += 1;
                    unblocked.lifted.push(block);
                    break;
                }
                match page.next {
                    Some(next) => filter = filter.after(next),
                    None => break,
                }
            }
        }
        Ok(unblocked)
    }

    async fn unblock_ids(
        &self,
        session: &Session,
        author: &admin::Author,
    ) -> Result<Unblocked, Failure> {
        let mut all = Unblocked::default();
        for id in self.ids()? {
            let one = session.admin.unblock_counter(&id, author).await?;
            all.count += one.count;
            all.lifted.extend(one.lifted);
        }
        Ok(all)
    }

    fn print(
        &self,
        what: &str,
        unblocked: &Unblocked,
        session: &Session,
        output: &Output,
    ) -> Result<Exit, Failure> {
        let dry_run = self.change.dry_run;
        let found = Exit::found(unblocked.count > 0);
        if output.json(&Report { dry_run, unblocked })? {
            return Ok(found);
        }
        let now = period::now();
        match unblocked.count {
            0 => output.line(format!("No block of {what} is in force."))?,
            n => {
                let verb = would(dry_run, "Lifted", "Would lift");
                output.line(format!(
                    "{} {} of {what}:",
                    output.paint(Style::Green, verb),
                    blocks(n)
                ))?;
                output.table(&blocked::table(session, &unblocked.lifted, now, false))?;
                if n > unblocked.lifted.len() {
                    output.line(format!("… and {} more", n - unblocked.lifted.len()))?;
                }
            }
        }
        print_refusing(
            unblocked.denied_by.as_ref(),
            &unblocked.refused_by,
            session,
            output,
        )?;
        Ok(found)
    }
}

/// What refuses a subject all the same.
pub(crate) fn print_refusing(
    denied_by: Option<&AccessRule>,
    refused_by: &[Block],
    session: &Session,
    output: &Output,
) -> Result<(), Failure> {
    if let Some(rule) = denied_by {
        let name = safe(rule.name());
        let denied = output.paint(Style::Red, "denied");
        output.line(format!(
            "Still {denied} by the access rule {name}: login-rate-limit deny remove {name}"
        ))?;
    }
    if !refused_by.is_empty() {
        output.line(format!("\nStill {}:", output.paint(Style::Red, "refused")))?;
        output.table(&blocked::table(session, refused_by, period::now(), true))?;
    }
    Ok(())
}
