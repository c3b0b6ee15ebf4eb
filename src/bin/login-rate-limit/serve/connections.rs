//! Connections: how many there are, and how long a client may hold one without a request.
//!
//! `axum::serve` waits for the head of a request for as long as the client likes.

use std::{
    collections::HashMap,
    convert::Infallible,
    io,
    net::SocketAddr,
    pin::Pin,
    sync::{
        Arc, Mutex, MutexGuard, PoisonError,
        atomic::{AtomicBool, AtomicU64, Ordering::Relaxed},
    },
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
    sync::{Notify, OwnedSemaphorePermit, Semaphore, oneshot},
    time::{Instant, sleep, sleep_until, timeout},
};
use tower_service::Service;

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
    /// not read. Each part that is received or sent restarts it.
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
    let held = Held::new(bounds.maximum);
    let connections = GracefulShutdown::new();
    let mut builder = auto::Builder::new(TokioExecutor::new());
    builder.http1().max_buf_size(MAX_HEAD);
    // A peer that is gone without a word does not answer pings.
    (builder.http2().timer(TokioTimer::new())).keep_alive_interval(bounds.idle);
    let mut failures = Failures::default();
    loop {
        let accept = async {
            let (stream, peer) = accept(&listener, &mut failures).await;
            (stream, peer, held.acquire().await)
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
        let connection = builder.serve_connection(TokioIo::new(stream), service);
        let connection = connections.watch(connection.into_owned());
        let place = held.insert(&activity, permit);
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
            Err(error) => {
                failures.log(&error);
                sleep(AFTER_ERROR).await;
            }
        }
    }
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

/// The connections that are open.
struct Held {
    permits: Arc<Semaphore>,
    places: Arc<Mutex<HashMap<u64, Waiting>>>,
    next: AtomicU64,
}

struct Waiting {
    activity: Arc<Mutex<Activity>>,
    replaced: Arc<Notify>,
}

/// The place of a connection, free again when it is dropped.
struct Place {
    id: u64,
    places: Arc<Mutex<HashMap<u64, Waiting>>>,
    /// Notified when another connection takes it.
    replaced: Arc<Notify>,
    _permit: OwnedSemaphorePermit,
}

impl Held {
    fn new(maximum: usize) -> Self {
        Self {
            permits: Arc::new(Semaphore::new(maximum)),
            places: Arc::default(),
            next: AtomicU64::new(0),
        }
    }

    /// A permit for one more. At the maximum, the connection is closed that has waited longest for its client; if the
    /// server works on requests of all of them, this waits.
    async fn acquire(&self) -> OwnedSemaphorePermit {
        loop {
            if let Ok(permit) = Arc::clone(&self.permits).try_acquire_owned() {
                return permit;
            }
            self.replace_one();
            let permit = Arc::clone(&self.permits).acquire_owned();
            if let Ok(Ok(permit)) = timeout(AFTER_ERROR, permit).await {
                return permit;
            }
        }
    }

    fn replace_one(&self) {
        let mut places = lock(&self.places);
        let waiting = places.iter().filter_map(|(id, waiting)| {
            let activity = lock(&waiting.activity);
            (activity.working == 0).then_some((activity.since, *id))
        });
        let longest = waiting.min().map(|(_, id)| id);
        if let Some(waiting) = longest.and_then(|id| places.remove(&id)) {
            waiting.replaced.notify_one();
        }
    }

    fn insert(&self, activity: &Arc<Mutex<Activity>>, permit: OwnedSemaphorePermit) -> Place {
        let id = self.next.fetch_add(1, Relaxed);
        let replaced = Arc::new(Notify::new());
        let waiting = Waiting {
            activity: Arc::clone(activity),
            replaced: Arc::clone(&replaced),
        };
        lock(&self.places).insert(id, waiting);
        Place {
            id,
            places: Arc::clone(&self.places),
            replaced,
            _permit: permit,
        }
    }
}

impl Drop for Place {
    fn drop(&mut self) {
        lock(&self.places).remove(&self.id);
    }
}

/// What a connection waits for: the server, if that works on a request, or else the client.
struct Activity {
    /// How many requests the server works on.
    working: usize,
    /// When that has changed, or something was received or sent, for the last time.
    since: Instant,
}

impl Activity {
    fn new() -> Arc<Mutex<Self>> {
        Arc::new(Mutex::new(Self {
            working: 0,
            since: Instant::now(),
        }))
    }
}

fn lock<T>(mutex: &Mutex<T>) -> MutexGuard<'_, T> {
    mutex.lock().unwrap_or_else(PoisonError::into_inner)
}

/// Returns when the client has been waited for this long.
async fn idle(activity: &Mutex<Activity>, limit: Duration) {
    loop {
        let now = Instant::now();
        let end = {
            let activity = lock(activity);
            let since = if activity.working > 0 {
                now
            } else {
                activity.since
            };
            since + limit
        };
        if end <= now {
            return;
        }
        sleep_until(end).await;
    }
}

/// Whose turn it is with a request. A client that neither sends the rest of its request nor takes its answer must not hold
/// the connection.
struct Turn {
    activity: Arc<Mutex<Activity>>,
    is_servers: AtomicBool,
}

impl Turn {
    /// The server's.
    fn new(activity: &Arc<Mutex<Activity>>) -> Arc<Self> {
        let turn = Self {
            activity: Arc::clone(activity),
            is_servers: AtomicBool::new(false),
        };
        turn.set(true);
        Arc::new(turn)
    }

    /// Restarts the clock too.
    fn set(&self, is_servers: bool) {
        let mut activity = lock(&self.activity);
        activity.since = Instant::now();
        match (self.is_servers.swap(is_servers, Relaxed), is_servers) {
            (false, true) => activity.working += 1,
            (true, false) => activity.working -= 1,
            _ => {}
        }
    }
}

impl Drop for Turn {
    fn drop(&mut self) {
        self.set(false);
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
        let mut request = request.map(|body| Exchanged {
            body,
            turn: Arc::clone(&turn),
            direction: Direction::Received,
        });
        request.extensions_mut().insert(ConnectInfo(self.peer));
        let response = timeout(self.timeout, self.router.call(request));
        Box::pin(async move {
            let response = match response.await {
                Ok(Ok(response)) => response,
                Err(_) => too_slow(),
            };
            turn.set(false);
            Ok(response.map(|body| {
                Body::new(Exchanged {
                    body,
                    turn,
                    direction: Direction::Sent,
                })
            }))
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

#[derive(Clone, Copy, PartialEq, Eq)]
enum Direction {
    /// The body of a request. While it has no frame, the client is waited for.
    Received,
    /// The body of an answer. While it has no frame, the server is waited for, as between two events of a stream; once
    /// it has one, the client is, until the next one is asked for.
    Sent,
}

pin_project! {
    /// A body that knows whose turn it is.
    struct Exchanged<B> {
        #[pin]
        body: B,
        turn: Arc<Turn>,
        direction: Direction,
    }
}

impl<B: http_body::Body> http_body::Body for Exchanged<B> {
    type Data = B::Data;
    type Error = B::Error;

    fn poll_frame(
        self: Pin<&mut Self>,
        context: &mut Context<'_>,
    ) -> Poll<Option<Result<http_body::Frame<B::Data>, B::Error>>> {
        let this = self.project();
        let frame = this.body.poll_frame(context);
        let is_received = *this.direction == Direction::Received;
        this.turn.set(frame.is_ready() == is_received);
        frame
    }

    fn is_end_stream(&self) -> bool {
        self.body.is_end_stream()
    }

    fn size_hint(&self) -> http_body::SizeHint {
        self.body.size_hint()
    }
}
