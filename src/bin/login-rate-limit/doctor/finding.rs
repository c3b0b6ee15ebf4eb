//! What was found, and what to change.

use serde::Serialize;

use crate::{
    failure::Failure,
    output::{Output, Style, safe},
};

#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Serialize)]
#[serde(rename_all = "snake_case")]
pub(super) enum Level {
    Ok,
    Warning,
    Problem,
}

#[derive(Debug, Serialize)]
struct Finding {
    /// What was looked at.
    check: &'static str,
    level: Level,
    message: String,
    /// What to change.
    advice: Option<String>,
}

#[derive(Debug, Default, Serialize)]
#[serde(transparent)]
pub(super) struct Findings(Vec<Finding>);

impl Findings {
    pub(super) fn ok(&mut self, check: &'static str, message: impl Into<String>) {
        self.add(check, Level::Ok, message.into(), None);
    }

    pub(super) fn warning(
        &mut self,
        check: &'static str,
        message: impl Into<String>,
        advice: impl Into<String>,
    ) {
        self.add(check, Level::Warning, message.into(), Some(advice.into()));
    }

    pub(super) fn problem(
        &mut self,
        check: &'static str,
        message: impl Into<String>,
        advice: impl Into<String>,
    ) {
        self.add(check, Level::Problem, message.into(), Some(advice.into()));
    }

    fn add(&mut self, check: &'static str, level: Level, message: String, advice: Option<String>) {
        self.0.push(Finding {
            check,
            level,
            message,
            advice,
        });
    }

    pub(super) fn worst(&self) -> Level {
        let levels = self.0.iter().map(|finding| finding.level);
        levels.max().unwrap_or(Level::Ok)
    }

    pub(super) fn count(&self, level: Level) -> usize {
        self.0
            .iter()
            .filter(|finding| finding.level == level)
            .count()
    }

    pub(super) fn print(&self, output: &Output) -> Result<(), Failure> {
        for finding in &self.0 {
            let (level, style) = match finding.level {
                Level::Ok => ("ok", Style::Green),
                Level::Warning => ("warning", Style::Yellow),
                Level::Problem => ("problem", Style::Red),
            };
            let level = output.paint(style, &format!("{level:7}"));
            output.line(format!(
                "{level}  {:11}  {}",
                finding.check,
                safe(&finding.message)
            ))?;
            if let Some(advice) = &finding.advice {
                output.line(format!("{:22}→ {}", "", safe(advice)))?;
            }
        }
        Ok(())
    }
}
