//! Counters as the scripts take them.

use std::{sync::Arc, time::Duration};

use redis::{Cmd, Value};
use smallvec::SmallVec;

use super::{
    keys::KeyScheme,
    reply,
    scripts::{Kind, Program, Programs, Script, or_empty},
};
use crate::{
    Period, Token,
    algorithm::{Algorithm, Millis},
    clock::to_millis,
    store::{ServerId, Settlement, Slot, Standings, StoreError, owned::OwnedSlot},
};

/// Some counters with their names in Redis, ready to be sent more than once.
pub(super) struct Counters(Vec<Counter>);

#[derive(Clone)]
struct Counter {
    name: Vec<u8>,
    /// Where the known addresses of its subject are, if it exempts them.
    known: Option<Vec<u8>>,
    /// What follows the tokens of its failures, if the user was not spelled in the normal form. Eight zeros
    /// stand for none.
    suffix: Option<[u8; 8]>,
    slot: OwnedSlot,
}

/// A call of a script.
pub(super) struct Call {
    pub(super) command: Cmd,
    pub(super) script: Arc<Script>,
}

/// Counters that a cluster keeps in one slot.
pub(super) struct Group {
    pub(super) counters: Arc<Counters>,
    /// Their positions among all counters of the call.
    pub(super) positions: Vec<usize>,
}

impl Group {
    /// How many of its counters are among the first `mains` of the call.
    pub(super) fn mains(&self, mains: usize) -> usize {
        let positions = self.positions.iter();
        positions.filter(|position| **position < mains).count()
    }
}

impl Counters {
    pub(super) fn new<'s>(
        slots: impl IntoIterator<Item = &'s Slot<'s>>,
        scheme: &KeyScheme,
    ) -> Self {
        let counter = |slot: &Slot<'_>| Counter {
            name: scheme.name(&slot.key),
            known: slot.known_key().map(|key| scheme.name(&key)),
            suffix: (slot.spelling).map(|spelling| scheme.spelling_suffix(&slot.key, spelling)),
            slot: OwnedSlot::new(slot),
        };
        Self(slots.into_iter().map(counter).collect())
    }

    pub(super) const fn len(&self) -> usize {
        self.0.len()
    }

    pub(super) fn as_slots(&self) -> SmallVec<[Slot<'_>; 3]> {
        self.0
            .iter()
            .map(|counter| counter.slot.as_slot())
            .collect()
    }

    fn names(&self) -> impl Iterator<Item = &[u8]> + Clone {
        self.0.iter().map(|counter| &*counter.name)
    }

    /// Whether the user was spelled in another form than the normal one.
    fn is_spelled(&self) -> bool {
        self.0.iter().any(|counter| counter.suffix.is_some())
    }

    /// The list of spellings that `counters.lua` describes.
    fn suffixes(&self) -> impl Iterator<Item = u8> {
        let suffixes = self.0.iter();
        suffixes.flat_map(|counter| counter.suffix.unwrap_or_default())
    }

    /// Reads the reply of `reserve.lua`.
    pub(super) fn standings(
        &self,
        reply: &Value,
        token: Option<Token>,
    ) -> Result<(Standings, Option<ServerId>), StoreError> {
        let window = |i: usize| {
            let limit = &self.0[i].slot.limit;
            (limit.algorithm == Algorithm::SlidingWindow).then_some(limit.attempts)
        };
        let is_shadow = |i: usize| self.0[i].slot.shadow;
        reply::standings(reply, token, self.len(), window, is_shadow)
    }

    /// Whether a cluster keeps all of them in one slot.
    pub(super) fn share_slot(&self) -> bool {
        let mut keys = self.0.iter().map(|counter| &counter.slot.key);
        let first = keys.next();
        keys.all(|key| first.is_some_and(|first| first.shares_hash_tag(key)))
    }

    /// Divided by the slot in which a cluster keeps them, counters of an address first.
    pub(super) fn by_slot(&self) -> Vec<Group> {
        let key = |position: usize| &self.0[position].slot.key;
        let mut groups: Vec<Vec<usize>> = Vec::new();
        for position in 0..self.len() {
            let same = |group: &&mut Vec<usize>| key(group[0]).shares_hash_tag(key(position));
            match groups.iter_mut().find(same) {
                Some(group) => group.push(position),
                None => groups.push(vec![position]),
            }
        }
        groups.sort_by_key(|group| !key(group[0]).has_address());
        let group = |positions: Vec<usize>| {
            let counters = positions.iter().map(|position| self.0[*position].clone());
            Group {
                counters: Arc::new(Self(counters.collect())),
                positions,
            }
        };
        groups.into_iter().map(group).collect()
    }

    fn program(&self, programs: &Programs, lease: Millis) -> Arc<Program> {
        let rows = self
            .0
            .iter()
            .map(|Counter { slot, .. }| (&slot.limit, slot.keeps_known(), slot.shadow));
        programs.get(rows, lease)
    }

    /// A call of `reserve.lua`; without a token it only reports.
    pub(super) fn reserve(
        &self,
        programs: &Programs,
        token: Option<Token>,
        lease: Duration,
        now: Option<Millis>,
    ) -> Call {
        let program = self.program(programs, to_millis(lease));
        let script = program.script(Kind::Reserve);
        let known = self.0.iter().filter_map(|counter| counter.known.as_deref());
        let mut command = script.call(self.names().chain(known));
        match token {
            Some(token) if self.is_spelled() => {
                let spelled = token.as_bytes().iter().copied().chain(self.suffixes());
                command.arg(spelled.collect::<Vec<_>>());
            }
            token => or_empty(&mut command, token.as_ref().map(Token::as_bytes)),
        }
        or_empty(&mut command, now);
        for known in self
            .0
            .iter()
            .filter_map(|counter| counter.slot.known_address())
        {
            command.arg(known.to_string());
        }
        program.finish(&mut command);
        Call { command, script }
    }

    /// A call of `restore.lua` for the only counter.
    pub(super) fn restore(
        &self,
        programs: &Programs,
        server: ServerId,
        lifts: Period,
        usage: u32,
        now: Option<Millis>,
    ) -> Call {
        let program = self.program(programs, 0);
        let script = program.script(Kind::Restore);
        let mut command = script.call(self.names());
        command.arg(&server);
        or_empty(&mut command, now);
        match lifts.as_duration() {
            Some(left) => command.arg(to_millis(left)),
            None => command.arg(-1),
        };
        command.arg(usage);
        program.finish(&mut command);
        Call { command, script }
    }

    /// A call of the script that settles attempts in this way.
    pub(super) fn settle(
        &self,
        programs: &Programs,
        tokens: &[Token],
        settlement: Settlement,
        ago: Millis,
        now: Option<Millis>,
    ) -> Call {
        let program = self.program(programs, 0);
        let script = program.script(match settlement {
            Settlement::Failed | Settlement::Canceled => Kind::Settle,
            Settlement::Succeeded { .. }
            | Settlement::Forgiven { .. }
            | Settlement::Cleared { .. } => Kind::Cleanup,
            Settlement::Recorded => Kind::Record,
        });
        let mut command = script.call(self.names());
        let joined = tokens.iter().flat_map(|token| *token.as_bytes());
        let joined: SmallVec<[u8; 32]> = joined.collect();
        command.arg(&joined[..]);
        or_empty(&mut command, now);
        if let Some(mains) = settlement.mains() {
            command.arg(mains);
        }
        or_empty(
            &mut command,
            (settlement != Settlement::Canceled).then_some(ago),
        );
        if matches!(settlement, Settlement::Cleared { .. }) {
            command.arg("*");
        } else if self.is_spelled() {
            command.arg(self.suffixes().collect::<Vec<_>>());
        } else {
            command.arg("");
        }
        program.finish(&mut command);
        Call { command, script }
    }
}
