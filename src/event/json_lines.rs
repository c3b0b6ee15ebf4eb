//! Events in a file.

use std::{
    fs::{self, File, Metadata, OpenOptions},
    io::{self, Write},
    mem,
    path::{Path, PathBuf},
    sync::{Mutex, MutexGuard, PoisonError},
};

use super::{Event, Observe};

/// How much is buffered while events keep coming.
const BUFFER: usize = 64 * 1024;

/// Appends events to a file, one line of JSON each.
///
/// Lines are written when no more events are waiting, a few milliseconds after they happened. Rotation is left to
/// the system: a file that was renamed or removed is replaced by a new one at the next write, and a file that was
/// truncated is continued at its beginning, so that logrotate works with and without `copytruncate`. On systems
/// other than Unix a renamed file is noticed once its name is free, or by [`reopen`](Self::reopen).
///
/// A new file is readable by its owner only, on Unix. If the disk is full, events are lost and
/// [counted](Self::lost); nothing else fails.
///
/// ```
/// use std::sync::Arc;
/// use tower_login_rate_limit::event::JsonLines;
///
/// # let directory = tempfile::tempdir()?;
/// # let path = directory.path().join("login.jsonl");
/// let file = Arc::new(JsonLines::open(path)?);
/// let observer = Arc::clone(&file); // for the limiter
/// assert_eq!(file.lost(), 0);
/// # Ok::<(), std::io::Error>(())
/// ```
#[derive(Debug)]
pub struct JsonLines {
    path: PathBuf,
    state: Mutex<State>,
}

#[derive(Debug)]
struct State {
    file: File,
    /// Lines that are not written yet.
    buffer: Vec<u8>,
    buffered: u64,
    /// The last write ended within a line.
    is_torn: bool,
    written: u64,
    lost: u64,
}

impl JsonLines {
    /// Opens a file, or creates it.
    ///
    /// # Errors
    ///
    /// The file can't be opened for writing.
    pub fn open(path: impl Into<PathBuf>) -> io::Result<Self> {
        let path = path.into();
        let state = State {
            file: open(&path)?,
            buffer: Vec::new(),
            buffered: 0,
            is_torn: false,
            written: 0,
            lost: 0,
        };
        Ok(Self {
            path,
            state: Mutex::new(state),
        })
    }

    fn lock(&self) -> MutexGuard<'_, State> {
        self.state.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// Opens the file anew, for a system that renames it and can tell so.
    ///
    /// # Errors
    ///
    /// The file can't be opened for writing. Events go to the old one then.
    pub fn reopen(&self) -> io::Result<()> {
        let mut state = self.lock();
        state.file = open(&self.path)?;
        state.is_torn = false;
        Ok(())
    }

    /// How many events were written.
    pub fn written(&self) -> u64 {
        self.lock().written
    }

    /// How many events could not be written.
    pub fn lost(&self) -> u64 {
        self.lock().lost
    }
}

fn open(path: &Path) -> io::Result<File> {
    let mut options = OpenOptions::new();
    // Appending, so that a file that another process truncates has no hole.
    options.append(true).create(true);
    #[cfg(unix)]
    std::os::unix::fs::OpenOptionsExt::mode(&mut options, 0o600);
    options.open(path)
}

#[cfg(unix)]
fn is_same(one: &Metadata, other: &Metadata) -> bool {
    use std::os::unix::fs::MetadataExt;
    (one.dev(), one.ino()) == (other.dev(), other.ino())
}

#[cfg(not(unix))]
fn is_same(_: &Metadata, _: &Metadata) -> bool {
    true
}

impl State {
    fn write(&mut self, path: &Path) {
        if self.buffer.is_empty() {
            return;
        }
        let result = self.follow(path).and_then(|()| {
            if self.is_torn {
                self.file.write_all(b"\n")?;
            }
            self.is_torn = true;
            self.file.write_all(&self.buffer)
        });
        let count = mem::take(&mut self.buffered);
        self.buffer.clear();
        if result.is_ok() {
            self.is_torn = false;
            self.written += count;
        } else {
            self.lost += count;
        }
    }

    /// Opens the file anew if another one, or none, has its name by now.
    fn follow(&mut self, path: &Path) -> io::Result<()> {
        let is_current = match fs::metadata(path) {
            Ok(named) => is_same(&named, &self.file.metadata()?),
            Err(error) if error.kind() == io::ErrorKind::NotFound => false,
            Err(_) => true, // what is open can still be written to
        };
        if !is_current {
            self.file = open(path)?;
            self.is_torn = false;
        }
        Ok(())
    }
}

impl Observe for JsonLines {
    fn observe(&self, event: &Event) {
        let json = event.to_json();
        let mut state = self.lock();
        state.buffer.extend_from_slice(json.as_bytes());
        state.buffer.push(b'\n');
        state.buffered += 1;
        if state.buffer.len() >= BUFFER {
            state.write(&self.path);
        }
    }

    fn flush(&self) {
        self.lock().write(&self.path);
    }
}

impl Drop for JsonLines {
    fn drop(&mut self) {
        self.flush();
    }
}
