//! The service that the layer produces.

use std::{
    fmt,
    marker::PhantomData,
    sync::Arc,
    task::{Context, Poll},
};

use http::{Request, Response};
use tower_service::Service;

use super::{
    Config, HeadOnly, ResponseBody, ResponseFuture,
    decision::{Decision, Step, Waiting},
    mode::{Inner, Mode, Passes},
};

/// A service behind a [`LoginRateLimitLayer`](crate::LoginRateLimitLayer).
///
/// Its errors are the inner service's: a denial is a response.
pub struct LoginRateLimit<S, M = HeadOnly> {
    inner: S,
    config: Arc<Config>,
    mode: PhantomData<fn() -> M>,
}

impl<S, M> LoginRateLimit<S, M> {
    pub(super) const fn new(inner: S, config: Arc<Config>) -> Self {
        Self {
            inner,
            config,
            mode: PhantomData,
        }
    }

    /// A reference to the inner service.
    pub const fn get_ref(&self) -> &S {
        &self.inner
    }

    /// A mutable reference to the inner service.
    pub const fn get_mut(&mut self) -> &mut S {
        &mut self.inner
    }

    /// Consumes the service and returns the inner one.
    pub fn into_inner(self) -> S {
        self.inner
    }
}

impl<S, M, B> Service<Request<B>> for LoginRateLimit<S, M>
where
    M: Mode<B> + Passes<S::Error>,
    S: Inner<M::Body>,
{
    type Response = Response<ResponseBody<S::ResponseBody>>;
    type Error = S::Error;
    type Future = ResponseFuture<S, M, B>;

    fn poll_ready(&mut self, cx: &mut Context<'_>) -> Poll<Result<(), S::Error>> {
        self.inner.poll_ready(cx)
    }

    fn call(&mut self, request: Request<B>) -> Self::Future {
        let (mut parts, body) = request.into_parts();
        let body = M::hold(body);
        if !self.config.counts(&parts) {
            let request = Request::from_parts(parts, M::release(body));
            return ResponseFuture::uncounted(self.inner.call(request));
        }
        match self.config.begin(&mut parts) {
            Step::Decided(decision) => {
                // A denied request never reaches the ready instance, which may hold a permit: give it back.
                if let Decision::Deny(_) = decision {
                    self.inner = self.inner.clone();
                }
                ResponseFuture::decided(decision, &mut self.inner, parts, body)
            }
            Step::Wait(wait) => {
                // The instance that is ready has to be the one that is called, or a clone that becomes ready.
                let clone = self.inner.clone();
                let mut service = std::mem::replace(&mut self.inner, clone);
                let is_ready = !wait.releases_service();
                if !is_ready {
                    service = self.inner.clone();
                }
                ResponseFuture::waiting(Waiting {
                    service,
                    is_ready,
                    config: Arc::clone(&self.config),
                    parts,
                    body,
                    wait,
                })
            }
        }
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
