//! The index of blocks in Redis, and other lists whose entries leave by themselves.

use std::{
    collections::HashMap,
    iter,
    net::{IpAddr, Ipv4Addr},
    sync::Arc,
    time::Duration,
};

use redis::Value;

use super::{
    join_all,
    keys::{IndexKeys, SHARDS, is_digest},
    record,
};
use crate::{
    Address,
    algorithm::Millis,
    clock::to_millis,
    store::{
        BlockNote, BlockPage, BlockQuery, CounterName, ListedBlock, StoreError, StoreFuture,
        ledger::{Filter, MAX_SEARCHED, Position},
        redis::{
            backend::Backend,
            counters::Call,
            keys::KeyScheme,
            reply::unexpected,
            scripts::{COUNT_NOTES, DROP_NOTES, NOTE, NOTES, Script, or_empty},
        },
    },
};

/// How many entries a script lists of one index at most: some 0.3 ms in Redis.
const MAX_LISTED: usize = 200;
/// How many entries a script lists of all its indexes at most.
const MAX_REPLIED: usize = 800;
/// Networks of at least this many bits, 256 addresses at most, are looked up address by address.
const SMALL_NETWORK: u8 = 24;
/// How many scripts are sent at a time: logins have to get in between.
const AT_ONCE: usize = 32;
/// What lasts as long as this many milliseconds lasts forever.
const FOREVER: Millis = 1 << 50;
/// How many entries a script drops at most.
const MAX_DROPPED: usize = 500;

/// An entry of an index.
struct Listed {
    position: Position,
    text: Option<String>,
}

/// What a script has listed.
struct Lists {
    now: Millis,
    entries: Vec<Listed>,
    /// Everything up to here was listed; `None` if that is all there is.
    upto: Option<Position>,
    /// For each group of indexes, whether it was cut off, and its last entry.
    ends: Vec<(bool, Option<Position>)>,
}

impl Backend {
    /// A call of a script with the keys of indexes and the time; arguments follow.
    fn index_call<'k>(
        &self,
        script: &Arc<Script>,
        keys: impl Iterator<Item = &'k IndexKeys> + Clone,
    ) -> Call {
        let keys = keys.flat_map(|keys| [&*keys.lifts, &*keys.notes]);
        let mut command = script.call(keys);
        or_empty(&mut command, self.now());
        Call {
            command,
            script: Arc::clone(script),
        }
    }

    /// Enters a name into an index, for this time or forever.
    pub(super) async fn enter(
        &self,
        keys: &IndexKeys,
        name: &str,
        lasts: Option<Duration>,
        text: &str,
    ) -> Result<(), StoreError> {
        let mut call = self.index_call(&NOTE, iter::once(keys));
        call.command.arg(name);
        // A later time is none that Redis can hold exactly, nor one that comes.
        let lasts = lasts.map(to_millis).filter(|lasts| *lasts < FOREVER);
        match lasts {
            Some(lasts) => call.command.arg(lasts),
            None => call.command.arg(-1),
        };
        call.command.arg(text);
        self.ask_script(call).await.map(drop)
    }

    pub(super) fn note_block(&self, note: &BlockNote<'_>) -> StoreFuture<()> {
        let scheme = self.scheme();
        if let Err(error) = note
            .check()
            .and_then(|()| scheme.check(note.counter).map(drop))
        {
            return StoreFuture::ready(Err(error));
        }
        let subject = note.subject.map(|subject| scheme.subject(subject));
        let record = record::write(note, subject.as_deref());
        let shard = KeyScheme::shard_of(note.counter);
        let by_rule = scheme.blocks_of_rule(note.rule, shard);
        let by_address = note.address.map(|address| scheme.blocks_at(address));
        let by_subject = subject.map(|digest| scheme.blocks_of_subject(&digest));
        let (name, lasts) = (note.counter.clone(), note.lifts.as_duration());
        let backend = self.clone();
        StoreFuture::pending(async move {
            let indexes = [Some(by_rule), by_address, by_subject];
            let entered = indexes
                .iter()
                .flatten()
                .map(|keys| Box::pin(backend.enter(keys, name.as_str(), lasts, &record)) as _);
            join_all(entered.collect()).await.into_iter().collect()
        })
    }

    /// The indexes that a query is answered by, in groups with one hash tag each.
    fn indexes_of(&self, query: &BlockQuery<'_>) -> Vec<Vec<IndexKeys>> {
        let scheme = self.scheme();
        match (query.subject, query.address) {
            (Some(subject), _) => vec![vec![scheme.blocks_of_subject(&scheme.subject(subject))]],
            (None, Some(address)) => vec![vec![scheme.blocks_at(address)]],
            (None, None) => {
                if let Some(addresses) = query.network.and_then(addresses_of) {
                    return addresses
                        .map(|address| vec![scheme.blocks_at(address)])
                        .collect();
                }
                let mut rules = query.rules.to_vec();
                rules.sort_unstable();
                rules.dedup();
                let shard = |shard| {
                    let rules = rules.iter();
                    rules
                        .map(|rule| scheme.blocks_of_rule(rule, shard))
                        .collect()
                };
                (0..SHARDS).map(shard).collect()
            }
        }
    }

    /// Lists at most `count` entries of each index behind a position.
    async fn list(
        &self,
        groups: &[Vec<IndexKeys>],
        after: Option<&Position>,
        count: usize,
    ) -> Result<Lists, StoreError> {
        let ask = |group: &Vec<IndexKeys>| {
            let mut call = self.index_call(&NOTES, group.iter());
            match after {
                None => call.command.arg("").arg(""),
                Some(after) if after.lifts == Millis::MAX => {
                    call.command.arg("+inf").arg(&after.name)
                }
                Some(after) => call.command.arg(after.lifts).arg(&after.name),
            };
            call.command.arg(count);
            Box::pin(self.ask_script(call)) as _
        };
        let mut lists = Lists {
            now: 0,
            entries: Vec::new(),
            upto: None,
            ends: Vec::new(),
        };
        for groups in groups.chunks(AT_ONCE) {
            let replies = join_all(groups.iter().map(ask).collect()).await;
            for (reply, group) in replies.into_iter().zip(groups) {
                let reply = reply?;
                let read = (lists.add(&reply, group.len(), count))
                    .ok_or_else(|| unexpected("notes.lua", &reply));
                read?;
            }
        }
        lists.sort();
        Ok(lists)
    }

    pub(super) fn list_blocks(&self, query: &BlockQuery<'_>) -> StoreFuture<BlockPage> {
        let after = match query.after.map(Position::from_cursor).transpose() {
            Ok(after) => after,
            Err(error) => return StoreFuture::ready(Err(error)),
        };
        let (backend, groups) = (self.clone(), self.indexes_of(query));
        let (filter, limit) = (Filter::new(query), query.limit.clamp(1, 1_000));
        // Where entries have to be searched, they are read in larger steps.
        let is_searched =
            query.network.is_some() || query.address.is_some() || query.subject.is_some();
        let step = if is_searched { 1_000 } else { limit };
        StoreFuture::pending(async move { backend.page(groups, after, &filter, limit, step).await })
    }

    async fn page(
        &self,
        mut groups: Vec<Vec<IndexKeys>>,
        mut after: Option<Position>,
        filter: &Filter,
        limit: usize,
        step: usize,
    ) -> Result<BlockPage, StoreError> {
        let (mut page, mut searched) = (BlockPage::default(), 0);
        loop {
            // Entries are spread evenly over the parts of an index, so that each has to list few of them.
            let indexes = groups.iter().map(Vec::len).sum::<usize>().max(1);
            let wanted = step.saturating_sub(page.blocks.len());
            let widest = groups.iter().map(Vec::len).max().unwrap_or(1);
            let most = MAX_LISTED.min(MAX_REPLIED / widest.max(1));
            let count = (wanted * 2 / indexes + 8).min(most);
            let lists = self.list(&groups, after.as_ref(), count).await?;
            page.now = page.now.max(lists.now);
            let mut entries = lists.entries.into_iter().peekable();
            while let Some(Listed { position, text }) = entries.next() {
                searched += 1;
                let block = text.and_then(|text| {
                    let counter = CounterName::new(position.name.as_str());
                    let lifts_at = (position.lifts != Millis::MAX).then_some(position.lifts);
                    record::read(counter, lifts_at, &text)
                });
                let wanted = block.filter(|block| filter.matches(&block.rule, block.address));
                page.blocks.extend(wanted);
                let is_full = page.blocks.len() == limit || searched >= MAX_SEARCHED;
                if is_full && (entries.peek().is_some() || lists.upto.is_some()) {
                    page.next = Some(position.to_cursor());
                    return Ok(page);
                }
            }
            match lists.upto {
                // Those of single addresses are not spread evenly: where nothing is left, nothing is listed again.
                Some(upto) => {
                    let mut ends = lists.ends.into_iter();
                    groups.retain(|_| {
                        let end = ends.next();
                        end.is_some_and(|(is_cut_off, last)| {
                            is_cut_off || last.as_ref() > Some(&upto)
                        })
                    });
                    after = Some(upto);
                }
                None => return Ok(page),
            }
        }
    }

    /// Everything in one index, by name.
    pub(super) async fn list_all(
        &self,
        keys: IndexKeys,
    ) -> Result<Vec<(String, String)>, StoreError> {
        let (groups, mut after, mut all) = ([vec![keys]], None, Vec::new());
        while all.len() < MAX_SEARCHED {
            let lists = self.list(&groups, after.as_ref(), MAX_LISTED).await?;
            let entries = lists.entries.into_iter();
            all.extend(entries.filter_map(|entry| Some((entry.position.name, entry.text?))));
            after = lists.upto;
            if after.is_none() {
                break;
            }
        }
        all.sort_unstable();
        Ok(all)
    }

    pub(super) fn count_blocks(&self, rules: &[&str]) -> StoreFuture<Vec<u64>> {
        let scheme = self.scheme();
        let rules_len = rules.len();
        if rules.is_empty() {
            return StoreFuture::ready(Ok(Vec::new()));
        }
        let calls = (0..SHARDS).map(|shard| {
            let keys: Vec<_> = (rules.iter())
                .map(|rule| scheme.blocks_of_rule(rule, shard))
                .collect();
            self.index_call(&COUNT_NOTES, keys.iter())
        });
        let (backend, calls) = (self.clone(), calls.collect::<Vec<_>>());
        StoreFuture::pending(async move {
            let asked = calls.into_iter();
            let asked = asked.map(|call| Box::pin(backend.ask_script(call)) as _);
            let mut counts = vec![0; rules_len];
            for reply in join_all(asked.collect()).await {
                let reply = reply?;
                let read = numbers(&reply).filter(|read| read.len() == rules_len);
                let read = read.ok_or_else(|| unexpected("count_notes.lua", &reply))?;
                counts
                    .iter_mut()
                    .zip(read)
                    .for_each(|(count, part)| *count += part);
            }
            Ok(counts)
        })
    }

    /// The indexes that an entry is in.
    fn indexes_of_block(&self, block: &ListedBlock) -> Result<[Option<IndexKeys>; 3], StoreError> {
        let scheme = self.scheme();
        scheme.check(&block.counter)?;
        let shard = KeyScheme::shard_of(&block.counter);
        // What is no digest is not of this store.
        let subject = block
            .subject
            .as_deref()
            .filter(|subject| is_digest(subject));
        Ok([
            Some(scheme.blocks_of_rule(&block.rule, shard)),
            block.address.map(|address| scheme.blocks_at(address)),
            subject.map(|digest| scheme.blocks_of_subject(digest)),
        ])
    }

    pub(super) fn drop_blocks(&self, blocks: &[ListedBlock]) -> StoreFuture<()> {
        let mut dropped = HashMap::<IndexKeys, Vec<&ListedBlock>>::new();
        for block in blocks {
            let indexes = match self.indexes_of_block(block) {
                Ok(indexes) => indexes,
                Err(error) => return StoreFuture::ready(Err(error)),
            };
            for keys in indexes.into_iter().flatten() {
                dropped.entry(keys).or_default().push(block);
            }
        }
        let calls = dropped.iter().flat_map(|(keys, entries)| {
            entries.chunks(MAX_DROPPED).map(move |entries| {
                let mut call = self.index_call(&DROP_NOTES, iter::once(keys));
                for block in entries {
                    call.command.arg(block.counter.as_str());
                    call.command.arg(record::revision(block.revision));
                }
                call
            })
        });
        let (backend, calls) = (self.clone(), calls.collect::<Vec<_>>());
        StoreFuture::pending(async move {
            let asked = calls.into_iter();
            let asked = asked.map(|call| Box::pin(backend.ask_script(call)) as _);
            let mut dropped = join_all(asked.collect()).await.into_iter();
            dropped.try_for_each(|reply| reply.map(drop))
        })
    }
}

impl Lists {
    /// Adds the reply of a script for this many indexes, of each of which it has listed `count` entries at most.
    fn add(&mut self, reply: &Value, indexes: usize, count: usize) -> Option<()> {
        let Value::Array(values) = reply else {
            return None;
        };
        let (Value::Int(now), lists) = values.split_first()? else {
            return None;
        };
        self.now = self.now.max(u64::try_from(*now).ok()?);
        if lists.len() != indexes {
            return None;
        }
        let (mut is_cut_off, mut end) = (false, None);
        for list in lists {
            let Value::Array(list) = list else {
                return None;
            };
            let entries: Vec<_> = list.chunks(3).map(entry).collect::<Option<_>>()?;
            let last = entries.last().map(|entry| entry.position.clone());
            end = end.max(last.clone());
            if entries.len() >= count {
                is_cut_off = true;
                self.upto = match (self.upto.take(), last) {
                    (Some(upto), Some(last)) => Some(upto.min(last)),
                    (upto, last) => upto.or(last),
                };
            }
            self.entries.extend(entries);
        }
        self.ends.push((is_cut_off, end));
        Some(())
    }

    /// Orders the entries, and leaves out those behind which others may be missing.
    fn sort(&mut self) {
        if let Some(upto) = &self.upto {
            self.entries.retain(|entry| entry.position <= *upto);
        }
        self.entries
            .sort_unstable_by(|one, other| one.position.cmp(&other.position));
    }
}

/// The addresses of a small IPv4 network. Of IPv6 there is none: policies count its clients by networks of any length.
fn addresses_of((ip, prefix): (IpAddr, u8)) -> Option<impl Iterator<Item = Address>> {
    let IpAddr::V4(ip) = ip else {
        return None;
    };
    if !(SMALL_NETWORK..=32).contains(&prefix) {
        return None;
    }
    let last = u32::MAX.checked_shr(prefix.into()).unwrap_or_default();
    let first = ip.to_bits() & !last;
    let address = |bits| Address::new(Ipv4Addr::from_bits(bits).into(), 128);
    Some((first..=first | last).map(address))
}

/// Reads one entry of a list.
fn entry(values: &[Value]) -> Option<Listed> {
    let [Value::BulkString(name), Value::BulkString(lifts), text] = values else {
        return None;
    };
    let lifts = match std::str::from_utf8(lifts).ok()? {
        "inf" => Millis::MAX,
        lifts => lifts.parse().ok()?,
    };
    let text = match text {
        Value::BulkString(text) => String::from_utf8(text.clone()).ok(),
        _ => None,
    };
    let name = String::from_utf8(name.clone()).ok()?;
    let position = Position { lifts, name };
    Some(Listed { position, text })
}

fn numbers(reply: &Value) -> Option<Vec<u64>> {
    let Value::Array(values) = reply else {
        return None;
    };
    let number = |value: &Value| match value {
        Value::Int(number) => u64::try_from(*number).ok(),
        _ => None,
    };
    values.iter().map(number).collect()
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn small_networks_are_their_addresses() {
        for (network, prefix, expected) in [
            ("192.0.2.7", 32, Some((1, "192.0.2.7", "192.0.2.7"))),
            ("192.0.2.7", 30, Some((4, "192.0.2.4", "192.0.2.7"))),
            ("192.0.2.7", 24, Some((256, "192.0.2.0", "192.0.2.255"))),
            (
                "255.255.255.255",
                24,
                Some((256, "255.255.255.0", "255.255.255.255")),
            ),
            ("192.0.2.7", 23, None),
            ("192.0.2.7", 33, None),
            ("2001:db8::", 128, None),
        ] {
            let addresses = addresses_of((network.parse().unwrap(), prefix));
            let addresses: Option<Vec<_>> =
                addresses.map(|all| all.map(|address| address.to_string()).collect());
            let found = addresses
                .as_ref()
                .map(|all| (all.len(), &*all[0], &*all[all.len() - 1]));
            assert_eq!(found, expected, "{network}/{prefix}");
        }
    }
}
