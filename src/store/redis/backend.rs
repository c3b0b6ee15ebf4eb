//! The plain store: sends scripts to Redis, reads their replies and reports errors.
//!
//! It keeps nothing in this process. Caching and failover are stores around it.

use std::{
    fmt, iter,
    sync::{
        Arc, Mutex, PoisonError,
        atomic::{AtomicBool, Ordering},
    },
    time::Duration,
};

use redis::{Cmd, Value};
use smallvec::SmallVec;
use tokio::{sync::oneshot, time::Instant};

use super::{
    cancel::Cancellations,
    connection::{Failure, Link},
    counters::{Call, Counters},
    keys::KeyScheme,
    reply,
    scripts::{KNOWN_ADDRESSES, Programs, or_empty},
};
use crate::{
    Address, KnownAddresses, Limit, Period, Token,
    algorithm::Millis,
    clock::{Clock, to_millis},
    store::{
        Announcements, Announcer, Key, Remote, Reporters, Restorable, ServerId, Settled,
        Settlement, Slot, Standings, Store, StoreError, StoreErrorKind, StoreFuture,
    },
};

/// The kind of a counter that only probes use. No rule can have this name.
const PROBE: &str = "probe:";

/// Counters in Redis, on one server or in a cluster.
#[derive(Clone)]
pub(super) struct Backend {
    pub(super) link: Arc<dyn Link>,
    shared: Arc<Shared>,
}

struct Shared {
    keys: KeyScheme,
    programs: Programs,
    /// In place of the server's own time.
    clock: Option<Arc<dyn Clock>>,
    /// Whether a server has refused counters with different hash tags, as a cluster does.
    is_cluster: AtomicBool,
    cancellations: Cancellations,
    /// Announces new versions of the document.
    announcer: Announcer,
    /// Starts the subscription, if that waits until announcements are asked for.
    subscribe: Mutex<Option<oneshot::Sender<()>>>,
}

impl Backend {
    pub(super) fn new(link: Arc<dyn Link>, keys: KeyScheme, clock: Option<Arc<dyn Clock>>) -> Self {
        let shared = Shared {
            programs: Programs::new(keys.channel()),
            keys,
            clock,
            is_cluster: AtomicBool::new(false),
            cancellations: Cancellations::default(),
            announcer: Announcer::new(),
            subscribe: Mutex::default(),
        };
        Self {
            link,
            shared: Arc::new(shared),
        }
    }

    pub(super) fn cancellations(&self) -> &Cancellations {
        &self.shared.cancellations
    }

    pub(super) fn scheme(&self) -> &KeyScheme {
        &self.shared.keys
    }

    pub(super) fn programs(&self) -> &Programs {
        &self.shared.programs
    }

    pub(super) fn announcer(&self) -> &Announcer {
        &self.shared.announcer
    }

    /// What is announced from now on. Starts the subscription, if it has not been needed before.
    pub(super) fn announcements(&self) -> Announcements {
        let announcements = self.shared.announcer.subscribe();
        let subscribe = &self.shared.subscribe;
        let start = subscribe
            .lock()
            .unwrap_or_else(PoisonError::into_inner)
            .take();
        if let Some(start) = start {
            // It has ended if the runtime has.
            let _ = start.send(());
        }
        announcements
    }

    /// Completes when announcements are asked for, or with an error when the store is gone.
    pub(super) fn subscribe_later(&self) -> oneshot::Receiver<()> {
        let (start, started) = oneshot::channel();
        let subscribe = &self.shared.subscribe;
        *subscribe.lock().unwrap_or_else(PoisonError::into_inner) = Some(start);
        started
    }

    /// The channel on which scripts publish the names of counters whose block was lifted.
    pub(super) fn channel(&self) -> &str {
        self.shared.keys.channel()
    }

    /// Sends a command that is no script.
    pub(super) async fn send(&self, command: Cmd) -> Result<Value, StoreError> {
        let link = Arc::clone(&self.link);
        let deadline = link.deadline();
        let reply = link.send(command, None, deadline).await;
        reply.map_err(|failure| failure.error)
    }

    pub(super) async fn run(&self, call: Call, deadline: Instant) -> Result<Value, Failure> {
        let link = Arc::clone(&self.link);
        link.send(call.command, Some(call.script), deadline).await
    }

    /// The reply of a script that may be repeated whatever became of it, within a deadline of its own.
    pub(super) async fn ask_script(&self, call: Call) -> Result<Value, StoreError> {
        let reply = self.run(call, self.link.deadline()).await;
        reply.map_err(|failure| failure.error)
    }

    /// Leaves the limits of counters out of the texts of scripts from now on.
    pub(super) fn set_scripts_full(&self) {
        self.shared.programs.set_full();
    }

    /// Whether a server has refused counters with different hash tags, as a cluster does.
    pub(super) fn is_cluster(&self) -> bool {
        self.shared.is_cluster.load(Ordering::Relaxed)
    }

    pub(super) fn set_cluster(&self) {
        self.shared.is_cluster.store(true, Ordering::Relaxed);
    }

    /// The time, if it is not the server's.
    pub(super) fn now(&self) -> Option<Millis> {
        self.shared.clock.as_ref().map(|clock| clock.now())
    }

    fn counters<'s>(&self, slots: impl IntoIterator<Item = &'s Slot<'s>>) -> Arc<Counters> {
        Arc::new(Counters::new(slots, &self.shared.keys))
    }

    /// Reserves in counters that share a slot; without a token, reads how they stand.
    pub(super) async fn ask_slot(
        &self,
        token: Option<Token>,
        lease: Duration,
        counters: &Arc<Counters>,
        deadline: Instant,
    ) -> Result<(Standings, Option<ServerId>), Failure> {
        let call = counters.reserve(&self.shared.programs, token, lease, self.now());
        let failure = match self.run(call, deadline).await {
            Ok(reply) => match counters.standings(&reply, token) {
                Ok(standings) => return Ok(standings),
                Err(error) => Failure {
                    was_sent: true,
                    ..error.into()
                },
            },
            Err(failure) => failure,
        };
        match token {
            Some(token) if failure.was_sent => Err(self.withdraw(token, counters, failure)),
            _ => Err(failure),
        }
    }

    pub(super) fn call(
        &self,
        counters: &Counters,
        tokens: &[Token],
        settlement: Settlement,
        ago: Millis,
    ) -> Call {
        counters.settle(&self.shared.programs, tokens, settlement, ago, self.now())
    }

    /// Cleans up counters that share a slot. Returns the failures that were removed, and the positions of the
    /// counters whose blocks ended.
    pub(super) async fn clean_up_slot(
        &self,
        tokens: &[Token],
        settlement: Settlement,
        counters: &Counters,
        ago: Millis,
        deadline: Instant,
    ) -> Result<(Vec<Token>, Vec<usize>), Failure> {
        let call = self.call(counters, tokens, settlement, ago);
        let reply = self.run(call, deadline).await?;
        Ok(reply::cleaned_up(&reply, counters.len())?)
    }

    /// Remembers an address, or only lists those that are known.
    fn known_addresses(
        &self,
        key: &Key<'_>,
        address: Option<Address>,
        keep: KnownAddresses,
    ) -> StoreFuture<Vec<Address>> {
        let name = self.shared.keys.name(key);
        let mut command = KNOWN_ADDRESSES.call(iter::once(&*name));
        or_empty(&mut command, address.map(|address| address.to_string()));
        command.arg(keep.newest()).arg(to_millis(keep.kept_for()));
        or_empty(&mut command, self.now());
        let backend = self.clone();
        StoreFuture::pending(async move {
            let script = Arc::clone(&KNOWN_ADDRESSES);
            reply::addresses(&backend.ask_script(Call { command, script }).await?)
        })
    }
}

impl Store for Backend {
    fn reserve(&self, token: Token, lease: Duration, slots: &[Slot<'_>]) -> StoreFuture<Standings> {
        let reserved = self.reserve_from(token, lease, slots);
        reserved.map_ok(|(standings, _)| standings)
    }

    fn check(&self, slots: &[Slot<'_>]) -> StoreFuture<Standings> {
        if slots.is_empty() {
            return StoreFuture::ready(Ok(Standings::default()));
        }
        let (backend, counters) = (self.clone(), self.counters(slots));
        let asked = async move { backend.ask(None, Duration::ZERO, counters).await };
        StoreFuture::pending(asked).map_ok(|(standings, _)| standings)
    }

    fn settle(
        &self,
        tokens: &[Token],
        settlement: Settlement,
        slots: &[Slot<'_>],
        ago: Duration,
    ) -> StoreFuture<Settled> {
        let needs_no_token = matches!(
            settlement,
            Settlement::Cleared { .. } | Settlement::Forgiven { .. }
        );
        if slots.is_empty() || (tokens.is_empty() && !needs_no_token) {
            return StoreFuture::ready(Ok(Settled::default()));
        }
        let (backend, counters, ago) = (self.clone(), self.counters(slots), to_millis(ago));
        let tokens = if needs_no_token { &[] } else { tokens };
        let tokens = SmallVec::<[_; 2]>::from_slice(tokens);
        StoreFuture::pending(async move {
            let deadline = backend.link.deadline();
            match settlement.mains() {
                Some(_) => {
                    let cleaned = backend.clean_up(&tokens, settlement, &counters, ago, deadline);
                    let lifted = cleaned.await?;
                    Ok(Settled::changed(counters.len()).with_lifted(lifted))
                }
                None => {
                    let settled =
                        backend.settle_by_slot(&tokens, settlement, &counters, ago, deadline);
                    settled.await
                }
            }
        })
    }

    fn remember(&self, key: &Key<'_>, address: Address, keep: KnownAddresses) -> StoreFuture<()> {
        self.known_addresses(key, Some(address), keep).map_ok(drop)
    }

    fn known(&self, key: &Key<'_>, keep: KnownAddresses) -> StoreFuture<Vec<Address>> {
        self.known_addresses(key, None, keep)
    }

    fn flush(&self) -> StoreFuture<()> {
        let backend = self.clone();
        StoreFuture::pending(async move { backend.canceled().await })
    }
}

impl Remote for Backend {
    fn name(&self, key: &Key<'_>) -> Vec<u8> {
        self.shared.keys.name(key)
    }

    fn probe(&self, near: Option<&Key<'_>>) -> StoreFuture<()> {
        let limit = Limit::attempts(1).within(Period::seconds(1)).build();
        let limit = match limit {
            Ok(limit) => limit,
            Err(error) => {
                let error = StoreError::new(StoreErrorKind::Config, error.to_string());
                return StoreFuture::ready(Err(error));
            }
        };
        let token = Token::new();
        let (address, subject) = match near {
            Some(near) => (near.address, near.subject),
            None => (None, token.as_bytes().as_slice()),
        };
        let key = Key::new(address, PROBE, subject);
        let (backend, counters) = (self.clone(), self.counters(&[Slot::new(key, &limit)]));
        StoreFuture::pending(async move {
            let programs = &backend.shared.programs;
            let reserve = counters.reserve(programs, Some(token), Duration::ZERO, backend.now());
            // Not taken back if it fails: no client has this counter, and it expires within a second.
            let reply = backend.ask_script(reserve).await?;
            counters.standings(&reply, Some(token))?;
            let (tokens, deadline) = ([token], backend.link.deadline());
            let canceled =
                backend.settle_by_slot(&tokens, Settlement::Canceled, &counters, 0, deadline);
            canceled.await.map(drop)
        })
    }
}

impl Restorable for Backend {
    fn reserve_from(
        &self,
        token: Token,
        lease: Duration,
        slots: &[Slot<'_>],
    ) -> StoreFuture<(Standings, Reporters)> {
        if slots.is_empty() {
            return StoreFuture::ready(Ok(Default::default()));
        }
        let (backend, counters) = (self.clone(), self.counters(slots));
        StoreFuture::pending(async move { backend.ask(Some(token), lease, counters).await })
    }

    fn restore(
        &self,
        slot: &Slot<'_>,
        lifts: Period,
        usage: u32,
        server: ServerId,
    ) -> StoreFuture<Option<ServerId>> {
        let (backend, counters) = (self.clone(), self.counters([slot]));
        StoreFuture::pending(async move {
            let programs = &backend.shared.programs;
            let call = counters.restore(programs, server, lifts, usage, backend.now());
            reply::restored(&backend.ask_script(call).await?)
        })
    }

    fn take_back(&self, token: Token, slots: &[Slot<'_>]) -> StoreFuture<()> {
        let (backend, counters) = (self.clone(), self.counters(slots));
        StoreFuture::pending(async move {
            let deadline = backend.link.deadline();
            backend.cancel(&[token], &counters, deadline).await;
            Ok(())
        })
    }
}

impl fmt::Debug for Backend {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("Backend").finish_non_exhaustive()
    }
}
