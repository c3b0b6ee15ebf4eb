//! Which counters there are of what an operator asks about.

use std::{collections::HashSet, net::IpAddr, sync::Arc};

use super::{Admin, AdminError, BlockId, subject::Repr};
use crate::{
    Address, Caller, Policy, Rule,
    algorithm::Millis,
    attempt::{Counted, Slots},
    limiter::{InForce, block_note::Note},
    policy::Subject as CountsBy,
    store::{Contents, CounterName, Key, ListedBlock, StoreErrorKind},
};

/// How many counters one call of the store reads.
const CHUNK: usize = 100;

/// A counter under a rule that is in force.
#[derive(Clone, Debug)]
pub(super) struct Counter {
    pub(super) rule: Rule,
    pub(super) name: CounterName,
    pub(super) address: Option<Address>,
    pub(super) note: Note,
    /// Its entry in the index.
    pub(super) listed: Option<ListedBlock>,
}

impl Counter {
    pub(super) fn id(&self) -> BlockId {
        BlockId {
            rule: self.rule.shared_name(),
            counter: self.name.clone(),
        }
    }

    /// Whether its block refuses nothing: it began in shadow mode, or the rule is in shadow now.
    pub(super) fn is_shadow(&self) -> bool {
        self.note.shadow || self.rule.is_shadow()
    }
}

/// A question to the index of blocks.
#[derive(Debug)]
pub(super) struct Search {
    pub(super) rules: Vec<Arc<str>>,
    pub(super) address: Option<Address>,
    pub(super) subject: Option<Box<[u8]>>,
    pub(super) network: Option<(IpAddr, u8)>,
}

/// The enabled rules, of the canary too, each name once.
pub(super) fn enabled_rules(in_force: &InForce) -> impl Iterator<Item = &Rule> {
    let canary = in_force.canary.as_ref().map(|canary| &*canary.policy);
    let policies = std::iter::once(&*in_force.policy).chain(canary);
    let mut seen = HashSet::new();
    policies
        .flat_map(Policy::rules)
        .filter(move |rule| rule.is_enabled() && seen.insert(rule.name()))
}

/// The address or network that a rule counts a client by, if it applies to the client.
fn counted_address(policy: &Policy, rule: &Rule, address: Address) -> Option<Address> {
    match rule.network() {
        Some(bits) => {
            let applies = address.ip().is_ipv6() && bits < policy.ipv6_prefix();
            applies.then(|| address.widened(bits))
        }
        None => Some(address),
    }
}

impl Admin {
    /// The user as it is found in the index.
    pub(super) fn subject_of(&self, user: &str) -> Result<Box<[u8]>, AdminError> {
        let name = self.limiter.normalize(user);
        if name.is_empty() {
            return Err(AdminError::invalid(
                "the user is blank: nothing is left of it in its normal form",
            ));
        }
        Ok(name.as_bytes().into())
    }

    /// A page of the index: counters that exist under a rule in force, and what they hold. What is in the index and
    /// not in force is dropped from it.
    pub(super) async fn search(
        &self,
        search: &Search,
        after: Option<&str>,
        limit: usize,
    ) -> Result<(Vec<(Counter, Contents)>, Millis, Option<String>), AdminError> {
        if search.rules.is_empty() {
            return Ok((Vec::new(), 0, None));
        }
        let page = search.with_query(|query| {
            let mut query = query.with_limit(limit);
            query.after = after;
            self.ledger.blocks(&query)
        });
        let page = page.await?;
        let mut stale = Vec::new();
        let mut counters = Vec::new();
        {
            let in_force = self.limiter.in_force();
            for listed in page.blocks {
                match self.resolve(&in_force, &listed) {
                    Some(counter) => counters.push(counter),
                    None => stale.push(listed),
                }
            }
        }
        let mut found = Vec::new();
        for chunk in counters.chunks(CHUNK) {
            for (counter, contents) in chunk.iter().zip(self.read(chunk).await?) {
                match contents {
                    Some(contents) if contents.standing.is_blocked() => {
                        found.push((counter.clone(), contents));
                    }
                    _ => stale.extend(counter.listed.clone()),
                }
            }
        }
        if self.prunes {
            self.drop_notes(&stale).await;
        }
        Ok((found, page.now, page.next))
    }

    /// Drops entries of the index. If that fails, the next list finds them stale again.
    pub(super) async fn drop_notes(&self, stale: &[ListedBlock]) {
        if !stale.is_empty() {
            let _ = self.ledger.drop_notes(stale).await;
        }
    }

    /// The counter of an entry, if the policy in force still counts by it.
    fn resolve(&self, in_force: &InForce, listed: &ListedBlock) -> Option<Counter> {
        let mut rules = enabled_rules(in_force);
        let rule = match listed.address {
            Some(address) => {
                let policy = in_force.policy(address.ip());
                let rule = policy.rule(&listed.rule)?;
                let client = match address.ip() {
                    IpAddr::V4(_) => address,
                    // Of a network, any client in it.
                    IpAddr::V6(ip) => Address::new(ip.into(), policy.ipv6_prefix()),
                };
                let counted = counted_address(policy, rule, client);
                (rule.counts_by_address() && counted == Some(address)).then_some(rule)
            }
            None => rules
                .find(|rule| *rule.name() == *listed.rule)
                .filter(|rule| !rule.counts_by_address()),
        };
        let rule = rule.filter(|rule| rule.is_enabled())?;
        // An entry must not make one counter look like another, where that can be detected.
        if let (CountsBy::Nothing, Some(address)) = (rule.subject(), listed.address)
            && self.ledger.name(&Key::of_address(address, rule.name())) != listed.counter
        {
            return None;
        }
        Some(Counter {
            rule: rule.clone(),
            name: listed.counter.clone(),
            address: listed.address,
            note: Note::read(&listed.text),
            listed: Some(listed.clone()),
        })
    }

    /// What these counters hold; `None` for a name that no counter of this store can have.
    pub(super) async fn read(
        &self,
        counters: &[Counter],
    ) -> Result<Vec<Option<Contents>>, AdminError> {
        let mut read = Vec::with_capacity(counters.len());
        for chunk in counters.chunks(CHUNK) {
            let named = chunk
                .iter()
                .map(|counter| (&counter.name, counter.rule.limit()));
            let named: Vec<_> = named.collect();
            match self.ledger.inspect(&named).await {
                Ok(contents) if contents.len() == named.len() => {
                    read.extend(contents.into_iter().map(Some));
                }
                Err(error) if is_transient(error.kind()) => return Err(error.into()),
                // One by one: a single entry that was forged must not hide all others.
                _ => {
                    for counter in named {
                        match self.ledger.inspect(&[counter]).await {
                            Ok(mut contents) => read.push(contents.pop()),
                            Err(error) if is_transient(error.kind()) => return Err(error.into()),
                            Err(_) => read.push(None),
                        }
                    }
                }
            }
        }
        Ok(read)
    }

    /// The counters that decide on a subject and whose names follow from it.
    pub(super) fn direct(&self, in_force: &InForce, subject: &Repr) -> Vec<Counter> {
        let mut counters = Vec::new();
        let mut add = |rule: &Rule, key: &Key<'_>| {
            counters.push(Counter {
                rule: rule.clone(),
                name: self.ledger.name(key),
                address: key.address(),
                note: Note::default(),
                listed: None,
            });
        };
        match subject {
            Repr::Address(ip) | Repr::Pair(ip, _) => {
                let policy = in_force.policy(*ip);
                let mut caller = Caller::new(*ip).with_second_factor(true);
                if let Some(user) = subject.user() {
                    caller = caller.with_user(user);
                }
                let caller = Counted::new(caller, policy, |user| self.limiter.normalize(user));
                // Values of the app are known to the index alone.
                let is_direct = |rule: &Rule| rule.subject() != CountsBy::Joined;
                let mut slots = Slots::new();
                caller.push_slots(policy, is_direct, &mut slots);
                let rules = policy
                    .applying(caller.scope())
                    .filter(|rule| is_direct(rule));
                for (rule, slot) in rules.zip(&slots) {
                    add(rule, &slot.key);
                }
            }
            Repr::User(user) => {
                let name = self.limiter.normalize(user);
                for rule in enabled_rules(in_force) {
                    if rule.subject() == CountsBy::User && !rule.counts_by_address() {
                        add(rule, &Key::of_subject(rule.name(), name.as_bytes()));
                    }
                }
            }
            Repr::Network(network) => {
                let (ip, prefix) = (network.addr(), network.prefix_len());
                let policy = in_force.policy(ip);
                let whole = Address::new(ip, policy.ipv6_prefix());
                let rules = policy.rules().iter().filter(|rule| rule.is_enabled());
                for rule in rules.filter(|rule| rule.subject() == CountsBy::Nothing) {
                    // The networks around it, and itself.
                    if let Some(address) = counted_address(policy, rule, whole)
                        && address.prefix() <= prefix
                    {
                        add(rule, &Key::of_address(address, rule.name()));
                    }
                }
            }
        }
        counters
    }

    /// Where the index has blocks of a subject under the chosen rules.
    pub(super) fn searches(
        &self,
        in_force: &InForce,
        subject: &Repr,
        chosen: impl Fn(&Rule) -> bool,
    ) -> Result<Vec<Search>, AdminError> {
        let of_user = subject
            .user()
            .map(|user| self.subject_of(user))
            .transpose()?;
        let network = subject.network();
        let mut searches: Vec<Search> = Vec::new();
        let policy = match subject.ip() {
            Some(ip) => in_force.policy(ip),
            None => &in_force.policy,
        };
        let rules: Vec<_> = match subject.ip() {
            Some(_) => policy
                .rules()
                .iter()
                .filter(|rule| rule.is_enabled())
                .collect(),
            None => enabled_rules(in_force).collect(),
        };
        for rule in rules.into_iter().filter(|rule| chosen(rule)) {
            let address = match subject.ip() {
                Some(ip) if rule.counts_by_address() => {
                    let address = Address::new(ip, policy.ipv6_prefix());
                    match counted_address(policy, rule, address) {
                        None => continue,
                        counted => counted,
                    }
                }
                _ => None,
            };
            let subject = of_user.clone().filter(|_| rule.counts_by_user());
            let network = network.map(|network| (network.addr(), network.prefix_len()));
            if address.is_none() && subject.is_none() && network.is_none() {
                continue;
            }
            let same = searches
                .iter_mut()
                .find(|search| (search.address, &search.subject) == (address, &subject));
            match same {
                Some(search) => search.rules.push(rule.shared_name()),
                None => searches.push(Search {
                    rules: vec![rule.shared_name()],
                    address,
                    subject,
                    network,
                }),
            }
        }
        Ok(searches)
    }
}

/// Whether a store can't be reached, so that asking for each counter by itself is of no use.
const fn is_transient(kind: StoreErrorKind) -> bool {
    matches!(kind, StoreErrorKind::Timeout | StoreErrorKind::Connection)
}
