//! The name of a counter in its store.

use std::{fmt, str::FromStr, sync::Arc};

use super::invalid;
use crate::store::StoreError;

/// No store makes longer ones.
const MAX_NAME: usize = 1024;

/// The name of a counter in its store, to be shown, kept and passed back as text.
///
/// In Redis it is the counter's key. In memory it is drawn by the process and has no meaning elsewhere. It
/// contains no user.
///
/// ```
/// use tower_login_rate_limit::store::{CounterName, Key, MemoryStore, Store};
///
/// let ledger = MemoryStore::new().ledger().ok_or("no ledger")?;
/// let name = ledger.name(&Key::of_subject("downloads", b"alice"));
/// let same: CounterName = name.to_string().parse()?;
/// assert_eq!(same, name);
/// # Ok::<(), Box<dyn std::error::Error>>(())
/// ```
#[derive(Clone, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub struct CounterName(Arc<str>);

impl CounterName {
    /// The name with this text, for a store of the app's own. Whether a counter of this name exists, and
    /// whether it can, is found out by the store.
    #[must_use]
    pub fn new(text: impl Into<Arc<str>>) -> Self {
        Self(text.into())
    }

    /// The name as text.
    pub fn as_str(&self) -> &str {
        &self.0
    }
}

impl FromStr for CounterName {
    type Err = StoreError;

    fn from_str(text: &str) -> Result<Self, StoreError> {
        if text.is_empty() || text.len() > MAX_NAME {
            return Err(invalid(format!(
                "the name of a counter has 1 to {MAX_NAME} bytes, not {}",
                text.len()
            )));
        }
        Ok(Self::new(text))
    }
}

impl fmt::Display for CounterName {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(&self.0)
    }
}

impl fmt::Debug for CounterName {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "CounterName({})", self.0)
    }
}
