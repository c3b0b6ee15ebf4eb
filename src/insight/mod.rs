//! What events add up to: who guesses most, whether it is an attack, and which blocks were wrong.
//!
//! All of it is computed from [events](crate::event), live or recorded, without a clock and without I/O, in bounded
//! memory that no flood of names or addresses exceeds. What several processes have found can be merged.

mod activity;
mod baseline;
mod busiest;
mod distinct;
mod findings;
mod identity;
#[cfg(feature = "memory")]
mod replay;
mod signals;
#[cfg(test)]
mod tests;
mod top;
mod watched;
mod wrong_blocks;

pub use activity::{Activity, Minute};
pub use busiest::{Busiest, BusiestReport, Busy};
#[cfg(all(feature = "redis", feature = "serde"))]
pub(crate) use findings::Found;
pub use findings::Insight;
#[cfg(feature = "memory")]
pub use replay::{
    Replay, ReplayReport, ReplayedRule, ReplayedSubject, ReplayedSubjects, RuleCounts,
};
pub use signals::Signals;
pub use wrong_blocks::{WrongBlockRow, WrongBlockTable, WrongBlocks};
