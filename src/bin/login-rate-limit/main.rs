//! The program `login-rate-limit`: operates the login limits of a fleet through its Redis, and serves the HTTP API
//! and the console.

mod access;
mod args;
mod block;
mod blocked;
mod change;
mod completions;
mod doctor;
mod events;
mod explain;
mod failure;
mod forgive;
mod known;
mod output;
mod period;
mod policy;
mod replay;
mod serve;
mod session;
mod store;
mod subject;
mod top;
mod unblock;

use std::process::ExitCode;

use clap::Parser;
use tokio::runtime::Builder;

use crate::{
    args::{Cli, Command},
    failure::{Exit, Failure},
    output::Output,
};

fn main() -> ExitCode {
    let cli = Cli::parse();
    let output = Output::new(cli.json, cli.color);
    let exit = match run(cli, &output) {
        Ok(exit) => exit,
        // The reader of a pipe has all that it wants, as in `| head`.
        Err(failure) if failure.is_broken_pipe() => Exit::Done,
        Err(failure) => {
            output.error(&failure);
            failure.exit()
        }
    };
    exit.into()
}

fn run(cli: Cli, output: &Output) -> Result<Exit, Failure> {
    let mut runtime = if matches!(cli.command, Command::Serve(_)) {
        Builder::new_multi_thread()
    } else {
        Builder::new_current_thread()
    };
    let runtime = runtime.enable_all().build()?;
    runtime.block_on(async {
        match cli.command {
            Command::Blocked(command) => command.run(&cli.store, output).await,
            Command::Explain(command) => command.run(&cli.store, output).await,
            Command::Unblock(command) => command.run(&cli.store, output).await,
            Command::Forgive(command) => command.run(&cli.store, output).await,
            Command::Block(command) => command.run(&cli.store, output).await,
            Command::Allow(command) => command.run(&cli.store, output, access::ALLOW).await,
            Command::Deny(command) => command.run(&cli.store, output, access::DENY).await,
            Command::Known(command) => command.run(&cli.store, output).await,
            Command::Top(command) => command.run(&cli.store, output).await,
            Command::Policy(command) => command.run(&cli.store, output).await,
            Command::Replay(command) => command.run(&cli.store, output),
            Command::Events(command) => command.run(&cli.store, output).await,
            Command::Doctor(command) => command.run(&cli.store, output).await,
            Command::Serve(command) => command.run(&cli.store, output).await,
            Command::Completions(command) => command.run(),
        }
    })
}
