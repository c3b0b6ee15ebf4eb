//! The future of a response.

use std::{
    fmt,
    pin::Pin,
    task::{Context, Poll, ready},
};

use bytes::Bytes;
use http::{Request, Response, request::Parts, response};
use pin_project_lite::pin_project;

use super::{
    ResponseBody,
    decision::{Decision, Waiting},
    guard::{Finished, Guard, Settling},
    mode::{Inner, Mode},
};
use crate::logging;
#[cfg(feature = "axum")]
use crate::response::Replacement;

pin_project! {
    /// The future of a [`LoginRateLimit`](crate::LoginRateLimit)'s response.
    #[must_use = "futures do nothing unless polled"]
    pub struct ResponseFuture<S, M, B>
    where
        M: Mode<B>,
        S: Inner<M::Body>,
    {
        #[pin]
        state: State<S, M, B>,
    }
}

pin_project! {
    #[project = StateProjection]
    #[project_replace = StateReplacement]
    enum State<S, M, B>
    where
        M: Mode<B>,
        S: Inner<M::Body>,
    {
        /// Something has to be waited for before the handler can be called.
        Waiting { waiting: Box<Waiting<S, M::Held>> },
        /// The handler runs.
        Running { #[pin] response: S::Future, guard: Guard },
        /// The outcome is being written.
        Settling { settling: Settling, response: Result<Divided<S::ResponseBody>, S::Error> },
        /// The request was denied.
        Denied { response: Response<Bytes> },
        /// The request is not counted.
        Uncounted { #[pin] response: S::Future },
        /// The response was returned.
        Done,
    }
}

impl<S, M, B> ResponseFuture<S, M, B>
where
    M: Mode<B>,
    S: Inner<M::Body>,
{
    pub(super) const fn uncounted(response: S::Future) -> Self {
        Self {
            state: State::Uncounted { response },
        }
    }

    pub(super) fn waiting(waiting: Waiting<S, M::Held>) -> Self {
        Self {
            state: State::Waiting {
                waiting: Box::new(waiting),
            },
        }
    }

    #[inline]
    pub(super) fn decided(
        decision: Decision,
        service: &mut S,
        parts: Parts,
        body: M::Held,
    ) -> Self {
        match decision {
            // The guard exists before the call, in case that panics.
            Decision::Run(mut guard) => {
                let response = service.call(Request::from_parts(parts, M::release(body)));
                guard.set_handler_started(false);
                Self {
                    state: State::Running { response, guard },
                }
            }
            Decision::Pass => {
                Self::uncounted(service.call(Request::from_parts(parts, M::release(body))))
            }
            Decision::Deny(response) => Self {
                state: State::Denied { response },
            },
        }
    }
}

impl<S, M, B> Future for ResponseFuture<S, M, B>
where
    M: Mode<B>,
    S: Inner<M::Body>,
{
    type Output = Result<Response<ResponseBody<S::ResponseBody>>, S::Error>;

    fn poll(self: Pin<&mut Self>, cx: &mut Context<'_>) -> Poll<Self::Output> {
        let mut state = self.project().state;
        loop {
            match state.as_mut().project() {
                StateProjection::Waiting { waiting } => {
                    let decision = ready!(waiting.poll_decision::<M, B>(cx));
                    let StateReplacement::Waiting { waiting } =
                        state.as_mut().project_replace(State::Done)
                    else {
                        unreachable!("the state was `Waiting`");
                    };
                    let decision = match decision {
                        Ok(decision) => decision,
                        Err(error) => return Poll::Ready(Err(error)),
                    };
                    let Waiting {
                        mut service,
                        parts,
                        body,
                        ..
                    } = *waiting;
                    state.set(Self::decided(decision, &mut service, parts, body).state);
                }
                StateProjection::Running { response, guard } => {
                    guard.set_handler_started(true);
                    let mut response = ready!(response.poll(cx)).map(Response::into_parts);
                    let head = response.as_mut().ok().map(|(head, _)| head);
                    match guard.finish(head) {
                        Finished::Settled => {
                            state.set(State::Done);
                            return Poll::Ready(wrap(response));
                        }
                        Finished::Settling(settling) => {
                            state.set(State::Settling { settling, response });
                        }
                        Finished::AwaitsTrailers => {
                            let StateReplacement::Running { guard, .. } =
                                state.as_mut().project_replace(State::Done)
                            else {
                                unreachable!("the state was `Running`");
                            };
                            return Poll::Ready(response.map(|(head, body)| {
                                Response::from_parts(head, ResponseBody::guarded(body, guard))
                            }));
                        }
                    }
                }
                StateProjection::Settling { settling, .. } => {
                    if let Err(error) = ready!(Pin::new(settling).poll(cx)) {
                        logging::not_settled(&error);
                    }
                    let StateReplacement::Settling { response, .. } =
                        state.as_mut().project_replace(State::Done)
                    else {
                        unreachable!("the state was `Settling`");
                    };
                    return Poll::Ready(wrap(response));
                }
                StateProjection::Denied { .. } => {
                    let StateReplacement::Denied { response } =
                        state.as_mut().project_replace(State::Done)
                    else {
                        unreachable!("the state was `Denied`");
                    };
                    return Poll::Ready(Ok(response.map(ResponseBody::denial)));
                }
                StateProjection::Uncounted { response } => {
                    let response = ready!(response.poll(cx));
                    return Poll::Ready(wrap(response.map(Response::into_parts)));
                }
                StateProjection::Done => panic!("`ResponseFuture` polled after completion"),
            }
        }
    }
}

/// The head of a response, and its body.
type Divided<R> = (response::Parts, R);

#[inline]
#[cfg_attr(not(feature = "axum"), expect(unused_mut))]
fn wrap<R, E>(response: Result<Divided<R>, E>) -> Result<Response<ResponseBody<R>>, E> {
    response.map(|(mut head, body)| {
        #[cfg(feature = "axum")]
        if let Some(replacement) = head.extensions.remove() {
            return replace(head, replacement);
        }
        Response::from_parts(head, ResponseBody::inner(body))
    })
}

/// What the layer sends in place of a denial that the handler returned.
#[cfg(feature = "axum")]
#[cold]
fn replace<R>(head: response::Parts, replacement: Replacement) -> Response<ResponseBody<R>> {
    let mut replacement = *replacement.0;
    replacement.extensions_mut().extend(head.extensions);
    replacement.map(ResponseBody::denial)
}

impl<S, M, B> fmt::Debug for ResponseFuture<S, M, B>
where
    M: Mode<B>,
    S: Inner<M::Body>,
{
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("ResponseFuture").finish_non_exhaustive()
    }
}
