//! The scripts: their texts, and how a server runs them.

mod program;
mod programs;
mod unroll;

use std::sync::{
    Arc, LazyLock,
    atomic::{AtomicBool, Ordering},
};

use redis::{Cmd, RedisError, ToRedisArgs, Value, aio::ConnectionLike};

use super::fault::error_code;

pub(super) use self::{
    program::{Kind, Program},
    programs::Programs,
};

/// How many scripts a server may hold before no process adds texts of its own.
pub(super) const SERVER_MAX: u64 = 1_000;

/// A script, known to the server by its hash.
pub(super) struct Script {
    source: String,
    hash: String,
    /// Whether a server has run it for this process.
    is_loaded: AtomicBool,
}

impl Script {
    fn new(source: String) -> Self {
        Self {
            hash: redis::Script::new(&source).get_hash().to_owned(),
            source,
            is_loaded: AtomicBool::new(false),
        }
    }

    /// A call with these keys, by hash; arguments follow.
    pub(super) fn call<'k>(&self, keys: impl Iterator<Item = &'k [u8]> + Clone) -> Cmd {
        let count = keys.clone().count();
        let mut command = Cmd::with_capacity(8 + count, 96 + count * 80);
        command.arg("EVALSHA").arg(&self.hash).arg(count);
        for key in keys {
            command.arg(key);
        }
        command
    }

    /// Runs a call by hash, and by source on a server that does not have the script or is not expected
    /// to: that runs and keeps it in one step, so there is no moment in between at which it could be flushed.
    pub(super) async fn run(
        &self,
        call: &Cmd,
        connection: &mut impl ConnectionLike,
    ) -> Result<Value, RedisError> {
        if self.is_loaded.load(Ordering::Relaxed) {
            match call.query_async(connection).await {
                Err(error) if error_code(&error) == Some("NOSCRIPT") => {}
                reply => return reply,
            }
        }
        let reply = self.by_source(call).query_async(connection).await;
        if reply.is_ok() {
            self.is_loaded.store(true, Ordering::Relaxed);
        }
        reply
    }

    fn by_source(&self, by_hash: &Cmd) -> Cmd {
        let mut command = Cmd::new();
        command.arg("EVAL").arg(&self.source);
        for arg in by_hash.args_iter().skip(2) {
            if let redis::Arg::Simple(arg) = arg {
                command.arg(arg);
            }
        }
        command
    }
}

/// Scripts that have no limits.
macro_rules! scripts_without_limits {
    ($($(#[$doc:meta])* $name:ident: $file:literal,)*) => {
        $(
            $(#[$doc])*
            pub(super) static $name: LazyLock<Arc<Script>> = LazyLock::new(|| {
                let source = include_str!(concat!("../../../../lua/", $file));
                Arc::new(Script::new(render(source, &|_| String::new())))
            });
        )*
    };
}

scripts_without_limits! {
    /// Remembers and lists known addresses.
    KNOWN_ADDRESSES: "known_addresses.lua",
    /// Enters a name into an index.
    NOTE: "note.lua",
    /// Lists entries of indexes.
    NOTES: "notes.lua",
    /// Counts entries of indexes.
    COUNT_NOTES: "count_notes.lua",
    /// Drops entries of an index.
    DROP_NOTES: "drop_notes.lua",
    /// Reads a version of the document.
    DOCUMENT: "document.lua",
    /// Writes a version of the document.
    REPLACE_DOCUMENT: "replace_document.lua",
}

/// The line in place of which `counters.lua` stands.
const INCLUDE_COUNTERS: &str = "-- include counters.lua";

/// The text of a script: `insert` lines replaced, what is included included, without comments.
fn render(source: &str, insert: &dyn Fn(&str) -> String) -> String {
    const COUNTERS: &str = include_str!("../../../../lua/counters.lua");
    const INDEX: &str = include_str!("../../../../lua/index.lua");
    let mut text = String::with_capacity(source.len());
    for line in source.lines().map(str::trim) {
        if let Some(names) = line.strip_prefix("-- insert ") {
            text += &insert(names);
        } else if line == INCLUDE_COUNTERS {
            text += &render(COUNTERS, insert);
        } else if line == "-- include index.lua" {
            text += &render(INDEX, insert);
        } else if !line.starts_with("--") {
            text += line;
        } else {
            continue;
        }
        text.push('\n');
    }
    text
}

/// An argument that may be left to the server: nothing is sent as an empty string.
pub(super) fn or_empty<T: ToRedisArgs>(command: &mut Cmd, arg: Option<T>) {
    match arg {
        Some(arg) => command.arg(arg),
        None => command.arg(""),
    };
}
