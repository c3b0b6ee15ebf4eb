//! What the command line consists of.

use clap::{Parser, Subcommand, ValueEnum};

use crate::{
    access::Access, block::Block, blocked::Blocked, completions::Completions, doctor::Doctor,
    events::Events, explain::Explain, forgive::Forgive, known::Known, policy::Policy,
    replay::Replay, serve::Serve, store::StoreArgs, top::Top, unblock::Unblock,
};

const ABOUT: &str = "Operates login limits: who is blocked and why, and what the rules are.";

const AFTER_HELP: &str = "\
Examples:
  export REDIS_URL=redis://10.0.0.5:6379
  login-rate-limit blocked
  login-rate-limit explain --user alice
  login-rate-limit unblock --user alice --address 192.0.2.1 --reason 'ticket 4711'
  login-rate-limit doctor

Exit codes:
  0  done; found; refused (explain)
  1  error, or a check has found a problem
  2  wrong usage
  3  another operator was faster
  4  the store is unavailable
  5  nothing found; not refused (explain)";

#[derive(Debug, Parser)]
#[command(name = "login-rate-limit", version, about = ABOUT, after_help = AFTER_HELP, max_term_width = 100)]
pub(crate) struct Cli {
    #[command(flatten)]
    pub(crate) store: StoreArgs,
    /// Print JSON, for scripts
    #[arg(long, global = true, help_heading = "Output")]
    pub(crate) json: bool,
    /// When to use colors; NO_COLOR turns them off too
    #[arg(
        long,
        global = true,
        value_enum,
        default_value_t,
        hide_possible_values = true,
        value_name = "auto|always|never",
        help_heading = "Output"
    )]
    pub(crate) color: Color,
    #[command(subcommand)]
    pub(crate) command: Command,
}

/// When to use colors.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, ValueEnum)]
pub(crate) enum Color {
    #[default]
    Auto,
    Always,
    Never,
}

#[derive(Debug, Subcommand)]
pub(crate) enum Command {
    Blocked(Blocked),
    Explain(Explain),
    Unblock(Unblock),
    Forgive(Forgive),
    Block(Block),
    /// Allow networks, or users in them, without a limit: list, try, add and remove rules
    #[command(after_help = crate::access::ALLOW_EXAMPLES)]
    Allow(Access),
    /// Deny networks, users, user agents or paths: list, try, add and remove rules
    #[command(after_help = crate::access::DENY_EXAMPLES)]
    Deny(Access),
    Known(Known),
    Top(Top),
    Policy(Policy),
    Replay(Replay),
    Events(Events),
    Doctor(Doctor),
    Serve(Serve),
    Completions(Completions),
}
