//! Kubernetes: the cluster that this server belongs to, and those that its secrets name.

use std::sync::Arc;
use std::time::Duration;

use anyhow::Context as _;
use pilot_base::{Clock, Name};
use pilot_cli::Env;
use pilot_config::ReadOptions;
use pilot_source_kube::{
    Access, AccessError, Client, ClusterOptions, KubeSource, MeshPlace, Pace, RemoteClusters, RemoteOptions,
    Role, Surroundings,
};

use super::Sources;
use crate::args::{DiscoveryArgs, cluster_id_of, namespace_of};

const REMOTE_PATIENCE: Duration = Duration::from_secs(30);

/// Nothing if there is no Kubernetes here and rules come from a folder anyway.
pub(super) fn open(
    args: &DiscoveryArgs,
    env: &Env,
    clock: &Arc<dyn Clock>,
) -> anyhow::Result<Option<Sources>> {
    let text = |name: &str| env.get(name).map(str::to_owned);
    let around = Surroundings {
        host: text("KUBERNETES_SERVICE_HOST"),
        port: text("KUBERNETES_SERVICE_PORT"),
        kubeconfig: text("KUBECONFIG"),
    };
    let access = match Access::find(&args.kubeconfig, &around) {
        Err(error @ AccessError::Nowhere) if args.config_dir.is_some() => {
            tracing::warn!("{error}; only --configDir is followed");
            return Ok(None);
        }
        access => access?,
    };
    let pace = Pace { per_second: args.kube_qps, burst: args.kube_burst };
    let client = Client::new(&access, pace, Arc::clone(clock)).context("Kubernetes")?;
    let namespace = namespace_of(args.namespace.as_deref(), env);
    let revision = env.get("REVISION").unwrap_or("default");
    let only_namespace = env.get("ISTIO_WATCH_NAMESPACE").map(Name::new);
    let cluster = cluster_id_of(args.cluster_id.clone(), env);
    let domain = Name::new(&args.domain);
    let mut place = MeshPlace::of_revision(namespace.clone(), revision, env.get("SHARED_MESH_CONFIG"));
    place.settings = !args.mesh_config.exists();
    place.networks = !args.networks_config.exists();
    let rules = args.config_dir.is_none().then(|| Name::new(revision));
    let mesh = Some(place).filter(|place| place.settings || place.networks);
    let options = ClusterOptions {
        read: ReadOptions { domain: domain.clone(), cluster: cluster.clone(), platform: true },
        role: Role::Home { rules, mesh },
        only_namespace: only_namespace.clone(),
    };
    let remote = RemoteOptions {
        namespace,
        domain,
        home: cluster,
        pace,
        patience: env.span("PILOT_REMOTE_CLUSTER_TIMEOUT").unwrap_or(REMOTE_PATIENCE),
        only_namespace,
    };
    let remote = RemoteClusters::new(client.clone(), remote);
    let clusters = remote.states();
    Ok(Some(Sources {
        sources: vec![Box::new(KubeSource::new(client.clone(), options)), Box::new(remote)],
        clusters,
        home: Some(client),
    }))
}
