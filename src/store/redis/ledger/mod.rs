//! What an operator reads and changes in Redis.
//!
//! Calls go to the backend, whether or not the circuit breaker is open, and do not count for it: an operator may
//! want to look at a Redis that admits nothing, and a fault of the ledger must not degrade logins.

mod counters;
mod documents;
mod index;
mod keys;
mod record;
mod summary;

use std::{fmt, future::poll_fn, pin::Pin, task::Poll, time::Duration};

use super::{Stack, backend::Backend};
use crate::{
    Address, Limit,
    store::{
        Announcements, BlockNote, BlockPage, BlockQuery, Contents, CounterName, Document, Key,
        Ledger, ListedBlock, StoreError, StoreFuture, ledger::check_instance,
    },
};

/// The ledger of a Redis store.
pub(super) struct RedisLedger(pub(super) Stack);

impl RedisLedger {
    fn backend(&self) -> &Backend {
        &self.0.inner().inner
    }
}

/// Neither the cache nor the fallback of this process may refuse because of these any more.
fn forget_blocks(stack: &Stack, names: &[CounterName]) {
    for name in names {
        stack.inner().invalidate(name.as_str().as_bytes());
    }
    stack.forget_all(names);
}

impl Ledger for RedisLedger {
    fn name(&self, key: &Key<'_>) -> CounterName {
        let name = self.backend().scheme().name(key);
        // All of its parts are text.
        CounterName::new(String::from_utf8_lossy(&name).as_ref())
    }

    fn note(&self, note: &BlockNote<'_>) -> StoreFuture<()> {
        self.backend().note_block(note)
    }

    fn blocks(&self, query: &BlockQuery<'_>) -> StoreFuture<BlockPage> {
        self.backend().list_blocks(query)
    }

    fn block_counts(&self, rules: &[&str]) -> StoreFuture<Vec<u64>> {
        self.backend().count_blocks(rules)
    }

    fn drop_notes(&self, blocks: &[ListedBlock]) -> StoreFuture<()> {
        self.backend().drop_blocks(blocks)
    }

    fn inspect(&self, counters: &[(&CounterName, &Limit)]) -> StoreFuture<Vec<Contents>> {
        self.backend().inspect_counters(counters)
    }

    fn clear(&self, counters: &[(&CounterName, &Limit)]) -> StoreFuture<Vec<bool>> {
        let names = counters.iter().map(|(name, _)| (*name).clone());
        let names: Vec<_> = names.collect();
        let cleared = self.backend().clear_counters(counters);
        if cleared.is_ready() {
            return cleared; // a name is invalid
        }
        // It takes effect here whether or not Redis can be reached; and once more afterwards, for what was
        // cached or recorded meanwhile.
        forget_blocks(&self.0, &names);
        let stack = self.0.clone();
        cleared.map_ok(move |cleared| {
            forget_blocks(&stack, &names);
            cleared
        })
    }

    fn forget(&self, key: &Key<'_>, address: Option<Address>) -> StoreFuture<usize> {
        self.0.forget_known(key, address);
        self.backend().forget_known(key, address)
    }

    fn document(&self) -> StoreFuture<Option<Document>> {
        self.backend().read_document(None)
    }

    fn document_version(&self) -> StoreFuture<u64> {
        self.backend().read_version()
    }

    fn replace_document(
        &self,
        expected: u64,
        text: &str,
    ) -> StoreFuture<Result<u64, Option<Document>>> {
        self.backend().write_document(expected, text)
    }

    fn past_document(&self, version: u64) -> StoreFuture<Option<Document>> {
        self.backend().read_document(Some(version))
    }

    fn past_documents(&self) -> StoreFuture<Vec<Document>> {
        self.backend().read_documents()
    }

    fn announcements(&self) -> Announcements {
        self.backend().announcements()
    }

    fn report_instance(&self, id: &str, text: &str, ttl: Duration) -> StoreFuture<()> {
        if let Err(error) = check_instance(id, text) {
            return StoreFuture::ready(Err(error));
        }
        let (backend, id, text) = (self.backend().clone(), id.to_owned(), text.to_owned());
        StoreFuture::pending(async move {
            let instances = backend.scheme().instances();
            backend.enter(&instances, &id, Some(ttl), &text).await
        })
    }

    fn instances(&self) -> StoreFuture<Vec<(String, String)>> {
        let backend = self.backend().clone();
        StoreFuture::pending(async move { backend.list_all(backend.scheme().instances()).await })
    }
}

impl fmt::Debug for RedisLedger {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("RedisLedger").finish_non_exhaustive()
    }
}

type Asked<'a, T> = Pin<Box<dyn Future<Output = Result<T, StoreError>> + Send + 'a>>;

/// Runs all of them concurrently and to their end.
async fn join_all<T>(futures: Vec<Asked<'_, T>>) -> Vec<Result<T, StoreError>> {
    let mut results: Vec<_> = futures.iter().map(|_| None).collect();
    let mut futures: Vec<_> = futures.into_iter().map(Some).collect();
    poll_fn(|cx| {
        let mut is_pending = false;
        for (future, result) in futures.iter_mut().zip(&mut results) {
            if let Some(running) = future {
                match running.as_mut().poll(cx) {
                    Poll::Ready(ended) => (*future, *result) = (None, Some(ended)),
                    Poll::Pending => is_pending = true,
                }
            }
        }
        if is_pending {
            Poll::Pending
        } else {
            Poll::Ready(())
        }
    })
    .await;
    results.into_iter().flatten().collect()
}
