//! What was measured, as a table and as a plot.

use std::fmt::Write as _;

use crate::{plot::Bar, rounds::Ratio};

/// Rows of figures, in the order in which they were measured.
#[derive(Default)]
pub struct Report {
    rows: Vec<Row>,
}

struct Row {
    section: &'static str,
    what: String,
    seen: Seen,
    goal: Option<Goal>,
}

enum Seen {
    /// How many times as much, or as fast.
    Times(Ratio),
    Number(f64, &'static str),
}

/// What a figure is to be.
#[derive(Clone, Copy)]
pub enum Goal {
    AtMost(f64),
    AtLeast(f64),
}

impl Report {
    /// A ratio. `what` says of what to what; with a goal it is one of the project's figures.
    pub fn ratio(
        &mut self,
        section: &'static str,
        what: impl Into<String>,
        ratio: Ratio,
        goal: Option<Goal>,
    ) {
        self.add(section, what.into(), Seen::Times(ratio), goal);
    }

    /// A number that is no ratio: bytes, allocations. Absolute times say nothing about another machine and
    /// are there to be read beside the ratios.
    pub fn number(
        &mut self,
        section: &'static str,
        what: impl Into<String>,
        number: f64,
        unit: &'static str,
        goal: Option<Goal>,
    ) {
        self.add(section, what.into(), Seen::Number(number, unit), goal);
    }

    fn add(&mut self, section: &'static str, what: String, seen: Seen, goal: Option<Goal>) {
        let row = Row {
            section,
            what,
            seen,
            goal,
        };
        println!("{}", row.line());
        self.rows.push(row);
    }

    /// How near the figures with a goal came to it.
    pub fn bars(&self) -> Vec<Bar> {
        let bar = |row: &Row| {
            let (of_goal, goal) = match row.goal? {
                Goal::AtMost(most) => (most / row.value(), row.goal_in_words()),
                Goal::AtLeast(least) => (row.value() / least, row.goal_in_words()),
            };
            Some(Bar {
                what: row.what.clone(),
                seen: row.seen_in_words(),
                goal,
                of_goal: if of_goal.is_nan() { 1.0 } else { of_goal },
            })
        };
        self.rows.iter().filter_map(bar).collect()
    }

    /// The whole table, in Markdown.
    pub fn table(&self) -> String {
        let mut table = String::new();
        let mut section = "";
        for row in &self.rows {
            if row.section != section {
                section = row.section;
                let _ = write!(
                    table,
                    "\n### {section}\n\n| what | seen | range | goal | |\n|---|---|---|---|---|\n"
                );
            }
            table.push_str(&row.line());
            table.push('\n');
        }
        table
    }
}

impl Row {
    fn line(&self) -> String {
        let range = match &self.seen {
            Seen::Times(ratio) => format!("{} – {}", short(ratio.low), short(ratio.high)),
            Seen::Number(..) => String::new(),
        };
        let verdict = match self.is_reached() {
            Some(true) => "reached",
            Some(false) => "missed",
            None => "",
        };
        let (seen, goal) = (self.seen_in_words(), self.goal_in_words());
        format!("| {} | {seen} | {range} | {goal} | {verdict} |", self.what)
    }

    fn seen_in_words(&self) -> String {
        match &self.seen {
            Seen::Times(ratio) => format!("{} ×", short(ratio.median)),
            Seen::Number(number, unit) => format!("{} {unit}", short(*number)).trim().to_owned(),
        }
    }

    fn goal_in_words(&self) -> String {
        match self.goal {
            Some(Goal::AtMost(most)) => format!("≤ {}", short(most)),
            Some(Goal::AtLeast(least)) => format!("≥ {}", short(least)),
            None => String::new(),
        }
    }

    fn value(&self) -> f64 {
        match &self.seen {
            Seen::Times(ratio) => ratio.median,
            Seen::Number(number, _) => *number,
        }
    }

    fn is_reached(&self) -> Option<bool> {
        Some(match self.goal? {
            // What noise has turned into less than nothing is not reached.
            Goal::AtMost(most) => (0.0..=most).contains(&self.value()),
            Goal::AtLeast(least) => self.value() >= least,
        })
    }
}

fn short(number: f64) -> String {
    match number.abs() {
        n if n >= 1e6 => format!("{:.1} M", number / 1e6),
        n if n >= 1e4 => format!("{:.0} k", number / 1e3),
        n if n >= 100.0 || number.fract() == 0.0 => format!("{number:.0}"),
        n if n >= 10.0 => format!("{number:.1}"),
        n if n < 0.01 => format!("{number:.4}"),
        _ => format!("{number:.2}"),
    }
}
