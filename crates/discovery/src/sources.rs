//! Where services and rules come from: one line for each adapter.

mod kube;

use std::sync::Arc;

use anyhow::{Context as _, bail};
use pilot_base::{Clock, Name};
use pilot_cli::Env;
use pilot_config::ReadOptions;
use pilot_model::MeshConfig;
use pilot_source::{ClusterStates, Doubts, Source};
use pilot_source_file::{FileSource, MeshFile};
use pilot_source_kube::{Client, RemoteClients, RulePlaces, Selection, Tally};
use tokio::sync::watch;

use crate::args::{DiscoveryArgs, cluster_id_of};
use crate::registries;

/// Kubernetes' own objects in the folder of rules are services too.
const FILES: &str = "File";
const KUBERNETES: &str = "Kubernetes";

/// All that is followed.
pub(crate) struct Sources {
    pub(crate) sources: Vec<Box<dyn Source>>,
    pub(crate) clusters: ClusterStates,
    /// What they hold back.
    pub(crate) doubts: Doubts,
    /// What they hear of API servers.
    pub(crate) tally: Tally,
    /// The cluster that this server belongs to.
    pub(crate) home: Option<Home>,
}

/// A cluster that may be written to.
pub(crate) struct Home {
    pub(crate) client: Client,
    /// Where rules stand.
    pub(crate) places: RulePlaces,
    /// `K8S_INGRESS_NS`, if Ingresses are read.
    pub(crate) ingress_namespace: Option<Name>,
    /// `ISTIO_WATCH_NAMESPACE`
    pub(crate) only_namespace: Option<Name>,
    /// How other clusters are reached.
    pub(crate) remotes: RemoteClients,
    /// `REVISION`; all rules are ours if it is empty.
    pub(crate) revision: Name,
    /// Whose rules count.
    pub(crate) selection: Selection,
}

/// The settings of the mesh, as they are at any time.
pub(crate) type MeshSettings = watch::Receiver<Arc<MeshConfig>>;

pub(crate) fn open(
    args: &DiscoveryArgs,
    env: &Env,
    (clock, settings): (&Arc<dyn Clock>, MeshSettings),
) -> anyhow::Result<Sources> {
    let named: Vec<&str> =
        args.registries.iter().map(|name| name.trim()).filter(|name| !name.is_empty()).collect();
    let mut sources: Vec<Box<dyn Source>> = Vec::new();
    let (_, mut clusters) = watch::channel(Vec::new());
    let (mut doubts, mut tally) = (Doubts::default(), Tally::default());
    let mut kube = None;
    if named.contains(&KUBERNETES) {
        kube = kube::open(args, env, (clock, settings))?;
    }
    // What stands in a file counts more than what stands in a cluster, and all of it.
    if kube.is_none() || args.mesh_config.exists() {
        let mesh = MeshFile::open(&args.mesh_config)
            .with_context(|| format!("cannot follow --meshConfig {}", args.mesh_config.display()))?;
        sources.push(Box::new(mesh));
    }
    if kube.is_none() || args.networks_config.exists() {
        let networks = MeshFile::open_networks(&args.networks_config)
            .with_context(|| format!("cannot follow --networksConfig {}", args.networks_config.display()))?;
        sources.push(Box::new(networks));
    }
    let options = ReadOptions {
        domain: Name::new(&args.domain),
        cluster: cluster_id_of(args.cluster_id.clone(), env),
        platform: named.contains(&FILES),
    };
    // Rules in stores of other kinds are Istio's and nothing else.
    let rules = ReadOptions { platform: false, ..options.clone() };
    // Of two stores that have the same rule, the one that stands first here counts.
    if let Some(folder) = &args.config_dir {
        let files = FileSource::open(folder, options).context("--configDir")?;
        let polled = args.registry.config_poll.filter(|every| !every.is_zero());
        sources.push(Box::new(match polled {
            Some(every) => files.polled(every),
            None => files,
        }));
    }
    sources.extend(registries::open_stores(&args.registry, &rules)?);
    let mut home = None;
    if let Some(kube) = kube {
        (clusters, doubts, tally, home) = (kube.clusters, kube.doubts, kube.tally, kube.home);
        sources.extend(kube.sources);
    }
    for (rank, registry) in (1..).zip(named) {
        match registry {
            FILES if args.config_dir.is_none() => bail!("--registries {FILES} needs --configDir=FOLDER"),
            FILES | KUBERNETES => {}
            other => match registries::open(other, rank, &args.registry, &rules)? {
                Some(opened) => sources.extend(opened),
                None => bail!(
                    "--registries {other}: there is no such registry; there are Kubernetes, File, Consul, Eureka, ZooKeeper, Nomad, Marathon, CloudFoundry, DNS and Memory"
                ),
            },
        }
    }
    Ok(Sources { sources, clusters, doubts, tally, home })
}
