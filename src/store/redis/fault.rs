//! What an error of redis-rs is due to: the connection, a cluster in motion, or the command.

use redis::{ErrorKind, RedisError};

use crate::store::{StoreError, StoreErrorKind};

/// Whether the connection failed, not the command: it broke, or it leads to a server that no longer
/// accepts commands, so that a new one may lead to another server.
pub(super) fn is_connection_fault(error: &RedisError) -> bool {
    error.is_connection_dropped()
        || error.is_io_error()
        || error.is_unrecoverable_error()
        || matches!(
            error_code(error),
            Some("READONLY" | "MASTERDOWN" | "LOADING")
        )
}

/// Whether a cluster reports that it is being reconfigured: a slot is moving to another server, or has no
/// server until a replica is promoted.
pub(super) fn is_transient(error: &RedisError) -> bool {
    matches!(
        error_code(error),
        Some("TRYAGAIN" | "CLUSTERDOWN" | "MOVED" | "ASK")
    )
}

/// The code of a server's error, such as `READONLY`. Before version 7, Redis wraps the error of a command
/// in a script: `ERR Error running script (call to f_…): @user_script:1: @user_script: 1: -READONLY …`.
pub(super) fn error_code(error: &RedisError) -> Option<&str> {
    let wrapped = || {
        let detail = error.detail()?.strip_prefix("Error running script")?;
        let (_, inner) = detail.split_once(" -")?;
        let code = inner.split(' ').next()?;
        let is_code = |code: &str| !code.is_empty() && code.bytes().all(|b| b.is_ascii_uppercase());
        is_code(code).then_some(code)
    };
    match error.code() {
        Some("ERR") => wrapped().or(Some("ERR")),
        code => code,
    }
}

/// The error for callers, which begins with the server.
pub(super) fn explain(error: &RedisError, server: &str) -> StoreError {
    let (kind, what) = match error.kind() {
        _ if error.is_timeout() => (StoreErrorKind::Timeout, "did not answer in time"),
        ErrorKind::Io | ErrorKind::ClusterConnectionNotFound => {
            (StoreErrorKind::Connection, "can't be reached")
        }
        ErrorKind::InvalidClientConfig => (StoreErrorKind::Config, "has a misconfigured client"),
        ErrorKind::Parse | ErrorKind::UnexpectedReturnType => {
            (StoreErrorKind::Protocol, "sent an unreadable reply")
        }
        _ => (StoreErrorKind::Server, "returned an error"),
    };
    StoreError::new(kind, format!("{server} {what}: {error}")).with_source(error.clone())
}

#[cfg(test)]
mod tests {
    use super::*;

    /// The error that redis-rs reads from a line of the server's.
    fn error(line: &str) -> RedisError {
        let value = redis::parse_redis_value(format!("-{line}\r\n").as_bytes());
        match value.and_then(|value| value.extract_error()) {
            Err(error) => error,
            Ok(value) => panic!("{line}: {value:?}"),
        }
    }

    #[test]
    fn errors_of_commands_in_scripts_are_recognized_on_redis_6() {
        let codes = "READONLY MASTERDOWN LOADING OOM NOREPLICAS CLUSTERDOWN TRYAGAIN CROSSSLOT MOVED ASK \
                     BUSY NOSCRIPT MISCONF NOPERM";
        let call = "Error running script (call to f_625a7ac6a87b595aaeb01e34df44780cd8f912a1)";
        for code in codes.split(' ') {
            for line in [
                format!("{code} the reason"),
                format!("ERR {call}: @user_script:49: @user_script: 49: -{code} the reason"),
                format!("ERR Error running script -{code} the - REASON"),
            ] {
                let error = error(&line);
                assert_eq!(error_code(&error), Some(code), "{line}");
                let is_fault = matches!(code, "READONLY" | "MASTERDOWN" | "LOADING");
                assert_eq!(is_connection_fault(&error), is_fault, "{line}");
                let is_passing = matches!(code, "CLUSTERDOWN" | "TRYAGAIN" | "MOVED" | "ASK");
                assert_eq!(is_transient(&error), is_passing, "{line}");
            }
        }
        for line in [
            "ERR no -READONLY here".to_owned(),
            format!("ERR {call}: @user_script:1: user_script:1: attempt to index a nil value"),
            format!("ERR {call}: @user_script:1: x - 1"),
            format!("ERR {call}: -"),
            "ERR".to_owned(),
        ] {
            assert_eq!(error_code(&error(&line)), Some("ERR"), "{line}");
        }
    }
}
