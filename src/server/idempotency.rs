//! Requests that are repeated because their answer was lost.
//!
//! A key names one check of a password. The token of its attempt is derived from it, so that another instance reserves
//! the same attempt. A backend that uses one key for many checks, such as the id of a session, must not gain guesses
//! by that: a key is answered a few times and, once its attempt is settled, never again.

use std::{
    collections::{BTreeSet, HashMap},
    fmt,
    sync::{Arc, Mutex, MutexGuard, PoisonError},
};

use blake3::Hash;
use http::HeaderMap;
use serde::{Deserialize, Serialize};

use super::{decision::Decision, policies::PolicyId, problem::Problem};
use crate::{Policy, Token, algorithm::Millis};

/// The header of a key.
pub(super) const HEADER: &str = "idempotency-key";
const MAX_KEY_LEN: usize = 255;
/// How many keys are kept, of less than 1 KiB each: about 4,000 a second with a lease of 30 seconds. Beyond that, keys are
/// ignored: a repeated request then is an attempt of its own.
const CAPACITY: usize = 262_144;
/// How often a request may be repeated. Each repetition may be another guess by a backend that reuses its keys.
const MAX_REPEATS: u8 = 2;

/// A key of one operator.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Hash, Serialize, Deserialize)]
pub(super) struct KeyId([u8; 16]);

/// The keys of the last requests.
pub(super) struct Keys {
    secret: [u8; 32],
    table: Mutex<Table>,
}

#[derive(Default)]
struct Table {
    entries: HashMap<KeyId, Entry>,
    /// In the order in which they expire, which is another one than that of their requests after the lease was changed.
    order: BTreeSet<(Millis, KeyId)>,
}

struct Entry {
    request: Option<Hash>,
    state: State,
}

enum State {
    /// A request is being answered.
    Pending,
    Answered {
        answer: Box<Answer>,
        repeats: u8,
    },
    Settled,
}

/// What a request was answered with.
#[derive(Clone)]
pub(super) struct Answer {
    pub(super) token: Token,
    pub(super) expires: Millis,
    pub(super) is_unverified: bool,
    /// The access rule that allows it, and whether it does so for every user.
    pub(super) allowed: Option<(String, bool)>,
    pub(super) decision: Decision,
    /// What it was reserved under.
    pub(super) policy: (PolicyId, Arc<Policy>),
}

/// What becomes of a request with a key.
pub(super) enum Claim<'a> {
    /// It is the first one: reserve an attempt with this token.
    First(Token, Pending<'a>),
    /// It is repeated, and answered as before.
    Repeated(KeyId, Box<Answer>),
    /// There are too many keys to keep this one.
    Untracked,
}

/// The first request with a key. Unless it is answered, the key is free again.
pub(super) struct Pending<'a> {
    keys: &'a Keys,
    id: KeyId,
    expires: Millis,
    is_answered: bool,
}

impl Keys {
    pub(super) fn new(secret: &[u8]) -> Self {
        Self {
            secret: blake3::derive_key("tower-login-rate-limit idempotency keys v1", secret),
            table: Mutex::default(),
        }
    }

    /// The key of a request, if it has one.
    pub(super) fn read(headers: &HeaderMap) -> Result<Option<&str>, Problem> {
        let mut values = headers.get_all(HEADER).iter();
        let Some(value) = values.next() else {
            return Ok(None);
        };
        let key = value.to_str().ok().map(str::trim).filter(|key| {
            values.next().is_none()
                && (1..=MAX_KEY_LEN).contains(&key.len())
                && key.bytes().all(|byte| byte.is_ascii_graphic())
        });
        key.map(Some).ok_or_else(|| {
            Problem::bad_request(
                "Idempotency-Key: send one of 1 to 255 visible ASCII characters, a new random one for each check of a \
                 password",
            )
        })
    }

    /// What becomes of a request of this operator with this key and this hash of its body.
    pub(super) fn claim(
        &self,
        (operator, key): (&str, &str),
        request: Hash,
        now: Millis,
        lease: Millis,
    ) -> Result<Claim<'_>, Problem> {
        let id = self.id(operator, key);
        let mut table = self.lock();
        table.drop_expired(now);
        if let Some(entry) = table.entries.get_mut(&id) {
            let answer = entry.repeat(request)?;
            return Ok(Claim::Repeated(id, answer));
        }
        let entry = Entry {
            request: Some(request),
            state: State::Pending,
        };
        let expires = now.saturating_add(lease.saturating_mul(2));
        if !table.insert(id, entry, expires) {
            return Ok(Claim::Untracked);
        }
        let pending = Pending {
            keys: self,
            id,
            expires,
            is_answered: false,
        };
        let window = now / lease.max(1);
        Ok(Claim::First(self.token(id, request, window), pending))
    }

    /// Notes that the attempt of a key is settled, perhaps one that another instance has reserved.
    pub(super) fn settled(&self, id: KeyId, now: Millis, lease: Millis) {
        let mut table = self.lock();
        match table.entries.get_mut(&id) {
            Some(entry) => entry.state = State::Settled,
            None => {
                table.drop_expired(now);
                let entry = Entry {
                    request: None,
                    state: State::Settled,
                };
                table.insert(id, entry, now.saturating_add(lease.saturating_mul(2)));
            }
        }
    }

    fn id(&self, operator: &str, key: &str) -> KeyId {
        let mut hasher = blake3::Hasher::new_keyed(&self.secret);
        hasher.update(&(operator.len() as u64).to_le_bytes());
        hasher.update(operator.as_bytes()).update(key.as_bytes());
        KeyId(first_half(&hasher.finalize()))
    }

    /// The token of an attempt. Of another window it is another one: a key that is used again later is a new attempt.
    fn token(&self, id: KeyId, request: Hash, window: u64) -> Token {
        let mut hasher = blake3::Hasher::new_keyed(&self.secret);
        hasher.update(&id.0).update(request.as_bytes());
        hasher.update(&window.to_le_bytes());
        let random = first_half(&hasher.finalize());
        Token::from_bytes(
            *uuid::Builder::from_random_bytes(random)
                .as_uuid()
                .as_bytes(),
        )
    }

    fn lock(&self) -> MutexGuard<'_, Table> {
        self.table.lock().unwrap_or_else(PoisonError::into_inner)
    }
}

fn first_half(hash: &Hash) -> [u8; 16] {
    let mut half = [0; 16];
    half.copy_from_slice(&hash.as_bytes()[..16]);
    half
}

impl Table {
    fn drop_expired(&mut self, now: Millis) {
        while let Some((expires, id)) = self.order.first().copied()
            && expires <= now
        {
            self.order.pop_first();
            self.entries.remove(&id);
        }
    }

    /// Whether there was space.
    fn insert(&mut self, id: KeyId, entry: Entry, expires: Millis) -> bool {
        if self.order.len() >= CAPACITY {
            return false;
        }
        self.entries.insert(id, entry);
        self.order.insert((expires, id));
        true
    }
}

impl Entry {
    fn repeat(&mut self, request: Hash) -> Result<Box<Answer>, Problem> {
        if self.request.is_some_and(|first| first != request) {
            return Err(Problem::invalid(
                "this Idempotency-Key was sent with another body: use a new one for each check of a password",
            ));
        }
        match &mut self.state {
            State::Pending => Err(Problem::conflict(
                "a request with this Idempotency-Key is being answered: repeat it in a moment",
            )),
            State::Settled => Err(settled_before()),
            State::Answered { repeats, .. } if *repeats >= MAX_REPEATS => Err(Problem::conflict(
                "the request with this Idempotency-Key was repeated too often: use a new key for each check of a \
                 password",
            )),
            State::Answered { answer, repeats } => {
                *repeats += 1;
                Ok(answer.clone())
            }
        }
    }
}

impl Pending<'_> {
    pub(super) const fn id(&self) -> KeyId {
        self.id
    }

    /// The attempt was admitted: a repetition is answered in the same way. An error if it was settled meanwhile, which
    /// another instance has reserved too: the store admits its token again, and another password must not be checked.
    pub(super) fn answered(mut self, answer: Answer) -> Result<(), Problem> {
        self.is_answered = true;
        let mut table = self.keys.lock();
        if !table.order.contains(&(self.expires, self.id)) {
            return Ok(());
        }
        match table
            .entries
            .get_mut(&self.id)
            .map(|entry| &mut entry.state)
        {
            Some(state @ State::Pending) => {
                *state = State::Answered {
                    answer: Box::new(answer),
                    repeats: 0,
                };
                Ok(())
            }
            Some(State::Settled) => Err(settled_before()),
            Some(State::Answered { .. }) | None => Ok(()),
        }
    }
}

/// What is not answered was refused, or has failed and may have reserved the attempt: a repetition has the same token, and
/// is the same one.
impl Drop for Pending<'_> {
    fn drop(&mut self) {
        if !self.is_answered {
            let mut table = self.keys.lock();
            // If it has expired meanwhile, the key may be that of another request.
            if table.order.remove(&(self.expires, self.id)) {
                table.entries.remove(&self.id);
            }
        }
    }
}

pub(super) fn settled_before() -> Problem {
    Problem::conflict(
        "the attempt with this Idempotency-Key is settled: use a new key for each check of a password",
    )
}

/// Without the secret and the keys.
impl fmt::Debug for Keys {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("Keys").finish_non_exhaustive()
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::{LoginLimiter, server::policies::Policies, store::MemoryStore};

    /// One with a long lease must not keep those with a shorter one.
    #[test]
    fn keys_expire_in_the_order_of_their_leases() {
        let keys = Keys::new(b"secret");
        for (key, lease) in [("a", 500), ("b", 50), ("c", 100)] {
            keys.settled(keys.id("shop", key), 0, lease);
        }
        for (now, kept) in [(99, 3), (100, 2), (200, 1), (1_000, 0)] {
            let mut table = keys.lock();
            table.drop_expired(now);
            assert_eq!(table.entries.len(), kept, "at {now}");
            assert_eq!(table.order.len(), kept, "at {now}");
        }
    }

    #[test]
    fn a_key_that_is_not_answered_is_free_again() {
        let keys = Keys::new(b"secret");
        let claim = |now| keys.claim(("shop", "a"), blake3::hash(b"body"), now, 50);
        let first = claim(0);
        assert!(matches!(first, Ok(Claim::First(..))));
        assert!(claim(99).is_err(), "it is being answered");
        // The first one has expired, and leaves the second one alone.
        let second = claim(100);
        assert!(matches!(second, Ok(Claim::First(..))));
        drop(first);
        assert!(claim(100).is_err(), "it is being answered");
        drop(second);
        assert!(matches!(claim(100), Ok(Claim::First(..))));
        assert_eq!(keys.lock().order.len(), 0);
    }

    /// The first instance is slow, another one has answered the repeated request, and its outcome comes to the first.
    #[tokio::test]
    async fn an_answer_that_comes_after_the_outcome_is_none() {
        let limiter = LoginLimiter::new(Policy::default(), MemoryStore::new());
        let caller = std::net::IpAddr::from([192, 0, 2, 1]);
        let policy = limiter.policy();
        let answer = Answer {
            token: Token::new(),
            expires: 100,
            is_unverified: false,
            allowed: None,
            decision: Decision::of_report(&limiter.check(caller).await.unwrap()),
            policy: (Policies::default().id(0, &policy), policy),
        };
        let keys = Keys::new(b"secret");
        let claim = || keys.claim(("shop", "a"), blake3::hash(b"body"), 0, 50);
        let Ok(Claim::First(_, pending)) = claim() else {
            panic!("the key is new");
        };
        keys.settled(pending.id(), 0, 50);
        let answered = pending.answered(answer).unwrap_err();
        assert_eq!(answered.status(), axum::http::StatusCode::CONFLICT);
        assert!(claim().is_err(), "it stays settled");
    }
}
