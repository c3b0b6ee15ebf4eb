//! Events by which changes are audited.

use super::{Admin, AdminError, Author, Block, Subject, subject::Repr};
use crate::{
    Address,
    event::{AdminAction, Event, LiftedBy, What},
};

impl Admin {
    /// Writes a note on a subject, as an event: the reason is the note. It is kept as long as events are.
    ///
    /// # Errors
    ///
    /// If the user is blank.
    pub fn note(&self, subject: impl Into<Subject>, author: &Author) -> Result<(), AdminError> {
        let subject = subject.into().0;
        if let Some(user) = subject.user() {
            self.subject_of(user)?;
        }
        self.audit(AdminAction::Note, Some(&subject), author);
        Ok(())
    }

    /// Reports an action, ahead of it: an operator whose request is canceled or whose store fails midway has acted
    /// all the same. What was lifted by it is reported afterwards.
    pub(super) fn audit(&self, action: AdminAction, subject: Option<&Repr>, author: &Author) {
        self.limiter.emit(|| {
            let mut event = Event::new(What::Administered {
                action,
                author: author.name().into(),
                reason: author.reason().into(),
                network: (subject.and_then(Repr::network))
                    .map(|network| network.to_string().into()),
            });
            if let Some(ip) = subject.and_then(Repr::ip) {
                let prefix = self.limiter.in_force().policy(ip).ipv6_prefix();
                event = event.with_address(Address::new(ip, prefix));
            }
            if let Some(user) = subject.and_then(Repr::user) {
                let user = self.limiter.user(user);
                event.user = self.limiter.shown_user(user.typed(), &user.name);
            }
            event
        });
    }

    /// Reports a block that an operator has lifted.
    pub(super) fn lifted(&self, block: &Block, author: &Author) {
        let by = LiftedBy::Operator {
            author: author.name().into(),
            reason: author.reason().into(),
        };
        let in_force = self.limiter.in_force();
        in_force.rule_metrics.block_lifted(&block.rule, &by);
        self.limiter.count_blocks_soon();
        self.limiter.emit(|| {
            let what = What::BlockLifted {
                rule: block.rule.clone(),
                counter: block.id.counter.as_str().into(),
                by,
            };
            let mut event = Event::new(what).with_user(block.user.clone());
            event.address = block.address;
            event
        });
    }
}
