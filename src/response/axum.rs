//! Responses of axum as denials.

use std::{
    fmt,
    pin::pin,
    task::{Context, Poll, Waker},
};

use axum::response::IntoResponse;
use bytes::{Bytes, BytesMut};
use http::{HeaderMap, Response, header, request::Parts};
use http_body::Body;

use super::{Denial, ProblemJson, Respond};

/// Renders denials as anything that axum can turn into a response.
///
/// ```
/// # use tower_login_rate_limit::{LoginLimiter, LoginRateLimitLayer, Policy, store::MemoryStore};
/// # let limiter = LoginLimiter::new(Policy::default(), MemoryStore::new());
/// use axum::response::{Html, IntoResponse, Redirect};
/// use tower_login_rate_limit::response::{DenialKind, RespondWith};
///
/// let responder = RespondWith::new(|denial, _request| match denial.kind() {
///     DenialKind::Refused(_) => Redirect::to("/blocked").into_response(),
///     _ => (denial.status(), Html("<h1>Sorry</h1>")).into_response(),
/// });
/// let layer = LoginRateLimitLayer::new(limiter).with_responder(responder);
/// ```
///
/// The body has to be complete at once, as that of `Html`, `Json`, a string or a redirect is. In place of one
/// that has to be waited for, the client receives [`ProblemJson`].
#[derive(Clone)]
pub struct RespondWith<F> {
    respond: F,
}

impl<F, R> RespondWith<F>
where
    F: Fn(&Denial, &Parts) -> R + Send + Sync + 'static,
    R: IntoResponse,
{
    /// Responds with what this closure returns.
    pub const fn new(respond: F) -> Self {
        Self { respond }
    }
}

impl<F, R> Respond for RespondWith<F>
where
    F: Fn(&Denial, &Parts) -> R + Send + Sync + 'static,
    R: IntoResponse,
{
    fn respond(&self, denial: &Denial, request: &Parts) -> Response<Bytes> {
        let (parts, body) = (self.respond)(denial, request).into_response().into_parts();
        match read_at_once(body) {
            Some(body) => Response::from_parts(parts, body),
            None => ProblemJson.respond(denial, request),
        }
    }
}

impl<F> fmt::Debug for RespondWith<F> {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("RespondWith").finish_non_exhaustive()
    }
}

/// The whole body; `None` if it has to be waited for or ends with an error.
fn read_at_once(body: axum::body::Body) -> Option<Bytes> {
    let mut body = pin!(body);
    let mut cx = Context::from_waker(Waker::noop());
    let (mut first, mut more) = (Bytes::new(), BytesMut::new());
    loop {
        match body.as_mut().poll_frame(&mut cx) {
            Poll::Ready(Some(Ok(frame))) => match frame.into_data() {
                Ok(data) if first.is_empty() => first = data,
                Ok(data) => more.extend_from_slice(&data),
                Err(_trailers) => {}
            },
            Poll::Ready(None) if more.is_empty() => return Some(first),
            Poll::Ready(None) => return Some([first, more.freeze()].concat().into()),
            Poll::Ready(Some(Err(_))) | Poll::Pending => return None,
        }
    }
}

/// In the extensions of a response to a [`Denial`] that a handler returned: the layer renders it.
#[derive(Clone, Copy)]
pub(crate) struct Unrendered;

/// In the extensions of a response: what the layer sends in its place.
#[derive(Clone)]
pub(crate) struct Replacement(pub(crate) Box<Response<Bytes>>);

impl Replacement {
    /// `rendered`, with the headers that layers further in have added to the response that it replaces.
    pub(crate) fn new(mut rendered: Response<Bytes>, replaced: &HeaderMap) -> Self {
        let headers = rendered.headers_mut();
        for name in replaced.keys() {
            let describes_body = matches!(
                *name,
                header::CONTENT_TYPE
                    | header::CONTENT_LENGTH
                    | header::CONTENT_ENCODING
                    | header::TRANSFER_ENCODING
                    | header::ETAG
                    | header::LAST_MODIFIED
            );
            let is_free = *name == header::VARY || !headers.contains_key(name);
            if !describes_body && is_free {
                for value in replaced.get_all(name) {
                    headers.append(name, value.clone());
                }
            }
        }
        Self(Box::new(rendered))
    }
}
