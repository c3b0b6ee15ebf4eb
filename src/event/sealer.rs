//! Users encrypted with a key of the app.

use std::{error::Error, fmt, sync::Arc};

use base64::{Engine, engine::general_purpose::URL_SAFE_NO_PAD};
use chacha20poly1305::{
    KeyInit, XChaCha20Poly1305, XNonce,
    aead::{Aead, Generate},
};

#[cfg(all(feature = "redis", feature = "serde"))]
use super::UserHasher;
use super::{SecretError, display::derive_key};

const PREFIX: &str = "sealed:";
const NONCE_LEN: usize = 24;
/// Names are padded to a multiple of this, since their length tells who they are among a few.
const PADDING: usize = 64;

/// Encrypts users in events, and reads them back in a console.
///
/// ```
/// use tower_login_rate_limit::event::{EventUser, Sealer, UserDisplay};
///
/// let secret = "32 random bytes that only the app has";
/// let sealed = EventUser::new("alice", "alice", &UserDisplay::sealed(secret)?).to_string();
/// assert!(sealed.starts_with("sealed:"));
/// assert_eq!(Sealer::new(secret)?.open(&sealed)?, "alice");
/// # Ok::<(), Box<dyn std::error::Error>>(())
/// ```
#[derive(Clone)]
pub struct Sealer(Arc<XChaCha20Poly1305>);

impl Sealer {
    /// Encrypts and decrypts with a secret of the app.
    ///
    /// # Errors
    ///
    /// The secret has fewer than 16 bytes.
    pub fn new(secret: impl AsRef<[u8]>) -> Result<Self, SecretError> {
        let key = derive_key("tower-login-rate-limit sealed users v1", secret.as_ref())?;
        Ok(Self(Arc::new(XChaCha20Poly1305::new(&key.into()))))
    }

    /// `None` if the system has no random numbers.
    pub(super) fn seal(&self, name: &str) -> Option<String> {
        let nonce = XNonce::try_generate().ok()?;
        // The end of the name is marked, then padded.
        let mut padded = name.as_bytes().to_vec();
        padded.push(1);
        padded.resize(padded.len().next_multiple_of(PADDING), 0);
        let sealed = self.0.encrypt(&nonce, &*padded).ok()?;
        let bytes = [nonce.as_slice(), &sealed].concat();
        Some(format!("{PREFIX}{}", URL_SAFE_NO_PAD.encode(bytes)))
    }

    /// The user, in normal form, that is sealed in the text of an event.
    ///
    /// # Errors
    ///
    /// The text is not sealed, was sealed with another secret, or was changed.
    pub fn open(&self, text: &str) -> Result<String, OpenError> {
        self.try_open(text).ok_or(OpenError(()))
    }

    fn try_open(&self, text: &str) -> Option<String> {
        let bytes = URL_SAFE_NO_PAD.decode(text.strip_prefix(PREFIX)?).ok()?;
        let (nonce, sealed) = bytes.split_at_checked(NONCE_LEN)?;
        let nonce = XNonce::try_from(nonce).ok()?;
        let mut name = self.0.decrypt(&nonce, sealed).ok()?;
        let end = name.iter().rposition(|byte| *byte == 1)?;
        name.truncate(end);
        String::from_utf8(name).ok()
    }
}

/// Without the key.
impl fmt::Debug for Sealer {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("Sealer").finish_non_exhaustive()
    }
}

/// Encrypts ids of users for processes that share the secret of a [`UserHasher`].
#[cfg(all(feature = "redis", feature = "serde"))]
#[derive(Clone)]
pub(super) struct SealedIds(Arc<XChaCha20Poly1305>);

#[cfg(all(feature = "redis", feature = "serde"))]
impl SealedIds {
    pub(super) fn new(hasher: &UserHasher) -> Self {
        let key = hasher.derive("tower-login-rate-limit user ids in the stream v1");
        Self(Arc::new(XChaCha20Poly1305::new(&key.into())))
    }

    /// `None` if the system has no random numbers.
    pub(super) fn seal(&self, id: u64) -> Option<Vec<u8>> {
        let nonce = XNonce::try_generate().ok()?;
        let sealed = self.0.encrypt(&nonce, &id.to_be_bytes()[..]).ok()?;
        Some([nonce.as_slice(), &sealed].concat())
    }

    /// `None` if it was sealed with another secret.
    pub(super) fn open(&self, sealed: &[u8]) -> Option<u64> {
        let (nonce, sealed) = sealed.split_at_checked(NONCE_LEN)?;
        let nonce = XNonce::try_from(nonce).ok()?;
        let id = self.0.decrypt(&nonce, sealed).ok()?;
        Some(u64::from_be_bytes(id.try_into().ok()?))
    }
}

/// A text that a [`Sealer`] can't read.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct OpenError(());

impl fmt::Display for OpenError {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str("not a sealed user, or sealed with another secret: use the secret that the app was started with")
    }
}

impl Error for OpenError {}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn only_the_key_opens_and_nothing_tells_names_apart() {
        let (ours, other) = (Sealer::new([1; 32]).unwrap(), Sealer::new([2; 32]).unwrap());
        let long = "n".repeat(500);
        for name in ["alice", "", "\u{1}\u{1}", "Zoë", &long] {
            let sealed = ours.seal(name).unwrap();
            assert_eq!(ours.open(&sealed).unwrap(), name);
            assert!(other.open(&sealed).is_err());
            assert_ne!(ours.seal(name).unwrap(), sealed);
        }
        let len = |name: &str| ours.seal(name).unwrap().len();
        assert_eq!(len("a"), len("a.rather.long.name@example.org"));
    }

    #[test]
    fn changed_text_does_not_open() {
        let sealer = Sealer::new([1; 32]).unwrap();
        let sealed = sealer.seal("alice").unwrap();
        for i in PREFIX.len()..sealed.len() {
            let mut changed = sealed.clone().into_bytes();
            changed[i] = if changed[i] == b'A' { b'B' } else { b'A' };
            let changed = String::from_utf8(changed).unwrap();
            assert!(sealer.open(&changed).is_err(), "{i}");
        }
        for text in ["", "alice", "sealed:", "sealed:AAAA", "sealed:!"] {
            let error = sealer.open(text).unwrap_err().to_string();
            assert!(error.contains("secret"), "{error}");
        }
    }
}
