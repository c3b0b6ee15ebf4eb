//! Decides whether a request reaches its handler, step by step.

use std::{
    borrow::Cow,
    pin::Pin,
    sync::Arc,
    task::{Context, Poll, ready},
    time::Duration,
};

use bytes::Bytes;
use http::{Response, request::Parts};
use tokio::{
    runtime::Handle,
    time::{Sleep, sleep},
};

use super::{
    Config, LoginAttempt, MissingUser, UserSource,
    body::Extent,
    guard::Guard,
    login_attempt::State,
    mode::{Inner, Mode},
};
use crate::{
    Attempt, AttemptFuture, Caller, MaybeReady, Outcome, ReserveError,
    access::AccessQuery,
    attempt::{Counted, User, Within},
    extract::{ExtractError, Extracted, ReadBody, value},
    limiter::{Access, Decided, InForce, KnownBlock},
    logging,
    response::{Denial, DenialKind, RateLimitFields},
};

/// What becomes of a request.
pub(super) enum Decision {
    /// The handler is called, under this guard.
    Run(Guard),
    /// The handler is called, and the request does not count.
    Pass,
    /// The client receives this response.
    Deny(Response<Bytes>),
}

/// The result of the steps that need no waiting.
pub(super) enum Step {
    Decided(Decision),
    Wait(Wait),
}

/// An attempt, or why there is none.
type Reserved = Result<Attempt, Denial>;

/// What a request waits for.
#[allow(clippy::large_enum_variant)] // boxed as part of `Waiting`
pub(super) enum Wait {
    /// The store, which may block the caller whoever the user is. Then the user, or else the body.
    Precheck(
        Box<AttemptFuture<Reserved>>,
        Option<MaybeReady<Extracted>>,
        Caller<'static>,
    ),
    /// The body, to find the user in it, until the deadline.
    Body(Caller<'static>, Deadline),
    /// The user.
    User(MaybeReady<Extracted>, Caller<'static>),
    /// The inner service, which has to be ready. Then an attempt is reserved for this user, or else without one.
    Service(Option<Extracted>, Caller<'static>),
    /// The inner service, for a request that is denied in shadow mode.
    Shadowed(Option<Guard>),
    /// The inner service, for a request that does not count.
    Uncounted,
    /// The store.
    Reserve(AttemptFuture<Reserved>),
}

impl Wait {
    fn for_user(user: Option<MaybeReady<Extracted>>, caller: Caller<'static>) -> Self {
        match user {
            Some(user) => Self::User(user, caller),
            None => Self::Body(caller, Deadline::default()),
        }
    }

    /// Whether the inner service must not be held ready meanwhile. A client can delay its body, and a permit of
    /// a service inside, such as a concurrency limit, would be held as long.
    pub(super) const fn releases_service(&self) -> bool {
        !matches!(self, Self::Reserve(_))
    }
}

/// A request that waits, and the service for it.
pub(super) struct Waiting<S, B> {
    pub(super) service: S,
    pub(super) is_ready: bool,
    pub(super) config: Arc<Config>,
    pub(super) parts: Parts,
    pub(super) body: B,
    pub(super) wait: Wait,
}

impl<S, B> Waiting<S, B> {
    /// Takes the remaining steps. The body is complete when this is ready, and so is the service if it is to be
    /// called.
    pub(super) fn poll_decision<M, T>(
        &mut self,
        cx: &mut Context<'_>,
    ) -> Poll<Result<Decision, S::Error>>
    where
        M: Mode<T, Held = B>,
        S: Inner<M::Body>,
    {
        let (config, parts) = (&self.config, &mut self.parts);
        loop {
            let step = match &mut self.wait {
                Wait::Precheck(attempt, user, caller) => {
                    let attempt = ready!(Pin::new(attempt).poll(cx));
                    config.prechecked(attempt, user.take(), caller.clone(), parts)
                }
                Wait::Body(caller, deadline) => {
                    match M::poll_read(&mut self.body, config.body_limit, cx) {
                        Poll::Ready(extent) => config.body_read(caller.clone(), &extent, parts),
                        Poll::Pending => {
                            ready!(deadline.poll(config.body_timeout, cx));
                            let denial = Denial::new(DenialKind::BodyTimeout);
                            config.deny(denial.with_address(caller.address), parts)
                        }
                    }
                }
                Wait::User(user, caller) => {
                    let user = ready!(Pin::new(user).poll(cx));
                    Step::Wait(Wait::Service(Some(user), caller.clone()))
                }
                Wait::Shadowed(guard) => {
                    ready!(self.service.poll_ready(cx))?;
                    self.is_ready = true;
                    match guard.take() {
                        Some(guard) => Step::Decided(Decision::Run(guard)),
                        None => unreachable!("the guard is taken once"),
                    }
                }
                Wait::Uncounted => {
                    ready!(self.service.poll_ready(cx))?;
                    self.is_ready = true;
                    Step::Decided(Decision::Pass)
                }
                Wait::Service(user, caller) => {
                    ready!(self.service.poll_ready(cx))?;
                    self.is_ready = true;
                    let in_force = config.limiter.in_force();
                    match user.take() {
                        Some(user) => config.user_found(&in_force, user, caller.clone(), parts),
                        None => config.reserve(&in_force, caller.clone(), parts),
                    }
                }
                Wait::Reserve(attempt) => {
                    let attempt = ready!(Pin::new(attempt).poll(cx));
                    config.reserved(attempt, parts)
                }
            };
            match step {
                Step::Wait(wait) => self.wait = wait,
                Step::Decided(Decision::Run(guard)) if !self.is_ready => {
                    self.wait = Wait::Shadowed(Some(guard));
                }
                Step::Decided(decision) => return Poll::Ready(Ok(decision)),
            }
        }
    }
}

/// What a body contains.
enum InBody {
    /// The user, or none.
    User(MaybeReady<Extracted>),
    /// Unknown: the handler has to identify the user.
    Unread,
    /// Nothing that counts.
    Uncounted,
}

/// The end of the time for a body, which begins when the body has to be waited for.
#[derive(Default)]
pub(super) struct Deadline(Option<Pin<Box<Sleep>>>);

impl Deadline {
    fn poll(&mut self, timeout: Option<Duration>, cx: &mut Context<'_>) -> Poll<()> {
        let Some(timeout) = timeout else {
            return Poll::Pending;
        };
        // Outside of Tokio there is no time.
        if self.0.is_none() && Handle::try_current().is_err() {
            return Poll::Pending;
        }
        let sleep = self.0.get_or_insert_with(|| Box::pin(sleep(timeout)));
        sleep.as_mut().poll(cx)
    }
}

/// The steps of a request. Each continues with the next one as long as nothing has to be waited for.
impl Config {
    #[inline]
    pub(super) fn begin(self: &Arc<Self>, parts: &mut Parts) -> Step {
        let address = match self.address.extract_address(parts) {
            Ok(address) => address,
            Err(error) => return self.deny(Denial::new(DenialKind::NoAddress(error)), parts),
        };
        let in_force = self.limiter.in_force();
        let caller = self.caller(&in_force, address, parts);
        match &self.user {
            UserSource::Handler => self.reserve(&in_force, caller, parts),
            UserSource::Head(user) => match user.extract_user(parts).at_once() {
                Ok(user) => self.user_found(&in_force, user, caller, parts),
                Err(user) => self.before_user(Some(user), caller, parts),
            },
            // A blocked client may send what does not count.
            UserSource::Body(_) if self.body_filter.is_some() => {
                match (self.limiter).access(&in_force, query(&in_force, &caller, parts), None) {
                    denied @ Access::Denied(_) => {
                        self.decide(&in_force, caller, denied, None, parts)
                    }
                    _ => Step::Wait(Wait::Body(caller, Deadline::default())),
                }
            }
            UserSource::Body(_) => self.before_user(None, caller, parts),
        }
    }

    /// Refuses callers that are blocked whoever the user is: attackers must not have a body read, nor a user
    /// looked up.
    fn before_user(
        self: &Arc<Self>,
        user: Option<MaybeReady<Extracted>>,
        caller: Caller<'static>,
        parts: &mut Parts,
    ) -> Step {
        let in_force = self.limiter.in_force();
        match (self.limiter).access(&in_force, query(&in_force, &caller, parts), None) {
            // No rule can lift it.
            denied @ Access::Denied(_) => {
                return self.decide(&in_force, caller, denied, None, parts);
            }
            // Unless the user is denied, which is not known yet.
            Access::Allowed(_) => return Step::Wait(Wait::for_user(user, caller)),
            Access::Limited => {}
        }
        match self.limiter.known_block(caller.clone()) {
            KnownBlock::None => Step::Wait(Wait::for_user(user, caller)),
            KnownBlock::Blocked(refusal) => {
                let denial = Denial::new(DenialKind::Refused(refusal)).with_address(caller.address);
                self.deny(denial, parts)
            }
            // Reserving is answered from the cache if that is fresh, and else revalidates it.
            KnownBlock::Cached => {
                let limited = Access::Limited;
                let decided = (self.limiter).decide(
                    &in_force,
                    caller.clone(),
                    limited,
                    None,
                    Attempt::new,
                    denial,
                );
                let attempt = AttemptFuture::reserve(&self.limiter, decided.into_future());
                let attempt = Box::new(attempt);
                Step::Wait(Wait::Precheck(attempt, user, caller))
            }
        }
    }

    fn prechecked(
        self: &Arc<Self>,
        attempt: Reserved,
        user: Option<MaybeReady<Extracted>>,
        caller: Caller<'static>,
        parts: &mut Parts,
    ) -> Step {
        match attempt {
            Err(denial) if denial.refusal().is_some() => self.deny(denial, parts),
            // The block was lifted. Dropping the future has a task complete it.
            Ok(attempt) => {
                drop(attempt.settle(Outcome::NotAnAttempt));
                Step::Wait(Wait::for_user(user, caller))
            }
            // The store is asked again when the user is known.
            Err(_) => Step::Wait(Wait::for_user(user, caller)),
        }
    }

    fn body_read(
        self: &Arc<Self>,
        caller: Caller<'static>,
        extent: &Extent,
        parts: &mut Parts,
    ) -> Step {
        match self.user_in_body(extent, parts) {
            Ok(InBody::User(user)) => match user.at_once() {
                Ok(user) => Step::Wait(Wait::Service(Some(user), caller)),
                Err(user) => self.before_user(Some(user), caller, parts),
            },
            Ok(InBody::Unread) => Step::Wait(Wait::Service(None, caller)),
            Ok(InBody::Uncounted) => Step::Wait(Wait::Uncounted),
            Err(kind) => self.deny(Denial::new(kind).with_address(caller.address), parts),
        }
    }

    fn user_in_body(&self, extent: &Extent, parts: &Parts) -> Result<InBody, DenialKind> {
        let UserSource::Body(user) = &self.user else {
            return Ok(InBody::Unread);
        };
        match extent {
            Extent::Broken => Err(DenialKind::BodyBroken),
            _ if is_encoded(parts) => Err(DenialKind::AmbiguousUser(ExtractError::bad_request(
                "the body is compressed: send it uncompressed, or have the server decompress it \
                 before it looks for the user",
            ))),
            Extent::Whole(body) => {
                if let Some(counts) = &self.body_filter
                    && !counts(ReadBody::new(parts, body)).map_err(DenialKind::AmbiguousUser)?
                {
                    return Ok(InBody::Uncounted);
                }
                Ok(InBody::User(user.extract_user(parts, body)))
            }
            Extent::TooLarge if !self.pass_oversized => Err(DenialKind::BodyTooLarge {
                limit: self.body_limit,
            }),
            Extent::TooLarge | Extent::Unread => Ok(InBody::Unread),
        }
    }

    #[inline(always)]
    fn user_found(
        self: &Arc<Self>,
        in_force: &InForce,
        user: Extracted,
        mut caller: Caller<'static>,
        parts: &mut Parts,
    ) -> Step {
        caller.user = match user {
            Ok(Some(user)) if !user.is_empty() => Some(Cow::Owned(user)),
            // Pages are viewed without a user, and many times at once.
            Ok(_) if parts.method.is_safe() => None,
            Ok(_) => match self.missing_user {
                MissingUser::Shared => Some(Cow::Borrowed("")),
                MissingUser::Refuse => {
                    let denial = Denial::new(DenialKind::NoUser);
                    return self.deny(denial.with_address(caller.address), parts);
                }
                MissingUser::Pass => None,
            },
            Err(error) => {
                let denial = Denial::new(DenialKind::AmbiguousUser(error));
                return self.deny(denial.with_address(caller.address), parts);
            }
        };
        self.reserve(in_force, caller, parts)
    }

    #[inline(always)] // a caller is large to move
    fn reserve(
        self: &Arc<Self>,
        in_force: &InForce,
        caller: Caller<'static>,
        parts: &mut Parts,
    ) -> Step {
        let outer = parts.extensions.get::<LoginAttempt>();
        let within = outer.and_then(|outer| outer.share(self));
        let access = if in_force.access.is_empty() {
            Access::Limited
        } else {
            let query = query(in_force, &caller, parts);
            (self.limiter).access(in_force, query, caller.user.as_deref())
        };
        self.decide(in_force, caller, access, within, parts)
    }

    #[inline]
    fn decide(
        self: &Arc<Self>,
        in_force: &InForce,
        caller: Caller<'static>,
        access: Access,
        within: Option<Box<Within>>,
        parts: &mut Parts,
    ) -> Step {
        let admit = |reservation| LoginAttempt::new(self, State::Reserved(reservation));
        match (self.limiter).decide(in_force, caller, access, within, admit, denial) {
            Decided::Now(Ok(attempt)) => self.run(attempt, parts),
            Decided::Now(Err(denial)) => self.deny(denial, parts),
            Decided::Later(call) => {
                Step::Wait(Wait::Reserve(AttemptFuture::reserve(&self.limiter, call)))
            }
        }
    }

    fn reserved(self: &Arc<Self>, attempt: Reserved, parts: &mut Parts) -> Step {
        match attempt {
            Ok(attempt) => {
                let state = State::Reserved(attempt.into_reservation());
                self.run(LoginAttempt::new(self, state), parts)
            }
            Err(denial) => self.deny(denial, parts),
        }
    }

    #[inline]
    fn run(self: &Arc<Self>, attempt: LoginAttempt, parts: &mut Parts) -> Step {
        if let Some(outer) = parts.extensions.insert(attempt.handle()) {
            attempt.set_outer(outer);
        }
        Step::Decided(Decision::Run(Guard::new(attempt, parts.method.clone())))
    }

    fn deny(self: &Arc<Self>, denial: Denial, parts: &mut Parts) -> Step {
        logging::denied(&denial, &self.notices.samples, self.shadow);
        if self.shadow {
            return self.run(LoginAttempt::new(self, State::Shadowed(denial)), parts);
        }
        let mut response = self.responder.respond(&denial, parts);
        if self.rate_limit_fields
            && let Some(refusal) = denial.refusal()
            && let Some(fields) = RateLimitFields::of_refusal(refusal, &self.limiter.policy())
        {
            fields.write(response.headers_mut());
        }
        // The request's extensions are reused, since an empty map would have to be allocated.
        let mut extensions = std::mem::take(&mut parts.extensions);
        extensions.clear();
        extensions.insert(denial);
        extensions.extend(std::mem::take(response.extensions_mut()));
        *response.extensions_mut() = extensions;
        Step::Decided(Decision::Deny(response))
    }
}

/// Why there is no attempt, and whose it would have been.
fn denial(error: ReserveError, caller: Counted<'_>) -> Denial {
    Denial::new(error.into())
        .with_address(caller.ip)
        .with_user(caller.user.map(User::into_typed))
}

/// What access rules compare, but for the user.
#[inline]
fn query<'a>(in_force: &InForce, caller: &Caller<'_>, parts: &'a Parts) -> AccessQuery<'a> {
    let query = AccessQuery::new().with_address(caller.address);
    if !in_force.access.compares_requests() {
        return query;
    }
    let query = query.with_path(value::sent_path(parts));
    match parts.headers.get(http::header::USER_AGENT) {
        Some(agent) => query.with_user_agent(agent.as_bytes()),
        None => query,
    }
}

/// Whether a layer further in might decode the body into another one than the layer reads.
fn is_encoded(parts: &Parts) -> bool {
    let mut encodings = (parts.headers.get_all(http::header::CONTENT_ENCODING)).iter();
    encodings.any(|encoding| !encoding.as_bytes().eq_ignore_ascii_case(b"identity"))
}
