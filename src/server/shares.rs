//! What operators hold for a while, so that one of them does not hold all of it.

use std::{
    collections::HashMap,
    sync::{Arc, Mutex, MutexGuard, PoisonError},
};

use http::StatusCode;

use super::{Operator, problem::Problem};

/// How many there are.
#[derive(Clone, Copy, Debug)]
pub(super) struct Bounds {
    /// For all operators together.
    pub(super) total: usize,
    /// For one operator.
    pub(super) each: usize,
}

/// Who holds how many.
pub(super) struct Shares {
    bounds: Bounds,
    held: Mutex<HashMap<Box<str>, usize>>,
}

/// One of them, held by an operator.
pub(super) struct Share {
    shares: Arc<Shares>,
    operator: Box<str>,
}

impl Shares {
    pub(super) fn new(bounds: Bounds) -> Self {
        Self {
            bounds,
            held: Mutex::default(),
        }
    }

    /// One for this operator. `what` is in the problem: "streams of events are open".
    pub(super) fn acquire(
        self: &Arc<Self>,
        operator: &Operator,
        what: &str,
    ) -> Result<Share, Problem> {
        let mut held = self.lock();
        let own = held.get(operator.name()).copied().unwrap_or_default();
        let too_many = |status, whose: &str| {
            let detail = format!("too many {what}{whose}: close others, and repeat the request");
            Err(Problem::new(status, detail))
        };
        if own >= self.bounds.each {
            return too_many(StatusCode::TOO_MANY_REQUESTS, " by this operator");
        }
        if held.values().sum::<usize>() >= self.bounds.total {
            return too_many(StatusCode::SERVICE_UNAVAILABLE, "");
        }
        let operator: Box<str> = operator.name().into();
        held.insert(operator.clone(), own + 1);
        Ok(Share {
            shares: Arc::clone(self),
            operator,
        })
    }

    fn lock(&self) -> MutexGuard<'_, HashMap<Box<str>, usize>> {
        self.held.lock().unwrap_or_else(PoisonError::into_inner)
    }
}

impl Drop for Share {
    fn drop(&mut self) {
        let mut held = self.shares.lock();
        if let Some(own) = held.get_mut(&self.operator) {
            *own -= 1;
            if *own == 0 {
                held.remove(&self.operator);
            }
        }
    }
}
