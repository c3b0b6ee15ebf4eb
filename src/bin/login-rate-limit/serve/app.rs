//! What is served.

use std::sync::Arc;

use axum::{Json, Router, response::Redirect, routing::get};
use serde_json::json;
use tower_login_rate_limit::{
    LoginLimiter, Policy,
    console::Console,
    event::{Feed, UserHasher},
    extract::ForwardedAddress,
    insight::Insight,
    server::Server,
    store::{MemoryStore, RedisStore, Store},
};

use super::{config::Config, metrics::Metrics, shared_secret};
use crate::{
    failure::Failure,
    output::safe,
    policy::file::{self, Contents},
    store::StoreArgs,
};

/// How many events the console keeps.
const EVENTS: usize = 10_000;

const IN_MEMORY: &str = "Counters are in memory: they end with this process, and no other process shares them. Set \
                         REDIS_URL to keep them.";
const NO_SHARED_SECRET: &str = "Redis does not hold a secret for the instances: signals of attacks and wrong blocks are \
                                those that this instance sees by itself.";
const NO_SECRET: &str = "There is no key secret: an attempt is settled by the instance that admitted it, until that \
                         is restarted. Set store.secret_file.";

pub(super) struct App {
    pub(super) limiter: LoginLimiter,
    pub(super) router: Router,
    introduction: Vec<String>,
}

impl App {
    pub(super) async fn new(
        config: &Config,
        args: &StoreArgs,
        metrics: Metrics,
    ) -> Result<Self, Failure> {
        let tokens = config.tokens()?;
        let args = config.store_args(args);
        let url = config.url(&args)?;
        let secret = args.secret()?;
        let mut introduction = Vec::new();
        // Users are hashed alike on all instances.
        let mut users = secret.clone();
        let store: Arc<dyn Store> = match &url {
            Some(url) => {
                introduction.push(format!(
                    "Counters are in Redis, under {}.",
                    safe(args.prefix())
                ));
                if secret.is_none() {
                    introduction.push(NO_SECRET.to_owned());
                }
                let store = connect(config, &args, url).await?;
                if users.is_none() {
                    users = shared_secret::get(&store, args.prefix()).await.ok();
                    if users.is_none() {
                        introduction.push(NO_SHARED_SECRET.to_owned());
                    }
                }
                store
            }
            None => {
                introduction.push(IN_MEMORY.to_owned());
                Arc::new(MemoryStore::new())
            }
        };
        let users = users.unwrap_or_else(shared_secret::random);
        let insight = Insight::new(UserHasher::new(users).map_err(too_short)?);
        let mut feed = Feed::new(EVENTS);
        let mut limiter = limiter(config, store)?
            .with_user_display(config.user_display()?)
            .with_insight(insight.clone());
        if let Some(url) = url.filter(|_| config.has_stream()) {
            let stream = args.stream()?.with_insight(insight.clone()).open(&url)?;
            let stream = Arc::new(stream);
            limiter = limiter.with_observer(Arc::clone(&stream));
            feed = feed.with_insight(insight);
            // Blocks of yesterday may turn out to be wrong today. The task ends with the process.
            drop(feed.follow(stream.reader()));
            let key = safe(&args.stream_key());
            introduction.push(format!("Events are in the stream {key}."));
        } else {
            limiter = limiter.with_observer(feed.clone());
        }
        let limiter = limiter.live().await?;

        let mut server = Server::new(limiter.clone(), tokens.clone())?.with_feed(feed);
        if let Some(secret) = &secret {
            server = server.with_secret(secret).map_err(too_short)?;
        }
        if let Some(sealer) = config.sealer()? {
            server = server.with_sealer(sealer);
        }
        Ok(Self {
            router: router(server, config, &limiter, metrics.router(tokens))?,
            limiter,
            introduction,
        })
    }

    /// What an operator should know.
    pub(super) fn introduction(&self) -> impl Iterator<Item = &str> {
        self.introduction.iter().map(String::as_str)
    }
}

fn too_short(error: impl std::fmt::Display) -> Failure {
    Failure::usage(error.to_string()).about("the key secret")
}

async fn connect(config: &Config, args: &StoreArgs, url: &str) -> Result<Arc<RedisStore>, Failure> {
    let mut builder = args.builder()?;
    if let Some(deadline) = config.deadline()? {
        builder = builder.with_deadline(deadline);
    }
    Ok(Arc::new(builder.connect(url).await?))
}

/// With the initial policy and access rules.
fn limiter(config: &Config, store: Arc<dyn Store>) -> Result<LoginLimiter, Failure> {
    let contents = config.policy.as_deref().map(file::read).transpose()?;
    match contents {
        None => Ok(LoginLimiter::new(Policy::default(), store)),
        Some(Contents::Policy(policy)) => Ok(LoginLimiter::new(policy, store)),
        Some(Contents::Ruleset(ruleset)) => {
            let limiter = LoginLimiter::new(ruleset.policy, store);
            Ok(limiter.with_access_rules(ruleset.access)?)
        }
    }
}

fn router(
    server: Server,
    config: &Config,
    limiter: &LoginLimiter,
    metrics: Router,
) -> Result<Router, Failure> {
    let api = server.router();
    let limiter = limiter.clone();
    let health = async move || {
        let status = limiter.store_status();
        Json(json!({
            "status": "ok",
            "degraded": status.is_degraded,
            "pending": status.pending,
        }))
    };
    let router = Router::new()
        .route("/healthz", get(health))
        .merge(metrics)
        .merge(api.clone());
    if !config.console.enabled {
        return Ok(router);
    }
    let mut console = Console::for_router(api).with_secure_cookie(config.console.secure_cookie);
    let proxies = &config.console.trusted_proxies;
    if !proxies.is_empty() {
        let address = ForwardedAddress::x_forwarded_for(proxies);
        let about = |failure: Failure| failure.about("console.trusted_proxies");
        let address = address.map_err(|error| about(Failure::usage(error.to_string())))?;
        console = console.with_address(address);
    }
    // As a service: the API's fallback would respond to `/console/` otherwise.
    Ok(router
        .nest_service("/console", console.router())
        .route("/", get(async || Redirect::to("/console/"))))
}
