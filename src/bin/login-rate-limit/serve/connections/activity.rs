//! What a connection waits for, and since when.

use std::{
    io::{self, IoSlice},
    pin::Pin,
    sync::{
        Arc, Mutex, MutexGuard, PoisonError,
        atomic::{AtomicBool, Ordering::Relaxed},
    },
    task::{Context, Poll, ready},
    time::Duration,
};

use pin_project_lite::pin_project;
use tokio::{
    io::{AsyncRead, AsyncWrite, ReadBuf},
    net::TcpStream,
    time::{Instant, sleep_until},
};

/// How much has to be sent so that it shows that a client takes its answer: as much as a frame of HTTP/2.
const PROGRESS: usize = 16 * 1024;

/// What a connection waits for: the server, if that works on a request, or else the client.
pub(super) struct Activity {
    /// How many requests the server works on.
    pub(super) working: usize,
    /// When that has changed, or something was received or sent, for the last time.
    pub(super) since: Instant,
    /// How many bytes were sent then or later.
    sent: usize,
}

impl Activity {
    pub(super) fn new() -> Arc<Mutex<Self>> {
        Arc::new(Mutex::new(Self {
            working: 0,
            since: Instant::now(),
            sent: 0,
        }))
    }

    /// Of a large answer, which is handed over at once, only this shows that the client takes it. Acknowledgements and
    /// pings of HTTP/2 are sent too, and are no sign of that: they are short.
    fn sent(&mut self, bytes: usize) {
        self.sent += bytes;
        if self.sent >= PROGRESS {
            (self.since, self.sent) = (Instant::now(), 0);
        }
    }
}

pub(super) fn lock<T>(mutex: &Mutex<T>) -> MutexGuard<'_, T> {
    mutex.lock().unwrap_or_else(PoisonError::into_inner)
}

/// Returns when the client has been waited for this long.
pub(super) async fn idle(activity: &Mutex<Activity>, limit: Duration) {
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
pub(super) struct Turn {
    activity: Arc<Mutex<Activity>>,
    is_servers: AtomicBool,
}

impl Turn {
    /// The server's.
    pub(super) fn new(activity: &Arc<Mutex<Activity>>) -> Arc<Self> {
        let turn = Self {
            activity: Arc::clone(activity),
            is_servers: AtomicBool::new(false),
        };
        turn.set(true);
        Arc::new(turn)
    }

    pub(super) fn is_servers(&self) -> bool {
        self.is_servers.load(Relaxed)
    }

    /// Restarts the clock too.
    pub(super) fn set(&self, is_servers: bool) {
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

#[derive(Clone, Copy, PartialEq, Eq)]
pub(super) enum Direction {
    /// The body of a request. While it has no frame, the client is waited for.
    Received,
    /// The body of an answer. While it has no frame, the server is waited for, as between two events of a stream; once
    /// it has one, the client is, until the next one is asked for.
    Sent,
}

pin_project! {
    /// A body that knows whose turn it is.
    pub(super) struct Exchanged<B> {
        #[pin]
        body: B,
        turn: Arc<Turn>,
        direction: Direction,
    }
}

impl<B> Exchanged<B> {
    pub(super) const fn new(body: B, turn: Arc<Turn>, direction: Direction) -> Self {
        Self {
            body,
            turn,
            direction,
        }
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

pin_project! {
    /// The socket of a connection, which notes what is sent.
    pub(super) struct Sending {
        #[pin]
        stream: TcpStream,
        activity: Arc<Mutex<Activity>>,
    }
}

impl Sending {
    pub(super) fn new(stream: TcpStream, activity: &Arc<Mutex<Activity>>) -> Self {
        Self {
            stream,
            activity: Arc::clone(activity),
        }
    }
}

impl AsyncRead for Sending {
    fn poll_read(
        self: Pin<&mut Self>,
        context: &mut Context<'_>,
        buffer: &mut ReadBuf<'_>,
    ) -> Poll<io::Result<()>> {
        self.project().stream.poll_read(context, buffer)
    }
}

impl AsyncWrite for Sending {
    fn poll_write(
        self: Pin<&mut Self>,
        context: &mut Context<'_>,
        bytes: &[u8],
    ) -> Poll<io::Result<usize>> {
        self.poll_write_vectored(context, &[IoSlice::new(bytes)])
    }

    fn poll_write_vectored(
        self: Pin<&mut Self>,
        context: &mut Context<'_>,
        parts: &[IoSlice<'_>],
    ) -> Poll<io::Result<usize>> {
        let this = self.project();
        let sent = ready!(this.stream.poll_write_vectored(context, parts))?;
        lock(this.activity).sent(sent);
        Poll::Ready(Ok(sent))
    }

    fn is_write_vectored(&self) -> bool {
        self.stream.is_write_vectored()
    }

    fn poll_flush(self: Pin<&mut Self>, context: &mut Context<'_>) -> Poll<io::Result<()>> {
        self.project().stream.poll_flush(context)
    }

    fn poll_shutdown(self: Pin<&mut Self>, context: &mut Context<'_>) -> Poll<io::Result<()>> {
        self.project().stream.poll_shutdown(context)
    }
}
