//! Plain or over TLS: what a URL and the builder say about it, for every topology.

#[cfg(feature = "tls")]
use redis::TlsCertificates;
use redis::{
    Client, ConnectionInfo, RedisError, cluster::ClusterClientBuilder,
    sentinel::SentinelClientBuilder,
};

use crate::store::{StoreError, StoreErrorKind};

/// The certificates that the app has given, if any. Without the feature `tls` it can't.
#[derive(Default)]
pub(super) struct Certificates(#[cfg(feature = "tls")] pub(super) Option<TlsCertificates>);

impl Certificates {
    pub(super) const fn are_given(&self) -> bool {
        #[cfg(feature = "tls")]
        return self.0.is_some();
        #[cfg(not(feature = "tls"))]
        false
    }

    /// What can't be read is an error here: later it would look as if the server was at fault.
    #[cfg(feature = "tls")]
    fn checked(self) -> Result<Option<TlsCertificates>, StoreError> {
        use rustls::pki_types::{CertificateDer, pem::PemObject};

        let Some(certificates) = self.0 else {
            return Ok(None);
        };
        let has_one = |pem: &[u8]| CertificateDer::pem_slice_iter(pem).next().is_some();
        if !certificates.root_cert.as_deref().is_none_or(has_one) {
            return Err(config("there is no certificate in root_cert, in PEM"));
        }
        let client = certificates.client_tls.as_ref();
        if !client.is_none_or(|client| has_one(&client.client_cert)) {
            return Err(config("there is no certificate in client_cert, in PEM"));
        }
        // The host does not matter, nobody is asked.
        match Client::build_with_tls("rediss://localhost", certificates.clone()) {
            Ok(_) => Ok(Some(certificates)),
            Err(error) => Err(config(format!("the certificates can't be used: {error}"))),
        }
    }
}

/// How servers are talked to.
#[derive(Clone)]
pub(super) enum Transport {
    Plain,
    #[cfg(feature = "tls")]
    Tls(Option<TlsCertificates>),
}

impl Transport {
    pub(super) fn plain(certificates: &Certificates) -> Result<Self, StoreError> {
        match certificates.are_given() {
            false => Ok(Self::Plain),
            true => Err(config(
                "certificates are given, but the URL is not one for TLS: it begins with rediss://, \
                 rediss+cluster:// or rediss+sentinel://",
            )),
        }
    }

    #[cfg(feature = "tls")]
    pub(super) fn tls(certificates: Certificates) -> Result<Self, StoreError> {
        let certificates = certificates.checked()?;
        provide_crypto();
        Ok(Self::Tls(certificates))
    }

    #[cfg(not(feature = "tls"))]
    pub(super) fn tls(_: Certificates) -> Result<Self, StoreError> {
        Err(feature_is_missing())
    }

    /// What the URL of one server begins with.
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

    /// The Sentinels themselves and the servers that they name.
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

/// redis-rs takes the crypto provider that is the default of the process. If there is none, rustls
/// takes the one that is compiled in, and panics if there are two. What the app has chosen stays.
#[cfg(feature = "tls")]
fn provide_crypto() {
    use rustls::crypto::{CryptoProvider, ring};

    if CryptoProvider::get_default().is_none() {
        // Fails if somebody else was faster, and then there is one.
        let _ = ring::default_provider().install_default();
    }
}

/// Whether this is the URL of one server that is reached over TLS.
pub(super) fn is_for_tls(url: &str) -> bool {
    let scheme = url.split(':').next().unwrap_or_default().trim();
    ["rediss", "valkeys"]
        .iter()
        .any(|tls| scheme.eq_ignore_ascii_case(tls))
}

pub(super) fn feature_is_missing() -> StoreError {
    config(
        "the URL is one for TLS, and that needs the feature `tls` of tower-login-rate-limit: turn it \
         on in Cargo.toml",
    )
}

/// What redis-rs reads `#insecure` as.
pub(super) fn unverified() -> StoreError {
    config(
        "#insecure in a URL would have any server believed: give the certificate of the authority \
         that signed the server's instead, see RedisStoreBuilder::certificates",
    )
}

fn config(message: impl Into<std::borrow::Cow<'static, str>>) -> StoreError {
    StoreError::new(StoreErrorKind::Config, message)
}
