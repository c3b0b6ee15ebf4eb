//! What is in force: one version of the policy and the access rules, replaced as a whole.

use std::{net::IpAddr, sync::Arc};

use crate::{
    Address, Part, Policy,
    access::{AccessDenied, AccessQuery, AccessRules, Action},
    clock::{Clock, SystemClock},
    metrics::RuleMetrics,
};

/// The policy and the access rules that decide on attempts. Immutable: a change replaces all of it, so that no
/// decision is made under a mixture of two versions.
#[derive(Clone, Debug)]
pub(crate) struct InForce {
    /// The version of the fleet's document, or 0 for what the process was started with.
    pub(crate) version: u64,
    pub(crate) policy: Arc<Policy>,
    pub(crate) canary: Option<Canary>,
    pub(crate) access: AccessRules,
    pub(crate) rule_metrics: Arc<RuleMetrics>,
    /// Which built-in values a rule counts by.
    pub(crate) counts_by_path: bool,
    pub(crate) counts_by_user_agent: bool,
}

/// What access rules make of a request.
#[derive(Clone, Debug)]
pub(crate) enum Access {
    /// No rule matches: the limits decide.
    Limited,
    /// A rule allows it.
    Allowed(Allowed),
    /// A rule denies it.
    Denied(AccessDenied),
}

/// The access rule that allows a request.
#[derive(Clone, Debug)]
pub(crate) struct Allowed {
    pub(crate) rule: Arc<str>,
    /// Whether the user makes no difference.
    pub(crate) for_every_user: bool,
}

/// A policy for a part of the addresses, ahead of all others.
#[derive(Clone, Debug)]
pub(crate) struct Canary {
    pub(crate) policy: Arc<Policy>,
    /// How many of 10,000 addresses it is for.
    pub(crate) share: u16,
    /// Decides which addresses these are: the same in every process, and unknown to clients.
    pub(crate) secret: [u64; 2],
}

impl InForce {
    pub(crate) fn new(
        version: u64,
        policy: Policy,
        canary: Option<Canary>,
        access: AccessRules,
    ) -> Self {
        let canary_policy = canary.as_ref().map(|canary| &*canary.policy);
        let counts_by = |name: &str| {
            let mut policies = std::iter::once(&policy).chain(canary_policy);
            policies.any(|policy| policy.counts_by_value(name))
        };
        Self {
            version,
            rule_metrics: Arc::new(RuleMetrics::new(
                std::iter::once(&policy).chain(canary_policy),
            )),
            counts_by_path: counts_by(Part::PATH),
            counts_by_user_agent: counts_by(Part::USER_AGENT),
            policy: Arc::new(policy),
            canary,
            access,
        }
    }

    /// The policy for clients at this address.
    #[inline]
    pub(crate) fn policy(&self, ip: IpAddr) -> &Arc<Policy> {
        match &self.canary {
            Some(canary) if canary.includes(ip) => &canary.policy,
            _ => &self.policy,
        }
    }

    /// What the access rules make of a request now.
    #[inline]
    pub(crate) fn access(&self, query: &AccessQuery<'_>) -> Access {
        if self.access.is_empty() {
            return Access::Limited;
        }
        // Most lists hold nothing that expires, and reading the time costs more than a look-up.
        let now = if self.access.has_expiry() {
            SystemClock.now()
        } else {
            0
        };
        match self.access.decide(query, now) {
            None => Access::Limited,
            Some(rule) if rule.action() == Action::Deny => {
                Access::Denied(AccessDenied::new(rule, now))
            }
            Some(rule) => {
                let decided = self.access.decide(&query.without_user(), now);
                Access::Allowed(Allowed {
                    rule: rule.name().into(),
                    for_every_user: decided.is_some_and(|rule| rule.action() == Action::Allow),
                })
            }
        }
    }
}

impl Canary {
    /// Whether an address is among its share. Neighbors in an IPv6 /48 are together, as in the rules that count
    /// by network.
    #[cold]
    fn includes(&self, ip: IpAddr) -> bool {
        let address = Address::new(ip, 128).tag();
        let bits = match address.ip() {
            IpAddr::V4(ip) => u128::from(ip.to_bits()) | 0xffff << 32,
            IpAddr::V6(ip) => ip.to_bits(),
        };
        let [low, high] = [bits as u64, (bits >> 64) as u64];
        let hash = mix(mix(self.secret[0] ^ low) ^ self.secret[1] ^ high);
        ((u128::from(hash) * 10_000) >> 64) < u128::from(self.share)
    }
}

/// The finalizer of SplitMix64: each bit of the result depends on each bit of the input.
const fn mix(mut x: u64) -> u64 {
    x = (x ^ (x >> 30)).wrapping_mul(0xbf58_476d_1ce4_e5b9);
    x = (x ^ (x >> 27)).wrapping_mul(0x94d0_49bb_1331_11eb);
    x ^ (x >> 31)
}

#[cfg(test)]
mod tests {
    use super::*;

    fn share_of(share: u16, secret: [u64; 2], ips: impl Iterator<Item = IpAddr>) -> usize {
        let canary = Canary {
            policy: Arc::new(Policy::default()),
            share,
            secret,
        };
        ips.filter(|ip| canary.includes(*ip)).count()
    }

    #[test]
    fn a_canary_includes_its_share_of_addresses() {
        let v4 = || (0..10_000_u32).map(|i| IpAddr::V4((0x0a00_0000 + i).into()));
        let v6 = || (0..10_000_u128).map(|i| IpAddr::V6((0x2001_0db8 << 96 | i << 80).into()));
        for secret in [[1, 2], [3, 4], [u64::MAX, 0]] {
            assert_eq!(share_of(0, secret, v4()), 0);
            assert_eq!(share_of(10_000, secret, v4()), 10_000);
            for count in [share_of(1_000, secret, v4()), share_of(1_000, secret, v6())] {
                assert!((800..1_200).contains(&count), "{count}");
            }
        }
    }

    #[test]
    fn neighbors_of_one_network_are_in_a_canary_together() {
        let neighbors = (0..1_000_u128).map(|i| IpAddr::V6((0x2001_0db8 << 96 | i << 64).into()));
        let count = share_of(5_000, [7, 8], neighbors);
        assert!(count == 0 || count == 1_000, "{count}");
    }
}
