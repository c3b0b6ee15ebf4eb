//! The text that stands for an attempt between its reservation and its outcome.

use std::{fmt, net::IpAddr};

use base64::{Engine, engine::general_purpose::URL_SAFE_NO_PAD};
use chacha20poly1305::{
    KeyInit, XChaCha20Poly1305, XNonce,
    aead::{Aead, Payload},
};
use serde::{Deserialize, Serialize};

use super::{idempotency::KeyId, policies::PolicyId};
use crate::{Caller, Token, algorithm::Millis};

/// Bound to the purpose, and to the version of what is sealed.
const PURPOSE: &[u8] = b"tower-login-rate-limit attempt v1";
const NONCE_LEN: usize = 24;
/// Longer than any token that is sealed here.
const MAX_LEN: usize = 32 * 1024;

/// An attempt in flight, with all that is needed to settle it: an instance keeps nothing, so that any other one with
/// the same secret can.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub(super) struct InFlight {
    #[serde(rename = "t")]
    pub(super) token: [u8; 16],
    #[serde(rename = "a")]
    pub(super) address: IpAddr,
    #[serde(rename = "u", default, skip_serializing_if = "Option::is_none")]
    pub(super) user: Option<String>,
    /// Those that a rule counts by.
    #[serde(rename = "v", default, skip_serializing_if = "Vec::is_empty")]
    pub(super) values: Vec<(String, String)>,
    #[serde(rename = "s", default, skip_serializing_if = "std::ops::Not::not")]
    pub(super) second_factor: bool,
    /// Whether the store can't tell that it is in flight: an access rule allows it or no rule counts it, so that it is
    /// in no counter, or it was decided while the store was unavailable.
    #[serde(rename = "l", default, skip_serializing_if = "std::ops::Not::not")]
    pub(super) is_unverified: bool,
    /// The access rule that allows it, and whether it does so for every user. Rules may be others when it is settled,
    /// and compare what is not sealed.
    #[serde(rename = "r", default, skip_serializing_if = "Option::is_none")]
    pub(super) allowed: Option<(String, bool)>,
    /// When the lease has ended whatever the clocks of other instances are, in milliseconds since 1970.
    #[serde(rename = "e")]
    pub(super) expires: Millis,
    /// The idempotency key that it was reserved with.
    #[serde(rename = "k", default, skip_serializing_if = "Option::is_none")]
    pub(super) key: Option<KeyId>,
    /// The policy that it was reserved under.
    #[serde(rename = "p", default, skip_serializing_if = "Option::is_none")]
    pub(super) policy: Option<PolicyId>,
}

impl InFlight {
    pub(super) const fn token(&self) -> Token {
        Token::from_bytes(self.token)
    }

    pub(super) fn caller(&self) -> Caller<'_> {
        let mut caller = Caller::new(self.address).with_second_factor(self.second_factor);
        if let Some(user) = &self.user {
            caller = caller.with_user(user);
        }
        for (name, value) in &self.values {
            caller = caller.with_value(name, value);
        }
        caller
    }
}

/// Seals attempts, so that a client can neither read nor make one.
#[derive(Clone)]
pub(super) struct AttemptSealer {
    cipher: XChaCha20Poly1305,
    nonces: [u8; 32],
}

impl AttemptSealer {
    pub(super) fn new(secret: &[u8]) -> Self {
        let key = |purpose| blake3::derive_key(purpose, secret);
        let cipher = key("tower-login-rate-limit attempt tokens v1");
        Self {
            cipher: XChaCha20Poly1305::new(&cipher.into()),
            nonces: key("tower-login-rate-limit attempt nonces v1"),
        }
    }

    /// The nonce is a keyed hash of what is sealed: the same attempt has the same text, which a repeated request is
    /// answered with, and two attempts have different ones, since they differ in their UUID.
    /// `None` if there is too much of it.
    pub(super) fn seal(&self, attempt: &InFlight) -> Option<String> {
        let plain = serde_json::to_vec(attempt).ok()?;
        let hash = blake3::keyed_hash(&self.nonces, &plain);
        let nonce = XNonce::try_from(hash.as_bytes().get(..NONCE_LEN)?).ok()?;
        let payload = Payload {
            msg: &plain,
            aad: PURPOSE,
        };
        let sealed = self.cipher.encrypt(&nonce, payload).ok()?;
        let text = URL_SAFE_NO_PAD.encode([nonce.as_slice(), &sealed].concat());
        Some(text).filter(|text| text.len() <= MAX_LEN)
    }

    /// `None` if it was not sealed with this secret.
    pub(super) fn open(&self, text: &str) -> Option<InFlight> {
        if text.len() > MAX_LEN {
            return None;
        }
        let bytes = URL_SAFE_NO_PAD.decode(text).ok()?;
        let (nonce, sealed) = bytes.split_at_checked(NONCE_LEN)?;
        let nonce = XNonce::try_from(nonce).ok()?;
        let payload = Payload {
            msg: sealed,
            aad: PURPOSE,
        };
        let plain = self.cipher.decrypt(&nonce, payload).ok()?;
        serde_json::from_slice(&plain).ok()
    }
}

/// Without the keys.
impl fmt::Debug for AttemptSealer {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("AttemptSealer").finish_non_exhaustive()
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn attempt() -> InFlight {
        InFlight {
            token: *Token::new().as_bytes(),
            address: "2001:db8::1".parse().unwrap(),
            user: Some("alice".to_owned()),
            values: vec![("tenant".to_owned(), "acme".to_owned())],
            second_factor: true,
            is_unverified: true,
            allowed: Some(("office".to_owned(), true)),
            expires: 1_790_000_000_000,
            key: None,
            policy: None,
        }
    }

    #[test]
    fn only_the_secret_opens_and_nothing_is_read() {
        let (ours, other) = (AttemptSealer::new(&[1; 32]), AttemptSealer::new(&[2; 32]));
        let attempt = attempt();
        let sealed = ours.seal(&attempt).unwrap();
        assert_eq!(ours.open(&sealed), Some(attempt.clone()));
        assert_eq!(ours.seal(&attempt).unwrap(), sealed);
        assert_eq!(other.open(&sealed), None);
        for i in 0..sealed.len() {
            let mut changed = sealed.clone().into_bytes();
            changed[i] = if changed[i] == b'A' { b'B' } else { b'A' };
            let changed = String::from_utf8(changed).unwrap();
            assert_eq!(ours.open(&changed), None, "{i}");
        }
        let bare = URL_SAFE_NO_PAD.encode(serde_json::to_vec(&attempt).unwrap());
        for text in [
            "",
            "AAAA",
            "ä",
            &attempt.token().to_string(),
            &bare,
            &"A".repeat(MAX_LEN + 1),
        ] {
            assert_eq!(ours.open(text), None);
        }
    }

    #[test]
    fn attempts_that_differ_share_no_nonce() {
        let sealer = AttemptSealer::new(&[1; 32]);
        let nonce = || sealer.seal(&attempt()).unwrap()[..32].to_owned();
        assert_ne!(nonce(), nonce());
    }
}
