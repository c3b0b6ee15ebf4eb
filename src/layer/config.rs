//! The settings of a layer.

use std::{
    fmt,
    net::IpAddr,
    sync::{Arc, Once},
    time::Duration,
};

use http::request::Parts;

use super::{Classify, MissingUser, classify};
use crate::{
    Caller, LoginLimiter, Part,
    extract::{ExtractAddress, ExtractBodyUser, ExtractError, ExtractUser, ReadBody, value},
    limiter::InForce,
    logging,
    response::Respond,
};

#[derive(Clone)]
pub(super) struct Config {
    pub(super) limiter: LoginLimiter,
    pub(super) address: Arc<dyn ExtractAddress>,
    pub(super) user: UserSource,
    pub(super) missing_user: MissingUser,
    pub(super) values: Vec<(Arc<str>, Value)>,
    pub(super) body_limit: usize,
    /// `None` for no limit.
    pub(super) body_timeout: Option<Duration>,
    pub(super) pass_oversized: bool,
    pub(super) marked_checks: bool,
    pub(super) is_second_factor: bool,
    pub(super) classifier: Classifier,
    pub(super) notices: Arc<Notices>,
    pub(super) responder: Arc<dyn Respond>,
    pub(super) filter: Option<Filter>,
    pub(super) body_filter: Option<BodyFilter>,
    pub(super) shadow: bool,
    pub(super) rate_limit_fields: bool,
}

/// What a layer has logged.
#[derive(Debug)]
pub(super) struct Notices {
    pub(super) no_outcome: Once,
    pub(super) no_user: Once,
    pub(super) no_second_factor: Once,
    pub(super) nested: Once,
    pub(super) rejected: Once,
    pub(super) dropped: Once,
    pub(super) samples: logging::Samples,
}

#[derive(Clone)]
pub(super) enum Classifier {
    /// [`FailureByDefault`](classify::FailureByDefault), which logs a missing outcome.
    Default,
    /// [`ByStatus`](classify::ByStatus).
    ByStatus,
    Custom(Arc<dyn Classify>),
}

impl Classifier {
    pub(super) fn get(&self) -> &dyn Classify {
        match self {
            Self::Default => &classify::FailureByDefault,
            Self::ByStatus => &classify::ByStatus,
            Self::Custom(classifier) => &**classifier,
        }
    }
}

type Filter = Arc<dyn Fn(&Parts) -> bool + Send + Sync>;
type BodyFilter = Arc<dyn Fn(ReadBody<'_>) -> Result<bool, ExtractError> + Send + Sync>;
type Value = Arc<dyn Fn(&Parts) -> Option<String> + Send + Sync>;

#[derive(Clone)]
pub(super) enum UserSource {
    /// The handler identifies the user.
    Handler,
    Head(Arc<dyn ExtractUser>),
    Body(Arc<dyn ExtractBodyUser>),
}

impl Config {
    /// A caller at this address, with the values that rules count by.
    #[inline]
    pub(super) fn caller(
        &self,
        in_force: &InForce,
        address: IpAddr,
        request: &Parts,
    ) -> Caller<'static> {
        let mut caller = Caller::new(address).with_second_factor(self.is_second_factor);
        caller.is_shadowed = self.shadow;
        if in_force.counts_by_path
            && let Some(path) = value::path(request)
        {
            caller = caller.with_value(Part::PATH, path);
        }
        if in_force.counts_by_user_agent
            && let Some(agent) = value::user_agent(request)
        {
            caller = caller.with_value(Part::USER_AGENT, agent);
        }
        for (name, value) in &self.values {
            if let Some(value) = value(request) {
                caller = caller.with_value(name.to_string(), value);
            }
        }
        caller
    }

    #[inline]
    pub(super) fn counts(&self, request: &Parts) -> bool {
        self.filter.as_ref().is_none_or(|filter| filter(request))
    }
}

impl fmt::Debug for Config {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("Config")
            .field("limiter", &self.limiter)
            .field("shadow", &self.shadow)
            .finish_non_exhaustive()
    }
}
