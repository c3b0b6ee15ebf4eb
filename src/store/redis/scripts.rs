//! The scripts, and how they are called.

use std::sync::LazyLock;

use redis::{Cmd, ToRedisArgs};

/// A Lua script, known to the server by its hash.
pub(super) struct Script {
    source: String,
    hash: String,
}

/// What several scripts share, and the line in them whose place it takes.
const COUNTERS: &str = include_str!("../../../lua/counters.lua");
const INCLUDE_COUNTERS: &str = "-- include counters.lua";

macro_rules! scripts {
    ($($(#[$doc:meta])* $name:ident = $file:literal;)*) => {
        $($(#[$doc])*
        pub(super) static $name: LazyLock<Script> = LazyLock::new(|| {
            Script::new(include_str!(concat!("../../../lua/", $file)))
        });)*

        /// Every script, for loading them ahead.
        pub(super) fn all() -> impl Iterator<Item = &'static Script> {
            [$(&*$name),*].into_iter()
        }
    };
}

scripts! {
    RESERVE = "reserve.lua";
    SETTLE = "settle.lua";
    CLEANUP = "cleanup.lua";
    MERGE = "merge.lua";
    KNOWN_ADDRESSES = "known_addresses.lua";
}

impl Script {
    fn new(source: &str) -> Self {
        let source = source.replace(INCLUDE_COUNTERS, COUNTERS);
        Self {
            hash: redis::Script::new(&source).get_hash().to_owned(),
            source,
        }
    }

    /// A call with these keys, by hash; arguments follow.
    pub(super) fn call<'k>(&self, keys: impl Iterator<Item = &'k [u8]> + Clone) -> Cmd {
        let count = keys.clone().count();
        let mut command = Cmd::with_capacity(7 + count * 8, 64 + count * 128);
        command.arg("EVALSHA").arg(&self.hash).arg(count);
        for key in keys {
            command.arg(key);
        }
        command
    }

    /// The same call with the source in place of the hash, for a server that does not know the
    /// script (any more). It runs it and knows it from then on, in one step: there is no moment in
    /// between at which it could be forgotten again.
    pub(super) fn call_by_source(&self, by_hash: &Cmd) -> Cmd {
        let mut command = Cmd::new();
        command.arg("EVAL").arg(&self.source);
        for arg in by_hash.args_iter().skip(2) {
            if let redis::Arg::Simple(arg) = arg {
                command.arg(arg);
            }
        }
        command
    }

    pub(super) fn load(&self) -> Cmd {
        let mut command = Cmd::new();
        command.arg("SCRIPT").arg("LOAD").arg(&self.source);
        command
    }
}

/// Asks which of the scripts a server knows.
pub(super) fn are_known() -> Cmd {
    let mut command = Cmd::new();
    command.arg("SCRIPT").arg("EXISTS");
    for script in all() {
        command.arg(&script.hash);
    }
    command
}

/// An argument that may be left to the server: nothing is sent as an empty string.
pub(super) fn or_empty<T: ToRedisArgs>(command: &mut Cmd, arg: Option<T>) {
    match arg {
        Some(arg) => command.arg(arg),
        None => command.arg(""),
    };
}
