//! The guarded service.

use std::{
    fmt,
    marker::PhantomData,
    sync::Arc,
    task::{Context, Poll},
};

use http::{Request, Response};
use tower_service::Service;

use crate::{
    ResponseFuture,
    body::ResponseBody,
    layer::Config,
    reading::{HeadOnly, Reading},
};

/// A service behind a [`LoginRateLimitLayer`](crate::LoginRateLimitLayer).
///
/// Its error is the inner service's: a refusal is a response.
///
/// ```
/// use tower_login_rate_limit::{LoginRateLimit, WithBody};
///
/// // An app can name its type and keep it.
/// struct App<S> {
///     login: LoginRateLimit<S>,
///     login_by_form: LoginRateLimit<S, WithBody>,
/// }
/// ```
pub struct LoginRateLimit<S, M = HeadOnly> {
    inner: S,
    config: Arc<Config>,
    mode: PhantomData<fn() -> M>,
}

impl<S, M> LoginRateLimit<S, M> {
    pub(crate) const fn new(inner: S, config: Arc<Config>) -> Self {
        Self {
            inner,
            config,
            mode: PhantomData,
        }
    }

    /// The inner service.
    pub const fn get_ref(&self) -> &S {
        &self.inner
    }

    /// The inner service.
    pub const fn get_mut(&mut self) -> &mut S {
        &mut self.inner
    }

    /// The inner service, without the guard.
    pub fn into_inner(self) -> S {
        self.inner
    }
}

impl<S, M, B, R> Service<Request<B>> for LoginRateLimit<S, M>
where
    M: Reading<B>,
    S: Service<Request<M::Body>, Response = Response<R>> + Clone,
{
    type Response = Response<ResponseBody<R>>;
    type Error = S::Error;
    type Future = ResponseFuture<S, M, B>;

    fn poll_ready(&mut self, cx: &mut Context<'_>) -> Poll<Result<(), S::Error>> {
        self.inner.poll_ready(cx)
    }

    fn call(&mut self, request: Request<B>) -> Self::Future {
        let (parts, body) = request.into_parts();
        if !self.config.counts(&parts) {
            let request = Request::from_parts(parts, M::pass(body));
            return ResponseFuture::uncounted(self.inner.call(request));
        }
        // The instance that is ready is the one to call; its clone may not be.
        let clone = self.inner.clone();
        let ready = std::mem::replace(&mut self.inner, clone);
        ResponseFuture::counted(Arc::clone(&self.config), ready, parts, body)
    }
}

impl<S: Clone, M> Clone for LoginRateLimit<S, M> {
    fn clone(&self) -> Self {
        Self::new(self.inner.clone(), Arc::clone(&self.config))
    }
}

impl<S: fmt::Debug, M> fmt::Debug for LoginRateLimit<S, M> {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("LoginRateLimit")
            .field("inner", &self.inner)
            .field("config", &self.config)
            .finish()
    }
}
