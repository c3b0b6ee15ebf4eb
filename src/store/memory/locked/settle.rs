//! Settling attempts in counters.

use smallvec::SmallVec;

use super::{Locked, note, set_expiry};
use crate::{
    Token,
    algorithm::{Counter, Millis},
    store::{Settled, Slot, memory::table::Entry},
};

impl Locked<'_> {
    /// Turns an attempt into a failure, `ago` before now.
    #[inline]
    pub(in crate::store::memory) fn fail(
        &mut self,
        token: Token,
        slots: &[Slot<'_>],
        ago: Millis,
    ) -> Settled {
        let mut settled = Settled::default();
        self.change(slots, |i, slot, counter, now| {
            let (at, spelling) = (now.saturating_sub(ago), slot.spelling_hash());
            let effect = counter.fail(slot.limit, token, spelling, at, now);
            note(&mut settled, i, effect);
            effect.changed
        });
        settled
    }

    /// Applies `change` to each counter that is present. Returns how many it changed.
    #[inline]
    pub(in crate::store::memory) fn change(
        &mut self,
        slots: &[Slot<'_>],
        mut change: impl FnMut(usize, &Slot<'_>, &mut Counter, Millis) -> bool,
    ) -> usize {
        let (now, mut changed) = (self.now, 0);
        // Counters of one network are nearly always given back together.
        let (mut network, mut vacant) = (0, 0);
        for (i, slot) in slots.iter().enumerate() {
            let counters = &mut self.shards.of_mut(&slot.key).counters;
            if let Some(counter) = counters.get_mut(slot.key.fingerprint.id)
                && !counter.is_vacant()
                && change(i, slot, &mut counter.value, now)
            {
                changed += 1;
                set_expiry(counter, slot.limit, now);
                if counter.is_vacant() {
                    if counter.network() != network {
                        self.room.give(network, vacant);
                        (network, vacant) = (counter.network(), 0);
                    }
                    vacant += 1;
                }
            }
        }
        self.room.give(network, vacant);
        changed
    }

    /// Cleans up the first `mains` slots of failures with the same spelling, or with every one, and takes what
    /// left them out of all.
    #[inline(always)]
    pub(in crate::store::memory) fn clean_up(
        &mut self,
        own: &[Token],
        slots: &[Slot<'_>],
        mains: usize,
        ago: Millis,
        every_spelling: bool,
    ) -> Settled {
        let mains = mains.min(slots.len());
        // Nearly every success has no failure to clean up.
        let holds_only_own = |counter: &Entry<Counter>| counter.value.holds_only(own);
        if (slots[..mains].iter()).all(|slot| self.counter(slot).is_none_or(holds_only_own)) {
            return self.cancel(own, slots);
        }
        self.clean_up_failures(own, slots, mains, ago, every_spelling)
    }

    #[inline(never)]
    fn clean_up_failures(
        &mut self,
        own: &[Token],
        slots: &[Slot<'_>],
        mains: usize,
        ago: Millis,
        every_spelling: bool,
    ) -> Settled {
        let mut tokens: SmallVec<[_; 8]> = own.iter().copied().collect();
        let mut cleaned = self.take_out(&slots[..mains], |slot, counter, now| {
            let upto = now.saturating_sub(ago);
            let spelling = (!every_spelling).then(|| slot.spelling_hash());
            counter.clean_up_into(own, spelling, upto, &mut tokens);
            true
        });
        // What left the only main one has left it altogether.
        let first = usize::from(mains == 1);
        let others = self.cancel(&tokens, &slots[first..]);
        cleaned.changed += others.changed;
        let lifted = others.lifted.into_iter().map(|i| first + i);
        cleaned.lifted.extend(lifted);
        cleaned
    }

    /// Takes attempts back.
    pub(in crate::store::memory) fn cancel(
        &mut self,
        tokens: &[Token],
        slots: &[Slot<'_>],
    ) -> Settled {
        self.take_out(slots, |_, counter, _| counter.cancel_all(tokens) > 0)
    }

    /// Applies `change`, which takes attempts out, to each counter that is present.
    #[inline]
    fn take_out(
        &mut self,
        slots: &[Slot<'_>],
        mut change: impl FnMut(&Slot<'_>, &mut Counter, Millis) -> bool,
    ) -> Settled {
        let mut lifted = Vec::new();
        let changed = self.change(slots, |i, slot, counter, now| {
            let was_blocked = counter.is_blocked(slot.limit, now);
            let is_changed = change(slot, counter, now);
            if was_blocked && !counter.is_blocked(slot.limit, now) {
                lifted.push(i);
            }
            is_changed
        });
        Settled::changed(changed).with_lifted(lifted)
    }
}
