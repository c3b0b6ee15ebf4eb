//! Instructions, counted by valgrind: noise does not touch them.

use std::{env, process::Command};

/// A path is taken this often, and three times as often; what is done once is in both.
pub const TIMES: u64 = 1_000;

/// Instructions each time that this program takes a path, which is its first argument; how often is the second.
/// Those of one function if it is given, by a pattern of its name, and else all.
///
/// # Errors
///
/// If valgrind can't be run, or the program fails in it.
pub fn count(path: &str, function: Option<&str>) -> Result<u64, String> {
    let program = env::current_exe().map_err(|error| error.to_string())?;
    let run = |times: u64| {
        let output = Command::new("valgrind")
            .args(["--tool=callgrind", "--callgrind-out-file=/dev/null"])
            .args(function.map(|function| format!("--toggle-collect={function}")))
            .arg(&program)
            .args([path, &times.to_string()])
            .output()
            .map_err(|error| format!("valgrind can't be run: {error}; install it"))?;
        let said = String::from_utf8_lossy(&output.stderr);
        if !output.status.success() {
            return Err(format!("{path} failed: {said}"));
        }
        let collected = said
            .lines()
            .find_map(|line| line.split_once("Collected : "));
        let collected = collected.and_then(|(_, count)| count.trim().parse::<u64>().ok());
        collected.ok_or_else(|| format!("valgrind counted nothing: {said}"))
    };
    let (more, less) = (run(TIMES * 3)?, run(TIMES)?);
    let counted = more.checked_sub(less).filter(|counted| *counted > 0);
    let counted = counted.ok_or_else(|| format!("{path}: {less} instructions, then {more}"))?;
    Ok(counted / (TIMES * 2))
}
