//! Requests without a user.

/// What becomes of a request in which the layer looks for a user and finds none, or an empty name. See
/// [`LoginRateLimitLayer::with_missing_user`](crate::LoginRateLimitLayer::with_missing_user).
///
/// A field whose name is misspelled in the layer, or left out by an attacker, must not switch off the rules by
/// user. `GET`, `HEAD` and `OPTIONS` without a user always pass under the rules without a user, since a login
/// page, and an API that serves clients without credentials, are loaded many times at once.
///
/// A layer without an extractor is not affected: its handler [identifies](crate::LoginAttempt::identify) the
/// user.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Hash)]
#[non_exhaustive]
pub enum MissingUser {
    /// The default: all requests without a user count as one user without a name, at each address: five failures
    /// from an address refuse further ones without a user from there, and from nowhere else. Rules by user that
    /// do not count by address, such as [`Rule::ACCOUNT`](crate::Rule::ACCOUNT), do not apply to it: a botnet
    /// could otherwise refuse every login without a name, such as with a passkey.
    ///
    /// Its successes take back only themselves, so that logging in to an own account gains no guess at another.
    #[default]
    Shared,
    /// Responds with 400. For endpoints that do nothing but log users in.
    Refuse,
    /// Passes under the rules without a user until the handler [identifies](crate::LoginAttempt::identify)
    /// one. For endpoints that also serve other requests, such as the refresh of a token, and whose handler
    /// never checks a password without naming its user.
    Pass,
}
