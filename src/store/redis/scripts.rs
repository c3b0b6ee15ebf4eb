//! The scripts, with the limits of their counters written into their text.
//!
//! A policy's numbers are the same in every call. In the text they cost nothing to send and nothing to
//! parse. A server keeps each text that it has run, so their number is bounded: a process makes texts for
//! [`INLINE`] sets of limits, and none if the server holds [`SERVER_MAX`] already; the limits of further
//! sets are passed as an argument, to one generic text of each script.

use std::{
    fmt::Write,
    sync::{
        Arc, LazyLock, OnceLock, PoisonError, RwLock,
        atomic::{AtomicBool, Ordering},
    },
};

use redis::{Cmd, RedisError, ToRedisArgs, Value, aio::ConnectionLike};

use super::fault::error_code;
use crate::{
    KnownAddresses, Limit,
    algorithm::{Algorithm, Millis},
};

/// How many sets of limits a process writes into texts. A policy needs about five, on a cluster ten.
const INLINE: usize = 64;
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
                let source = include_str!(concat!("../../../lua/", $file));
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

/// Which of the scripts.
#[derive(Clone, Copy)]
pub(super) enum Kind {
    Reserve,
    Settle,
    Cleanup,
    Record,
    Restore,
    Inspect,
    Clear,
}

/// How many kinds there are.
const KINDS: usize = 7;

impl Kind {
    const fn source(self) -> &'static str {
        match self {
            Self::Reserve => include_str!("../../../lua/reserve.lua"),
            Self::Settle => include_str!("../../../lua/settle.lua"),
            Self::Cleanup => include_str!("../../../lua/cleanup.lua"),
            Self::Record => include_str!("../../../lua/record.lua"),
            Self::Restore => include_str!("../../../lua/restore.lua"),
            Self::Inspect => include_str!("../../../lua/inspect.lua"),
            Self::Clear => include_str!("../../../lua/clear.lua"),
        }
    }

    /// The text that takes limits from its last argument.
    fn generic(self) -> Arc<Script> {
        static GENERIC: [OnceLock<Arc<Script>>; KINDS] = [const { OnceLock::new() }; KINDS];
        let script = GENERIC[self as usize].get_or_init(|| {
            let names = |names: &str| {
                let fields: Vec<_> = names
                    .split(", ")
                    .map(|name| format!("given.{name}"))
                    .collect();
                format!("local {names} = {}", fields.join(", "))
            };
            let given = "local given = cjson.decode(ARGV[#ARGV])\n".to_owned();
            Arc::new(Script::new(given + &render(self.source(), &names)))
        });
        Arc::clone(script)
    }
}

/// A limit, which known addresses are exempt from it, and whether the counter is in shadow.
pub(super) type Row = (Limit, Option<KnownAddresses>, bool);

/// The scripts for counters with certain limits, in this order.
pub(super) struct Program {
    rows: Box<[Row]>,
    lease: Millis,
    channel: Arc<str>,
    scripts: [OnceLock<Arc<Script>>; KINDS],
    /// The limits as an argument, where they are not part of the texts.
    argument: Option<String>,
}

impl Program {
    fn new(rows: Box<[Row]>, lease: Millis, channel: Arc<str>, is_inline: bool) -> Self {
        let mut program = Self {
            rows,
            lease,
            channel,
            scripts: Default::default(),
            argument: None,
        };
        if !is_inline {
            program.argument = Some(program.to_json());
        }
        program
    }

    pub(super) fn script(&self, kind: Kind) -> Arc<Script> {
        if self.argument.is_some() {
            return kind.generic();
        }
        let script = self.scripts[kind as usize].get_or_init(|| {
            let names = |names: &str| {
                let values: Vec<_> = (names.split(", "))
                    .map(|name| self.value(name, Syntax::Lua))
                    .collect();
                format!("local {names} = {}", values.join(", "))
            };
            Arc::new(Script::new(render(kind.source(), &names)))
        });
        Arc::clone(script)
    }

    /// Ends a call with the limits, if they are not part of the text.
    pub(super) fn finish(&self, command: &mut Cmd) {
        if let Some(argument) = &self.argument {
            command.arg(argument);
        }
    }

    fn to_json(&self) -> String {
        const NAMES: [&str; 12] = [
            "count",
            "plain",
            "plain_settle",
            "lease",
            "known",
            "keep_new",
            "limit",
            "window",
            "keep",
            "keep_full",
            "limits",
            "channel",
        ];
        let fields = NAMES.map(|name| (name, self.value(name, Syntax::Json)));
        Syntax::Json.table(fields)
    }

    /// What an `insert` line puts in place of this name.
    fn value(&self, name: &str, syntax: Syntax) -> String {
        let each = |value: &dyn Fn(&Row) -> String| syntax.list(self.rows.iter().map(value));
        let is_window = |(limit, ..): &Row| algorithm(limit) == "window";
        let lasting = |(limit, ..): &Row| {
            let [keep, full] = [self.keep(limit, None), self.keep(limit, Some(1))];
            full != 0 || keep == 0
        };
        let text = |millis: Millis| format!("\"{millis}\"");
        match name {
            "count" => self.rows.len().to_string(),
            "plain" => self.rows.iter().all(is_window).to_string(),
            "plain_settle" => {
                (self.rows.iter().all(|row| is_window(row) && lasting(row))).to_string()
            }
            "lease" => self.lease.to_string(),
            "channel" => format!(
                "\"{}\"",
                self.channel.replace('\\', "\\\\").replace('"', "\\\"")
            ),
            "limit" => each(&|(limit, ..)| attempts(limit).to_string()),
            "window" => each(&|(limit, ..)| limit.window.unwrap_or(0).to_string()),
            "keep" => each(&|(limit, ..)| text(self.keep(limit, None))),
            "keep_full" => each(&|(limit, ..)| text(self.keep(limit, Some(1)))),
            "keep_new" => {
                each(&|(limit, ..)| text(self.keep(limit, (attempts(limit) == 1).then_some(1))))
            }
            "limits" => each(&|(limit, _, shadow)| self.limit(limit, *shadow, syntax)),
            "known" => {
                let rows = self.rows.iter().zip(1..);
                let mut known = rows
                    .filter_map(|((_, keep, _), i)| keep.map(|keep| (i, keep)))
                    .peekable();
                if known.peek().is_none() {
                    return "false".to_owned();
                }
                syntax.list(known.map(|(counter, keep): (u32, KnownAddresses)| {
                    syntax.table([
                        ("counter", counter.to_string()),
                        ("kept_for", keep.kept_for().as_millis().to_string()),
                        ("newest", keep.newest().to_string()),
                    ])
                }))
            }
            _ => {
                debug_assert!(false, "a script asks for {name}");
                "nil".to_owned()
            }
        }
    }

    /// A row of the table that `counters.lua` describes, where 0 is forever.
    fn limit(&self, limit: &Limit, shadow: bool, syntax: Syntax) -> String {
        let numbers = |numbers: &mut dyn Iterator<Item = Option<Millis>>| {
            syntax.list(numbers.map(|number| number.unwrap_or(0).to_string()))
        };
        let lengths = limit
            .block
            .as_ref()
            .map_or(&[][..], |block| block.lengths());
        let (blocks, again) = match (&limit.waits, &limit.block) {
            (Some(waits), _) => (
                numbers(&mut waits.iter().copied().map(Some)),
                limit.jitter.into(),
            ),
            (None, Some(block)) => (numbers(&mut lengths.iter().copied()), block.again_within()),
            (None, None) => (numbers(&mut std::iter::empty()), 0),
        };
        let keep_full = (1..=lengths.len().max(1)).map(|i| {
            let nth = u32::try_from(i).unwrap_or(u32::MAX);
            Some(self.keep(limit, Some(nth)))
        });
        syntax.table([
            ("algorithm", format!("\"{}\"", algorithm(limit))),
            ("limit", attempts(limit).to_string()),
            ("window", limit.window.unwrap_or(0).to_string()),
            ("blocks", blocks),
            ("again", again.to_string()),
            ("keep", self.keep(limit, None).to_string()),
            ("keep_full", numbers(&mut { keep_full })),
            ("shadow", shadow.to_string()),
        ])
    }

    /// How long a key is kept; 0 is forever.
    fn keep(&self, limit: &Limit, block: Option<u32>) -> Millis {
        let keep = limit.retention(block);
        keep.map_or(0, |keep| keep.saturating_add(self.lease))
    }
}

fn algorithm(limit: &Limit) -> &'static str {
    match limit.algorithm {
        Algorithm::SlidingWindow if limit.has_growing_blocks() => "growing",
        Algorithm::SlidingWindow => "window",
        Algorithm::TokenBucket => "bucket",
        Algorithm::SlidingCounter => "counter",
        Algorithm::Backoff => "backoff",
    }
}

fn attempts(limit: &Limit) -> u32 {
    match limit.algorithm {
        // The failures that cost no wait.
        Algorithm::Backoff => limit.attempts - 1,
        _ => limit.attempts,
    }
}

/// How tables are written.
#[derive(Clone, Copy, PartialEq, Eq)]
enum Syntax {
    Lua,
    Json,
}

impl Syntax {
    fn list(self, values: impl Iterator<Item = String>) -> String {
        let values = values.collect::<Vec<_>>().join(",");
        match self {
            Self::Lua => format!("{{{values}}}"),
            Self::Json => format!("[{values}]"),
        }
    }

    fn table<const N: usize>(self, fields: [(&str, String); N]) -> String {
        let mut table = String::from("{");
        for (i, (name, value)) in fields.iter().enumerate() {
            let comma = if i > 0 { "," } else { "" };
            // Writing to a string can't fail.
            let _ = match self {
                Self::Lua => write!(table, "{comma}{name}={value}"),
                Self::Json => write!(table, "{comma}\"{name}\":{value}"),
            };
        }
        table + "}"
    }
}

/// The text of a script: `insert` lines replaced, what is included included, without comments.
fn render(source: &str, insert: &dyn Fn(&str) -> String) -> String {
    const COUNTERS: &str = include_str!("../../../lua/counters.lua");
    const INDEX: &str = include_str!("../../../lua/index.lua");
    let mut text = String::with_capacity(source.len());
    for line in source.lines().map(str::trim) {
        if let Some(names) = line.strip_prefix("-- insert ") {
            text += &insert(names);
        } else if line == "-- include counters.lua" {
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

/// The programs that this process uses.
pub(super) struct Programs {
    channel: Arc<str>,
    programs: RwLock<Vec<Arc<Program>>>,
    /// Whether the server holds too many scripts already.
    is_full: AtomicBool,
}

impl Programs {
    pub(super) fn new(channel: &str) -> Self {
        Self {
            channel: channel.into(),
            programs: RwLock::default(),
            is_full: AtomicBool::new(false),
        }
    }

    /// Makes no further texts.
    pub(super) fn set_full(&self) {
        self.is_full.store(true, Ordering::Relaxed);
    }

    /// A program for counters with these limits whose texts are the same for all limits: for calls that are
    /// rare, and must not take the place of others.
    pub(super) fn generic<'l>(&self, limits: impl Iterator<Item = &'l Limit>) -> Program {
        let rows = limits.map(|limit| (limit.clone(), None, false)).collect();
        Program::new(rows, 0, Arc::clone(&self.channel), false)
    }

    /// The program for counters with these limits.
    pub(super) fn get<'l>(
        &self,
        rows: impl Iterator<Item = (&'l Limit, Option<KnownAddresses>, bool)> + Clone,
        lease: Millis,
    ) -> Arc<Program> {
        let is_it = |program: &&Arc<Program>| {
            let mut pairs = program.rows.iter().zip(rows.clone());
            program.lease == lease
                && program.rows.len() == rows.clone().count()
                && pairs.all(|((limit, keep, shadow), row)| (limit, *keep, *shadow) == row)
        };
        let programs = self.programs.read().unwrap_or_else(PoisonError::into_inner);
        if let Some(program) = programs.iter().find(is_it) {
            return Arc::clone(program);
        }
        drop(programs);
        let rows_owned = rows
            .clone()
            .map(|(limit, keep, shadow)| (limit.clone(), keep, shadow))
            .collect();
        let mut programs = (self.programs.write()).unwrap_or_else(PoisonError::into_inner);
        if let Some(program) = programs.iter().find(is_it) {
            return Arc::clone(program);
        }
        let is_inline = programs.len() < INLINE && !self.is_full.load(Ordering::Relaxed);
        let channel = Arc::clone(&self.channel);
        let program = Arc::new(Program::new(rows_owned, lease, channel, is_inline));
        if is_inline {
            programs.push(Arc::clone(&program));
        }
        program
    }
}

/// An argument that may be left to the server: nothing is sent as an empty string.
pub(super) fn or_empty<T: ToRedisArgs>(command: &mut Cmd, arg: Option<T>) {
    match arg {
        Some(arg) => command.arg(arg),
        None => command.arg(""),
    };
}
