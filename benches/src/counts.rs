//! Figures that another program of this package counts.
//!
//! Allocations are counted by an allocator, which every allocation of its program pays for, and
//! instructions by valgrind. Neither may run in the process that measures time.

use std::{
    collections::HashMap,
    env::{self, consts::EXE_SUFFIX},
    path::Path,
    process::{Command, Stdio},
};

/// Counts by name.
pub struct Counts(HashMap<String, f64>);

impl Counts {
    /// Runs a program that is built beside this one, and prints a line `name count` for each figure.
    pub fn of(program: &str, arguments: &[&str]) -> Self {
        let path = env::current_exe().expect("this program");
        let path = path.with_file_name(format!("{program}{EXE_SUFFIX}"));
        Self::at(&path, arguments)
    }

    /// Runs a program that is built elsewhere.
    pub fn at(path: &Path, arguments: &[&str]) -> Self {
        let output = Command::new(path)
            .args(arguments)
            .stderr(Stdio::inherit())
            .output();
        let output = output.unwrap_or_else(|error| {
            let path = path.display();
            panic!("{path} can't be run: {error}; it is built by benches/run.sh")
        });
        assert!(output.status.success(), "{} failed", path.display());
        let lines = String::from_utf8_lossy(&output.stdout);
        let counts = lines.lines().filter_map(|line| {
            let (name, count) = line.split_once(' ')?;
            Some((name.to_owned(), count.parse().ok()?))
        });
        Self(counts.collect())
    }

    pub fn get(&self, name: &str) -> f64 {
        let count = self.0.get(name);
        *count.unwrap_or_else(|| panic!("{name} was not counted"))
    }
}
