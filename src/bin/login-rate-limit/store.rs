//! Which store, and how it is reached.

use std::{
    env, fs,
    path::{Path, PathBuf},
    time::Duration,
};

use clap::Args;
use tower_login_rate_limit::{
    event::{RedisStream, RedisStreamBuilder, Sealer},
    store::{
        RedisStore,
        redis::{Outage, RedisStoreBuilder, install_crypto_provider},
    },
};

use crate::failure::Failure;

/// The key secret, if it is not in a file.
const SECRET: &str = "LOGIN_RATE_LIMIT_SECRET";

#[derive(Clone, Debug, Default, Args)]
#[command(next_help_heading = "Store")]
pub(crate) struct StoreArgs {
    /// Redis: redis://, rediss://, redis+cluster://, redis+sentinel://. With a password set REDIS_URL in place of it
    #[arg(long, global = true, value_name = "URL")]
    pub(crate) store: Option<String>,
    /// What the keys of the app start with; login unless set
    #[arg(
        long,
        global = true,
        value_name = "TEXT",
        env = "LOGIN_RATE_LIMIT_PREFIX"
    )]
    pub(crate) prefix: Option<String>,
    /// A file with the app's key secret, in place of LOGIN_RATE_LIMIT_SECRET
    #[arg(
        long,
        global = true,
        value_name = "FILE",
        env = "LOGIN_RATE_LIMIT_SECRET_FILE"
    )]
    pub(crate) secret_file: Option<PathBuf>,
    /// A file with the secret that users are sealed with, to show their names
    #[arg(
        long,
        global = true,
        value_name = "FILE",
        env = "LOGIN_RATE_LIMIT_SEAL_SECRET_FILE"
    )]
    pub(crate) seal_secret_file: Option<PathBuf>,
    /// What the app was started with, if no rules are in the store: a policy file, or default, strict, nist, pci, owasp
    #[arg(
        long,
        global = true,
        value_name = "FILE|NAME",
        env = "LOGIN_RATE_LIMIT_BASE_POLICY"
    )]
    pub(crate) base_policy: Option<String>,
    /// The stream of events; PREFIX:events unless set
    #[arg(
        long,
        global = true,
        value_name = "KEY",
        env = "LOGIN_RATE_LIMIT_STREAM"
    )]
    pub(crate) stream: Option<String>,
    /// How long Redis has to answer
    #[arg(long, global = true, value_name = "TIME", default_value = "5s", value_parser = crate::period::duration)]
    pub(crate) timeout: Duration,
    /// Trust the certificate authorities in this PEM file, and not the system's
    #[arg(long, global = true, value_name = "FILE")]
    pub(crate) ca_cert: Option<PathBuf>,
    /// Present the certificate in this PEM file
    #[arg(long, global = true, value_name = "FILE", requires = "client_key")]
    pub(crate) client_cert: Option<PathBuf>,
    /// The private key of the certificate
    #[arg(long, global = true, value_name = "FILE", requires = "client_cert")]
    pub(crate) client_key: Option<PathBuf>,
}

impl StoreArgs {
    /// The URL of the option or of the environment.
    pub(crate) fn url(&self) -> Result<String, Failure> {
        match (&self.store, env::var("REDIS_URL")) {
            (Some(url), _) if has_password(url) => Err(Failure::usage(
                "the URL of --store has a password, which other users of this machine can read in the list of \
                 processes: set REDIS_URL to it in place of --store",
            )),
            (Some(url), _) => Ok(url.clone()),
            (None, Ok(url)) if !url.trim().is_empty() => Ok(url),
            (None, _) => Err(Failure::usage(
                "which store? Pass --store redis://HOST:6379, or set REDIS_URL",
            )),
        }
    }

    /// Connects with the first command.
    pub(crate) fn open(&self) -> Result<RedisStore, Failure> {
        let builder = self.builder()?.with_deadline(self.timeout);
        let builder = builder.with_outage(Outage::Closed).with_connections(1);
        Ok(builder
            .with_block_cache_capacity(0)
            .connect_lazy(self.url()?)?)
    }

    /// A store with the app's keys.
    pub(crate) fn builder(&self) -> Result<RedisStoreBuilder, Failure> {
        install_crypto_provider();
        let mut builder = RedisStore::builder().with_prefix(self.prefix());
        if let Some(secret) = self.secret()? {
            builder = builder.with_secret(secret);
        }
        if let Some(pem) = &self.ca_cert {
            builder = builder.with_root_certificates(read(pem)?);
        }
        if let Some((certificate, key)) = self.client()? {
            builder = builder.with_client_certificate(certificate, key);
        }
        Ok(builder)
    }

    /// The stream of events in a store.
    pub(crate) fn stream(&self) -> Result<RedisStreamBuilder, Failure> {
        install_crypto_provider();
        let mut builder = RedisStream::builder().with_key(self.stream_key());
        if let Some(pem) = &self.ca_cert {
            builder = builder.with_root_certificates(read(pem)?);
        }
        if let Some((certificate, key)) = self.client()? {
            builder = builder.with_client_certificate(certificate, key);
        }
        Ok(builder)
    }

    pub(crate) fn stream_key(&self) -> String {
        let default = || format!("{}:events", self.prefix());
        self.stream.clone().unwrap_or_else(default)
    }

    /// What the keys of the app start with.
    pub(crate) fn prefix(&self) -> &str {
        self.prefix.as_deref().unwrap_or("login")
    }

    /// What opens sealed names.
    pub(crate) fn sealer(&self) -> Result<Option<Sealer>, Failure> {
        let Some(path) = &self.seal_secret_file else {
            return Ok(None);
        };
        let sealer = Sealer::new(read_secret(path)?);
        let sealer =
            sealer.map_err(|error| Failure::error(error.to_string()).about(path.display()));
        sealer.map(Some)
    }

    pub(crate) fn secret(&self) -> Result<Option<Vec<u8>>, Failure> {
        match &self.secret_file {
            Some(path) => read_secret(path).map(Some),
            None => match env::var_os(SECRET) {
                None => Ok(None),
                Some(secret) if secret.is_empty() => {
                    let message = "is empty; unset it if the app has no secret";
                    Err(Failure::usage(message).about(SECRET))
                }
                Some(secret) => Ok(Some(secret.into_encoded_bytes())),
            },
        }
    }

    fn client(&self) -> Result<Option<Pem>, Failure> {
        match (&self.client_cert, &self.client_key) {
            (Some(certificate), Some(key)) => Ok(Some((read(certificate)?, read(key)?))),
            _ => Ok(None),
        }
    }
}

/// A certificate and its private key.
type Pem = (Vec<u8>, Vec<u8>);

/// Whether a URL has a password, or a token in its place.
fn has_password(url: &str) -> bool {
    let authority = url.split_once("://").map_or(url, |(_, rest)| rest);
    let credentials = authority.rsplit_once('@').map(|(before, _)| before);
    let password = credentials.and_then(|credentials| credentials.split_once(':'));
    password.is_some_and(|(_, password)| !password.is_empty())
}

fn read(path: &Path) -> Result<Vec<u8>, Failure> {
    fs::read(path).map_err(|error| Failure::from(error).about(path.display()))
}

/// A secret in a file, without the line break at its end.
pub(crate) fn read_secret(path: &Path) -> Result<Vec<u8>, Failure> {
    let mut secret = read(path)?;
    while secret
        .last()
        .is_some_and(|byte| matches!(byte, b'\n' | b'\r'))
    {
        secret.pop();
    }
    if secret.is_empty() {
        let message = "is empty; `openssl rand -hex 32` prints a secret";
        return Err(Failure::error(message).about(path.display()));
    }
    Ok(secret)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn passwords_in_urls_are_recognized() {
        for url in [
            "redis://:secret@host",
            "redis://user:secret@host:6379/0",
            "redis+cluster://u:p@a,b,c",
            "rediss://u:p%40q@host",
            "redis://u:p@q@host",
        ] {
            assert!(has_password(url), "{url}");
        }
        for url in [
            "redis://host",
            "redis://host:6379/0",
            "redis://user@host:6379",
            "redis://user:@host",
            "redis+sentinel://a:26379,b:26379/name",
            "unix:///run/redis.sock",
        ] {
            assert!(!has_password(url), "{url}");
        }
    }
}
