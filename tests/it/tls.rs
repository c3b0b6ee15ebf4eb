//! Redis over TLS, with certificates that the tests make.

use std::time::{Duration, Instant};

use redis::{ClientTlsConfig, TlsCertificates};
use tower_login_rate_limit::{
    LoginLimiter, Policy,
    store::{
        RedisStore, StoreError, StoreErrorKind,
        redis::{RedisStoreBuilder, install_crypto_provider},
    },
};

use crate::support::{Authority, RedisCluster, RedisSentinel, RedisServer, fail, ip, refused};

const HOME: &str = "192.0.2.1";

/// With a generous deadline: the machine may be busy with other tests.
async fn connect(
    url: impl AsRef<str>,
    certificates: Option<TlsCertificates>,
) -> Result<RedisStore, StoreError> {
    let builder = RedisStore::builder().with_deadline(Duration::from_secs(20));
    let builder = match certificates {
        Some(certificates) => with_certificates(builder, certificates),
        None => builder,
    };
    install_crypto_provider();
    builder.connect(url).await
}

fn with_certificates(
    mut builder: RedisStoreBuilder,
    certificates: TlsCertificates,
) -> RedisStoreBuilder {
    if let Some(roots) = certificates.root_cert {
        builder = builder.with_root_certificates(roots);
    }
    if let Some(client) = certificates.client_tls {
        builder = builder.with_client_certificate(client.client_cert, client.client_key);
    }
    builder
}

async fn works(store: RedisStore) {
    assert!(store.status().is_subscribed);
    let limiter = LoginLimiter::new(Policy::strict(), store);
    fail(&limiter, ip(HOME), "user", 5).await;
    refused(limiter.reserve((ip(HOME), "user")).await);
}

fn with(mut settings: Vec<String>, more: [&str; 2]) -> Vec<String> {
    settings.extend(more.map(str::to_owned));
    settings
}

#[tokio::test]
async fn a_server_whose_authority_is_known_is_believed() {
    let authority = Authority::new();
    for protocol in ["TLSv1.2", "TLSv1.3"] {
        let settings = with(authority.settings(), ["--tls-protocols", protocol]);
        let mut redis = RedisServer::start_tls(settings);
        redis.keys_may_live(Some(Duration::from_secs(90 * 86_400)));
        let store = connect(redis.url(), Some(authority.known())).await;
        works(store.unwrap()).await;
    }
}

#[tokio::test]
async fn a_server_whose_authority_is_not_known_is_refused() {
    let authority = Authority::new();
    let redis = RedisServer::start_tls(authority.settings());
    let other = Authority::new().known();
    // The system does not know it either.
    for certificates in [Some(other), None] {
        let error = connect(redis.url(), certificates).await.unwrap_err();
        assert_eq!(error.kind(), StoreErrorKind::Connection, "{error}");
        assert!(error.to_string().contains("UnknownIssuer"), "{error}");
    }
}

#[tokio::test]
async fn a_server_that_is_another_host_is_refused() {
    let authority = Authority::new();
    let redis = RedisServer::start_tls(authority.settings_for("redis.example.org"));
    let error = connect(redis.url(), Some(authority.known()))
        .await
        .unwrap_err();
    assert_eq!(error.kind(), StoreErrorKind::Connection, "{error}");
    assert!(error.to_string().contains("not valid for name"), "{error}");
}

#[tokio::test]
async fn a_server_may_ask_for_the_apps_certificate() {
    let authority = Authority::new();
    let settings = with(authority.settings(), ["--tls-auth-clients", "yes"]);
    let mut redis = RedisServer::start_tls(settings);
    redis.keys_may_live(Some(Duration::from_secs(90 * 86_400)));
    let store = connect(redis.url(), Some(authority.known_and_client())).await;
    works(store.unwrap()).await;

    let of_another_authority = TlsCertificates {
        client_tls: Authority::new().known_and_client().client_tls,
        ..authority.known()
    };
    for certificates in [authority.known(), of_another_authority] {
        let error = connect(redis.url(), Some(certificates)).await.unwrap_err();
        assert_eq!(error.kind(), StoreErrorKind::Connection, "{error}");
    }
}

#[tokio::test]
async fn a_cluster_is_reached_over_tls() {
    let authority = Authority::new();
    let mut cluster = RedisCluster::start_tls(&authority);
    for node in &mut cluster.nodes {
        node.keys_may_live(Some(Duration::from_secs(90 * 86_400)));
    }
    // The others are found over TLS too: there is no other way to them.
    let url = cluster.nodes[0].url().replace("://", "+cluster://");
    let store = connect(&url, Some(authority.known_and_client())).await;
    let store = store.unwrap();
    assert!(store.status().is_subscribed);
    let limiter = LoginLimiter::new(Policy::strict(), store);
    for i in 0..30 {
        fail(&limiter, ip(&format!("192.0.2.{i}")), "user", 1).await;
    }
    for node in &cluster.nodes {
        assert!(!node.keys().is_empty());
    }
    let other = Authority::new().known_and_client();
    for certificates in [None, Some(other)] {
        let error = connect(&url, certificates).await.unwrap_err();
        assert_eq!(error.kind(), StoreErrorKind::Connection, "{error}");
        assert!(error.to_string().contains("UnknownIssuer"), "{error}");
    }
    let no_client = connect(&url, Some(authority.known())).await;
    let error = no_client.unwrap_err();
    assert_eq!(error.kind(), StoreErrorKind::Connection, "{error}");
}

#[tokio::test]
async fn sentinels_and_what_they_name_are_reached_over_tls() {
    let authority = Authority::new();
    let mut sentinel = RedisSentinel::start_tls(&authority);
    for server in &mut sentinel.servers {
        server.keys_may_live(Some(Duration::from_secs(90 * 86_400)));
    }
    let url = sentinel.url();
    let store = connect(&url, Some(authority.known_and_client())).await;
    works(store.unwrap()).await;
    let other = Authority::new().known_and_client();
    for certificates in [None, Some(other)] {
        let error = connect(&url, certificates).await.unwrap_err();
        assert_eq!(error.kind(), StoreErrorKind::Connection, "{error}");
        assert!(error.to_string().contains("UnknownIssuer"), "{error}");
    }
    // Without a certificate of the app's, and without TLS.
    for (url, certificates) in [
        (url.clone(), Some(authority.known())),
        (url.replace("rediss", "redis"), None),
    ] {
        let error = connect(url, certificates).await.unwrap_err();
        assert_eq!(error.kind(), StoreErrorKind::Connection, "{error}");
    }
}

/// One side speaks TLS and the other does not. Each waits for the other to say something sensible.
#[tokio::test]
async fn sides_that_do_not_agree_on_tls_do_not_wait_for_long() {
    let authority = Authority::new();
    let plain = RedisServer::start();
    let tls = RedisServer::start_tls(authority.settings());
    let deadline = Duration::from_secs(1);
    install_crypto_provider();
    for port in [plain.port(), tls.port()] {
        let is_plain = port == plain.port();
        let scheme = if is_plain { "rediss" } else { "redis" };
        let mut builder = RedisStore::builder().with_deadline(deadline);
        if is_plain {
            builder = with_certificates(builder, authority.known());
        }
        let started = Instant::now();
        let url = format!("{scheme}://127.0.0.1:{port}");
        let error = builder.connect(url).await.unwrap_err();
        let took = started.elapsed();
        assert!(took < deadline * 5, "{took:?}: {error}");
    }
}

#[tokio::test]
async fn settings_that_are_not_safe_are_config_errors() {
    let authority = Authority::new();
    let root = |pem: &str| TlsCertificates {
        root_cert: Some(pem.into()),
        client_tls: None,
    };
    let client = |certificate: &str, key: &str| TlsCertificates {
        root_cert: None,
        client_tls: Some(ClientTlsConfig {
            client_cert: certificate.into(),
            client_key: key.into(),
        }),
    };
    let known = || Some(authority.known());
    let broken = "-----BEGIN CERTIFICATE-----\nsecret\n-----END CERTIFICATE-----\n";
    let (tls, certificate) = ("rediss://localhost", &authority.certificate);
    for (url, certificates, word) in [
        ("rediss://localhost/#insecure", None, "#insecure"),
        ("rediss://localhost#insecure", known(), "#insecure"),
        ("REDISS://localhost#in\nsecure", None, "#insecure"),
        ("valkeys://localhost/1#insecure", None, "#insecure"),
        ("rediss+cluster://a,b#insecure", None, "#"),
        ("rediss+sentinel://a,b/name#insecure", None, "#"),
        ("rediss+sentinel://a,b", None, "name"),
        ("redis://localhost", known(), "rediss://"),
        ("unix:///redis.sock", known(), "rediss://"),
        ("redis+cluster://a,b", known(), "rediss+cluster://"),
        ("redis+sentinel://a,b/name", known(), "rediss+sentinel://"),
        (tls, Some(root("")), "root certificates"),
        (tls, Some(root("no PEM")), "root certificates"),
        (tls, Some(root(broken)), "certificates are invalid"),
        (tls, Some(client("", "")), "client certificate"),
        (tls, Some(client(certificate, "secret")), "key"),
    ] {
        let error = connect(url, certificates).await.expect_err(url);
        assert_eq!(error.kind(), StoreErrorKind::Config, "{url}: {error}");
        assert!(error.to_string().contains(word), "{url}: {error}");
        assert!(!error.to_string().contains("secret"), "{error}");
    }
    let client = redis::Client::open("redis://localhost").unwrap();
    let builder = with_certificates(RedisStore::builder(), authority.known());
    let error = builder.build_with_manager(client).unwrap_err();
    assert_eq!(error.kind(), StoreErrorKind::Config, "{error}");
}
