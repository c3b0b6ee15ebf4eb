//! Connections: how many there are, and how long a client may hold one without a request.
//!
//! `axum::serve` waits for the head of a request for as long as the client likes.

use std::{
    convert::Infallible,
    net::SocketAddr,
    pin::Pin,
    sync::Arc,
    task::{Context, Poll},
    time::Duration,
};

use axum::{
    Router,
    body::{Body, Bytes},
    extract::{ConnectInfo, Request},
    http::{StatusCode, header},
    response::{IntoResponse, Response},
};
use hyper_util::{
    rt::{TokioExecutor, TokioIo, TokioTimer},
    server::{conn::auto, graceful::GracefulShutdown},
    service::TowerToHyperService,
};
use pin_project_lite::pin_project;
use serde_json::json;
use tokio::{
    net::{TcpListener, TcpStream},
    sync::{OwnedSemaphorePermit, Semaphore, oneshot, watch},
    time::{sleep, timeout},
};
use tower_service::Service;

/// How long to wait after the system has refused a connection, as when too many files are open.
const AFTER_ERROR: Duration = Duration::from_millis(100);

/// What clients may hold.
#[derive(Clone, Copy, Debug)]
pub(super) struct Bounds {
    /// How many connections are accepted. Others wait until one ends.
    pub(super) maximum: usize,
    /// How long a connection is kept on which no request is under way: none was sent, its head is incomplete, or all
    /// are answered.
    pub(super) idle: Duration,
    /// How long it may take until a request is answered, its body included.
    pub(super) request: Duration,
}

impl Default for Bounds {
    fn default() -> Self {
        Self {
            maximum: 1_000,
            idle: Duration::from_secs(60),
            request: Duration::from_secs(60),
        }
    }
}

/// Serves until `stopped` ends, then until open requests are answered.
pub(super) async fn serve(
    listener: TcpListener,
    router: Router,
    bounds: Bounds,
    mut stopped: oneshot::Receiver<Infallible>,
) {
    let permits = Arc::new(Semaphore::new(bounds.maximum));
    let connections = GracefulShutdown::new();
    let mut builder = auto::Builder::new(TokioExecutor::new());
    // A peer that is gone without a word does not answer pings.
    (builder.http2().timer(TokioTimer::new())).keep_alive_interval(bounds.idle);
    loop {
        let (stream, peer, permit) = tokio::select! {
            _ = &mut stopped => break,
            accepted = accept(&listener, &permits) => accepted,
        };
        let (open, mut requests) = watch::channel(0);
        let service = Requests {
            router: router.clone(),
            peer,
            open: Arc::new(open),
            timeout: bounds.request,
        };
        let service = TowerToHyperService::new(service);
        let connection = builder.serve_connection(TokioIo::new(stream), service);
        let connection = connections.watch(connection.into_owned());
        tokio::spawn(async move {
            let _permit = permit;
            tokio::select! {
                // Why a client has gone away is of no interest.
                _ = connection => {}
                () = idle(&mut requests, bounds.idle) => {}
            }
        });
    }
    drop(listener);
    connections.shutdown().await;
}

async fn accept(
    listener: &TcpListener,
    permits: &Arc<Semaphore>,
) -> (TcpStream, SocketAddr, OwnedSemaphorePermit) {
    loop {
        let Ok(permit) = Arc::clone(permits).acquire_owned().await else {
            // It is never closed.
            return std::future::pending().await;
        };
        match listener.accept().await {
            Ok((stream, peer)) => {
                let _ = stream.set_nodelay(true);
                return (stream, peer, permit);
            }
            Err(error) => {
                tracing::warn!(%error, "a connection can't be accepted");
                sleep(AFTER_ERROR).await;
            }
        }
    }
}

/// Returns when no request has been under way for this long.
async fn idle(requests: &mut watch::Receiver<usize>, limit: Duration) {
    loop {
        let is_busy = *requests.borrow_and_update() > 0;
        let changed = requests.changed();
        let changed = if is_busy {
            Ok(changed.await)
        } else {
            timeout(limit, changed).await
        };
        if !matches!(changed, Ok(Ok(()))) {
            return;
        }
    }
}

/// The requests of one connection.
#[derive(Clone)]
struct Requests {
    router: Router,
    peer: SocketAddr,
    open: Arc<watch::Sender<usize>>,
    timeout: Duration,
}

impl<B> Service<Request<B>> for Requests
where
    B: http_body::Body<Data = Bytes, Error: Into<axum::BoxError>> + Send + 'static,
{
    type Response = Response;
    type Error = Infallible;
    type Future = Pin<Box<dyn Future<Output = Result<Response, Infallible>> + Send>>;

    fn poll_ready(&mut self, _: &mut Context<'_>) -> Poll<Result<(), Infallible>> {
        Poll::Ready(Ok(()))
    }

    fn call(&mut self, mut request: Request<B>) -> Self::Future {
        let open = Open::new(&self.open);
        request.extensions_mut().insert(ConnectInfo(self.peer));
        let response = timeout(self.timeout, self.router.call(request));
        Box::pin(async move {
            let response = match response.await {
                Ok(Ok(response)) => response,
                Err(_) => too_slow(),
            };
            Ok(response.map(|body| Body::new(Answer { body, _open: open })))
        })
    }
}

fn too_slow() -> Response {
    let status = StatusCode::REQUEST_TIMEOUT;
    let problem = json!({
        "type": "about:blank",
        "title": status.canonical_reason(),
        "status": status.as_u16(),
        "detail": "the request has taken too long: nothing is known to be done, repeat it",
    });
    let headers = [
        (header::CONTENT_TYPE, "application/problem+json"),
        (header::CONNECTION, "close"),
    ];
    (status, headers, problem.to_string()).into_response()
}

/// A request under way.
struct Open(Arc<watch::Sender<usize>>);

impl Open {
    fn new(open: &Arc<watch::Sender<usize>>) -> Self {
        open.send_modify(|open| *open += 1);
        Self(Arc::clone(open))
    }
}

impl Drop for Open {
    fn drop(&mut self) {
        self.0.send_modify(|open| *open -= 1);
    }
}

pin_project! {
    /// The body of an answer. Its request is under way until it is sent: streams have no end.
    struct Answer {
        #[pin]
        body: Body,
        _open: Open,
    }
}

impl http_body::Body for Answer {
    type Data = Bytes;
    type Error = axum::Error;

    fn poll_frame(
        self: Pin<&mut Self>,
        context: &mut Context<'_>,
    ) -> Poll<Option<Result<http_body::Frame<Bytes>, axum::Error>>> {
        self.project().body.poll_frame(context)
    }

    fn is_end_stream(&self) -> bool {
        self.body.is_end_stream()
    }

    fn size_hint(&self) -> http_body::SizeHint {
        self.body.size_hint()
    }
}
