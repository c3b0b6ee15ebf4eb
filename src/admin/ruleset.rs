//! The ruleset of a fleet: read, changed, rolled back.

use std::net::IpAddr;

use super::{Admin, AdminError, Author, Subject, subject::Repr};
use crate::{
    Address, Period, PolicyError, Token,
    access::{AccessRule, Field},
    clock::{Clock, SystemClock, to_millis},
    event::{AdminAction, Event, What},
    insight::BusiestReport,
    live::{Instance, Ruleset, Version},
};

/// How often a change that can be applied to any version is tried again if another operator was faster.
const TRIES: usize = 20;

/// The ruleset of a fleet. See [`live`](crate::live).
impl Admin {
    /// The newest version of the ruleset: what is in force on every instance that follows it. Version 0, without an
    /// author, is what this process was started with: none has been written yet.
    ///
    /// # Errors
    ///
    /// If the store fails, or a version of this crate that is too new has written it.
    pub async fn ruleset(&self) -> Result<Version, AdminError> {
        match self.ledger.document().await? {
            Some(document) => read(document.version, &document.text),
            None => Ok(Version::of_process(&self.limiter)),
        }
    }

    /// The number of the newest version, without reading it.
    #[cfg(feature = "server")]
    pub(crate) async fn newest_version(&self) -> Result<u64, AdminError> {
        Ok(self.ledger.document_version().await?)
    }

    /// Replaces the ruleset, if `expected` is the newest version, and returns the number of the new one. It is in
    /// force in this process when this returns, and on the other instances within a second.
    ///
    /// # Errors
    ///
    /// [`AdminErrorKind::Conflict`](super::AdminErrorKind::Conflict) if there is another version: the
    /// [error](AdminError::conflict) has its number, and what is different from the expected one.
    /// [`AdminErrorKind::InvalidInput`](super::AdminErrorKind::InvalidInput) if the ruleset is invalid.
    pub async fn replace_ruleset(
        &self,
        expected: u64,
        ruleset: Ruleset,
        author: &Author,
    ) -> Result<u64, AdminError> {
        let current = self.ruleset().await?;
        if current.version != expected {
            return Err(self.conflict(expected, &current).await);
        }
        match self.write(&current, ruleset, author).await? {
            Ok(version) => Ok(version),
            Err(()) => {
                let current = self.ruleset().await?;
                Err(self.conflict(expected, &current).await)
            }
        }
    }

    /// The last versions, the newest first. Those that a newer version of this crate has written are left out.
    ///
    /// # Errors
    ///
    /// If the store fails.
    pub async fn history(&self) -> Result<Vec<Version>, AdminError> {
        let documents = self.ledger.past_documents().await?;
        let versions = documents.iter();
        Ok(versions
            .filter_map(|document| read(document.version, &document.text).ok())
            .collect())
    }

    /// Writes the policy and the canary of an earlier version again, if `expected` is the newest at present. Access
    /// rules stay as they are: what was blocked or allowed by hand since then has other reasons. To go back with
    /// them too, [replace](Self::replace_ruleset) the ruleset by that of the [history](Self::history).
    ///
    /// # Errors
    ///
    /// As for [`replace_ruleset`](Self::replace_ruleset), and if the version is no longer kept.
    pub async fn roll_back(
        &self,
        expected: u64,
        to: u64,
        author: &Author,
    ) -> Result<u64, AdminError> {
        let Some(document) = self.ledger.past_document(to).await? else {
            let message = format!("there is no version {to}, or it is no longer kept");
            return Err(AdminError::invalid(message));
        };
        let past = read(document.version, &document.text)?.ruleset;
        let access = self.ruleset().await?.ruleset.access;
        self.replace_ruleset(expected, past.with_access(access), author)
            .await
    }

    /// Adds an access rule, or replaces the one of the same name. The author's name is written into the rule, and
    /// the reason if it has no note.
    ///
    /// # Names in the store
    ///
    /// The store keeps rules as they are written, the name of a rule by user in clear: instances compare it, and
    /// operators read it. It is in the newest version of the ruleset and in those of the [history](Self::history),
    /// also when the rule has been removed. Events of the change do not show it.
    ///
    /// # Errors
    ///
    /// If the store fails, or the set of rules becomes invalid.
    pub async fn add_access_rule(
        &self,
        rule: AccessRule,
        author: &Author,
    ) -> Result<u64, AdminError> {
        let rule = rule.with_author(author.name()).map_err(invalid)?;
        let rule = match rule.note() {
            Some(_) => rule,
            None => rule.with_note(author.reason()).map_err(invalid)?,
        };
        self.change(author, |ruleset| {
            let access = ruleset.access.clone().with_rule(rule.clone())?;
            Ok(ruleset.with_access(access))
        })
        .await
    }

    /// Removes the access rule of this name.
    ///
    /// # Errors
    ///
    /// If there is none, or the store fails.
    pub async fn remove_access_rule(&self, name: &str, author: &Author) -> Result<u64, AdminError> {
        self.change(author, |ruleset| {
            let access = ruleset.access.clone().without_rule(name)?;
            Ok(ruleset.with_access(access))
        })
        .await
    }

    /// Blocks by hand: an address, a network, a user, or a user at an address. Returns the name of the access rule
    /// that does it, which is ahead of all limits, counts nothing, and can be
    /// [removed](Self::remove_access_rule).
    ///
    /// The name of a user is then [in clear](Self::add_access_rule) in the store. Everything else
    /// there shows it as [`UserDisplay`](crate::event::UserDisplay) was chosen.
    ///
    /// # Errors
    ///
    /// If the network is every address, or the store fails.
    pub async fn block(
        &self,
        subject: impl Into<Subject>,
        lasts: Period,
        author: &Author,
    ) -> Result<String, AdminError> {
        let subject = subject.into();
        let name = format!("block-{}", Token::new());
        let deny = |field, value: String| AccessRule::deny(name.clone(), field, value);
        // An IPv6 address is the network that it is counted by: its neighbors are the same client.
        let counted = |ip: IpAddr| {
            let in_force = self.limiter.in_force();
            Address::new(ip, in_force.policy(ip).ipv6_prefix()).to_string()
        };
        let rule = match &subject.0 {
            Repr::Address(ip) => deny(Field::Network, counted(*ip)),
            Repr::Network(network) => deny(Field::Network, network.to_string()),
            Repr::User(user) => deny(Field::User, user.clone()),
            Repr::Pair(ip, user) => {
                deny(Field::Network, counted(*ip)).and_then(|rule| rule.for_user(user))
            }
        };
        let mut rule = rule.map_err(invalid)?;
        if let Some(lasts) = lasts.as_duration() {
            let until = SystemClock.now().saturating_add(to_millis(lasts));
            rule = rule.with_expiry(until).map_err(invalid)?;
        }
        self.audit(AdminAction::Block, Some(&subject.0), author);
        self.add_access_rule(rule, author).await?;
        Ok(name)
    }

    /// The instances that follow the ruleset and have reported themselves within the last seconds, with the version
    /// that each enforces.
    ///
    /// # Errors
    ///
    /// If the store fails.
    pub async fn instances(&self) -> Result<Vec<Instance>, AdminError> {
        let reports = self.ledger.instances().await?.into_iter();
        Ok(reports
            .filter_map(|(id, text)| Instance::from_text(id, &text))
            .collect())
    }

    /// The addresses and users with most failures and refusals lately, by the reports of all instances that
    /// [keep them](crate::LoginLimiter::with_insight) and of this process.
    ///
    /// # Errors
    ///
    /// If the store fails.
    pub async fn busiest(&self, count: usize) -> Result<BusiestReport, AdminError> {
        let own = self.limiter.insight();
        let live = self.limiter.instance_id();
        let others = self.instances().await?.into_iter();
        let others =
            others.filter(|instance| own.is_none() || live.as_deref() != Some(&instance.id));
        let own = own.map_or_else(BusiestReport::default, |own| own.busiest(usize::MAX));
        let merged = others.fold(own, |merged, other| merged.merge(other.busiest));
        Ok(merged.first(count))
    }

    /// Puts the newest version in force in a process that does not follow it: blocks are judged by the limits that
    /// the fleet enforces.
    pub(super) async fn catch_up(&self) -> Result<(), AdminError> {
        let is_live = self.limiter.instance_id().is_some();
        if is_live || self.ledger.document_version().await? == self.limiter.version() {
            return Ok(());
        }
        if let Some(document) = self.ledger.document().await? {
            let newest = read(document.version, &document.text)?;
            (self.limiter)
                .put_in_force(newest.version, &newest.ruleset, Some(&document.text))
                .map_err(invalid)?;
        }
        Ok(())
    }

    /// Changes whatever version is the newest.
    async fn change(
        &self,
        author: &Author,
        change: impl Fn(Ruleset) -> Result<Ruleset, PolicyError>,
    ) -> Result<u64, AdminError> {
        for _ in 0..TRIES {
            let current = self.ruleset().await?;
            let ruleset = change(current.ruleset.clone()).map_err(invalid)?;
            // What has expired is as if absent, so it need not be kept.
            let access = ruleset.access.clone().without_expired(SystemClock.now());
            let ruleset = ruleset.with_access(access.map_err(invalid)?);
            if let Ok(version) = self.write(&current, ruleset, author).await? {
                return Ok(version);
            }
        }
        Err(AdminError::busy())
    }

    /// Writes a version that follows `current`, and puts it in force here. `Err(())` if another one was written.
    async fn write(
        &self,
        current: &Version,
        ruleset: Ruleset,
        author: &Author,
    ) -> Result<Result<u64, ()>, AdminError> {
        let written = Version::new(current.version + 1, ruleset, author);
        let text = written.to_text().map_err(AdminError::unwritable)?;
        // Read back and validated as a whole before it is written: no instance could put it in force otherwise, and no
        // operator replace it, as that begins with the newest version.
        Version::from_text(written.version, &text).map_err(AdminError::unwritable)?;
        self.limiter
            .check_ruleset(&written.ruleset)
            .map_err(invalid)?;
        let replaced = self.ledger.replace_document(current.version, &text).await?;
        let Ok(version) = replaced else {
            return Ok(Err(()));
        };
        // Unless a newer one was put in force in between.
        if self.limiter.version() <= current.version {
            (self.limiter)
                .put_in_force(version, &written.ruleset, Some(&text))
                .map_err(invalid)?;
        }
        self.limiter.emit(|| {
            let changes = current.ruleset.differences(&written.ruleset);
            Event::new(What::DocumentChanged {
                author: author.name().into(),
                reason: author.reason().into(),
                from: current.version,
                to: version,
                changes: changes.into_iter().map(String::into_boxed_str).collect(),
            })
        });
        Ok(Ok(version))
    }

    async fn conflict(&self, expected: u64, current: &Version) -> AdminError {
        let before = match self.ledger.past_document(expected).await {
            Ok(Some(document)) => read(expected, &document.text).ok(),
            _ => None,
        };
        let before = before.unwrap_or_else(|| Version::of_process(&self.limiter));
        let differences = before.ruleset.differences(&current.ruleset);
        AdminError::conflicting(expected, current, differences)
    }
}

fn read(version: u64, text: &str) -> Result<Version, AdminError> {
    Version::from_text(version, text).map_err(|error| AdminError::unreadable(version, &error))
}

fn invalid(error: PolicyError) -> AdminError {
    AdminError::invalid(error.to_string())
}
