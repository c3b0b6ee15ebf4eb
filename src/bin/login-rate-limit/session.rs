//! The administration API on a store, and what is audited.

use std::{path::Path, sync::Arc};

use tower_login_rate_limit::{
    LoginLimiter, Policy,
    admin::Admin,
    event::{EventUser, RedisStream, Sealer},
    live::Version,
};

use crate::{
    failure::{Exit, Failure},
    output::Output,
    policy::file,
    store::StoreArgs,
};

/// What commands work with.
pub(crate) struct Session {
    pub(crate) limiter: LoginLimiter,
    pub(crate) admin: Admin,
    sealer: Option<Sealer>,
    /// Where changes are audited.
    stream: Option<Arc<RedisStream>>,
    /// Whether it is known what the app was started with.
    has_base: bool,
}

impl Session {
    /// For commands that change nothing.
    pub(crate) fn to_read(args: &StoreArgs) -> Result<Self, Failure> {
        let limiter = LoginLimiter::new(base_policy(args)?, args.open()?);
        Self::new(args, limiter, None)
    }

    /// For commands that change something, which is audited in the stream of events.
    pub(crate) fn to_change(args: &StoreArgs) -> Result<Self, Failure> {
        let stream = Arc::new(args.stream()?.open(args.url()?)?);
        let limiter = LoginLimiter::new(base_policy(args)?, args.open()?);
        let limiter = limiter.with_observer(Arc::clone(&stream));
        Self::new(args, limiter, Some(stream))
    }

    fn new(
        args: &StoreArgs,
        limiter: LoginLimiter,
        stream: Option<Arc<RedisStream>>,
    ) -> Result<Self, Failure> {
        Ok(Self {
            // The policy may be another one than the app's.
            admin: limiter.admin()?.without_pruning(),
            limiter,
            sealer: args.sealer()?,
            stream,
            has_base: args.base_policy.is_some(),
        })
    }

    /// The newest ruleset, with a note if that is a guess.
    pub(crate) async fn ruleset(&self, output: &Output) -> Result<Version, Failure> {
        let version = self.admin.ruleset().await?;
        if version.version == 0 && !self.has_base {
            output.note(
                "no rules are in the store, so the default policy is assumed; pass the app's own with --base-policy",
            );
        }
        Ok(version)
    }

    /// The newest ruleset, to be changed in part. The rest of it must be known: the first version that is written
    /// is put in force on every instance, in place of what that was started with.
    pub(crate) async fn ruleset_to_change(&self) -> Result<Version, Failure> {
        let version = self.admin.ruleset().await?;
        if version.version == 0 && !self.has_base {
            return Err(Failure::error(
                "no rules are in the store yet, and the first version replaces the policy that the app was started \
                 with: pass that policy with --base-policy FILE (`--base-policy default` if it is the default)",
            ));
        }
        Ok(version)
    }

    /// The user as it is shown in lists, in clear if it is sealed and the secret is known.
    pub(crate) fn user(&self, user: Option<&EventUser>) -> String {
        let Some(shown) = user.and_then(EventUser::shown) else {
            return "***".to_owned();
        };
        self.opened(&shown)
    }

    /// The name that a text seals, or the text.
    pub(crate) fn opened(&self, shown: &str) -> String {
        let opened = self.sealer.as_ref().map(|sealer| sealer.open(shown));
        match opened {
            Some(Ok(name)) => name,
            _ => shown.to_owned(),
        }
    }

    /// Waits until what was changed is audited.
    pub(crate) async fn finish(&self, output: &Output) {
        let is_written = self.limiter.observed().await;
        let is_kept =
            |stream: &Arc<RedisStream>| is_written && stream.written() > 0 && stream.lost() == 0;
        if !self.stream.as_ref().is_none_or(is_kept) {
            output.note(
                "the change is made, but Redis has not taken the event for the audit; are +xadd and +expire permitted?",
            );
        }
    }
}

/// What the app was started with, as far as it is known.
pub(crate) fn base_policy(args: &StoreArgs) -> Result<Policy, Failure> {
    match args.base_policy.as_deref() {
        None => Ok(Policy::default()),
        Some(name) => named_policy(name).map_or_else(|| file::read_policy(Path::new(name)), Ok),
    }
}

/// A policy of the crate, by its name.
pub(crate) fn named_policy(name: &str) -> Option<Policy> {
    Some(match name {
        "default" => Policy::default(),
        "strict" => Policy::strict(),
        "nist" => Policy::nist(),
        "pci" => Policy::pci(),
        "owasp" => Policy::owasp(),
        _ => return None,
    })
}

/// The result of a change: whether it was only tried.
pub(crate) const fn would(dry_run: bool, done: &'static str, would: &'static str) -> &'static str {
    if dry_run { would } else { done }
}

/// Nothing was changed because an operator declined.
pub(crate) fn declined() -> Failure {
    Failure::new(Exit::Error, "nothing was changed")
}
