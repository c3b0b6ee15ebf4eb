//! The HTTP API, in memory: `cargo run --example api`, then follow `docs/http-api.md`.
//!
//! Environment: `LISTEN` (default `127.0.0.1:3002`); `DECIDE_TOKEN` and `OPERATE_TOKEN`, the secrets of a login
//! backend and of an operator. Those that are not set are chosen at random and printed.

use std::{env, error::Error};

use tower_login_rate_limit::{
    LoginLimiter, Policy, Token,
    event::{Feed, UserDisplay},
    server::{Role, Server, Tokens},
    store::MemoryStore,
};

#[tokio::main]
async fn main() -> Result<(), Box<dyn Error>> {
    tracing_subscriber::fmt().init();
    let feed = Feed::new(10_000);
    let limiter = LoginLimiter::new(Policy::default(), MemoryStore::new())
        .with_user_display(UserDisplay::Masked)
        .with_observer(feed.clone())
        .live()
        .await?;
    let tokens = Tokens::new()
        .with_token("backend", secret("DECIDE_TOKEN"), [Role::Decide])?
        .with_token("operator", secret("OPERATE_TOKEN"), [Role::Operate])?;
    let app = Server::new(limiter.clone(), tokens)?
        .with_feed(feed)
        .router();

    let listen = env::var("LISTEN").unwrap_or_else(|_| "127.0.0.1:3002".to_owned());
    let listener = tokio::net::TcpListener::bind(listen).await?;
    println!("listening on http://{}", listener.local_addr()?);
    axum::serve(listener, app)
        .with_graceful_shutdown(async {
            let _ = tokio::signal::ctrl_c().await;
        })
        .await?;
    limiter.all_settled().await?;
    Ok(())
}

fn secret(name: &str) -> String {
    env::var(name).unwrap_or_else(|_| {
        let secret = Token::new().to_string();
        println!("{name}={secret}");
        secret
    })
}
