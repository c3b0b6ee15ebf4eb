//! Counters that a cluster keeps in different slots: no script can access them together.

use std::{sync::Arc, time::Duration};

use tokio::time::Instant;

use super::{
    backend::Backend,
    connection::Failure,
    counters::{Counters, Group},
    reply,
};
use crate::{
    Token,
    algorithm::{Millis, Standing, State},
    store::{Reporters, ServerId, Settled, Settlement, Standings, StoreError},
};

impl Backend {
    /// Whether these must be sent slot by slot.
    fn is_divided(&self, counters: &Counters) -> bool {
        self.is_cluster() && !counters.share_slot()
    }

    /// The reply for all of these counters together; `None` if it reveals a cluster that keeps them in
    /// different slots.
    fn unless_divided<T>(
        &self,
        counters: &Counters,
        reply: Result<T, Failure>,
    ) -> Option<Result<T, StoreError>> {
        match reply {
            Err(failure) if failure.is_cross_slot && !counters.share_slot() => {
                self.set_cluster();
                None
            }
            reply => Some(reply.map_err(|failure| failure.error)),
        }
    }

    /// Reserves an attempt; without a token, reports how the counters stand.
    pub(super) async fn ask(
        &self,
        token: Option<Token>,
        lease: Duration,
        counters: Arc<Counters>,
    ) -> Result<(Standings, Reporters), StoreError> {
        let deadline = self.link.deadline();
        if !self.is_divided(&counters) {
            let reply = self.ask_slot(token, lease, &counters, deadline).await;
            if let Some(reply) = self.unless_divided(&counters, reply) {
                let (standings, server) = reply?;
                let reporters = reporters(0..counters.len(), &standings, server);
                return Ok((standings, reporters));
            }
        }
        let groups = counters.by_slot();
        self.ask_by_slot(token, lease, groups, deadline).await
    }

    /// Reserves in one slot after the other. A later one is asked to admit only if those before have: a client
    /// that is refused by address can't take places away from an account, not even for a moment.
    async fn ask_by_slot(
        &self,
        token: Option<Token>,
        lease: Duration,
        groups: Vec<Group>,
        deadline: Instant,
    ) -> Result<(Standings, Reporters), StoreError> {
        let counters = groups.iter().map(|group| group.positions.len()).sum();
        let mut standings = Standings::from_iter(vec![Standing::new(0, 0, State::Clear); counters]);
        let mut asked = token;
        let (mut admitted, mut reported) = (Vec::<Group>::new(), Reporters::new());
        for group in groups {
            let reply = self.ask_slot(asked, lease, &group.counters, deadline).await;
            let (reply, server) = match reply {
                Ok(reply) => reply,
                Err(failure) => {
                    if let Some(token) = token {
                        for group in &admitted {
                            self.cancel_later(&[token], &group.counters);
                        }
                    }
                    return Err(failure.error);
                }
            };
            for (position, standing) in group.positions.iter().zip(&*reply) {
                standings.as_mut()[*position] = *standing;
            }
            reported.extend(reporters(group.positions.iter().copied(), &reply, server));
            if asked.is_some() && reply.admitted() {
                admitted.push(group);
            } else {
                // From here on only to report how things stand.
                asked = None;
            }
        }
        if let (Some(token), None) = (token, asked) {
            for group in admitted {
                for position in &group.positions {
                    without_one(&mut standings.as_mut()[*position]);
                }
                self.cancel(&[token], &group.counters, deadline).await;
            }
        }
        Ok((standings, reported))
    }

    /// Settles in counters together or, where a cluster divides them, one slot after the other, also if one
    /// fails.
    pub(super) async fn settle_by_slot(
        &self,
        tokens: &[Token],
        settlement: Settlement,
        counters: &Counters,
        ago: Millis,
        deadline: Instant,
    ) -> Result<Settled, StoreError> {
        let send = async |counters: &Counters| -> Result<Settled, Failure> {
            let call = self.call(counters, tokens, settlement, ago);
            let reply = self.run(call, deadline).await?;
            Ok(reply::settled(&reply, counters.len(), settlement)?)
        };
        if !self.is_divided(counters) {
            let reply = send(counters).await;
            if let Some(reply) = self.unless_divided(counters, reply) {
                return reply;
            }
        }
        let mut settled = Ok(Settled::default());
        for group in counters.by_slot() {
            let reply = send(&group.counters).await;
            let reply = reply.map_err(|failure| failure.error);
            settled = settled.and_then(|mut all| {
                let Settled {
                    changed,
                    began,
                    lifted,
                } = reply?;
                all.changed += changed;
                let began = began.into_iter();
                all.began
                    .extend(began.map(|(i, standing)| (group.positions[i], standing)));
                let lifted = lifted.into_iter().map(|i| group.positions[i]);
                all.lifted.extend(lifted);
                Ok(all)
            });
        }
        settled
    }

    /// Cleans up the main counters. Returns the positions of the counters whose blocks ended.
    pub(super) async fn clean_up(
        &self,
        tokens: &[Token],
        settlement: Settlement,
        counters: &Counters,
        ago: Millis,
        deadline: Instant,
    ) -> Result<Vec<usize>, StoreError> {
        let mains = settlement.mains().unwrap_or_default().min(counters.len());
        if !self.is_divided(counters) {
            let settlement = settlement.with_mains(mains);
            let reply = self
                .clean_up_slot(tokens, settlement, counters, ago, deadline)
                .await;
            if let Some(reply) = self.unless_divided(counters, reply) {
                return reply.map(|(_, lifted)| lifted);
            }
        }
        // Main counters come first in their groups as well.
        let groups = counters.by_slot();
        let (mut removed, mut all_lifted) = (tokens.to_vec(), Vec::new());
        for group in groups.iter().filter(|group| group.mains(mains) > 0) {
            let settlement = settlement.with_mains(group.mains(mains));
            let reply = self.clean_up_slot(tokens, settlement, &group.counters, ago, deadline);
            let (tokens, lifted) = reply.await.map_err(|failure| failure.error)?;
            removed.extend(tokens);
            all_lifted.extend(lifted.into_iter().map(|i| group.positions[i]));
        }
        if removed.is_empty() {
            return Ok(all_lifted);
        }
        let with_mains = groups.iter().filter(|group| group.mains(mains) > 0).count();
        for group in &groups {
            // What was removed from the only group with main counters has left all of that group.
            if with_mains == 1 && group.mains(mains) > 0 {
                continue;
            }
            // Not by another clean-up: the main counters no longer hold the token.
            let canceled = self.cancel(&removed, &group.counters, deadline).await;
            let lifted = canceled.lifted.into_iter().map(|i| group.positions[i]);
            all_lifted.extend(lifted);
        }
        Ok(all_lifted)
    }
}

/// Notes which server reported the blocks among these.
fn reporters(
    positions: impl Iterator<Item = usize>,
    standings: &Standings,
    server: Option<ServerId>,
) -> Reporters {
    let blocked = positions.zip(&**standings);
    let blocked = blocked.filter(|(_, standing)| matches!(standing.state, State::Blocked { .. }));
    let reported = blocked.filter_map(|(position, _)| Some((position, server?)));
    reported.collect()
}

/// How a counter stands without the attempt that it has just admitted.
fn without_one(standing: &mut Standing) {
    if standing.state == State::Clear {
        standing.usage = standing.usage.saturating_sub(1);
        standing.thousandths = standing.thousandths.saturating_sub(1000);
    }
}
