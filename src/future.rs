//! From a request to its response.

use std::{
    fmt,
    net::IpAddr,
    pin::Pin,
    sync::Arc,
    task::{Context, Poll, ready},
};

use http::{Method, Request, Response, request::Parts};
use pin_project_lite::pin_project;
use tower_service::Service;

use crate::{
    Answer, Attempt, Caller, Classify, LoginAttempt, Outcome, Report, ReserveError,
    body::{Extent, ResponseBody},
    classify::FailureUnlessSaid,
    events,
    extract::{Extracted, UserError},
    layer::{Config, UserSource},
    rate_limit_fields::RateLimitFields,
    reading::Reading,
    refusal::Denial,
    reserving::Deciding,
    settling::{Settling, Unsettled},
};

pin_project! {
    /// The response of a [`LoginRateLimit`](crate::LoginRateLimit), to come.
    ///
    /// ```
    /// use tower_login_rate_limit::{HeadOnly, LoginRateLimit, ResponseFuture};
    /// use tower::Service;
    ///
    /// // A future with a name, for services around it that have one too.
    /// type FutureOf<S, B> = <LoginRateLimit<S> as Service<http::Request<B>>>::Future;
    /// fn named<S, B>(future: FutureOf<S, B>) -> ResponseFuture<S, HeadOnly, B>
    /// where
    ///     S: Service<http::Request<B>, Response = http::Response<String>> + Clone,
    /// {
    ///     future
    /// }
    /// ```
    #[must_use = "futures do nothing unless polled"]
    pub struct ResponseFuture<S, M, B>
    where
        M: Reading<B>,
        S: Service<Request<M::Body>>,
    {
        #[pin]
        state: State<S, M, B>,
    }
}

pin_project! {
    /// Where a request is on its way.
    #[project = StateProjection]
    enum State<S, M, B>
    where
        M: Reading<B>,
        S: Service<Request<M::Body>>,
    {
        /// Its body is being read.
        Reading { #[pin] read: M::Read, guarded: Option<Guarded<S>>, parts: Option<Parts>, address: Option<IpAddr> },
        /// Its user is being asked for.
        Identifying { user: Answer<Extracted>, caller: Option<Caller<'static>>, guarded: Option<Guarded<S>>, request: Option<Request<M::Body>> },
        /// Its attempt is being reserved.
        Reserving { deciding: Deciding, guarded: Option<Guarded<S>>, request: Option<Request<M::Body>> },
        /// Its handler is at work.
        Running { #[pin] response: S::Future, handled: Option<Handled> },
        /// Its outcome is being written.
        Settling { settling: Settling, response: Option<Result<S::Response, S::Error>> },
        /// It did not reach its handler.
        Denied { response: Option<Response<bytes::Bytes>> },
        /// It is none of the layer's business.
        Uncounted { #[pin] response: S::Future },
    }
}

/// What is kept while the handler is at work.
struct Handled {
    unsettled: Unsettled,
    config: Arc<Config>,
    method: Method,
    report: Option<Report>,
    /// Why it would have been denied, did the layer do more than watch.
    shadowed: Option<Denial>,
}

/// The inner service, ready to be called, and what guards it.
struct Guarded<S> {
    service: S,
    config: Arc<Config>,
}

impl<S, M, B> ResponseFuture<S, M, B>
where
    M: Reading<B>,
    S: Service<Request<M::Body>>,
{
    pub(crate) const fn uncounted(response: S::Future) -> Self {
        Self {
            state: State::Uncounted { response },
        }
    }

    pub(crate) fn counted(config: Arc<Config>, service: S, parts: Parts, body: B) -> Self {
        let address = config.address.extract_address(&parts);
        let guarded = Guarded { service, config };
        let state = match address {
            Ok(address) => State::Reading {
                read: M::read(body, guarded.config.most_of_body),
                guarded: Some(guarded),
                parts: Some(parts),
                address: Some(address),
            },
            Err(error) => {
                let denial = Denial::NoAddress(error);
                let request = Request::from_parts(parts, M::pass(body));
                guarded.deny(denial, request)
            }
        };
        Self { state }
    }
}

impl<S> Guarded<S> {
    /// What the user source says, now that the body is read as far as it may be.
    fn identify(&self, parts: &Parts, extent: &Extent) -> Result<Answer<Extracted>, Denial> {
        match (&self.config.user, extent) {
            (UserSource::Body(_), Extent::Broken) => Err(Denial::BodyBroken),
            (UserSource::Body(_), _) if is_encoded(parts) => {
                Err(Denial::AmbiguousUser(UserError::new(
                    "the body is compressed: send it as it is, or have the server decompress it \
                     before it looks for the user",
                )))
            }
            (UserSource::Head(user), _) => Ok(user.extract_user(parts)),
            (UserSource::Body(user), Extent::Whole(body)) => {
                Ok(Answer::now(user.extract_user(parts, body)))
            }
            (UserSource::Body(_), Extent::TooLarge) if !self.config.pass_too_large => {
                Err(Denial::BodyTooLarge {
                    most: self.config.most_of_body,
                })
            }
            (UserSource::Body(_), _) => Ok(Answer::now(Ok(None))),
        }
    }

    /// Reserves an attempt of this caller, now that it is known which user was named.
    ///
    /// Each step is taken at once if the one before it has an answer at once: a request is too large to be
    /// put down and taken up again for nothing.
    fn reserve<M, B>(
        self,
        mut caller: Caller<'static>,
        user: Extracted,
        request: Request<M::Body>,
    ) -> State<S, M, B>
    where
        M: Reading<B>,
        S: Service<Request<M::Body>>,
    {
        match user {
            Ok(user) => caller.user = user.map(Into::into),
            Err(error) => return self.deny(Denial::AmbiguousUser(error), request),
        }
        match self.config.limiter.reserve(caller).at_once() {
            Ok(reserved) => self.reserved(reserved, request),
            Err(deciding) => State::Reserving {
                deciding,
                guarded: Some(self),
                request: Some(request),
            },
        }
    }

    fn reserved<M, B>(
        self,
        reserved: Result<Attempt, ReserveError>,
        request: Request<M::Body>,
    ) -> State<S, M, B>
    where
        M: Reading<B>,
        S: Service<Request<M::Body>>,
    {
        match reserved {
            Ok(attempt) => self.run(request, Ok(attempt)),
            Err(error) => self.deny(error.into(), request),
        }
    }

    fn run<M, B>(
        mut self,
        mut request: Request<M::Body>,
        attempt: Result<Attempt, Denial>,
    ) -> State<S, M, B>
    where
        M: Reading<B>,
        S: Service<Request<M::Body>>,
    {
        let (attempt, shadowed) = match attempt {
            Ok(attempt) => (Some(attempt), None),
            Err(denial) => (None, Some(denial)),
        };
        let report = (self.config.rate_limit_fields)
            .then(|| attempt.as_ref().map(|attempt| attempt.report().clone()))
            .flatten();
        let limiter = self.config.limiter.clone();
        let under_way = limiter.begin();
        let outer = request.extensions_mut().remove::<LoginAttempt>();
        let attempt = LoginAttempt::new(limiter, self.config.shadow, attempt, outer);
        request.extensions_mut().insert(attempt.clone());
        let method = request.method().clone();
        // Ahead of the call: should it panic, the attempt is settled all the same.
        let unsettled = Unsettled::new(attempt, under_way);
        State::Running {
            response: self.service.call(request),
            handled: Some(Handled {
                unsettled,
                config: self.config,
                method,
                report,
                shadowed,
            }),
        }
    }

    fn deny<M, B>(self, denial: Denial, request: Request<M::Body>) -> State<S, M, B>
    where
        M: Reading<B>,
        S: Service<Request<M::Body>>,
    {
        events::denied(&denial, self.config.shadow);
        if self.config.shadow {
            return self.run(request, Err(denial));
        }
        let (parts, _) = request.into_parts();
        let mut response = self.config.respond.respond(&denial, &parts);
        if self.config.rate_limit_fields
            && let Denial::Refused(refusal) = &denial
            && let Some(fields) = RateLimitFields::of_refusal(refusal, self.config.limiter.policy())
        {
            fields.write(response.headers_mut());
        }
        response.extensions_mut().insert(denial);
        State::Denied {
            response: Some(response),
        }
    }
}

impl<S, M, B, R> Future for ResponseFuture<S, M, B>
where
    M: Reading<B>,
    S: Service<Request<M::Body>, Response = Response<R>>,
{
    type Output = Result<Response<ResponseBody<R>>, S::Error>;

    fn poll(self: Pin<&mut Self>, cx: &mut Context<'_>) -> Poll<Self::Output> {
        let mut state = self.project().state;
        loop {
            let next = match state.as_mut().project() {
                StateProjection::Reading {
                    read,
                    guarded,
                    parts,
                    address,
                } => {
                    let (body, extent) = ready!(read.poll(cx));
                    let (Some(guarded), Some(parts), Some(address)) =
                        (guarded.take(), parts.take(), address.take())
                    else {
                        done()
                    };
                    let user = guarded.identify(&parts, &extent);
                    let caller = guarded.config.caller(address, &parts);
                    let request = Request::from_parts(parts, body);
                    match user.map(Answer::at_once) {
                        Ok(Ok(user)) => guarded.reserve(caller, user, request),
                        Ok(Err(later)) => State::Identifying {
                            user: later,
                            caller: Some(caller),
                            guarded: Some(guarded),
                            request: Some(request),
                        },
                        Err(denial) => guarded.deny(denial, request),
                    }
                }
                StateProjection::Identifying {
                    user,
                    caller,
                    guarded,
                    request,
                } => {
                    let user = ready!(Pin::new(user).poll(cx));
                    let (Some(caller), Some(guarded), Some(request)) =
                        (caller.take(), guarded.take(), request.take())
                    else {
                        done()
                    };
                    guarded.reserve(caller, user, request)
                }
                StateProjection::Reserving {
                    deciding,
                    guarded,
                    request,
                } => {
                    let reserved: Result<Attempt, ReserveError> =
                        ready!(Pin::new(deciding).poll(cx));
                    let (Some(guarded), Some(request)) = (guarded.take(), request.take()) else {
                        done()
                    };
                    guarded.reserved(reserved, request)
                }
                StateProjection::Running { response, handled } => {
                    let response = ready!(response.poll(cx));
                    let Some(handled) = handled.take() else {
                        done()
                    };
                    let (outcome, response) = handled.outcome(response);
                    let mut settling = handled.unsettled.settle(outcome);
                    if Pin::new(&mut settling).poll(cx).is_ready() {
                        // The handler's future is done with, and so is this one.
                        state.set(State::Denied { response: None });
                        return Poll::Ready(
                            response.map(|response| response.map(ResponseBody::inner)),
                        );
                    }
                    State::Settling {
                        settling,
                        response: Some(response),
                    }
                }
                StateProjection::Settling { settling, response } => {
                    ready!(Pin::new(settling).poll(cx));
                    return match response.take() {
                        Some(response) => {
                            Poll::Ready(response.map(|response| response.map(ResponseBody::inner)))
                        }
                        None => done(),
                    };
                }
                StateProjection::Denied { response } => {
                    return match response.take() {
                        Some(response) => Poll::Ready(Ok(response.map(ResponseBody::refusal))),
                        None => done(),
                    };
                }
                StateProjection::Uncounted { response } => {
                    let response = ready!(response.poll(cx));
                    return Poll::Ready(response.map(|response| response.map(ResponseBody::inner)));
                }
            };
            state.set(next);
        }
    }
}

impl Handled {
    /// How the attempt went: as the handler said, in the request's extensions or in the response's,
    /// or as the response looks.
    fn outcome<R, E>(&self, response: Result<Response<R>, E>) -> (Outcome, Result<Response<R>, E>) {
        let attempt = self.unsettled.attempt();
        let response = match response {
            Ok(response) => response,
            // The service failed, not the client.
            Err(error) => return (attempt.said().unwrap_or(Outcome::NotAnAttempt), Err(error)),
        };
        let (mut parts, body) = response.into_parts();
        if let Some(outcome) = parts.extensions.get::<Outcome>() {
            attempt.say(*outcome);
        }
        let outcome = attempt
            .said()
            .unwrap_or_else(|| match &self.config.classify {
                Some(classify) => classify.classify(&self.method, &parts),
                None => {
                    let outcome = FailureUnlessSaid.classify(&self.method, &parts);
                    if outcome == Outcome::Failure && !attempt.is_withdrawn() {
                        events::unsaid(&self.config.unsaid, outcome);
                    }
                    outcome
                }
            });
        if let Some(fields) = self.report.as_ref().and_then(|report| {
            let failed = matches!(outcome, Outcome::Failure | Outcome::UnknownUser);
            RateLimitFields::of_report(report, failed)
        }) {
            fields.write(&mut parts.headers);
        }
        if let Some(denial) = &self.shadowed {
            parts.extensions.insert(denial.clone());
        }
        (outcome, Ok(Response::from_parts(parts, body)))
    }
}

/// Whether a layer further in might read another body than we can.
fn is_encoded(parts: &Parts) -> bool {
    let encoding = parts.headers.get(http::header::CONTENT_ENCODING);
    encoding.is_some_and(|encoding| !encoding.as_bytes().eq_ignore_ascii_case(b"identity"))
}

/// As with any future, it is nobody's business to poll one that is done.
fn done() -> ! {
    panic!("a response was polled after it had been given")
}

impl<S, M, B> fmt::Debug for ResponseFuture<S, M, B>
where
    M: Reading<B>,
    S: Service<Request<M::Body>>,
{
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("ResponseFuture").finish_non_exhaustive()
    }
}
