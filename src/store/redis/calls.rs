//! Calls of the scripts: for counters that are kept together, and for those that a cluster keeps apart.

use std::{
    iter,
    sync::{Arc, atomic::Ordering},
    time::Duration,
};

use redis::{Cmd, Value};
use tokio::time::Instant;

use super::{
    RedisStore, alone,
    connection::Failure,
    counters::{Counters, Group, Settling},
    debts::Debt,
    reply,
    scripts::{CLEANUP, KNOWN_ADDRESSES, MERGE, RESERVE, SETTLE, Script, or_empty},
};
use crate::{
    Address, KnownAddresses, Token,
    algorithm::{Millis, Standing, State},
    clock::to_millis,
    events,
    store::{Key, Slot, Standings, StoreError},
};

/// How many cancels may wait behind attempts that may still be carried out.
const AFTERTHOUGHTS: usize = 256;

impl RedisStore {
    /// The time, if it is not the server's.
    fn now(&self) -> Option<Millis> {
        self.shared.clock.as_ref().map(|clock| clock.now())
    }

    pub(super) fn counters<'s>(
        &self,
        slots: impl IntoIterator<Item = &'s Slot<'s>>,
    ) -> Arc<Counters> {
        Arc::new(Counters::new(slots, &self.shared.keys))
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

    /// Whether these are known to be kept apart, as a cluster keeps them.
    fn are_apart(&self, counters: &Counters) -> bool {
        self.shared.is_cluster.load(Ordering::Relaxed) && !counters.have_one_tag()
    }

    /// What Redis answered for all of these together; `None` if it turns out that they are kept apart.
    fn unless_apart<T>(
        &self,
        counters: &Counters,
        answer: Result<T, Failure>,
    ) -> Option<Result<T, StoreError>> {
        match answer {
            Err(failure) if failure.is_cross_slot && !counters.have_one_tag() => {
                self.shared.is_cluster.store(true, Ordering::Relaxed);
                None
            }
            answer => Some(answer.map_err(|failure| failure.error)),
        }
    }

    /// Asks Redis to admit an attempt; without a token, how the counters stand.
    pub(super) async fn ask(
        &self,
        token: Option<Token>,
        lease: Duration,
        counters: &Arc<Counters>,
    ) -> Result<Standings, StoreError> {
        let deadline = self.link.deadline();
        if !self.are_apart(counters) {
            let answer = self.ask_together(token, lease, counters, deadline).await;
            if let Some(answer) = self.unless_apart(counters, answer) {
                return answer;
            }
        }
        self.ask_apart(token, lease, counters.apart(), deadline)
            .await
    }

    /// Asks for counters that are kept together.
    async fn ask_together(
        &self,
        token: Option<Token>,
        lease: Duration,
        counters: &Arc<Counters>,
        deadline: Instant,
    ) -> Result<Standings, Failure> {
        let command = counters.reserve(token, lease, self.now());
        match self.send(command, &RESERVE, deadline).await {
            Ok(value) => {
                let standings = counters.standings(&value, token);
                if let (Err(_), Some(token)) = (&standings, token) {
                    self.take_back(token, counters);
                }
                Ok(standings?)
            }
            Err(mut failure) => {
                // Nobody will settle it in Redis, so it must not become a failure there.
                if let (Some(token), true) = (token, failure.was_sent) {
                    let (store, counters) = (self.clone(), Arc::clone(counters));
                    let waiting = self.shared.alone.afterthoughts.load(Ordering::Relaxed);
                    match failure.afterthought.take() {
                        Some(send) if waiting < AFTERTHOUGHTS => {
                            let cancel = Settling::Cancel(&[token]);
                            let cancel = counters.settle(cancel, self.now(), self.channel());
                            let alone = &self.shared.alone;
                            alone.afterthoughts.fetch_add(1, Ordering::SeqCst);
                            tokio::spawn(async move {
                                if !send(cancel, &SETTLE).await {
                                    store.take_back(token, &counters);
                                }
                                let alone = &store.shared.alone;
                                alone.afterthoughts.fetch_sub(1, Ordering::SeqCst);
                                alone.told.notify_waiters();
                            });
                        }
                        _ => self.take_back(token, &counters),
                    }
                }
                Err(failure)
            }
        }
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
        let mut admitted = Vec::new();
        for group in groups {
            let answer = self
                .ask_together(asked, lease, &group.counters, deadline)
                .await;
            let answer = match answer {
                Ok(answer) => answer,
                Err(failure) => {
                    let groups = admitted.iter().map(|group: &Group| &group.counters);
                    for (token, counters) in token.into_iter().cycle().zip(groups) {
                        self.take_back(token, counters);
                    }
                    return Err(failure.error);
                }
            };
            group.place(&answer, &mut standings);
            match asked {
                Some(_) if answer.admitted() => admitted.push(group),
                // From here on only to say how things stand.
                _ => asked = None,
            }
        }
        if let (Some(token), None) = (token, asked) {
            for group in admitted {
                for slot in &group.slots {
                    take_one_back(&mut standings.as_mut()[*slot]);
                }
                let cancel = Debt::Cancel([token].as_slice().into(), group.counters);
                if self.pay_by(&cancel, deadline).await.is_err() {
                    self.owe_or_say(cancel);
                }
            }
        }
        Ok(standings)
    }

    /// Takes back an attempt that Redis may have admitted and nobody will settle there. It is told until
    /// it hears, or the attempt would become a failure when its lease ends: an error must not lead to a
    /// block.
    pub(super) fn take_back(&self, token: Token, counters: &Arc<Counters>) {
        self.owe_or_say(Debt::Cancel(
            [token].as_slice().into(),
            Arc::clone(counters),
        ));
    }

    fn owe_or_say(&self, debt: Debt) {
        if let Err(error) = self.owe(debt) {
            events::not_settled(&error);
        }
    }

    /// Tells Redis something. Says in how many counters that changed something.
    pub(super) async fn pay(&self, debt: &Debt) -> Result<usize, StoreError> {
        self.pay_by(debt, self.link.deadline()).await
    }

    async fn pay_by(&self, debt: &Debt, deadline: Instant) -> Result<usize, StoreError> {
        match debt {
            Debt::Fail(token, counters, at) => {
                let age = alone::age(&*self.shared.alone.clock, *at);
                let settling = Settling::Fail(*token, age);
                self.settle(settling, counters, deadline).await
            }
            Debt::Cancel(tokens, counters) => {
                let settling = Settling::Cancel(tokens);
                let changed = self.settle(settling, counters, deadline).await?;
                if changed > 0 {
                    self.shared.blocks.forget(counters);
                }
                Ok(changed)
            }
            Debt::CleanUp(token, counters, mains, at) => {
                let age = alone::age(&*self.shared.alone.clock, *at);
                let cleaned = self.clean_up(*token, counters, *mains, age, deadline);
                cleaned.await?;
                self.shared.blocks.forget(counters);
                Ok(counters.len())
            }
            Debt::Merge(token, counters, at) => {
                let age = alone::age(&*self.shared.alone.clock, *at);
                let merge = |counters: &Counters| counters.merge(*token, age, self.now());
                self.change(counters, &MERGE, &merge, deadline).await
            }
            Debt::Remember(_, command) => {
                let answer = self.send(command.clone(), &KNOWN_ADDRESSES, deadline).await;
                reply::addresses(&answer.map_err(|failure| failure.error)?).map(|known| known.len())
            }
        }
    }

    async fn settle(
        &self,
        settling: Settling<'_>,
        counters: &Counters,
        deadline: Instant,
    ) -> Result<usize, StoreError> {
        let settle = |counters: &Counters| counters.settle(settling, self.now(), self.channel());
        self.change(counters, &SETTLE, &settle, deadline).await
    }

    /// Changes counters together or, where they are kept apart, one group after the other, also if one
    /// fails. Says how many of them were changed.
    async fn change(
        &self,
        counters: &Counters,
        script: &'static Script,
        call: &(dyn Fn(&Counters) -> Cmd + Sync),
        deadline: Instant,
    ) -> Result<usize, StoreError> {
        if !self.are_apart(counters) {
            let answer = self.count(call(counters), script, deadline).await;
            if let Some(answer) = self.unless_apart(counters, answer) {
                return answer;
            }
        }
        let mut changed = Ok(0);
        for group in counters.apart() {
            let answer = self.count(call(&group.counters), script, deadline).await;
            let answer = answer.map_err(|failure| failure.error);
            changed = changed.and_then(|sum| Ok(sum + answer?));
        }
        changed
    }

    async fn count(
        &self,
        command: Cmd,
        script: &'static Script,
        deadline: Instant,
    ) -> Result<usize, Failure> {
        let value = self.send(command, script, deadline).await?;
        Ok(reply::count(&value)?)
    }

    /// Cleans up, the first so many counters being the main ones.
    async fn clean_up(
        &self,
        token: Option<Token>,
        counters: &Counters,
        mains: usize,
        age: Millis,
        deadline: Instant,
    ) -> Result<(), StoreError> {
        if !self.are_apart(counters) {
            let answer = self
                .clean_up_together(token, counters, mains, age, deadline)
                .await;
            if let Some(answer) = self.unless_apart(counters, answer) {
                return answer.map(drop);
            }
        }
        // Main counters come first in their groups as well.
        let mains_in = |group: &Group| group.slots.iter().filter(|slot| **slot < mains).count();
        let groups = counters.apart();
        let mut tokens: Vec<_> = token
            .into_iter()
            .flat_map(|token| [token, token.twin()])
            .collect();
        for group in groups.iter().filter(|group| mains_in(group) > 0) {
            let (counters, mains) = (&group.counters, mains_in(group));
            let left = self.clean_up_together(token, counters, mains, age, deadline);
            tokens.extend(left.await.map_err(|failure| failure.error)?);
        }
        if tokens.is_empty() {
            return Ok(()); // nothing had failed, so there is nothing to take back
        }
        let mains = groups.iter().filter(|group| mains_in(group) > 0).count();
        for group in &groups {
            // What left the only one with main counters has left it altogether.
            if mains == 1 && mains_in(group) > 0 {
                continue;
            }
            let settled = self.settle(Settling::Cancel(&tokens), &group.counters, deadline);
            if settled.await.is_err() {
                // The main ones are cleaned up, and would not be a second time.
                let counters = Arc::clone(&group.counters);
                self.owe(Debt::Cancel(tokens.as_slice().into(), counters))?;
            }
        }
        Ok(())
    }

    /// Cleans up counters that are kept together. Says which failed attempts left them.
    async fn clean_up_together(
        &self,
        token: Option<Token>,
        counters: &Counters,
        mains: usize,
        age: Millis,
        deadline: Instant,
    ) -> Result<Vec<Token>, Failure> {
        let command = counters.clean_up(token, mains, age, self.now(), self.channel());
        let value = self.send(command, &CLEANUP, deadline).await?;
        Ok(reply::tokens(&value)?)
    }

    /// A call that keeps an address, or only lists those that are kept.
    pub(super) fn known_addresses(
        &self,
        key: &Key<'_>,
        address: Option<Address>,
        keep: KnownAddresses,
    ) -> Cmd {
        let name = self.shared.keys.write(key);
        let mut command = KNOWN_ADDRESSES.call(iter::once(&*name));
        or_empty(&mut command, address.map(|address| address.to_string()));
        command.arg(keep.newest()).arg(to_millis(keep.kept_for()));
        or_empty(&mut command, self.now());
        command
    }

    pub(super) async fn known_to_redis(&self, command: Cmd) -> Result<Vec<Address>, StoreError> {
        let deadline = self.link.deadline();
        let answer = self.send(command, &KNOWN_ADDRESSES, deadline).await;
        reply::addresses(&answer.map_err(|failure| failure.error)?)
    }

    /// Reserves an attempt that nobody makes and nothing comes of.
    pub(super) async fn try_out(
        &self,
        token: Token,
        counters: &Counters,
    ) -> Result<(), StoreError> {
        let command = counters.reserve(Some(token), Duration::ZERO, self.now());
        let value = self.send(command, &RESERVE, self.link.deadline()).await;
        let value = value.map_err(|failure| failure.error)?;
        counters.standings(&value, Some(token))?;
        let (cancel, deadline) = (Settling::Cancel(&[token]), self.link.deadline());
        self.settle(cancel, counters, deadline).await.map(drop)
    }
}

/// How a counter stood before an attempt that was admitted and is taken back.
fn take_one_back(standing: &mut Standing) {
    if standing.state == State::Clear {
        standing.usage = standing.usage.saturating_sub(1);
        standing.thousandths = standing.thousandths.saturating_sub(1000);
    }
}
