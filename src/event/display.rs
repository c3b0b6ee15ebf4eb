//! How users appear in what leaves the process.

use std::{error::Error, fmt, sync::Arc};

#[cfg(feature = "sealed")]
use super::Sealer;

/// How users appear in logs, streams and files. Code in the process reads the names from
/// [`EventUser`](super::EventUser).
///
/// People type passwords into the wrong field: whatever shows a name may show one of those.
///
/// ```
/// use tower_login_rate_limit::event::{EventUser, UserDisplay};
///
/// let shown = |display: &UserDisplay| EventUser::new("Alice@example.org", "alice@example.org", display).to_string();
/// assert_eq!(shown(&UserDisplay::Hidden), "***");
/// assert_eq!(shown(&UserDisplay::Masked), "a***@e***");
/// assert_eq!(shown(&UserDisplay::Clear), "alice@example.org");
/// let hashed = UserDisplay::hashed("32 random bytes, the same on each server")?;
/// assert_eq!(shown(&hashed).len(), "hash:".len() + 16);
/// # Ok::<(), tower_login_rate_limit::event::SecretError>(())
/// ```
#[derive(Clone, Debug, Default)]
#[non_exhaustive]
pub enum UserDisplay {
    /// Not at all.
    #[default]
    Hidden,
    /// The first letter, and that of the domain: `a***@e***`. Never the length.
    Masked,
    /// A keyed hash, `hash:0123456789abcdef`: the same for the same user, so that events can be correlated.
    Hashed(UserHasher),
    /// Encrypted with a key of the app, so that a console shows names that the log or Redis does not have.
    /// Events of one user look different each time.
    #[cfg(feature = "sealed")]
    Sealed(Sealer),
    /// As they are identified.
    Clear,
}

impl UserDisplay {
    /// [`Hashed`](Self::Hashed) with a secret of the app, the same on each of its servers.
    ///
    /// # Errors
    ///
    /// The secret has fewer than 16 bytes.
    pub fn hashed(secret: impl AsRef<[u8]>) -> Result<Self, SecretError> {
        UserHasher::new(secret).map(Self::Hashed)
    }

    /// [`Sealed`](Self::Sealed) with a secret of the app. [`Sealer::open`] with the same secret reads the names.
    ///
    /// # Errors
    ///
    /// The secret has fewer than 16 bytes.
    #[cfg(feature = "sealed")]
    pub fn sealed(secret: impl AsRef<[u8]>) -> Result<Self, SecretError> {
        Sealer::new(secret).map(Self::Sealed)
    }

    /// What is shown of a user in normal form; `None` if nothing is.
    pub(super) fn show(&self, name: &str) -> Option<String> {
        match self {
            Self::Hidden => None,
            Self::Masked => Some(masked(name)),
            Self::Hashed(hasher) => Some(hasher.hash(name)),
            // Without random numbers nothing is shown, rather than the name.
            #[cfg(feature = "sealed")]
            Self::Sealed(sealer) => sealer.seal(name),
            Self::Clear => Some(name.to_owned()),
        }
    }
}

/// The first letter of a name and of its domain. What is not a letter or digit is not shown: a mark or control
/// means nothing by itself.
fn masked(name: &str) -> String {
    let first = |text: &str| text.chars().next().filter(|c| c.is_alphanumeric());
    let mut masked = String::new();
    let (local, domain) = match name.rsplit_once('@') {
        Some((local, domain)) => (local, Some(domain)),
        None => (name, None),
    };
    masked.extend(first(local));
    masked.push_str("***");
    if let Some(domain) = domain {
        masked.push('@');
        masked.extend(first(domain));
        masked.push_str("***");
    }
    masked
}

/// Replaces users by a keyed hash of their normal form.
#[derive(Clone)]
pub struct UserHasher(Arc<[u8; 32]>);

impl UserHasher {
    /// Hashes with a secret of the app, the same on each of its servers.
    ///
    /// # Errors
    ///
    /// The secret has fewer than 16 bytes.
    pub fn new(secret: impl AsRef<[u8]>) -> Result<Self, SecretError> {
        let key = derive_key("tower-login-rate-limit user hashes v1", secret.as_ref())?;
        Ok(Self(Arc::new(key)))
    }

    /// The text of a user in normal form, as in events: to find the events of a certain user.
    #[must_use]
    pub fn hash(&self, identified: &str) -> String {
        Self::text(self.id(identified))
    }

    /// The hash as a number: of a user, or of anything else that processes with the secret name alike.
    pub(crate) fn id(&self, text: &str) -> u64 {
        let hash = blake3::keyed_hash(&self.0, text.as_bytes());
        let (id, _) = hash
            .as_bytes()
            .split_first_chunk()
            .unwrap_or((&[0; 8], &[]));
        u64::from_be_bytes(*id)
    }

    /// The text of a hash.
    pub(crate) fn text(id: u64) -> String {
        format!("hash:{id:016x}")
    }

    /// The hash in a text.
    pub(crate) fn parse(text: &str) -> Option<u64> {
        let digits = text.strip_prefix("hash:")?;
        let is_hash = digits.len() == 16 && digits.bytes().all(|b| b.is_ascii_hexdigit());
        let id = is_hash.then(|| u64::from_str_radix(digits, 16));
        id?.ok()
    }

    /// A key for another purpose, for those who have this one.
    #[cfg(all(feature = "redis", feature = "serde", feature = "sealed"))]
    pub(super) fn derive(&self, purpose: &str) -> [u8; 32] {
        blake3::derive_key(purpose, &*self.0)
    }
}

/// Without the key.
impl fmt::Debug for UserHasher {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("UserHasher").finish_non_exhaustive()
    }
}

/// A key for one purpose. Names can be guessed, so a secret that can be guessed too would protect nothing.
pub(crate) fn derive_key(purpose: &str, secret: &[u8]) -> Result<[u8; 32], SecretError> {
    if secret.len() < 16 {
        return Err(SecretError(secret.len()));
    }
    Ok(blake3::derive_key(purpose, secret))
}

/// A secret that is too short to hide names.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct SecretError(usize);

impl fmt::Display for SecretError {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(
            f,
            "the secret has {} bytes and needs 16 or more, chosen at random: `openssl rand -hex 32` prints one",
            self.0
        )
    }
}

impl Error for SecretError {}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_mask_shows_neither_length_nor_marks() {
        for (name, mask) in [
            ("alice", "a***"),
            ("a", "a***"),
            ("", "***"),
            ("alice@example.org", "a***@e***"),
            ("alice@bob@example.org", "a***@e***"),
            ("@", "***@***"),
            ("élodie", "é***"),
            ("\u{301}e", "***"),
            ("\u{202e}alice", "***"),
            ("\n", "***"),
        ] {
            assert_eq!(masked(name), mask, "{name:?}");
        }
    }

    #[test]
    fn hashes_tell_users_and_keys_apart() {
        let hasher = UserHasher::new([7; 32]).unwrap();
        assert_eq!(hasher.hash("alice"), hasher.hash("alice"));
        assert_ne!(hasher.hash("alice"), hasher.hash("alicf"));
        let other = UserHasher::new([8; 32]).unwrap();
        assert_ne!(hasher.hash("alice"), other.hash("alice"));
        assert_eq!(format!("{hasher:?}"), "UserHasher { .. }");
    }

    #[test]
    fn a_secret_that_can_be_guessed_is_rejected() {
        let error = UserDisplay::hashed("secret").unwrap_err().to_string();
        assert!(error.contains("openssl rand"), "{error}");
    }
}
