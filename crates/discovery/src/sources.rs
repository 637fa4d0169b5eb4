//! Where services and rules come from: one line for each adapter.

use anyhow::{Context as _, bail};
use pilot_base::Name;
use pilot_cli::Env;
use pilot_config::ReadOptions;
use pilot_source::Source;
use pilot_source_file::{FileSource, MeshFile};

use crate::args::{DiscoveryArgs, cluster_id_of};
use crate::registries;

/// Kubernetes' own objects in the folder of rules are services too.
const FILES: &str = "File";

pub(crate) fn open(args: &DiscoveryArgs, env: &Env) -> anyhow::Result<Vec<Box<dyn Source>>> {
    let mut sources: Vec<Box<dyn Source>> = Vec::new();
    let mesh = MeshFile::open(&args.mesh_config)
        .with_context(|| format!("cannot follow --meshConfig {}", args.mesh_config.display()))?;
    sources.push(Box::new(mesh));
    let networks = MeshFile::open_networks(&args.networks_config)
        .with_context(|| format!("cannot follow --networksConfig {}", args.networks_config.display()))?;
    sources.push(Box::new(networks));
    let options = ReadOptions {
        domain: Name::new(&args.domain),
        cluster: cluster_id_of(args.cluster_id.clone(), env),
        platform: args.registries.iter().any(|name| name.trim() == FILES),
    };
    // Rules in stores of other kinds are Istio's and nothing else.
    let rules = ReadOptions { platform: false, ..options.clone() };
    sources.extend(registries::open_stores(&args.registry, &rules)?);
    if let Some(folder) = &args.config_dir {
        sources.push(Box::new(FileSource::open(folder, options).context("--configDir")?));
    }
    let named = args.registries.iter().map(|name| name.trim()).filter(|name| !name.is_empty());
    for (rank, registry) in (1..).zip(named) {
        if let Some(opened) = registries::open(registry, rank, &args.registry, &rules)? {
            sources.extend(opened);
            continue;
        }
        match registry {
            FILES if args.config_dir.is_some() => {}
            FILES => bail!("--registries {FILES} needs --configDir=FOLDER"),
            "Kubernetes" if args.config_dir.is_some() => {
                tracing::warn!("the Kubernetes registry is not built yet; only --configDir is followed");
            }
            "Kubernetes" => {
                bail!(
                    "the Kubernetes registry is not built yet; use --registries=File and --configDir=FOLDER"
                )
            }
            other => bail!(
                "--registries {other}: there is no such registry; there are File, Consul, Eureka, ZooKeeper, Nomad, Marathon, DNS and Memory"
            ),
        }
    }
    Ok(sources)
}
