//! Which rules of a policy apply to an attempt.

use super::{Naming, Policy, Rule};

/// What of an attempt decides which rules apply.
#[derive(Clone, Copy)]
pub(crate) struct Scope {
    pub(crate) user: Naming,
    pub(crate) is_ipv6: bool,
    pub(crate) is_second_factor: bool,
}

impl Scope {
    const COUNT: usize = 3 * 2 * 2;

    /// All of them, each at its [position](Self::position).
    fn all() -> impl Iterator<Item = Self> {
        (0..Self::COUNT).map(|position| Self {
            user: match position / 4 {
                0 => Naming::None,
                1 => Naming::Nameless,
                _ => Naming::Named,
            },
            is_ipv6: position & 2 != 0,
            is_second_factor: position & 1 != 0,
        })
    }

    #[inline]
    const fn position(self) -> usize {
        self.user as usize * 4 + self.is_ipv6 as usize * 2 + self.is_second_factor as usize
    }

    /// The same without a user.
    pub(crate) const fn without_user(self) -> Self {
        Self {
            user: Naming::None,
            ..self
        }
    }

    /// Whether a rule is enabled and applies, under a policy that counts `ipv6_prefix` bits of an IPv6 address.
    fn includes(self, rule: &Rule, ipv6_prefix: u8) -> bool {
        let has_network = |bits| self.is_ipv6 && bits < ipv6_prefix;
        rule.is_enabled()
            && rule.network().is_none_or(has_network)
            && self.user as u8 >= rule.least_user() as u8
            && (self.is_second_factor || !rule.is_of_second_factor())
    }
}

/// The rules that apply in one scope, by their positions in the policy.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub(crate) struct ScopedRules {
    pub(crate) in_order: Vec<usize>,
    /// Those by user and address ahead of all others, as a success needs them.
    pub(crate) mains_first: Vec<usize>,
    /// How many of them are by user and address.
    pub(crate) mains: usize,
}

impl ScopedRules {
    /// For each scope: what applies is found once per policy, and not for each attempt.
    pub(super) fn of(policy: &Policy) -> Vec<Self> {
        let rules = || policy.rules().iter().enumerate();
        let of = |scope: Scope| {
            let includes = |rule: &Rule| scope.includes(rule, policy.ipv6_prefix());
            let applying = rules().filter(|(_, rule)| includes(rule));
            let in_order: Vec<_> = applying.map(|(i, _)| i).collect();
            let is_main = |i: &usize| {
                let rule = &policy.rules()[*i];
                rule.counts_by_user() && rule.counts_by_address()
            };
            let (mut mains_first, others): (Vec<_>, Vec<_>) =
                in_order.iter().partition(|i| is_main(i));
            let mains = mains_first.len();
            mains_first.extend(others);
            Self {
                in_order,
                mains_first,
                mains,
            }
        };
        Scope::all().map(of).collect()
    }
}

impl Policy {
    /// The rules that are enabled and apply.
    #[inline]
    pub(crate) fn scoped(&self, scope: Scope) -> &ScopedRules {
        &self.by_scope[scope.position()]
    }

    /// The rules that are enabled and apply, in the policy's order.
    pub(crate) fn applying(&self, scope: Scope) -> impl Iterator<Item = &Rule> {
        let positions = self.scoped(scope).in_order.iter();
        positions.map(|i| &self.rules[*i])
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn each_scope_has_the_rules_that_it_includes() {
        let policies = [Policy::default(), Policy::strict(), Policy::nist()];
        let narrow = Policy::strict().with_ipv6_prefix(56).unwrap();
        let disabled = Policy::default().with_rule_enabled(Rule::ADDRESS, false);
        for policy in policies.into_iter().chain([narrow, disabled.unwrap()]) {
            for (position, scope) in Scope::all().enumerate() {
                assert_eq!(scope.position(), position);
                let includes = |rule: &&Rule| scope.includes(rule, policy.ipv6_prefix());
                let expected: Vec<_> = policy.rules().iter().filter(includes).collect();
                assert_eq!(policy.applying(scope).collect::<Vec<_>>(), expected);
                let scoped = policy.scoped(scope);
                let (mains, others) = scoped.mains_first.split_at(scoped.mains);
                let is_main = |i: &usize| {
                    let rule = &policy.rules()[*i];
                    rule.counts_by_user() && rule.counts_by_address()
                };
                assert!(mains.iter().all(is_main) && !others.iter().any(is_main));
                assert_eq!(mains.len() + others.len(), expected.len());
            }
        }
        // Named, by IPv6, at a second factor.
        let all = Scope::all().last().unwrap();
        assert_eq!(Policy::default().applying(all).count(), 5);
    }
}
