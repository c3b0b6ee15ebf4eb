//! Why a command was not carried out, and the exit codes.

use std::{error::Error, io, process::ExitCode};

use tower_login_rate_limit::{
    PolicyError,
    admin::{AdminError, AdminErrorKind},
    store::{StoreError, StoreErrorKind},
};

/// How a command ended. Scripts rely on the numbers: `docs/cli.md` lists them.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Exit {
    Done = 0,
    Error = 1,
    /// As clap exits by itself.
    Usage = 2,
    Conflict = 3,
    Unavailable = 4,
    /// There is nothing of what was asked for.
    Nothing = 5,
}

impl Exit {
    /// Whether there is something.
    pub(crate) const fn found(is_found: bool) -> Self {
        if is_found { Self::Done } else { Self::Nothing }
    }
}

impl From<Exit> for ExitCode {
    fn from(exit: Exit) -> Self {
        Self::from(exit as u8)
    }
}

/// A command was not carried out. The message is one line that tells what to do.
#[derive(Debug)]
pub(crate) struct Failure {
    exit: Exit,
    message: String,
    is_broken_pipe: bool,
}

impl Failure {
    pub(crate) fn new(exit: Exit, message: impl Into<String>) -> Self {
        Self {
            exit,
            message: message.into(),
            is_broken_pipe: false,
        }
    }

    pub(crate) fn error(message: impl Into<String>) -> Self {
        Self::new(Exit::Error, message)
    }

    pub(crate) fn usage(message: impl Into<String>) -> Self {
        Self::new(Exit::Usage, message)
    }

    /// With what it is about ahead: the name of a file.
    pub(crate) fn about(mut self, what: impl std::fmt::Display) -> Self {
        self.message.insert_str(0, &format!("{what}: "));
        self
    }

    pub(crate) const fn exit(&self) -> Exit {
        self.exit
    }

    pub(crate) fn message(&self) -> &str {
        &self.message
    }

    pub(crate) const fn is_broken_pipe(&self) -> bool {
        self.is_broken_pipe
    }
}

impl From<io::Error> for Failure {
    fn from(error: io::Error) -> Self {
        Self {
            is_broken_pipe: error.kind() == io::ErrorKind::BrokenPipe,
            ..Self::error(error.to_string())
        }
    }
}

impl From<serde_json::Error> for Failure {
    fn from(error: serde_json::Error) -> Self {
        Self::error(error.to_string())
    }
}

impl From<PolicyError> for Failure {
    fn from(error: PolicyError) -> Self {
        Self::error(error.to_string())
    }
}

impl From<StoreError> for Failure {
    fn from(error: StoreError) -> Self {
        let exit = match error.kind() {
            StoreErrorKind::Config | StoreErrorKind::InvalidInput => Exit::Error,
            _ => Exit::Unavailable,
        };
        let advice = match error.kind() {
            StoreErrorKind::Timeout | StoreErrorKind::Connection => {
                "; is it running, and is --store or REDIS_URL right?"
            }
            StoreErrorKind::Server => "; `login-rate-limit doctor` looks at rights and settings",
            _ => "",
        };
        Self::new(exit, format!("{error}{advice}"))
    }
}

impl From<AdminError> for Failure {
    fn from(error: AdminError) -> Self {
        let store = error.source().and_then(|source| source.downcast_ref());
        match (error.kind(), store) {
            (AdminErrorKind::Store, Some(store)) => Self::from(StoreError::clone(store)),
            (AdminErrorKind::Store, None) => Self::new(Exit::Unavailable, error.to_string()),
            (AdminErrorKind::Conflict, _) => Self::new(Exit::Conflict, error.to_string()),
            _ => Self::error(error.to_string()),
        }
    }
}
