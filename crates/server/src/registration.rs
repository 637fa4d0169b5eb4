//! Workloads outside of the platform, which become known when their proxies connect.

use std::pin::Pin;

use pilot_ca::SpiffeId;
use pilot_model::Proxy;
use thiserror::Error;
use tonic::Status;

/// Who keeps the register.
pub trait Registrar: Send + Sync {
    /// A stream begins. Nothing comes of it if its proxy does not speak for such a workload.
    fn join<'a>(&'a self, proxy: &'a Proxy, identities: Option<&'a [SpiffeId]>) -> Joining<'a>;
}

pub type Joining<'a> =
    Pin<Box<dyn Future<Output = Result<Option<Box<dyn Membership>>, JoinError>> + Send + 'a>>;

/// What a stream has to say about its workload. It has left when this is dropped.
pub trait Membership: Send {
    fn health(&self, health: WorkloadHealth);
}

/// What an agent found out about its workload.
#[derive(Clone, PartialEq, Eq, Debug)]
pub enum WorkloadHealth {
    Healthy,
    Unhealthy(String),
}

/// Why a workload cannot be registered; the text reaches its agent's log.
#[derive(Clone, PartialEq, Eq, Debug, Error)]
pub enum JoinError {
    /// Something that has to be there first is not.
    #[error("{0}")]
    Missing(String),
    #[error("{0}")]
    Denied(String),
    /// Perhaps later.
    #[error("{0}")]
    Failed(String),
}

impl From<JoinError> for Status {
    fn from(error: JoinError) -> Self {
        match error {
            JoinError::Missing(text) => Self::failed_precondition(text),
            JoinError::Denied(text) => Self::permission_denied(text),
            JoinError::Failed(text) => Self::unavailable(text),
        }
    }
}
