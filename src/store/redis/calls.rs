//! Calls of the scripts: for counters that are kept together, and for those that a cluster keeps apart.

use std::{
    sync::{Arc, atomic::Ordering},
    time::Duration,
};

use redis::{Cmd, Value};
use tokio::{
    task::JoinHandle,
    time::{Instant, sleep, timeout_at},
};

use super::{
    RedisStore,
    connection::{Failure, PATIENCE, RETRY},
    counters::{Counters, Group, Settling},
    reply,
    scripts::{CLEANUP, KNOWN_ADDRESSES, RESERVE, SETTLE, Script, or_empty},
};
use crate::{
    Address, KnownAddresses, Token,
    algorithm::{Millis, Standing, State},
    clock::to_millis,
    store::{Key, Slot, Standings, StoreError, StoreFuture},
};

impl RedisStore {
    /// The time, if it is not the server's.
    fn now(&self) -> Option<Millis> {
        self.shared.clock.as_ref().map(|clock| clock.now())
    }

    pub(super) fn counters<'s>(&self, slots: impl IntoIterator<Item = &'s Slot<'s>>) -> Counters {
        Counters::new(slots, &self.shared.keys)
    }

    async fn send(
        &self,
        command: Cmd,
        script: &'static Script,
        deadline: Instant,
    ) -> Result<Value, Failure> {
        let link = Arc::clone(&self.link);
        link.send(command, Some(script), deadline).await
    }

    /// Does something with counters together; if a cluster keeps them apart, does it `apart`.
    async fn together_or<T>(
        &self,
        counters: Counters,
        together: impl AsyncFnOnce(&Counters) -> Result<T, Failure>,
        apart: impl AsyncFnOnce(Vec<Group>) -> Result<T, StoreError>,
    ) -> Result<T, StoreError> {
        if counters.have_one_tag() || !self.shared.is_cluster.load(Ordering::Relaxed) {
            match together(&counters).await {
                Err(failure) if failure.is_cross_slot && !counters.have_one_tag() => {
                    self.shared.is_cluster.store(true, Ordering::Relaxed);
                }
                answer => return answer.map_err(|failure| failure.error),
            }
        }
        apart(counters.apart()).await
    }

    pub(super) async fn reserve_or_check(
        &self,
        token: Option<Token>,
        lease: Duration,
        counters: Counters,
    ) -> Result<Standings, StoreError> {
        let deadline = self.link.deadline();
        self.together_or(
            counters,
            async |counters| self.ask(token, lease, counters, deadline).await,
            async |groups| self.ask_apart(token, lease, groups, deadline).await,
        )
        .await
    }

    /// Asks for counters that are kept together.
    async fn ask(
        &self,
        token: Option<Token>,
        lease: Duration,
        counters: &Counters,
        deadline: Instant,
    ) -> Result<Standings, Failure> {
        let command = counters.reserve(token, lease, self.now());
        // After an error nobody will check a password, so the attempt must not become a failure.
        let cancel = || Some(self.cancel(token?, counters));
        match self.send(command, &RESERVE, deadline).await {
            Ok(value) => {
                let standings = reply::standings(&value, token, counters.len());
                if standings.is_err() {
                    drop(self.say_until_heard(cancel().into_iter().collect()));
                }
                Ok(standings?)
            }
            Err(mut failure) => {
                if let Some(cancel) = cancel().filter(|_| failure.was_sent) {
                    let (store, behind) = (self.clone(), failure.afterthought.take());
                    tokio::spawn(async move {
                        let heard = match behind {
                            Some(send) => send(cancel.clone(), &SETTLE).await,
                            None => false,
                        };
                        if !heard {
                            let _ = store.say_until_heard(vec![cancel]).await;
                        }
                    });
                }
                Err(failure)
            }
        }
    }

    fn cancel(&self, token: Token, counters: &Counters) -> Cmd {
        counters.settle(Settling::Cancel(&[token]), self.now())
    }

    /// Asks for one group after the other. One that comes later is only asked to admit if those
    /// before have admitted: whoever is refused by address can't take places away from an account,
    /// not even for a moment.
    async fn ask_apart(
        &self,
        token: Option<Token>,
        lease: Duration,
        groups: Vec<Group>,
        deadline: Instant,
    ) -> Result<Standings, StoreError> {
        let slots = groups.iter().map(|group| group.slots.len()).sum();
        let mut standings = Standings::from_iter(vec![Standing::new(0, 0, State::Clear); slots]);
        let mut asked = token;
        // What takes the attempt out of those that have admitted it, and where those stand.
        let (mut take_back, mut admitted) = (Vec::new(), Vec::new());
        for group in groups {
            let answer = self.ask(asked, lease, &group.counters, deadline).await;
            let answer = answer.map_err(|failure| {
                drop(self.say_until_heard(take_back.clone()));
                failure.error
            })?;
            group.place(&answer, &mut standings);
            match asked {
                Some(token) if answer.admitted() => {
                    take_back.push(self.cancel(token, &group.counters));
                    admitted.extend(group.slots);
                }
                // From here on only to say how things stand.
                _ => asked = None,
            }
        }
        if token != asked && !take_back.is_empty() {
            for i in admitted {
                take_one_back(&mut standings.as_mut()[i]);
            }
            // It goes on if there is no time to wait for it.
            let _ = timeout_at(deadline, self.say_until_heard(take_back)).await;
        }
        Ok(standings)
    }

    /// Settles attempts that had been admitted and were not to be, also if nobody waits for that. It is
    /// said until it is heard, or they would become failures when their leases end: an error must not
    /// lead to a block.
    fn say_until_heard(&self, settling: Vec<Cmd>) -> JoinHandle<()> {
        let store = self.clone();
        tokio::spawn(async move {
            let until = Instant::now() + PATIENCE;
            let mut pause = RETRY;
            for command in settling {
                let say = || store.send(command.clone(), &SETTLE, store.link.deadline());
                while say().await.is_err() && Instant::now() < until {
                    sleep(pause).await;
                    pause = (pause * 2).min(RETRY * 50);
                }
            }
        })
    }

    pub(super) fn settle(
        &self,
        token: Token,
        fail: bool,
        slots: &[Slot<'_>],
    ) -> StoreFuture<usize> {
        if slots.is_empty() {
            return StoreFuture::now(Ok(0));
        }
        let (store, counters) = (self.clone(), self.counters(slots));
        StoreFuture::later(async move {
            let deadline = store.link.deadline();
            let settle = async |counters: &Counters| {
                let tokens = &[token][..];
                let settling = match fail {
                    true => Settling::Fail(token),
                    false => Settling::Cancel(tokens),
                };
                let command = counters.settle(settling, store.now());
                let value = store.send(command, &SETTLE, deadline).await?;
                Ok(reply::count("settle.lua", &value)?)
            };
            let apart = async |groups: Vec<Group>| {
                let mut settled = Ok(0);
                for group in groups {
                    let counters = settle(&group.counters).await;
                    let counters = counters.map_err(|failure: Failure| failure.error);
                    settled = settled.and_then(|sum| Ok(sum + counters?));
                }
                settled
            };
            store.together_or(counters, settle, apart).await
        })
    }

    /// Cleans up, the first so many counters being the main ones.
    pub(super) async fn clean_up(
        &self,
        token: Option<Token>,
        counters: Counters,
        mains: usize,
    ) -> Result<(), StoreError> {
        let deadline = self.link.deadline();
        let clean_up = async |counters: &Counters, mains: usize| {
            let command = counters.clean_up(token, mains, self.now());
            let value = self.send(command, &CLEANUP, deadline).await?;
            Ok(reply::tokens("cleanup.lua", &value)?)
        };
        let apart = async |groups: Vec<Group>| {
            // Main counters come first in their groups as well.
            let mains_in = |group: &Group| group.slots.iter().filter(|slot| **slot < mains).count();
            let mut tokens: Vec<_> = token.into_iter().collect();
            for group in groups.iter().filter(|group| mains_in(group) > 0) {
                let left = clean_up(&group.counters, mains_in(group)).await;
                tokens.extend(left.map_err(|failure: Failure| failure.error)?);
            }
            let mains = groups.iter().filter(|group| mains_in(group) > 0).count();
            for group in &groups {
                // What left the only one with main counters has left it altogether.
                if mains == 1 && mains_in(group) > 0 {
                    continue;
                }
                let cancel = Settling::Cancel(&tokens);
                let command = group.counters.settle(cancel, self.now());
                let value = self.send(command, &SETTLE, deadline).await;
                reply::count("settle.lua", &value.map_err(|failure| failure.error)?)?;
            }
            Ok(tokens)
        };
        let together = async |counters: &Counters| clean_up(counters, mains).await;
        self.together_or(counters, together, apart).await.map(drop)
    }

    pub(super) fn known_addresses(
        &self,
        key: &Key<'_>,
        address: Option<Address>,
        keep: KnownAddresses,
    ) -> StoreFuture<Vec<Address>> {
        let mut command = KNOWN_ADDRESSES.call(&[self.shared.keys.write(key)]);
        or_empty(&mut command, address.map(|address| address.to_string()));
        command.arg(keep.newest()).arg(to_millis(keep.kept_for()));
        or_empty(&mut command, self.now());
        let store = self.clone();
        StoreFuture::later(async move {
            let deadline = store.link.deadline();
            let answer = store.send(command, &KNOWN_ADDRESSES, deadline).await;
            reply::addresses(&answer.map_err(|failure| failure.error)?)
        })
    }
}

/// How a counter stood before an attempt that was admitted and is taken back.
fn take_one_back(standing: &mut Standing) {
    if standing.state == State::Clear {
        standing.usage = standing.usage.saturating_sub(1);
        standing.thousandths = standing.thousandths.saturating_sub(1000);
    }
}
