//! From a request to its response.

use std::{
    fmt,
    net::IpAddr,
    pin::Pin,
    sync::Arc,
    task::{Context, Poll, ready},
};

use http::{Request, Response, request::Parts};
use pin_project_lite::pin_project;
use tower_service::Service;

use crate::{
    Answer, Attempt, Caller, LoginAttempt, Outcome, ReserveError, Reserving,
    body::{Extent, ResponseBody},
    events,
    extract::Extracted,
    layer::{Config, UserSource},
    rate_limit_fields::RateLimitFields,
    reading::Reading,
    refusal::Denial,
    settling::{Settling, Unsettled},
};

pin_project! {
    /// The response of a [`LoginRateLimit`](crate::LoginRateLimit), to come.
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
        Identifying { user: Answer<Extracted>, address: IpAddr, guarded: Option<Guarded<S>>, request: Option<Request<M::Body>> },
        /// Its attempt is being reserved.
        Reserving { reserving: Reserving, guarded: Option<Guarded<S>>, request: Option<Request<M::Body>> },
        /// Its handler is at work.
        Running { #[pin] response: S::Future, unsettled: Option<Unsettled>, config: Arc<Config>, fields: Option<RateLimitFields> },
        /// Its outcome is being written.
        Settling { settling: Settling, response: Option<Result<S::Response, S::Error>> },
        /// It did not reach its handler.
        Denied { response: Option<Response<bytes::Bytes>> },
        /// It is none of the layer's business.
        Uncounted { #[pin] response: S::Future },
    }
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

    fn run<M, B>(
        mut self,
        mut request: Request<M::Body>,
        attempt: Option<Attempt>,
    ) -> State<S, M, B>
    where
        M: Reading<B>,
        S: Service<Request<M::Body>>,
    {
        let fields = match &attempt {
            Some(attempt) if self.config.rate_limit_fields => {
                RateLimitFields::of_report(attempt.report())
            }
            _ => None,
        };
        let limiter = self.config.limiter.clone();
        let under_way = limiter.begin();
        let attempt = LoginAttempt::new(limiter, self.config.shadow, attempt);
        request.extensions_mut().insert(attempt.clone());
        // Ahead of the call: should it panic, the attempt is settled all the same.
        let unsettled = Unsettled::new(attempt, under_way);
        State::Running {
            response: self.service.call(request),
            unsettled: Some(unsettled),
            config: self.config,
            fields,
        }
    }

    fn deny<M, B>(self, denial: Denial, request: Request<M::Body>) -> State<S, M, B>
    where
        M: Reading<B>,
        S: Service<Request<M::Body>>,
    {
        events::denied(&denial, self.config.shadow);
        if self.config.shadow {
            return self.run(request, None);
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
                        return Poll::Pending;
                    };
                    let user = guarded.identify(&parts, &extent);
                    let request = Request::from_parts(parts, body);
                    match user {
                        Ok(user) => State::Identifying {
                            user,
                            address,
                            guarded: Some(guarded),
                            request: Some(request),
                        },
                        Err(denial) => guarded.deny(denial, request),
                    }
                }
                StateProjection::Identifying {
                    user,
                    address,
                    guarded,
                    request,
                } => {
                    let user = ready!(Pin::new(user).poll(cx));
                    let (Some(guarded), Some(request)) = (guarded.take(), request.take()) else {
                        return Poll::Pending;
                    };
                    match user {
                        Ok(user) => {
                            let mut caller = Caller::new(*address);
                            caller.user = user.map(Into::into);
                            State::Reserving {
                                reserving: guarded.config.limiter.reserve(caller),
                                guarded: Some(guarded),
                                request: Some(request),
                            }
                        }
                        Err(error) => guarded.deny(Denial::AmbiguousUser(error), request),
                    }
                }
                StateProjection::Reserving {
                    reserving,
                    guarded,
                    request,
                } => {
                    let reserved: Result<Attempt, ReserveError> =
                        ready!(Pin::new(reserving).poll(cx));
                    let (Some(guarded), Some(request)) = (guarded.take(), request.take()) else {
                        return Poll::Pending;
                    };
                    match reserved {
                        Ok(attempt) => guarded.run(request, Some(attempt)),
                        Err(error) => guarded.deny(error.into(), request),
                    }
                }
                StateProjection::Running {
                    response,
                    unsettled,
                    config,
                    fields,
                } => {
                    let mut response = ready!(response.poll(cx));
                    let Some(unsettled) = unsettled.take() else {
                        return Poll::Pending;
                    };
                    if let (Ok(response), Some(fields)) = (&mut response, fields.take()) {
                        fields.write(response.headers_mut());
                    }
                    let (outcome, response) = outcome(&unsettled, response, config);
                    State::Settling {
                        settling: unsettled.settle(outcome),
                        response: Some(response),
                    }
                }
                StateProjection::Settling { settling, response } => {
                    ready!(Pin::new(settling).poll(cx));
                    return match response.take() {
                        Some(response) => {
                            Poll::Ready(response.map(|response| response.map(ResponseBody::inner)))
                        }
                        None => Poll::Pending,
                    };
                }
                StateProjection::Denied { response } => {
                    return match response.take() {
                        Some(response) => Poll::Ready(Ok(response.map(ResponseBody::refusal))),
                        None => Poll::Pending,
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

/// How the attempt went: as the handler said, in the request's extensions or in the response's, or as
/// the response looks.
fn outcome<R, E>(
    unsettled: &Unsettled,
    response: Result<Response<R>, E>,
    config: &Config,
) -> (Outcome, Result<Response<R>, E>) {
    if let Some(said) = unsettled.said() {
        return (said, response);
    }
    match response {
        // The service failed, not the client.
        Err(error) => (Outcome::NotAnAttempt, Err(error)),
        Ok(response) => {
            let (parts, body) = response.into_parts();
            let outcome = match parts.extensions.get::<Outcome>() {
                Some(said) => *said,
                None => {
                    let outcome = config.classify.classify(&parts);
                    events::unsaid(outcome);
                    outcome
                }
            };
            (outcome, Ok(Response::from_parts(parts, body)))
        }
    }
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
