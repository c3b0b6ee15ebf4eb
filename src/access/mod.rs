//! Access rules: allow and deny lists ahead of the limits.
//!
//! A rule that *denies* refuses a request, a rule that *allows* passes it to the handler; neither counts it. A
//! request that no rule matches is up to the limits. An [`AccessRules`] set is immutable data: it has no clock
//! and does no I/O, and a look-up takes no lock. The steps of a look-up are bounded by the length of an address,
//! however many networks there are.
//!
//! ```
//! use tower_login_rate_limit::access::{AccessQuery, AccessRule, AccessRules, Action, Field};
//!
//! let rules = AccessRules::new([
//!     AccessRule::allow("office", Field::Network, "192.0.2.0/24")?,
//!     AccessRule::deny("lab", Field::Network, "192.0.2.128/25")?
//!         .with_expiry(1_800_000_000_000)?
//!         .with_note("scans everything until the audit ends")?,
//!     AccessRule::deny("scanner", Field::UserAgent, "sqlmap")?,
//! ])?;
//!
//! let now = 1_790_000_000_000; // milliseconds since 1970
//! let office = AccessQuery::new().with_address("192.0.2.7".parse()?);
//! let decided = rules.decide(&office, now).expect("a rule matches");
//! assert_eq!((decided.name(), decided.action()), ("office", Action::Allow));
//!
//! // A deny of another kind is stronger than the allow.
//! let scan = office.with_user_agent(b"sqlmap/1.8");
//! assert_eq!(rules.decide(&scan, now).map(AccessRule::name), Some("scanner"));
//!
//! // Which rules match, for a console.
//! let lab = AccessQuery::new().with_address("192.0.2.200".parse()?);
//! let explanation = rules.explain(&lab, now);
//! assert_eq!(explanation.decides().map(AccessRule::name), Some("lab"));
//! assert_eq!(explanation.overruled()[0].name(), "office");
//!
//! let stranger = AccessQuery::new().with_address("203.0.113.1".parse()?);
//! assert!(rules.decide(&stranger, now).is_none());
//! # Ok::<(), Box<dyn std::error::Error>>(())
//! ```
//!
//! # Precedence
//!
//! 1. A rule that has expired is as if absent.
//! 2. Of the networks around an address the longest one decides, so that an exception can be made inside of
//!    any network. If it has rules of both actions, it denies.
//! 3. Of the paths, the exact one decides, or else the longest prefix. If it has rules of both actions, it
//!    denies.
//! 4. Rules for [one user](AccessRule::for_user) in a network are a kind of their own, of which the longest network
//!    decides too.
//! 5. Between networks, paths, users, user keywords and user agents, **a deny is stronger than any allow**.
//! 6. Of several that deny, or several that allow, the one that lasts longest is reported, then the first of
//!    the list.
//!
//! "Allow the office" and "deny sqlmap" therefore refuse sqlmap in the office. A deny that is too wide is
//! noticed at the first refusal, an allow that is too wide only after the break-in, so where the list leaves a
//! doubt, it denies. It also means that nothing which a client adds to its requests, be it a user agent, a user
//! or a path, lifts a deny by network.
//!
//! To pass what one rule denies, narrow that rule; there is no rule that is stronger.
//!
//! # What a client can forge
//!
//! A client sends any user agent and any user that it likes. A deny by these keeps out nothing but clients
//! that do not hide: scanners with a name, noise. An *allow* by these removes the limits for every attacker
//! who learns of it: with an allowed user agent all accounts can be guessed at, and an allowed user can be
//! guessed at from everywhere. Such a rule has a constructor of its own,
//! [`AccessRule::allow_forgeable`], and in files `forgeable = true`. Prefer networks.
//!
//! An address can't be forged as long as it is extracted as
//! [`ForwardedAddress`](crate::extract::ForwardedAddress) describes. With another path a client reaches another
//! handler, provided that the router reads the path as the rule does: a rule that allows therefore matches only
//! paths without percent-encoding, dot segments, backslashes and empty segments. A rule that denies decodes
//! them first. Dot segments are not resolved: no router in the same process does.
//!
//! # How values are compared
//!
//! - **Addresses** in canonical form, as [`Address`](crate::Address) has it, but not truncated: IPv4 inside IPv6
//!   (mapped, NAT64, 6to4, Teredo, stateless translation) is matched by IPv4 networks and by no others. A
//!   network of such addresses in a rule is read as the IPv4 network.
//! - **Users** in their normal form, [`normalize`](crate::normalize) unless
//!   [set](AccessRules::with_normalizer).
//! - **Keywords in users** by Unicode case folding of the compatibility form, without invisible characters:
//!   `admin` is in `ＳysADMIN`. Look-alikes of other scripts are other letters. Of a name of more than 1,280
//!   bytes that is not ASCII, only ASCII letters are folded.
//! - **Keywords in user agents** by ASCII case: a user agent is ASCII.
//! - **Paths** by whole segments, case-sensitive.
//!
//! A rule that would match every address or every path is an error.
//!
//! # JSON and TOML
//!
//! With the feature `serde`, a set is a list of rules. Each has a `name`, an `action`, `allow` or `deny`, and one
//! of `network`, `user`, `user_keyword`, `user_agent`, `path` and `path_prefix`, or `network` and `user` together.
//! `expires` (RFC 3339),
//! `author`, `note` and `forgeable` are optional.
//!
//! ```
//! # #[cfg(feature = "serde")] {
//! use tower_login_rate_limit::access::AccessRules;
//!
//! #[derive(serde::Deserialize)]
//! struct Config {
//!     access: AccessRules,
//! }
//!
//! let config: Config = toml::from_str(r#"
//!     [[access]]
//!     name = "office"
//!     action = "allow"
//!     network = "192.0.2.0/24"
//!
//!     [[access]]
//!     name = "ticket-4711"
//!     action = "deny"
//!     network = "2001:db8:bad::/48"
//!     expires = "2026-12-31T18:00:00Z"
//!     author = "alice"
//!     note = "credential stuffing"
//! "#)?;
//! assert_eq!(config.access.rules().len(), 2);
//! # }
//! # Ok::<(), Box<dyn std::error::Error>>(())
//! ```

mod denied;
mod explanation;
mod keywords;
mod network;
mod paths;
mod pattern;
mod query;
mod rule;
mod rules;
#[cfg(feature = "serde")]
mod serde;
mod standing;

pub use denied::AccessDenied;
pub use explanation::Explanation;
#[cfg(feature = "admin")]
pub(crate) use network::read as read_network;
pub use query::AccessQuery;
pub use rule::{AccessRule, Action, Field};
pub use rules::AccessRules;
