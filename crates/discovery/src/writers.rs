//! What this server writes into the cluster that it belongs to.

use std::sync::Arc;

use pilot_base::{Clock, Name};
use pilot_cli::Env;
use pilot_kube_write::{CaSecret, Election, RootMaps, Seat, TokenReview, WebhookConfigs};
use pilot_server::{Authenticator, EngineHandle, Identity, unix_seconds};
use pilot_source_kube::Client;
use tokio::sync::watch;
use tokio::task::JoinSet;

use crate::args::{DiscoveryArgs, cluster_id_of, namespace_of};

/// The lock of who keeps the root certificate in every namespace.
const NAMESPACES: &str = "istio-namespace-controller-election";
const AUDIENCE: &str = "istio-ca";

pub(crate) struct Writers {
    client: Client,
    cluster: Name,
    namespace: String,
    revision: String,
    /// Who we are among the servers of the cluster.
    pod: String,
    root_map: String,
    audiences: Vec<String>,
    in_cacerts: bool,
    elects: bool,
    patches: bool,
}

impl Writers {
    pub(crate) fn new(client: Client, args: &DiscoveryArgs, env: &Env) -> Self {
        let text = |name: &str, default: &str| env.get(name).unwrap_or(default).to_owned();
        let flag = |name: &str, default: bool| env.flag(name).unwrap_or(default);
        Self {
            client,
            cluster: cluster_id_of(args.cluster_id.clone(), env),
            namespace: namespace_of(args.namespace.as_deref(), env).to_string(),
            revision: text("REVISION", "default"),
            pod: text("POD_NAME", "pilot-discovery"),
            root_map: text("PILOT_CA_CERT_CONFIGMAP", "istio-ca-root-cert"),
            audiences: text("TOKEN_AUDIENCES", AUDIENCE)
                .split(',')
                .map(|name| name.trim().to_owned())
                .collect(),
            in_cacerts: flag("USE_CACERTS_FOR_SELF_SIGNED_CA", false),
            elects: flag("ENABLE_LEADER_ELECTION", true),
            patches: env.get("VALIDATION_WEBHOOK_CONFIG_NAME") != Some("") && !args.https_addr.is_empty(),
        }
    }

    /// Where an authority of our own is kept.
    pub(crate) fn ca_secret(&self) -> CaSecret {
        CaSecret {
            client: self.client.clone(),
            namespace: self.namespace.clone(),
            in_cacerts: self.in_cacerts,
        }
    }

    /// Who knows the tokens of the cluster's service accounts.
    pub(crate) fn authenticator(&self, engine: &EngineHandle) -> Arc<dyn Authenticator> {
        Arc::new(TokenReview {
            client: self.client.clone(),
            cluster: self.cluster.clone(),
            audiences: self.audiences.clone(),
            trust: engine.trust_domains(),
        })
    }

    /// Everything that is written goes on until `stop`.
    pub(crate) fn start(
        self,
        identity: &Identity,
        clock: Arc<dyn Clock>,
        stop: impl Future<Output = ()> + Send + 'static,
        tasks: &mut JoinSet<()>,
    ) {
        if self.patches {
            let configs = WebhookConfigs {
                client: self.client.clone(),
                namespace: self.namespace.clone(),
                revision: self.revision.clone(),
                ca_bundle: identity.ca_bundle(),
            };
            tasks.spawn(configs.run());
        }
        let Some(authority) = identity.authority() else { return };
        let leads = if self.elects {
            let seat = Seat {
                namespace: self.namespace,
                name: NAMESPACES,
                identity: self.pod,
                revision: self.revision,
            };
            let election = Election::new(self.client.clone(), seat, clock, unix_seconds);
            let leads = election.leadership();
            tasks.spawn(election.run(stop));
            leads
        } else {
            let (alone, leads) = watch::channel(true);
            tasks.spawn(async move {
                stop.await;
                drop(alone);
            });
            leads
        };
        tasks.spawn(RootMaps { client: self.client, name: self.root_map, authority, leads }.run());
    }
}
