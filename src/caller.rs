//! Who makes an attempt.

use std::{borrow::Cow, fmt, net::IpAddr};

use crate::{
    Address, Part, Policy, Rule,
    store::{Key, KnownAddress, Slot},
};

/// The kind of key that the addresses of a user are kept under. No rule can have this name.
const KNOWN_ADDRESSES: &str = "known:addresses";

pub(crate) fn known_addresses_of(user: &str) -> Key<'_> {
    Key::of_subject(KNOWN_ADDRESSES, user.as_bytes())
}

/// Who makes an attempt: an address, a user if one is known yet, and what else the app counts by.
///
/// ```
/// use std::net::IpAddr;
/// use tower_login_rate_limit::Caller;
///
/// let address: IpAddr = "192.0.2.1".parse()?;
/// let caller = Caller::new(address).user("alice").value("tenant", "acme");
///
/// // Where an address is enough, or an address and a user, they will do.
/// let caller: Caller = address.into();
/// let caller: Caller = (address, "alice").into();
/// # Ok::<(), std::net::AddrParseError>(())
/// ```
#[derive(Clone)]
pub struct Caller<'a> {
    pub(crate) address: IpAddr,
    pub(crate) user: Option<Cow<'a, str>>,
    pub(crate) values: Vec<(Cow<'a, str>, Cow<'a, str>)>,
}

impl<'a> Caller<'a> {
    /// Somebody at this address.
    pub fn new(address: IpAddr) -> Self {
        Self {
            address,
            user: None,
            values: Vec::new(),
        }
    }

    /// The user they want to log in, as it was typed.
    #[must_use]
    pub fn user(mut self, user: impl Into<Cow<'a, str>>) -> Self {
        self.user = Some(user.into());
        self
    }

    /// A value of the app's own, for rules with a [`Part::Value`] of this name.
    #[must_use]
    pub fn value(mut self, name: impl Into<Cow<'a, str>>, value: impl Into<Cow<'a, str>>) -> Self {
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
        Self::new(address).user(user)
    }
}

/// A caller as it is counted: the address in canonical form, one spelling for the user.
#[derive(Clone)]
pub(crate) struct Counted<'a> {
    pub(crate) address: Address,
    pub(crate) user: Option<Cow<'a, str>>,
    pub(crate) values: Vec<(Cow<'a, str>, Cow<'a, str>)>,
}

impl<'a> Counted<'a> {
    pub(crate) fn new(
        caller: Caller<'a>,
        policy: &Policy,
        normalise: impl Fn(&str) -> Cow<'_, str>,
    ) -> Self {
        // Most names are spelled as they should be, and stay where they are.
        let user = caller.user.map(|user| match normalise(&user) {
            Cow::Borrowed(same) if same.len() == user.len() => user,
            other => Cow::Owned(other.into_owned()),
        });
        Self {
            address: Address::new(caller.address, policy.ipv6_prefix()),
            user,
            values: caller.values,
        }
    }

    pub(crate) fn into_owned(self) -> Counted<'static> {
        let owned = |text: Cow<'_, str>| Cow::Owned(text.into_owned());
        let values = self.values.into_iter();
        Counted {
            address: self.address,
            user: self.user.map(owned),
            values: (values.map(|(name, value)| (owned(name), owned(value)))).collect(),
        }
    }

    /// The counter of this caller under a rule; `None` if the rule needs a user and there is none.
    pub(crate) fn slot<'s>(&'s self, policy: &Policy, rule: &'s Rule) -> Option<Slot<'s>> {
        let subject = match rule.parts() {
            [Part::Address] => Cow::Borrowed(&[][..]),
            [Part::User] | [Part::User, Part::Address] | [Part::Address, Part::User] => {
                Cow::Borrowed(self.user.as_deref()?.as_bytes())
            }
            parts => Cow::Owned(self.join(parts)?),
        };
        let mut key = Key::of_subject(rule.name(), subject);
        if rule.counts_by_address() {
            key.address = Some(self.address);
        }
        let slot = Slot::new(key, rule.limit());
        Some(match rule.exempts_known_addresses() {
            true => {
                let keep = policy.known_addresses().unwrap_or_default();
                let address = self.address;
                slot.unless_known(KnownAddress::new(KNOWN_ADDRESSES, address, keep))
            }
            false => slot,
        })
    }

    /// Each part behind its length, and a mark of its own for one that is missing, so that no two
    /// callers give the same bytes.
    fn join(&self, parts: &[Part]) -> Option<Vec<u8>> {
        let mut joined = Vec::new();
        for part in parts {
            let value = match part {
                Part::Address => continue,
                Part::User => Some(self.user.as_deref()?),
                Part::Value(name) => (self.values.iter())
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
        Some(joined)
    }
}

/// Without the user and the values: what is logged should not name people.
impl fmt::Debug for Caller<'_> {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("Caller")
            .field("address", &self.address)
            .finish_non_exhaustive()
    }
}

/// As for [`Caller`].
impl fmt::Debug for Counted<'_> {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("Counted")
            .field("address", &self.address)
            .finish_non_exhaustive()
    }
}
