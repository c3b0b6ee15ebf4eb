//! Forgiving a user's own failures.

use std::{collections::BTreeSet, net::IpAddr};

use serde::Serialize;

use super::{Admin, AdminError, Author, Block, counters::Counter, subject::Repr, text};
use crate::{Address, Rule, access::AccessRule, event::AdminAction, store::Contents};

/// How many addresses are cleaned up at a time.
const CHUNK: usize = 50;
/// How many entries of the index are read at a time.
const PAGE: usize = 500;

/// Whose failures are forgiven, and where.
#[derive(Clone)]
#[must_use = "nothing is forgiven until it is passed to `Admin::forgive`"]
pub struct Forgive {
    user: String,
    addresses: Option<Vec<IpAddr>>,
    every_spelling: bool,
}

impl Forgive {
    /// Forgives the failures of a user, spelled like this, at each address where a block of the user is listed.
    pub fn user(user: impl Into<String>) -> Self {
        Self {
            user: user.into(),
            addresses: None,
            every_spelling: false,
        }
    }

    /// At these addresses only.
    pub fn at(mut self, addresses: impl IntoIterator<Item = IpAddr>) -> Self {
        self.addresses = Some(addresses.into_iter().collect());
        self
    }

    /// Whether failures of other spellings are forgiven too. They are not unless set: `Victim` may be another
    /// account than `victim`.
    pub const fn with_every_spelling(mut self, every_spelling: bool) -> Self {
        self.every_spelling = every_spelling;
        self
    }
}

/// Does not show the user: logs must not name people.
impl std::fmt::Debug for Forgive {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.debug_struct("Forgive")
            .field("addresses", &self.addresses)
            .field("every_spelling", &self.every_spelling)
            .finish_non_exhaustive()
    }
}

/// What was forgiven, and what still refuses the user.
#[derive(Clone, Debug, Serialize)]
#[non_exhaustive]
pub struct Forgiven {
    /// Where failures were forgiven, if there were any.
    #[serde(serialize_with = "text::addresses")]
    pub addresses: Vec<Address>,
    /// The blocks that ended by it.
    pub lifted: Vec<Block>,
    /// The access rule that denies the user.
    pub denied_by: Option<AccessRule>,
    /// The blocks of the user that are still in force.
    pub refused_by: Vec<Block>,
}

impl Admin {
    /// Removes a user's own failures, and those same failures from the counters that the user shares with others: after
    /// a password was reset, or the owner was identified in another way. As a success of the user at each address
    /// would, see [`LoginLimiter::cleanup`](crate::LoginLimiter::cleanup). It may be repeated.
    ///
    /// # Errors
    ///
    /// If the user is blank, or the store failed; some failures may have been removed then.
    pub async fn forgive(
        &self,
        forgive: &Forgive,
        author: &Author,
    ) -> Result<Forgiven, AdminError> {
        self.catch_up().await?;
        let subject = Repr::User(forgive.user.clone());
        let listed = self.listed_of(&subject).await?;
        let ips: BTreeSet<_> = match &forgive.addresses {
            Some(addresses) => addresses.iter().copied().collect(),
            None => {
                let addresses = listed.iter().filter_map(|counter| counter.address);
                addresses.map(|address| address.ip()).collect()
            }
        };
        self.audit(AdminAction::Forgive, Some(&subject), author);
        let (mut lifted, mut addresses) = (Vec::new(), Vec::new());
        for ips in ips.into_iter().collect::<Vec<_>>().chunks(CHUNK) {
            let counters = self.counters_at(ips, &forgive.user, &listed);
            let before = self.read(&counters).await?;
            let (user, every_spelling) = (&forgive.user, forgive.every_spelling);
            (self.limiter.forgive(user, ips, every_spelling, None)).await?;
            let after = self.read(&counters).await?;
            let changes = counters.iter().zip(before.iter().zip(&after));
            let ended = changes.filter_map(|(counter, (before, after))| {
                let (before, after) = (before.as_ref()?, after.as_ref()?);
                (!after.standing.is_blocked()).then_some((counter, before))
            });
            lifted.extend(self.ended(ended, author).await);
            addresses.extend(ips.iter().map(|ip| {
                let in_force = self.limiter.in_force();
                Address::new(*ip, in_force.policy(*ip).ipv6_prefix())
            }));
        }
        let (denied_by, refused_by) = self.refusing(&subject, Rule::counts_by_user).await?;
        Ok(Forgiven {
            addresses,
            lifted,
            denied_by,
            refused_by,
        })
    }

    /// The counters of a user at addresses that have a block in the index.
    async fn listed_of(&self, subject: &Repr) -> Result<Vec<Counter>, AdminError> {
        let is_pair = |rule: &Rule| rule.counts_by_user() && rule.counts_by_address();
        let searches = self.searches(&self.limiter.in_force(), subject, is_pair)?;
        let mut counters = Vec::new();
        for search in searches {
            let mut after = None;
            loop {
                let (found, _, next) = self.search(&search, after.as_deref(), PAGE).await?;
                counters.extend(found.into_iter().map(|(counter, _)| counter));
                after = next;
                if after.is_none() {
                    break;
                }
            }
        }
        Ok(counters)
    }

    /// The counters that a user has at these addresses, with their entries in the index, each once.
    fn counters_at(&self, ips: &[IpAddr], user: &str, listed: &[Counter]) -> Vec<Counter> {
        let in_force = self.limiter.in_force();
        let is_here = |counter: &&Counter| {
            (counter.address).is_some_and(|address| ips.iter().any(|ip| address.ip() == *ip))
        };
        let mut counters: Vec<_> = listed.iter().filter(is_here).cloned().collect();
        for ip in ips {
            let direct = self.direct(&in_force, &Repr::Pair(*ip, user.to_owned()));
            for counter in direct {
                if counters.iter().all(|known| known.name != counter.name) {
                    counters.push(counter);
                }
            }
        }
        counters
    }

    /// Reports the blocks of counters that are no longer blocked, and drops their entries.
    async fn ended(
        &self,
        counters: impl Iterator<Item = (&Counter, &Contents)>,
        author: &Author,
    ) -> Vec<Block> {
        let (mut lifted, mut listed) = (Vec::new(), Vec::new());
        for (counter, before) in counters {
            if let Some(block) = Block::of(counter, before) {
                self.lifted(&block, author);
                lifted.push(block);
            }
            listed.extend(counter.listed.clone());
        }
        self.drop_notes(&listed).await;
        lifted
    }
}
