//! The set of all rules, compiled.

use std::{
    borrow::Cow,
    collections::{HashMap, HashSet},
    fmt,
    sync::Arc,
};

use super::{
    AccessQuery, AccessRule, Field,
    explanation::Explanation,
    keywords::{Keywords, KeywordsBuilder, fold},
    network::Networks,
    paths::{Paths, RequestPath},
    pattern::Pattern,
    standing::Entries,
};
use crate::{PolicyError, algorithm::Millis, normalize};

/// The largest number of rules.
const MAX_RULES: usize = 1_000_000;
/// The largest number of different keywords by one field: an automaton takes some memory for each of their
/// bytes.
const MAX_KEYWORDS: usize = 10_000;

type Normalizer = Arc<dyn Fn(&str) -> String + Send + Sync>;

/// An immutable set of rules, compiled for look-ups. See [the module](super) for an example.
///
/// Clones share the rules, and any number of threads look up at once. Changing the set compiles a new one,
/// which takes as long as the list, and leaves clones as they are.
#[derive(Clone)]
#[must_use = "a set does nothing until rules are looked up"]
pub struct AccessRules {
    compiled: Arc<Compiled>,
    normalizer: Option<Normalizer>,
}

struct Compiled {
    rules: Vec<AccessRule>,
    has_expiry: bool,
    networks: Networks,
    /// The networks of rules for one user.
    networks_of: HashMap<Box<str>, Networks>,
    users: HashMap<Box<str>, Entries>,
    user_keywords: Keywords,
    user_agents: Keywords,
    paths: Paths,
}

impl AccessRules {
    /// A set of these rules. Users are compared in the form of [`normalize`].
    ///
    /// # Errors
    ///
    /// If two rules have the same name, a user has an empty normal form, or there are more than 1,000,000
    /// rules or 10,000 different keywords of one field.
    pub fn new(rules: impl IntoIterator<Item = AccessRule>) -> Result<Self, PolicyError> {
        Self::compile(rules.into_iter().collect(), None)
    }

    /// Normalizes the users of rules by this function in place of [`normalize`]: the one that the limiter
    /// [has](crate::LoginLimiter::with_normalizer).
    ///
    /// # Errors
    ///
    /// If the normal form of a user is empty.
    pub fn with_normalizer(
        self,
        normalizer: impl Fn(&str) -> String + Send + Sync + 'static,
    ) -> Result<Self, PolicyError> {
        Self::compile(self.rules().to_vec(), Some(Arc::new(normalizer)))
    }

    /// Adds a rule, or replaces the one of the same name, which keeps its position.
    ///
    /// # Errors
    ///
    /// As for [`AccessRules::new`].
    pub fn with_rule(self, rule: AccessRule) -> Result<Self, PolicyError> {
        let mut rules = self.rules().to_vec();
        match rules.iter_mut().find(|old| old.name() == rule.name()) {
            Some(old) => *old = rule,
            None => rules.push(rule),
        }
        Self::compile(rules, self.normalizer)
    }

    /// Removes the rule of this name.
    ///
    /// # Errors
    ///
    /// If there is none.
    pub fn without_rule(self, name: &str) -> Result<Self, PolicyError> {
        if self.rule(name).is_none() {
            return Err(PolicyError::new(
                format!("access rule {name:?}"),
                "is not in this set",
            ));
        }
        let others = self.rules().iter().filter(|rule| rule.name() != name);
        let rules = others.cloned().collect();
        Self::compile(rules, self.normalizer)
    }

    /// Removes all rules that have expired at `now`, in milliseconds since 1970. No decision at `now` or later
    /// changes.
    ///
    /// # Errors
    ///
    /// As for [`AccessRules::new`], if a normalizer does not always return the same.
    pub fn without_expired(self, now: Millis) -> Result<Self, PolicyError> {
        if self.expired(now).next().is_none() {
            return Ok(self);
        }
        let live = self.rules().iter().filter(|rule| !rule.is_expired(now));
        Self::compile(live.cloned().collect(), self.normalizer)
    }

    /// All rules, in the order of the list.
    pub fn rules(&self) -> &[AccessRule] {
        &self.compiled.rules
    }

    /// Whether there are no rules.
    #[inline]
    pub fn is_empty(&self) -> bool {
        self.compiled.rules.is_empty()
    }

    /// Whether a rule expires, so that the time matters.
    pub(crate) fn has_expiry(&self) -> bool {
        self.compiled.has_expiry
    }

    /// Whether a rule compares users, so that one who is not known yet may change the decision.
    pub(crate) fn compares_users(&self) -> bool {
        let Compiled {
            networks_of,
            users,
            user_keywords,
            ..
        } = &*self.compiled;
        !(networks_of.is_empty() && users.is_empty() && user_keywords.is_empty())
    }

    /// Whether a rule compares the path or the user agent of requests.
    pub(crate) fn compares_requests(&self) -> bool {
        !(self.compiled.user_agents.is_empty() && self.compiled.paths.is_empty())
    }

    /// The rule of this name.
    pub fn rule(&self, name: &str) -> Option<&AccessRule> {
        self.rules().iter().find(|rule| rule.name() == name)
    }

    /// The rules that have expired at `now`, in milliseconds since 1970.
    pub fn expired(&self, now: Millis) -> impl Iterator<Item = &AccessRule> {
        let rules = self.rules().iter();
        rules.filter(move |rule| rule.is_expired(now))
    }

    /// The rule that decides on a request at `now`, in milliseconds since 1970: its [action](AccessRule::action)
    /// is the decision. `None` if no rule matches, so that the limits apply.
    ///
    /// [The module](super#precedence) has the precedence of rules.
    #[must_use]
    pub fn decide(&self, query: &AccessQuery<'_>, now: Millis) -> Option<&AccessRule> {
        let Compiled {
            rules,
            networks,
            networks_of,
            users,
            user_keywords,
            user_agents,
            paths,
            ..
        } = &*self.compiled;
        let by_network = query.address.and_then(|ip| networks.decide(ip, now));
        let by_network_of = (query.user)
            .filter(|_| !networks_of.is_empty())
            .and_then(|user| networks_of.get(user)?.decide(query.address?, now));
        let by_user = query.user.and_then(|user| users.get(user)?.decide(now));
        let by_user_keyword = (query.user)
            .filter(|_| !user_keywords.is_empty())
            .and_then(|user| user_keywords.decide(fold(user).as_bytes(), now));
        let by_user_agent = (query.user_agent).and_then(|agent| user_agents.decide(agent, now));
        let by_path = (query.path)
            .filter(|_| !paths.is_empty())
            .and_then(|path| paths.decide(&RequestPath::new(path), now));
        let candidates = [
            by_network,
            by_network_of,
            by_user,
            by_user_keyword,
            by_user_agent,
            by_path,
        ];
        let strongest = candidates.into_iter().flatten().max()?;
        rules.get(strongest.position())
    }

    /// Which rule decides on a request at `now`, and which others match: for a console, to try a caller before
    /// a change is saved. Compares every rule; to decide on requests there is [`decide`](Self::decide).
    #[must_use]
    pub fn explain(&self, query: &AccessQuery<'_>, now: Millis) -> Explanation<'_> {
        Explanation::new(self, query, now)
    }

    pub(super) fn normalize<'u>(&self, user: &'u str) -> Cow<'u, str> {
        normalize_by(self.normalizer.as_ref(), user)
    }

    fn compile(
        rules: Vec<AccessRule>,
        normalizer: Option<Normalizer>,
    ) -> Result<Self, PolicyError> {
        if rules.len() > MAX_RULES {
            let reason = format!("has {} rules; must have {MAX_RULES} at most", rules.len());
            return Err(PolicyError::new("access", reason));
        }
        let mut names = HashSet::with_capacity(rules.len());
        let mut networks = Networks::default();
        let mut networks_of = HashMap::<Box<str>, Networks>::new();
        let mut users = HashMap::<Box<str>, Entries>::new();
        let mut user_keywords = KeywordsBuilder::default();
        let mut user_agents = KeywordsBuilder::default();
        let mut paths = Paths::default();
        for (rule, position) in rules.iter().zip(0..) {
            if !names.insert(rule.name()) {
                return Err(PolicyError::new(
                    format!("access rule {:?}", rule.name()),
                    "occurs twice; a second rule needs a name of its own",
                ));
            }
            let normal_form = |user: &str| {
                let user = normalize_by(normalizer.as_ref(), user);
                if user.is_empty() {
                    let reason = "is empty in normal form; write a name";
                    return Err(rule.invalid(Field::User.as_str(), reason));
                }
                Ok(Box::from(user))
            };
            let entries = match rule.pattern() {
                Pattern::Network(network) => match rule.only_user() {
                    None => networks.entries(*network),
                    Some(user) => {
                        let networks = networks_of.entry(normal_form(user)?).or_default();
                        networks.entries(*network)
                    }
                },
                Pattern::User(user) => users.entry(normal_form(user)?).or_default(),
                Pattern::UserKeyword(keyword) => {
                    user_keywords.entries(&fold(keyword).to_ascii_lowercase())
                }
                Pattern::UserAgent(keyword) => user_agents.entries(&keyword.to_ascii_lowercase()),
                Pattern::Path(path) => paths.exact(path),
                Pattern::PathPrefix(path) => paths.prefix(path),
            };
            entries.add(rule.action(), rule.expires_at(), position);
        }
        drop(names);
        let compiled = Compiled {
            has_expiry: rules.iter().any(|rule| rule.expires_at().is_some()),
            networks,
            networks_of,
            users,
            user_keywords: build(user_keywords, Field::UserKeyword)?,
            user_agents: build(user_agents, Field::UserAgent)?,
            paths,
            rules,
        };
        Ok(Self {
            compiled: Arc::new(compiled),
            normalizer,
        })
    }
}

fn build(keywords: KeywordsBuilder, field: Field) -> Result<Keywords, PolicyError> {
    let count = keywords.len();
    let built = (count <= MAX_KEYWORDS).then(|| keywords.build()).flatten();
    built.ok_or_else(|| {
        let field = field.as_str();
        PolicyError::new(
            "access",
            format!("has {count} different keywords by {field}; must have {MAX_KEYWORDS} at most"),
        )
    })
}

fn normalize_by<'u>(normalizer: Option<&Normalizer>, user: &'u str) -> Cow<'u, str> {
    match normalizer {
        Some(normalizer) => Cow::Owned(normalizer(user)),
        None => normalize(user),
    }
}

/// No rules: every request is up to the limits.
impl Default for AccessRules {
    fn default() -> Self {
        Self {
            compiled: Arc::new(Compiled {
                rules: Vec::new(),
                has_expiry: false,
                networks: Networks::default(),
                networks_of: HashMap::new(),
                users: HashMap::new(),
                user_keywords: Keywords::default(),
                user_agents: Keywords::default(),
                paths: Paths::default(),
            }),
            normalizer: None,
        }
    }
}

impl fmt::Debug for AccessRules {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("AccessRules")
            .field("rules", &self.rules())
            .finish_non_exhaustive()
    }
}
