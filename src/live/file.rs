//! Rules in a file that is watched.

use std::{
    fs, io,
    path::{Path, PathBuf},
    sync::Arc,
    time::{Duration, SystemTime},
};

use tokio::{runtime::Handle, time::sleep};

use super::Ruleset;
use crate::{
    LoginLimiter, PolicyError,
    admin::AdminError,
    event::{Event, What},
    logging,
};

/// How often the file is looked at. Not by notifications of the system, which network file systems and mounted
/// configuration maps do not send.
const LOOK_EVERY: Duration = Duration::from_millis(500);

impl LoginLimiter {
    /// Puts the ruleset of a file in force, and follows changes of the file for as long as the limiter is used.
    ///
    /// `parse` reads the text: `|text| toml::from_str(text)`. A file that can't be read or parsed later changes
    /// nothing, and is logged. A file is read when it has not changed for half a second, so that one which is being
    /// written is not; replace it by renaming where that may take longer.
    ///
    /// ```no_run
    /// # async fn example() -> Result<(), Box<dyn std::error::Error>> {
    /// use tower_login_rate_limit::{LoginLimiter, Policy, store::MemoryStore};
    ///
    /// let limiter = LoginLimiter::new(Policy::default(), MemoryStore::new())
    ///     .follow_file("login-limits.toml", |text| toml::from_str(text))?;
    /// # Ok(()) }
    /// ```
    ///
    /// # Errors
    ///
    /// If the file can't be read or parsed now, or there is no Tokio runtime.
    pub fn follow_file<E: std::fmt::Display>(
        self,
        path: impl Into<PathBuf>,
        parse: impl Fn(&str) -> Result<Ruleset, E> + Send + Sync + 'static,
    ) -> Result<Self, AdminError> {
        let path = path.into();
        let invalid =
            |message: String| AdminError::invalid(format!("{}: {message}", path.display()));
        let runtime = Handle::try_current()
            .map_err(|_| invalid("is followed within a Tokio runtime only".to_owned()))?;
        let mut applied = Stamp::of(&path).map_err(|error| invalid(error.to_string()))?;
        let _in_force = put(&self, &path, &parse).map_err(invalid)?;
        let (limiter, parse) = (self.downgrade(), Arc::new(parse));
        let blocking = runtime.clone();
        let follow = async move {
            let mut seen = applied.clone();
            loop {
                sleep(LOOK_EVERY).await;
                let (newest, file, parse) = (limiter.clone(), path.clone(), Arc::clone(&parse));
                let (before, last) = (seen.clone(), applied.clone());
                // A file that is still being written changes from one look to the next.
                let look = move || {
                    let limiter = newest.upgrade()?;
                    let stamp = Stamp::of(&file).unwrap_or(before.clone());
                    let is_settled = stamp == before && stamp != last;
                    if is_settled {
                        let before = Ruleset::of(&limiter.in_force());
                        match put(&limiter, &file, &*parse) {
                            Ok(after) => limiter.emit(|| changed(&file, &before, &after)),
                            Err(error) => logging::unreadable_file(&file, &error),
                        }
                    }
                    Some((stamp, is_settled))
                };
                let Ok(Some((stamp, is_settled))) = blocking.spawn_blocking(look).await else {
                    return;
                };
                if is_settled {
                    applied = stamp.clone();
                }
                seen = stamp;
            }
        };
        runtime.spawn(follow);
        Ok(self)
    }
}

fn put<E: std::fmt::Display>(
    limiter: &LoginLimiter,
    path: &Path,
    parse: &impl Fn(&str) -> Result<Ruleset, E>,
) -> Result<Ruleset, String> {
    let text = fs::read_to_string(path).map_err(|error| error.to_string())?;
    let ruleset = parse(&text).map_err(|error| error.to_string())?;
    let put = limiter.put_in_force(0, &ruleset, None);
    put.map_err(|error: PolicyError| error.to_string())?;
    Ok(ruleset)
}

/// The event of a change, which has no version and no other author than the file.
fn changed(path: &Path, before: &Ruleset, after: &Ruleset) -> Event {
    let changes = before.differences(after).into_iter();
    Event::new(What::DocumentChanged {
        author: "file".into(),
        reason: path.display().to_string().into(),
        from: 0,
        to: 0,
        changes: changes.map(String::into_boxed_str).collect(),
    })
}

/// What distinguishes one state of a file from another: editors replace it, configuration maps change a link.
#[derive(Clone, PartialEq, Eq)]
struct Stamp {
    modified: SystemTime,
    length: u64,
}

impl Stamp {
    fn of(path: &Path) -> io::Result<Self> {
        let metadata = fs::metadata(path)?;
        Ok(Self {
            modified: metadata.modified()?,
            length: metadata.len(),
        })
    }
}
