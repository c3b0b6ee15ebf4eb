//! The caller of an attempt, and the counters it is counted in.

use std::{borrow::Cow, fmt, net::IpAddr};

use smallvec::SmallVec;

use crate::{
    Address, Part, Policy, Rule,
    access::AccessQuery,
    policy::{Naming, Scope, Subject},
    store::{
        KNOWN_ADDRESSES, Key, KnownAddress, Slot,
        fingerprint::{Digest, Place},
    },
};

/// A user as it is counted.
#[derive(Clone, PartialEq, Eq)]
pub(crate) struct User<'a> {
    /// In normal form.
    pub(crate) name: Cow<'a, str>,
    /// As it was typed, if that is not the normal form.
    pub(crate) spelling: Option<Box<str>>,
}

impl<'a> User<'a> {
    #[inline]
    pub(crate) fn new(typed: Cow<'a, str>, normalize: impl Fn(&str) -> Cow<'_, str>) -> Self {
        // Most names are normalized already and are not copied.
        let name = match normalize(&typed) {
            Cow::Borrowed(same) if same.len() == typed.len() => None,
            other => Some(other.into_owned()),
        };
        match name {
            Some(name) if name != *typed => Self {
                name: Cow::Owned(name),
                spelling: Some(typed.into()),
            },
            _ => Self {
                name: typed,
                spelling: None,
            },
        }
    }

    #[inline]
    pub(crate) fn into_owned(self) -> User<'static> {
        User {
            name: Cow::Owned(self.name.into_owned()),
            spelling: self.spelling,
        }
    }

    /// As it was typed.
    pub(crate) fn typed(&self) -> &str {
        self.spelling.as_deref().unwrap_or(&self.name)
    }

    /// As it was typed.
    pub(crate) fn into_typed(self) -> String {
        match self.spelling {
            Some(spelling) => spelling.into(),
            None => self.name.into_owned(),
        }
    }

    #[inline]
    fn spelling(&self) -> Option<&[u8]> {
        self.spelling.as_deref().map(str::as_bytes)
    }

    /// Where the addresses are kept that this user has logged in from. Only those of the same spelling: it may
    /// be another account.
    pub(crate) fn known_addresses(&self) -> Key<'_> {
        let key = Key::of_subject(KNOWN_ADDRESSES, self.name.as_bytes());
        match self.spelling() {
            Some(spelling) => key.spelled(spelling),
            None => key,
        }
    }
}

/// The caller of an attempt: an address, a user if one is known yet, and the app's own values.
///
/// An address, or a pair of address and user, converts into a caller.
///
/// ```
/// use std::net::IpAddr;
/// use tower_login_rate_limit::Caller;
///
/// let address: IpAddr = "192.0.2.1".parse()?;
/// let caller = Caller::new(address).with_user("alice").with_value("tenant", "acme");
/// let caller: Caller = (address, "alice").into();
/// # Ok::<(), std::net::AddrParseError>(())
/// ```
#[derive(Clone)]
pub struct Caller<'a> {
    pub(crate) address: IpAddr,
    pub(crate) user: Option<Cow<'a, str>>,
    pub(crate) values: Vec<(Cow<'a, str>, Cow<'a, str>)>,
    pub(crate) is_second_factor: bool,
    /// Whether a refusal is only reported.
    pub(crate) is_shadowed: bool,
}

impl<'a> Caller<'a> {
    /// A caller at this address, without a user.
    #[must_use]
    pub fn new(address: IpAddr) -> Self {
        Self {
            address,
            user: None,
            values: Vec::new(),
            is_second_factor: false,
            is_shadowed: false,
        }
    }

    /// What access rules compare, as far as it is known without a request.
    pub(crate) fn access_query(&self) -> AccessQuery<'_> {
        let value = |name: &str| {
            let value = self.values.iter().find(|(known, _)| known == name);
            value.map(|(_, value)| &**value)
        };
        let mut query = AccessQuery::new().with_address(self.address);
        if let Some(agent) = value(Part::USER_AGENT) {
            query = query.with_user_agent(agent.as_bytes());
        }
        if let Some(path) = value(Part::PATH) {
            query = query.with_path(path);
        }
        query
    }

    /// Sets the user that is to be logged in, as it was typed.
    #[must_use]
    pub fn with_user(mut self, user: impl Into<Cow<'a, str>>) -> Self {
        self.user = Some(user.into());
        self
    }

    /// Sets whether this is an attempt at a second factor, such as a code, for the rule
    /// [`Rule::SECOND_FACTOR`].
    #[must_use]
    pub fn with_second_factor(mut self, is_second_factor: bool) -> Self {
        self.is_second_factor = is_second_factor;
        self
    }

    /// Sets a value of the app's own, for rules with a [`Part::Value`] of this name.
    #[must_use]
    pub fn with_value(
        mut self,
        name: impl Into<Cow<'a, str>>,
        value: impl Into<Cow<'a, str>>,
    ) -> Self {
        let name = name.into();
        self.values.retain(|(known, _)| *known != name);
        self.values.push((name, value.into()));
        self
    }
}

impl From<IpAddr> for Caller<'_> {
    fn from(address: IpAddr) -> Self {
        Self::new(address)
    }
}

impl<'a, U: Into<Cow<'a, str>>> From<(IpAddr, U)> for Caller<'a> {
    fn from((address, user): (IpAddr, U)) -> Self {
        Self::new(address).with_user(user)
    }
}

pub(crate) type Slots<'a> = SmallVec<[Slot<'a>; 3]>;

/// A caller as it is counted: the address in canonical form, the user normalized.
#[derive(Clone)]
pub(crate) struct Counted<'a> {
    /// As the client has it; `address` is what it is counted under.
    pub(crate) ip: IpAddr,
    pub(crate) address: Address,
    pub(crate) user: Option<User<'a>>,
    /// Which rules apply.
    pub(crate) scope: Scope,
    /// Whether a refusal is only reported.
    pub(crate) is_shadowed: bool,
    /// Of the user and of the address, which most keys contain: they change together.
    user_digest: Digest,
    address_digest: Digest,
    place: Place,
    /// Only under a policy with rules that count by values.
    joined: Option<Box<Joined>>,
}

#[derive(Clone)]
struct Joined {
    values: Vec<(String, String)>,
    /// For each rule of the policy its subject, if it counts by values.
    subjects: Vec<Vec<u8>>,
}

impl<'a> Counted<'a> {
    #[inline]
    pub(crate) fn new(
        caller: Caller<'a>,
        policy: &Policy,
        normalize: impl Fn(&str) -> Cow<'_, str>,
    ) -> Self {
        let user = caller.user.map(|typed| User::new(typed, normalize));
        let address = Address::new(caller.address, policy.ipv6_prefix());
        let joined = policy.has_joined().then(|| {
            let values = caller.values.into_iter();
            let values = values.map(|(name, value)| (name.into_owned(), value.into_owned()));
            let name = user.as_ref().map(|user| &*user.name);
            Joined::new(policy, name, values.collect())
        });
        Self {
            ip: caller.address,
            user_digest: of_user(user.as_ref()),
            address_digest: Digest::of_address(Some(address)),
            place: Place::of(address),
            scope: Scope {
                user: naming(user.as_ref()),
                is_second_factor: caller.is_second_factor,
                is_ipv6: address.is_ipv6(),
            },
            address,
            user,
            is_shadowed: caller.is_shadowed,
            joined,
        }
    }

    /// Which rules apply to this caller.
    #[inline]
    pub(crate) const fn scope(&self) -> Scope {
        self.scope
    }

    /// The same caller as another user.
    pub(crate) fn with_user(&self, policy: &Policy, user: User<'static>) -> Counted<'static> {
        let joined = self.joined.as_ref();
        Counted {
            ip: self.ip,
            address: self.address,
            scope: Scope {
                user: naming(Some(&user)),
                ..self.scope
            },
            is_shadowed: self.is_shadowed,
            user_digest: of_user(Some(&user)),
            address_digest: self.address_digest,
            place: self.place,
            joined: joined.map(|old| Joined::new(policy, Some(&user.name), old.values.clone())),
            user: Some(user),
        }
    }

    #[inline(always)]
    pub(crate) fn into_owned(self) -> Counted<'static> {
        Counted {
            ip: self.ip,
            address: self.address,
            user: self.user.map(User::into_owned),
            scope: self.scope,
            is_shadowed: self.is_shadowed,
            user_digest: self.user_digest,
            address_digest: self.address_digest,
            place: self.place,
            joined: self.joined,
        }
    }

    /// Adds all counters of this caller, those by user and address first, and returns how many these are.
    #[inline]
    pub(crate) fn push_mains_and_others<'s>(
        &'s self,
        policy: &'s Policy,
        slots: &mut Slots<'s>,
    ) -> usize {
        let applying = policy.scoped(self.scope);
        for i in &applying.mains_first {
            self.push_slot(policy, *i, slots);
        }
        applying.mains
    }

    /// Adds the counters of this caller under the chosen ones of the rules that apply.
    #[inline]
    pub(crate) fn push_slots<'s>(
        &'s self,
        policy: &'s Policy,
        chosen: impl Fn(&Rule) -> bool,
        slots: &mut Slots<'s>,
    ) {
        for i in &policy.scoped(self.scope).in_order {
            if chosen(&policy.rules()[*i]) {
                self.push_slot(policy, *i, slots);
            }
        }
    }

    /// Adds the counter of this caller under the rule at this position, which applies.
    #[inline(always)] // a slot is large to move
    fn push_slot<'s>(&'s self, policy: &'s Policy, position: usize, slots: &mut Slots<'s>) {
        let rule = &policy.rules()[position];
        let (user, mut digest) = (self.user.as_ref(), rule.digest());
        let subject = match rule.subject() {
            Subject::Nothing => &[][..],
            Subject::User => {
                digest = digest.and(self.user_digest);
                user.map_or(&[][..], |user| user.name.as_bytes())
            }
            Subject::Joined => self.joined(position, &mut digest),
        };
        let (address, place) = match rule.network() {
            Some(bits) => self.network(bits, &mut digest),
            None if rule.counts_by_address() => {
                digest = digest.and(self.address_digest);
                (Some(self.address), Some(self.place))
            }
            None => (None, None),
        };
        let key = Key {
            address,
            kind: rule.name(),
            subject,
            spelling: None,
            fingerprint: digest.finish(place),
        };
        debug_assert_eq!(key, Key::new(address, key.kind, subject));
        let user = user.filter(|_| rule.counts_by_user());
        slots.push(Slot {
            spelling: user.and_then(User::spelling),
            shadow: rule.is_shadow(),
            ..Slot::new(key, rule.limit())
        });
        if rule.exempts_known_addresses() {
            self.exempt_known(policy, slots);
        }
    }

    /// The subject of the rule at this position, which counts by values.
    #[cold]
    fn joined(&self, position: usize, digest: &mut Digest) -> &[u8] {
        let joined = self.joined.as_ref();
        let subject = joined.map_or(&[][..], |joined| &joined.subjects[position]);
        *digest = digest.and(Digest::of_subject(subject));
        subject
    }

    /// The network of this many bits around the address.
    #[inline(never)]
    fn network(&self, bits: u8, digest: &mut Digest) -> (Option<Address>, Option<Place>) {
        let network = self.address.widened(bits);
        *digest = digest.and(Digest::of_address(Some(network)));
        (Some(network), Some(Place::of(network)))
    }

    /// Exempts the address from the last counter, if it is known.
    #[cold]
    #[inline(never)]
    fn exempt_known(&self, policy: &Policy, slots: &mut Slots<'_>) {
        let keep = policy.known_addresses().unwrap_or_default();
        if let Some(slot) = slots.last_mut() {
            slot.unless_known = Some(KnownAddress::new(KNOWN_ADDRESSES, self.address, keep));
        }
    }
}

/// What is known of the user.
#[inline]
fn naming(user: Option<&User<'_>>) -> Naming {
    match user {
        None => Naming::None,
        Some(user) if user.name.is_empty() => Naming::Nameless,
        Some(_) => Naming::Named,
    }
}

/// The digest of the user, or of none.
#[inline]
fn of_user(user: Option<&User<'_>>) -> Digest {
    Digest::of_subject(user.map_or(&[], |user| user.name.as_bytes()))
}

impl Joined {
    #[cold]
    fn new(policy: &Policy, user: Option<&str>, values: Vec<(String, String)>) -> Box<Self> {
        let subjects = policy.rules().iter().map(|rule| match rule.subject() {
            Subject::Joined => join(rule.parts(), user, &values),
            Subject::Nothing | Subject::User => Vec::new(),
        });
        Box::new(Self {
            subjects: subjects.collect(),
            values,
        })
    }
}

/// Joins parts injectively: each is preceded by its length, and a missing one has a marker of its own.
fn join(parts: &[Part], user: Option<&str>, values: &[(String, String)]) -> Vec<u8> {
    let mut joined = Vec::new();
    for part in parts {
        let value = match part {
            Part::Address | Part::Network(_) => continue,
            Part::User => Some(user.unwrap_or_default()),
            Part::Value(name) => (values.iter())
                .find(|(known, _)| **known == **name)
                .map(|(_, value)| &**value),
        };
        match value {
            Some(value) => {
                joined.push(1);
                joined.extend_from_slice(&(value.len() as u64).to_le_bytes());
                joined.extend_from_slice(value.as_bytes());
            }
            None => joined.push(0),
        }
    }
    joined
}

/// Shows neither the user nor the values: logs must not name people.
impl fmt::Debug for Caller<'_> {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("Caller")
            .field("address", &self.address)
            .finish_non_exhaustive()
    }
}
