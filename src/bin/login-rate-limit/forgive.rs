//! `forgive`: takes back a user's own failures.

use std::net::IpAddr;

use clap::Args;
use serde::Serialize;
use tower_login_rate_limit::admin::{self, Forgiven, Subject};

use crate::{
    blocked::{self, blocks},
    change::ChangeArgs,
    failure::{Exit, Failure},
    output::{Output, Style, plural, safe},
    period,
    session::Session,
    store::StoreArgs,
    unblock::print_refusing,
};

const EXAMPLES: &str = "\
Examples:
  login-rate-limit forgive alice --reason 'password reset, ticket 4711'
  login-rate-limit forgive alice --address 192.0.2.1 --reason 'identified by phone'
  login-rate-limit forgive alice --dry-run";

/// Take back a user's own failures, as after a password reset
///
/// At each address where a block of the user is listed, or at those that are named. The same failures are taken out
/// of the counters that the user shares with others; failures of others stay.
#[derive(Debug, Args)]
#[command(after_help = EXAMPLES)]
pub(crate) struct Forgive {
    /// The user, spelled as at the login
    user: String,
    /// Only at this address; may be repeated
    #[arg(short, long, value_name = "ADDRESS")]
    address: Vec<IpAddr>,
    /// Failures of other spellings of the name too
    #[arg(long)]
    every_spelling: bool,
    #[command(flatten)]
    change: ChangeArgs,
}

#[derive(Serialize)]
struct Report<'a> {
    dry_run: bool,
    #[serde(flatten)]
    forgiven: &'a Forgiven,
}

impl Forgive {
    pub(crate) async fn run(self, store: &StoreArgs, output: &Output) -> Result<Exit, Failure> {
        let Some(author) = self.change.author()? else {
            return self.preview(store, output).await;
        };
        let session = Session::to_change(store)?;
        session.ruleset(output).await?;
        let user = safe(&self.user);
        if self.address.len() != 1 {
            let places = match self.address.len() {
                0 => "every address where a block of the user is listed".to_owned(),
                n => plural(n, "address", "addresses"),
            };
            self.change.confirm(&format!(
                "takes back the failures of user {user} at {places}"
            ))?;
        }
        let mut forgive = admin::Forgive::user(&self.user).with_every_spelling(self.every_spelling);
        if !self.address.is_empty() {
            forgive = forgive.at(self.address.iter().copied());
        }
        let forgiven = session.admin.forgive(&forgive, &author).await?;
        session.finish(output).await;
        let found = Exit::found(!forgiven.addresses.is_empty());
        if output.json(&Report {
            dry_run: false,
            forgiven: &forgiven,
        })? {
            return Ok(found);
        }
        if forgiven.addresses.is_empty() {
            output.line(format!("No block of user {user} is listed at any address."))?;
        } else {
            let places: Vec<_> = forgiven.addresses.iter().map(ToString::to_string).collect();
            let verb = output.paint(Style::Green, "Forgiven");
            let n = blocks(forgiven.lifted.len());
            output.line(format!(
                "{verb}: user {user} at {}; {n} lifted.",
                places.join(", ")
            ))?;
        }
        print_refusing(
            forgiven.denied_by.as_ref(),
            &forgiven.refused_by,
            &session,
            output,
        )?;
        Ok(found)
    }

    /// The blocks of the user at these addresses.
    async fn preview(&self, store: &StoreArgs, output: &Output) -> Result<Exit, Failure> {
        let session = Session::to_read(store)?;
        session.ruleset(output).await?;
        let mut preview = session
            .admin
            .preview_unblock(Subject::user(&self.user))
            .await?;
        preview.lifted.retain(|block| {
            let ip = block.address.map(|address| address.ip());
            ip.is_some_and(|ip| self.address.is_empty() || self.address.contains(&ip))
        });
        preview.count = preview.lifted.len();
        let found = Exit::found(preview.count > 0);
        #[derive(Serialize)]
        struct Preview<'a> {
            dry_run: bool,
            lifted: &'a [admin::Block],
        }
        let lifted = &preview.lifted;
        if output.json(&Preview {
            dry_run: true,
            lifted,
        })? {
            return Ok(found);
        }
        let user = safe(&self.user);
        if lifted.is_empty() {
            return output.nothing(&format!(
                "No block of user {user} is listed at such an address."
            ));
        }
        output.line(format!(
            "Would take back the failures of user {user} in {}:",
            blocks(lifted.len())
        ))?;
        output.table(&blocked::table(&session, lifted, period::now(), false))?;
        Ok(found)
    }
}
