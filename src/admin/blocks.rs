//! The list of blocks in force.

use std::{net::IpAddr, sync::Arc};

use ipnet::IpNet;
use serde::Serialize;

use super::{
    Admin, AdminError, Block,
    counters::{Search, enabled_rules},
    subject::parse_network,
    text,
};
use crate::{Address, algorithm::Millis, store::BlockQuery};

/// How many pages of the index one page of a list is made of at most, if most entries are stale or elsewhere.
const MAX_ROUNDS: usize = 10;
/// How many blocks a page has at most.
const MAX_PAGE: usize = 1_000;

/// Which blocks to list; all of them unless set.
///
/// ```
/// use tower_login_rate_limit::{Rule, admin::BlockFilter};
///
/// let filter = BlockFilter::new().with_rule(Rule::ADDRESS).with_network("192.0.2.0/24")?.with_limit(20);
/// # Ok::<(), tower_login_rate_limit::admin::AdminError>(())
/// ```
#[derive(Clone, Default)]
#[must_use = "a filter does nothing until blocks are listed"]
pub struct BlockFilter {
    rule: Option<String>,
    address: Option<IpAddr>,
    network: Option<IpNet>,
    user: Option<String>,
    after: Option<String>,
    limit: Option<usize>,
}

impl BlockFilter {
    /// All blocks.
    pub fn new() -> Self {
        Self::default()
    }

    /// Only those of this rule.
    pub fn with_rule(mut self, rule: impl Into<String>) -> Self {
        self.rule = Some(rule.into());
        self
    }

    /// Only those of this address, and of users at this address. Those of a network around it are others:
    /// [`Admin::explain`] shows them together.
    pub const fn with_address(mut self, address: IpAddr) -> Self {
        self.address = Some(address);
        self
    }

    /// Only those of addresses in this network, and of users there.
    ///
    /// # Errors
    ///
    /// If the text is not a network.
    pub fn with_network(mut self, network: impl AsRef<str>) -> Result<Self, AdminError> {
        self.network = Some(parse_network(network.as_ref())?);
        Ok(self)
    }

    /// Only those of this user, in any spelling of the name. The store is queried by a hash, since it holds no names.
    pub fn with_user(mut self, user: impl Into<String>) -> Self {
        self.user = Some(user.into());
        self
    }

    /// The page after the one that ended with this cursor.
    pub fn after(mut self, cursor: impl Into<String>) -> Self {
        self.after = Some(cursor.into());
        self
    }

    /// With pages of this many blocks at most, 1 to 1,000; 100 unless set.
    pub const fn with_limit(mut self, limit: usize) -> Self {
        self.limit = Some(limit);
        self
    }
}

/// Does not show the user: logs must not name people.
impl std::fmt::Debug for BlockFilter {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.debug_struct("BlockFilter")
            .field("rule", &self.rule)
            .field("address", &self.address)
            .field("network", &self.network)
            .finish_non_exhaustive()
    }
}

/// A page of the list of blocks.
#[derive(Clone, Debug, Serialize)]
#[non_exhaustive]
pub struct Blocks {
    /// The blocks, those that lift first at the beginning.
    pub blocks: Vec<Block>,
    /// Where the next page begins, for [`BlockFilter::after`]; `None` if this is the last one. A page may have
    /// fewer blocks than asked for, or none, and still be followed by others.
    pub next: Option<String>,
    /// When the list was read, in milliseconds since 1970, by the store's clock.
    #[serde(serialize_with = "text::time")]
    pub now: Millis,
}

/// How many blocks a rule has.
#[derive(Clone, Debug, PartialEq, Eq, Serialize)]
#[non_exhaustive]
pub struct BlockCount {
    /// The rule.
    pub rule: Arc<str>,
    /// Its blocks in the list. They are not verified one by one, so some may have been lifted.
    pub blocks: u64,
}

impl Admin {
    /// The blocks in force, a page at a time, those that lift first at the beginning.
    ///
    /// Each is verified: what the list contains that is not in force is dropped from it. Blocks are listed when
    /// a failure begins them. What begins otherwise is missing, though [`explain`](Self::explain) finds it: a block
    /// by attempts that were never settled, or one of which this could not be written.
    ///
    /// # Errors
    ///
    /// If the filter names a rule that the policy does not have or the cursor is not one, or if the store failed.
    pub async fn blocks(&self, filter: &BlockFilter) -> Result<Blocks, AdminError> {
        self.catch_up().await?;
        let search = self.search_of(filter)?;
        let limit = filter.limit.unwrap_or(100);
        if !(1..=MAX_PAGE).contains(&limit) {
            return Err(AdminError::invalid(format!(
                "a page has 1 to {MAX_PAGE} blocks, not {limit}"
            )));
        }
        let mut page = Blocks {
            blocks: Vec::new(),
            next: filter.after.clone(),
            now: 0,
        };
        for _ in 0..MAX_ROUNDS {
            let (found, now, next) = self
                .search(&search, page.next.as_deref(), limit - page.blocks.len())
                .await?;
            let blocks = found.into_iter();
            let blocks = blocks.filter_map(|(counter, contents)| Block::of(&counter, &contents));
            page.blocks.extend(blocks);
            (page.now, page.next) = (now, next);
            if page.next.is_none() || page.blocks.len() >= limit {
                break;
            }
        }
        Ok(page)
    }

    /// How many blocks each rule of the policy has, by the list, in the order of the policy.
    ///
    /// # Errors
    ///
    /// If the store failed.
    pub async fn block_counts(&self) -> Result<Vec<BlockCount>, AdminError> {
        self.catch_up().await?;
        let rules: Vec<_> = enabled_rules(&self.limiter.in_force())
            .map(|rule| rule.shared_name())
            .collect();
        let names: Vec<_> = rules.iter().map(|rule| &**rule).collect();
        let counts = self.ledger.block_counts(&names).await?;
        let counts = rules.into_iter().zip(counts);
        Ok(counts
            .map(|(rule, blocks)| BlockCount { rule, blocks })
            .collect())
    }

    fn search_of(&self, filter: &BlockFilter) -> Result<Search, AdminError> {
        let in_force = self.limiter.in_force();
        let rules = enabled_rules(&in_force).map(|rule| rule.shared_name());
        let mut rules: Vec<_> = rules.collect();
        if let Some(rule) = &filter.rule {
            if !rules.iter().any(|known| **known == **rule) {
                let known = rules.join(", ");
                return Err(AdminError::invalid(format!(
                    "the policy has no enabled rule of this name; it has {known}"
                )));
            }
            rules.retain(|known| **known == **rule);
        }
        let user = filter.user.as_deref();
        Ok(Search {
            rules,
            address: (filter.address).map(|ip| Address::new(ip, in_force.policy(ip).ipv6_prefix())),
            subject: user.map(|user| self.subject_of(user)).transpose()?,
            network: (filter.network).map(|network| (network.addr(), network.prefix_len())),
        })
    }
}

impl Search {
    pub(super) fn with_query<T>(&self, ask: impl FnOnce(BlockQuery<'_>) -> T) -> T {
        let rules: Vec<_> = self.rules.iter().map(|rule| &**rule).collect();
        let mut query = BlockQuery::new(&rules);
        query.address = self.address;
        query.subject = self.subject.as_deref();
        query.network = self.network;
        ask(query)
    }
}
