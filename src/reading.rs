//! Whether the layer reads bodies, as a type: what is read must be given on, in another type.

use std::future::{Ready, ready};

use bytes::Bytes;
use http_body::Body;

use crate::body::{Extent, ReadBody, ReplayedBody};

/// The layer leaves bodies alone, and the inner service gets them as they are.
///
/// ```
/// use tower_login_rate_limit::{HeadOnly, LoginRateLimitLayer};
///
/// // The same type.
/// fn same(layer: LoginRateLimitLayer) -> LoginRateLimitLayer<HeadOnly> {
///     layer
/// }
/// ```
#[derive(Clone, Copy, Debug)]
pub enum HeadOnly {}

/// The layer reads bodies, and the inner service gets a [`ReplayedBody`].
///
/// ```
/// use tower_login_rate_limit::{LoginRateLimitLayer, WithBody, extract::JsonField};
///
/// fn reading(layer: LoginRateLimitLayer) -> LoginRateLimitLayer<WithBody> {
///     layer.with_body_user(JsonField::new("username"))
/// }
/// ```
#[derive(Clone, Copy, Debug)]
pub enum WithBody {}

/// One of [`HeadOnly`] and [`WithBody`].
pub trait Reading<B> {
    /// The body that the inner service gets.
    type Body;
    /// Reads as much as was allowed.
    type Read: Future<Output = (Self::Body, Extent)>;

    /// Reads up to so many bytes.
    fn read(body: B, most: usize) -> Self::Read;

    /// Reads nothing.
    fn pass(body: B) -> Self::Body;
}

impl<B> Reading<B> for HeadOnly {
    type Body = B;
    type Read = Ready<(B, Extent)>;

    fn read(body: B, _: usize) -> Self::Read {
        ready((body, Extent::Unread))
    }

    fn pass(body: B) -> B {
        body
    }
}

impl<B: Body<Data = Bytes> + Unpin> Reading<B> for WithBody {
    type Body = ReplayedBody<B>;
    type Read = ReadBody<B>;

    fn read(body: B, most: usize) -> Self::Read {
        ReadBody::new(body, most)
    }

    fn pass(body: B) -> Self::Body {
        ReplayedBody::unread(body)
    }
}
