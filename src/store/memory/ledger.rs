//! What an operator reads and changes in a memory store.

use std::{
    collections::{HashMap, VecDeque},
    sync::{Mutex, MutexGuard, PoisonError},
    time::Duration,
};

use super::{
    MemoryStore, SEARCH_EVERY,
    index::{Entry, Index},
    locked::set_expiry,
    names,
};
use crate::{
    Address, AttemptId, Limit,
    algorithm::{Counter, Millis},
    clock::to_millis,
    store::{
        Announcements, Announcer, BlockNote, BlockPage, BlockQuery, Contents, CounterName,
        Document, KeptAttempt, Key, LastBlock, Ledger, ListedBlock, StoreError, StoreErrorKind,
        StoreFuture, Summary,
        fingerprint::Fingerprint,
        ledger::{MAX_ATTEMPTS, MAX_HISTORY, MAX_VERSIONS, check_document, check_instance},
    },
};

/// How many instances may report: a process in memory has one.
const MAX_INSTANCES: usize = 1_000;

/// What a memory store keeps beside counters.
#[derive(Default)]
pub(super) struct Books {
    index: Mutex<Index>,
    /// The oldest first.
    documents: Mutex<VecDeque<Document>>,
    /// Texts by id, and until when they are kept.
    instances: Mutex<HashMap<String, (Millis, String)>>,
    announcer: Announcer,
}

fn lock<T>(mutex: &Mutex<T>) -> MutexGuard<'_, T> {
    mutex.lock().unwrap_or_else(PoisonError::into_inner)
}

/// The store's time, and the same time as it is shown.
#[derive(Clone, Copy)]
struct Time {
    now: Millis,
    shown: Millis,
}

impl Time {
    const fn show(self, at: Millis) -> Millis {
        if at >= self.now {
            self.shown.saturating_add(at - self.now)
        } else {
            self.shown.saturating_sub(self.now - at)
        }
    }
}

/// The subject of a note.
fn subject(subject: &[u8]) -> Fingerprint {
    Key::of_subject("", subject).fingerprint
}

impl MemoryStore {
    fn time(&self) -> Time {
        Time {
            now: self.clock.now(),
            shown: self.clock.since_1970(),
        }
    }

    fn has_counter(&self, counter: Fingerprint) -> bool {
        let shard = self.lock_shard(counter.place.shard);
        let entry = shard.counters.get(counter.id);
        entry.is_some_and(|entry| !entry.is_vacant())
    }

    fn note_now(&self, note: &BlockNote<'_>) -> Result<(), StoreError> {
        note.check()?;
        let counter = names::open(note.counter.as_str())?;
        if !self.has_counter(counter) {
            return Ok(());
        }
        let mut index = lock(&self.books.index);
        let now = self.clock.now();
        // One entry for each counter at most: after a sweep there is room, unless all of them are blocked.
        let is_full = |index: &Index| index.len() >= self.room.capacity();
        if is_full(&index) && !index.contains(counter.id) {
            if index.may_sweep(now, SEARCH_EVERY) {
                index.retain(now, |counter| self.has_counter(counter));
            }
            if is_full(&index) {
                return Err(self.full());
            }
        }
        let lifts = note.lifts.as_duration().map(to_millis);
        let entry = Entry {
            counter,
            rule: note.rule.into(),
            lifts: lifts.map_or(Millis::MAX, |lifts| now.saturating_add(lifts)),
            address: note.address,
            subject: note.subject.map(subject),
            text: note.text.into(),
            number: 0,
        };
        index.insert(entry, now);
        Ok(())
    }

    fn blocks_now(&self, query: &BlockQuery<'_>) -> Result<BlockPage, StoreError> {
        let (index, time) = (lock(&self.books.index), self.time());
        let (entries, next) = index.page(query, query.subject.map(subject), time.now)?;
        let listed = |entry: &Entry| {
            let lifts_at = (entry.lifts != Millis::MAX).then(|| time.show(entry.lifts));
            let counter = names::seal(entry.counter);
            ListedBlock::new(counter, &*entry.rule, lifts_at, &*entry.text)
                .with_address(entry.address)
                .with_subject(
                    entry
                        .subject
                        .map(|subject| names::seal(subject).to_string()),
                )
                .with_revision(entry.number)
        };
        let blocks = entries.into_iter().map(listed).collect();
        let next = next.map(|position| position.to_cursor());
        Ok(BlockPage::new(blocks, next, time.shown))
    }

    fn drop_notes_now(&self, blocks: &[ListedBlock]) -> Result<(), StoreError> {
        let mut index = lock(&self.books.index);
        for block in blocks {
            let counter = names::open(block.counter.as_str())?;
            index.remove_note(counter.id, block.revision);
        }
        Ok(())
    }

    fn inspect_now(&self, name: &CounterName, limit: &Limit) -> Result<Contents, StoreError> {
        let counter = names::open(name.as_str())?;
        let shard = self.lock_shard(counter.place.shard);
        let (time, none) = (self.time(), Counter::default());
        let counter = shard.counters.get(counter.id);
        let counter = counter.map_or(&none, |counter| &counter.value);
        let (failed, in_flight) = counter.split(time.now);
        let newest_first = failed.iter().chain(in_flight).rev();
        let attempts = newest_first.take(MAX_ATTEMPTS).map(|entry| {
            let (id, at) = (AttemptId::from_bits(entry.id()), time.show(entry.at()));
            KeptAttempt::new(id, at, time.shown, entry.spelling().is_normal())
        });
        let summary = counter.summary(limit, time.now).map(|amount| {
            let block = amount
                .block
                .map(|(nth, began)| LastBlock::new(nth, time.show(began)));
            Summary::new(amount.thousandths, block, !amount.is_mixed)
        });
        let contents = Contents::new(counter.standing(limit, time.now), time.shown);
        let kept = failed.len() + in_flight.len();
        Ok(contents
            .with_attempts(attempts.collect(), kept)
            .with_summary(summary))
    }

    fn clear_now(&self, counter: Fingerprint, limit: &Limit) -> bool {
        let mut shard = self.lock_shard(counter.place.shard);
        let now = self.clock.now();
        let Some(counter) = shard.counters.get_mut(counter.id) else {
            return false;
        };
        if counter.is_vacant() {
            return false;
        }
        let was_blocked = counter.value.standing(limit, now).is_blocked();
        counter.value.clean_up(&[], None, now);
        set_expiry(counter, limit, now);
        self.room
            .give(counter.network(), counter.is_vacant().into());
        was_blocked
    }

    fn forget_now(&self, key: &Key<'_>, address: Option<Address>) -> usize {
        let mut shard = self.lock_shard(key.fingerprint.place.shard);
        let Some(known) = shard.known.get_mut(key.fingerprint.id) else {
            return 0;
        };
        let before = known.value.len();
        (known.value).retain(|(_, known)| address.is_some_and(|address| address != *known));
        if known.value.is_empty() && !known.is_vacant() {
            known.set_expires(0);
            self.room.give(known.network(), 1);
        }
        before - known.value.len()
    }

    fn replace_now(&self, expected: u64, text: &str) -> Result<u64, Option<Document>> {
        let mut documents = lock(&self.books.documents);
        let (newest, version) = (documents.back(), expected.saturating_add(1));
        if newest.map_or(0, |newest| newest.version) != expected {
            // A call that is repeated finds its own version, or one that is the same.
            let is_written =
                |document: &Document| document.version == version && document.text == text;
            if documents.iter().any(is_written) {
                return Ok(version);
            }
            return Err(newest.cloned());
        }
        documents.push_back(Document::new(version, text));
        let bytes = |documents: &VecDeque<Document>| -> usize {
            documents.iter().map(|document| document.text.len()).sum()
        };
        while documents.len() > MAX_VERSIONS
            || documents.len() > 1 && bytes(&documents) > MAX_HISTORY
        {
            documents.pop_front();
        }
        drop(documents);
        self.books.announcer.announce();
        Ok(version)
    }

    fn report_now(&self, id: &str, text: &str, ttl: Duration) -> Result<(), StoreError> {
        check_instance(id, text)?;
        let mut instances = lock(&self.books.instances);
        let now = self.clock.now();
        instances.retain(|_, (until, _)| *until > now);
        if instances.len() >= MAX_INSTANCES && !instances.contains_key(id) {
            let message = format!("{MAX_INSTANCES} instances have reported, which is the maximum");
            return Err(StoreError::new(StoreErrorKind::Full, message));
        }
        let until = now.saturating_add(to_millis(ttl));
        instances.insert(id.to_owned(), (until, text.to_owned()));
        Ok(())
    }
}

impl Ledger for MemoryStore {
    fn name(&self, key: &Key<'_>) -> CounterName {
        names::seal(key.fingerprint)
    }

    fn note(&self, note: &BlockNote<'_>) -> StoreFuture<()> {
        StoreFuture::ready(self.note_now(note))
    }

    fn blocks(&self, query: &BlockQuery<'_>) -> StoreFuture<BlockPage> {
        StoreFuture::ready(self.blocks_now(query))
    }

    fn block_counts(&self, rules: &[&str]) -> StoreFuture<Vec<u64>> {
        let (index, now) = (lock(&self.books.index), self.clock.now());
        let counts = rules.iter().map(|rule| index.count(rule, now));
        StoreFuture::ready(Ok(counts.collect()))
    }

    fn drop_notes(&self, blocks: &[ListedBlock]) -> StoreFuture<()> {
        StoreFuture::ready(self.drop_notes_now(blocks))
    }

    fn inspect(&self, counters: &[(&CounterName, &Limit)]) -> StoreFuture<Vec<Contents>> {
        let counters = counters.iter();
        let contents = counters.map(|(name, limit)| self.inspect_now(name, limit));
        StoreFuture::ready(contents.collect())
    }

    fn clear(&self, counters: &[(&CounterName, &Limit)]) -> StoreFuture<Vec<bool>> {
        // All names are read before anything is cleared.
        let opened = counters.iter().map(|(name, _)| names::open(name.as_str()));
        let opened: Result<Vec<_>, _> = opened.collect();
        let clear = |opened: Vec<Fingerprint>| {
            let cleared = opened.into_iter().zip(counters);
            let cleared = cleared.map(|(counter, (_, limit))| self.clear_now(counter, limit));
            cleared.collect()
        };
        StoreFuture::ready(opened.map(clear))
    }

    fn forget(&self, key: &Key<'_>, address: Option<Address>) -> StoreFuture<usize> {
        StoreFuture::ready(Ok(self.forget_now(key, address)))
    }

    fn document(&self) -> StoreFuture<Option<Document>> {
        StoreFuture::ready(Ok(lock(&self.books.documents).back().cloned()))
    }

    fn document_version(&self) -> StoreFuture<u64> {
        let documents = lock(&self.books.documents);
        let version = documents.back().map_or(0, |newest| newest.version);
        StoreFuture::ready(Ok(version))
    }

    fn replace_document(
        &self,
        expected: u64,
        text: &str,
    ) -> StoreFuture<Result<u64, Option<Document>>> {
        StoreFuture::ready(check_document(text).map(|()| self.replace_now(expected, text)))
    }

    fn past_document(&self, version: u64) -> StoreFuture<Option<Document>> {
        let documents = lock(&self.books.documents);
        let mut documents = documents.iter();
        let past = documents.find(|document| document.version == version);
        StoreFuture::ready(Ok(past.cloned()))
    }

    fn past_documents(&self) -> StoreFuture<Vec<Document>> {
        let documents = lock(&self.books.documents);
        StoreFuture::ready(Ok(documents.iter().rev().cloned().collect()))
    }

    fn announcements(&self) -> Announcements {
        self.books.announcer.subscribe()
    }

    fn report_instance(&self, id: &str, text: &str, ttl: Duration) -> StoreFuture<()> {
        StoreFuture::ready(self.report_now(id, text, ttl))
    }

    fn instances(&self) -> StoreFuture<Vec<(String, String)>> {
        let (instances, now) = (lock(&self.books.instances), self.clock.now());
        let live = instances.iter().filter(|(_, (until, _))| *until > now);
        let mut live: Vec<_> = live
            .map(|(id, (_, text))| (id.clone(), text.clone()))
            .collect();
        live.sort_unstable();
        StoreFuture::ready(Ok(live))
    }
}
