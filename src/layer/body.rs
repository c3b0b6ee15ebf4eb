//! Bodies on their way through the layer.

use std::{
    fmt,
    pin::Pin,
    sync::{Mutex, PoisonError},
    task::{Context, Poll, ready},
};

use bytes::{Bytes, BytesMut};
use http::HeaderMap;
use http_body::{Body, Frame, SizeHint};
use pin_project_lite::pin_project;

use super::guard::{Guard, Settling};
use crate::logging;

/// How much of a body was read.
#[derive(Debug)]
pub enum Extent {
    /// Nothing: the layer does not read bodies.
    Unread,
    /// The whole body.
    Whole(Bytes),
    /// The body is larger than the limit.
    TooLarge,
    /// The body ended with an error, which the handler will receive too.
    Broken,
}

pin_project! {
    /// The body of a response: the inner service's, or that of a denial.
    #[derive(Debug)]
    pub struct ResponseBody<B> {
        // `None` for a denial.
        #[pin]
        inner: Option<B>,
        denial: Bytes,
        // For a response whose outcome is in its trailers.
        trailing: Option<Trailing>,
    }
}

/// An attempt that is settled by the trailers of its response. In a lock, so that the body is `Sync` if the
/// inner one is.
struct Trailing(Box<Mutex<(Guard, Option<Held>)>>);

/// A frame that is held back until the outcome is written; `None` is the end of the body.
struct Held {
    settling: Settling,
    frame: Option<Frame<Bytes>>,
}

impl Trailing {
    /// The next frame of the body. Settles the attempt ahead of the trailers, or of the end.
    fn poll_frame<B: Body<Data = Bytes>>(
        &mut self,
        body: Pin<&mut B>,
        cx: &mut Context<'_>,
    ) -> Poll<Option<Result<Frame<Bytes>, B::Error>>> {
        let (guard, held) = self.0.get_mut().unwrap_or_else(PoisonError::into_inner);
        if held.is_none() {
            let frame = match ready!(body.poll_frame(cx)) {
                Some(Ok(frame)) if frame.is_trailers() => Some(frame),
                None => None,
                // An error leaves the attempt without an outcome: it is a failure when the body is dropped.
                other => return Poll::Ready(other),
            };
            let trailers = frame.as_ref().and_then(Frame::trailers_ref);
            let Some(settling) = guard.finish_with_trailers(trailers) else {
                return Poll::Ready(frame.map(Ok));
            };
            *held = Some(Held { settling, frame });
        }
        if let Some(Held { settling, .. }) = held
            && let Err(error) = ready!(Pin::new(settling).poll(cx))
        {
            logging::not_settled(&error);
        }
        Poll::Ready(held.take().and_then(|held| held.frame).map(Ok))
    }

    fn is_holding(&self) -> bool {
        let held = self.0.lock().unwrap_or_else(PoisonError::into_inner);
        held.1.is_some()
    }
}

impl fmt::Debug for Trailing {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("Trailing").finish_non_exhaustive()
    }
}

/// An empty body, for layers that respond in place of the inner service.
impl<B> Default for ResponseBody<B> {
    fn default() -> Self {
        Self::denial(Bytes::new())
    }
}

impl<B> ResponseBody<B> {
    #[inline]
    pub(super) const fn inner(body: B) -> Self {
        Self {
            inner: Some(body),
            denial: Bytes::new(),
            trailing: None,
        }
    }

    /// The body of a response whose trailers settle the attempt.
    pub(super) fn guarded(body: B, guard: Guard) -> Self {
        Self {
            inner: Some(body),
            denial: Bytes::new(),
            trailing: Some(Trailing(Box::new(Mutex::new((guard, None))))),
        }
    }

    pub(super) const fn denial(body: Bytes) -> Self {
        Self {
            inner: None,
            denial: body,
            trailing: None,
        }
    }
}

impl<B: Body<Data = Bytes>> Body for ResponseBody<B> {
    type Data = Bytes;
    type Error = B::Error;

    fn poll_frame(
        self: Pin<&mut Self>,
        cx: &mut Context<'_>,
    ) -> Poll<Option<Result<Frame<Bytes>, B::Error>>> {
        let this = self.project();
        if let Some(body) = this.inner.as_pin_mut() {
            let Some(trailing) = this.trailing else {
                return body.poll_frame(cx);
            };
            let frame = ready!(trailing.poll_frame(body, cx));
            if !matches!(&frame, Some(Ok(frame)) if frame.is_data()) {
                *this.trailing = None;
            }
            return Poll::Ready(frame);
        }
        let body = std::mem::take(this.denial);
        Poll::Ready((!body.is_empty()).then(|| Ok(Frame::data(body))))
    }

    fn is_end_stream(&self) -> bool {
        if self.trailing.as_ref().is_some_and(Trailing::is_holding) {
            return false;
        }
        let denial = || self.denial.is_empty();
        self.inner.as_ref().map_or_else(denial, B::is_end_stream)
    }

    fn size_hint(&self) -> SizeHint {
        let denial = || SizeHint::with_exact(self.denial.len() as u64);
        self.inner.as_ref().map_or_else(denial, B::size_hint)
    }
}

/// The body of a request of which the layer may have read the beginning, replayed from its first byte.
///
/// A plain hyper handler behind a layer that reads bodies takes a
/// `Request<ReplayedBody<hyper::body::Incoming>>`. Handlers and routers of axum take any body; its middleware
/// functions take axum's own, see `LoginRateLimitLayer::for_axum`.
pub struct ReplayedBody<B: Body> {
    /// The first frame, or all frames that were read once reading has ended.
    read: Bytes,
    /// All frames that were read so far, if there is more than one.
    joined: BytesMut,
    trailers: Option<HeaderMap>,
    error: Option<B::Error>,
    ended: bool,
    rest: B,
}

// Nothing but `rest` is ever pinned.
impl<B: Body + Unpin> Unpin for ReplayedBody<B> {}

impl<B: Body<Data = Bytes> + Unpin> Body for ReplayedBody<B> {
    type Data = Bytes;
    type Error = B::Error;

    fn poll_frame(
        mut self: Pin<&mut Self>,
        cx: &mut Context<'_>,
    ) -> Poll<Option<Result<Frame<Bytes>, B::Error>>> {
        self.join();
        if !self.read.is_empty() {
            return Poll::Ready(Some(Ok(Frame::data(std::mem::take(&mut self.read)))));
        }
        if let Some(trailers) = self.trailers.take() {
            return Poll::Ready(Some(Ok(Frame::trailers(trailers))));
        }
        if let Some(error) = self.error.take() {
            return Poll::Ready(Some(Err(error)));
        }
        if self.ended {
            Poll::Ready(None)
        } else {
            Pin::new(&mut self.rest).poll_frame(cx)
        }
    }

    fn is_end_stream(&self) -> bool {
        let kept = self.read_len() > 0 || self.trailers.is_some() || self.error.is_some();
        !kept && (self.ended || self.rest.is_end_stream())
    }

    fn size_hint(&self) -> SizeHint {
        let read = self.read_len();
        if self.ended {
            return SizeHint::with_exact(read);
        }
        let rest = self.rest.size_hint();
        let mut hint = SizeHint::new();
        hint.set_lower(rest.lower().saturating_add(read));
        if let Some(upper) = rest.upper().and_then(|upper| upper.checked_add(read)) {
            hint.set_upper(upper);
        }
        hint
    }
}

impl<B: Body> ReplayedBody<B> {
    pub(super) fn new(body: B) -> Self {
        Self {
            read: Bytes::new(),
            joined: BytesMut::new(),
            trailers: None,
            error: None,
            ended: false,
            rest: body,
        }
    }

    /// Whether nothing of the body was read.
    #[cfg(feature = "axum")]
    pub(super) fn is_unread(&self) -> bool {
        self.read_len() == 0 && self.error.is_none() && !self.ended
    }

    /// The body behind what was read.
    #[cfg(feature = "axum")]
    pub(super) fn into_rest(self) -> B {
        self.rest
    }

    /// The number of bytes that were read and not replayed.
    fn read_len(&self) -> u64 {
        self.joined.len().max(self.read.len()) as u64
    }
}

impl<B: Body> fmt::Debug for ReplayedBody<B> {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("ReplayedBody")
            .field("read", &self.read_len())
            .finish_non_exhaustive()
    }
}

impl<B: Body<Data = Bytes> + Unpin> ReplayedBody<B> {
    pub(super) fn poll_read(&mut self, limit: u64, cx: &mut Context<'_>) -> Poll<Extent> {
        // A body that announces to be too large is not read at all.
        if self.size_hint().lower() > limit {
            return Poll::Ready(Extent::TooLarge);
        }
        let extent = loop {
            match ready!(Pin::new(&mut self.rest).poll_frame(cx)) {
                None => break Extent::Whole(Bytes::new()),
                Some(Err(error)) => {
                    self.error = Some(error);
                    break Extent::Broken;
                }
                Some(Ok(frame)) => self.keep(frame),
            }
            if self.read_len() > limit {
                break Extent::TooLarge;
            }
        };
        self.join();
        self.ended = !matches!(extent, Extent::TooLarge);
        Poll::Ready(match extent {
            Extent::Whole(_) => Extent::Whole(self.read.clone()),
            extent => extent,
        })
    }

    /// Makes `read` all that was read, also where reading was given up in the middle.
    fn join(&mut self) {
        if !self.joined.is_empty() {
            self.read = std::mem::take(&mut self.joined).freeze();
        }
    }

    fn keep(&mut self, frame: Frame<Bytes>) {
        match frame.into_data() {
            Ok(data) if self.read.is_empty() => self.read = data,
            Ok(data) => {
                if self.joined.is_empty() {
                    self.joined.extend_from_slice(&self.read);
                }
                self.joined.extend_from_slice(&data);
            }
            Err(frame) => self.trailers = frame.into_trailers().ok(),
        }
    }
}
