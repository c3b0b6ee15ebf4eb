//! `top`: who guesses, and at whom.

use clap::Args;
use tower_login_rate_limit::insight::Busy;

use crate::{
    failure::{Exit, Failure},
    output::{Cell, Output, Style, Table},
    session::Session,
    store::StoreArgs,
};

const EXAMPLES: &str = "\
Examples:
  login-rate-limit top
  login-rate-limit top --count 3 --json | jq -r '.addresses[].id'";

/// Show the addresses and users with most failures and refusals lately
///
/// By the reports of the instances of the app that keep them: `LoginLimiter::with_insight` and `live`, or `serve`.
#[derive(Debug, Args)]
#[command(after_help = EXAMPLES)]
pub(crate) struct Top {
    /// List this many of each
    #[arg(short, long, value_name = "N", default_value_t = 10)]
    count: usize,
}

impl Top {
    pub(crate) async fn run(self, store: &StoreArgs, output: &Output) -> Result<Exit, Failure> {
        let session = Session::to_read(store)?;
        let busiest = session.admin.busiest(self.count).await?;
        let found = Exit::found(!busiest.addresses.is_empty() || !busiest.users.is_empty());
        if output.json(&busiest)? {
            return Ok(found);
        }
        if found == Exit::Nothing {
            let instances = session.admin.instances().await?.len();
            if instances == 0 {
                output.note(
                    "no instance of the app reports itself: is it live, and is --prefix right?",
                );
            }
            return output.nothing("No failures or refusals lately.");
        }
        let address = |busy: &Busy| busy.id.to_string();
        output.table(&table("ADDRESS", &busiest.addresses, address))?;
        output.line("")?;
        let user = |busy: &Busy| match &busy.shown {
            Some(shown) => session.opened(shown),
            None => busy.id.to_string(),
        };
        output.table(&table("USER", &busiest.users, user))?;
        Ok(found)
    }
}

fn table(what: &str, busiest: &[Busy], name: impl Fn(&Busy) -> String) -> Table {
    let mut table = Table::new([what, "FAILURES", "REFUSALS"]);
    // Some may have been counted before an address or user was on the list.
    let has_uncertain = busiest.iter().any(|busy| busy.uncertain > 0);
    if has_uncertain {
        table.column("PERHAPS MORE");
    }
    for busy in busiest {
        let mut row = vec![
            Cell::new(name(busy)),
            Cell::number(busy.failures),
            Cell::number(busy.refusals),
        ];
        if has_uncertain {
            row.push(Cell::number(busy.uncertain).styled(Style::Dim));
        }
        table.row(row);
    }
    table
}
