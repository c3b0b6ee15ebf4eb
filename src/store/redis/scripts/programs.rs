//! The programs of a process, one for each set of limits.
//!
//! A policy's numbers are the same in every call. In the text they cost nothing to send and nothing to
//! parse. A server keeps each text that it has run, so their number is bounded: a process makes texts for
//! [`INLINE`] sets of limits, and none if the server holds [`SERVER_MAX`](super::SERVER_MAX) already; the limits of further
//! sets are passed as an argument, to one generic text of each script.

use std::sync::{
    Arc, PoisonError, RwLock,
    atomic::{AtomicBool, Ordering},
};

use super::Program;
use crate::{KnownAddresses, Limit, algorithm::Millis};

/// How many sets of limits a process writes into texts. A policy needs about five, on a cluster ten.
const INLINE: usize = 64;

/// The programs that this process uses.
pub(in super::super) struct Programs {
    channel: Arc<str>,
    programs: RwLock<Vec<Arc<Program>>>,
    /// Whether the server holds too many scripts already.
    is_full: AtomicBool,
}

impl Programs {
    pub(in super::super) fn new(channel: &str) -> Self {
        Self {
            channel: channel.into(),
            programs: RwLock::default(),
            is_full: AtomicBool::new(false),
        }
    }

    /// Makes no further texts.
    pub(in super::super) fn set_full(&self) {
        self.is_full.store(true, Ordering::Relaxed);
    }

    /// A program for counters with these limits whose texts are the same for all limits: for calls that are
    /// rare, and must not take the place of others.
    pub(in super::super) fn generic<'l>(&self, limits: impl Iterator<Item = &'l Limit>) -> Program {
        let rows = limits.map(|limit| (limit.clone(), None, false)).collect();
        Program::new(rows, 0, Arc::clone(&self.channel), false)
    }

    /// The program for counters with these limits.
    pub(in super::super) fn get<'l>(
        &self,
        rows: impl Iterator<Item = (&'l Limit, Option<KnownAddresses>, bool)> + Clone,
        lease: Millis,
    ) -> Arc<Program> {
        let is_it = |program: &&Arc<Program>| {
            let mut pairs = program.rows.iter().zip(rows.clone());
            program.lease == lease
                && program.rows.len() == rows.clone().count()
                && pairs.all(|((limit, keep, shadow), row)| (limit, *keep, *shadow) == row)
        };
        let programs = self.programs.read().unwrap_or_else(PoisonError::into_inner);
        if let Some(program) = programs.iter().find(is_it) {
            return Arc::clone(program);
        }
        drop(programs);
        let rows_owned = rows
            .clone()
            .map(|(limit, keep, shadow)| (limit.clone(), keep, shadow))
            .collect();
        let mut programs = (self.programs.write()).unwrap_or_else(PoisonError::into_inner);
        if let Some(program) = programs.iter().find(is_it) {
            return Arc::clone(program);
        }
        let is_inline = programs.len() < INLINE && !self.is_full.load(Ordering::Relaxed);
        let channel = Arc::clone(&self.channel);
        let program = Arc::new(Program::new(rows_owned, lease, channel, is_inline));
        if is_inline {
            programs.push(Arc::clone(&program));
        }
        program
    }
}
