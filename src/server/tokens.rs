//! Bearer tokens.

use std::fmt;

use blake3::Hash;
use http::{header::AUTHORIZATION, request::Parts};

use super::{Authorize, AuthorizeFuture, Operator, Role, Unauthorized};
use crate::admin::{AdminError, Author};

const MIN_SECRET: usize = 16;
const MAX_SECRET: usize = 1_024;

/// Operators that show a secret: `Authorization: Bearer …`.
///
/// Only hashes of the secrets are kept. All of them are compared, in constant time, so that the time of an answer
/// tells nothing about a secret.
///
/// ```
/// use tower_login_rate_limit::server::{Role, Tokens};
///
/// # let (from_env, from_file) = ("3f786850e387550fdab836ed7e6dc881", "89e6c98d92887913cadf06b2adb97f26");
/// let tokens = Tokens::new()
///     .with_token("shop", from_env, [Role::Decide])?
///     .with_token("alice@ops", from_file, [Role::Operate])?;
/// # Ok::<(), tower_login_rate_limit::admin::AdminError>(())
/// ```
#[derive(Clone, Default)]
#[must_use = "tokens authorize no request until they are passed to a server"]
pub struct Tokens(Vec<(Hash, Operator)>);

impl Tokens {
    /// No tokens: every request is refused.
    pub const fn new() -> Self {
        Self(Vec::new())
    }

    /// Adds an operator. The secret is 16 to 1,024 characters long and chosen at random: `openssl rand -hex 32` prints
    /// one.
    ///
    /// # Errors
    ///
    /// If the secret is too short, too long, in use already, or has characters that no header has; if the name can't
    /// be recorded in an audit; if there is no role.
    pub fn with_token(
        mut self,
        name: impl Into<String>,
        secret: impl AsRef<str>,
        roles: impl IntoIterator<Item = Role>,
    ) -> Result<Self, AdminError> {
        let (operator, secret) = (Operator::new(name, roles), secret.as_ref());
        Author::new(operator.name(), "-")?;
        let invalid = |problem: String| {
            let name = operator.name();
            Err(AdminError::invalid(format!(
                "the token of {name} {problem}"
            )))
        };
        if !(MIN_SECRET..=MAX_SECRET).contains(&secret.len()) {
            return invalid(format!(
                "has {} characters, and needs {MIN_SECRET} to {MAX_SECRET}, chosen at random: `openssl rand -hex 32` \
                 prints one",
                secret.len()
            ));
        }
        if !secret.bytes().all(|byte| byte.is_ascii_graphic()) {
            return invalid("has a character that is not visible ASCII".to_owned());
        }
        if operator.roles().is_empty() {
            return invalid("has no role: decide, read or operate".to_owned());
        }
        let hash = hash(secret);
        if self.0.iter().any(|(known, _)| *known == hash) {
            return invalid("is the token of another operator too".to_owned());
        }
        self.0.push((hash, operator));
        Ok(self)
    }

    /// The operator with this secret.
    #[must_use]
    pub fn operator(&self, secret: &str) -> Option<&Operator> {
        let hash = hash(secret);
        // All of them are compared, and hashes are equal in constant time.
        self.0.iter().fold(None, |found, (known, operator)| {
            if *known == hash {
                Some(operator)
            } else {
                found
            }
        })
    }

    /// The operator of a request with these headers.
    fn of(&self, request: &Parts) -> Option<Operator> {
        let mut values = request.headers.get_all(AUTHORIZATION).iter();
        let value = values.next()?.to_str().ok()?;
        let (scheme, secret) = value.split_once(' ')?;
        let is_bearer = scheme.eq_ignore_ascii_case("bearer") && values.next().is_none();
        let operator = self.operator(secret.trim_start_matches(' '));
        operator.filter(|_| is_bearer).cloned()
    }
}

fn hash(secret: &str) -> Hash {
    let key = blake3::derive_key("tower-login-rate-limit bearer tokens v1", secret.as_bytes());
    Hash::from_bytes(key)
}

impl Authorize for Tokens {
    fn authorize<'a>(&'a self, request: &'a Parts) -> AuthorizeFuture<'a> {
        let operator = self.of(request).ok_or(Unauthorized::Unknown);
        Box::pin(std::future::ready(operator))
    }
}

/// Without the hashes.
impl fmt::Debug for Tokens {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let operators = self.0.iter().map(|(_, operator)| operator);
        f.debug_list().entries(operators).finish()
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    const SECRET: &str = "0123456789abcdef0123456789abcdef";

    fn tokens() -> Tokens {
        let tokens = Tokens::new().with_token("shop", SECRET, [Role::Decide]);
        tokens.unwrap()
    }

    fn name(value: &[&str]) -> Option<String> {
        let mut request = http::Request::builder();
        for value in value {
            request = request.header(AUTHORIZATION, *value);
        }
        let (parts, ()) = request.body(()).unwrap().into_parts();
        tokens()
            .of(&parts)
            .map(|operator| operator.name().to_owned())
    }

    #[test]
    fn only_the_secret_opens() {
        let (right, wrong) = (format!("Bearer {SECRET}"), format!("Bearer {SECRET}0"));
        assert_eq!(name(&[&right]).as_deref(), Some("shop"));
        assert_eq!(
            name(&[&right.replace("Bearer", "bearer")]).as_deref(),
            Some("shop")
        );
        let none = [
            SECRET,
            "Bearer",
            "Bearer ",
            &format!("Basic {SECRET}"),
            &wrong,
        ];
        for value in none {
            assert_eq!(name(&[value]), None, "{value}");
        }
        assert_eq!(name(&[]), None);
        assert_eq!(name(&[&right, &right]), None);
        assert!(!format!("{:?}", tokens()).contains(&SECRET[..8]));
    }

    #[test]
    fn a_token_that_protects_nothing_is_rejected() {
        for (name, secret, roles, problem) in [
            ("shop", "short", &[Role::Read][..], "openssl rand"),
            ("shop", "0123456789abcdef 123456789", &[Role::Read], "ASCII"),
            ("shop", SECRET, &[Role::Read], "another operator"),
            ("new", "fedcba98765432100123456789abcdef", &[], "no role"),
            (
                "a\nb",
                "fedcba98765432100123456789abcdef",
                &[Role::Read],
                "invisible",
            ),
        ] {
            let error = tokens().with_token(name, secret, roles.iter().copied());
            let error = error.unwrap_err().to_string();
            assert!(error.contains(problem), "{error}");
            assert!(!error.contains(secret), "{error}");
        }
    }
}
