//! A certificate authority of a test's own.

use std::fs;

use rcgen::{BasicConstraints, CertificateParams, DnType, IsCa, Issuer, KeyPair, KeyUsagePurpose};
use redis::{ClientTlsConfig, TlsCertificates};
use tempfile::TempDir;

/// Signs certificates for servers and clients.
pub struct Authority {
    issuer: Issuer<'static, KeyPair>,
    /// Its own certificate, in PEM.
    pub certificate: String,
    directory: TempDir,
}

impl Authority {
    pub fn new() -> Self {
        let directory = tempfile::tempdir().expect("a directory for certificates");
        let mut params = CertificateParams::default();
        // Of several authorities each has its own name, as the directory has.
        let name = directory.path().display().to_string();
        params.distinguished_name.push(DnType::CommonName, name);
        params.is_ca = IsCa::Ca(BasicConstraints::Unconstrained);
        params.key_usages = vec![KeyUsagePurpose::KeyCertSign];
        let key = KeyPair::generate().expect("a key");
        let certificate = params.self_signed(&key).expect("a certificate");
        Self {
            issuer: Issuer::new(params, key),
            certificate: certificate.pem(),
            directory,
        }
    }

    /// What a server on this machine needs on its command line. It asks no client for a certificate.
    pub fn settings(&self) -> Vec<String> {
        self.settings_for("127.0.0.1")
    }

    /// The same with a certificate for another host.
    pub fn settings_for(&self, host: &str) -> Vec<String> {
        let (certificate, key) = self.signed(host);
        [
            "--tls-ca-cert-file".to_owned(),
            self.write("ca.pem", &self.certificate),
            "--tls-cert-file".to_owned(),
            self.write(&format!("{host}.pem"), &certificate),
            "--tls-key-file".to_owned(),
            self.write(&format!("{host}.key"), &key),
            "--tls-auth-clients".to_owned(),
            "no".to_owned(),
        ]
        .into()
    }

    /// For clients that know this authority.
    pub fn known(&self) -> TlsCertificates {
        TlsCertificates {
            root_cert: Some(self.certificate.clone().into_bytes()),
            client_tls: None,
        }
    }

    /// For clients that know it and have a certificate that it has signed.
    pub fn known_and_client(&self) -> TlsCertificates {
        let (certificate, key) = self.signed("app");
        TlsCertificates {
            client_tls: Some(ClientTlsConfig {
                client_cert: certificate.into_bytes(),
                client_key: key.into_bytes(),
            }),
            ..self.known()
        }
    }

    /// A certificate and its key, in PEM.
    fn signed(&self, host: &str) -> (String, String) {
        let mut params = CertificateParams::new([host.to_owned()]).expect("a name");
        params.distinguished_name.push(DnType::CommonName, host);
        let key = KeyPair::generate().expect("a key");
        let certificate = params.signed_by(&key, &self.issuer).expect("a certificate");
        (certificate.pem(), key.serialize_pem())
    }

    fn write(&self, name: &str, pem: &str) -> String {
        let path = self.directory.path().join(name);
        fs::write(&path, pem).expect("a file");
        path.to_str().expect("a path").to_owned()
    }
}
