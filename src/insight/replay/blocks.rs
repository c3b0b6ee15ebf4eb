//! Blocks of the record and of the replay: when they begin, when they are lifted, and which were wrong.

use std::sync::Arc;

use super::{Replay, who::Who};
use crate::{
    Period, Rule,
    algorithm::{Millis, Standing, State},
    event::{CountedAttempt, Event},
    insight::watched::Block,
};

/// How far the clocks of a process and of its store may differ.
const SKEW: Millis = 1000;

impl Replay {
    pub(super) fn replayed_block(&mut self, who: &Who<'_>, position: usize, standing: Standing) {
        let (Some(rule), State::Blocked { lifts }) =
            (self.engine.policy.rules().get(position), standing.state)
        else {
            return;
        };
        // The rows begin with the rules of the policy.
        let counts = &mut self.rules[position].replayed;
        if rule.is_shadow() {
            counts.shadow_blocks += 1;
            return;
        }
        counts.blocks += 1;
        let subject = self.subjects.of(&self.engine.policy, rule, who);
        let block = Block::new(
            &self.rules[position].rule,
            self.subjects.pair(who),
            self.now,
            lifts,
        );
        self.replayed.watch(subject.id, block);
        self.subjects.entry(&subject, self.now).row.replayed += 1;
    }

    /// A block begins, which lifts after this time, or refuses nothing.
    pub(super) fn block_began(
        &mut self,
        event: &Event,
        (name, counter): (&Arc<str>, &str),
        lifts: Option<Period>,
        attempts: &[CountedAttempt],
    ) {
        let counts = &mut self.rule(name).recorded;
        match lifts {
            Some(_) => counts.blocks += 1,
            None => counts.shadow_blocks += 1,
        }
        let (who, id) = (
            self.users.of_block(event),
            self.subjects.counter(name, counter),
        );
        let policy = &self.engine.policy;
        let rule = policy.rule(name);
        let is_known = rule.is_some_and(|rule| self.covers(rule, &who));
        let subject = match rule.filter(|_| is_known) {
            Some(rule) => self.subjects.of(policy, rule, &who),
            None => self.subjects.of_counter(name, counter, &who),
        };
        let start = self.from.unwrap_or(event.at).saturating_sub(SKEW);
        let is_recent = attempts.iter().all(|attempt| attempt.at >= start);
        // A rule that the policy does not have, or not enabled, frees all that it blocked.
        let is_gone = rule.is_none_or(|rule| !rule.is_enabled() && !self.is_left_out(rule));
        let is_comparable = is_recent && (is_known || is_gone);
        let entry = self.subjects.block(&subject, id, event.at);
        if let Some(lifts) = lifts {
            entry.row.recorded += 1;
            entry.set_comparable(is_comparable);
            self.vague.earlier_blocks += u64::from(!is_comparable);
            let block = Block::new(name, self.subjects.pair(&who), event.at, lifts);
            self.recorded.watch(subject.id, block);
        }
    }

    /// An operator or the app lifts a block, or an operator forgives the failures that it consists of.
    pub(super) fn block_lifted(
        &mut self,
        event: &Event,
        (name, counter): (&Arc<str>, &str),
        by_app: bool,
    ) {
        let counter = self.subjects.counter(name, counter);
        let Some((id, entry)) = self.subjects.by_counter(counter) else {
            return;
        };
        self.now = self.now.max(event.at);
        self.engine.set_time(self.now);
        let who = entry.who();
        let by_user = (self.engine.policy.rule(name)).is_some_and(Rule::counts_by_user);
        // A full store has nothing to clear.
        let _ = match self.is_forgiving && !by_app {
            false => self.engine.clear(&who, name),
            true if by_user && who.address.is_some() => self.engine.forgive(&who),
            // It has ended by what was forgiven there.
            true => None,
        };
        if by_app {
            return;
        }
        if let Some(wrong) = self.recorded.unwatch(id) {
            self.rule(&wrong.rule).recorded.wrong += 1;
        }
        if let Some(wrong) = self.replayed.unwatch(id) {
            self.rule(&wrong.rule).replayed.wrong += 1;
        }
    }

    /// A success shows that blocks of the same user at the same address were wrong.
    pub(super) fn succeeded(&mut self, who: &Who<'_>) {
        let Some(pair) = self.subjects.pair(who) else {
            return;
        };
        for (_, wrong) in self.recorded.succeeded(pair, self.now) {
            self.rule(&wrong.rule).recorded.wrong += 1;
        }
        for (_, wrong) in self.replayed.succeeded(pair, self.now) {
            self.rule(&wrong.rule).replayed.wrong += 1;
        }
    }
}
