//! Who changes something and why, and whether it is meant.

use std::{
    env, fs,
    io::{self, BufRead, IsTerminal, Write},
    process::Command,
};

use clap::Args;
use tower_login_rate_limit::admin::Author;

use crate::{failure::Failure, session::declined};

#[derive(Debug, Args)]
#[command(next_help_heading = "Change")]
pub(crate) struct ChangeArgs {
    /// Why; it is recorded with the change. Asked for at a terminal
    #[arg(short, long, value_name = "TEXT")]
    reason: Option<String>,
    /// Who; USER@HOST unless set
    #[arg(long, value_name = "NAME", env = "LOGIN_RATE_LIMIT_AUTHOR")]
    author: Option<String>,
    /// Do not ask before a change that affects more than one subject
    #[arg(short, long)]
    yes: bool,
    /// Show what would change, and change nothing
    #[arg(short = 'n', long)]
    pub(crate) dry_run: bool,
}

impl ChangeArgs {
    /// Who and why; `None` if nothing is to be changed. A reason that is missing is asked for.
    pub(crate) fn author(&self) -> Result<Option<Author>, Failure> {
        if self.dry_run {
            return Ok(None);
        }
        let reason = match &self.reason {
            Some(reason) => reason.clone(),
            None if is_terminal() => ask("Reason: ")?,
            None => {
                return Err(Failure::usage(
                    "a reason is required, which is recorded with the change: --reason 'ticket 4711'",
                ));
            }
        };
        let author = self.author.clone().unwrap_or_else(user_at_host);
        let author = Author::new(author, reason.trim());
        author
            .map(Some)
            .map_err(|error| Failure::usage(error.to_string()))
    }

    /// Asks whether a change that affects more than one subject is meant. `what` completes "This …".
    pub(crate) fn confirm(&self, what: &str) -> Result<(), Failure> {
        if self.yes {
            return Ok(());
        }
        if !is_terminal() {
            return Err(Failure::usage(format!(
                "this {what}, and there is no terminal to ask at: pass --yes, or --dry-run to see what would change"
            )));
        }
        let answer = ask(&format!("This {what}. Go on? [y/N] "))?;
        if matches!(&*answer.trim().to_ascii_lowercase(), "y" | "yes") {
            Ok(())
        } else {
            Err(declined())
        }
    }
}

/// Whether a person can be asked. The question goes to the standard error, so that results can be redirected.
fn is_terminal() -> bool {
    io::stdin().is_terminal() && io::stderr().is_terminal()
}

fn ask(question: &str) -> Result<String, Failure> {
    let mut error = io::stderr();
    error.write_all(question.as_bytes())?;
    error.flush()?;
    let mut answer = String::new();
    if io::stdin().lock().read_line(&mut answer)? == 0 {
        writeln!(error)?;
        return Err(declined());
    }
    Ok(answer)
}

fn user_at_host() -> String {
    let variable = |name| env::var(name).ok().filter(|value| !value.is_empty());
    let user = ["USER", "LOGNAME", "USERNAME"]
        .into_iter()
        .find_map(variable);
    let user = user.or_else(|| printed("id", &["-un"]));
    let user = user.unwrap_or_else(|| "unknown".to_owned());
    let host = fs::read_to_string("/proc/sys/kernel/hostname").ok();
    let host = host.map(|host| host.trim().to_owned());
    match host.or_else(|| printed("hostname", &[])) {
        Some(host) => format!("{user}@{host}"),
        None => user,
    }
}

/// What a program prints.
fn printed(program: &str, args: &[&str]) -> Option<String> {
    let output = Command::new(program).args(args).output().ok()?;
    let text = String::from_utf8(output.stdout).ok()?;
    let text = text.trim().to_owned();
    (!text.is_empty()).then_some(text)
}
