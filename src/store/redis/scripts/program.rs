//! The scripts for counters with certain limits, which are written into the text or passed as an argument.

use std::{
    borrow::Cow,
    fmt::Write,
    sync::{Arc, OnceLock},
};

use redis::Cmd;

use super::{
    Script, render,
    unroll::{self, unroll},
};
use crate::{
    KnownAddresses, Limit,
    algorithm::{Algorithm, Millis},
};

/// Which of the scripts.
#[derive(Clone, Copy)]
pub(in super::super) enum Kind {
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
            Self::Reserve => include_str!("../../../../lua/reserve.lua"),
            Self::Settle => include_str!("../../../../lua/settle.lua"),
            Self::Cleanup => include_str!("../../../../lua/cleanup.lua"),
            Self::Record => include_str!("../../../../lua/record.lua"),
            Self::Restore => include_str!("../../../../lua/restore.lua"),
            Self::Inspect => include_str!("../../../../lua/inspect.lua"),
            Self::Clear => include_str!("../../../../lua/clear.lua"),
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

/// What fast paths look up for each counter.
const COLUMNS: [&str; 7] = [
    "limit",
    "window",
    "keep",
    "keep_full",
    "keep_new",
    "kept_for",
    "newest",
];

/// A limit, which known addresses are exempt from it, and whether the counter is in shadow.
pub(super) type Row = (Limit, Option<KnownAddresses>, bool);

/// The scripts for counters with certain limits, in this order.
pub(in super::super) struct Program {
    pub(super) rows: Box<[Row]>,
    pub(super) lease: Millis,
    channel: Arc<str>,
    scripts: [OnceLock<Arc<Script>>; KINDS],
    /// The limits as an argument, where they are not part of the texts.
    argument: Option<String>,
}

impl Program {
    pub(super) fn new(rows: Box<[Row]>, lease: Millis, channel: Arc<str>, is_inline: bool) -> Self {
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

    pub(in super::super) fn script(&self, kind: Kind) -> Arc<Script> {
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
            let source = kind.source();
            let source = if self.rows.len() <= unroll::MAX {
                let columns = COLUMNS.map(|name| (name, self.column(name)));
                Cow::Owned(unroll(source, self.rows.len(), &columns))
            } else {
                Cow::Borrowed(source)
            };
            Arc::new(Script::new(render(&source, &names)))
        });
        Arc::clone(script)
    }

    /// Ends a call with the limits, if they are not part of the text.
    pub(in super::super) fn finish(&self, command: &mut Cmd) {
        if let Some(argument) = &self.argument {
            command.arg(argument);
        }
    }

    fn to_json(&self) -> String {
        const OTHERS: [&str; 7] = [
            "count",
            "plain",
            "plain_settle",
            "lease",
            "usages",
            "limits",
            "channel",
        ];
        let names = COLUMNS.into_iter().chain(OTHERS);
        Syntax::Json.table(names.map(|name| (name, self.value(name, Syntax::Json))))
    }

    /// What an `insert` line puts in place of this name.
    fn value(&self, name: &str, syntax: Syntax) -> String {
        let is_window = |(limit, ..): &Row| algorithm(limit) == "window";
        let lasting = |(limit, ..): &Row| {
            let [keep, full] = [self.keep(limit, None), self.keep(limit, Some(1))];
            full != 0 || keep == 0
        };
        match name {
            "count" => self.rows.len().to_string(),
            "plain" => self.rows.iter().all(is_window).to_string(),
            "plain_settle" => {
                (self.rows.iter().all(|row| is_window(row) && lasting(row))).to_string()
            }
            "lease" => self.lease.to_string(),
            // How the usages are formatted.
            "usages" => format!("\"{}\"", " %d".repeat(self.rows.len())),
            "channel" => format!(
                "\"{}\"",
                self.channel.replace('\\', "\\\\").replace('"', "\\\"")
            ),
            "limits" => {
                let row = |(limit, _, shadow): &Row| self.limit(limit, *shadow, syntax);
                syntax.list(self.rows.iter().map(row))
            }
            name => syntax.list(self.column(name).into_iter()),
        }
    }

    /// A value for each counter.
    fn column(&self, name: &str) -> Vec<String> {
        let text = |millis: Millis| format!("\"{millis}\"");
        let value = |(limit, known, _): &Row| match name {
            "limit" => attempts(limit).to_string(),
            "window" => limit.window.unwrap_or(0).to_string(),
            "keep" => text(self.keep(limit, None)),
            "keep_full" => text(self.keep(limit, Some(1))),
            "keep_new" => text(self.keep(limit, (attempts(limit) == 1).then_some(1))),
            // Of the known addresses that the counter exempts; 0: it exempts none.
            "newest" => known.map_or(0, |known| known.newest()).to_string(),
            "kept_for" => known
                .map_or(0, |known| known.kept_for().as_millis())
                .to_string(),
            _ => {
                debug_assert!(false, "a script inserts {name}");
                "nil".to_owned()
            }
        };
        self.rows.iter().map(value).collect()
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

    fn table<'a>(self, fields: impl IntoIterator<Item = (&'a str, String)>) -> String {
        let mut table = String::from("{");
        for (i, (name, value)) in fields.into_iter().enumerate() {
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
