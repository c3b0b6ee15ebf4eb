//! The policies that attempts in flight were reserved under.
//!
//! An operator may rename a rule while an attempt is in flight, whose counter then has another name. The token of an
//! attempt therefore names its policy, and it is settled under that one.

use std::{
    collections::VecDeque,
    sync::{Arc, Mutex, MutexGuard, PoisonError},
};

use serde::{Deserialize, Serialize};

use super::{Inner, attempt_token::InFlight};
use crate::Policy;

/// How many policies are kept. More changes than this within one lease are looked up in the store.
const KEPT: usize = 16;

/// A policy, as a token names it.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub(super) struct PolicyId {
    /// The version of the ruleset that it is in.
    #[serde(rename = "v")]
    version: u64,
    /// Of its content: instances may be started with different ones, and a version may have two.
    #[serde(rename = "h")]
    hash: u64,
}

/// The last policies in force.
#[derive(Default)]
pub(super) struct Policies {
    /// With their hashes. Equal ones may be there twice: a canary that was promoted and not removed is one.
    kept: Mutex<VecDeque<(u64, Arc<Policy>)>>,
    /// Those that are not in their versions. Held while one is looked up: a version may be large, and many attempts of
    /// one that is new here end at once.
    missing: tokio::sync::Mutex<VecDeque<PolicyId>>,
}

impl Policies {
    /// The id of a policy, which is kept from now on.
    pub(super) fn id(&self, version: u64, policy: &Arc<Policy>) -> PolicyId {
        let mut kept = self.lock();
        let known = kept.iter().find(|(_, known)| Arc::ptr_eq(known, policy));
        let hash = match known {
            Some((hash, _)) => *hash,
            None => {
                let hash = hash(policy);
                kept.push_front((hash, Arc::clone(policy)));
                kept.truncate(KEPT);
                hash
            }
        };
        PolicyId { version, hash }
    }

    fn find(&self, id: PolicyId) -> Option<Arc<Policy>> {
        let kept = self.lock();
        let found = kept.iter().find(|(hash, _)| *hash == id.hash);
        found.map(|(_, policy)| Arc::clone(policy))
    }

    fn lock(&self) -> MutexGuard<'_, VecDeque<(u64, Arc<Policy>)>> {
        self.kept.lock().unwrap_or_else(PoisonError::into_inner)
    }
}

fn hash(policy: &Policy) -> u64 {
    let hash = blake3::hash(&serde_json::to_vec(policy).unwrap_or_default());
    let mut bytes = [0; 8];
    bytes.copy_from_slice(&hash.as_bytes()[..8]);
    u64::from_le_bytes(bytes)
}

impl Inner {
    /// The policy that an attempt was reserved under; the one in force if it is no longer known.
    pub(super) async fn policy_of(&self, attempt: &InFlight) -> Arc<Policy> {
        let in_force = Arc::clone(self.limiter.in_force().policy(attempt.address));
        let Some(id) = attempt.policy else {
            return in_force;
        };
        if self.policies.id(id.version, &in_force) == id {
            return in_force;
        }
        if let Some(policy) = self.policies.find(id) {
            return policy;
        }
        let past = self.look_up(id).await;
        past.unwrap_or(in_force)
    }

    /// A policy of a version that this instance has never enforced.
    async fn look_up(&self, id: PolicyId) -> Option<Arc<Policy>> {
        let mut missing = self.policies.missing.lock().await;
        let found = self.policies.find(id);
        if found.is_some() || missing.contains(&id) {
            return found;
        }
        let past = self.admin.past_policies(id.version).await?;
        let mut past = past.into_iter().map(Arc::new);
        let found = past.find(|policy| self.policies.id(id.version, policy) == id);
        if found.is_none() {
            missing.push_front(id);
            missing.truncate(KEPT);
        }
        found
    }
}
