//! The settings of `serve`.

use std::{
    env, fs,
    net::SocketAddr,
    num::NonZeroUsize,
    path::{Path, PathBuf},
    time::Duration,
};

use serde::Deserialize;
use tower_login_rate_limit::{
    event::{Sealer, SecretError, UserDisplay},
    server::{Role, Tokens},
};

use super::connections::Bounds;
use crate::{
    failure::Failure,
    policy::file,
    store::{StoreArgs, read_secret},
};

const LISTEN: &str = "127.0.0.1:3002";

#[derive(Debug, Default, Deserialize)]
#[serde(default, deny_unknown_fields)]
pub(super) struct Config {
    listen: Option<SocketAddr>,
    /// What is in force until there are rules in the store.
    pub(super) policy: Option<PathBuf>,
    /// Whether events are added to the stream in Redis, and read from it.
    stream: Option<bool>,
    store: Store,
    users: Users,
    tokens: Vec<Token>,
    metrics: Metrics,
    connections: Connections,
    pub(super) console: Console,
}

#[derive(Debug, Default, Deserialize)]
#[serde(default, deny_unknown_fields)]
struct Store {
    url: Option<String>,
    prefix: Option<String>,
    secret_file: Option<PathBuf>,
    stream_key: Option<String>,
    /// How long a call may take.
    deadline: Option<String>,
    ca_cert: Option<PathBuf>,
    client_cert: Option<PathBuf>,
    client_key: Option<PathBuf>,
}

/// How users appear in events and lists.
#[derive(Debug, Default, Deserialize)]
#[serde(default, deny_unknown_fields)]
struct Users {
    display: Display,
    secret_file: Option<PathBuf>,
}

#[derive(Clone, Copy, Debug, Default, Deserialize)]
#[serde(rename_all = "snake_case")]
enum Display {
    #[default]
    Hidden,
    Masked,
    Hashed,
    Sealed,
    Clear,
}

/// An operator or a login backend. The secret itself is never in the file of settings.
#[derive(Debug, Deserialize)]
#[serde(deny_unknown_fields)]
struct Token {
    name: String,
    roles: Vec<RoleName>,
    file: Option<PathBuf>,
    env: Option<String>,
}

#[derive(Clone, Copy, Debug, Deserialize)]
#[serde(rename_all = "snake_case")]
enum RoleName {
    Decide,
    Read,
    Operate,
}

#[derive(Debug, Default, Deserialize)]
#[serde(default, deny_unknown_fields)]
struct Metrics {
    /// An address of its own, without authorization.
    listen: Option<SocketAddr>,
}

/// What clients may hold.
#[derive(Debug, Default, Deserialize)]
#[serde(default, deny_unknown_fields)]
struct Connections {
    maximum: Option<NonZeroUsize>,
    /// How long a connection is kept on which no request is under way.
    idle: Option<String>,
    /// How long it may take until a request is answered.
    request: Option<String>,
}

#[derive(Debug, Deserialize)]
#[serde(default, deny_unknown_fields)]
pub(super) struct Console {
    pub(super) enabled: bool,
    /// Proxies whose `X-Forwarded-For` the login of the console is limited by.
    pub(super) trusted_proxies: Vec<String>,
    /// Whether the session cookie is for HTTPS only, whatever the login looks like.
    pub(super) secure_cookie: bool,
}

impl Default for Console {
    fn default() -> Self {
        Self {
            enabled: true,
            trusted_proxies: Vec::new(),
            secure_cookie: false,
        }
    }
}

impl Config {
    pub(super) fn read(path: &Path) -> Result<Self, Failure> {
        let about = |failure: Failure| failure.about(path.display());
        let text = fs::read_to_string(path).map_err(|error| about(error.into()))?;
        toml::from_str(&text).map_err(|error| {
            let failure = file::toml_failure(&text, &error);
            about(Failure::error(without_value(failure.message())))
        })
    }

    pub(super) fn listen(&self) -> Result<SocketAddr, Failure> {
        if let Some(listen) = self.listen {
            return Ok(listen);
        }
        let text = env::var("LISTEN").unwrap_or_else(|_| LISTEN.to_owned());
        text.parse().map_err(|_| {
            let message = format!("LISTEN is {text:?}: write an address and a port, like {LISTEN}");
            Failure::usage(message)
        })
    }

    pub(super) const fn metrics_listen(&self) -> Option<SocketAddr> {
        self.metrics.listen
    }

    /// The URL of the store: of the command line, of the file, of the environment. `None` for memory.
    pub(super) fn url(&self, args: &StoreArgs) -> Result<Option<String>, Failure> {
        let variable = env::var("REDIS_URL").ok();
        match (&args.store, &self.store.url) {
            (Some(_), _) => args.url().map(Some),
            (None, Some(url)) => Ok(Some(url.clone())),
            (None, None) => Ok(variable.filter(|url| !url.trim().is_empty())),
        }
    }

    /// The options of the command line, completed by the file.
    pub(super) fn store_args(&self, args: &StoreArgs) -> StoreArgs {
        let (args, file) = (args.clone(), &self.store);
        let or = |option: Option<PathBuf>, file: &Option<PathBuf>| option.or_else(|| file.clone());
        StoreArgs {
            prefix: args.prefix.or_else(|| file.prefix.clone()),
            secret_file: or(args.secret_file, &file.secret_file),
            ca_cert: or(args.ca_cert, &file.ca_cert),
            client_cert: or(args.client_cert, &file.client_cert),
            client_key: or(args.client_key, &file.client_key),
            stream: args.stream.or_else(|| file.stream_key.clone()),
            ..args
        }
    }

    pub(super) fn deadline(&self) -> Result<Option<Duration>, Failure> {
        duration("store.deadline", self.store.deadline.as_deref())
    }

    pub(super) fn bounds(&self) -> Result<Bounds, Failure> {
        let (set, default) = (&self.connections, Bounds::default());
        let idle = duration("connections.idle", set.idle.as_deref())?;
        let request = duration("connections.request", set.request.as_deref())?;
        Ok(Bounds {
            maximum: set.maximum.map_or(default.maximum, NonZeroUsize::get),
            idle: idle.unwrap_or(default.idle),
            request: request.unwrap_or(default.request),
        })
    }

    pub(super) fn has_stream(&self) -> bool {
        self.stream.unwrap_or(true)
    }

    pub(super) fn user_display(&self) -> Result<UserDisplay, Failure> {
        match self.users.display {
            Display::Hidden => Ok(UserDisplay::Hidden),
            Display::Masked => Ok(UserDisplay::Masked),
            Display::Clear => Ok(UserDisplay::Clear),
            Display::Hashed => long_enough(UserDisplay::hashed(self.users_secret()?)),
            Display::Sealed => long_enough(UserDisplay::sealed(self.users_secret()?)),
        }
    }

    /// What opens users for operators, if they are sealed.
    pub(super) fn sealer(&self) -> Result<Option<Sealer>, Failure> {
        match self.users.display {
            Display::Sealed => long_enough(Sealer::new(self.users_secret()?)).map(Some),
            _ => Ok(None),
        }
    }

    fn users_secret(&self) -> Result<Vec<u8>, Failure> {
        match &self.users.secret_file {
            Some(path) => read_secret(path),
            None => Err(Failure::usage(
                "users.secret_file is missing, which this display of users needs: `openssl rand -hex 32` prints a \
                 secret",
            )),
        }
    }

    /// Who may use the API.
    pub(super) fn tokens(&self) -> Result<Tokens, Failure> {
        if self.tokens.is_empty() {
            let token = env::var("API_TOKEN").ok().filter(|token| !token.is_empty());
            let token = token.ok_or_else(|| {
                Failure::usage(
                    "API_TOKEN is missing, without which any client could lift blocks: \
                     export API_TOKEN=$(openssl rand -hex 32)",
                )
            })?;
            let tokens = Tokens::new().with_token("api", token, [Role::Decide, Role::Operate]);
            return tokens.map_err(|error| Failure::usage(error.to_string()).about("API_TOKEN"));
        }
        self.tokens.iter().try_fold(Tokens::new(), |tokens, token| {
            let roles = token.roles.iter().map(|role| match role {
                RoleName::Decide => Role::Decide,
                RoleName::Read => Role::Read,
                RoleName::Operate => Role::Operate,
            });
            let tokens = tokens.with_token(&token.name, token.secret()?, roles);
            tokens.map_err(|error| Failure::usage(error.to_string()).about("tokens"))
        })
    }
}

impl Token {
    fn secret(&self) -> Result<String, Failure> {
        let invalid = |problem: &str| {
            let name = &self.name;
            Failure::usage(problem).about(format!("the token of {name}"))
        };
        let secret = match (&self.file, &self.env) {
            (Some(path), None) => String::from_utf8(read_secret(path)?).ok(),
            (None, Some(name)) => env::var(name).ok(),
            _ => return Err(invalid("set either `file` or `env`, where its secret is")),
        };
        secret.ok_or_else(|| invalid("its variable is not set, or its file is not text"))
    }
}

/// An error quotes a text that is in the wrong place, which may be a secret.
fn without_value(message: &str) -> String {
    let quoted = message.split_once('"').and_then(|(before, rest)| {
        let (_, after) = rest.rsplit_once('"')?;
        Some(format!("{before}\"…\"{after}"))
    });
    quoted.unwrap_or_else(|| message.to_owned())
}

fn duration(key: &'static str, text: Option<&str>) -> Result<Option<Duration>, Failure> {
    let duration = text.map(crate::period::duration).transpose();
    duration.map_err(|error| Failure::usage(error).about(key))
}

fn long_enough<T>(result: Result<T, SecretError>) -> Result<T, Failure> {
    result.map_err(|error| Failure::usage(error.to_string()).about("users.secret_file"))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_key_that_is_unknown_is_named() {
        for (text, key) in [
            ("lisen = \"127.0.0.1:1\"", "lisen"),
            ("[store]\nurI = \"redis://\"", "urI"),
            (
                "[[tokens]]\nname = \"a\"\nroles = []\nsecret = \"s\"",
                "secret",
            ),
            ("[console]\nproxies = []", "proxies"),
            ("[connections]\nmax = 1", "max"),
        ] {
            let error = toml::from_str::<Config>(text).unwrap_err();
            assert!(error.message().contains(key), "{error}");
        }
    }
}
