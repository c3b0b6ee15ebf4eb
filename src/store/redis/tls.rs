//! Plain TCP or TLS, for every topology.

use redis::{
    Client, ConnectionInfo, RedisError, cluster::ClusterClientBuilder,
    sentinel::SentinelClientBuilder,
};
#[cfg(feature = "tls")]
use redis::{ClientTlsConfig, TlsCertificates};

use crate::store::{StoreError, StoreErrorKind};

/// The certificates that the app has given, in PEM.
#[derive(Default)]
pub(crate) struct Certificates {
    #[cfg(feature = "tls")]
    pub(crate) roots: Option<Vec<u8>>,
    /// The certificate and its private key.
    #[cfg(feature = "tls")]
    pub(crate) client: Option<(Vec<u8>, Vec<u8>)>,
}

impl Certificates {
    pub(super) const fn are_given(&self) -> bool {
        #[cfg(feature = "tls")]
        return self.roots.is_some() || self.client.is_some();
        #[cfg(not(feature = "tls"))]
        false
    }

    /// In the form of redis-rs. What can't be read fails here: later it would look as if the server was
    /// at fault.
    #[cfg(feature = "tls")]
    fn checked(self) -> Result<Option<TlsCertificates>, StoreError> {
        use rustls::pki_types::{CertificateDer, pem::PemObject};

        if !self.are_given() {
            return Ok(None);
        }
        let has_one = |pem: &[u8]| CertificateDer::pem_slice_iter(pem).next().is_some();
        if !self.roots.as_deref().is_none_or(has_one) {
            return Err(config(
                "the root certificates contain no certificate in PEM",
            ));
        }
        if !(self.client.as_ref()).is_none_or(|(certificate, _)| has_one(certificate)) {
            return Err(config(
                "the client certificate contains no certificate in PEM",
            ));
        }
        let client_tls = self
            .client
            .map(|(client_cert, client_key)| ClientTlsConfig {
                client_cert,
                client_key,
            });
        let certificates = TlsCertificates {
            client_tls,
            root_cert: self.roots,
        };
        // The host does not matter, nothing is sent.
        match Client::build_with_tls("rediss://localhost", certificates.clone()) {
            Ok(_) => Ok(Some(certificates)),
            Err(error) => Err(config(format!("the certificates are invalid: {error}"))),
        }
    }
}

/// How servers are reached.
#[derive(Clone)]
pub(super) enum Transport {
    Plain,
    #[cfg(feature = "tls")]
    Tls(Option<TlsCertificates>),
}

impl Transport {
    pub(super) fn plain(certificates: &Certificates) -> Result<Self, StoreError> {
        if certificates.are_given() {
            return Err(config(
                "certificates are given, but the URL is not one for TLS: it starts with rediss://, \
                 rediss+cluster:// or rediss+sentinel://",
            ));
        }
        Ok(Self::Plain)
    }

    #[cfg(feature = "tls")]
    pub(super) fn tls(certificates: Certificates) -> Result<Self, StoreError> {
        let certificates = certificates.checked()?;
        // redis-rs leaves the choice to rustls, which panics where it can't choose.
        if rustls::crypto::CryptoProvider::get_default().is_none() {
            return Err(config(
                "no crypto provider is installed for rustls: call \
                 `tower_login_rate_limit::store::redis::install_crypto_provider()` at the start of \
                 the app, or install one of rustls",
            ));
        }
        Ok(Self::Tls(certificates))
    }

    #[cfg(not(feature = "tls"))]
    pub(super) fn tls(_: Certificates) -> Result<Self, StoreError> {
        Err(feature_is_missing())
    }

    /// The scheme of a single server's URL.
    pub(super) const fn scheme(&self) -> &'static str {
        match self {
            Self::Plain => "redis",
            #[cfg(feature = "tls")]
            Self::Tls(_) => "rediss",
        }
    }

    pub(super) fn one_server(&self, server: ConnectionInfo) -> Result<Client, RedisError> {
        match self {
            #[cfg(feature = "tls")]
            Self::Tls(Some(certificates)) => Client::build_with_tls(server, certificates.clone()),
            _ => Client::open(server),
        }
    }

    pub(super) fn cluster(&self, client: ClusterClientBuilder) -> ClusterClientBuilder {
        match self {
            #[cfg(feature = "tls")]
            Self::Tls(Some(certificates)) => client.certs(certificates.clone()),
            _ => client,
        }
    }

    /// For the Sentinels and the servers that they name.
    pub(super) fn sentinel(&self, client: SentinelClientBuilder) -> SentinelClientBuilder {
        match self {
            Self::Plain => client,
            #[cfg(feature = "tls")]
            Self::Tls(certificates) => {
                let client = client.set_client_to_redis_tls_mode(redis::TlsMode::Secure);
                match certificates {
                    None => client,
                    Some(certificates) => client
                        .set_client_to_redis_certificates(certificates.clone())
                        .set_client_to_sentinel_certificates(certificates.clone()),
                }
            }
        }
    }
}

/// Installs ring as the crypto provider of rustls for this process, unless one is installed.
///
/// redis-rs uses the provider of the process. An app that installs one for other reasons need not call
/// this; others do so once, before a store connects over TLS.
#[cfg(feature = "tls")]
pub fn install_crypto_provider() {
    use rustls::crypto::{CryptoProvider, ring};

    if CryptoProvider::get_default().is_none() {
        // Fails if another thread was faster, and then one is installed.
        let _ = ring::default_provider().install_default();
    }
}

/// Whether this is the URL of a single server over TLS.
pub(super) fn is_for_tls(url: &str) -> bool {
    let scheme = url.split(':').next().unwrap_or_default().trim();
    ["rediss", "valkeys"]
        .iter()
        .any(|tls| scheme.eq_ignore_ascii_case(tls))
}

pub(super) fn feature_is_missing() -> StoreError {
    config(
        "the URL is one for TLS, which needs the feature `tls` of tower-login-rate-limit: enable it \
         in Cargo.toml",
    )
}

/// For `#insecure` in a URL.
pub(super) fn unverified() -> StoreError {
    config(
        "#insecure in a URL would accept any server: pass the certificate of the authority that \
         signed the server's instead, see RedisStoreBuilder::with_root_certificates",
    )
}

fn config(message: impl Into<std::borrow::Cow<'static, str>>) -> StoreError {
    StoreError::new(StoreErrorKind::Config, message)
}
