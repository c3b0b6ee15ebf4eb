//! `policy check`: whether a file is valid, and conforms to a standard. Needs no store.

use std::path::Path;

use clap::{Args, ValueEnum};
use serde::Serialize;
use tower_login_rate_limit::{
    Finding, LoginLimiter, Policy, Standard, live::Ruleset, store::MemoryStore,
};

use super::{
    file::{self, Contents},
    words,
};
use crate::{
    failure::{Exit, Failure},
    output::{Output, Style, safe},
    session::named_policy,
};

/// Check a file: whether it is valid, and whether it conforms to a standard
#[derive(Debug, Args)]
pub(super) struct Check {
    /// A policy or a ruleset, TOML or JSON; or default, strict, nist, pci, owasp
    file: String,
    /// Compare with a standard; may be repeated
    #[arg(long, value_enum, value_name = "NAME")]
    standard: Vec<Name>,
}

#[derive(Clone, Copy, Debug, ValueEnum)]
enum Name {
    Pci,
    Nist,
    Owasp,
}

impl From<Name> for Standard {
    fn from(name: Name) -> Self {
        match name {
            Name::Pci => Self::Pci,
            Name::Nist => Self::Nist,
            Name::Owasp => Self::Owasp,
        }
    }
}

#[derive(Serialize)]
struct Report {
    valid: bool,
    error: Option<String>,
    findings: Vec<ReportedFinding>,
}

#[derive(Serialize)]
struct ReportedFinding {
    standard: String,
    clause: &'static str,
    rule: Option<String>,
    reason: String,
}

impl From<&Finding> for ReportedFinding {
    fn from(finding: &Finding) -> Self {
        Self {
            standard: finding.standard().to_string(),
            clause: finding.clause(),
            rule: finding.rule().map(str::to_owned),
            reason: finding.reason().to_owned(),
        }
    }
}

impl Check {
    pub(super) fn run(self, output: &Output) -> Result<Exit, Failure> {
        let contents = match named_policy(&self.file) {
            Some(policy) => Ok(Contents::Policy(policy)),
            None => file::read(Path::new(&self.file)).and_then(checked),
        };
        let contents = match contents {
            Err(failure) if output.json => {
                output.json(&Report {
                    valid: false,
                    error: Some(failure.message().to_owned()),
                    findings: Vec::new(),
                })?;
                return Ok(failure.exit());
            }
            contents => contents?,
        };
        let policies = [
            Some(contents.policy()),
            contents.canary().map(|canary| canary.policy()),
        ];
        let findings: Vec<_> = (policies.into_iter().flatten())
            .flat_map(|policy| self.findings(policy))
            .collect();
        let exit = if findings.is_empty() {
            Exit::Done
        } else {
            Exit::Error
        };
        let report = Report {
            valid: true,
            error: None,
            findings: findings.iter().map(ReportedFinding::from).collect(),
        };
        if output.json(&report)? {
            return Ok(exit);
        }
        output.line(format!(
            "{} is {}.",
            safe(&self.file),
            output.paint(Style::Green, "valid")
        ))?;
        for name in &self.standard {
            let standard = Standard::from(*name);
            let mut of_standard = findings
                .iter()
                .filter(|finding| finding.standard() == standard)
                .peekable();
            if of_standard.peek().is_none() {
                let conforms = output.paint(Style::Green, "conforms");
                output.line(format!(
                    "It {conforms} to {standard}, as far as a policy can show."
                ))?;
            }
            for finding in of_standard {
                output.line(format!("{} {finding}", output.paint(Style::Red, "✗")))?;
            }
        }
        output.line("")?;
        output.table(&words::table(contents.policy()))?;
        if let Some(access) = contents.access().filter(|access| !access.is_empty()) {
            output.line(format!("\nAccess rules: {}", access.rules().len()))?;
        }
        Ok(exit)
    }

    fn findings(&self, policy: &Policy) -> Vec<Finding> {
        let standards = self.standard.iter();
        standards
            .flat_map(|name| policy.check((*name).into()))
            .collect()
    }
}

/// Whether it could be put in force: a canary is compared with the policy beside it.
fn checked(contents: Contents) -> Result<Contents, Failure> {
    let limiter = LoginLimiter::new(Policy::default(), MemoryStore::new());
    let ruleset = contents.clone().over(&Ruleset::new(Policy::default()));
    limiter.check_ruleset(&ruleset)?;
    Ok(contents)
}
