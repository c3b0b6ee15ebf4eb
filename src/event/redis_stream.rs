//! Events in a stream of Redis.

use std::{
    fmt, mem,
    sync::{
        Arc, Mutex, MutexGuard, PoisonError,
        atomic::{AtomicU64, Ordering},
    },
    thread,
    time::{Duration, Instant},
};

use redis::{Pipeline, RedisError};
use tokio::runtime::{Builder, Runtime};

use super::{Event, EventReader, Observe, fleet::Entries};
#[cfg(feature = "sealed")]
use crate::insight::Insight;
use crate::store::{
    StoreError, StoreErrorKind,
    redis::{AnyConnection, Certificates, Endpoint},
};

/// How many events are sent at a time.
const BATCH: usize = 256;
/// How long events wait for a Redis that is down, while others gather in the observer's queue.
const PATIENCE: Duration = Duration::from_secs(30);
const RETRY: Duration = Duration::from_millis(500);
/// How many streams there are in a cluster, so that not one server has all of it.
const SHARDS: usize = 4;
/// A stream that no event is added to ends after 30 days.
const EXPIRES_AFTER: u32 = 30 * 24 * 60 * 60;

/// Adds events to a capped stream in Redis, for consoles and for replays.
///
/// It has a connection of its own and sends events in batches. While Redis is down, events wait for 30 seconds and
/// are then lost and [counted](Self::lost). After a lost reply a batch is sent again, so an event can occur twice.
///
/// The stream is at `login:events`, or at another [key](RedisStreamBuilder::with_key). On a cluster it is divided
/// into four, `login:events:{0}` to `login:events:{3}`, which [`EventReader`] puts together. A Redis user needs
/// `+xadd +expire +xrange` and `~login:events*`; with an insight `+zadd +zremrangebyscore` too.
///
/// ```no_run
/// use std::sync::Arc;
/// use tower_login_rate_limit::event::RedisStream;
///
/// # async fn example() -> Result<(), Box<dyn std::error::Error>> {
/// let stream = Arc::new(RedisStream::open("redis://127.0.0.1:6379")?);
/// let observer = Arc::clone(&stream); // for the limiter
///
/// let mut reader = stream.reader();
/// for event in reader.read(100).await? {
///     println!("{}", event.to_json());
/// }
/// # Ok(()) }
/// ```
pub struct RedisStream {
    shared: Shared,
    writer: Mutex<Writer>,
    written: AtomicU64,
    lost: AtomicU64,
}

/// What the reader needs too.
#[derive(Clone)]
pub(super) struct Shared {
    pub(super) endpoint: Endpoint,
    pub(super) keys: Arc<[String]>,
    pub(super) entries: Entries,
    max_len: usize,
}

#[derive(Default)]
struct Writer {
    batch: Vec<Vec<(&'static str, Vec<u8>)>>,
    /// Of this observer alone, and made on its own thread: the app may have none, or stop its own first.
    runtime: Option<Runtime>,
    connection: Option<AnyConnection>,
    /// Since when Redis does not take events.
    down_since: Option<Instant>,
    next_key: usize,
}

impl RedisStream {
    /// The stream in the Redis at a URL, in the form of [`RedisStore::connect`](crate::store::RedisStore::connect).
    /// Connects when the first event is sent.
    ///
    /// # Errors
    ///
    /// The URL is invalid.
    pub fn open(url: impl AsRef<str>) -> Result<Self, StoreError> {
        Self::builder().open(url)
    }

    /// Starts a stream with settings of its own.
    pub fn builder() -> RedisStreamBuilder {
        RedisStreamBuilder::default()
    }

    /// Reads the stream, from its oldest event.
    #[must_use]
    pub fn reader(&self) -> EventReader {
        EventReader::new(self.shared.clone())
    }

    /// How many events were added.
    pub fn written(&self) -> u64 {
        self.written.load(Ordering::Relaxed)
    }

    /// How many events were lost because Redis did not take them.
    pub fn lost(&self) -> u64 {
        self.lost.load(Ordering::Relaxed)
    }

    fn lock(&self) -> MutexGuard<'_, Writer> {
        self.writer.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// Adds the events of a batch to one key, so that they are sent in one exchange on a cluster too.
    fn pipeline(&self, writer: &mut Writer) -> Pipeline {
        writer.next_key = (writer.next_key + 1) % self.shared.keys.len();
        let key = &self.shared.keys[writer.next_key];
        let mut pipeline = redis::pipe();
        for fields in &writer.batch {
            let add = pipeline.cmd("XADD").arg(key);
            add.arg("MAXLEN").arg("~").arg(self.shared.max_len);
            add.arg("*").arg(fields).ignore();
        }
        pipeline.cmd("EXPIRE").arg(key).arg(EXPIRES_AFTER).ignore();
        pipeline
    }

    /// Sends the batch until Redis takes it, or gives it up.
    fn send(&self, writer: &mut Writer) {
        if writer.batch.is_empty() {
            return;
        }
        let pipeline = self.pipeline(writer);
        let count = writer.batch.len() as u64;
        loop {
            let sent = writer.send(&self.shared.endpoint, &pipeline);
            if sent.is_ok() {
                writer.down_since = None;
                self.written.fetch_add(count, Ordering::Relaxed);
                break;
            }
            let down_since = *writer.down_since.get_or_insert_with(Instant::now);
            if down_since.elapsed() >= PATIENCE {
                self.lost.fetch_add(count, Ordering::Relaxed);
                break;
            }
            thread::sleep(RETRY);
        }
        writer.batch.clear();
    }
}

impl Writer {
    fn send(&mut self, endpoint: &Endpoint, pipeline: &Pipeline) -> Result<(), RedisError> {
        let runtime = match &mut self.runtime {
            Some(runtime) => runtime,
            none => none.insert(Builder::new_current_thread().enable_all().build()?),
        };
        let connection = &mut self.connection;
        runtime.block_on(async {
            // A server that was restarted has closed the connection, which shows when it is used.
            if let Some(open) = connection
                && open.send(pipeline).await.is_ok()
            {
                return Ok(());
            }
            *connection = None;
            let mut open = endpoint.connect().await?;
            open.send(pipeline).await?;
            *connection = Some(open);
            Ok(())
        })
    }
}

impl Observe for RedisStream {
    fn observe(&self, event: &Event) {
        let fields = self.shared.entries.write(event);
        let mut writer = self.lock();
        writer.batch.push(fields);
        if writer.batch.len() >= BATCH {
            self.send(&mut writer);
        }
    }

    fn flush(&self) {
        self.send(&mut self.lock());
    }
}

impl Drop for Writer {
    fn drop(&mut self) {
        // Dropping a runtime waits for its tasks, which is forbidden where this may happen: in another runtime.
        if let Some(runtime) = mem::take(&mut self.runtime) {
            runtime.shutdown_background();
        }
    }
}

impl fmt::Debug for RedisStream {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("RedisStream")
            .field("written", &self.written())
            .field("lost", &self.lost())
            .finish_non_exhaustive()
    }
}

/// Settings of a [`RedisStream`].
#[must_use = "a builder does nothing until it opens a stream"]
pub struct RedisStreamBuilder {
    key: String,
    max_len: usize,
    entries: Entries,
    certificates: Certificates,
}

impl Default for RedisStreamBuilder {
    fn default() -> Self {
        Self {
            key: "login:events".to_owned(),
            max_len: 100_000,
            entries: Entries::default(),
            certificates: Certificates::default(),
        }
    }
}

impl RedisStreamBuilder {
    /// Sets the key of the stream; `login:events` by default.
    pub fn with_key(mut self, key: impl Into<String>) -> Self {
        self.key = key.into();
        self
    }

    /// Sets how many events are kept, about; 100,000 by default, which take some 30 megabytes.
    pub const fn with_max_len(mut self, events: usize) -> Self {
        self.max_len = events;
        self
    }

    /// Lets the processes of a fleet [find signals and wrong blocks together](Insight#in-a-fleet). Give it the insight of
    /// the limiter.
    ///
    /// Beside an event is then an id of its user, sealed by the secret of the insight's
    /// [`UserHasher`](super::UserHasher): however users are shown, a process with the secret sees which events are about
    /// the same user, and any other reader of the stream does not.
    #[cfg(feature = "sealed")]
    pub fn with_insight(mut self, insight: Insight) -> Self {
        self.entries = Entries::of_fleet(insight);
        self
    }

    /// For a URL with TLS: trusts the certificate authorities in this PEM, and not the system's.
    #[cfg(feature = "tls")]
    pub fn with_root_certificates(mut self, pem: impl Into<Vec<u8>>) -> Self {
        self.certificates.roots = Some(pem.into());
        self
    }

    /// For a URL with TLS: presents this certificate to servers that ask for one. Certificate chain and private
    /// key are in PEM.
    #[cfg(feature = "tls")]
    pub fn with_client_certificate(
        mut self,
        certificate: impl Into<Vec<u8>>,
        key: impl Into<Vec<u8>>,
    ) -> Self {
        self.certificates.client = Some((certificate.into(), key.into()));
        self
    }

    /// The stream in the Redis at a URL. See [`RedisStream::open`].
    ///
    /// # Errors
    ///
    /// A setting or the URL is invalid.
    pub fn open(self, url: impl AsRef<str>) -> Result<RedisStream, StoreError> {
        if self.key.is_empty() || self.key.contains(['{', '}']) || self.max_len == 0 {
            return Err(StoreError::new(
                StoreErrorKind::Config,
                "a stream needs a key without braces and a length above zero",
            ));
        }
        let endpoint = Endpoint::from_url(url.as_ref(), self.certificates)?;
        let keys: Vec<_> = if endpoint.is_cluster() {
            let shards = 0..SHARDS;
            shards.map(|n| format!("{}:{{{n}}}", self.key)).collect()
        } else {
            vec![self.key]
        };
        let shared = Shared {
            max_len: self.max_len.div_ceil(keys.len()),
            keys: keys.into(),
            entries: self.entries,
            endpoint,
        };
        Ok(RedisStream {
            shared,
            writer: Mutex::default(),
            written: AtomicU64::new(0),
            lost: AtomicU64::new(0),
        })
    }
}

/// Without certificates.
impl fmt::Debug for RedisStreamBuilder {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("RedisStreamBuilder")
            .field("key", &self.key)
            .field("max_len", &self.max_len)
            .finish_non_exhaustive()
    }
}
