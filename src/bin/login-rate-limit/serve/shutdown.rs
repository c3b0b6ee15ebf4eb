//! Serving until a signal, and what is left to do then.

use std::time::Duration;

use tokio::{net::TcpListener, sync::oneshot, time::timeout};

use super::{
    app::App,
    connections::{self, Bounds},
};
use crate::failure::Failure;

/// How long open requests have. Streams of events stay open for as long as a page does.
const GRACE: Duration = Duration::from_secs(5);
/// How long outcomes and events have to be written.
const FLUSH: Duration = Duration::from_secs(10);

/// Serves until SIGTERM or SIGINT, then settles and flushes.
pub(super) async fn serve(listener: TcpListener, app: App, bounds: Bounds) -> Result<(), Failure> {
    let (stop, stopped) = oneshot::channel();
    let mut serving = tokio::spawn(connections::serve(listener, app.router, bounds, stopped));
    tokio::select! {
        ended = &mut serving => return ended.map_err(|error| Failure::error(error.to_string())),
        signaled = signal() => signaled?,
    }
    tracing::info!("stopping: no new connections are accepted");
    drop(stop);
    if timeout(GRACE, &mut serving).await.is_err() {
        serving.abort();
    }
    match timeout(FLUSH, app.limiter.all_settled()).await {
        Ok(Ok(())) => Ok(()),
        Ok(Err(error)) => Err(Failure::from(error).about("outcomes are not written")),
        Err(_) => Err(Failure::error(
            "outcomes are not written: the store does not answer in time",
        )),
    }
}

#[cfg(unix)]
async fn signal() -> Result<(), Failure> {
    use tokio::signal::unix::{SignalKind, signal};

    let mut terminate = signal(SignalKind::terminate())?;
    tokio::select! {
        _ = terminate.recv() => Ok(()),
        interrupted = tokio::signal::ctrl_c() => Ok(interrupted?),
    }
}

#[cfg(not(unix))]
async fn signal() -> Result<(), Failure> {
    Ok(tokio::signal::ctrl_c().await?)
}
