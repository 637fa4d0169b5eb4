//! Kubernetes: the cluster that this server belongs to, and those that its secrets name.

use std::sync::Arc;
use std::time::Duration;

use anyhow::Context as _;
use pilot_base::{Clock, Name};
use pilot_cli::Env;
use pilot_config::ReadOptions;
use pilot_source::{Doubts, Source};
use pilot_source_kube::{
    Access, AccessError, Client, ClusterOptions, IngressSource, KubeSource, MeshPlace, Pace, RemoteClusters,
    RemoteOptions, Role, Surroundings, Tally,
};

use super::{Home, MeshSettings, Sources};
use crate::args::{DiscoveryArgs, cluster_id_of, namespace_of};

const REMOTE_PATIENCE: Duration = Duration::from_secs(30);

/// Nothing if there is no Kubernetes here and rules come from a folder anyway.
pub(super) fn open(
    args: &DiscoveryArgs,
    env: &Env,
    (clock, settings): (&Arc<dyn Clock>, MeshSettings),
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
    let cluster = cluster_id_of(args.cluster_id.clone(), env);
    let doubts = env.span("PILOT_WITHDRAWAL_HOLD").map_or_else(Doubts::default, Doubts::new);
    let client = Client::new(&access, pace, Arc::clone(clock)).context("Kubernetes")?;
    let client = client.of_cluster(&cluster, doubts.clone());
    let namespace = namespace_of(args.namespace.as_deref(), env);
    let revision = env.get("REVISION").unwrap_or_default();
    let only_namespace = env.get("ISTIO_WATCH_NAMESPACE").map(Name::new);
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
        // What stands in ConfigMaps is known to the source before it is to anybody else.
        settings: args.mesh_config.exists().then(|| settings.clone()),
    };
    let remote = RemoteOptions {
        namespace,
        domain,
        home: cluster,
        pace,
        patience: env.span("PILOT_REMOTE_CLUSTER_TIMEOUT").unwrap_or(REMOTE_PATIENCE),
        workloads: env
            .flag("PILOT_ENABLE_CROSS_CLUSTER_WORKLOAD_ENTRY")
            .unwrap_or(true)
            .then(|| Name::new(revision)),
        only_namespace: only_namespace.clone(),
    };
    let ingresses = args.config_dir.is_none().then(|| IngressSource {
        client: client.clone(),
        read: options.read.clone(),
        namespace: Name::new(env.get("K8S_INGRESS_NS").unwrap_or("istio-system")),
        only_namespace: options.only_namespace.clone(),
        mesh: settings,
    });
    let ingress_namespace = ingresses.as_ref().map(|ingresses| ingresses.namespace.clone());
    let tally = Tally::default();
    let source = KubeSource::new(client.clone(), options).counted(tally.clone());
    let (places, selection) = (source.places(), source.selection());
    let remote = RemoteClusters::new(client.clone(), remote).beside(source.synced()).counted(tally.clone());
    let (clusters, remotes) = (remote.states(), remote.clients());
    let mut sources: Vec<Box<dyn Source>> = vec![Box::new(source), Box::new(remote)];
    if let Some(ingresses) = ingresses {
        sources.push(Box::new(ingresses));
    }
    let revision = Name::new(revision);
    let home = Home { client, places, ingress_namespace, only_namespace, remotes, revision, selection };
    Ok(Some(Sources { sources, clusters, doubts, tally, home: Some(home) }))
}
