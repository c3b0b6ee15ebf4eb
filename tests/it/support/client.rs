//! The HTTP client of the tests. Also used by `tests/browser`.

use std::time::Duration;

/// Ignores proxy settings, and gives up on a server that hangs.
pub fn client() -> reqwest::Client {
    let builder = reqwest::Client::builder()
        .no_proxy()
        .timeout(Duration::from_secs(60));
    builder.build().expect("a client")
}
