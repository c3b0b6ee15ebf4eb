//! Which blocks were probably wrong.

use super::Admin;
use crate::insight::WrongBlockTable;

impl Admin {
    /// Blocks by rule and day, and how many were probably wrong, as far as this process has seen: empty unless the
    /// limiter [keeps it](crate::LoginLimiter::with_insight). In a [fleet](crate::insight::Insight#in-a-fleet) that shares
    /// its events, those of all processes.
    pub fn wrong_blocks(&self) -> WrongBlockTable {
        let insight = self.limiter.insight();
        insight
            .map(|insight| insight.wrong_blocks())
            .unwrap_or_default()
    }
}
