//! TLS without a crypto provider. It is chosen once for a process, so this test has one of its own.

use tower_login_rate_limit::store::{RedisStore, StoreErrorKind, redis::install_crypto_provider};

#[tokio::test]
async fn without_a_crypto_provider_the_error_tells_how_to_install_one() {
    for url in [
        "rediss://127.0.0.1:1",
        "rediss+cluster://127.0.0.1:1",
        "rediss+sentinel://127.0.0.1:1/name",
    ] {
        let error = RedisStore::connect(url).await.unwrap_err();
        assert_eq!(error.kind(), StoreErrorKind::Config, "{error}");
        assert!(
            error.to_string().contains("install_crypto_provider()"),
            "{error}"
        );
    }
    assert!(
        rustls::crypto::CryptoProvider::get_default().is_none(),
        "connecting must not install one for the whole process"
    );

    install_crypto_provider();
    let error = RedisStore::connect("rediss://127.0.0.1:1").await;
    assert_ne!(error.unwrap_err().kind(), StoreErrorKind::Config);
}
