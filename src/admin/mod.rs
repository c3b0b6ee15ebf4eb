//! What operators do: list, explain and lift blocks, forgive users, forget addresses.
//!
//! [`LoginLimiter::admin`](crate::LoginLimiter::admin) returns an [`Admin`], for the app's own pages, commands and
//! jobs. It does not authenticate: the code that offers it to operators must.
//!
//! ```
//! # async fn example() -> Result<(), Box<dyn std::error::Error>> {
//! use tower_login_rate_limit::admin::{Author, BlockFilter, Subject};
//! use tower_login_rate_limit::{LoginLimiter, Outcome, Policy, Rule, store::MemoryStore};
//!
//! let limiter = LoginLimiter::new(Policy::default(), MemoryStore::new());
//! let address = "192.0.2.1".parse()?;
//! for _ in 0..5 {
//!     limiter.reserve((address, "alice")).await?.settle(Outcome::Failure).await?;
//! }
//!
//! let admin = limiter.admin()?;
//! let page = admin.blocks(&BlockFilter::new().with_user("Alice")).await?;
//! assert_eq!(&*page.blocks[0].rule, Rule::USER_ADDRESS);
//!
//! let explanation = admin.explain(&Subject::pair(address, "alice")).await?;
//! assert_eq!(explanation.limits[0].words, "5 of 25 failures within 1 day; after another failure 19 attempts would be left");
//! assert_eq!(explanation.limits[1].words, "5 of 5 failures within 1 day; blocked for another 1 day");
//!
//! let author = Author::new("bob@support", "alice phoned, ticket 4711")?;
//! let unblocked = admin.unblock(Subject::pair(address, "alice"), &author).await?;
//! assert_eq!((unblocked.count, unblocked.refused_by.len()), (1, 0));
//! # Ok(()) }
//! # tokio::runtime::Runtime::new()?.block_on(example())?;
//! # Ok::<(), Box<dyn std::error::Error>>(())
//! ```
//!
//! # What is true
//!
//! The counters are. A list of blocks is read from an index, which the process that settles the last failure of a
//! block writes to; each entry is verified by its counter, under the policy in force in this process, before it is
//! shown.
//!
//! # Who is shown
//!
//! Lists show users as the limiter [shows](crate::LoginLimiter::with_user_display) them in all that leaves the
//! process, by default not at all. A filter by user works all the same: the store is asked by a keyed hash.
//!
//! # Audit
//!
//! Every change has an [`Author`]. Changes of rules emit [`What::DocumentChanged`](crate::event::What::DocumentChanged);
//! all others emit [`What::Administered`](crate::event::What::Administered) ahead of the change, and
//! [`What::BlockLifted`](crate::event::What::BlockLifted) for each block that it lifted.

mod audit;
mod author;
mod block;
mod blocks;
mod counters;
mod error;
mod explain;
mod forgive;
mod in_flight;
mod known;
mod next_failure;
mod ruleset;
mod subject;
pub(crate) mod text;
mod unblock;
mod words;
mod wrong_blocks;

use std::{fmt, sync::Arc};

use crate::{LoginLimiter, store::Ledger};

pub use self::{
    author::Author,
    block::{Block, BlockId},
    blocks::{BlockCount, BlockFilter, Blocks},
    error::{AdminError, AdminErrorKind, Conflict},
    explain::{ExplainedAttempt, ExplainedLimit, Explanation, LimitState},
    forgive::{Forgive, Forgiven},
    next_failure::NextFailure,
    subject::Subject,
    unblock::{Unblock, Unblocked},
};

/// What operators do with a limiter and its store. See the [module](self).
///
/// A handle: cloning is cheap, and it is valid as long as it is kept. Results are serializable.
#[derive(Clone)]
pub struct Admin {
    limiter: LoginLimiter,
    ledger: Arc<dyn Ledger>,
    /// Whether entries of the list that are not in force are dropped from it.
    prunes: bool,
}

impl LoginLimiter {
    /// What operators do with this limiter and its store. See [`admin`](crate::admin).
    ///
    /// # Errors
    ///
    /// If the store can't be operated.
    pub fn admin(&self) -> Result<Admin, AdminError> {
        let ledger = self.store().ledger().ok_or_else(AdminError::unsupported)?;
        Ok(Admin {
            limiter: self.clone(),
            ledger,
            prunes: true,
        })
    }
}

impl Admin {
    /// Leaves what is not in force in the list of blocks. For a process that may have another policy than the app: by
    /// that policy a block may be none.
    #[must_use]
    pub const fn without_pruning(mut self) -> Self {
        self.prunes = false;
        self
    }
}

impl fmt::Debug for Admin {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("Admin")
            .field("limiter", &self.limiter)
            .finish_non_exhaustive()
    }
}
