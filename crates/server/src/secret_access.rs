//! Who may read the Secrets of his namespace.

use std::pin::Pin;

use pilot_ca::SpiffeId;
use pilot_model::{Proxy, ProxyType, SecretAccess};

use crate::stream::Hub;

/// What somebody who knows says of it.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub enum Verdict {
    Allowed,
    Denied,
    /// Nobody could be asked.
    Unknown,
}

pub type Reviewed<'a> = Pin<Box<dyn Future<Output = Verdict> + Send + 'a>>;

/// Somebody who knows who may read the Secrets of a namespace: in Kubernetes, the API server of the cluster.
pub trait SecretReview: Send + Sync {
    fn may_read<'a>(&'a self, cluster: &'a str, who: &'a SpiffeId) -> Reviewed<'a>;
}

/// What a proxy may read, and whether that is to be asked again soon. Only gateways need any, and only who has proved of which
/// namespace it is.
pub(crate) async fn access(hub: &Hub, proxy: &Proxy, identities: &[SpiffeId]) -> (SecretAccess, Verdict) {
    let own = identities.iter().find(|id| id.namespace == proxy.namespace.as_str());
    let Some(own) = own.filter(|_| proxy.kind == ProxyType::Router) else {
        return (SecretAccess::None, Verdict::Denied);
    };
    let verdict = match &hub.secrets {
        Some(review) => review.may_read(&proxy.cluster, own).await,
        // Without an API server whoever writes the files says who is in a namespace.
        None => Verdict::Allowed,
    };
    if verdict != Verdict::Allowed {
        tracing::warn!(target: "ads", "{} may not read the Secrets of its namespace: {verdict:?}", proxy.name);
    }
    let access = if verdict == Verdict::Allowed { SecretAccess::All } else { SecretAccess::Authorities };
    (access, verdict)
}
