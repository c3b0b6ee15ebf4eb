//! `explain`: why a subject is refused, or will be.

use clap::Args;
use serde::Serialize;
use tower_login_rate_limit::{
    access::Action,
    admin::{ExplainedLimit, Explanation, LimitState},
};

use crate::{
    access,
    blocked::blocks,
    failure::{Exit, Failure},
    output::{Cell, Output, Style, Table, safe},
    period,
    session::Session,
    store::StoreArgs,
    subject::{Named, SubjectArgs},
};

const EXAMPLES: &str = "\
Examples:
  login-rate-limit explain 192.0.2.1
  login-rate-limit explain --user alice
  login-rate-limit explain --user alice --address 192.0.2.1
  login-rate-limit explain 2001:db8::/48
  if login-rate-limit explain 192.0.2.1 >/dev/null; then echo refused; fi";

/// How many attempts of a block are listed.
const ATTEMPTS: usize = 10;

/// Explain why an address, a network or a user is refused, or what one more failure would do
#[derive(Debug, Args)]
#[command(after_help = EXAMPLES)]
pub(crate) struct Explain {
    #[command(flatten)]
    subject: SubjectArgs,
    /// List all attempts of every rule, not only those that a block consists of
    #[arg(long)]
    attempts: bool,
}

#[derive(Serialize)]
struct Explained<'a> {
    refused: bool,
    #[serde(flatten)]
    explanation: &'a Explanation,
}

impl Explain {
    pub(crate) async fn run(self, store: &StoreArgs, output: &Output) -> Result<Exit, Failure> {
        let named = self.subject.named()?;
        let subject = named.subject()?;
        let session = Session::to_read(store)?;
        session.ruleset(output).await?;
        let explanation = session.admin.explain(&subject).await?;
        let refused = is_refused(&named, &explanation);
        let explained = Explained {
            refused,
            explanation: &explanation,
        };
        if !output.json(&explained)? {
            self.print(&named, &explained, &session, output)?;
        }
        Ok(Exit::found(refused))
    }

    fn print(
        &self,
        named: &Named,
        explained: &Explained<'_>,
        session: &Session,
        output: &Output,
    ) -> Result<(), Failure> {
        let explanation = explained.explanation;
        output.line(headline(named, explained, output))?;
        if let Some(rule) = &explanation.decided_by {
            output.line("")?;
            let overruled = explanation.overruled.iter();
            output.table(&access::table(std::iter::once(rule).chain(overruled)))?;
        }
        if !explanation.limits.is_empty() {
            output.line("")?;
            output.table(&limits(session, &explanation.limits))?;
        }
        let is_network = matches!(named, Named::Network(_));
        let chosen = |limit: &&ExplainedLimit| {
            let is_why = limit.state == LimitState::Blocked && !is_network;
            !limit.attempts.is_empty() && (self.attempts || is_why)
        };
        for limit in explanation.limits.iter().filter(chosen) {
            self.print_attempts(limit, session, output)?;
        }
        if !explanation.known_addresses.is_empty() {
            let known = explanation.known_addresses.iter().map(ToString::to_string);
            let known: Vec<_> = known.collect();
            output.line(format!("\nHas logged in from {}.", known.join(", ")))?;
        }
        if explanation.is_truncated {
            output.note("there are more blocks than these; `login-rate-limit blocked` lists them");
        }
        Ok(())
    }

    fn print_attempts(
        &self,
        limit: &ExplainedLimit,
        session: &Session,
        output: &Output,
    ) -> Result<(), Failure> {
        let of = match &limit.user {
            Some(user) => format!(" of {}", safe(&session.user(Some(user)))),
            None => String::new(),
        };
        output.line(format!(
            "\nAttempts{of} under {}, the newest first:",
            at(limit)
        ))?;
        let most = if self.attempts { usize::MAX } else { ATTEMPTS };
        for attempt in limit.attempts.iter().take(most) {
            let what = match (attempt.in_flight, attempt.counts) {
                (true, _) => "in flight until then",
                (false, true) => "failed",
                (false, false) => "failed, no longer counts",
            };
            let line = format!("  {}  {what}", period::shown(attempt.at));
            let style = if attempt.counts {
                Style::Plain
            } else {
                Style::Dim
            };
            output.line(output.paint(style, &line))?;
        }
        let listed = limit.attempts.len().min(most);
        if limit.kept.max(limit.attempts.len()) > listed {
            let more = limit.kept.max(limit.attempts.len()) - listed;
            output.line(format!("  … and {more} more"))?;
        }
        Ok(())
    }
}

/// A user or a network that no rule refuses as a whole may be refused in parts, which is no refusal of it.
fn is_refused(named: &Named, explanation: &Explanation) -> bool {
    let decided = explanation.decided_by.as_ref().map(|rule| rule.action());
    match (named, decided) {
        (_, Some(Action::Deny)) => true,
        (_, Some(Action::Allow)) => false,
        (Named::Address(_), None) => {
            let own = |limit: &&ExplainedLimit| !limit.by_user;
            enforced(explanation)
                .filter(own)
                .any(|limit| limit.state.refuses())
        }
        _ => explanation.refuses(),
    }
}

fn enforced(explanation: &Explanation) -> impl Iterator<Item = &ExplainedLimit> {
    explanation.limits.iter().filter(|limit| !limit.shadow)
}

fn headline(named: &Named, explained: &Explained<'_>, output: &Output) -> String {
    let explanation = explained.explanation;
    if let Some(rule) = &explanation.decided_by {
        let (style, verb) = match rule.action() {
            Action::Allow => (Style::Green, "allowed"),
            Action::Deny => (Style::Red, "denied"),
        };
        let verb = output.paint(style, verb);
        return format!(
            "{named} is {verb} by the access rule {}, whatever the limits say.",
            safe(rule.name())
        );
    }
    let refusing = enforced(explanation).filter(|limit| limit.state.refuses());
    let refusing: Vec<_> = refusing.collect();
    if !explained.refused {
        let not_refused = output.paint(Style::Green, "not refused");
        return match refusing.len() {
            0 => format!("{named} is {not_refused}."),
            1 => format!("{named} is {not_refused}, but 1 user there is."),
            n => format!("{named} is {not_refused}, but {n} users there are."),
        };
    }
    let refused = output.paint(Style::Red, "refused");
    match (named, &refusing[..]) {
        (Named::Network(_), many) => format!("{} in {named}.", blocks(many.len())),
        (Named::User(_), [one]) => format!("{named} is {refused} by {}.", at(one)),
        (Named::User(_), [first, rest @ ..]) => {
            format!(
                "{named} is {refused} by {} and {} more.",
                at(first),
                rest.len()
            )
        }
        (_, rules) => {
            let rules: Vec<_> = rules.iter().map(|limit| &*limit.rule).collect();
            format!("{named} is {refused} by {}.", rules.join(", "))
        }
    }
}

/// The rule, and where it counts.
fn at(limit: &ExplainedLimit) -> String {
    match limit.address {
        Some(address) => format!("{} at {address}", limit.rule),
        None => limit.rule.to_string(),
    }
}

fn limits(session: &Session, limits: &[ExplainedLimit]) -> Table {
    let mut table = Table::new(["RULE", "ADDRESS", "USER", "STATE", ""]);
    for limit in limits {
        let (state, style) = match limit.state {
            LimitState::Exempt => ("exempt", Style::Green),
            LimitState::Clear => ("clear", Style::Green),
            LimitState::Busy => ("busy", Style::Yellow),
            LimitState::Blocked => ("blocked", Style::Red),
            _ => ("other", Style::Plain),
        };
        let user = match (limit.by_user, &limit.user) {
            (false, _) => "any".to_owned(),
            (true, None) => "this one".to_owned(),
            (true, user) => session.user(user.as_ref()),
        };
        table.row([
            Cell::new(&limit.rule),
            Cell::new(
                limit
                    .address
                    .map_or("any".to_owned(), |address| address.to_string()),
            ),
            Cell::new(user),
            Cell::new(state).styled(style),
            Cell::new(&limit.words),
        ]);
    }
    table
}
