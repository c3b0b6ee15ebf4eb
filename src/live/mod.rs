//! Policy and access rules that change while the app runs, on every instance.
//!
//! A [`Ruleset`] is the policy, the access rules and, while a new policy is tried, a [`Canary`]. A fleet shares one
//! through its store, in numbered [versions](Version). An instance that was made [live](LoginLimiter::live) puts a
//! new version in force as soon as it is announced, within a second also if the announcement is missed, and keeps
//! what it has while the store can't be reached. Attempts under way finish under the policy that they began with.
//!
//! Changes are made through [`Admin`](crate::admin::Admin): each is validated as a whole and written by
//! compare-and-set, so that the second of two operators gets a conflict, with the difference.
//!
//! ```
//! # async fn example() -> Result<(), Box<dyn std::error::Error>> {
//! use tower_login_rate_limit::{LoginLimiter, Policy, admin::Author, store::MemoryStore};
//!
//! let limiter = LoginLimiter::new(Policy::default(), MemoryStore::new()).live().await?;
//! let admin = limiter.admin()?;
//! let author = Author::new("alice", "credential stuffing since noon")?;
//!
//! let current = admin.ruleset().await?;
//! let stricter = current.ruleset.clone().with_policy(Policy::strict());
//! let version = admin.replace_ruleset(current.version, stricter, &author).await?;
//! assert_eq!((version, limiter.version()), (1, 1));
//! assert!(limiter.policy().rule("account").is_some());
//!
//! admin.roll_back(1, 0, &Author::new("alice", "it is over")?).await.unwrap_err();
//! # Ok(()) }
//! # tokio::runtime::Runtime::new()?.block_on(example())?;
//! # Ok::<(), Box<dyn std::error::Error>>(())
//! ```
//!
//! # From a file
//!
//! An app whose rules are in a file watches that in place of the store: [`LoginLimiter::follow_file`].

mod difference;
mod file;
mod follower;
mod instance;
mod ruleset;

pub(crate) use follower::LiveState;
pub use instance::Instance;
pub use ruleset::{Canary, Ruleset, Version};

#[cfg(doc)]
use crate::LoginLimiter;
