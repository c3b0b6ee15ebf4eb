//! `completions`: scripts for shells.

use std::io::{self, Write};

use clap::{Args, CommandFactory};
use clap_complete::{Shell, generate};

use crate::{
    args::Cli,
    failure::{Exit, Failure},
};

const EXAMPLES: &str = "\
Examples:
  login-rate-limit completions bash > /etc/bash_completion.d/login-rate-limit
  login-rate-limit completions zsh > ~/.zfunc/_login-rate-limit
  login-rate-limit completions fish > ~/.config/fish/completions/login-rate-limit.fish";

/// Print a completion script for a shell
#[derive(Debug, Args)]
#[command(after_help = EXAMPLES)]
pub(crate) struct Completions {
    shell: Shell,
}

impl Completions {
    pub(crate) fn run(self) -> Result<Exit, Failure> {
        let mut script = Vec::new();
        generate(
            self.shell,
            &mut Cli::command(),
            "login-rate-limit",
            &mut script,
        );
        io::stdout().write_all(&script)?;
        Ok(Exit::Done)
    }
}
