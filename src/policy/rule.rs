//! A rule: a name, what it counts by, and a limit.

use std::sync::Arc;

use super::PolicyError;
use crate::{Limit, store::fingerprint::Digest};

/// What a rule counts by. Attempts that agree in all parts of a rule share a counter.
#[derive(Clone, Debug, PartialEq, Eq)]
#[non_exhaustive]
pub enum Part {
    /// The client's address.
    Address,
    /// The IPv6 network of this many bits that the client's address is in, from 1 to 127. The rule does not
    /// apply to IPv4, nor if the policy counts addresses by as many bits or fewer.
    Network(u8),
    /// The user who logs in. The rule does not apply while the user is unknown.
    User,
    /// A value of the app with this name, such as a tenant or a device. Attempts without the value share a
    /// counter, so that leaving it out gains nothing.
    Value(Arc<str>),
}

impl Part {
    /// The name of the value that [`Part::path`] counts by.
    pub const PATH: &'static str = "path";
    /// The name of the value that [`Part::user_agent`] counts by.
    pub const USER_AGENT: &'static str = "user-agent";

    /// The path of the request, which the layer provides: in axum the pattern of the route, so that path
    /// parameters make no difference; elsewhere the path without percent-encoding and doubled slashes. A
    /// client that reaches one handler by several paths has a counter for each.
    #[must_use]
    pub fn path() -> Self {
        Self::value(Self::PATH)
    }

    /// The `User-Agent` of the request, which the layer provides. The client chooses it freely, so it must
    /// not be the only limit.
    #[must_use]
    pub fn user_agent() -> Self {
        Self::value(Self::USER_AGENT)
    }

    /// The app's value of this name.
    #[must_use]
    pub fn value(name: impl Into<Arc<str>>) -> Self {
        Self::Value(name.into())
    }

    /// The text form in files.
    pub(super) fn to_text(&self) -> String {
        match self {
            Self::Address => "address".to_owned(),
            Self::Network(bits) => format!("network/{bits}"),
            Self::User => "user".to_owned(),
            Self::Value(name) if matches!(&**name, Self::PATH | Self::USER_AGENT) => {
                name.to_string()
            }
            Self::Value(name) => format!("value:{name}"),
        }
    }
}

/// What a rule counts by apart from the address.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Subject {
    Nothing,
    User,
    /// Values of the app, with or without the user.
    Joined,
}

impl Subject {
    fn of(parts: &[Part]) -> Self {
        match parts {
            [Part::Address | Part::Network(_)] => Self::Nothing,
            [Part::User]
            | [Part::User, Part::Address | Part::Network(_)]
            | [Part::Address | Part::Network(_), Part::User] => Self::User,
            _ => Self::Joined,
        }
    }
}

/// What is known of the user of an attempt, from the least to the most.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Naming {
    None,
    /// The user without a name, whom many people share.
    Nameless,
    Named,
}

impl Naming {
    /// What a rule with these parts needs. Over all addresses, failures without a name from some would refuse
    /// every login without a name from all others.
    fn least_for(parts: &[Part], by_address: bool) -> Self {
        match (parts.contains(&Part::User), by_address) {
            (false, _) => Self::None,
            (true, true) => Self::Nameless,
            (true, false) => Self::Named,
        }
    }
}

/// A named limit, and what it counts by. See [`Policy`](crate::Policy) for an example.
#[derive(Clone, Debug, PartialEq, Eq)]
#[must_use = "a rule does nothing until it is part of a policy"]
pub struct Rule {
    name: Arc<str>,
    parts: Vec<Part>,
    /// Whether `parts` has an address. Needed for each attempt.
    by_address: bool,
    /// The bits of the network among `parts`. Needed for each attempt.
    network: Option<u8>,
    /// Whether `parts` has a user. Needed for each attempt.
    by_user: bool,
    /// What must be known of the user for the rule to apply.
    least_user: Naming,
    subject: Subject,
    /// Of what all keys of the rule have in common: its name, and the parts that it does not count by.
    digest: Digest,
    limit: Limit,
    enabled: bool,
    shadow: bool,
    exempts_known: bool,
    /// Whether the rule applies to attempts at a second factor only.
    of_second_factor: bool,
}

impl Rule {
    /// The name of the rule that counts by address.
    pub const ADDRESS: &'static str = "address";
    /// The name of the rule that counts by IPv6 network of 56 bits, which a household often has.
    pub const NETWORK_56: &'static str = "network-56";
    /// The name of the rule that counts by IPv6 network of 48 bits, which a site often has.
    pub const NETWORK_48: &'static str = "network-48";
    /// The name of the rule that counts by user and address.
    pub const USER_ADDRESS: &'static str = "user-address";
    /// The name of the rule that counts by user, over all addresses. The user's known addresses are exempt
    /// if the rule is made by [`Policy::with_account_limit`](crate::Policy::with_account_limit) or in a
    /// file; otherwise add [`with_known_addresses_exempt`](Self::with_known_addresses_exempt).
    pub const ACCOUNT: &'static str = "account";
    /// The name of the rule that counts attempts at a second factor by user, over all addresses. It applies to
    /// no other attempts. See
    /// [`with_second_factor`](crate::LoginRateLimitLayer::with_second_factor).
    pub const SECOND_FACTOR: &'static str = "second-factor";

    /// A rule of the app. Its name is part of the keys in the store, and what a refusal reports.
    ///
    /// # Errors
    ///
    /// If the name is invalid, the parts are empty, repeated or not those of a predefined name, or the limit
    /// is invalid.
    pub fn new(
        name: impl Into<Arc<str>>,
        parts: impl IntoIterator<Item = Part>,
        limit: impl TryInto<Limit, Error: Into<PolicyError>>,
    ) -> Result<Self, PolicyError> {
        let name = name.into();
        check_name(&name)?;
        let parts: Vec<_> = parts.into_iter().collect();
        let invalid_key = |reason: String| Err(PolicyError::new(format!("{name}.key"), reason));
        if let Some(predefined) = Self::predefined_parts(&name)
            && !(parts.len() == predefined.len()
                && predefined.iter().all(|part| parts.contains(part)))
        {
            let key: Vec<_> = predefined.iter().map(Part::to_text).collect();
            return invalid_key(format!(
                "is always {key:?} for a rule of this name; give the rule another name"
            ));
        }
        if parts.is_empty() {
            return invalid_key("is empty; all attempts would share one counter".to_owned());
        }
        let is_address = |part: &&Part| matches!(part, Part::Address | Part::Network(_));
        if parts.iter().filter(is_address).count() > 1 && !parts[1..].contains(&parts[0]) {
            return invalid_key("has an address twice; a rule counts by one network".to_owned());
        }
        if parts
            .iter()
            .any(|part| matches!(part, Part::Network(0 | 128..)))
        {
            return invalid_key("a network has 1 to 127 bits".to_owned());
        }
        if let Some(i) = (1..parts.len()).find(|i| parts[..*i].contains(&parts[*i])) {
            let part = parts[i].to_text();
            return invalid_key(format!("part {} is {part:?} again", i + 1));
        }
        let limit = (limit.try_into()).map_err(|error| error.into().within(&name))?;
        Ok(Self::of(name, parts, limit))
    }

    /// What a rule with one of the predefined names counts by.
    pub(super) const fn predefined_parts(name: &str) -> Option<&'static [Part]> {
        match name.as_bytes() {
            b"address" => Some(&[Part::Address]),
            b"network-56" => Some(&[Part::Network(56)]),
            b"network-48" => Some(&[Part::Network(48)]),
            b"user-address" => Some(&[Part::User, Part::Address]),
            b"account" | b"second-factor" => Some(&[Part::User]),
            _ => None,
        }
    }

    /// A rule whose name and parts are known to be valid.
    pub(super) fn of(name: impl Into<Arc<str>>, parts: impl Into<Vec<Part>>, limit: Limit) -> Self {
        let (name, parts) = (name.into(), parts.into());
        let network = parts.iter().find_map(|part| match part {
            Part::Network(bits) => Some(*bits),
            _ => None,
        });
        let by_address = network.is_some() || parts.contains(&Part::Address);
        let subject = Subject::of(&parts);
        let mut digest = Digest::of_kind(&name);
        if !by_address {
            digest = digest.and(Digest::of_address(None));
        }
        if subject == Subject::Nothing {
            digest = digest.and(Digest::of_subject(&[]));
        }
        Self {
            subject,
            digest,
            of_second_factor: *name == *Self::SECOND_FACTOR,
            name,
            by_address,
            network,
            by_user: parts.contains(&Part::User),
            least_user: Naming::least_for(&parts, by_address),
            parts,
            limit,
            enabled: true,
            shadow: false,
            exempts_known: false,
        }
    }

    /// Exempts attempts from an address that the user has logged in from before: the rule neither counts
    /// nor refuses them. [`Policy::with_account_limit`](crate::Policy::with_account_limit) makes such a
    /// rule.
    ///
    /// # Errors
    ///
    /// If the rule does not count by user alone: known addresses are kept by user.
    pub fn with_known_addresses_exempt(self) -> Result<Self, PolicyError> {
        if self.parts != [Part::User] {
            return Err(PolicyError::new(
                format!("{}.exempt_known_addresses", self.name),
                "is for rules that count by user and nothing else: known addresses are kept by user",
            ));
        }
        Ok(self.exempting(true))
    }

    pub(super) fn exempting(mut self, exempts_known: bool) -> Self {
        self.exempts_known = exempts_known;
        self
    }

    /// Enables or disables the rule. A disabled rule counts nothing and refuses nothing.
    pub fn with_enabled(mut self, enabled: bool) -> Self {
        self.enabled = enabled;
        self
    }

    /// Puts the rule into shadow, to try it out: it counts as ever and refuses nothing. What it would have
    /// refused is in [`Report::shadowed`](crate::Report::shadowed), and the layer logs it.
    ///
    /// A rule in shadow limits nothing. It counts exactly what it would count if it were in force, by itself: where
    /// it would refuse, the attempt is not counted by it, and by all other rules as ever.
    pub fn with_shadow(mut self, shadow: bool) -> Self {
        self.shadow = shadow;
        self
    }

    /// The rule's name.
    pub fn name(&self) -> &str {
        &self.name
    }

    pub(crate) fn shared_name(&self) -> Arc<str> {
        Arc::clone(&self.name)
    }

    /// What the rule counts by.
    pub fn parts(&self) -> &[Part] {
        &self.parts
    }

    /// The rule's limit.
    pub const fn limit(&self) -> &Limit {
        &self.limit
    }

    /// Whether the rule is enabled.
    pub const fn is_enabled(&self) -> bool {
        self.enabled
    }

    /// Whether the rule is in [shadow](Self::with_shadow).
    pub const fn is_shadow(&self) -> bool {
        self.shadow
    }

    /// Whether the rule is enabled and not in shadow.
    pub(crate) const fn is_enforced(&self) -> bool {
        self.enabled && !self.shadow
    }

    /// Whether attempts from a known address of the user are exempt.
    pub const fn exempts_known_addresses(&self) -> bool {
        self.exempts_known
    }

    pub(crate) const fn counts_by_address(&self) -> bool {
        self.by_address
    }

    /// The bits of the IPv6 network that the rule counts by.
    pub(crate) const fn network(&self) -> Option<u8> {
        self.network
    }

    pub(crate) const fn counts_by_user(&self) -> bool {
        self.by_user
    }

    /// What must be known of the user for the rule to apply.
    #[inline]
    pub(crate) const fn least_user(&self) -> Naming {
        self.least_user
    }

    pub(crate) const fn is_of_second_factor(&self) -> bool {
        self.of_second_factor
    }

    pub(crate) const fn subject(&self) -> Subject {
        self.subject
    }

    pub(crate) const fn digest(&self) -> Digest {
        self.digest
    }
}

/// Checks the name of a rule or a limiter, which is part of keys in the store and of refusals.
pub(crate) fn check_name(name: &str) -> Result<(), PolicyError> {
    let is_allowed = |c: char| c.is_ascii_alphanumeric() || matches!(c, '-' | '_' | '.');
    if (1..=32).contains(&name.len()) && name.chars().all(is_allowed) {
        return Ok(());
    }
    Err(PolicyError::new(
        format!("rule {name:?}"),
        "a name has 1 to 32 letters, digits, '-', '_' or '.'",
    ))
}
