//! Grants that count only once replicas have them.
//!
//! `WAIT` holds up every later command on its connection, so these grants have a link of their own,
//! made for the first of them. `WAIT` covers what *that connection* has written, so the script and the
//! `WAIT` must use the same one: on another, Redis would say at once that all replicas have it.

use std::sync::Arc;

use tokio::sync::OnceCell;
use tollgate_core::lock::{AcquireOutcome, Replicas};
use tollgate_core::{StoreError, StoreErrorKind};

use super::reply;
use crate::config::Config;
use crate::link::{Call, Link};
use crate::script::SCRIPT;
use crate::{RedisStore, clock};

/// The link for replicated grants.
#[derive(Debug)]
pub(super) struct ReplicatedLink {
    config: Config,
    link: Arc<OnceCell<Link>>,
}

impl ReplicatedLink {
    pub(super) fn new(config: &Config) -> Self {
        Self { config: config.clone().connections(1), link: Arc::default() }
    }
}

impl RedisStore {
    /// Acquires a lock and waits for a majority of its replicas.
    pub(super) async fn acquire_replicated(
        &self,
        call: Call<'static>,
        replicas: Replicas,
    ) -> Result<AcquireOutcome, StoreError> {
        let ReplicatedLink { config, link } = &self.locks.replicated;
        let (config, link) = (config.clone(), Arc::clone(link));
        let patience = self.locks.patience;
        let work = async move {
            let link = link.get_or_try_init(|| Link::connect(&config, SCRIPT)).await;
            let link = link
                .map_err(|error| StoreError::new(StoreErrorKind::Unavailable).with_source(error))?;
            let deadline = clock::ahead(patience.saturating_add(replicas.patience));
            link.run_replicated(call, replicas, deadline).await
        };
        let (reply, copies) = self.driver.run(work).await?;
        match reply::acquired(&reply).ok_or_else(reply::malformed)? {
            AcquireOutcome::Granted { fence, depth, .. } => {
                Ok(AcquireOutcome::Granted { fence, depth, copies })
            }
            other => Ok(other),
        }
    }
}
