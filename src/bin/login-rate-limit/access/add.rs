//! `allow add` and `deny add`.

use std::net::IpAddr;

use clap::{ArgGroup, Args};
use tower_login_rate_limit::{
    Period,
    access::{AccessRule, Action, Field},
    algorithm::Millis,
};

use super::Changed;
use crate::{
    change::ChangeArgs,
    failure::{Exit, Failure},
    output::Output,
    period,
    session::Session,
    store::StoreArgs,
};

/// Add a rule, or replace the one of the same name
#[derive(Debug, Args)]
#[command(group = ArgGroup::new("matches").required(true).multiple(true))]
pub(super) struct Add {
    /// The name, by which the rule is removed
    name: String,
    /// Addresses in this network, or one address
    #[arg(long, value_name = "NETWORK", group = "matches")]
    network: Option<String>,
    /// This user, in any spelling of the name; with --network, the user there
    #[arg(long, value_name = "NAME", group = "matches")]
    user: Option<String>,
    /// Users whose name contains this
    #[arg(long, value_name = "TEXT", group = "matches", conflicts_with_all = ["network", "user"])]
    user_keyword: Option<String>,
    /// User agents that contain this
    #[arg(long, value_name = "TEXT", group = "matches", conflicts_with_all = ["network", "user", "user_keyword"])]
    user_agent: Option<String>,
    /// This path
    #[arg(long, value_name = "PATH", group = "matches", conflicts_with_all = ["network", "user", "user_keyword", "user_agent"])]
    path: Option<String>,
    /// This path and those below it
    #[arg(long, value_name = "PATH", group = "matches", conflicts_with_all = ["network", "user", "user_keyword", "user_agent", "path"])]
    path_prefix: Option<String>,
    /// For how long: 30m, 12h, 1d
    #[arg(long = "for", value_name = "TIME", value_parser = crate::period::period)]
    lasts: Option<Period>,
    /// Until when: 2026-12-31T18:00:00Z
    #[arg(long, value_name = "TIME", value_parser = crate::period::time, conflicts_with = "lasts")]
    until: Option<Millis>,
    /// Allow what any client can send: everybody who learns of it guesses without a limit
    #[arg(long)]
    forgeable: bool,
    #[command(flatten)]
    change: ChangeArgs,
}

impl Add {
    pub(super) async fn run(
        self,
        store: &StoreArgs,
        output: &Output,
        action: Action,
    ) -> Result<Exit, Failure> {
        let rule = self
            .rule(action)
            .map_err(|error| Failure::usage(error.message()))?;
        let dry_run = self.change.dry_run;
        let author = self.change.author()?;
        let session = Session::to_change(store)?;
        let current = session.ruleset_to_change().await?;
        // As it is written, and whether the whole list is valid with it.
        let access = current.ruleset.access.clone().with_rule(rule.clone())?;
        let replaces = current.ruleset.access.rule(rule.name()).is_some();
        let mut version = current.version;
        if let Some(author) = &author {
            if self.is_wide() || replaces {
                let verb = if replaces { "replaces" } else { "adds" };
                let what = super::matches(&rule);
                let action = action.as_str();
                let name = rule.name();
                self.change.confirm(&format!(
                    "{verb} the rule {name}, which will {action} {what}"
                ))?;
            }
            version = session.admin.add_access_rule(rule.clone(), author).await?;
            session.finish(output).await;
        }
        let written = session.admin.ruleset().await?.ruleset.access;
        let written = written.rule(rule.name()).filter(|_| !dry_run);
        let rule = written
            .or_else(|| access.rule(rule.name()))
            .unwrap_or(&rule);
        let changed = Changed {
            dry_run,
            version,
            rule,
        };
        changed.print(output, "Added", "Would add")
    }

    fn rule(&self, action: Action) -> Result<AccessRule, Failure> {
        let (field, value) = self.field();
        let name = &self.name;
        let mut rule = match (action, self.forgeable) {
            (Action::Allow, false) => AccessRule::allow(name, field, value),
            (Action::Allow, true) => AccessRule::allow_forgeable(name, field, value),
            (Action::Deny, false) => AccessRule::deny(name, field, value),
            (Action::Deny, true) => {
                return Err(Failure::usage("--forgeable is about rules that allow"));
            }
        }
        .map_err(|error| {
            // The library's advice is about files and code.
            let text = error.to_string().replace(
                "accept that: `forgeable = true`, in Rust `AccessRule::allow_forgeable`",
                "accept that with --forgeable",
            );
            Failure::usage(text)
        })?;
        if let (Field::Network, Some(user)) = (field, &self.user) {
            rule = rule.for_user(user)?;
        }
        let lasts = self.lasts.and_then(Period::as_duration);
        let lasts = lasts.map(|lasts| period::now().saturating_add(period::millis(lasts)));
        if let Some(until) = self.until.or(lasts) {
            rule = rule.with_expiry(until)?;
        }
        Ok(rule)
    }

    fn field(&self) -> (Field, &str) {
        let fields = [
            (Field::Network, &self.network),
            (Field::User, &self.user),
            (Field::UserKeyword, &self.user_keyword),
            (Field::UserAgent, &self.user_agent),
            (Field::Path, &self.path),
            (Field::PathPrefix, &self.path_prefix),
        ];
        let mut given = fields.into_iter();
        let given = given.find_map(|(field, value)| Some((field, value.as_deref()?)));
        given.unwrap_or((Field::Network, ""))
    }

    /// Whether it is about more than one address, or one user there.
    fn is_wide(&self) -> bool {
        let address = self.network.as_deref().map(str::parse::<IpAddr>);
        !matches!(address, Some(Ok(_)))
    }
}
