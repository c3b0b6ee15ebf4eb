//! `replay`: what a policy would have done with recorded events.

use std::{
    fs::File,
    io::{self, BufRead, BufReader},
    path::{Path, PathBuf},
};

use clap::Args;
use tower_login_rate_limit::{
    event::Event,
    insight::{self, ReplayReport, ReplayedSubject, ReplayedSubjects},
};

use crate::{
    failure::{Exit, Failure},
    output::{Cell, Output, Style, Table, counted, plural, safe},
    period,
    policy::file,
    session::named_policy,
    store::StoreArgs,
};

const EXAMPLES: &str = "\
Examples:
  login-rate-limit events --since 7d --limit 1000000 --json > week.jsonl
  login-rate-limit replay week.jsonl --policy strict
  login-rate-limit replay week.jsonl --policy policy.toml --json | jq .refused_successes
  zcat events.jsonl.gz | login-rate-limit replay - --policy policy.toml

Events are JSON lines, the oldest first: of `events --json`, or of the observer `JsonLines`. Users must be told apart
in them, so they are hashed, sealed or in clear.";

/// Show what a policy would have done with recorded events. Needs no store
#[derive(Debug, Args)]
#[command(after_help = EXAMPLES)]
pub(crate) struct Replay {
    /// Events as JSON lines; - for the standard input
    file: PathBuf,
    /// A policy file, or default, strict, nist, pci, owasp
    #[arg(long, value_name = "FILE|NAME")]
    policy: String,
}

impl Replay {
    pub(crate) fn run(self, store: &StoreArgs, output: &Output) -> Result<Exit, Failure> {
        let policy = named_policy(&self.policy)
            .map_or_else(|| file::read_policy(Path::new(&self.policy)), Ok)?;
        let mut replay = insight::Replay::new(policy);
        if let Some(sealer) = store.sealer()? {
            replay = replay.with_sealer(sealer);
        }
        let mut unreadable = 0;
        for line in self.open()?.lines() {
            let line = line.map_err(|error| Failure::from(error).about(self.file.display()))?;
            match serde_json::from_str::<Event>(&line) {
                Ok(event) => replay.record(&event),
                Err(_) => unreadable += usize::from(!line.trim().is_empty()),
            }
        }
        let report = replay.finish();
        if unreadable > 0 {
            let lines = counted(unreadable, "line");
            output.note(format!(
                "{lines} skipped: not an event that this version knows"
            ));
        }
        let found = Exit::found(report.attempts > 0);
        if output.json(&report)? {
            return Ok(found);
        }
        let (Some(from), Some(to)) = (report.from, report.to) else {
            return output.nothing("No attempts are recorded there.");
        };
        let attempts = counted(report.attempts as usize, "attempt");
        output.line(format!(
            "{attempts} from {} to {} UTC, under {}:\n",
            period::shown(from),
            period::shown(to),
            safe(&self.policy)
        ))?;
        print(&report, output)?;
        Ok(found)
    }

    fn open(&self) -> Result<Box<dyn BufRead>, Failure> {
        if self.file.as_os_str() == "-" {
            return Ok(Box::new(io::stdin().lock()));
        }
        let file = File::open(&self.file);
        let file = file.map_err(|error| Failure::from(error).about(self.file.display()))?;
        Ok(Box::new(BufReader::new(file)))
    }
}

fn print(report: &ReplayReport, output: &Output) -> Result<(), Failure> {
    let mut table = Table::new([
        "RULE",
        "BLOCKS WERE",
        "WOULD BE",
        "REFUSED WERE",
        "WOULD BE",
    ]);
    for rule in &report.rules {
        let (recorded, replayed) = (&rule.recorded, &rule.replayed);
        let would = |n: u64| match rule.is_replayed {
            true => Cell::number(n),
            false => Cell::number("unknown").styled(Style::Dim),
        };
        table.row([
            Cell::new(&rule.rule),
            Cell::number(recorded.blocks),
            would(replayed.blocks),
            Cell::number(recorded.refused),
            would(replayed.refused),
        ]);
    }
    output.table(&table)?;
    output.line(format!(
        "\n{} that were admitted would have been refused: {}, {}.",
        counted(report.refused as usize, "attempt"),
        plural(report.refused_guesses as usize, "guess", "guesses"),
        plural(report.refused_successes as usize, "success", "successes"),
    ))?;
    let admitted = counted(report.admitted as usize, "attempt");
    output.line(format!(
        "{admitted} that were refused would have been admitted."
    ))?;
    print_subjects("Would be blocked:", &report.blocked, output)?;
    print_subjects("Would not be blocked:", &report.freed, output)?;
    for note in &report.notes {
        output.note(note);
    }
    Ok(())
}

fn print_subjects(
    title: &str,
    subjects: &ReplayedSubjects,
    output: &Output,
) -> Result<(), Failure> {
    if subjects.subjects.is_empty() {
        return Ok(());
    }
    output.line(format!("\n{title}"))?;
    let mut table = Table::new(["ADDRESS", "USER", "RULE", "FROM (UTC)", "LOGINS REFUSED"]);
    for subject in &subjects.subjects {
        table.row(row(subject));
    }
    output.table(&table)?;
    let more = (subjects.count as usize).saturating_sub(subjects.subjects.len());
    if more > 0 {
        output.line(format!("… and {more} more"))?;
    }
    Ok(())
}

fn row(subject: &ReplayedSubject) -> [Cell; 5] {
    let user = subject.user.as_ref().and_then(|user| user.shown());
    [
        Cell::new(
            subject
                .address
                .map_or("any".to_owned(), |address| address.to_string()),
        ),
        Cell::new(user.as_deref().unwrap_or("any")),
        Cell::new(&subject.rule),
        Cell::new(period::shown(subject.at)),
        Cell::number(subject.refused_successes),
    ]
}
