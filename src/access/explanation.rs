//! Which rules match a request, for operators.

use super::{
    AccessQuery, AccessRule, AccessRules, Action,
    keywords::{contains, fold},
    network::canonical,
    paths::{RequestPath, segments},
    pattern::Pattern,
};
use crate::algorithm::Millis;

/// Which rule decides on a request, and which others match it. Returned by [`AccessRules::explain`].
#[derive(Clone, Debug)]
pub struct Explanation<'r> {
    decides: Option<&'r AccessRule>,
    overruled: Vec<&'r AccessRule>,
    expired: Vec<&'r AccessRule>,
}

impl<'r> Explanation<'r> {
    pub(super) fn new(rules: &'r AccessRules, query: &AccessQuery<'_>, now: Millis) -> Self {
        let decides = rules.decide(query, now);
        let comparison = Comparison::new(rules, query);
        let is_other = |rule: &&AccessRule| decides.is_none_or(|d| d.name() != rule.name());
        let (expired, overruled) = (rules.rules().iter())
            .filter(|rule| comparison.matches(rule))
            .filter(is_other)
            .partition(|rule| rule.is_expired(now));
        Self {
            decides,
            overruled,
            expired,
        }
    }

    /// The rule that decides. `None` if the limits do.
    #[must_use]
    pub const fn decides(&self) -> Option<&'r AccessRule> {
        self.decides
    }

    /// The rules that match and do not decide, in the order of the list.
    pub fn overruled(&self) -> &[&'r AccessRule] {
        &self.overruled
    }

    /// The rules that would match and have expired, in the order of the list.
    pub fn expired(&self) -> &[&'r AccessRule] {
        &self.expired
    }
}

/// Compares a request with one rule at a time.
struct Comparison<'a> {
    rules: &'a AccessRules,
    query: &'a AccessQuery<'a>,
    folded_user: Option<Vec<u8>>,
    path: Option<RequestPath<'a>>,
}

impl<'a> Comparison<'a> {
    fn new(rules: &'a AccessRules, query: &'a AccessQuery<'a>) -> Self {
        Self {
            rules,
            query,
            folded_user: query.user.map(|user| fold(user).as_bytes().to_vec()),
            path: query.path.map(RequestPath::new),
        }
    }

    fn matches(&self, rule: &AccessRule) -> bool {
        let path = || {
            let path = self.path.as_ref();
            path.filter(|path| rule.action() == Action::Deny || path.is_plain())
        };
        match rule.pattern() {
            Pattern::Network(network) => {
                let is_user = |user| self.query.user == Some(&self.rules.normalize(user));
                (self.query.address).is_some_and(|ip| network.contains(&canonical(ip)))
                    && rule.only_user().is_none_or(is_user)
            }
            Pattern::User(user) => self.query.user == Some(&self.rules.normalize(user)),
            Pattern::UserKeyword(keyword) => {
                (self.folded_user.as_ref()).is_some_and(|user| contains(user, &fold(keyword)))
            }
            Pattern::UserAgent(keyword) => {
                (self.query.user_agent).is_some_and(|agent| contains(agent, keyword))
            }
            Pattern::Path(exact) => path().is_some_and(|path| path.segments().eq(segments(exact))),
            Pattern::PathPrefix(prefix) => path().is_some_and(|path| {
                let mut of_path = path.segments();
                segments(prefix).all(|segment| of_path.next() == Some(segment))
            }),
        }
    }
}
