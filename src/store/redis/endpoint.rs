//! A Redis for something other than counters, by the same URLs.

use std::{sync::Arc, time::Duration};

use bb8_redis::bb8::ManageConnection;
use redis::{
    Cmd, ErrorKind, FromRedisValue, Pipeline, RedisError, aio::MultiplexedConnection,
    cluster_async::ClusterConnection,
};
use tokio::time::timeout;

use super::{
    tls::Certificates,
    topology::{Describe, Topology},
};
use crate::store::{StoreError, StoreErrorKind};

/// How long connecting, or one exchange, may take.
const TIMEOUT: Duration = Duration::from_secs(2);

/// Where a Redis is, of any topology.
#[derive(Clone)]
pub(crate) struct Endpoint(Arc<Topology>);

impl Endpoint {
    pub(crate) fn from_url(url: &str, certificates: Certificates) -> Result<Self, StoreError> {
        Topology::from_url(url, certificates, TIMEOUT).map(|topology| Self(Arc::new(topology)))
    }

    pub(crate) fn is_cluster(&self) -> bool {
        matches!(*self.0, Topology::Cluster(_))
    }

    /// Opens a connection of its own.
    pub(crate) async fn connect(&self) -> Result<AnyConnection, RedisError> {
        let connecting = async {
            match &*self.0 {
                Topology::OneServer(manager) => manager.connect().await.map(AnyConnection::Server),
                Topology::Sentinel(manager) => manager.connect().await.map(AnyConnection::Server),
                Topology::Cluster(manager) => manager.connect().await.map(AnyConnection::Cluster),
            }
        };
        timeout(TIMEOUT, connecting).await.unwrap_or_else(timed_out)
    }

    /// An error in words, with what it is about.
    pub(crate) fn explain(&self, error: RedisError) -> StoreError {
        let server = match &*self.0 {
            Topology::OneServer(manager) => manager.describe(),
            Topology::Sentinel(manager) => manager.describe(),
            Topology::Cluster(manager) => manager.describe(),
        };
        let kind = match error.kind() {
            _ if error.is_timeout() => StoreErrorKind::Timeout,
            ErrorKind::Io | ErrorKind::ClusterConnectionNotFound => StoreErrorKind::Connection,
            ErrorKind::Parse | ErrorKind::UnexpectedReturnType => StoreErrorKind::Protocol,
            _ => StoreErrorKind::Server,
        };
        StoreError::new(kind, format!("{server} failed: {error}")).with_source(error)
    }
}

fn timed_out<T>(_: tokio::time::error::Elapsed) -> Result<T, RedisError> {
    Err(std::io::Error::from(std::io::ErrorKind::TimedOut).into())
}

/// A connection of any topology.
pub(crate) enum AnyConnection {
    Server(MultiplexedConnection),
    Cluster(ClusterConnection),
}

impl AnyConnection {
    /// Sends commands whose keys are in one slot.
    pub(crate) async fn send(&mut self, pipeline: &Pipeline) -> Result<(), RedisError> {
        let sending = async {
            match self {
                Self::Server(connection) => pipeline.exec_async(connection).await,
                Self::Cluster(connection) => pipeline.exec_async(connection).await,
            }
        };
        timeout(TIMEOUT, sending).await.unwrap_or_else(timed_out)
    }

    /// Sends a command and reads its reply.
    pub(crate) async fn query<T: FromRedisValue>(
        &mut self,
        command: &Cmd,
    ) -> Result<T, RedisError> {
        let querying = async {
            match self {
                Self::Server(connection) => command.query_async(connection).await,
                Self::Cluster(connection) => command.query_async(connection).await,
            }
        };
        timeout(TIMEOUT, querying).await.unwrap_or_else(timed_out)
    }
}
