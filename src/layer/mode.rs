//! What the layer does with the bodies of requests, as types: what was read has to be replayed, in a body of
//! another type.

use std::task::{Context, Poll};

use bytes::Bytes;
use http::{Request, Response};
use http_body::Body;
use tower_service::Service;

use super::body::{Extent, ReplayedBody};

/// The layer does not read bodies, and the inner service receives them unchanged.
#[derive(Clone, Copy, Debug)]
pub enum HeadOnly {}

/// The layer reads bodies, and the inner service receives a [`ReplayedBody`].
#[derive(Clone, Copy, Debug)]
pub enum WithBody {}

/// The inner service receives an `axum::body::Body`, whether the layer has read it or not, and has no errors, as
/// all services in axum.
#[cfg(feature = "axum")]
#[derive(Clone, Copy, Debug)]
pub enum ForAxum {}

/// Whether the layer reads bodies: [`HeadOnly`], [`WithBody`] or `ForAxum`.
pub trait Mode<B> {
    /// The body while the layer holds it.
    type Held;

    /// The body that the inner service receives.
    type Body;

    /// Takes the body of a request.
    fn hold(body: B) -> Self::Held;

    /// Reads the body, up to `limit` bytes.
    fn poll_read(held: &mut Self::Held, limit: usize, cx: &mut Context<'_>) -> Poll<Extent>;

    /// Hands the body on.
    fn release(held: Self::Held) -> Self::Body;
}

impl<B> Mode<B> for HeadOnly {
    type Held = B;
    type Body = B;

    #[inline]
    fn hold(body: B) -> B {
        body
    }

    fn poll_read(_: &mut B, _: usize, _: &mut Context<'_>) -> Poll<Extent> {
        Poll::Ready(Extent::Unread)
    }

    #[inline]
    fn release(body: B) -> B {
        body
    }
}

impl<B: Body<Data = Bytes> + Unpin> Mode<B> for WithBody {
    type Held = ReplayedBody<B>;
    type Body = ReplayedBody<B>;

    fn hold(body: B) -> ReplayedBody<B> {
        ReplayedBody::new(body)
    }

    fn poll_read(body: &mut ReplayedBody<B>, limit: usize, cx: &mut Context<'_>) -> Poll<Extent> {
        body.poll_read(limit as u64, cx)
    }

    fn release(body: ReplayedBody<B>) -> ReplayedBody<B> {
        body
    }
}

#[cfg(feature = "axum")]
impl<B> Mode<B> for ForAxum
where
    B: Body<Data = Bytes, Error: Into<axum::BoxError> + Send> + Send + Unpin + 'static,
{
    type Held = ReplayedBody<B>;
    type Body = axum::body::Body;

    fn hold(body: B) -> ReplayedBody<B> {
        ReplayedBody::new(body)
    }

    fn poll_read(body: &mut ReplayedBody<B>, limit: usize, cx: &mut Context<'_>) -> Poll<Extent> {
        body.poll_read(limit as u64, cx)
    }

    fn release(body: ReplayedBody<B>) -> axum::body::Body {
        // A body of axum that was not read is passed as it is, without another allocation.
        if body.is_unread() {
            return axum::body::Body::new(body.into_rest());
        }
        axum::body::Body::new(body)
    }
}

/// The errors that services behind a layer of this mode may have. There is one in axum; since it is the only one,
/// the compiler finds it where axum leaves it open, between two layers of one method router.
pub trait Passes<E> {}

impl<E> Passes<E> for HeadOnly {}
impl<E> Passes<E> for WithBody {}
#[cfg(feature = "axum")]
impl Passes<std::convert::Infallible> for ForAxum {}

/// A service that the layer can call. A trait of our own, since the compiler's error for it names the remedy.
#[diagnostic::on_unimplemented(
    message = "the login layer hands on a `Request<{B}>`, which `{Self}` does not take",
    label = "no cloneable `Service` of `Request<{B}>`",
    note = "a layer with `.with_body_user(…)` hands on a `ReplayedBody`: for `axum::middleware::from_fn` and others \
            that take axum's own body, end the layer with `.for_axum()`",
    note = "a service that is not `Clone` can be wrapped in `tower::buffer::Buffer`"
)]
pub trait Inner<B>: Clone {
    /// The body of its responses.
    type ResponseBody;
    /// Its errors.
    type Error;
    /// The future of a response.
    type Future: Future<Output = Result<Response<Self::ResponseBody>, Self::Error>>;

    /// See [`Service::poll_ready`].
    fn poll_ready(&mut self, cx: &mut Context<'_>) -> Poll<Result<(), Self::Error>>;

    /// See [`Service::call`].
    fn call(&mut self, request: Request<B>) -> Self::Future;
}

#[diagnostic::do_not_recommend]
impl<S, B, R> Inner<B> for S
where
    S: Service<Request<B>, Response = Response<R>> + Clone,
{
    type ResponseBody = R;
    type Error = S::Error;
    type Future = S::Future;

    #[inline]
    fn poll_ready(&mut self, cx: &mut Context<'_>) -> Poll<Result<(), S::Error>> {
        Service::poll_ready(self, cx)
    }

    #[inline]
    fn call(&mut self, request: Request<B>) -> S::Future {
        Service::call(self, request)
    }
}
