//! `serve`: the HTTP API and the console, for logins in any language.

mod app;
mod config;
mod connections;
mod metrics;
mod shared_secret;
mod shutdown;

use std::{
    io::{self, IsTerminal},
    net::SocketAddr,
    path::PathBuf,
};

use clap::Args;
use tokio::{net::TcpListener, sync::oneshot};
use tracing_subscriber::EnvFilter;

use self::{app::App, config::Config};
use crate::{
    failure::{Exit, Failure},
    output::Output,
    store::StoreArgs,
};

const EXAMPLES: &str = "\
Examples:
  API_TOKEN=$(openssl rand -hex 32) login-rate-limit serve
  LISTEN=0.0.0.0:3002 REDIS_URL=redis://10.0.0.5 API_TOKEN=… login-rate-limit serve
  login-rate-limit serve --config /etc/login-rate-limit.toml

The API is at /v1, the console at /console, metrics at /metrics, health at /healthz. docs/cli.md has all settings
of the file. SIGTERM and SIGINT end it when open requests are answered and outcomes are written.";

/// Serve the HTTP API and the console
#[derive(Debug, Args)]
#[command(after_help = EXAMPLES)]
pub(crate) struct Serve {
    /// Settings in TOML; without it LISTEN, REDIS_URL and API_TOKEN
    #[arg(short, long, value_name = "FILE")]
    config: Option<PathBuf>,
}

impl Serve {
    pub(crate) async fn run(self, store: &StoreArgs, output: &Output) -> Result<Exit, Failure> {
        let config = match &self.config {
            Some(path) => Config::read(path)?,
            None => Config::default(),
        };
        log();
        let (listen, bounds) = (config.listen()?, config.bounds()?);
        let (metrics, beside) = metrics::install(&config)?;
        let app = App::new(&config, store, metrics).await?;
        let listener = bind(listen).await?;
        let address = listener.local_addr()?;
        for line in app.introduction() {
            output.line(line)?;
        }
        if let Some((listen, router)) = beside {
            let listener = bind(listen).await?;
            let address = listener.local_addr()?;
            output.line(format!("Metrics are at http://{address}/metrics."))?;
            tokio::spawn(async move {
                // Ends with the process.
                let (_stop, never) = oneshot::channel();
                connections::serve(listener, router, bounds.for_metrics(), never).await;
            });
        }
        if config.console.enabled {
            output.line(format!("The console is at http://{address}/console."))?;
        }
        output.line(format!("Listening on http://{address}"))?;
        shutdown::serve(listener, app, bounds).await?;
        output.line("Stopped; all outcomes are written.")?;
        Ok(Exit::Done)
    }
}

fn log() {
    let filter = EnvFilter::try_from_default_env().unwrap_or_else(|_| EnvFilter::new("info"));
    tracing_subscriber::fmt()
        .with_env_filter(filter)
        .with_ansi(io::stderr().is_terminal())
        .with_writer(io::stderr)
        .init();
}

async fn bind(address: SocketAddr) -> Result<TcpListener, Failure> {
    let listener = TcpListener::bind(address).await;
    listener.map_err(|error| Failure::from(error).about(format!("can't listen on {address}")))
}
