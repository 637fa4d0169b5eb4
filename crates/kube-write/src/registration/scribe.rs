//! Writes what streams have said into entries.

use std::collections::BTreeMap;

use pilot_model::{ConfigId, Kind};
use pilot_source_kube::{Call, CallError, Client};
use tokio::task::JoinSet;

use super::{Pending, Registration, entry};
use crate::object::read;

/// A server that ends has little time: so many are written at once then.
const AT_ONCE: usize = 16;
/// So often others may have written at the same time.
const ATTEMPTS: usize = 3;

#[derive(Clone)]
pub(super) struct Scribe {
    pub(super) registration: Registration,
    pub(super) client: Client,
}

impl Scribe {
    pub(super) async fn write(&self, id: &ConfigId, pending: &Pending) -> Result<(), CallError> {
        let register = &self.registration.0;
        let instance = register.options.instance.as_str();
        let path = self.path(id)?;
        if let Some((health, at)) = &pending.health {
            let Some(entry) = read(&self.client, &path).await? else { return Ok(()) };
            if let Some(patch) = entry::health(&entry, instance, (health, *at)) {
                self.call(Call::merge(&format!("{path}/status"), patch.to_string())).await?;
            }
        }
        // It may have come back in between, which is written down already.
        let left = pending.left.filter(|_| !register.present.lock().contains_key(id));
        if let Some(times) = left {
            let Some(entry) = read(&self.client, &path).await? else { return Ok(()) };
            if let Some(patch) = entry::disconnected(&entry, instance, times) {
                self.call(Call::merge(&path, patch.to_string())).await?;
                tracing::info!("WorkloadEntry {id} is disconnected");
                register.metrics.registrations().left.inc();
            }
        }
        Ok(())
    }

    /// Writes all of it, as far as that works at once.
    pub(super) async fn write_all(self, pending: BTreeMap<ConfigId, Pending>) {
        let mut left = pending.into_iter();
        let mut writing = JoinSet::new();
        loop {
            while writing.len() < AT_ONCE
                && let Some((id, pending)) = left.next()
            {
                writing.spawn(self.clone().write_soon(id, pending));
            }
            if writing.join_next().await.is_none() {
                return;
            }
        }
    }

    async fn write_soon(self, id: ConfigId, pending: Pending) {
        for _ in 0..ATTEMPTS {
            match self.write(&id, &pending).await {
                Err(error) if error.status() == Some(409) => {}
                Err(error) => return tracing::warn!("WorkloadEntry {id} is not up to date: {error}"),
                Ok(()) => return,
            }
        }
    }

    pub(super) fn path(&self, id: &ConfigId) -> Result<String, CallError> {
        let path = self.registration.0.path(Kind::WorkloadEntry, id);
        path.map_err(|error| CallError::Unreachable(error.to_string()))
    }

    /// What is gone needs no change.
    pub(super) async fn call(&self, call: Call<'_>) -> Result<(), CallError> {
        match self.client.call(call).await {
            Err(error) if error.status() == Some(404) => Ok(()),
            called => called.map(|_| ()),
        }
    }
}
