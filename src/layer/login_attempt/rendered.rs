//! What the handler returns, rendered by the layer: the responder needs the head of the request for that.

use std::sync::{MutexGuard, PoisonError};

use http::{request, response};

use super::{LoginAttempt, State, denial_of};
use crate::response::{Denial, Replacement, Unrendered};

impl LoginAttempt {
    /// Keeps what the responder reads of the request, to render what the handler returns.
    pub(crate) fn keep_head(&self, head: &request::Parts) {
        // Locked in this order where the attempt is settled.
        let state = self.lock();
        let mut kept = self.head();
        if kept.is_none() && !matches!(&*state, State::Settled) {
            let mut head = Box::new(self.config().responder.keep(head));
            head.extensions.remove::<Self>();
            *kept = Some(head);
        }
    }

    #[inline]
    pub(super) fn head(&self) -> MutexGuard<'_, Option<Box<request::Parts>>> {
        let head = self.shared.head.lock();
        head.unwrap_or_else(PoisonError::into_inner)
    }

    /// If the handler returned a denial, has the layer's responder render it in place of the response.
    #[inline]
    pub(in crate::layer) fn render_denial(&self, response: &mut response::Parts) {
        if response.extensions.remove::<Unrendered>().is_some() {
            self.render_marked(response);
        }
    }

    #[cold]
    fn render_marked(&self, response: &mut response::Parts) {
        let head = self.head().take();
        if let (Some(head), Some(denial)) = (head, response.extensions.remove::<Denial>()) {
            let denial = match &*self.lock() {
                State::Reserved(attempt) => denial_of(denial, attempt),
                State::Shadowed(_) | State::Settled => denial,
            };
            let rendered = self.config().responder.respond(&denial, &head);
            response.extensions.insert(denial);
            let replacement = Replacement::new(rendered, &response.headers);
            response.extensions.insert(replacement);
        }
    }
}
