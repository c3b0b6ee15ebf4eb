//! Bodies on their way through the layer.

use std::{
    fmt,
    pin::Pin,
    task::{Context, Poll, ready},
};

use bytes::{Bytes, BytesMut};
use http::HeaderMap;
use http_body::{Body, Frame, SizeHint};
use pin_project_lite::pin_project;

pin_project! {
    /// The body of a response: the inner service's, or that of a refusal.
    ///
    /// ```
    /// use http_body::Body;
    /// use tower_login_rate_limit::ResponseBody;
    ///
    /// let empty: ResponseBody<String> = ResponseBody::default();
    /// assert!(empty.is_end_stream());
    /// ```
    #[derive(Debug)]
    pub struct ResponseBody<B> {
        #[pin]
        kind: Kind<B>,
    }
}

pin_project! {
    #[project = KindProjection]
    #[derive(Debug)]
    enum Kind<B> {
        Inner { #[pin] body: B },
        Refusal { body: Bytes },
    }
}

/// An empty one, as layers that answer themselves need it.
impl<B> Default for ResponseBody<B> {
    fn default() -> Self {
        Self::refusal(Bytes::new())
    }
}

impl<B> ResponseBody<B> {
    pub(crate) const fn inner(body: B) -> Self {
        Self {
            kind: Kind::Inner { body },
        }
    }

    pub(crate) const fn refusal(body: Bytes) -> Self {
        Self {
            kind: Kind::Refusal { body },
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
        match self.project().kind.project() {
            KindProjection::Inner { body } => body.poll_frame(cx),
            KindProjection::Refusal { body } if body.is_empty() => Poll::Ready(None),
            KindProjection::Refusal { body } => {
                Poll::Ready(Some(Ok(Frame::data(std::mem::take(body)))))
            }
        }
    }

    fn is_end_stream(&self) -> bool {
        match &self.kind {
            Kind::Inner { body } => body.is_end_stream(),
            Kind::Refusal { body } => body.is_empty(),
        }
    }

    fn size_hint(&self) -> SizeHint {
        match &self.kind {
            Kind::Inner { body } => body.size_hint(),
            Kind::Refusal { body } => SizeHint::with_exact(body.len() as u64),
        }
    }
}

/// A request's body that the layer has read the beginning of, given on from its first byte.
///
/// ```
/// use tower_login_rate_limit::ReplayedBody;
///
/// // What a handler of plain hyper behind a layer that reads bodies takes.
/// async fn log_in(request: http::Request<ReplayedBody<hyper::body::Incoming>>) {}
/// ```
pub struct ReplayedBody<B: Body> {
    read: Bytes,
    trailers: Option<HeaderMap>,
    error: Option<B::Error>,
    ended: bool,
    rest: B,
}

// Nothing in it is pinned but the rest, and that is pinned only if it may move all the same.
impl<B: Body + Unpin> Unpin for ReplayedBody<B> {}

impl<B: Body<Data = Bytes> + Unpin> Body for ReplayedBody<B> {
    type Data = Bytes;
    type Error = B::Error;

    fn poll_frame(
        mut self: Pin<&mut Self>,
        cx: &mut Context<'_>,
    ) -> Poll<Option<Result<Frame<Bytes>, B::Error>>> {
        if !self.read.is_empty() {
            return Poll::Ready(Some(Ok(Frame::data(std::mem::take(&mut self.read)))));
        }
        if let Some(trailers) = self.trailers.take() {
            return Poll::Ready(Some(Ok(Frame::trailers(trailers))));
        }
        if let Some(error) = self.error.take() {
            return Poll::Ready(Some(Err(error)));
        }
        match self.ended {
            true => Poll::Ready(None),
            false => Pin::new(&mut self.rest).poll_frame(cx),
        }
    }

    fn is_end_stream(&self) -> bool {
        let kept = !self.read.is_empty() || self.trailers.is_some() || self.error.is_some();
        !kept && (self.ended || self.rest.is_end_stream())
    }

    fn size_hint(&self) -> SizeHint {
        let read = self.read.len() as u64;
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

impl<B: Body> fmt::Debug for ReplayedBody<B> {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("ReplayedBody")
            .field("read", &self.read.len())
            .finish_non_exhaustive()
    }
}

/// Reads a body up to a number of bytes.
pub struct ReadBody<B: Body> {
    body: Option<ReplayedBody<B>>,
    /// What came after the first frame.
    more: BytesMut,
    most: usize,
}

/// How much of a body could be read.
#[derive(Debug)]
pub enum Extent {
    /// Nothing was to be read.
    Unread,
    /// All of it.
    Whole(Bytes),
    /// There is more than was allowed.
    TooLarge,
    /// It broke off; the handler will find that out too.
    Broken,
}

impl<B: Body<Data = Bytes> + Unpin> ReplayedBody<B> {
    /// Nothing of it has been read.
    pub(crate) const fn unread(body: B) -> Self {
        Self {
            read: Bytes::new(),
            trailers: None,
            error: None,
            ended: false,
            rest: body,
        }
    }
}

impl<B: Body<Data = Bytes> + Unpin> ReadBody<B> {
    pub(crate) fn new(body: B, most: usize) -> Self {
        Self {
            body: Some(ReplayedBody::unread(body)),
            more: BytesMut::new(),
            most,
        }
    }

    fn poll_extent(&mut self, cx: &mut Context<'_>) -> Poll<Option<Extent>> {
        let Some(body) = &mut self.body else {
            return Poll::Ready(None);
        };
        // One that says beforehand that it is too large is not read at all.
        let most = self.most as u64;
        if body.size_hint().lower() > most {
            return Poll::Ready(Some(Extent::TooLarge));
        }
        loop {
            let extent = match ready!(Pin::new(&mut body.rest).poll_frame(cx)) {
                None => Extent::Whole(Bytes::new()),
                Some(Err(error)) => {
                    body.error = Some(error);
                    Extent::Broken
                }
                Some(Ok(frame)) => {
                    match frame.into_data() {
                        Ok(data) if body.read.is_empty() => body.read = data,
                        Ok(data) => {
                            if self.more.is_empty() {
                                self.more.extend_from_slice(&body.read);
                            }
                            self.more.extend_from_slice(&data);
                        }
                        Err(frame) => body.trailers = frame.into_trailers().ok(),
                    }
                    if self.more.len().max(body.read.len()) as u64 <= most {
                        continue;
                    }
                    Extent::TooLarge
                }
            };
            if !self.more.is_empty() {
                body.read = std::mem::take(&mut self.more).freeze();
            }
            return Poll::Ready(Some(match extent {
                Extent::Whole(_) => {
                    body.ended = true;
                    Extent::Whole(body.read.clone())
                }
                Extent::Broken => {
                    body.ended = true;
                    Extent::Broken
                }
                extent => extent,
            }));
        }
    }
}

impl<B: Body<Data = Bytes> + Unpin> Future for ReadBody<B> {
    type Output = (ReplayedBody<B>, Extent);

    fn poll(mut self: Pin<&mut Self>, cx: &mut Context<'_>) -> Poll<Self::Output> {
        let extent = ready!(self.poll_extent(cx));
        match (self.body.take(), extent) {
            (Some(body), Some(extent)) => Poll::Ready((body, extent)),
            _ => panic!("a body was asked for again after it had been read"),
        }
    }
}

impl<B: Body + Unpin> Unpin for ReadBody<B> {}

impl<B: Body> fmt::Debug for ReadBody<B> {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("ReadBody").finish_non_exhaustive()
    }
}
