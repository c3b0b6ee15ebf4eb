//! In a terminal: colors, questions, and a stream that is watched. Driven through tmux.

use std::process::Command;

use super::{HOME, attacked, json, redis};
use crate::support::{RedisServer, fail, ip, wait_until};

/// A terminal with a shell in it, ended when dropped.
struct Terminal {
    socket: String,
}

impl Terminal {
    fn start(redis: &RedisServer) -> Self {
        let terminal = Self {
            socket: format!("login-rate-limit-{}-{}", std::process::id(), redis.port()),
        };
        let shell = format!(
            "env -u NO_COLOR PS1='$ ' TERM=screen-256color USER=tester REDIS_URL={} \
             LOGIN_RATE_LIMIT_BASE_POLICY=strict sh",
            redis.url()
        );
        terminal.tmux(&[
            "-f",
            "/dev/null",
            "new-session",
            "-d",
            "-x",
            "140",
            "-y",
            "50",
            &shell,
        ]);
        terminal.wait_for("$");
        terminal
    }

    fn tmux(&self, words: &[&str]) -> String {
        let output = Command::new("tmux")
            .args(["-L", &self.socket])
            .args(words)
            .output();
        let output = output.unwrap_or_else(|error| {
            panic!("tmux can't be run ({error}): install it, tests/run.sh does so")
        });
        assert!(output.status.success(), "{words:?} {output:?}");
        String::from_utf8(output.stdout).expect("text")
    }

    /// Types a line. The program is `$P`.
    fn enter(&self, text: &str) {
        let program = env!("CARGO_BIN_EXE_login-rate-limit");
        self.tmux(&["send-keys", "-l", &text.replace("$P", program)]);
        self.tmux(&["send-keys", "Enter"]);
    }

    fn clear(&self) {
        self.tmux(&["send-keys", "-R"]);
    }

    /// What it shows.
    fn screen(&self) -> String {
        self.tmux(&["capture-pane", "-p", "-J"])
    }

    /// The same with escape sequences.
    fn colored(&self) -> String {
        self.tmux(&["capture-pane", "-p", "-e"])
    }

    fn wait_for(&self, text: &str) {
        let or_else = format!("{text:?} is not shown");
        wait_until(&or_else, || self.screen().contains(text));
    }

    /// Runs a command, and returns its exit code.
    fn run(&self, text: &str, mark: &str) -> String {
        self.clear();
        self.enter(&format!("{text}; echo \"<$?>{mark}\""));
        self.wait_for(&format!(">{mark}\n"));
        self.screen()
    }
}

impl Drop for Terminal {
    fn drop(&mut self) {
        let _ = Command::new("tmux")
            .args(["-L", &self.socket, "kill-server"])
            .output();
    }
}

const YELLOW: &str = "\u{1b}[33m";

#[tokio::test]
async fn colors_are_for_terminals_that_want_them() {
    let redis = redis();
    attacked(&redis).await;
    let terminal = Terminal::start(&redis);
    for (command, is_colored) in [
        ("$P blocked", true),
        ("NO_COLOR=1 $P blocked", false),
        ("$P blocked --color never", false),
        ("NO_COLOR=1 $P blocked --color always", true),
        ("$P blocked | cat", false),
        ("$P blocked --color always | cat", true),
        ("TERM=dumb $P blocked", false),
    ] {
        let screen = terminal.run(command, "done");
        assert!(screen.contains("<0>done"), "{screen}");
        assert!(screen.contains("bob@example.org"), "{screen}");
        assert_eq!(
            terminal.colored().contains(YELLOW),
            is_colored,
            "{command}: {screen}"
        );
    }
}

#[tokio::test]
async fn a_change_that_affects_many_is_asked_about() {
    let redis = redis();
    attacked(&redis).await;
    let terminal = Terminal::start(&redis);
    terminal.enter("$P unblock 192.0.2.0/24 --reason office; echo \"<$?>one\"");
    terminal.wait_for("This lifts 2 blocks of 192.0.2.0/24. Go on? [y/N]");
    terminal.enter("n");
    terminal.wait_for("<1>one");
    assert!(terminal.screen().contains("error: nothing was changed"));
    assert_eq!(
        json(&redis, &["blocked", "--address", HOME], 0)["blocks"]
            .as_array()
            .unwrap()
            .len(),
        2
    );

    // The reason is asked for, too; the end of the input is a no.
    terminal.clear();
    terminal.enter("$P unblock 192.0.2.0/24; echo \"<$?>two\"");
    terminal.wait_for("Reason:");
    terminal.tmux(&["send-keys", "C-d"]);
    terminal.wait_for("<1>two");
    terminal.enter("$P unblock 192.0.2.0/24; echo \"<$?>three\"");
    terminal.wait_for("Reason:");
    terminal.enter("the office phoned");
    terminal.wait_for("Go on? [y/N]");
    terminal.enter("y");
    terminal.wait_for("<0>three");
    assert!(
        terminal
            .screen()
            .contains("Lifted 2 blocks of 192.0.2.0/24:"),
        "{}",
        terminal.screen()
    );
    json(&redis, &["blocked", "--address", HOME], 5);
    // The answer goes to the terminal also if the result does not.
    terminal.clear();
    terminal.enter("$P policy set pci --reason r --json >/dev/null; echo \"<$?>four\"");
    terminal.wait_for("This applies to every login. Go on? [y/N]");
    terminal.enter("yes");
    terminal.wait_for("<0>four");
}

#[tokio::test]
async fn events_are_watched_until_an_interrupt() {
    let redis = redis();
    let limiter = attacked(&redis).await;
    let terminal = Terminal::start(&redis);
    terminal.enter("$P events --follow --event block_began --since 1h; echo \"<$?>end\"");
    terminal.wait_for("bob@example.org");
    fail(&limiter, ip("192.0.2.9"), "zoë", 5).await;
    // The block is reported in the background, and waiting for the screen blocks this thread.
    limiter.all_settled().await.unwrap();
    terminal.wait_for("192.0.2.9           zoë             user-address: 5 of 5, for 1 day");
    terminal.tmux(&["send-keys", "C-c"]);
    terminal.wait_for("<0>end");
}
