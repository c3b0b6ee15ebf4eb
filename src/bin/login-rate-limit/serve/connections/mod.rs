//! Connections: how many there are, and how long a client may hold one without a request.
//!
//! `axum::serve` waits for the head of a request for as long as the client likes.

mod activity;
mod places;

use std::{
    convert::Infallible,
    io,
    net::SocketAddr,
    pin::Pin,
    sync::{Arc, Mutex},
    task::{Context, Poll},
    time::Duration,
};

use axum::{
    Router,
    body::{Body, Bytes},
    extract::{ConnectInfo, Request},
    http::{HeaderValue, StatusCode, header},
    response::{IntoResponse, Response},
};
use hyper_util::{
    rt::{TokioExecutor, TokioIo, TokioTimer},
    server::{conn::auto, graceful::GracefulShutdown},
    service::TowerToHyperService,
};
use serde_json::json;
use tokio::{
    net::{TcpListener, TcpStream},
    sync::oneshot,
    time::{Instant, sleep, timeout},
};
use tower_service::Service;

use self::{
    activity::{Activity, Direction, Exchanged, Sending, Turn, idle},
    places::Places,
};

/// How long to wait after the system has refused a connection, as when too many files are open.
const AFTER_ERROR: Duration = Duration::from_millis(100);
/// How often that is logged at most.
const LOG_EVERY: Duration = Duration::from_secs(1);

/// How long the head of an HTTP/1 request may be, in bytes. An incomplete one is kept in memory.
const MAX_HEAD: usize = 64 * 1024;

/// What clients may hold.
#[derive(Clone, Copy, Debug)]
pub(super) struct Bounds {
    /// How many connections there are. One more takes the place of the one that has waited longest for its client.
    pub(super) maximum: usize,
    /// How long a connection is kept that waits for its client: no request was sent, one is incomplete, or an answer is
    /// not read. Each part that is received or sent restarts it, of a large answer every 16 KiB.
    pub(super) idle: Duration,
    /// How long it may take until a request is answered, its body included.
    pub(super) request: Duration,
}

impl Bounds {
    /// For metrics, which few clients read: these connections must not take the files that logins need.
    pub(super) fn for_metrics(self) -> Self {
        Self {
            maximum: self.maximum.min(16),
            ..self
        }
    }
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
    let places = Places::new(bounds.maximum);
    let connections = GracefulShutdown::new();
    let mut builder = auto::Builder::new(TokioExecutor::new());
    builder.http1().max_buf_size(MAX_HEAD);
    // A peer that is gone without having closed does not answer pings.
    (builder.http2().timer(TokioTimer::new())).keep_alive_interval(bounds.idle);
    let mut failures = Failures::default();
    loop {
        let accept = async {
            let (stream, peer) = accept(&listener, &mut failures).await;
            (stream, peer, places.acquire().await)
        };
        let (stream, peer, permit) = tokio::select! {
            _ = &mut stopped => break,
            accepted = accept => accepted,
        };
        let activity = Activity::new();
        let service = Requests {
            router: router.clone(),
            peer,
            activity: Arc::clone(&activity),
            timeout: bounds.request,
        };
        let service = TowerToHyperService::new(service);
        let stream = TokioIo::new(Sending::new(stream, &activity));
        let connection = builder.serve_connection(stream, service);
        let connection = connections.watch(connection.into_owned());
        let place = places.insert(&activity, permit);
        tokio::spawn(async move {
            tokio::select! {
                // Why a client has gone away is of no interest.
                _ = connection => {}
                () = idle(&activity, bounds.idle) => {}
                () = place.replaced.notified() => {}
            }
        });
    }
    drop(listener);
    connections.shutdown().await;
}

async fn accept(listener: &TcpListener, failures: &mut Failures) -> (TcpStream, SocketAddr) {
    loop {
        match listener.accept().await {
            Ok((stream, peer)) => {
                let _ = stream.set_nodelay(true);
                return (stream, peer);
            }
            // Of one connection, which the client has closed already. The next one can be accepted.
            Err(error) if is_of_client(&error) => {}
            Err(error) => {
                failures.log(&error);
                sleep(AFTER_ERROR).await;
            }
        }
    }
}

fn is_of_client(error: &io::Error) -> bool {
    use io::ErrorKind::{ConnectionAborted, ConnectionRefused, ConnectionReset};
    matches!(
        error.kind(),
        ConnectionAborted | ConnectionRefused | ConnectionReset
    )
}

/// Connections that could not be accepted.
#[derive(Default)]
struct Failures {
    logged: Option<Instant>,
}

impl Failures {
    fn log(&mut self, error: &io::Error) {
        let now = Instant::now();
        if self.logged.is_none_or(|logged| now - logged >= LOG_EVERY) {
            self.logged = Some(now);
            tracing::warn!(%error, "a connection can't be accepted");
        }
    }
}

/// The requests of one connection.
#[derive(Clone)]
struct Requests {
    router: Router,
    peer: SocketAddr,
    activity: Arc<Mutex<Activity>>,
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

    fn call(&mut self, request: Request<B>) -> Self::Future {
        let turn = Turn::new(&self.activity);
        let received = Arc::clone(&turn);
        let mut request = request.map(|body| Exchanged::new(body, received, Direction::Received));
        request.extensions_mut().insert(ConnectInfo(self.peer));
        let response = timeout(self.timeout, self.router.call(request));
        Box::pin(async move {
            let response = match response.await {
                Ok(Ok(response)) => response,
                Err(_) if turn.is_servers() => too_slow(StatusCode::SERVICE_UNAVAILABLE),
                Err(_) => too_slow(StatusCode::REQUEST_TIMEOUT),
            };
            turn.set(false);
            Ok(response.map(|body| Body::new(Exchanged::new(body, turn, Direction::Sent))))
        })
    }
}

/// For a request that has taken too long: 408 if it was not complete, 503 if the server was slow.
fn too_slow(status: StatusCode) -> Response {
    let problem = json!({
        "type": "about:blank",
        "title": status.canonical_reason(),
        "status": status.as_u16(),
        "detail": "the request has taken too long: whether anything was done is unknown, repeat it",
    });
    let headers = [
        (header::CONTENT_TYPE, "application/problem+json"),
        (header::CONNECTION, "close"),
    ];
    let mut response = (status, headers, problem.to_string()).into_response();
    if status == StatusCode::SERVICE_UNAVAILABLE {
        let soon = HeaderValue::from_static("1");
        response.headers_mut().insert(header::RETRY_AFTER, soon);
    }
    response
}
