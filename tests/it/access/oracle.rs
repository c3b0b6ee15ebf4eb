//! The compiled set against a linear scan, on random rules and requests.

use std::net::{IpAddr, Ipv4Addr, Ipv6Addr};

use proptest::prelude::*;
use tower_login_rate_limit::{
    Address,
    access::{AccessQuery, AccessRule, AccessRules, Action, Field},
    normalize,
};

/// Times are small, so that rules expire before, at and after a look-up.
const TIMES: std::ops::Range<u64> = 0..6;

#[derive(Clone, Debug)]
struct Request {
    address: Option<IpAddr>,
    user: Option<String>,
    user_agent: Option<String>,
    path: Option<String>,
}

impl Request {
    fn query(&self) -> AccessQuery<'_> {
        let mut query = AccessQuery::new();
        if let Some(address) = self.address {
            query = query.with_address(address);
        }
        if let Some(user) = &self.user {
            query = query.with_user(user);
        }
        if let Some(user_agent) = &self.user_agent {
            query = query.with_user_agent(user_agent.as_bytes());
        }
        if let Some(path) = &self.path {
            query = query.with_path(path);
        }
        query
    }
}

/// How specific a rule is that matches; `None` if it does not.
fn specificity(rule: &AccessRule, request: &Request) -> Option<usize> {
    let value = rule.value();
    if let Some(user) = rule.only_user()
        && request.user.as_deref() != Some(&*normalize(user))
    {
        return None;
    }
    match rule.field() {
        Field::Network => {
            let (network, len) = value.split_once('/').unwrap_or((&value, ""));
            let network: IpAddr = network.parse().expect("a network");
            let address = Address::new(request.address?, 128).ip();
            let (network, address, bits) = match (network, address) {
                (IpAddr::V4(n), IpAddr::V4(a)) => (n.to_bits().into(), a.to_bits().into(), 32),
                (IpAddr::V6(n), IpAddr::V6(a)) => (n.to_bits(), a.to_bits(), 128),
                _ => return None,
            };
            let len = len.parse().unwrap_or(bits);
            // Bit by bit: no shift is by as many bits as there are.
            let same = |bit: usize| (network ^ address) >> (bits - 1 - bit) & 1 == 0;
            (0..len).all(same).then_some(len)
        }
        Field::User => (normalize(&value) == request.user.as_deref()?).then_some(0),
        Field::UserKeyword => {
            let user = normalize(request.user.as_deref()?).into_owned();
            user.contains(&*normalize(&value)).then_some(0)
        }
        Field::UserAgent => {
            let agent = request.user_agent.as_ref()?.to_lowercase();
            agent.contains(&value.to_lowercase()).then_some(0)
        }
        Field::Path | Field::PathPrefix => {
            let sent = request.path.as_deref()?;
            let path = sent.replace("%61", "a").replace("//", "/");
            if path != sent && rule.action() == Action::Allow {
                return None;
            }
            if rule.field() == Field::Path {
                return (path == value).then_some(usize::MAX);
            }
            let below = path.strip_prefix(&value)?;
            (below.is_empty() || below.starts_with('/')).then_some(value.len())
        }
        other => panic!("{other:?} is new"),
    }
}

/// The position of the rule that decides, by the words of the module page.
fn decide(rules: &[AccessRule], request: &Request, now: u64) -> Option<usize> {
    let live: Vec<_> = (rules.iter().enumerate())
        .filter(|(_, rule)| rule.expires_at().is_none_or(|at| now < at))
        .filter_map(|(i, rule)| Some((i, rule, specificity(rule, request)?)))
        .collect();
    let kind = |rule: &AccessRule| match rule.field() {
        Field::PathPrefix => (Field::Path, false),
        field => (field, rule.only_user().is_some()),
    };
    let denies = |rule: &AccessRule| rule.action() == Action::Deny;
    // Of each kind the most specific rules are left, and of these the denies if there are any.
    let left: Vec<_> = (live.iter())
        .filter(|(_, rule, specific)| {
            live.iter()
                .all(|(_, other, more)| kind(other) != kind(rule) || more <= specific)
        })
        .collect();
    let any_denies = left.iter().any(|(_, rule, _)| denies(rule));
    let strongest: Vec<_> = left
        .iter()
        .filter(|(_, rule, _)| denies(rule) == any_denies)
        .collect();
    let lasts = |rule: &AccessRule| rule.expires_at().unwrap_or(u64::MAX);
    let longest = strongest.iter().map(|(_, rule, _)| lasts(rule)).max()?;
    let first = strongest.iter().find(|(_, rule, _)| lasts(rule) == longest);
    first.map(|(i, ..)| *i)
}

/// Addresses that have long prefixes in common.
fn address_v4() -> impl Strategy<Value = Ipv4Addr> {
    (prop::bool::ANY, 0..8_u32, 0..3_u32, 0..31_u32).prop_map(|(top, low, flip, bit)| {
        let ip = 0xc000_0200 | u32::from(top) << 31 | low;
        Ipv4Addr::from_bits(if flip == 0 { ip ^ 1 << bit } else { ip })
    })
}

fn address_v6() -> impl Strategy<Value = Ipv6Addr> {
    (0..4_u128, 0..4_u128, 0..3_u32, 0..120_u32).prop_map(|(site, low, flip, bit)| {
        let ip = 0x2001_0db8 << 96 | site << 64 | low;
        Ipv6Addr::from_bits(if flip == 0 { ip ^ 1 << bit } else { ip })
    })
}

fn network() -> impl Strategy<Value = String> {
    let lengths = |max: u8| prop_oneof![1..=max, max - 4..=max, Just(max)];
    let v4 = (address_v4(), lengths(32)).prop_map(|(ip, len)| {
        let ip = Ipv4Addr::from_bits(ip.to_bits() & u32::MAX << (32 - len));
        format!("{ip}/{len}")
    });
    let v6 = (address_v6(), lengths(128)).prop_map(|(ip, len)| {
        let ip = Ipv6Addr::from_bits(ip.to_bits() & u128::MAX << (128 - len));
        format!("{ip}/{len}")
    });
    let mapped = (address_v4(), lengths(32)).prop_map(|(ip, len)| {
        let ip = Ipv4Addr::from_bits(ip.to_bits() & u32::MAX << (32 - len));
        format!("{}/{}", ip.to_ipv6_mapped(), 96 + len)
    });
    // A flipped bit can lead into a network of translated addresses that is refused.
    prop_oneof![3 => v4, 2 => v6, 1 => mapped].prop_filter("a valid network", |network| {
        AccessRule::deny("rule", Field::Network, network).is_ok()
    })
}

fn address() -> impl Strategy<Value = IpAddr> {
    prop_oneof![
        3 => address_v4().prop_map(IpAddr::V4),
        1 => address_v4().prop_map(|ip| IpAddr::V6(ip.to_ipv6_mapped())),
        2 => address_v6().prop_map(IpAddr::V6),
    ]
}

const NAME: &str = "[aAßſéK]{1,3}";

fn path() -> impl Strategy<Value = String> {
    prop::collection::vec("[ab]", 1..4).prop_map(|parts| format!("/{}", parts.join("/")))
}

pub(super) fn rules() -> impl Strategy<Value = Vec<AccessRule>> {
    let value = prop_oneof![
        6 => network().prop_map(|network| (Field::Network, network)),
        1 => NAME.prop_map(|name| (Field::User, name)),
        1 => NAME.prop_map(|name| (Field::UserKeyword, name)),
        1 => "[abAB]{1,3}".prop_map(|keyword| (Field::UserAgent, keyword)),
        1 => path().prop_map(|path| (Field::Path, path)),
        1 => path().prop_map(|path| (Field::PathPrefix, path)),
    ];
    let only_user = prop::option::weighted(0.3, NAME);
    let rule = (prop::bool::ANY, value, only_user, prop::option::of(TIMES));
    prop::collection::vec(rule, 0..24).prop_map(|rules| {
        let rules = rules.into_iter().enumerate();
        rules
            .map(|(i, (denies, (field, value), only_user, expiry))| {
                let name = format!("rule-{i}");
                let rule = if denies {
                    super::deny(&name, field, &value)
                } else {
                    super::allow(&name, field, &value)
                };
                let rule = match only_user {
                    Some(user) if field == Field::Network => rule.for_user(user).expect("a user"),
                    _ => rule,
                };
                match expiry {
                    Some(at) => rule.with_expiry(at).expect("an expiry"),
                    None => rule,
                }
            })
            .collect()
    })
}

fn request() -> impl Strategy<Value = Request> {
    let sent = (path(), 0..4).prop_map(|(path, form)| match form {
        0 => path.replacen('a', "%61", 1),
        1 => path.replacen('/', "//", 1),
        _ => path,
    });
    let user = "[aAßſéK]{0,6}".prop_map(|name| normalize(&name).into_owned());
    (
        prop::option::weighted(0.9, address()),
        prop::option::of(user),
        prop::option::of("[abAB]{0,6}"),
        prop::option::of(sent),
    )
        .prop_map(|(address, user, user_agent, path)| Request {
            address,
            user,
            user_agent,
            path,
        })
}

proptest! {
    #![proptest_config(ProptestConfig { failure_persistence: None, cases: 2_000, ..Default::default() })]

    #[test]
    fn decisions_are_those_of_a_linear_scan(
        rules in rules(),
        requests in prop::collection::vec(request(), 8),
    ) {
        let set = AccessRules::new(rules.clone()).expect("a set");
        for request in &requests {
            for now in TIMES {
                let decided = set.decide(&request.query(), now);
                let expected = decide(&rules, request, now).map(|i| &rules[i]);
                prop_assert_eq!(decided, expected, "{:?} at {}", request, now);
                let live = set.clone().without_expired(now).expect("a set");
                prop_assert_eq!(live.decide(&request.query(), now), expected);
            }
        }
    }

    #[test]
    fn an_explanation_lists_exactly_what_matches(rules in rules(), request in request(), now in TIMES) {
        let set = AccessRules::new(rules.clone()).expect("a set");
        let query = request.query();
        let explanation = set.explain(&query, now);
        prop_assert_eq!(explanation.decides(), set.decide(&query, now));
        let matching = rules.iter().filter(|rule| specificity(rule, &request).is_some());
        let (expired, live): (Vec<_>, Vec<_>) = matching.partition(|rule| rule.is_expired(now));
        let overruled: Vec<_> = live.into_iter().filter(|r| Some(*r) != explanation.decides()).collect();
        prop_assert_eq!(explanation.overruled(), &overruled[..]);
        prop_assert_eq!(explanation.expired(), &expired[..]);
    }

    /// A client that is refused for its address finds no user agent, user or path that lets it pass.
    #[test]
    fn no_claim_lifts_a_deny_by_network(rules in rules(), request in request(), now in TIMES) {
        let set = AccessRules::new(rules).expect("a set");
        let Some(address) = request.address else { return Ok(()) };
        let bare = AccessQuery::new().with_address(address);
        let action = |query| set.decide(&query, now).map(AccessRule::action);
        if action(bare) == Some(Action::Deny) {
            prop_assert_eq!(action(request.query()), Some(Action::Deny));
        }
    }
}
