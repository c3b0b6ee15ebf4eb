//! What an operator reads and changes in a store, beside the path of attempts.

mod announcements;
mod blocks;
mod contents;
#[cfg(feature = "memory")]
mod cursor;
mod name;

use std::{fmt::Debug, time::Duration};

pub use self::{
    announcements::{Announcements, Announcer},
    blocks::{BlockNote, BlockPage, BlockQuery, ListedBlock},
    contents::{Contents, KeptAttempt, LastBlock, Summary},
    name::CounterName,
};
use super::{Key, StoreError, StoreErrorKind, StoreFuture};
use crate::{Address, Limit};

#[cfg(feature = "memory")]
pub(crate) use self::{blocks::Filter, cursor::Position};

/// How many attempts [`Ledger::inspect`] returns of one counter at most.
#[cfg(feature = "memory")]
pub(crate) const MAX_ATTEMPTS: usize = 1_000;
/// How many entries of the index one call of [`Ledger::blocks`] reads at most, if it has to search.
#[cfg(feature = "memory")]
pub(crate) const MAX_SEARCHED: usize = 5_000;
/// How many versions of the document are kept, the newest included.
#[cfg(feature = "memory")]
pub(crate) const MAX_VERSIONS: usize = 50;
/// The longest text of a note or of an instance, in bytes.
#[cfg(feature = "memory")]
const MAX_TEXT: usize = 4 * 1024;
/// The longest id of an instance, in bytes.
#[cfg(feature = "memory")]
const MAX_ID: usize = 256;
/// The longest document, in bytes.
#[cfg(feature = "memory")]
const MAX_DOCUMENT: usize = 16 * 1024 * 1024;
/// How many bytes the versions of the document have together at most, unless the newest alone has more.
#[cfg(feature = "memory")]
pub(crate) const MAX_HISTORY: usize = 32 * 1024 * 1024;

/// The books of a store: which blocks are in force, what counters hold, which document a fleet runs.
///
/// A store that can be operated returns it from [`Store::ledger`](super::Store::ledger). It handles keys,
/// limits, names and texts, nothing of users and requests. Its contract:
///
/// - **The index of blocks is a hint; the counters are the truth.** [`note`](Self::note) writes an entry and
///   [`blocks`](Self::blocks) lists entries, neither looks at a counter. A caller verifies what it shows by
///   [`inspect`](Self::inspect), and [drops](Self::drop_notes) what is stale. An entry leaves by itself when
///   its block lifts.
/// - **By name.** Counters are read and cleared by their [name](CounterName), which a listed block has and
///   [`name`](Self::name) returns.
/// - **Nothing else changes.** [`clear`](Self::clear) removes failures from the named counters and touches no
///   other.
/// - **An error is reported and nothing is written later.** No call is journaled; an operator has to know
///   whether it worked. Every call may be repeated.
/// - **Its own time.** Clocks of callers do not matter. Times that are returned are milliseconds since 1970.
///
/// The returned futures do not borrow, and are ready at once for a store in memory.
///
/// ```
/// # async fn example() -> Result<(), Box<dyn std::error::Error>> {
/// use tower_login_rate_limit::{Limit, Period};
/// use tower_login_rate_limit::store::{BlockNote, BlockQuery, Key, MemoryStore, Settlement, Slot, Store};
///
/// let store = MemoryStore::new();
/// let limit = Limit::attempts(1).within(Period::hours(1)).build()?;
/// let address = "192.0.2.1".parse()?;
/// let slot = Slot::new(Key::of_address(address, "downloads"), &limit);
/// let token = tower_login_rate_limit::Token::new();
/// store.settle(&[token], Settlement::Recorded, &[slot], std::time::Duration::ZERO).await?;
///
/// let ledger = store.ledger().ok_or("this store has no ledger")?;
/// let counter = ledger.name(&slot.key);
/// let note = BlockNote::new(&counter, "downloads", Period::hours(1)).at_address(address);
/// ledger.note(&note).await?;
///
/// let page = ledger.blocks(&BlockQuery::new(&["downloads"]).at_address(address)).await?;
/// assert_eq!(page.blocks[0].counter, counter);
/// assert!(ledger.inspect(&[(&counter, &limit)]).await?[0].standing.is_blocked());
/// assert_eq!(ledger.clear(&[(&counter, &limit)]).await?, [true]);
/// assert!(!store.check(&[slot]).await?[0].is_blocked());
/// ledger.drop_notes(&page.blocks).await?;
/// # Ok(()) }
/// # tokio::runtime::Runtime::new()?.block_on(example())?;
/// # Ok::<(), Box<dyn std::error::Error>>(())
/// ```
pub trait Ledger: Debug + Send + Sync + 'static {
    /// The name of a counter in this store. Sends nothing.
    fn name(&self, key: &Key<'_>) -> CounterName;

    /// Enters a block into the index, or renews its entry. A store may leave out a block whose counter does
    /// not exist.
    fn note(&self, note: &BlockNote<'_>) -> StoreFuture<()>;

    /// Lists blocks by the index, those that lift first at the beginning.
    ///
    /// A page may have fewer blocks than asked for, or none, and still be followed by others: only a page
    /// without [`next`](BlockPage::next) is the last. Blocks that are noted or dropped meanwhile move no
    /// others: a block whose entry stays is on one of the pages.
    fn blocks(&self, query: &BlockQuery<'_>) -> StoreFuture<BlockPage>;

    /// How many blocks each of these rules has, by the index.
    fn block_counts(&self, rules: &[&str]) -> StoreFuture<Vec<u64>>;

    /// Drops the entries of blocks that are no longer in force. An entry that was renewed since it was listed
    /// stays.
    fn drop_notes(&self, blocks: &[ListedBlock]) -> StoreFuture<()>;

    /// What these counters hold, and how they stand under these limits. Writes nothing.
    fn inspect(&self, counters: &[(&CounterName, &Limit)]) -> StoreFuture<Vec<Contents>>;

    /// Removes every failure, in whatever spelling, and every summary from these counters, and from no other.
    /// Attempts in flight stay. Returns which of them were blocked. Other processes are notified, so that none
    /// refuses from what it has cached; this one forgets at once, even if the call fails. A repetition after a
    /// lost reply finds none blocked.
    fn clear(&self, counters: &[(&CounterName, &Limit)]) -> StoreFuture<Vec<bool>>;

    /// Forgets one of the addresses that are [remembered](super::Store::remember) under this key, or all of
    /// them. Returns how many. A repetition after a lost reply finds none.
    fn forget(&self, key: &Key<'_>, address: Option<Address>) -> StoreFuture<usize>;

    /// The newest version of the document that the fleet shares; `None` if there is none.
    fn document(&self) -> StoreFuture<Option<Document>>;

    /// The number of the newest version, for polling; 0 if there is none. A server that has lost its data
    /// begins again: another number is another document, a lower one too.
    fn document_version(&self) -> StoreFuture<u64>;

    /// Writes a new version if `expected` is the newest, and announces it. Returns its number, which is
    /// `expected + 1`, or the document that is there in place of the expected one.
    ///
    /// It may be repeated after an error: if the version after `expected` has this very text, it is written,
    /// whichever call wrote it, and nothing more is.
    fn replace_document(
        &self,
        expected: u64,
        text: &str,
    ) -> StoreFuture<Result<u64, Option<Document>>>;

    /// A version of the document that is still kept.
    fn past_document(&self, version: u64) -> StoreFuture<Option<Document>>;

    /// The last versions of the document, the newest first: 50, or fewer if they are long.
    fn past_documents(&self) -> StoreFuture<Vec<Document>>;

    /// Changes when a new version was announced, and when announcements may have been missed. A store that
    /// can't announce never changes, so that versions have to be polled as well.
    fn announcements(&self) -> Announcements;

    /// Publishes what an instance of the fleet reports about itself, for `ttl` at most.
    fn report_instance(&self, id: &str, text: &str, ttl: Duration) -> StoreFuture<()>;

    /// What the instances of the fleet have reported, by id.
    fn instances(&self) -> StoreFuture<Vec<(String, String)>>;
}

/// A version of the text that a fleet shares. See [`Ledger::document`].
#[derive(Clone, Debug, PartialEq, Eq)]
#[non_exhaustive]
pub struct Document {
    /// From 1, one more for each version.
    pub version: u64,
    /// The text, as it was written.
    pub text: String,
}

impl Document {
    /// This version with this text.
    #[must_use]
    pub fn new(version: u64, text: impl Into<String>) -> Self {
        Self {
            version,
            text: text.into(),
        }
    }
}

fn invalid(message: String) -> StoreError {
    StoreError::new(StoreErrorKind::InvalidInput, message)
}

/// Checks the length of what is written to the store.
#[cfg(feature = "memory")]
fn check_length(what: &str, text: &str, max: usize) -> Result<(), StoreError> {
    if text.len() <= max {
        return Ok(());
    }
    let length = text.len();
    Err(invalid(format!(
        "{what} of {length} bytes is too long: it may have {max}"
    )))
}

/// Checks a document before it is written.
#[cfg(feature = "memory")]
pub(crate) fn check_document(text: &str) -> Result<(), StoreError> {
    check_length("a document", text, MAX_DOCUMENT)
}

/// Checks the report of an instance before it is written.
#[cfg(feature = "memory")]
pub(crate) fn check_instance(id: &str, text: &str) -> Result<(), StoreError> {
    if id.is_empty() {
        return Err(invalid("the id of an instance is empty".to_owned()));
    }
    check_length("the id of an instance", id, MAX_ID)?;
    check_length("the report of an instance", text, MAX_TEXT)
}
