//! Refuses blocked callers from memory, without a call to the store behind it.
//!
//! A block that the store reports is cached until it lifts. It can be lifted earlier, by an unblock or
//! a success; the store then [invalidates](BlockCache::invalidate) it by the counter's name. While
//! invalidations are received an entry is fresh for ten seconds, otherwise for half a second; then one
//! caller revalidates it and the others are refused meanwhile.
//!
//! A server that does not know a cached block may have lifted it, or may be another one than the server
//! that reported it: started without its data, or promoted before it had received the block. In the second
//! case the block is [written back](Restorable::restore), and the attempt that found out is refused.
//!
//! This is the path that an attacker floods: one fingerprint and one shard lock per counter, no
//! allocation and nothing sent. The block of a counter that exempts known addresses is for strangers:
//! that an address is one is cached beside it, and is fresh for as long.

mod blocks;

use std::{fmt, sync::Arc, time::Duration};

use smallvec::SmallVec;

use self::blocks::{Accept, Blocks, Lookup};
use super::{
    Key, Remote, Reporters, Restorable, Settled, Settlement, Slot, Standings, Store, StoreFuture,
    StoreStatus, owned::OwnedSlots,
};
use crate::{Address, KnownAddresses, Token, algorithm::State, clock::Clock};

/// A store that answers from a cache of blocks where it can, and from `S` otherwise.
pub(crate) struct BlockCache<S> {
    pub(crate) inner: S,
    blocks: Arc<Blocks>,
}

impl<S: Restorable> BlockCache<S> {
    /// A cache for at most `capacity` blocks; with 0 nothing is cached.
    pub(crate) fn new(inner: S, capacity: usize, clock: Arc<dyn Clock>) -> Self {
        Self {
            inner,
            blocks: Arc::new(Blocks::new(capacity, clock)),
        }
    }

    pub(crate) fn is_enabled(&self) -> bool {
        self.blocks.capacity() > 0
    }

    /// Invalidations are received from now on, by the subscription of this number; with 0, no longer.
    pub(crate) fn set_subscription(&self, number: u64) {
        self.blocks.set_subscription(number);
    }

    /// Drops the entry of a counter that may no longer be blocked, by its name on the server.
    pub(crate) fn invalidate(&self, name: &[u8]) {
        self.blocks.invalidate(name);
    }
}

/// Writes blocks back that the store has reported and lost, and takes the attempt back that it has admitted
/// for that reason. Changes the reply to what it would have been.
async fn restore<S: Restorable>(
    inner: &S,
    blocks: &Blocks,
    token: Token,
    slots: &[Slot<'_>],
    (standings, reporters): &mut (Standings, Reporters),
) {
    let admitted = standings.admitted();
    for (i, slot) in slots.iter().enumerate() {
        if matches!(standings[i].state, State::Blocked { .. } | State::Exempt) {
            continue;
        }
        let Some((standing, lifts, server)) = blocks.reported(slot) else {
            continue;
        };
        let restored = inner.restore(slot, lifts, standing.usage, server);
        // Without an answer, what is known counts.
        if let Some(server) = restored.await.unwrap_or(Some(server)) {
            standings.as_mut()[i] = standing;
            reporters.push((i, server));
        }
    }
    if admitted && !standings.admitted() {
        // It can't fail: what is not answered is repeated.
        let _ = inner.take_back(token, slots).await;
    }
}

impl<S: Restorable + Clone> Store for BlockCache<S> {
    fn reserve(&self, token: Token, lease: Duration, slots: &[Slot<'_>]) -> StoreFuture<Standings> {
        let is_stale = match self.blocks.look_up(slots, Accept::Fresh) {
            Lookup::Refused(standings) => return StoreFuture::ready(Ok(standings)),
            Lookup::Stale => true,
            Lookup::Miss => false,
        };
        if !self.is_enabled() {
            return self.inner.reserve(token, lease, slots);
        }
        let reply = self.inner.reserve_from(token, lease, slots);
        let (inner, blocks) = (self.inner.clone(), Arc::clone(&self.blocks));
        let slots = OwnedSlots::new(slots);
        StoreFuture::pending(async move {
            let slots = &*slots.as_slots();
            // Not before it is polled: a future that never is must not keep others from asking.
            if is_stale {
                blocks.begin_revalidating(slots);
            }
            let asked = blocks.asked();
            let mut reply = reply.await?;
            if is_stale {
                restore(&inner, &blocks, token, slots, &mut reply).await;
            }
            let (standings, reporters) = reply;
            if is_stale || !standings.admitted() {
                blocks.learn(asked, slots, &standings, &reporters, |key| inner.name(key));
            }
            Ok(standings)
        })
    }

    fn check(&self, slots: &[Slot<'_>]) -> StoreFuture<Standings> {
        self.inner.check(slots)
    }

    fn settle(
        &self,
        tokens: &[Token],
        settlement: Settlement,
        slots: &[Slot<'_>],
        ago: Duration,
    ) -> StoreFuture<Settled> {
        let settled = self.inner.settle(tokens, settlement, slots, ago);
        let cleans_up = settlement.mains().is_some();
        if !self.is_enabled() || !(cleans_up || settlement == Settlement::Canceled) {
            return settled;
        }
        let blocks = Arc::clone(&self.blocks);
        let counters: SmallVec<[_; 3]> = slots.iter().map(|slot| slot.key.fingerprint).collect();
        // An unblock takes effect here whether or not the store can be reached.
        if matches!(
            settlement,
            Settlement::Cleared { .. } | Settlement::Forgiven { .. }
        ) {
            blocks.remove_all(&counters);
        }
        settled.map_ok(move |settled| {
            if (cleans_up || settled.changed > 0) && blocks.len() > 0 {
                blocks.remove_all(&counters);
            }
            settled
        })
    }

    fn remember(&self, key: &Key<'_>, address: Address, keep: KnownAddresses) -> StoreFuture<()> {
        let remembered = self.inner.remember(key, address, keep);
        if self.blocks.len() == 0 {
            return remembered;
        }
        let (blocks, stranger) = (Arc::clone(&self.blocks), self.blocks.stranger(key, address));
        remembered.map_ok(move |()| blocks.set_stranger(stranger, None))
    }

    fn known(&self, key: &Key<'_>, keep: KnownAddresses) -> StoreFuture<Vec<Address>> {
        self.inner.known(key, keep)
    }

    fn recall(&self, slots: &[Slot<'_>]) -> Option<Standings> {
        match self.blocks.look_up(slots, Accept::Stale) {
            Lookup::Refused(standings) => Some(standings),
            Lookup::Miss | Lookup::Stale => None,
        }
    }

    fn status(&self) -> StoreStatus {
        StoreStatus {
            cached_refusals: self.blocks.hits(),
            is_subscribed: self.blocks.subscription() != 0,
            ..self.inner.status()
        }
    }

    fn flush(&self) -> StoreFuture<()> {
        self.inner.flush()
    }
}

impl<S: Restorable + Clone> Remote for BlockCache<S> {
    fn name(&self, key: &Key<'_>) -> Vec<u8> {
        self.inner.name(key)
    }

    fn probe(&self, near: Option<&Key<'_>>) -> StoreFuture<()> {
        self.inner.probe(near)
    }
}

impl<S: fmt::Debug> fmt::Debug for BlockCache<S> {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("BlockCache")
            .field("inner", &self.inner)
            .field("len", &self.blocks.len())
            .finish_non_exhaustive()
    }
}
