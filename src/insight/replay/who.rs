//! The caller of an event, as far as the event names it.

use std::{borrow::Cow, fmt};

use crate::{
    Address,
    event::{Event, EventUser, UserHasher},
};

/// The caller of a recorded attempt.
#[derive(Default)]
pub(super) struct Who<'a> {
    pub(super) address: Option<Address>,
    /// What distinguishes the user from others: the name in normal form, or what a record shows of it.
    pub(super) name: Option<Cow<'a, str>>,
    pub(super) typed: Option<&'a str>,
    pub(super) second_factor: bool,
    /// The user as the event has it, to be shown.
    pub(super) user: Option<&'a EventUser>,
}

const SEALED: &str = "sealed:";

fn is_sealed(user: &EventUser) -> bool {
    user.shown().is_some_and(|shown| shown.starts_with(SEALED))
}

/// Whether it is the mask of names: that of all with the same letters.
fn is_mask(name: &str) -> bool {
    let name = name.rsplit_once('@').map_or(name, |(local, _)| local);
    name.ends_with("***") && name.chars().count() <= 4
}

type Open = Box<dyn Fn(&str) -> Option<String> + Send + Sync>;

/// Reads users, and counts those that it can't tell apart.
#[derive(Default)]
pub(super) struct Users {
    open: Option<Open>,
    pub(super) missing: u64,
    pub(super) sealed: u64,
    pub(super) masked: u64,
}

impl Users {
    /// Opens users that are sealed.
    #[cfg(feature = "sealed")]
    pub(super) fn open_with(
        &mut self,
        open: impl Fn(&str) -> Option<String> + Send + Sync + 'static,
    ) {
        self.open = Some(Box::new(open));
    }

    /// The caller of an attempt.
    pub(super) fn who<'a>(&mut self, event: &'a Event, second_factor: bool) -> Who<'a> {
        let mut who = self.of_block(event);
        who.second_factor = second_factor;
        match (&who.name, who.user) {
            (Some(name), _) => self.masked += u64::from(is_mask(name)),
            (None, Some(user)) if is_sealed(user) => self.sealed += 1,
            (None, _) => self.missing += 1,
        }
        who
    }

    /// The caller whose failure began a block, which is counted as an attempt already.
    pub(super) fn of_block<'a>(&self, event: &'a Event) -> Who<'a> {
        let user = event.user.as_ref();
        Who {
            address: event.address,
            name: user.and_then(|user| self.name(user)),
            typed: user.and_then(EventUser::typed),
            second_factor: false,
            user,
        }
    }

    fn name<'a>(&self, user: &'a EventUser) -> Option<Cow<'a, str>> {
        if let Some(name) = user.identified() {
            return Some(Cow::Borrowed(name));
        }
        // By which users differ who look alike.
        if let Some(id) = user.id() {
            return Some(Cow::Owned(UserHasher::text(id)));
        }
        let shown = user.shown()?;
        if shown.starts_with(SEALED) {
            let open = self.open.as_ref()?;
            return open(&shown).map(Cow::Owned);
        }
        Some(shown)
    }
}

impl fmt::Debug for Users {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("Users").finish_non_exhaustive()
    }
}
