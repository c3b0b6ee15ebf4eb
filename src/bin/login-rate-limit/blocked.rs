//! `blocked`: the list of blocks in force.

use std::net::IpAddr;

use clap::Args;
use serde::Serialize;
use tower_login_rate_limit::{
    admin::{Block, BlockCount, BlockFilter, Blocks},
    algorithm::Millis,
};

use crate::{
    failure::{Exit, Failure},
    output::{Cell, Output, Style, Table, counted},
    period,
    session::Session,
    store::StoreArgs,
};

const EXAMPLES: &str = "\
Examples:
  login-rate-limit blocked
  login-rate-limit blocked --rule address --network 192.0.2.0/24
  login-rate-limit blocked --count
  if login-rate-limit blocked --user alice >/dev/null; then echo blocked; fi
  login-rate-limit blocked --json | jq -r '.blocks[].id'";

/// The longest page that the library returns.
const PAGE: usize = 1_000;

/// List the blocks in force, those that lift first at the top
#[derive(Debug, Args)]
#[command(after_help = EXAMPLES)]
pub(crate) struct Blocked {
    /// Only those of this rule
    #[arg(long, value_name = "NAME")]
    rule: Option<String>,
    /// Only those of this address, and of users there
    #[arg(short, long, value_name = "ADDRESS", conflicts_with = "network")]
    address: Option<IpAddr>,
    /// Only those in this network, and of users there
    #[arg(long, value_name = "NETWORK")]
    network: Option<String>,
    /// Only those of this user, in any spelling of the name
    #[arg(short, long, value_name = "NAME")]
    user: Option<String>,
    /// List this many at most
    #[arg(long, value_name = "N", default_value_t = 100, value_parser = clap::value_parser!(u32).range(1..))]
    limit: u32,
    /// Continue a list where it ended
    #[arg(long, value_name = "CURSOR")]
    after: Option<String>,
    /// Count the blocks of each rule, without looking whether each is still in force
    #[arg(long, conflicts_with_all = ["address", "network", "user", "after"])]
    count: bool,
    /// With the id of each block, for `unblock --id`
    #[arg(short, long)]
    long: bool,
}

#[derive(Serialize)]
struct Counts {
    counts: Vec<BlockCount>,
    total: u64,
}

impl Blocked {
    pub(crate) async fn run(self, store: &StoreArgs, output: &Output) -> Result<Exit, Failure> {
        let session = Session::to_read(store)?;
        session.ruleset(output).await?;
        if self.count {
            return self.count(&session, output).await;
        }
        let page = self.list(&session).await?;
        let found = Exit::found(!page.blocks.is_empty());
        if output.json(&page)? {
            return Ok(found);
        }
        if page.blocks.is_empty() && page.next.is_none() {
            return output.nothing("No blocks in force.");
        }
        output.table(&table(&session, &page.blocks, page.now, self.long))?;
        if let Some(next) = &page.next {
            output.note(format!(
                "there are more: add --after '{next}', or a higher --limit"
            ));
        }
        Ok(found)
    }

    async fn list(&self, session: &Session) -> Result<Blocks, Failure> {
        let mut filter = BlockFilter::new();
        if let Some(rule) = &self.rule {
            filter = filter.with_rule(rule);
        }
        if let Some(address) = self.address {
            filter = filter.with_address(address);
        }
        if let Some(network) = &self.network {
            filter = (filter.with_network(network))
                .map_err(|error| Failure::usage(error.to_string()))?;
        }
        if let Some(user) = &self.user {
            filter = filter.with_user(user);
        }
        if let Some(cursor) = &self.after {
            filter = filter.after(cursor);
        }
        let wanted = self.limit as usize;
        let mut list = session
            .admin
            .blocks(&filter.clone().with_limit(wanted.min(PAGE)))
            .await?;
        while list.blocks.len() < wanted
            && let Some(next) = &list.next
        {
            let limit = (wanted - list.blocks.len()).min(PAGE);
            let filter = filter.clone().after(next).with_limit(limit);
            let page = session.admin.blocks(&filter).await?;
            list.blocks.extend(page.blocks);
            (list.next, list.now) = (page.next, page.now);
        }
        Ok(list)
    }

    async fn count(&self, session: &Session, output: &Output) -> Result<Exit, Failure> {
        let mut counts = session.admin.block_counts().await?;
        if let Some(rule) = &self.rule {
            counts.retain(|count| *count.rule == **rule);
        }
        let total = counts.iter().map(|count| count.blocks).sum();
        let counts = Counts { counts, total };
        let found = Exit::found(total > 0);
        if output.json(&counts)? {
            return Ok(found);
        }
        let mut table = Table::new(["RULE", "BLOCKS"]);
        for count in &counts.counts {
            table.row([Cell::new(&count.rule), Cell::number(count.blocks)]);
        }
        table.row([Cell::new("total").styled(Style::Dim), Cell::number(total)]);
        output.table(&table)?;
        Ok(found)
    }
}

/// Blocks for people.
pub(crate) fn table(session: &Session, blocks: &[Block], now: Millis, long: bool) -> Table {
    let mut table = Table::new([
        "ADDRESS",
        "USER",
        "RULE",
        "FAILURES",
        "SINCE (UTC)",
        "LIFTS IN",
    ]);
    if long {
        table.column("ID");
    }
    for block in blocks {
        let address = block
            .address
            .map_or("any".to_owned(), |address| address.to_string());
        let user = match block.by_user {
            true => Cell::new(session.user(block.user.as_ref())),
            false => Cell::new("any").styled(Style::Dim),
        };
        let lifts = period::left(block.lifts_at, now);
        let lifts = if block.shadow {
            format!("{lifts} (shadow)")
        } else {
            lifts
        };
        let mut row = vec![
            Cell::new(address),
            user,
            Cell::new(&block.rule),
            Cell::number(format!("{} of {}", block.usage, block.limit)),
            Cell::new(block.since.map_or("unknown".to_owned(), period::shown)),
            Cell::new(lifts).styled(if block.shadow {
                Style::Dim
            } else {
                Style::Yellow
            }),
        ];
        if long {
            row.push(Cell::new(block.id.to_string()).styled(Style::Dim));
        }
        table.row(row);
    }
    table
}

/// "3 blocks".
pub(crate) fn blocks(n: usize) -> String {
    counted(n, "block")
}
