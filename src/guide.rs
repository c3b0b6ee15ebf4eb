//! The guides of `docs/`, page by page.
//!
//! [With axum](axum) is the place to begin, and the [questions](faq) are those that others have asked. `examples/` has
//! a complete program for each recipe.
//!
//! | | |
//! |---|---|
//! | [`axum`], [`hyper`], [`tonic`] | integration: addresses, outcomes, the order of layers |
//! | [`mfa`] | codes count too |
//! | [`proxies`] | client addresses that can't be forged |
//! | [`algorithms`] | which limit to choose |
//! | [`production`], [`operations`] | Redis for a fleet; the runbook, events, metrics and alerts |
//! | [`console`], [`cli`], [`http_api`] | in a browser, in a terminal, from other languages |
//! | [`testing`] | tests of an app: without a socket, and without waiting |
//! | [`migration`] | from `tower_governor`, `axum-governor`, django-axes, Devise and rate-limiter-flexible |
//! | [`faq`] | questions, and what the messages of compiler and log mean |
//! | [`design`], [`design_redis`], [`design_operations`] | how a decision is made, exactly, and why |

/// A page of `docs/`. Of two definitions of a link the first one counts: these lead to modules, and those at the end of
/// each page to files.
macro_rules! guides {
    ($($name:ident $page:literal)*) => { $(
        #[doc = "[algorithms.md]: crate::guide::algorithms"]
        #[doc = "[axum.md]: crate::guide::axum"]
        #[doc = "[cli.md]: crate::guide::cli"]
        #[doc = "[console.md]: crate::guide::console"]
        #[doc = "[http-api.md]: crate::guide::http_api"]
        #[doc = "[design.md]: crate::guide::design"]
        #[doc = "[design-operations.md]: crate::guide::design_operations"]
        #[doc = "[design-redis.md]: crate::guide::design_redis"]
        #[doc = "[design.md#algorithms]: crate::guide::design#one-counter-four-algorithms"]
        #[doc = "[faq.md]: crate::guide::faq"]
        #[doc = "[hyper.md]: crate::guide::hyper"]
        #[doc = "[mfa.md]: crate::guide::mfa"]
        #[doc = "[migration.md]: crate::guide::migration"]
        #[doc = "[operations.md]: crate::guide::operations"]
        #[doc = "[production.md]: crate::guide::production"]
        #[doc = "[proxies.md]: crate::guide::proxies"]
        #[doc = "[testing.md]: crate::guide::testing"]
        #[doc = "[tonic.md]: crate::guide::tonic"]
        // Pages and files that are no module.
        #[doc = "[benchmarks.md]: https://docs.rs/crate/tower-login-rate-limit/latest/source/docs/benchmarks.md"]
        #[doc = "[cli-schema.json]: https://docs.rs/crate/tower-login-rate-limit/latest/source/docs/cli-schema.json"]
        #[doc = "[console/blocks-light.png]: https://docs.rs/crate/tower-login-rate-limit/latest/source/docs/console/blocks-light.png"]
        #[doc = "[console/events-dark.png]: https://docs.rs/crate/tower-login-rate-limit/latest/source/docs/console/events-dark.png"]
        #[doc = "[console/overview-light.png]: https://docs.rs/crate/tower-login-rate-limit/latest/source/docs/console/overview-light.png"]
        #[doc = "[console/policy-light.png]: https://docs.rs/crate/tower-login-rate-limit/latest/source/docs/console/policy-light.png"]
        #[doc = "[console/rules-light.png]: https://docs.rs/crate/tower-login-rate-limit/latest/source/docs/console/rules-light.png"]
        #[doc = "[console/subject-light.png]: https://docs.rs/crate/tower-login-rate-limit/latest/source/docs/console/subject-light.png"]
        #[doc = "[console/why-dark.png]: https://docs.rs/crate/tower-login-rate-limit/latest/source/docs/console/why-dark.png"]
        #[doc = "[grafana-dashboard.json]: https://docs.rs/crate/tower-login-rate-limit/latest/source/docs/grafana-dashboard.json"]
        #[doc = "[openapi.json]: https://docs.rs/crate/tower-login-rate-limit/latest/source/docs/openapi.json"]
        #[doc = "[prometheus-alerts.yml]: https://docs.rs/crate/tower-login-rate-limit/latest/source/docs/prometheus-alerts.yml"]
        // Pictures need a file beside the page, which docs.rs has not: their place is empty, and their text remains.
        #[doc = "[plots/backoff.svg]: data:image/svg+xml,"]
        #[doc = "[plots/growing-blocks.svg]: data:image/svg+xml,"]
        #[doc = "[plots/sliding-counter.svg]: data:image/svg+xml,"]
        #[doc = "[plots/sliding-window.svg]: data:image/svg+xml,"]
        #[doc = "[plots/token-bucket.svg]: data:image/svg+xml,"]
        #[doc = "[request.svg]: data:image/svg+xml,"]
        #[doc = ""]
        #[doc = include_str!(concat!("../docs/", $page))]
        pub mod $name {}
    )* };
}

guides! {
    algorithms "algorithms.md" axum "axum.md" cli "cli.md" console "console.md" design "design.md"
    design_operations "design-operations.md" design_redis "design-redis.md" faq "faq.md"
    http_api "http-api.md" hyper "hyper.md" mfa "mfa.md" migration "migration.md" operations "operations.md"
    production "production.md" proxies "proxies.md" testing "testing.md" tonic "tonic.md"
}
