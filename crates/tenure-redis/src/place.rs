//! Where locks are: at one server, or at whichever node of a cluster has their bucket.

use redis::{Cmd, Value};
use std::sync::Arc;
use tenure_core::{BoxFuture, RefusalKind, StoreError};

use crate::attention::Watch;
use crate::cluster::Bucket;
use crate::config::RedisConfig;
use crate::scripts::{Call, Scripts};
use crate::supervisor::{Reply, Supervisor};

/// Where locks are.
#[derive(Debug)]
pub(crate) enum Place {
    One(Arc<Supervisor>),
    Bucket(Bucket),
}

impl Place {
    pub(crate) fn config(&self) -> &RedisConfig {
        match self {
            Self::One(server) => &server.config,
            Self::Bucket(bucket) => &bucket.cluster.config,
        }
    }

    pub(crate) fn scripts(&self) -> &Scripts {
        match self {
            Self::One(server) => &server.scripts,
            Self::Bucket(bucket) => &bucket.cluster.scripts,
        }
    }

    /// See [`Supervisor::run`].
    pub(crate) async fn run(&self, call: &dyn Call, watch: Watch) -> Result<Reply, StoreError> {
        match self {
            Self::One(server) => server.run(call, watch).await,
            // In a box: every request would be as large.
            Self::Bucket(bucket) => Box::pin(bucket.run(call, watch)).await,
        }
    }

    /// See [`Supervisor::run_all`].
    pub(crate) async fn run_all(
        &self,
        calls: &[&dyn Call],
        strict: usize,
        watch: Watch,
    ) -> Vec<Result<Reply, StoreError>> {
        match self {
            Self::One(server) => server.run_all(calls, strict, watch).await,
            Self::Bucket(bucket) => Box::pin(bucket.run_all(calls, strict, watch)).await,
        }
    }

    /// See [`Supervisor::ask`].
    pub(crate) async fn ask(&self, command: &Cmd) -> Result<Reply, StoreError> {
        match self {
            Self::One(server) => server.ask(command).await,
            Self::Bucket(bucket) => Box::pin(bucket.ask(command)).await,
        }
    }

    /// See [`Supervisor::ask_all`]. Never in a cluster.
    pub(crate) async fn ask_all(
        &self,
        commands: impl FnOnce(u64) -> Vec<Cmd>,
    ) -> Result<Vec<Value>, StoreError> {
        match self {
            Self::One(server) => server.ask_all(commands).await,
            Self::Bucket(_) => Err(StoreError::refused(RefusalKind::Unsupported, "not in a cluster")),
        }
    }

    /// Takes in what this process is told in an answer.
    pub(crate) fn message(&self, message: &[u8]) {
        match self {
            Self::One(server) => server.message(message, true),
            Self::Bucket(bucket) => bucket.cluster.message(message),
        }
    }

    /// Completes when what was granted may be lost.
    pub(crate) fn in_doubt(&self) -> BoxFuture<'static, ()> {
        match self {
            Self::One(server) => Box::pin(server.in_doubt()),
            Self::Bucket(bucket) => Box::pin(bucket.cluster.in_doubt()),
        }
    }
}
