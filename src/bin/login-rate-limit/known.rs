//! `known`: the addresses that a user has logged in from.

use clap::Args;
use serde::Serialize;
use tower_login_rate_limit::Address;

use crate::{
    change::ChangeArgs,
    failure::{Exit, Failure},
    output::{Output, Style, plural, safe},
    session::{Session, would},
    store::StoreArgs,
};

const EXAMPLES: &str = "\
Examples:
  login-rate-limit known alice
  login-rate-limit known alice --forget 192.0.2.1 --reason 'account was taken over'
  login-rate-limit known alice --forget --reason 'account was taken over'";

/// Show or forget the addresses that a user has logged in from, which some rules exempt
#[derive(Debug, Args)]
#[command(after_help = EXAMPLES)]
pub(crate) struct Known {
    /// The user, spelled as at the login
    user: String,
    /// Forget this address, or all of them
    #[arg(long, value_name = "ADDRESS", num_args = 0..=1)]
    forget: Option<Option<Address>>,
    #[command(flatten)]
    change: ChangeArgs,
}

#[derive(Serialize)]
struct Report {
    addresses: Vec<String>,
}

#[derive(Serialize)]
struct Forgotten {
    dry_run: bool,
    forgotten: usize,
}

impl Known {
    pub(crate) async fn run(self, store: &StoreArgs, output: &Output) -> Result<Exit, Failure> {
        if let Some(address) = self.forget {
            return self.forget(address, store, output).await;
        }
        let session = Session::to_read(store)?;
        let addresses = session.admin.known_addresses(&self.user).await?;
        let addresses: Vec<_> = addresses.iter().map(ToString::to_string).collect();
        let found = Exit::found(!addresses.is_empty());
        let report = Report { addresses };
        if output.json(&report)? {
            return Ok(found);
        }
        if report.addresses.is_empty() {
            let user = safe(&self.user);
            return output.nothing(&format!(
                "User {user} has logged in from no address that is known."
            ));
        }
        for address in &report.addresses {
            output.line(address)?;
        }
        Ok(found)
    }

    async fn forget(
        &self,
        address: Option<Address>,
        store: &StoreArgs,
        output: &Output,
    ) -> Result<Exit, Failure> {
        let dry_run = self.change.dry_run;
        let author = self.change.author()?;
        let session = Session::to_change(store)?;
        let known = session.admin.known_addresses(&self.user).await?;
        let mut forgotten = match address {
            Some(address) => known.iter().filter(|known| **known == address).count(),
            None => known.len(),
        };
        let user = safe(&self.user);
        if let Some(author) = author.filter(|_| forgotten > 0) {
            if address.is_none() {
                let n = addresses(forgotten);
                self.change
                    .confirm(&format!("forgets {n} of user {user}"))?;
            }
            forgotten = (session.admin)
                .forget_address(&self.user, address, &author)
                .await?;
            session.finish(output).await;
        }
        let found = Exit::found(forgotten > 0);
        if output.json(&Forgotten { dry_run, forgotten })? {
            return Ok(found);
        }
        if forgotten == 0 {
            return output.nothing(&format!("User {user} has no such known address."));
        }
        let verb = output.paint(Style::Green, would(dry_run, "Forgot", "Would forget"));
        output.line(format!("{verb} {} of user {user}.", addresses(forgotten)))?;
        Ok(found)
    }
}

fn addresses(n: usize) -> String {
    plural(n, "known address", "known addresses")
}
